//! A histogram in shared memory: one writer, any number of readers.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tidegate_evidence::Histogram;
use tidegate_evidence::histogram::{BUCKETS, bucket};

/// Bound on the count of one bucket: more than one value each microsecond for five hundred years.
const MOST: u64 = u64::MAX / BUCKETS.next_power_of_two() as u64;

/// A histogram in shared memory, with one writer.
#[repr(C)]
pub struct SharedHistogram {
    max: AtomicU64,
    sum: AtomicU64,
    buckets: [AtomicU64; BUCKETS],
}

impl SharedHistogram {
    /// Adds one value. Only the slot's owner may call this.
    #[inline]
    pub fn record(&self, value: u64) {
        self.record_many(value, 1);
    }

    /// Adds the same value `n` times. Only the slot's owner may call this.
    #[inline]
    pub fn record_many(&self, value: u64, n: u64) {
        let cell = &self.buckets[bucket(value)];
        cell.store(cell.load(Relaxed) + n, Relaxed);
        self.sum.store(self.sum.load(Relaxed).wrapping_add(value.wrapping_mul(n)), Relaxed);
        if value > self.max.load(Relaxed) {
            self.max.store(value, Relaxed);
        }
    }

    /// Removes all values.
    pub fn reset(&self) {
        self.max.store(0, Relaxed);
        self.sum.store(0, Relaxed);
        for cell in &self.buckets {
            cell.store(0, Relaxed);
        }
    }

    pub(super) fn copy_to(&self, to: &Self) {
        to.max.store(self.max.load(Relaxed), Relaxed);
        to.sum.store(self.sum.load(Relaxed), Relaxed);
        for (from, to) in self.buckets.iter().zip(&to.buckets) {
            to.store(from.load(Relaxed), Relaxed);
        }
    }

    /// Whether nothing was recorded.
    pub fn is_empty(&self) -> bool {
        self.max.load(Relaxed) == 0 && self.buckets[0].load(Relaxed) == 0
    }

    /// Returns a private copy. The writer may be another process, so bucket counts are bounded: their sum
    /// cannot overflow. Skips the buckets above the largest value, most of the work.
    pub fn read(&self) -> Histogram {
        let max = self.max.load(Relaxed);
        let mut buckets = vec![0; BUCKETS];
        for (to, cell) in buckets.iter_mut().zip(&self.buckets[..=bucket(max)]) {
            *to = cell.load(Relaxed).min(MOST);
        }
        Histogram::recorded(max, self.sum.load(Relaxed), buckets).expect("as many buckets as a histogram has")
    }
}

#[cfg(test)]
mod tests {
    use crate::stats::Region;
    use proptest::prelude::*;
    use std::sync::LazyLock;
    use tidegate_evidence::Histogram;

    /// Regions are never unmapped, so all cases share one.
    static REGION: LazyLock<Region> = LazyLock::new(|| Region::create().unwrap());

    proptest! {
        #[test]
        fn the_reader_returns_the_recorded_values(values in prop::collection::vec(0u64..1 << 40, 0..100)) {
            let shared = &REGION.claim(0, "plc1").delay;
            let mut histogram = Histogram::default();
            prop_assert!(shared.is_empty());
            for value in values {
                shared.record(value);
                histogram.record(value);
                prop_assert!(!shared.is_empty());
            }
            prop_assert_eq!(shared.read(), histogram);
        }
    }
}
