//! Chains that go back in the order of their pops: numbered, and given back by number.
//!
//! ```text
//!            shown            given                    popped
//!              ▼                ▼                         ▼
//!   ───────────┬────────────────┬─────┬──────┬──────┬─────┬────
//!    driver's  │ given back     │ not │ done │ done │ not │
//!   ───────────┴────────────────┴─────┴──────┴──────┴─────┴────
//!                               the oldest ▲ holds back what is done behind it
//! ```

use super::{Counts, Journal, Order};
use crate::virtio::inflight::Record;

/// Flag in the id of a chain: it is done. Rings have at most 2^15 entries, so no id has this bit.
const DONE: u16 = 1 << 15;

/// How a layout stores the places of a chain.
pub(in crate::virtio) trait Places: Copy + Default {
    fn of(places: u16) -> Self;
    fn count(self) -> u16;
}

/// Of a split ring: an entry of the available ring.
impl Places for () {
    #[inline]
    fn of(_: u16) -> Self {}

    #[inline]
    fn count(self) -> u16 {
        1
    }
}

/// Of a packed ring: one for each descriptor.
impl Places for u16 {
    #[inline]
    fn of(places: u16) -> Self {
        places
    }

    #[inline]
    fn count(self) -> u16 {
        self
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TakenChain<P> {
    id: u16,
    places: P,
}

/// Tokens are the numbers of chains; those between `shown` and `popped` fit into the ring.
#[derive(Debug)]
pub(in crate::virtio) struct InOrder<P> {
    counts: Counts,
    /// Done chains behind the oldest.
    held_back: u16,
    /// Entries of the ring.
    size: u16,
    /// By masked number.
    taken: Box<[TakenChain<P>]>,
    /// Bytes written, by masked number; empty for a transmit queue.
    lens: Box<[u32]>,
}

impl<P: Places> InOrder<P> {
    #[inline]
    fn at(&self, number: u16) -> usize {
        usize::from(number) & (self.taken.len() - 1)
    }

    #[inline]
    fn record(&self, number: u16) -> Record {
        let TakenChain { id, places } = self.taken[self.at(number)];
        let len = self.lens.get(self.at(number)).map_or(0, |len| *len);
        Record { id: id & !DONE, places: places.count(), len }
    }

    #[inline]
    fn is_done(&self, number: u16) -> bool {
        self.taken[self.at(number)].id & DONE != 0
    }

    #[inline]
    fn take_nth(&mut self, nth: u16, id: u16, places: u16) -> Option<u16> {
        if id >= self.size {
            return None;
        }
        let number = self.counts.popped.wrapping_add(nth);
        let at = self.at(number);
        self.taken[at] = TakenChain { id, places: P::of(places) };
        Some(number)
    }

    /// Passes to `each` the chains that waited only for the oldest.
    #[inline]
    fn release_done(&mut self, mut each: impl FnMut(Record)) {
        while self.counts.returned != self.counts.popped && self.is_done(self.counts.returned) {
            self.held_back -= 1;
            each(self.record(self.counts.returned));
            self.counts.returned = self.counts.returned.wrapping_add(1);
        }
    }
}

impl<P: Places> Order for InOrder<P> {
    const IN_ORDER: bool = true;

    fn new(size: u16, counts: Counts, transmit: bool) -> Self {
        let entries = usize::from(size).next_power_of_two();
        let taken = vec![TakenChain::default(); entries].into();
        let lens = vec![0; if transmit { 0 } else { entries }].into();
        Self { counts, held_back: 0, size, taken, lens }
    }

    #[inline]
    fn counts(&self) -> Counts {
        self.counts
    }

    #[inline]
    fn counts_mut(&mut self) -> &mut Counts {
        &mut self.counts
    }

    #[inline]
    fn take(&mut self, id: u16, places: u16) -> Option<u16> {
        let token = self.take_nth(0, id, places)?;
        self.counts.popped = token.wrapping_add(1);
        Some(token)
    }

    #[inline]
    fn take_single(&mut self, nth: u16, id: u16) -> Option<u16> {
        self.take_nth(nth, id, 1)
    }

    #[inline]
    fn forget(&mut self, n: u16, mut id: impl FnMut(u16)) -> u16 {
        let first = self.counts.popped;
        self.counts.forget(n);
        let mut places = 0;
        for i in 1..=n {
            let record = self.record(first.wrapping_sub(i));
            id(record.id);
            places += record.places;
        }
        places
    }

    #[inline]
    fn complete(&mut self, done: impl Iterator<Item = (u16, u32)>, mut each: impl FnMut(Record)) {
        let mut returned = self.counts.returned;
        for (number, len) in done {
            debug_assert!(
                number.wrapping_sub(returned) < self.counts.popped.wrapping_sub(returned),
                "completing chain {number}, which is not in flight"
            );
            let at = self.at(number);
            if let Some(of_number) = self.lens.get_mut(at) {
                *of_number = len;
            }
            let taken = &mut self.taken[at];
            debug_assert!(taken.id & DONE == 0, "completing chain {number} twice");
            if number == returned {
                returned = returned.wrapping_add(1);
                each(Record { id: taken.id, places: taken.places.count(), len });
            } else {
                taken.id |= DONE;
                self.held_back += 1;
            }
        }
        self.counts.returned = returned;
        self.release_done(each);
    }

    #[inline]
    fn complete_run(&mut self, first: u16, n: u16) -> bool {
        let end = first.wrapping_add(n);
        let alone = end == self.counts.popped || !self.is_done(end);
        if first != self.counts.returned || !alone || !self.lens.is_empty() {
            return false;
        }
        self.counts.returned = end;
        true
    }

    #[inline]
    fn id_for_all(&self) -> Option<u16> {
        self.lens.is_empty().then(|| self.record(self.counts.returned.wrapping_sub(1)).id)
    }

    fn held_back(&self) -> Option<(u16, u16)> {
        Some((self.counts.returned, self.held_back))
    }

    #[cfg(test)]
    fn id_of(&self, token: u16) -> u16 {
        self.record(token).id
    }
}

impl<P: Places> Journal for InOrder<P> {
    #[inline]
    fn unshown(&self) -> impl ExactSizeIterator<Item = u64> {
        let shown = self.counts.shown;
        (0..self.counts.unshown()).map(move |i| self.record(shown.wrapping_add(i)).pack())
    }

    fn restore(&mut self, record: Record) {
        let at = self.at(self.counts.popped);
        self.taken[at] = TakenChain { id: record.id, places: P::of(record.places) };
        if let Some(len) = self.lens.get_mut(at) {
            *len = record.len;
        }
        self.counts.popped = self.counts.popped.wrapping_add(1);
        self.counts.returned = self.counts.popped;
    }
}
