//! Missed deadlines: certain or possible, and their causes.
//!
//! ```text
//!  the clock started    at the earliest ──── at the latest           Tr
//!   (the worker slept) ├── started ───────── started_by ────── at ───┤
//!   ├ ─ ─ slept ─ ─ ─ ─┤                     ├──── least delay ──────┤
//!                      ├────────────── most delay ───────────────────┤
//! ```

use super::crossing::Fate;
use crate::fdb::PortIndex;
use crate::port::Port;
use crate::slots::Frame;
use crate::stats::layout::{NO_PORT, VnicSlot};
use tidegate_evidence::MISSES;
use tidegate_evidence::{DropReason, MissCause};

/// Of frames that are late only by the worker's sleep, one in this time (ns) is remembered, the longest:
/// they must not drive out certain misses.
const SLEEPERS: u64 = 1_000_000_000;

/// Tr - Ts of one frame, as an interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DelayOf {
    /// Tr: its delivery or drop (ns).
    pub(super) at: u64,
    /// Earliest Ts while the worker was awake (ns).
    pub(super) started: u64,
    /// Latest Ts (ns).
    pub(super) started_by: u64,
    /// Time before `started` in which the worker slept and the frame may have come (ns).
    pub(super) slept: u64,
}

/// How certain a miss is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Certainty {
    /// Late also by the least delay.
    Certain,
    /// Late by the most delay.
    Possible,
    /// Late only if the wake-up of the worker took that long.
    Asleep,
}

impl DelayOf {
    fn of(frame: &Frame, at: u64) -> Self {
        Self { at, started: frame.started, started_by: frame.started_by, slept: frame.slept }
    }

    /// Returns the most delay while the worker was awake (ns).
    #[inline]
    pub(super) fn most(&self) -> u64 {
        self.at.saturating_sub(self.started)
    }

    /// Returns the least delay (ns).
    #[inline]
    pub(super) fn least(&self) -> u64 {
        self.at.saturating_sub(self.started_by)
    }

    /// Returns the most delay, sleep included (ns).
    #[inline]
    fn longest(&self) -> u64 {
        self.most().saturating_add(self.slept)
    }

    /// Returns how certain a miss of `deadline` ns is; `None` if it was certainly met.
    #[inline]
    pub(super) fn certainty(&self, deadline: u64) -> Option<Certainty> {
        if self.longest() <= deadline {
            return None;
        }
        Some(match deadline {
            _ if self.least() > deadline => Certainty::Certain,
            _ if self.most() > deadline => Certainty::Possible,
            _ => Certainty::Asleep,
        })
    }
}

/// The parts of Tr - Ts: each has one cause.
pub(super) struct Waits {
    worker: u64,
    queue: u64,
    buffers: u64,
}

impl Waits {
    pub(super) fn of(frame: &Frame, fate: &Fate) -> Self {
        let before = fate.queued.saturating_sub(frame.started);
        let after = fate.at.saturating_sub(fate.queued.max(frame.started));
        let buffers = fate.buffers.min(after);
        let rest = after - buffers;
        // A frame behind no other, with buffers, waited for the worker alone.
        match fate.behind {
            Some(_) => Self { worker: before, queue: rest, buffers },
            None => Self { worker: before + rest, queue: 0, buffers },
        }
    }

    pub(super) fn cause(&self, fate: &Fate) -> MissCause {
        let longest = self.worker.max(self.queue).max(self.buffers);
        match fate.dropped {
            Some(DropReason::QueueFull | DropReason::RingShare) => MissCause::Queue,
            Some(DropReason::NoBuffers) => MissCause::Buffers,
            Some(DropReason::WorkerBehind) => MissCause::Worker,
            Some(reason) if reason != DropReason::Late && reason != DropReason::HeldTooLong => {
                MissCause::Dropped
            }
            _ if longest == self.buffers => MissCause::Buffers,
            _ if longest == self.queue => MissCause::Queue,
            _ => MissCause::Worker,
        }
    }
}

/// Notes a frame's missed deadline at its sender's port, which `worker` owns. `true` for a certain miss, or
/// a possible one while the worker was awake.
#[inline]
pub(super) fn note(port: &Port, frame: &Frame, fate: &Fate, worker: u16) -> bool {
    let delay = DelayOf::of(frame, fate.at);
    let deadline = frame.deadline - frame.started;
    let certainty = match fate.dropped {
        Some(_) => Some(Certainty::Certain),
        None => delay.certainty(deadline),
    };
    let Some(certainty) = certainty else { return false };
    let waits = Waits::of(frame, fate);
    let miss = Miss {
        egress: fate.egress,
        cause: waits.cause(fate),
        dropped: fate.dropped,
        behind: fate.behind,
        delay,
        deadline,
        tokens: frame.waited_for_tokens,
        waits,
    };
    miss.record(port, certainty, worker);
    certainty != Certainty::Asleep
}

/// A missed deadline, and its cause.
pub(super) struct Miss {
    egress: PortIndex,
    cause: MissCause,
    dropped: Option<DropReason>,
    behind: Option<PortIndex>,
    delay: DelayOf,
    deadline: u64,
    tokens: u64,
    waits: Waits,
}

impl Miss {
    /// Returns the miss of a frame that waited only for its worker.
    pub(super) fn of_worker(egress: PortIndex, delay: DelayOf, deadline: u64, tokens: u64) -> Self {
        let waits = Waits { worker: delay.most(), queue: 0, buffers: 0 };
        let cause = MissCause::Worker;
        Self { egress, cause, dropped: None, behind: None, delay, deadline, tokens, waits }
    }

    /// Returns the miss of a frame of another host, whose way began there.
    pub(super) fn of_arrival(
        cause: MissCause,
        fate: &Fate,
        delay: DelayOf,
        deadline: u64,
        waits: Waits,
    ) -> Self {
        let Fate { egress, dropped, behind, .. } = *fate;
        Self { egress, cause, dropped, behind, delay, deadline, tokens: 0, waits }
    }

    /// Counts and remembers the miss at its sender's port, which `worker` owns.
    #[cold]
    pub(super) fn record(&self, port: &Port, certainty: Certainty, worker: u16) {
        let stats = port.stats;
        match certainty {
            Certainty::Certain => stats.misses[self.cause as usize].add(1),
            Certainty::Possible => stats.misses_possible.add(1),
            Certainty::Asleep => {
                stats.misses_asleep.add(1);
                let (since, longest) = port.longest_asleep.get();
                let is_new = self.delay.at.saturating_sub(since) >= SLEEPERS;
                if !is_new && self.delay.longest() <= longest {
                    return;
                }
                let since = if is_new { self.delay.at } else { since };
                port.longest_asleep.set((since, self.delay.longest()));
            }
        }
        self.remember(stats, worker);
    }

    fn remember(&self, stats: &VnicSlot, worker: u16) {
        let number = stats.misses_seen.get() + 1;
        let record = &stats.miss_log[(number - 1) as usize % MISSES];
        record.number.set(0);
        // Not the time of day, which may jump: readers compute that.
        record.at.set(self.delay.at);
        record.egress.set(u64::from(self.egress));
        record.cause.set(self.cause as u64);
        record.dropped.set(self.dropped.map_or(NO_PORT, |r| r as u64));
        record.behind.set(self.behind.map_or(NO_PORT, u64::from));
        record.delay.set(self.delay.most());
        record.delay_least.set(self.delay.least());
        record.slept.set(self.delay.slept);
        record.seen.set(self.delay.started_by);
        record.by.set(worker.into());
        record.deadline.set(self.deadline);
        record.tokens.set(self.tokens);
        record.worker.set(self.waits.worker);
        record.queue.set(self.waits.queue);
        record.buffers.set(self.waits.buffers);
        record.number.set(number);
        stats.misses_seen.set(number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slots::FrameRef;
    use crate::worker::testing;
    use proptest::prelude::*;

    fn waits(worker: u64, queue: u64, buffers: u64) -> Waits {
        Waits { worker, queue, buffers }
    }

    fn fate(dropped: Option<DropReason>, frame: FrameRef) -> Fate {
        Fate { frame, egress: 1, at: 0, dropped, queued: 0, buffers: 0, behind: None }
    }

    #[test]
    fn the_longest_wait_is_the_cause() {
        let mut slots = crate::slots::Slots::new(1, 0, 0);
        let frame = slots.take().unwrap();
        let late = fate(None, frame);
        assert_eq!(waits(5, 2, 1).cause(&late), MissCause::Worker);
        assert_eq!(waits(1, 5, 2).cause(&late), MissCause::Queue);
        assert_eq!(waits(1, 2, 5).cause(&late), MissCause::Buffers);
        assert_eq!(waits(9, 0, 0).cause(&fate(Some(DropReason::QueueFull), frame)), MissCause::Queue);
        assert_eq!(waits(9, 0, 0).cause(&fate(Some(DropReason::ReceiverDown), frame)), MissCause::Dropped);
        assert_eq!(waits(0, 0, 9).cause(&fate(Some(DropReason::Late), frame)), MissCause::Buffers);
        slots.give(frame);
    }

    #[test]
    fn every_nanosecond_has_one_owner() {
        let mut slots = crate::slots::Slots::new(1, 0, 0);
        let reference = slots.take().unwrap();
        let frame = reference.get_mut();
        frame.started = 100;
        let fate = Fate { queued: 150, at: 400, buffers: 70, behind: Some(2), ..fate(None, reference) };
        let waits = Waits::of(frame, &fate);
        assert_eq!((waits.worker, waits.queue, waits.buffers), (50, 180, 70));
        let alone = Waits::of(frame, &Fate { behind: None, ..fate });
        assert_eq!((alone.worker, alone.queue, alone.buffers), (230, 0, 70));
        slots.give(reference);
    }

    proptest! {
        /// For any arrival in its interval: certain misses are true, and true misses are at least possible.
        #[test]
        fn a_certain_miss_is_one_and_none_is_left_out(
            slept in 0..1_000u64, unsure in 0..1_000u64, least in 0..1_000u64, deadline in 0..2_000u64,
            place in 0.0..=1.0f64,
        ) {
            let started_by = 10_000;
            let delay = DelayOf { at: started_by + least, started: started_by - unsure, started_by, slept };
            let truth = least + (place * (unsure + slept) as f64) as u64;
            prop_assert!((delay.least()..=delay.longest()).contains(&truth));
            let is_missed = truth > deadline;
            match delay.certainty(deadline) {
                Some(Certainty::Certain) => prop_assert!(is_missed),
                Some(Certainty::Possible) => prop_assert!(least <= deadline && least + unsure > deadline),
                Some(Certainty::Asleep) => prop_assert!(least + unsure <= deadline && slept > 0),
                None => prop_assert!(!is_missed),
            }
        }
    }

    #[test]
    fn only_certain_misses_have_a_cause_and_sleep_drives_none_out() {
        let (mut worker, _handle) = testing::worker();
        testing::add_port(&mut worker, 0);
        let port = worker.ports[0].as_ref().unwrap();
        let miss = |at, certainty, slept| {
            let delay = DelayOf { at, started: at - 70, started_by: at - 20, slept };
            Miss::of_worker(1, delay, 50, 0).record(port, certainty, 3);
        };
        let second = 1_000_000_000;
        miss(second, Certainty::Certain, 0);
        miss(second, Certainty::Possible, 0);
        for slept in [500, 400, 600, 500] {
            miss(2 * second, Certainty::Asleep, slept);
        }
        miss(3 * second, Certainty::Asleep, 100);
        let stats = port.stats;
        let misses: u64 = stats.misses.iter().map(|n| n.get()).sum();
        assert_eq!((misses, stats.misses_possible.get(), stats.misses_asleep.get()), (1, 1, 5));
        let noted = stats.miss_log[..stats.misses_seen.get() as usize].iter();
        let noted: Vec<_> = noted.map(|miss| (miss.at.get() / second, miss.slept.get())).collect();
        assert_eq!(noted, [(1, 0), (1, 0), (2, 500), (2, 600), (3, 100)]);
        let last = &stats.miss_log[4];
        assert_eq!((last.seen.get(), last.by.get()), (3 * second - 20, 3));
        assert_eq!((last.delay.get(), last.delay_least.get()), (70, 20));
        assert_eq!(last.worker.get(), 70, "every nanosecond has an owner");
    }
}
