//! Decides which worker serves which vNIC, from their traffic with each other. Pure.
//!
//! ```text
//!  each second: what each worker did, who sent whom how much
//!       └─▶ loads, smoothed ─▶ Placement::next: a step ─▶ still worth it PATIENCE looks long? ─▶ moves
//!  the agent's directions ─▶ vNICs at other workers, before any such step ────────────────────────▲
//! ```
//!
//! - [`plan`]: the next step for given loads
//! - [`apart`]: real-time vNICs and best-effort taps on different workers
//! - `role`: what a vNIC's deadlines demand of its worker

pub mod apart;
#[cfg(test)]
mod apart_tests;
pub mod plan;
mod role;
#[cfg(test)]
mod tests;

use crate::fdb::PortIndex;
use plan::{MOST_MOVED, MoveReason, Placed, Placement, Step, WHOLE};
pub use role::Role;
use std::collections::BTreeMap;

/// Looks for which a step must stay worthwhile before it is taken. It need not stay the best of several similar ones.
const PATIENCE: u32 = 3;
/// Looks for which a vNIC rests after a move, also a failed one.
const REST: u32 = 10;

/// The measurements since the last look.
#[derive(Clone, Debug, Default)]
pub struct Measurement {
    /// Length of the interval (ns).
    pub time: u64,
    /// Busy time of each worker (ns).
    pub busy: Vec<u64>,
    /// All vNICs.
    pub vnics: BTreeMap<PortIndex, VnicDemand>,
    /// Traffic (sender, receiver, [cost](crate::port::talk::PairTraffic)).
    pub talk: Vec<(PortIndex, PortIndex, u64)>,
}

/// A vNIC's worker, and the demands of its contract.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VnicDemand {
    /// Its worker.
    pub worker: usize,
    /// Its worst-case share of one loop if it has a deadline, as cost: bytes copied.
    pub realtime: u64,
    /// How deadlines concern it.
    pub role: Role,
    /// The worker that the agent directs; the vNIC moves nowhere else.
    pub directed: Option<usize>,
}

/// Decides from the present and earlier measurements.
#[derive(Debug, Default)]
pub struct Placer {
    talk: BTreeMap<(PortIndex, PortIndex), u64>,
    /// Remaining looks for which vNICs rest.
    resting: BTreeMap<PortIndex, u32>,
    /// A worthwhile step, and for how many looks it was.
    candidate: Option<(Step, u32)>,
}

impl Placer {
    /// Evaluates the next measurement; returns the step to take now.
    pub fn evaluate(&mut self, measurement: &Measurement) -> Option<Step> {
        self.resting.retain(|_, left| {
            *left -= 1;
            *left > 0
        });
        let places = self.places(measurement);
        if let Some(step) = self.directed_step(measurement) {
            step.moves.iter().for_each(|(port, _)| self.rest(*port));
            return Some(step);
        }
        let best = places.next();
        let candidate = self.candidate.take();
        let (step, looks) = match candidate {
            Some((candidate, looks))
                if best.as_ref().is_some_and(|best| best.reason == candidate.reason)
                    && places.is_worthwhile(&candidate) =>
            {
                (candidate, looks + 1)
            }
            _ => (best?, 1),
        };
        // The demands of contracts do not vary from look to look.
        if looks < PATIENCE && step.reason != MoveReason::Apart {
            self.candidate = Some((step, looks));
            return None;
        }
        step.moves.iter().for_each(|(port, _)| self.rest(*port));
        Some(step)
    }

    /// Returns the moves of directed vNICs that are elsewhere and do not rest.
    fn directed_step(&self, measurement: &Measurement) -> Option<Step> {
        let goes = |(port, vnic): (&PortIndex, &VnicDemand)| {
            let to = vnic.directed.filter(|to| *to != vnic.worker && *to < measurement.busy.len())?;
            (!self.resting.contains_key(port)).then_some((*port, to))
        };
        let moves: Vec<_> = measurement.vnics.iter().filter_map(goes).take(MOST_MOVED).collect();
        (!moves.is_empty()).then_some(Step { moves, reason: MoveReason::Directed })
    }

    /// Makes a vNIC rest.
    pub fn rest(&mut self, port: PortIndex) {
        self.resting.insert(port, REST);
    }

    /// Returns the present placement, with traffic averaged over looks.
    fn places(&mut self, measurement: &Measurement) -> Placement {
        let worker = |port: &PortIndex| measurement.vnics.get(port).map(|seat| seat.worker);
        let mut pairs: BTreeMap<(PortIndex, PortIndex), u64> = BTreeMap::new();
        let mut sum = 0;
        for (from, to, cost) in &measurement.talk {
            if let (Some(here), Some(there)) = (worker(from), worker(to))
                && from != to
            {
                *pairs.entry((*from.min(to), *from.max(to))).or_default() += cost;
                // As in the plan: crossing traffic costs both workers.
                sum += if here == there { *cost } else { 2 * cost };
            }
        }
        let busy: u64 = measurement.busy.iter().sum();
        let part = |cost: u64| {
            let time = u128::from(busy) * u128::from(cost) / u128::from(sum.max(1));
            (time * u128::from(WHOLE) / u128::from(measurement.time.max(1))) as u64
        };
        smooth(&mut self.talk, pairs.iter().map(|(pair, cost)| (*pair, part(*cost))).collect());
        let place = |(port, seat): (&PortIndex, &VnicDemand)| {
            let fixed = self.resting.contains_key(port) || seat.directed.is_some();
            (*port, Placed { worker: seat.worker, realtime: seat.realtime, role: seat.role, fixed })
        };
        Placement {
            workers: measurement.busy.len(),
            vnics: measurement.vnics.iter().map(place).collect(),
            talk: self.talk.clone(),
        }
    }
}

/// Takes the smaller of the new value and its mean with the old one. Missing keys end at once.
fn smooth<K: Ord>(before: &mut BTreeMap<K, u64>, now: BTreeMap<K, u64>) {
    let was = std::mem::take(before);
    let mean = |(key, value): (K, u64)| {
        let was = was.get(&key).copied().unwrap_or(0);
        (key, value.min(value.midpoint(was)))
    };
    before.extend(now.into_iter().map(mean));
}
