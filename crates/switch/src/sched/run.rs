//! Frames of one source that leave one after the other.
//!
//! ```text
//!  head: of source a ──▶ a1 ▶ a2 ▶ a3 │ a4 ▶ a5
//!                             the run ┘ another source's turn, no tokens, or not to be told yet
//! ```
//!
//! A frame is of the run if, all before it taken at the same moment, it would be the head, and in the same tier. That can
//! be told of whole frames without taking them: until then no other source becomes more urgent. Only a frame of a source
//! with a minimum may change the tier of the next: a run of these is one frame. Of a source whose flows are queued it is of
//! one flow, and ends before a frame that is to be judged, or cut; there may be none.

use super::Queued;
use super::arena::{Arena, Node};
use super::edf::due;
use super::flows::Turn;
use super::heap::Lead;
use super::shares::Share;

/// Most frames of a run: their bytes are below 2^43, as [`Share::advance`] asks.
pub(super) const MOST: u32 = 1 << 10;

/// The frames of a run, without taking them.
pub(super) struct Run<'a, F> {
    pub(super) arena: &'a Arena<F>,
    pub(super) next: Option<&'a Node<F>>,
    /// How many more there are at most.
    pub(super) frames: u32,
    /// Bytes that the egress rate lets pass.
    pub(super) bytes: u64,
    pub(super) rivals: Rivals,
    /// Of a flow, where flows are queued.
    pub(super) turn: Option<Turn>,
}

/// Before whom a source has its turn.
pub(super) enum Rivals {
    /// No other has frames.
    None,
    /// Those whose frames are due later than its, whose relative deadline this is.
    RealTime(Lead, u64),
    /// Those whose frames arrived later.
    Fifo(Lead),
    /// Those with greater tags than its own, which advances.
    Shares(Lead, Share),
}

impl Rivals {
    /// Whether it is this frame's turn; the frame is served then.
    #[inline]
    fn let_pass<F>(&mut self, node: &Node<F>) -> bool {
        matches!(self, Self::None) || self.come_later(node)
    }

    #[inline(never)]
    fn come_later<F>(&mut self, node: &Node<F>) -> bool {
        match self {
            Self::None => true,
            Self::RealTime(lead, relative) => lead.holds(due(&node.queued, *relative).into()),
            Self::Fifo(lead) => lead.holds(node.arrival.into()),
            Self::Shares(lead, share) => {
                let holds = lead.holds(share.start());
                share.advance(node.queued.bytes.into());
                holds
            }
        }
    }
}

impl<'a, F: Copy> Iterator for Run<'a, F> {
    type Item = &'a Queued<F>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let node = self.next?;
        let bytes = u64::from(node.queued.bytes);
        if self.frames == 0 || bytes > self.bytes || !self.rivals.let_pass(node) {
            return None;
        }
        if self.turn.as_mut().is_some_and(|turn| !turn.lets_pass(&node.queued)) {
            return None;
        }
        self.frames -= 1;
        self.bytes -= bytes;
        self.next = self.arena.after(node);
        Some(&node.queued)
    }
}
