//! All frames in order of arrival, across flows.
//!
//! The oldest frame is the first of its flow, and frames leave from anywhere: a doubly linked list beside
//! the [arena](crate::sched::arena), with the same numbers.

use super::ways::Index;

const NIL: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Age {
    older: u32,
    younger: u32,
    flow: Index,
}

/// The list; a frame is the number of its node.
#[derive(Debug)]
pub(super) struct Ages {
    ages: Vec<Age>,
    oldest: u32,
    youngest: u32,
}

impl Ages {
    pub(super) const fn new() -> Self {
        Self { ages: Vec::new(), oldest: NIL, youngest: NIL }
    }

    /// Returns the flow of the oldest frame.
    #[inline]
    pub(super) fn oldest(&self) -> Option<Index> {
        self.ages.get(self.oldest as usize).map(|age| age.flow)
    }

    /// Adds a frame.
    #[inline]
    pub(super) fn push(&mut self, node: u32, flow: Index) {
        let age = Age { older: self.youngest, younger: NIL, flow };
        match self.ages.get_mut(node as usize) {
            Some(free) => *free = age,
            // Nodes are numbered in order of their first use.
            None => self.ages.push(age),
        }
        match self.ages.get_mut(self.youngest as usize) {
            Some(youngest) => youngest.younger = node,
            None => self.oldest = node,
        }
        self.youngest = node;
    }

    /// Removes a frame.
    #[inline]
    pub(super) fn remove(&mut self, node: u32) {
        let Age { older, younger, .. } = self.ages[node as usize];
        match self.ages.get_mut(older as usize) {
            Some(age) => age.younger = younger,
            None => self.oldest = younger,
        }
        match self.ages.get_mut(younger as usize) {
            Some(age) => age.older = older,
            None => self.youngest = older,
        }
    }
}
