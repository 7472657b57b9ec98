//! The control loop on a simulated NIC: senders, their limits, the shared link, and late counters.
//!
//! ```text
//!  Sender ─▶ its VF's queue ─▶ limit (10.14 bits) ─▶ counter ─▶ FIFO of the link, tail drop ─▶ Trace
//!    ▲                           ▲ set, after a while    │ read late, or not at all             │
//!    │                           └──── Controller ◀──────┘                                      │
//!    └─────────────── acknowledged, lost: a round trip later ◀───────────────────────────────────┘
//! ```
//!
//! Time advances in ticks of a millisecond, traffic is a fluid, and the same scenario gives the same trace.

mod nic;
pub mod random;
mod sender;

pub use nic::factor_limit;
pub use sender::{Activity, Kind, Sender};

use nic::Nic;
use random::Random;
use sender::Source;
use serde::Serialize;
use std::collections::VecDeque;
use std::time::Duration;
use tidegate_contract::{Bytes, Rate};
use tidegate_place_nic::control::{Controller, LinkTerms, Member, Tenant, TermsError, Usage};

/// The resolution of all times.
pub const TICK: Duration = Duration::from_millis(1);

/// What sets the limits.
#[derive(Clone, Debug)]
pub enum Control {
    /// Nothing sets limits.
    None,
    /// The host, once; limits by member.
    Fixed(Vec<Option<Rate>>),
    /// The control loop.
    Loop(Timing),
}

/// Timing and data of the loop. Times are rounded to ticks.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// Time between two looks.
    pub period: Duration,
    /// Largest lateness of a look.
    pub jitter: Duration,
    /// Age of the counters at a look.
    pub delay: Duration,
    /// Time from a decision until its limits are in force.
    pub setting: Duration,
    /// Share of missing samples, 0 to 1.
    pub missed: f64,
}

impl Timing {
    /// Returns complete data on time, with limits set within a tick.
    pub const fn exact(period: Duration) -> Self {
        Self { period, jitter: Duration::ZERO, delay: Duration::ZERO, setting: TICK, missed: 0.0 }
    }
}

/// A simulation's input.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The link's terms for the loop.
    pub link: LinkTerms,
    /// Rate of a function without a limit; limits are factors of it.
    pub speed: Rate,
    /// Largest queue towards the link.
    pub buffer: Bytes,
    /// The functions with their senders.
    pub members: Vec<(Member, Sender)>,
    /// The tenants.
    pub tenants: Vec<Tenant>,
    /// What sets the limits.
    pub control: Control,
    /// Simulated time.
    pub duration: Duration,
    /// Time per point of the trace.
    pub bucket: Duration,
    /// Seed of jitter and missed samples.
    pub seed: u64,
}

/// A simulation's result.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Trace {
    /// Length of a bucket (s).
    pub bucket: f64,
    /// Traffic on the link (Mbit/s), by bucket and member.
    pub delivered: Vec<Vec<f64>>,
    /// Steps of the loop.
    pub steps: Vec<Step>,
    /// Bytes that the link dropped, by member.
    pub dropped: Vec<f64>,
}

/// One step of the loop.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Step {
    /// Time (s).
    pub at: f64,
    /// Limits (units), by member.
    pub limits: Vec<u64>,
    /// Number of changed limits.
    pub changed: usize,
}

/// Runs a scenario.
///
/// # Errors
/// The loop refuses the members.
pub fn run(scenario: &Scenario) -> Result<Trace, Vec<TermsError>> {
    let mut simulation = Simulation::new(scenario)?;
    let ticks = scenario.duration.as_millis() as u64;
    for tick in 0..ticks {
        simulation.tick(tick);
    }
    Ok(simulation.trace)
}

struct Simulation<'a> {
    scenario: &'a Scenario,
    sources: Vec<Source>,
    nic: Nic,
    governor: Option<Governor>,
    trace: Trace,
    bucket: Vec<f64>,
}

impl<'a> Simulation<'a> {
    fn new(scenario: &'a Scenario) -> Result<Self, Vec<TermsError>> {
        let members: Vec<Member> = scenario.members.iter().map(|(member, _)| *member).collect();
        let mut nic = Nic::new(members.len(), scenario.speed, scenario.link.capacity, scenario.buffer);
        if let Control::Fixed(limits) = &scenario.control {
            for (index, limit) in limits.iter().enumerate() {
                nic.set(index, *limit);
            }
        }
        let governor = match scenario.control {
            Control::Loop(timing) => Some(Governor {
                controller: Controller::new(scenario.link, &members, &scenario.tenants)?,
                timing,
                turn: 0,
                next: 0,
                random: Random::new(scenario.seed),
                counters: VecDeque::new(),
                last: vec![(0, 0); members.len()],
                pending: VecDeque::new(),
            }),
            Control::None | Control::Fixed(_) => None,
        };
        let trace = Trace {
            bucket: scenario.bucket.as_secs_f64(),
            dropped: vec![0.0; members.len()],
            ..Trace::default()
        };
        let sources = scenario.members.iter().map(|(_, s)| Source::new(s.clone(), scenario.speed)).collect();
        Ok(Self { scenario, sources, nic, governor, trace, bucket: vec![0.0; members.len()] })
    }

    fn tick(&mut self, now: u64) {
        for (index, source) in self.sources.iter_mut().enumerate() {
            let offered = source.offer(now);
            source.lost(now, self.nic.enqueue(index, offered));
        }
        self.nic.tick();
        for (index, source) in self.sources.iter_mut().enumerate() {
            let (delivered, dropped) = self.nic.outcome(index);
            source.acknowledged(now, delivered);
            source.lost(now, dropped);
            self.bucket[index] += delivered;
            self.trace.dropped[index] += dropped;
        }
        let bucket = self.scenario.bucket.as_millis() as u64;
        if (now + 1).is_multiple_of(bucket) {
            let mbps = |bytes: &mut f64| std::mem::take(bytes) * 8.0 / 1e6 / self.trace.bucket;
            self.trace.delivered.push(self.bucket.iter_mut().map(mbps).collect());
        }
        if let Some(governor) = &mut self.governor {
            governor.tick(now, &mut self.nic, &mut self.trace.steps);
        }
    }
}

/// The controller, with its delays.
struct Governor {
    controller: Controller,
    timing: Timing,
    turn: u64,
    next: u64,
    random: Random,
    /// By tick, newest last, as far back as `delay`.
    counters: VecDeque<Vec<u64>>,
    /// Last sample of each member: bytes and time.
    last: Vec<(u64, u64)>,
    /// Decided limits, and the ticks of their coming into force.
    pending: VecDeque<(u64, usize, Rate)>,
}

fn ticks(time: Duration) -> u64 {
    time.as_millis() as u64
}

impl Governor {
    fn tick(&mut self, now: u64, nic: &mut Nic, steps: &mut Vec<Step>) {
        while let Some(&(_, index, limit)) = self.pending.front().filter(|(due, ..)| *due <= now) {
            nic.set(index, Some(limit));
            self.pending.pop_front();
        }
        self.counters.push_back(nic.counters());
        if self.counters.len() as u64 > ticks(self.timing.delay) + 1 {
            self.counters.pop_front();
        }
        if now < self.next {
            return;
        }
        // A late look does not shift the following ones.
        self.turn += 1;
        let late = self.random.below(ticks(self.timing.jitter) + 1);
        self.next = self.turn * ticks(self.timing.period).max(1) + late;
        let seen = &self.counters[0];
        let usage: Vec<Option<Usage>> = (0..seen.len())
            .map(|index| {
                let (bytes, at) = self.last[index];
                if self.random.chance(self.timing.missed) {
                    return None;
                }
                self.last[index] = (seen[index], now);
                Some(Usage { bytes: seen[index] - bytes, elapsed: TICK * (now - at) as u32 })
            })
            .collect();
        let due = now + ticks(self.timing.setting);
        let changes = self.controller.step(&usage).to_vec();
        let ids: Vec<u16> = self.controller.standings().map(|s| s.id).collect();
        for change in &changes {
            let index = ids.iter().position(|&id| id == change.id).expect("changes are of members");
            self.pending.push_back((due, index, change.to));
        }
        let unit = self.controller.link().unit.bits();
        steps.push(Step {
            at: (now as f64) * TICK.as_secs_f64(),
            limits: self.controller.standings().map(|s| s.limit.map_or(0, Rate::bits) / unit).collect(),
            changed: changes.len(),
        });
    }
}

impl Trace {
    /// Returns a member's mean rate (Mbit/s) from `from` to `to` (s), in whole buckets.
    pub fn mean(&self, member: usize, from: f64, to: f64) -> f64 {
        let buckets = self.between(from, to);
        buckets.iter().map(|b| b[member]).sum::<f64>() / buckets.len().max(1) as f64
    }

    /// Returns the buckets from `from` to `to` (s).
    pub fn between(&self, from: f64, to: f64) -> &[Vec<f64>] {
        let at = |time: f64| ((time / self.bucket).round() as usize).min(self.delivered.len());
        &self.delivered[at(from)..at(to)]
    }
}
