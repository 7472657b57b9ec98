//! Traffic from a port to others: a few counters for each port, right for the largest receivers.
//!
//! ```text
//!  frames sent ─▶ 8 counters (Misra and Gries, 1982) ─▶ each second: the placement of ports
//! ```
//!
//! A receiver of more than a ninth of all traffic has a counter, which is too low by a ninth of all at
//! most. So a port that sends to a thousand others costs no more than one that sends to one.

use crate::fdb::PortIndex;

/// Cost of a direct frame besides its bytes, in copied bytes.
pub const DIRECT: i64 = 256;

/// Most pairs of ports of which an agent is told, those with most traffic.
pub const PAIRS: usize = 4096;

/// Receivers that have a counter.
const COUNTERS: usize = 8;

/// One port's counters.
#[derive(Clone, Debug, Default)]
pub struct Talk {
    /// The receiver of the last frame, and its count.
    last: (PortIndex, u64),
    others: Box<[(PortIndex, u64); COUNTERS - 1]>,
}

/// Sender, receiver, and the frames' cost: bytes, and [`DIRECT`] for each frame.
pub type PairTraffic = (PortIndex, PortIndex, u64);

impl Talk {
    /// Notes frames to a port. The last receiver is compared first.
    #[inline]
    pub fn note(&mut self, to: PortIndex, bytes: u64, frames: u64) {
        let cost = bytes + frames * DIRECT as u64;
        let (last, known) = &mut self.last;
        if *last == to {
            *known += cost;
        } else {
            self.note_other(to, cost);
        }
    }

    #[inline(never)]
    fn note_other(&mut self, to: PortIndex, mut cost: u64) {
        let Self { last, others } = self;
        let known = others.iter().position(|(port, cost)| *port == to && *cost > 0);
        if known.is_none() && last.1 == 0 {
            *last = (to, cost);
            return;
        }
        let place = known.or_else(|| others.iter().position(|(_, cost)| *cost == 0));
        if let Some(place) = place {
            let old_cost = others[place].1;
            others[place] = std::mem::replace(last, (to, old_cost + cost));
            return;
        }
        let least = others.iter().map(|(_, cost)| *cost).min().unwrap_or(0).min(last.1).min(cost);
        last.1 -= least;
        others.iter_mut().for_each(|(_, cost)| *cost -= least);
        cost -= least;
        if cost > 0 {
            self.note_other(to, cost);
        }
    }

    /// Takes the counts since the last call.
    pub fn take(&mut self) -> impl Iterator<Item = (PortIndex, u64)> {
        let (last, others) = (std::mem::take(&mut self.last), std::mem::take(&mut *self.others));
        std::iter::once(last).chain(others).filter(|(_, cost)| *cost > 0)
    }
}

/// Returns the most pairs of so many ports.
pub fn most_pairs(ports: usize) -> usize {
    ports * COUNTERS
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn a_receiver_of_much_traffic_is_counted_nearly_right(sent in prop::collection::vec((0u16..40, 60u64..9000), 1..400)) {
            let (mut talk, mut exact) = (Talk::default(), BTreeMap::<u16, u64>::new());
            for (to, bytes) in &sent {
                // Few receivers get most.
                let to = to * to / 40;
                talk.note(to, *bytes, 1);
                *exact.entry(to).or_default() += bytes + DIRECT as u64;
            }
            let all: u64 = exact.values().sum();
            let seen: BTreeMap<u16, u64> = talk.take().collect();
            prop_assert!(seen.len() <= COUNTERS);
            for (to, cost) in exact {
                let seen = seen.get(&to).copied().unwrap_or(0);
                prop_assert!(seen <= cost && cost - seen <= all / (COUNTERS as u64 + 1), "{to}: {seen} of {cost}, all {all}");
            }
            prop_assert_eq!(talk.take().count(), 0);
        }
    }
}
