//! The long loops of a worker: `tidegate why` names the loop that delayed a late frame, and its longest
//! part.
//!
//! ```text
//!  end of a part of the loop ─▶ LongestPart: the longest single part so far
//!                                  │ end of the loop
//!                                  ▼
//!                  a loop of 50 us or more ─▶ recent: the latest 64, in the worker's own memory
//!  a frame was late ─▶ since when it waited ────┤
//!                                               └─▶ shared memory: those that ended since then
//! ```
//!
//! Under bulk traffic long loops follow one another, and a reader that comes once a second would find only
//! the latest. So the worker publishes those in which a frame waited that missed its deadline. A short loop
//! without a late frame pays four comparisons.

use super::{Worker, budget};
use crate::fdb::PortIndex;
use crate::slots::NEVER;
use crate::stats::LoopPart;
use crate::stats::layout::{LONG_LOOPS, NO_PORT, WorkerSlot};

/// Shorter loops are not remembered (ns).
pub(crate) const LONG: u64 = 50_000;
/// Shorter parts of a loop are not noted (ns).
const PART: u64 = 10_000;
/// Remembered long loops: at least 3.2 ms of them in a row.
const RECENT: usize = 64;

/// A part of a loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LongestPart {
    part: LoopPart,
    /// Port whose traffic it was, or [`NO_PORT`].
    port: u64,
    /// Length (ns).
    took: u64,
    /// Bytes delivered in it, if they were counted.
    bytes: u64,
}

impl LongestPart {
    const NONE: Self = Self { part: LoopPart::Other, port: NO_PORT, took: 0, bytes: 0 };
}

/// A long loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Loop {
    /// Its end and length (ns).
    at: u64,
    took: u64,
    longest: LongestPart,
}

/// A worker's memory of its loops.
pub(super) struct Loops {
    longest: LongestPart,
    /// Beginning of the wait of a frame that was late in this loop; [`NEVER`] without one.
    late: u64,
    /// The latest long loops; number n is at `n % RECENT`.
    recent: [Loop; RECENT],
    /// Number of long loops, and number up to which all due ones were published.
    seen: usize,
    shown: usize,
}

impl Default for Loops {
    fn default() -> Self {
        let none = Loop { at: 0, took: 0, longest: LongestPart::NONE };
        Self { longest: LongestPart::NONE, late: NEVER, recent: [none; RECENT], seen: 0, shown: 0 }
    }
}

impl Loops {
    /// Notes a part of the loop of `took` ns.
    #[inline]
    pub(super) fn part(&mut self, part: LoopPart, port: Option<PortIndex>, took: u64) {
        if took >= PART && took > self.longest.took {
            self.note(part, port, took);
        }
    }

    #[cold]
    fn note(&mut self, part: LoopPart, port: Option<PortIndex>, took: u64) {
        self.longest = LongestPart { part, port: port.map_or(NO_PORT, u64::from), took, bytes: 0 };
    }

    /// Adds the delivered bytes to the part that was just noted.
    #[inline]
    pub(super) fn delivered(&mut self, took: u64, bytes: impl FnOnce() -> u64) {
        if took >= PART && took == self.longest.took {
            self.longest.bytes = bytes();
        }
    }

    /// Notes a frame of this loop that was late, and had waited since `since` (ns).
    #[cold]
    pub(super) fn late(&mut self, since: u64) {
        self.late = self.late.min(since);
    }

    /// Ends a loop.
    #[inline]
    pub(super) fn end(&mut self, at: u64, took: u64, shown: &WorkerSlot) {
        if took >= LONG {
            self.remember(at, took);
        }
        if self.late != NEVER {
            self.show(shown);
        }
        // Parts of a short loop do not matter, nor to the next one.
        self.longest.took = 0;
    }

    #[cold]
    fn remember(&mut self, at: u64, took: u64) {
        let longest = if self.longest.took == 0 { LongestPart::NONE } else { self.longest };
        self.recent[self.seen % RECENT] = Loop { at, took, longest };
        self.seen += 1;
    }

    /// Publishes the loops in which a late frame waited, each once, oldest first.
    #[cold]
    fn show(&mut self, to: &WorkerSlot) {
        let since = std::mem::replace(&mut self.late, NEVER);
        for number in self.shown.max(self.seen.saturating_sub(RECENT))..self.seen {
            let Loop { at, took, longest } = self.recent[number % RECENT];
            if at <= since {
                continue;
            }
            let number = to.long_loops_seen.get() + 1;
            let record = &to.long_loops[(number - 1) as usize % LONG_LOOPS];
            record.number.set(0);
            record.at.set(at);
            record.took.set(took);
            record.part.set(longest.part as u64);
            record.port.set(longest.port);
            record.share.set(longest.took);
            record.bytes.set(longest.bytes);
            record.number.set(number);
            to.long_loops_seen.set(number);
        }
        self.shown = self.seen;
    }
}

impl Worker {
    /// Notes an egress's turn that delivered `frames` of this [cost](budget).
    #[inline]
    pub(super) fn note_delivery(&mut self, to: PortIndex, took: u64, frames: u64, cost: i64) {
        self.loops.part(LoopPart::Egress, Some(to), took);
        let besides = budget::queued(0).saturating_mul(frames as i64);
        self.loops.delivered(took, || cost.saturating_sub(besides).max(0) as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::{LongLoop, Reader, Region};
    use proptest::prelude::*;

    fn shown(region: &Region) -> Vec<LongLoop> {
        Reader::open(region.file()).unwrap().long_loops(0)
    }

    #[test]
    fn a_loop_that_held_a_late_frame_up_is_shown_with_its_longest_part() {
        let region = Region::create().unwrap();
        let slot = &region.layout().workers[0];
        region.layout().workers_used.set(1);
        region.claim(3, "web");
        let mut loops = Loops::default();
        loops.part(LoopPart::Ingress, Some(3), 40_000);
        loops.end(100_000, 60_000, slot);
        assert!(shown(&region).is_empty(), "no frame was late");
        loops.part(LoopPart::Ingress, Some(1), 20_000);
        loops.part(LoopPart::Egress, Some(3), 400_000);
        loops.delivered(400_000, || 65_000);
        loops.part(LoopPart::Completion, None, 30_000);
        loops.delivered(30_000, || panic!("that is not the longest"));
        loops.late(110_000);
        loops.late(120_000);
        loops.end(600_000, 450_000, slot);
        let [one] = &shown(&region)[..] else { panic!("the one in which it waited") };
        assert_eq!((one.began, one.ended, one.share), (150_000, 600_000, 400_000));
        assert_eq!((one.part, one.port.as_deref(), one.bytes), (LoopPart::Egress, Some("web"), 65_000));
        // Parts belong to one loop, and each loop is published once.
        loops.late(0);
        loops.end(700_000, 55_000, slot);
        let all = shown(&region);
        assert_eq!((all.len(), all[1].part, all[1].share), (2, LoopPart::Other, 0));
    }

    proptest! {
        /// Published is each remembered long loop that ended after a late frame began to wait, once; and no
        /// other.
        #[test]
        fn only_loops_that_delayed_frames_are_shown(
            loops in prop::collection::vec((1u64..200_000, prop::option::weighted(0.2, 0u64..2_000_000)), 1..150),
        ) {
            let region = Region::create().unwrap();
            let slot = &region.layout().workers[0];
            region.layout().workers_used.set(1);
            let mut tested = Loops::default();
            let mut now = 10_000_000;
            let (mut long, mut expected) = (Vec::<u64>::new(), Vec::<u64>::new());
            for (took, late) in loops {
                now += took;
                if took >= LONG {
                    long.push(now);
                }
                if let Some(waited) = late {
                    tested.late(now - waited);
                    let recent = long.iter().rev().take(RECENT).rev();
                    expected.extend(recent.filter(|at| **at > now - waited));
                    // Loops that were not published stay so.
                    long.clear();
                }
                tested.end(now, took, slot);
            }
            let all: Vec<u64> = shown(&region).iter().map(|one| one.ended).collect();
            let expected = &expected[expected.len().saturating_sub(LONG_LOOPS)..];
            prop_assert_eq!(&all[..], expected);
        }
    }
}
