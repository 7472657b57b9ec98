//! Tier 1: earliest deadline first, over the heads of the real-time sources.
//!
//! The frames of a vNIC share one relative deadline, and its clock starts no
//! earlier than the clock of the frame before, so every source's queue is in
//! deadline order already. The earliest deadline of all is the earliest
//! among the heads, and the heap holds sources, not frames.
//!
//! For frames that cannot be interrupted, EDF misses a deadline only if no
//! order would meet them all plus one blocking frame (Jeffay, Stanat, Martel,
//! RTSS 1991). Admission counts exactly with that.

use super::Queued;
use super::heap::{Lead, SourceHeap};
use super::source::SourceIndex;

#[derive(Debug, Default)]
pub(super) struct Edf {
    heads: SourceHeap,
}

impl Edf {
    pub(super) fn reserve(&mut self, source: SourceIndex) {
        self.heads.reserve(source);
    }

    /// Returns the source whose head is due first.
    #[inline]
    pub(super) fn first(&self) -> Option<SourceIndex> {
        self.heads.first()
    }

    /// Returns its due time.
    pub(super) fn first_due(&self) -> Option<u64> {
        self.heads.first_key()
    }

    /// Returns its lead over the others.
    #[inline]
    pub(super) fn lead(&self) -> Option<Lead> {
        self.heads.lead()
    }

    pub(super) fn set<F>(&mut self, source: SourceIndex, head: &Queued<F>, relative: u64) {
        self.heads.set(source, due(head, relative).into());
    }

    pub(super) fn remove(&mut self, source: SourceIndex) {
        self.heads.remove(source);
    }

    pub(super) fn clear(&mut self) {
        self.heads.clear();
    }
}

/// Returns when a frame of a real-time source is due. A frame queued before its source became real-time has
/// no deadline; later ones cannot leave before it, so it is ordered as if it had one.
#[inline]
pub(super) fn due<F>(head: &Queued<F>, relative: u64) -> u64 {
    match head.deadline {
        u64::MAX => head.enqueued.saturating_add(relative),
        deadline => deadline,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(deadline: u64) -> Queued<()> {
        Queued { frame: (), bytes: 64, deadline, enqueued: 100 }
    }

    #[test]
    fn earliest_first_then_by_source() {
        let mut edf = Edf::default();
        edf.reserve(9);
        edf.set(4, &head(500), 50);
        edf.set(9, &head(300), 50);
        edf.set(2, &head(500), 50);
        assert_eq!((edf.first(), edf.first_due()), (Some(9), Some(300)));
        edf.set(9, &head(600), 50);
        assert_eq!((edf.first(), edf.first_due()), (Some(2), Some(500)));
        edf.set(9, &head(u64::MAX), 50); // queued before the source was real-time
        assert_eq!((edf.first(), edf.first_due()), (Some(9), Some(150)));
    }
}
