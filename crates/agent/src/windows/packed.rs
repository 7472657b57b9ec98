//! The counts of a histogram's buckets in few bytes: a busy vNIC has some hundred buckets in each of thirty steps, and a
//! host has a thousand vNICs.
//!
//! ```text
//!  (bucket, count), ascending ─▶ gap to the bucket before, count ─▶ seven bits a byte, the last without the eighth (LEB128)
//! ```

use tidegate_evidence::Delay;
use tidegate_evidence::histogram::{BUCKETS, bucket};

/// The counts of buckets; empty, and without heap memory, if nothing was recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Packed(Box<[u8]>);

impl Packed {
    /// Returns the growth from `earlier` to `later`; `None` if a bucket fell.
    pub(super) fn between(earlier: &Delay, later: &Delay) -> Option<Self> {
        let mut old_buckets = earlier.buckets.iter().peekable();
        let mut growth = Vec::new();
        for (upper, count) in &later.buckets {
            let old_count = match old_buckets.peek() {
                Some((other, _)) if other < upper => return None,
                Some((other, old_count)) if other == upper => {
                    old_buckets.next();
                    *old_count
                }
                _ => 0,
            };
            let added = count.checked_sub(old_count)?;
            if added > 0 {
                growth.push((bucket(*upper), added));
            }
        }
        old_buckets.next().is_none().then(|| Self::of(growth))
    }

    /// Packs buckets in ascending order, each once.
    fn of(buckets: impl IntoIterator<Item = (usize, u64)>) -> Self {
        let (mut bytes, mut next) = (Vec::new(), 0);
        for (bucket, count) in buckets {
            put(&mut bytes, (bucket - next) as u64);
            put(&mut bytes, count);
            next = bucket + 1;
        }
        Self(bytes.into())
    }

    pub(super) fn add_to(&self, to: &mut [u64; BUCKETS]) {
        let (mut rest, mut next) = (&self.0[..], 0);
        while let (Some(gap), Some(count)) = (take(&mut rest), take(&mut rest)) {
            let bucket = next + gap as usize;
            if let Some(sum) = to.get_mut(bucket) {
                *sum = sum.saturating_add(count);
            }
            next = bucket + 1;
        }
    }

    /// Returns the sum of both.
    pub(super) fn and(&self, other: &Self) -> Self {
        if self.0.is_empty() || other.0.is_empty() {
            return if self.0.is_empty() { other.clone() } else { self.clone() };
        }
        let mut sum = [0; BUCKETS];
        self.add_to(&mut sum);
        other.add_to(&mut sum);
        Self::of(sum.into_iter().enumerate().filter(|(_, count)| *count > 0))
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.0.len()
    }
}

fn put(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

fn take(bytes: &mut &[u8]) -> Option<u64> {
    let (mut number, mut shift) = (0, 0);
    loop {
        let (first, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return Some(number);
        }
        shift += 7;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tidegate_evidence::Histogram;

    fn delay(values: &[u64]) -> Delay {
        let mut histogram = Histogram::default();
        values.iter().for_each(|value| histogram.record(*value));
        Delay::from(&histogram)
    }

    fn unpacked(packed: &Packed) -> Vec<u64> {
        let mut all = [0; BUCKETS];
        packed.add_to(&mut all);
        all.to_vec()
    }

    proptest! {
        #[test]
        fn nothing_is_lost(
            first in prop::collection::vec(0u64..1 << 36, 0..50),
            second in prop::collection::vec(0u64..1 << 36, 0..50),
        ) {
            let both = [first.clone(), second.clone()].concat();
            let packed = Packed::between(&delay(&first), &delay(&both)).expect("it grew");
            let alone = Packed::between(&Delay::default(), &delay(&second)).expect("it grew");
            prop_assert_eq!(&packed, &alone);
            let before = Packed::between(&Delay::default(), &delay(&first)).expect("it grew");
            let all = Packed::between(&Delay::default(), &delay(&both)).expect("it grew");
            prop_assert_eq!(unpacked(&before.and(&packed)), unpacked(&all));
            prop_assert_eq!(Packed::between(&delay(&both), &delay(&first)).is_none(), !second.is_empty());
        }

        #[test]
        fn any_number_is_read_as_it_was_written(numbers in prop::collection::vec(any::<u64>(), 0..20)) {
            let mut bytes = Vec::new();
            numbers.iter().for_each(|number| put(&mut bytes, *number));
            let mut rest = &bytes[..];
            let read: Vec<u64> = std::iter::from_fn(|| take(&mut rest)).collect();
            prop_assert_eq!(read, numbers);
        }
    }
}
