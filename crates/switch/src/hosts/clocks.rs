//! The offsets to other hosts' clocks, written by one thread, read by workers.
//!
//! ```text
//!  thread that exchanges ─ set(peer, outlook) ─▶ │ peer │ peer │ ─ estimate(peer, now) ─▶ worker
//! ```
//!
//! All times are of CLOCK_MONOTONIC_RAW (ns), which neither steps nor is slewed.

use crate::fdb::PeerIndex;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use tidegate_uplink::clock::{Estimate, Outlook};

/// Offsets by peer.
pub struct Clocks(Box<[Entry]>);

/// A sequence lock: odd while it is written.
#[derive(Default)]
struct Entry {
    sequence: AtomicU64,
    now: AtomicEstimate,
    later: AtomicEstimate,
    /// When the outlook begins; 0: none.
    at: AtomicU64,
}

#[derive(Default)]
struct AtomicEstimate {
    offset_ns: AtomicU64,
    error_ns: AtomicU64,
}

impl AtomicEstimate {
    fn store(&self, Estimate { offset_ns, error_ns }: Estimate) {
        self.offset_ns.store(offset_ns as u64, Ordering::Relaxed);
        self.error_ns.store(error_ns, Ordering::Relaxed);
    }

    #[inline]
    fn load(&self) -> Estimate {
        let offset_ns = self.offset_ns.load(Ordering::Relaxed) as i64;
        Estimate { offset_ns, error_ns: self.error_ns.load(Ordering::Relaxed) }
    }
}

/// Reads of an entry before a worker gives up: it asks again for its next frame.
const ATTEMPTS: usize = 4;

impl Default for Clocks {
    fn default() -> Self {
        Self((0..PeerIndex::MOST).map(|_| Entry::default()).collect())
    }
}

impl Clocks {
    /// Sets the outlook of a peer's clock; `None`: it is not known. Only one thread may write.
    pub fn set(&self, peer: PeerIndex, outlook: Option<Outlook>) {
        let entry = &self.0[usize::from(peer.get())];
        let sequence = entry.sequence.load(Ordering::Relaxed);
        entry.sequence.store(sequence.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        if let Some(Outlook { now, later, .. }) = outlook {
            entry.now.store(now);
            entry.later.store(later);
        }
        entry.at.store(outlook.map_or(0, |outlook| outlook.at.max(1)), Ordering::Relaxed);
        entry.sequence.store(sequence.wrapping_add(2), Ordering::Release);
    }

    /// Returns the estimate of a peer's clock at `now_ns`: its error grows with its age. `None` if the clock is not
    /// known.
    #[inline]
    pub fn estimate(&self, peer: PeerIndex, now_ns: u64) -> Option<Estimate> {
        let entry = &self.0[usize::from(peer.get())];
        for _ in 0..ATTEMPTS {
            let before = entry.sequence.load(Ordering::Acquire);
            let (now, later) = (entry.now.load(), entry.later.load());
            let at = entry.at.load(Ordering::Relaxed);
            fence(Ordering::Acquire);
            if before & 1 != 0 || entry.sequence.load(Ordering::Relaxed) != before {
                continue;
            }
            return (at != 0).then(|| Outlook { at, now, later }.estimate(now_ns));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_uplink::clock::AHEAD;

    const PEER: PeerIndex = PeerIndex::MAX;

    fn estimate(offset_ns: i64, error_ns: u64) -> Estimate {
        Estimate { offset_ns, error_ns }
    }

    #[test]
    fn an_error_grows_with_the_age_of_the_estimate() {
        let clocks = Clocks::default();
        assert_eq!(clocks.estimate(PEER, 5), None);
        let (now, later) = (estimate(-7, 100), estimate(-1007, 4_100));
        clocks.set(PEER, Some(Outlook { at: 1_000, now, later }));
        assert_eq!(clocks.estimate(PEER, 1_000), Some(now));
        let half = clocks.estimate(PEER, 1_000 + AHEAD / 2);
        assert_eq!(half, Some(estimate(-507, 2_101)));
        let beyond = clocks.estimate(PEER, 1_000 + AHEAD + 1_000_000).unwrap();
        assert_eq!(beyond, estimate(-1007, 4_301), "200 ppm of 1 ms");
        clocks.set(PEER, None);
        assert_eq!(clocks.estimate(PEER, 5), None);
    }

    #[test]
    fn a_reader_never_sees_half_an_estimate() {
        let clocks = Clocks::default();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for n in 1..=100_000u64 {
                    let now = estimate(n as i64, n);
                    clocks.set(PEER, Some(Outlook { at: n, now, later: now }));
                }
            });
            let mut seen = 0;
            while seen < 100_000 {
                let Some(estimate) = clocks.estimate(PEER, seen) else { continue };
                assert!(estimate.error_ns >= estimate.offset_ns as u64);
                assert!(estimate.error_ns <= estimate.offset_ns as u64 + 20, "{estimate:?}");
                seen = estimate.offset_ns as u64;
            }
        });
    }
}
