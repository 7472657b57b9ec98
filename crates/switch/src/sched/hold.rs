//! How long a frame may be held: it lies in its sender's memory, and the sender cannot reuse that buffer
//! until the frame has left or was dropped.

use super::heap::SourceHeap;
use super::source::SourceIndex;
use tidegate_contract::{Rate, SUPER_FRAME};

/// Longest wait at a fast egress (ns): 10 ms.
const HOLD: u64 = 10_000_000;

/// Returns how long a frame without a deadline may wait for an egress before it is dropped (ns).
///
/// 10 ms, or the time of four 64 KB super-frames at the egress's rate if that is longer. Otherwise a slow
/// egress would carry no TCP at all: at 10 Mbit/s one super-frame takes 52 ms, so all frames behind it
/// would be dropped. Four allow two senders one under way and one waiting each.
pub fn hold_limit(egress: Option<Rate>) -> u64 {
    let Some(rate) = egress else { return HOLD };
    let four = 4 * SUPER_FRAME * 8 * 1_000_000_000;
    HOLD.max(four.div_ceil(rate.bits()))
}

/// Sources by a lower bound of their head frame's enqueue time.
///
/// A departure makes the head younger, so an old bound stays valid, and a sent frame needs no update: a
/// source is looked at only when its bound comes due. So watching for overdue frames is nearly free while
/// they move.
#[derive(Debug, Default)]
pub(super) struct Oldest {
    bounds: SourceHeap,
}

impl Oldest {
    pub(super) fn reserve(&mut self, source: SourceIndex) {
        self.bounds.reserve(source);
    }

    /// Notes that the empty queue of `source` now begins with a frame enqueued then.
    pub(super) fn activate(&mut self, source: SourceIndex, enqueued: u64) {
        if !self.bounds.contains(source) {
            self.bounds.set(source, enqueued.into());
        }
    }

    /// Returns a source whose bound is at least `hold` old.
    pub(super) fn due(&self, now: u64, hold: u64) -> Option<SourceIndex> {
        let source = self.bounds.first()?;
        overdue(self.bounds.first_key()?, hold, now).then_some(source)
    }

    pub(super) fn set(&mut self, source: SourceIndex, enqueued: u64) {
        self.bounds.set(source, enqueued.into());
    }

    pub(super) fn remove(&mut self, source: SourceIndex) {
        self.bounds.remove(source);
    }
}

/// Whether a frame enqueued then has been held for `hold` or longer.
pub(super) fn overdue(enqueued: u64, hold: u64, now: u64) -> bool {
    now.checked_sub(enqueued).is_some_and(|age| age >= hold)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_milliseconds_or_four_super_frames() {
        let at = |bits| hold_limit(Rate::from_bits(bits));
        assert_eq!(hold_limit(None), 10_000_000);
        assert_eq!(at(1_000_000_000), 10_000_000);
        assert_eq!(at(10_000_000), 209_715_200);
        assert_eq!(at(1), 2_097_152_000_000_000);
        // The two rules meet at the rate at which four super-frames take 10 ms.
        assert_eq!(at(209_715_200), 10_000_000);
        assert_eq!(at(209_715_199), 10_000_001);
    }

    #[test]
    fn a_bound_stays_until_it_is_due() {
        let mut oldest = Oldest::default();
        oldest.reserve(3);
        oldest.activate(3, 100);
        oldest.activate(3, 500); // drained and refilled meanwhile
        assert_eq!(oldest.due(599, 500), None);
        assert_eq!(oldest.due(600, 500), Some(3));
        oldest.set(3, 500);
        assert_eq!(oldest.due(600, 500), None);
        assert_eq!(oldest.due(50, 500), None);
        assert_eq!(oldest.due(u64::MAX - 1, u64::MAX), None);
    }
}
