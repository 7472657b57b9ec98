//! A packed ring without an order: a used descriptor skips as many places as its chain had, and overwrites
//! one that may have to be popped again. So places are known by id, and completions are stored until they
//! are shown.

use super::{Counts, Journal, Order};
use crate::virtio::Single;
use crate::virtio::inflight::Record;

#[derive(Debug)]
pub(in crate::virtio) struct ById {
    counts: Counts,
    /// Places of the chain in flight with each buffer id, 0 for none.
    places: Box<[u16]>,
    /// Buffer ids in the order of popping, at the masked number: for `forget`.
    popped: Box<[u16]>,
    /// Chains given back and not shown.
    journal: Box<[u64]>,
}

impl ById {
    #[inline]
    fn number(&self, popped: u16) -> usize {
        usize::from(popped) & (self.popped.len() - 1)
    }
}

impl Order for ById {
    const IN_ORDER: bool = false;

    fn new(size: u16, counts: Counts, _: bool) -> Self {
        let size = usize::from(size);
        Self {
            counts,
            places: vec![0; size].into(),
            popped: vec![0; size.next_power_of_two()].into(),
            journal: vec![0; size].into(),
        }
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
        let at = self.number(self.counts.popped);
        let of_id = self.places.get_mut(usize::from(id)).filter(|places| **places == 0)?;
        *of_id = places;
        self.popped[at] = id;
        self.counts.popped = self.counts.popped.wrapping_add(1);
        Some(id)
    }

    #[inline]
    fn take_single(&mut self, _: u16, id: u16) -> Option<u16> {
        let of_id = self.places.get_mut(usize::from(id)).filter(|places| **places == 0)?;
        *of_id = 1;
        Some(id)
    }

    #[inline]
    fn forget(&mut self, n: u16, mut each: impl FnMut(u16)) -> u16 {
        let first = self.counts.popped;
        self.counts.forget(n);
        let mut places = 0;
        for i in 1..=n {
            let id = self.popped[self.number(first.wrapping_sub(i))];
            each(id);
            let of_id = std::mem::take(&mut self.places[usize::from(id)]);
            debug_assert!(of_id > 0, "putting chain {id} back, which was completed");
            places += of_id;
        }
        places
    }

    #[inline]
    fn forget_singles(&mut self, last: &[Single]) {
        self.counts.forget(last.len() as u16);
        for single in last {
            let places = std::mem::take(&mut self.places[usize::from(single.head)]);
            debug_assert!(places == 1, "putting chain {} back, which is not in flight alone", single.head);
        }
    }

    #[inline]
    fn complete(&mut self, done: impl Iterator<Item = (u16, u32)>, mut each: impl FnMut(Record)) {
        let before = self.counts.unshown();
        let mut logged = before;
        for (id, len) in done {
            let places = std::mem::take(&mut self.places[usize::from(id)]);
            debug_assert!(places > 0, "completing chain {id}, which is not in flight");
            let record = Record { id, places, len };
            self.journal[usize::from(logged)] = record.pack();
            logged += 1;
            each(record);
        }
        self.counts.returned = self.counts.returned.wrapping_add(logged - before);
    }
}

impl Journal for ById {
    #[inline]
    fn unshown(&self) -> impl ExactSizeIterator<Item = u64> {
        self.journal[..usize::from(self.counts.unshown())].iter().copied()
    }

    fn restore(&mut self, record: Record) {
        self.journal[usize::from(self.counts.unshown())] = record.pack();
        self.counts.popped = self.counts.popped.wrapping_add(1);
        self.counts.returned = self.counts.returned.wrapping_add(1);
    }
}
