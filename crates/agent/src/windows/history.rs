//! What one vNIC counted in the last hour, in steps that grow with their age. Pure.
//!
//! ```text
//!            ◀──────────── 1 hour ───────────────▶◀── 1 minute ──▶◀── 10 s ──▶
//!  dropped ◀─│ 5 min │ 5 min │ ...              │ 6 s │ 6 s │... │1 s│1 s│...│ ◀── a sample, once a second
//!            └─ the oldest step of one length goes into the newest of the next, as soon as its window is full without it
//! ```
//!
//! A window is what was counted since the last sample, and the youngest steps up to its length. It is at most one step
//! longer than asked for, and says how long it is.

use super::delta::{Delta, Sum};
use crate::views::{Began, Last, WindowView};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_contract::Vnic;
use tidegate_evidence::VnicStats;

/// Length of a step of each level, and the window of the level.
const LEVELS: [(Duration, Last); 3] = [
    (Duration::from_secs(1), Last::TenSeconds),
    (Duration::from_secs(6), Last::Minute),
    (Duration::from_secs(300), Last::Hour),
];
/// Least time between samples: a little less than a step, so that two looks a second do not lengthen each step by half.
const SHORTEST_STEP: Duration = Duration::from_millis(950);

/// A step: `delta` is `None` if nothing was counted.
#[derive(Debug)]
struct Step {
    took: Duration,
    delta: Option<Box<Delta>>,
}

#[derive(Debug)]
pub(super) struct History {
    /// By level, the newest last.
    steps: [VecDeque<Step>; LEVELS.len()],
    /// The last sample, up to which there are steps.
    last: Arc<VnicStats>,
    at: Instant,
    /// The figures seen last.
    newest: Arc<VnicStats>,
    sampled_at: Instant,
    /// The contract in force at that time; `None` if unknown.
    contract: Option<Vnic>,
    /// Why nothing earlier is known.
    began: Began,
}

impl History {
    /// Starts with a first sample.
    pub(super) fn new(at: Instant, stats: &VnicStats, contract: Option<&Vnic>, began: Began) -> Self {
        let (stats, contract) = (Arc::new(stats.clone()), contract.cloned());
        Self {
            steps: Default::default(),
            last: stats.clone(),
            at,
            newest: stats,
            sampled_at: at,
            contract,
            began,
        }
    }

    /// Takes a sample. A vNIC with another contract, or whose counters fell, begins anew.
    pub(super) fn sample(&mut self, at: Instant, stats: &VnicStats, contract: Option<&Vnic>) {
        if contract != self.contract.as_ref() {
            *self = Self::new(at, stats, contract, Began::Contract);
            return;
        }
        if *stats != *self.newest {
            self.newest = Arc::new(stats.clone());
        }
        self.sampled_at = at;
        let took = at.saturating_duration_since(self.at);
        if took < SHORTEST_STEP {
            return;
        }
        let delta = if Arc::ptr_eq(&self.newest, &self.last) {
            None
        } else if let Some(delta) = Delta::between(&self.last, stats) {
            Some(Box::new(delta))
        } else {
            *self = Self::new(at, stats, contract, Began::Counters);
            return;
        };
        (self.last, self.at) = (Arc::clone(&self.newest), at);
        self.steps[0].push_back(Step { took, delta });
        self.age();
    }

    /// Moves steps that are too old for their level to the next.
    fn age(&mut self) {
        let mut younger = Duration::ZERO;
        for level in 0..LEVELS.len() {
            let enough = LEVELS[level].1.duration();
            let mut all = younger + self.steps[level].iter().map(|step| step.took).sum::<Duration>();
            while let Some(oldest) = self.steps[level].front().map(|step| step.took)
                && all - oldest >= enough
            {
                all -= oldest;
                let Some(step) = self.steps[level].pop_front() else { break };
                if level + 1 < LEVELS.len() {
                    add(&mut self.steps[level + 1], step, LEVELS[level + 1].0);
                }
            }
            younger = all;
        }
    }

    /// Returns the figures of a window that ends with the last look.
    pub(super) fn window(&self, last: Last) -> (WindowView, VnicStats) {
        let (mut covers, mut sum) = (self.sampled_at.saturating_duration_since(self.at), Sum::new());
        // Counters that fell since the last sample belong to a new port, made after it.
        let newest = Delta::between(&self.last, &self.newest);
        let is_anew = newest.is_none();
        if let Some(newest) = newest.or_else(|| Delta::between(&VnicStats::default(), &self.newest)) {
            sum.add(&newest);
        }
        for step in self.steps.iter().flat_map(|steps| steps.iter().rev()) {
            if is_anew || covers >= last.duration() {
                break;
            }
            if let Some(delta) = &step.delta {
                sum.add(delta);
            }
            covers += step.took;
        }
        let began = if is_anew { Began::Counters } else { self.began };
        let view = WindowView {
            asked_ns: last.duration().as_nanos() as u64,
            covers_ns: covers.as_nanos() as u64,
            began: (covers < last.duration()).then_some(began),
        };
        (view, sum.figures(&self.newest))
    }
}

/// Adds a step to a level: to its newest step, or as a new one if that exceeds `length`.
fn add(level: &mut VecDeque<Step>, step: Step, length: Duration) {
    match level.back_mut() {
        Some(newest) if newest.took + step.took <= length => {
            newest.took += step.took;
            newest.delta = match (newest.delta.take(), step.delta) {
                (Some(a), Some(b)) => Some(Box::new(a.and(&b))),
                (a, b) => a.or(b),
            };
        }
        _ => level.push_back(step),
    }
}

#[cfg(test)]
impl History {
    pub(super) fn steps(&self) -> usize {
        self.steps.iter().map(VecDeque::len).sum()
    }

    pub(super) fn bytes(&self) -> usize {
        let deltas = self.steps.iter().flatten().filter_map(|step| step.delta.as_ref());
        deltas.map(|delta| delta.bytes()).sum()
    }
}
