//! Tier 3: what is left over, by weight. Start-time fair queueing (Goyal, Vin,
//! Cheng, SIGCOMM 1996).
//!
//! Every source has a *start tag*: the bytes it had of this tier, divided by its
//! weight. The least is served next, and moves on by `bytes / weight`. Virtual
//! time is the tag of the frame served last; a source that comes back from
//! idling takes up at virtual time or at its own tag, whichever is later, so
//! idling saves nothing up and costs nothing.
//!
//! Why this one, of the fair queueing family:
//! - It needs no knowledge of the capacity, and this tier's is whatever the
//!   other two leave of it.
//! - The tag does not depend on the size of the head. A head may go in tier 2,
//!   expire or be dropped, and nothing has to be computed again.
//! - While two sources both have frames, what they got, each divided by its
//!   weight, differs by at most the sum of their largest frames divided by their
//!   weights: 60-byte frames hold their own against super-frames of 64 KB.
//!
//! Tags are integers with 20 fractional bits and the remainder of the division is
//! carried to the next frame, so shares do not drift. Of 128 bits the heap orders
//! by the lower 112, and those last forever; 64 would wrap within minutes.

use super::heap::{Lead, SourceHeap};
use super::source::SourceIndex;

/// Units of a tag per byte at weight 1.
const SCALE: u64 = 1 << 20;

/// One source's place in tier 3.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Share {
    weight: u32,
    /// Start tag of the next frame, in units, rounded down ...
    start: u128,
    /// ... by this many `1 / weight`.
    rest: u64,
}

impl Share {
    /// `weight` 0 counts as 1: no source is shut out.
    pub(super) fn new(weight: u32) -> Self {
        Self { weight: weight.max(1), start: 0, rest: 0 }
    }

    /// Changes the weight for what is sent from now on.
    pub(super) fn set_weight(&mut self, weight: u32) {
        if self.weight != weight.max(1) {
            self.weight = weight.max(1);
            self.rest = 0;
        }
    }

    /// Start tag of the next frame, rounded down.
    #[inline]
    pub(super) fn start(&self) -> u128 {
        self.start
    }

    /// The source was served `bytes`, below 2^43.
    #[inline]
    pub(super) fn advance(&mut self, bytes: u64) {
        let weight = u64::from(self.weight);
        let step = bytes * SCALE + self.rest;
        self.start += u128::from(step / weight);
        self.rest = step % weight;
    }
}

/// The sources that have frames and are not real-time.
#[derive(Debug, Default)]
pub(super) struct Shares {
    heads: SourceHeap,
    virtual_time: u128,
    /// The greatest tag that any service led to.
    furthest: u128,
}

impl Shares {
    pub(super) fn reserve(&mut self, source: SourceIndex) {
        self.heads.reserve(source);
    }

    #[inline]
    pub(super) fn first(&self) -> Option<SourceIndex> {
        self.heads.first()
    }

    /// `source` has a frame again.
    pub(super) fn activate(&mut self, share: &mut Share) {
        if self.heads.is_empty() {
            // No source waits, so none is owed anything: all begin as equals.
            self.virtual_time = self.virtual_time.max(self.furthest);
        }
        if share.start < self.virtual_time {
            share.start = self.virtual_time;
            share.rest = 0;
        }
    }

    /// `source` has frames and stands at its tag.
    #[inline]
    pub(super) fn set(&mut self, source: SourceIndex, share: &Share) {
        self.heads.set(source, share.start);
    }

    /// What the first has before the others.
    #[inline]
    pub(super) fn lead(&self) -> Option<Lead> {
        self.heads.lead()
    }

    /// A frame of `bytes` was served in tier 3, after others of its source of `before` bytes together.
    #[inline]
    pub(super) fn charge(&mut self, share: &mut Share, before: u64, bytes: u32) {
        share.advance(before);
        self.virtual_time = self.virtual_time.max(share.start);
        share.advance(bytes.into());
        self.furthest = self.furthest.max(share.start);
    }

    pub(super) fn remove(&mut self, source: SourceIndex) {
        self.heads.remove(source);
    }

    pub(super) fn clear(&mut self) {
        self.heads.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_remainder_is_carried() {
        let mut shares = Shares::default();
        let mut share = Share::new(3);
        for _ in 0..3000 {
            shares.charge(&mut share, 0, 1);
        }
        assert_eq!(share.start, 1000 * u128::from(SCALE));
        assert_eq!(share.rest, 0);
    }

    #[test]
    fn coming_back_neither_gains_nor_loses() {
        let mut shares = Shares::default();
        shares.reserve(2);
        let (mut a, mut b) = (Share::new(1), Share::new(1));
        shares.activate(&mut a);
        shares.set(1, &a);
        for _ in 0..10 {
            shares.charge(&mut a, 0, 1500);
            shares.set(1, &a);
        }
        shares.activate(&mut b);
        assert_eq!(b.start, shares.virtual_time, "nothing saved up");
        assert_eq!(a.start - b.start, 1500 * u128::from(SCALE));
        shares.remove(1); // all idle
        let mut c = Share::new(1);
        shares.activate(&mut c);
        shares.activate(&mut a);
        assert_eq!(a.start, c.start, "no penalty for service long past");
    }

    #[test]
    fn weight_zero_is_one() {
        let mut shares = Shares::default();
        let mut share = Share::new(0);
        shares.charge(&mut share, 0, 1);
        assert_eq!(share.start, u128::from(SCALE));
        share.set_weight(0);
        assert_eq!(share, Share { weight: 1, start: u128::from(SCALE), rest: 0 });
    }
}
