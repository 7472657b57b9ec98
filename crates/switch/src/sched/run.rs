//! Frames of one source that leave together.
//!
//! ```text
//!  head: of source a ──▶ a1 ▶ a2 ▶ a3 │ a4 ▶ a5
//!                             the run ┘ another source's turn, no tokens, or not to be told yet
//! ```
//!
//! A frame belongs to the run if it would be the head, in the same tier, after all before it were taken at
//! the same moment. Whole frames allow this without taking them, since no other source becomes more urgent
//! until then. With a minimum, a frame may change the next one's tier: such a run is one frame. With flow
//! queues, a run is of one flow, and ends before a frame that is judged or cut; it may be empty.

use super::Queued;
use super::arena::{Arena, Node};
use super::edf::due;
use super::flows::Turn;
use super::heap::Lead;
use super::shares::Share;

/// Most frames of a run: their bytes are below 2^43, as [`Share::advance`] requires.
pub(super) const MOST: u32 = 1 << 10;

/// An iterator over a run, which takes no frame.
pub(super) struct Run<'a, F> {
    pub(super) arena: &'a Arena<F>,
    pub(super) next: Option<&'a Node<F>>,
    /// Most further frames.
    pub(super) frames: u32,
    /// Bytes that the egress rate allows.
    pub(super) bytes: u64,
    pub(super) rivals: Rivals,
    /// The flow's turn, with flow queues.
    pub(super) turn: Option<Turn>,
}

/// The sources behind the present one.
pub(super) enum Rivals {
    /// No other has frames.
    None,
    /// Those whose frames are due later; and the source's own relative deadline.
    RealTime(Lead, u64),
    /// Those whose frames arrived later.
    Fifo(Lead),
    /// Those with greater tags than the source's own, which advances.
    Shares(Lead, Share),
}

impl Rivals {
    /// Whether it is this frame's turn; it is then counted as served.
    #[inline]
    fn is_turn<F>(&mut self, node: &Node<F>) -> bool {
        matches!(self, Self::None) || self.all_come_later(node)
    }

    #[inline(never)]
    fn all_come_later<F>(&mut self, node: &Node<F>) -> bool {
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
        if self.frames == 0 || bytes > self.bytes || !self.rivals.is_turn(node) {
            return None;
        }
        if self.turn.as_mut().is_some_and(|turn| !turn.allows(&node.queued)) {
            return None;
        }
        self.frames -= 1;
        self.bytes -= bytes;
        self.next = self.arena.after(node);
        Some(&node.queued)
    }
}
