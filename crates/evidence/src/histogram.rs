//! Log-linear histograms: 32 buckets per power of two, so a bucket is at most
//! 1/32 (3.1 %) wide; 0 ns to 2^35 ns (34 s).

const SUB_BITS: u32 = 5;
const SUB: usize = 1 << SUB_BITS;
const MAX_BITS: u32 = 35;
/// Number of buckets.
pub const BUCKETS: usize = (MAX_BITS - SUB_BITS + 1) as usize * SUB;

/// Returns the sum of all; numbers of another process may overflow, and saturate.
pub fn total(numbers: impl IntoIterator<Item = u64>) -> u64 {
    numbers.into_iter().fold(0, u64::saturating_add)
}

/// Returns the bucket of a value.
#[inline]
pub const fn bucket(value: u64) -> usize {
    let value = if value >> MAX_BITS != 0 { (1 << MAX_BITS) - 1 } else { value };
    if value < SUB as u64 {
        return value as usize;
    }
    let exponent = 63 - value.leading_zeros() - SUB_BITS;
    (exponent as usize + 1) * SUB + (value >> exponent) as usize - SUB
}

/// Returns the largest value of a bucket.
pub const fn upper(bucket: usize) -> u64 {
    if bucket < 2 * SUB {
        return bucket as u64;
    }
    let exponent = bucket / SUB - 1;
    let mantissa = (bucket % SUB + SUB) as u64;
    ((mantissa + 1) << exponent) - 1
}

/// A copy of a histogram, for reading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    max: u64,
    sum: u64,
    buckets: Vec<u64>,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { max: 0, sum: 0, buckets: vec![0; BUCKETS] }
    }
}

impl Histogram {
    /// Makes a recorded histogram: the largest value, the sum of all values, and the number of values in
    /// each bucket. `None` unless there are [`BUCKETS`].
    pub fn recorded(max: u64, sum: u64, buckets: Vec<u64>) -> Option<Self> {
        (buckets.len() == BUCKETS).then_some(Self { max, sum, buckets })
    }

    /// Adds one value.
    pub fn record(&mut self, value: u64) {
        self.buckets[bucket(value)] += 1;
        self.sum = self.sum.wrapping_add(value);
        self.max = self.max.max(value);
    }

    /// Returns the number of values.
    pub fn count(&self) -> u64 {
        total(self.buckets.iter().copied())
    }

    /// Returns the largest value, exactly.
    pub fn max(&self) -> u64 {
        self.max
    }

    /// Returns the mean; 0 if empty.
    pub fn mean(&self) -> u64 {
        self.sum.checked_div(self.count()).unwrap_or(0)
    }

    /// Returns the value that a share `q` (0.0 to 1.0) of all values does not exceed, rounded up to its
    /// bucket's end but never above the largest value; 0 if empty.
    pub fn quantile(&self, q: f64) -> u64 {
        let count = self.count();
        let rank = ((count as f64 * q).ceil() as u64).clamp(1, count.max(1));
        let mut seen = 0;
        for (index, n) in self.buckets.iter().enumerate() {
            seen = n.saturating_add(seen);
            if seen >= rank {
                return upper(index).min(self.max);
            }
        }
        0
    }

    /// Returns the number of values in buckets wholly above `value`.
    pub fn above(&self, value: u64) -> u64 {
        total(self.buckets[bucket(value) + 1..].iter().copied())
    }

    /// Returns non-empty buckets as (largest value, count).
    pub fn occupied(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.buckets.iter().enumerate().filter(|(_, n)| **n > 0).map(|(i, n)| (upper(i), *n))
    }

    /// Adds the values of another histogram.
    pub fn add(&mut self, other: &Self) {
        for (own, more) in self.buckets.iter_mut().zip(&other.buckets) {
            *own = own.saturating_add(*more);
        }
        self.sum = self.sum.wrapping_add(other.sum);
        self.max = self.max.max(other.max);
    }

    /// Returns the values recorded after `earlier` was read. The maximum is the end of the highest bucket
    /// that grew (at most 3.1 % too high).
    pub fn since(&self, earlier: &Self) -> Self {
        let buckets: Vec<u64> =
            self.buckets.iter().zip(&earlier.buckets).map(|(now, then)| now.saturating_sub(*then)).collect();
        let top = buckets.iter().rposition(|n| *n > 0).map_or(0, upper);
        Self { max: top.min(self.max), sum: self.sum.wrapping_sub(earlier.sum), buckets }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_bucket_holds_its_values(value in 0u64..1 << MAX_BITS) {
            let index = bucket(value);
            prop_assert!(value <= upper(index));
            prop_assert!(index == 0 || value > upper(index - 1));
            prop_assert!(upper(index) - value <= value / 32);
        }

        #[test]
        fn quantiles_are_those_of_the_sorted_values(mut values in prop::collection::vec(0u64..1 << 40, 1..200), q in 0.0f64..=1.0) {
            let mut histogram = Histogram::default();
            values.iter().for_each(|v| histogram.record(*v));
            values.sort_unstable();
            let rank = ((values.len() as f64 * q).ceil() as usize).clamp(1, values.len());
            let exact = values[rank - 1].min((1 << MAX_BITS) - 1);
            let got = histogram.quantile(q);
            prop_assert!(got >= exact && got - exact <= exact / 32, "{} for {}", got, exact);
        }
    }

    #[test]
    fn since_returns_the_added_values() {
        let mut earlier = Histogram::default();
        earlier.record(1_000_000);
        let mut now = earlier.clone();
        now.record(10);
        now.record(20);
        let added = now.since(&earlier);
        assert_eq!((added.count(), added.max(), added.quantile(0.5)), (2, 20, 10));
    }
}
