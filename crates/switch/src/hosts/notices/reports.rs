//! Late frames of one peer's vNICs, on their way to it: joined, and at a bounded rate.
//!
//! ```text
//!  Late ─▶ by vNIC: the latest frame of all, and how many others ─▶ 50 reports a second
//! ```

use super::bucket::Bucket;
use crate::fdb::SegmentIndex;
use crate::hosts::Late;
use std::collections::VecDeque;
use tidegate_contract::Mac;

/// Reports a second to one peer.
const RATE: u64 = 50;
/// vNICs of one peer whose reports wait.
const VNICS: usize = 64;

/// The reports to one peer.
#[derive(Debug)]
pub(super) struct Reports {
    /// The first to come first. A vNIC stands once.
    waiting: VecDeque<Waiting>,
    bucket: Bucket,
    /// Frames that no report tells, and none counts.
    pub(super) untold: u64,
}

#[derive(Debug)]
struct Waiting {
    late: Late,
    others: u32,
}

impl Default for Reports {
    fn default() -> Self {
        Self { waiting: VecDeque::new(), bucket: Bucket::new(RATE), untold: 0 }
    }
}

impl Reports {
    /// Adds a late frame.
    pub(super) fn add(&mut self, late: Late) {
        let key = |late: &Late| -> (SegmentIndex, Mac) { (late.segment, late.src) };
        match self.waiting.iter().position(|waiting| key(&waiting.late) == key(&late)) {
            Some(at) => {
                let waiting = &mut self.waiting[at];
                waiting.others = waiting.others.saturating_add(1);
                if (late.dropped, late.late_ns) > (waiting.late.dropped, waiting.late.late_ns) {
                    waiting.late = late;
                }
            }
            None if self.waiting.len() < VNICS => self.waiting.push_back(Waiting { late, others: 0 }),
            None => self.untold += 1,
        }
    }

    /// Takes the next report that may leave at `now` (ns): a late frame, and how many others it stands for.
    pub(super) fn next(&mut self, now: u64) -> Option<(Late, u32)> {
        if self.waiting.is_empty() || !self.bucket.take(now) {
            return None;
        }
        self.waiting.pop_front().map(|Waiting { late, others }| (late, others))
    }

    /// Returns when the next report may leave (ns); `None` if none waits.
    pub(super) fn due(&self, now: u64) -> Option<u64> {
        (!self.waiting.is_empty()).then(|| self.bucket.next(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fdb::PeerIndex;
    use crate::hosts::late::Where;

    pub(crate) fn late(src: u8, late_ns: u64) -> Late {
        Late {
            peer: PeerIndex::MIN,
            segment: SegmentIndex(0),
            src: Mac([2, 0, 0, 0, 0, src]),
            dst: Mac([2, 0, 0, 0, 1, 0]),
            sequence: 7,
            deadline_us: 500,
            late_ns,
            error_ns: 100,
            hold_ns: 1,
            network_ns: 2,
            here_ns: 3,
            cause: Where::Network,
            dropped: false,
        }
    }

    #[test]
    fn each_frame_is_told_or_counted_and_the_rate_is_bounded() {
        let mut reports = Reports::default();
        let mut told = 0u64;
        let mut sent = 0;
        for n in 0..10_000u64 {
            reports.add(late((n % 80) as u8, n));
            let now = n * 100_000;
            while let Some((_, others)) = reports.next(now) {
                told += 1 + u64::from(others);
                sent += 1;
            }
        }
        assert!(sent <= 100 + 1, "{sent} in a second: a burst and the rate");
        let mut now = 1_000_000_000;
        while let Some(due) = reports.due(now) {
            now = due;
            let (_, others) = reports.next(now).expect("due");
            told += 1 + u64::from(others);
        }
        assert_eq!(told + reports.untold, 10_000);
    }

    #[test]
    fn the_worst_frame_stands_for_the_others() {
        let mut reports = Reports::default();
        (0..60).for_each(|n| reports.add(late(n, 1)));
        (0..50).for_each(|_| assert!(reports.next(5).is_some()));
        assert!(reports.next(5).is_none());
        for late_ns in [9, 30, 7] {
            reports.add(late(59, late_ns));
        }
        let last = std::iter::from_fn(|| reports.next(2_000_000_000)).last();
        assert_eq!(last, Some((late(59, 30), 3)));
        assert_eq!(reports.due(0), None);
    }
}
