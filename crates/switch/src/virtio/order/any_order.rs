//! A split ring without an order: it identifies chains by their heads in the driver's rings.

use super::{Counts, Order};
use crate::virtio::inflight::Record;

#[derive(Debug)]
pub(in crate::virtio) struct AnyOrder {
    counts: Counts,
}

impl Order for AnyOrder {
    const IN_ORDER: bool = false;

    fn new(_: u16, counts: Counts, _: bool) -> Self {
        Self { counts }
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
    fn take(&mut self, id: u16, _: u16) -> Option<u16> {
        self.counts.popped = self.counts.popped.wrapping_add(1);
        Some(id)
    }

    #[inline]
    fn take_single(&mut self, _: u16, id: u16) -> Option<u16> {
        Some(id)
    }

    #[inline]
    fn forget(&mut self, n: u16, _: impl FnMut(u16)) -> u16 {
        self.counts.forget(n);
        n
    }

    #[inline]
    fn complete(&mut self, done: impl Iterator<Item = (u16, u32)>, mut each: impl FnMut(Record)) {
        let mut returned = self.counts.returned;
        for (id, len) in done {
            debug_assert!(returned != self.counts.popped, "completing chain {id}, but none is in flight");
            returned = returned.wrapping_add(1);
            each(Record { id, places: 1, len });
        }
        self.counts.returned = returned;
    }
}
