//! The other discipline: first come, first served over all sources.
//!
//! A plain interface does this; it exists for comparison. Frames stay in the list of their source, so all
//! questions about one source work alike in both disciplines. Frames are numbered by arrival, and the first
//! of all has the lowest number among the heads.

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

    /// Returns the source whose head arrived first.
    #[inline]
    pub(super) fn first(&self) -> Option<SourceIndex> {
        self.heads.first()
    }

    /// Returns its lead over the others.
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
