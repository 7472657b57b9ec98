//! The other discipline: first come, first served over all sources.
//!
//! This is what a plain interface does; it is there to compare with. Frames
//! stay in the list of their source, so everything that is asked about one source
//! works alike in both disciplines. They are numbered as they arrive, and the
//! first of all is the lowest number among the heads.

use super::heap::{Lead, SourceHeap};
use super::source::SourceIndex;

#[derive(Debug, Default)]
pub(super) struct Fifo {
    heads: SourceHeap,
}

impl Fifo {
    pub(super) fn reserve(&mut self, source: SourceIndex) {
        self.heads.reserve(source);
    }

    /// The source whose head arrived first.
    #[inline]
    pub(super) fn first(&self) -> Option<SourceIndex> {
        self.heads.first()
    }

    /// What the first has before the others.
    #[inline]
    pub(super) fn lead(&self) -> Option<Lead> {
        self.heads.lead()
    }

    pub(super) fn set(&mut self, source: SourceIndex, arrival: u64) {
        self.heads.set(source, arrival.into());
    }

    pub(super) fn remove(&mut self, source: SourceIndex) {
        self.heads.remove(source);
    }

    pub(super) fn clear(&mut self) {
        self.heads.clear();
    }
}
