//! What is remembered of each pair of a queue pair here and one at another host. Pure.
//!
//! ```text
//!  peer, number there, number here ─▶ place ─┬▶ the same pair's: as it was left
//!                                            └▶ another pair's, or none: begins anew
//! ```
//!
//! A table of fixed size, since the pairs are as many as the control plane and other hosts want. Two pairs of one
//! place take it from each other; then a sender counts from 0 again, and a receiver takes any number for the first: no
//! loss is counted that was none.

use crate::fdb::PeerIndex;

/// Places.
const PLACES: usize = 4096;

/// A queue pair here, and one at a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Key(u64);

impl Key {
    /// Returns the key of the pair of these numbers, of 24 bits each.
    #[inline]
    pub fn new(peer: PeerIndex, there: u32, here: u32) -> Self {
        // The highest bit tells a key from none.
        let [there, here] = [there, here].map(|number| u64::from(number & 0xff_ffff));
        Self(1 << 63 | u64::from(peer.get()) << 48 | there << 24 | here)
    }

    #[inline]
    fn place(self) -> usize {
        // Fibonacci hashing: the upper bits of the product depend on all of the key.
        (self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 52) as usize % PLACES
    }
}

/// What is remembered of some pairs.
pub struct Numbers<T>(Box<[(Key, T)]>);

impl<T: Copy + Default> Default for Numbers<T> {
    fn default() -> Self {
        Self(vec![(Key::default(), T::default()); PLACES].into())
    }
}

impl<T: Copy + Default> Numbers<T> {
    /// Returns what is remembered of a pair: the default if that is nothing.
    #[inline]
    pub fn of(&mut self, key: Key) -> &mut T {
        let (holder, value) = &mut self.0[key.place()];
        if *holder != key {
            (*holder, *value) = (key, T::default());
        }
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        /// Of any pairs, a value is the one that was left there, or the default.
        #[test]
        fn a_pair_finds_its_own_or_nothing(steps in prop::collection::vec((0..4u16, 0..64u32, 0..8u32), 1..400)) {
            let mut numbers = Numbers::<u32>::default();
            let mut model = BTreeMap::new();
            for (n, (peer, there, here)) in (1..).zip(steps) {
                let key = Key::new(PeerIndex::new(peer).unwrap(), there, here);
                let value = numbers.of(key);
                let expected = model.insert((peer, there, here), n).unwrap_or(0);
                prop_assert!(*value == expected || *value == 0);
                *value = n;
                prop_assert_eq!(*numbers.of(key), n);
            }
        }
    }

    #[test]
    fn a_pair_alone_keeps_its_number() {
        let mut numbers = Numbers::<u32>::default();
        let key = Key::new(PeerIndex::MAX, 0xff_ffff, 0xff_ffff);
        for n in 0..10 {
            assert_eq!(std::mem::replace(numbers.of(key), n + 1), n);
        }
        // Pairs of one place: each begins anew.
        let same =
            (0..).map(|here| Key::new(PeerIndex::MIN, 1, here)).find(|other| other.place() == key.place());
        assert_eq!(*numbers.of(same.unwrap()), 0);
        assert_eq!(*numbers.of(key), 0);
    }
}
