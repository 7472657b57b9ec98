//! The chains of a queue whose driver relies on order (VIRTIO_F_IN_ORDER; virtio 1.2, 2.7.9 and
//! 2.8.8): numbered as they were popped, given back as they are numbered.
//!
//! ```text
//!            shown            given                    popped
//!              ▼                ▼                         ▼
//!   ───────────┬────────────────┬─────┬──────┬──────┬─────┬────
//!    driver's  │ given back     │ not │ done │ done │ not │
//!   ───────────┴────────────────┴─────┴──────┴──────┴─────┴────
//!                               the oldest ▲ holds back what is done behind it
//! ```

use super::inflight::Record;

/// In a packed [`Record`]: done. No chain takes so many places.
const DONE: u64 = 1 << 63;

/// Numbers count modulo 2^16; what lies between `shown` and `popped` fits into the ring.
#[derive(Debug)]
pub(super) struct Window {
    /// By number, masked.
    records: Box<[u64]>,
    /// The next chain to be popped.
    pub(super) popped: u16,
    /// The next chain to be given back.
    pub(super) given: u16,
    /// The next chain that the driver is to see.
    pub(super) shown: u16,
    /// Done, and held back by the oldest.
    held_back: u16,
}

impl Window {
    /// For a ring of `size` entries, from chain number `first` on.
    pub(super) fn new(size: u16, first: u16) -> Self {
        let records = vec![0; usize::from(size).next_power_of_two()].into();
        Self { records, popped: first, given: first, shown: first, held_back: 0 }
    }

    #[inline]
    fn at(&self, number: u16) -> usize {
        usize::from(number) & (self.records.len() - 1)
    }

    /// The chain of that number.
    #[inline]
    pub(super) fn record(&self, number: u16) -> u64 {
        self.records[self.at(number)] & !DONE
    }

    /// Counts a chain as popped; returns its number.
    #[inline]
    pub(super) fn push(&mut self, id: u16, places: u16) -> u16 {
        self.push_record(Record { id, places, len: 0 }.pack())
    }

    /// As [`push`](Self::push), of a packed [`Record`] without a length.
    #[inline]
    pub(super) fn push_record(&mut self, record: u64) -> u16 {
        let number = self.popped;
        let at = self.at(number);
        self.records[at] = record;
        self.popped = number.wrapping_add(1);
        number
    }

    /// A chain that was given back by a predecessor, and not shown.
    pub(super) fn restore(&mut self, record: Record) {
        let at = self.at(self.popped);
        self.records[at] = record.pack();
        self.popped = self.popped.wrapping_add(1);
        self.given = self.popped;
    }

    /// Takes the last `n` chains out again.
    #[inline]
    pub(super) fn forget(&mut self, n: u16) {
        assert!(n <= self.in_flight(), "putting {n} chains back of {} in flight", self.in_flight());
        self.popped = self.popped.wrapping_sub(n);
    }

    /// Chains popped and not given back, those that are done among them.
    #[inline]
    pub(super) fn in_flight(&self) -> u16 {
        self.popped.wrapping_sub(self.given)
    }

    /// Chains are done: numbers and lengths. Gives to `each` what may be given back now, in order.
    #[inline]
    pub(super) fn complete(&mut self, done: impl Iterator<Item = (u16, u32)>, mut each: impl FnMut(u64)) {
        let mut given = self.given;
        for (number, len) in done {
            debug_assert!(
                number.wrapping_sub(given) < self.popped.wrapping_sub(given),
                "completing chain {number}, which is not in flight"
            );
            let at = self.at(number);
            let record = self.records[at] | u64::from(len);
            debug_assert!(record & DONE == 0, "completing chain {number} twice");
            if number == given {
                self.records[at] = record;
                given = given.wrapping_add(1);
                each(record);
            } else {
                self.records[at] = record | DONE;
                self.held_back += 1;
            }
        }
        self.given = given;
        self.let_go(each);
    }

    /// The `n` chains from number `first` on are done, with nothing written. Returns whether they, and
    /// only they, may be given back by that; if not, nothing has changed.
    #[inline]
    pub(super) fn complete_run(&mut self, first: u16, n: u16) -> bool {
        let end = first.wrapping_add(n);
        let alone = end == self.popped || self.records[self.at(end)] & DONE == 0;
        if first != self.given || !alone {
            return false;
        }
        self.given = end;
        true
    }

    /// Gives to `each` what waited for the oldest only.
    #[inline]
    fn let_go(&mut self, mut each: impl FnMut(u64)) {
        while self.given != self.popped && self.records[self.at(self.given)] & DONE != 0 {
            let at = self.at(self.given);
            self.records[at] &= !DONE;
            self.held_back -= 1;
            self.given = self.given.wrapping_add(1);
            each(self.records[at]);
        }
    }

    /// Chains that are done and may not be given back: the oldest one is not.
    pub(super) fn held_back(&self) -> u16 {
        self.held_back
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ids(window: &mut Window, number: u16, len: u32) -> Vec<u16> {
        let mut ids = Vec::new();
        window.complete(std::iter::once((number, len)), |record| ids.push(Record::unpack(record).id));
        ids
    }

    #[test]
    fn a_run_is_given_back_whole_or_not_at_all() {
        let mut window = Window::new(8, u16::MAX);
        let numbers: Vec<_> = (0..6).map(|id| window.push(id, 1)).collect();
        assert!(!window.complete_run(numbers[1], 2), "an older one is not done");
        assert_eq!(ids(&mut window, numbers[3], 0), [0; 0]);
        assert!(!window.complete_run(numbers[0], 3), "one behind it is done");
        assert!(window.complete_run(numbers[0], 2));
        assert_eq!(ids(&mut window, numbers[2], 0), [2, 3]);
        assert!(window.complete_run(numbers[4], 2));
        assert_eq!(window.in_flight(), 0);
    }

    #[test]
    fn the_oldest_holds_the_others_back() {
        let mut window = Window::new(5, u16::MAX - 1);
        let [a, b, c] = [7, 5, 9].map(|id| window.push(id, 1));
        assert_eq!((a, b, c), (u16::MAX - 1, u16::MAX, 0));
        assert_eq!(ids(&mut window, c, 0), [0; 0]);
        assert_eq!(ids(&mut window, b, 0), [0; 0]);
        assert_eq!((window.held_back(), window.in_flight()), (2, 3));
        let d = window.push(1, 1);
        assert_eq!(ids(&mut window, a, 0), [7, 5, 9]);
        assert_eq!((window.held_back(), window.in_flight()), (0, 1));
        assert_eq!(ids(&mut window, d, 0), [1]);
    }

    proptest! {
        /// Whatever is completed in whatever order comes out in the order it went in, once, as soon as
        /// all before it is done.
        #[test]
        fn order_is_that_of_popping(
            size in 1u16..20,
            first in any::<u16>(),
            steps in prop::collection::vec((any::<bool>(), any::<u16>()), 0..200),
        ) {
            let mut window = Window::new(size, first);
            let (mut open, mut done) = (Vec::new(), std::collections::BTreeSet::new());
            let (mut next, mut oldest) = (0u16, 0u16);
            for (push, which) in steps {
                if push && next - oldest < size {
                    open.push((window.push(next, 1), next));
                    next += 1;
                } else if !open.is_empty() {
                    let (number, id) = open.remove(usize::from(which) % open.len());
                    let out = ids(&mut window, number, 0);
                    done.insert(id);
                    let mut expected = Vec::new();
                    while done.remove(&oldest) {
                        expected.push(oldest);
                        oldest += 1;
                    }
                    prop_assert_eq!(out, expected);
                    prop_assert_eq!(usize::from(window.held_back()), done.len());
                }
            }
        }
    }
}
