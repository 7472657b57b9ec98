//! Which worker has which vNIC, decided from what they send each other. Pure.
//!
//! ```text
//!  each second: what each worker did, who sent whom how much
//!       └─▶ loads, smoothed ─▶ Placement::next: a step ─▶ still worth it PATIENCE looks long? ─▶ moves
//! ```
//!
//! - [`plan`]: the step that the loads ask for
//! - [`apart`]: real-time vNICs and best-effort taps on different workers

pub mod apart;
#[cfg(test)]
mod apart_tests;
pub mod plan;
mod role;
#[cfg(test)]
mod tests;

use crate::fdb::PortIndex;
use apart::Role;
use plan::{Placed, Placement, Step, WHOLE, Why};
use std::collections::BTreeMap;

/// For how many looks a step that loads ask for has to be worth it, until it is taken. Of several that are alike another one is the
/// best at each look; so it need not be the best.
const PATIENCE: u32 = 3;
/// For how many looks a vNIC stays where it is that was moved, or could not be.
const REST: u32 = 10;

/// What was seen since the look before.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// How long that was, ns.
    pub time: u64,
    /// For how long each worker was busy, ns.
    pub busy: Vec<u64>,
    /// By index.
    pub vnics: BTreeMap<PortIndex, Seat>,
    /// Who sent whom how much, as [cost](crate::port::talk::Said).
    pub talk: Vec<(PortIndex, PortIndex, u64)>,
}

/// A vNIC's worker, and what its contract says about it there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seat {
    /// Its worker.
    pub worker: usize,
    /// What it may add to one loop there in the worst case if it has a deadline, as cost: bytes copied.
    pub realtime: u64,
    /// What it has to do with deadlines.
    pub role: Role,
}

/// Remembers what it saw before.
#[derive(Debug, Default)]
pub struct Placer {
    talk: BTreeMap<(PortIndex, PortIndex), u64>,
    /// For how many looks vNICs stay.
    resting: BTreeMap<PortIndex, u32>,
    /// A step that is worth it, and for how many looks it was.
    wish: Option<(Step, u32)>,
}

impl Placer {
    /// Looks once more; the step that is to be taken now.
    pub fn look(&mut self, seen: &Seen) -> Option<Step> {
        self.resting.retain(|_, left| {
            *left -= 1;
            *left > 0
        });
        let places = self.places(seen);
        let best = places.next();
        let wish = self.wish.take();
        let (step, looks) = match wish {
            Some((wish, looks))
                if best.as_ref().is_some_and(|best| best.why == wish.why) && places.stands(&wish) =>
            {
                (wish, looks + 1)
            }
            _ => (best?, 1),
        };
        // What contracts ask for does not change from look to look.
        if looks < PATIENCE && step.why != Why::Apart {
            self.wish = Some((step, looks));
            return None;
        }
        step.moves.iter().for_each(|(port, _)| self.rest(*port));
        Some(step)
    }

    /// A vNIC stays for a while.
    pub fn rest(&mut self, port: PortIndex) {
        self.resting.insert(port, REST);
    }

    /// All as it is, averaged with what was.
    fn places(&mut self, seen: &Seen) -> Placement {
        let worker = |port: &PortIndex| seen.vnics.get(port).map(|seat| seat.worker);
        let mut pairs: BTreeMap<(PortIndex, PortIndex), u64> = BTreeMap::new();
        let mut sum = 0;
        for (from, to, cost) in &seen.talk {
            if let (Some(here), Some(there)) = (worker(from), worker(to))
                && from != to
            {
                *pairs.entry((*from.min(to), *from.max(to))).or_default() += cost;
                // As the plan counts: what crosses costs both workers.
                sum += if here == there { *cost } else { 2 * cost };
            }
        }
        let busy: u64 = seen.busy.iter().sum();
        let part = |cost: u64| {
            let time = u128::from(busy) * u128::from(cost) / u128::from(sum.max(1));
            (time * u128::from(WHOLE) / u128::from(seen.time.max(1))) as u64
        };
        smooth(&mut self.talk, pairs.iter().map(|(pair, cost)| (*pair, part(*cost))).collect());
        let place = |(port, seat): (&PortIndex, &Seat)| {
            let fixed = self.resting.contains_key(port);
            (*port, Placed { worker: seat.worker, realtime: seat.realtime, role: seat.role, fixed })
        };
        Placement {
            workers: seen.busy.len(),
            vnics: seen.vnics.iter().map(place).collect(),
            talk: self.talk.clone(),
        }
    }
}

/// For each what it is now, or the mean with what it was where that is less: what ends counts no more at once.
fn smooth<K: Ord>(before: &mut BTreeMap<K, u64>, now: BTreeMap<K, u64>) {
    let was = std::mem::take(before);
    let mean = |(key, value): (K, u64)| {
        let was = was.get(&key).copied().unwrap_or(0);
        (key, value.min(value.midpoint(was)))
    };
    before.extend(now.into_iter().map(mean));
}
