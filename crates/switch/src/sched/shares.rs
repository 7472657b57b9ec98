//! Tier 3: the rest, by weight. Start-time fair queueing (Goyal, Vin, Cheng, SIGCOMM 1996).
//!
//! Every source has a *start tag*: its bytes in this tier, divided by its weight. The least is served next,
//! and advances by `bytes / weight`. Virtual time is the tag of the frame served last; a source that
//! returns from idling continues at virtual time or its own tag, whichever is later, so idling neither
//! saves up nor costs anything.
//!
//! Reasons for this member of the fair queueing family:
//! - It needs no knowledge of the capacity, which here is the rest of the other two tiers.
//! - The tag does not depend on the size of the head. A head may go in tier 2, expire or be dropped without
//!   any new computation.
//! - While two sources both have frames, their shares, each divided by its weight, differ by at most the
//!   sum of their largest frames divided by their weights: 60-byte frames compete fairly with super-frames
//!   of 64 KB.
//!
//! Tags are integers with 20 fractional bits, and the remainder of the division is carried to the next
//! frame, so shares do not drift. The heap orders by the lower 112 of 128 bits, which last for ever; 64
//! would wrap within minutes.

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
    /// Returns a new place; `weight` 0 counts as 1, so no source is shut out.
    pub(super) fn new(weight: u32) -> Self {
        Self { weight: weight.max(1), start: 0, rest: 0 }
    }

    /// Changes the weight for later frames.
    pub(super) fn set_weight(&mut self, weight: u32) {
        if self.weight != weight.max(1) {
            self.weight = weight.max(1);
            self.rest = 0;
        }
    }

    /// Returns the start tag of the next frame, rounded down.
    #[inline]
    pub(super) fn start(&self) -> u128 {
        self.start
    }

    /// Advances by served `bytes`, below 2^43.
    #[inline]
    pub(super) fn advance(&mut self, bytes: u64) {
        let weight = u64::from(self.weight);
        let step = bytes * SCALE + self.rest;
        self.start += u128::from(step / weight);
        self.rest = step % weight;
    }
}

/// The sources with frames that are not real-time.
#[derive(Debug, Default)]
pub(super) struct Shares {
    heads: SourceHeap,
    virtual_time: u128,
    /// The greatest tag after any service.
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

    /// Activates `source`, which has a frame now.
    pub(super) fn activate(&mut self, share: &mut Share) {
        if self.heads.is_empty() {
            // Without waiting sources none is owed anything: all begin as equals.
            self.virtual_time = self.virtual_time.max(self.furthest);
        }
        if share.start < self.virtual_time {
            share.start = self.virtual_time;
            share.rest = 0;
        }
    }

    /// Sets `source`, which has frames, to its tag.
    #[inline]
    pub(super) fn set(&mut self, source: SourceIndex, share: &Share) {
        self.heads.set(source, share.start);
    }

    /// Returns the first source's lead over the others.
    #[inline]
    pub(super) fn lead(&self) -> Option<Lead> {
        self.heads.lead()
    }

    /// Charges a frame of `bytes` served in tier 3, after others of its source of `before` bytes.
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
