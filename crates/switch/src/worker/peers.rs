//! Best-effort frames from other workers: they share the time as own ports do.
//!
//! ```text
//!                    ┌ it has time left ─▶ its next frame, to its egress ─▶ delivered
//!  other workers ────┤                         └───────── charged to its account ──┘
//!                    └ none left ─▶ its ring waits for the next round
//! ```
//!
//! A worker has one account for each other worker, not for each of its ports: a ring between workers is
//! first in, first out, and a frame that waits for its port's turn would delay others. The account has the
//! weights of all ports whose frames came lately. Their shares of it follow from their turns at their own
//! worker.

use super::turns::Turns;
use super::{Worker, budget};
use crate::capacity::WORKERS;
use crate::clock::clock;
use crate::fdb::PortIndex;
use crate::port::PortSet;
use crate::stats::LoopPart;
use crate::worker::crossing::Crossing;

/// A port counts for this long after its last frame, to twice that (ns).
const LATELY: u64 = 5_000_000;

/// The ports of one other worker whose frames came lately.
struct RecentSenders {
    /// Beginning of `now` (ns).
    since: u64,
    now: PortSet,
    before: PortSet,
    /// Weight of both together.
    weight: u32,
}

/// The recent ports of all other workers.
pub(super) struct Senders(Vec<RecentSenders>);

impl Default for Senders {
    fn default() -> Self {
        let none = || RecentSenders { since: 0, now: PortSet::EMPTY, before: PortSet::EMPTY, weight: 0 };
        Self((0..WORKERS).map(|_| none()).collect())
    }
}

impl RecentSenders {
    /// Notes a frame of `source` at `at`; `true` if the total weight changed.
    #[inline]
    fn note(&mut self, source: PortIndex, at: u64, weight_of: impl Fn(PortIndex) -> u32) -> bool {
        if self.now.contains(source) && at.saturating_sub(self.since) < LATELY {
            return false;
        }
        if at.saturating_sub(self.since) >= LATELY {
            (self.since, self.before) = (at, std::mem::replace(&mut self.now, PortSet::EMPTY));
        }
        self.now.insert(source);
        let before = self.before.iter().filter(|port| !self.now.contains(*port));
        let weight = before.chain(self.now.iter()).map(weight_of).fold(0, u32::saturating_add);
        std::mem::replace(&mut self.weight, weight) != weight
    }
}

impl Worker {
    /// Takes in best-effort frames of other workers with time left, one of each in turn.
    pub(super) fn crossings(&mut self, budget: &mut i64) -> bool {
        let mut worked = false;
        let mut frames = [0u16; WORKERS];
        let (mut all, mut came) = (0, true);
        while std::mem::take(&mut came) {
            for (id, frames) in frames.iter_mut().enumerate().take(self.peers.len()) {
                let Some((peer, _)) = &self.peers[id] else { continue };
                if !peer.has_frames() {
                    continue;
                }
                // Not idle: frames without budget or time wait for a loop, or for a round.
                worked = true;
                if *budget <= 0 || !self.turns.is_due(Turns::of_worker(id)) {
                    continue;
                }
                if all == 0 {
                    self.turns.pass(clock());
                }
                let Some(crossing) = self.peers[id].as_mut().and_then(|(peer, _)| peer.receive()) else {
                    continue;
                };
                if let Crossing::Frame { frame, .. } = crossing {
                    *budget -= budget::queued(frame.get().wire_bytes);
                    self.note_sender(id, frame.get().source);
                }
                self.crossed(crossing);
                *frames += 1;
                (all, came) = (all + 1, true);
            }
        }
        if all > 0 {
            let now = clock();
            self.loops.part(LoopPart::Crossing, None, self.turns.elapsed(now));
            let each = self.turns.leave_out(now) / i64::from(all);
            for (id, frames) in frames.into_iter().enumerate().filter(|(_, frames)| *frames > 0) {
                self.turns.charge_worker(Turns::of_worker(id), each * i64::from(frames));
            }
        }
        worked
    }

    /// Sets a worker's weight to that of its ports whose frames come here.
    fn note_sender(&mut self, id: usize, source: PortIndex) {
        let infos = &self.infos;
        let weight_of = |port: PortIndex| infos[usize::from(port)].as_ref().map_or(0, |info| info.weight);
        let lately = &mut self.senders.0[id];
        if lately.note(source, self.now, weight_of) {
            self.turns.set_weight(Turns::of_worker(id), lately.weight);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_count_whose_frames_came_lately() {
        let mut senders = Senders::default();
        let lately = &mut senders.0[1];
        let weight_of = |port: PortIndex| u32::from(port) + 1;
        assert!(lately.note(0, LATELY, weight_of) && lately.weight == 1);
        assert!(!lately.note(0, LATELY + 1, weight_of));
        assert!(lately.note(8, LATELY + 2, weight_of) && lately.weight == 10);
        assert!(!lately.note(8, 2 * LATELY, weight_of) && lately.weight == 10, "0 came a moment before");
        assert!(lately.note(8, 3 * LATELY, weight_of) && lately.weight == 9);
    }
}
