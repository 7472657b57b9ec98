//! The offsets to other hosts' clocks, written by one thread, read by workers.
//!
//! ```text
//!  thread that exchanges ─ set(peer, estimate at a time) ─▶ │ peer │ peer │ ─ estimate(peer, now) ─▶ worker
//! ```
//!
//! All times are of CLOCK_MONOTONIC_RAW (ns), which neither steps nor is slewed.

use crate::fdb::PeerIndex;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use tidegate_uplink::clock::{DRIFT_MAX, Estimate};

/// Offsets by peer.
pub struct Clocks(Box<[Entry]>);

/// A sequence lock: odd while it is written.
#[derive(Default)]
struct Entry {
    sequence: AtomicU64,
    offset_ns: AtomicU64,
    error_ns: AtomicU64,
    /// When the estimate was made; 0: none.
    at_ns: AtomicU64,
}

/// Reads of an entry before a worker gives up: it asks again for its next frame.
const ATTEMPTS: usize = 4;

impl Default for Clocks {
    fn default() -> Self {
        Self((0..PeerIndex::MOST).map(|_| Entry::default()).collect())
    }
}

impl Clocks {
    /// Sets the estimate of a peer's clock at `at_ns`; `None`: it is not known. Only one thread may write.
    pub fn set(&self, peer: PeerIndex, estimate: Option<(Estimate, u64)>) {
        let entry = &self.0[usize::from(peer.get())];
        let sequence = entry.sequence.load(Ordering::Relaxed);
        entry.sequence.store(sequence.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        let (offset_ns, error_ns, at_ns) = match estimate {
            Some((Estimate { offset_ns, error_ns }, at_ns)) => (offset_ns, error_ns, at_ns.max(1)),
            None => (0, 0, 0),
        };
        entry.offset_ns.store(offset_ns as u64, Ordering::Relaxed);
        entry.error_ns.store(error_ns, Ordering::Relaxed);
        entry.at_ns.store(at_ns, Ordering::Relaxed);
        entry.sequence.store(sequence.wrapping_add(2), Ordering::Release);
    }

    /// Returns the estimate of a peer's clock at `now_ns`: its error grows with its age by the largest drift. `None`
    /// if the clock is not known.
    #[inline]
    pub fn estimate(&self, peer: PeerIndex, now_ns: u64) -> Option<Estimate> {
        let entry = &self.0[usize::from(peer.get())];
        for _ in 0..ATTEMPTS {
            let before = entry.sequence.load(Ordering::Acquire);
            let offset_ns = entry.offset_ns.load(Ordering::Relaxed) as i64;
            let error_ns = entry.error_ns.load(Ordering::Relaxed);
            let at_ns = entry.at_ns.load(Ordering::Relaxed);
            fence(Ordering::Acquire);
            if before & 1 != 0 || entry.sequence.load(Ordering::Relaxed) != before {
                continue;
            }
            if at_ns == 0 {
                return None;
            }
            let drifted = (now_ns.abs_diff(at_ns) as f64 * DRIFT_MAX) as u64;
            return Some(Estimate { offset_ns, error_ns: error_ns.saturating_add(drifted) });
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: PeerIndex = PeerIndex::MAX;

    #[test]
    fn an_error_grows_with_the_age_of_the_estimate() {
        let clocks = Clocks::default();
        assert_eq!(clocks.estimate(PEER, 5), None);
        clocks.set(PEER, Some((Estimate { offset_ns: -7, error_ns: 100 }, 1_000)));
        assert_eq!(clocks.estimate(PEER, 1_000), Some(Estimate { offset_ns: -7, error_ns: 100 }));
        let later = clocks.estimate(PEER, 1_001_000).unwrap();
        assert_eq!(later, Estimate { offset_ns: -7, error_ns: 300 }, "200 ppm of 1 ms");
        clocks.set(PEER, None);
        assert_eq!(clocks.estimate(PEER, 5), None);
    }

    #[test]
    fn a_reader_never_sees_half_an_estimate() {
        let clocks = Clocks::default();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for n in 1..=100_000u64 {
                    clocks.set(PEER, Some((Estimate { offset_ns: n as i64, error_ns: n }, n)));
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
