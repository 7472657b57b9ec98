//! A receiver's part of a store: a receiver that takes nothing leaves room for all others.
//!
//! ```text
//!  store │ egress 1 ▒▒ │ egress 2 ▒ │ free ............ │     each up to 1/16 of all, and 1/8 of the free part
//! ```
//!
//! So n receivers that take nothing leave at least 8 / (n + 8) of the store free.

use crate::capacity::VNICS;
use crate::fdb::PortIndex;
use crate::link::store::Store;
use crate::slots::{Frame, NOWHERE, Owner};

/// Of all slots and chunks, and of the free ones: the part of one receiver.
const OF_ALL: usize = 16;
const OF_FREE: usize = 8;

/// Slots and chunks that each egress holds.
pub struct Shares(Box<[(u16, u16)]>);

impl Default for Shares {
    fn default() -> Self {
        Self(vec![(0, 0); VNICS].into())
    }
}

impl Shares {
    /// Counts a frame of the store that goes to `egress`; `false` if that holds its part already. The caller
    /// sets the frame's egress.
    pub fn take(&mut self, store: &Store, frame: &Frame, egress: PortIndex) -> bool {
        let Some((slots, chunks)) = self.0.get_mut(usize::from(egress)) else { return true };
        let (all, free) = (store.capacity(), store.room());
        let fits = |held: u16, more: u16, all: usize, free: usize| {
            usize::from(held + more) <= (all / OF_ALL).min(free / OF_FREE)
        };
        let more = chunks_of(frame);
        let may = fits(*slots, 1, all.0, free.0) && fits(*chunks, more, all.1, free.1);
        if may {
            *slots += 1;
            *chunks += more;
        }
        may
    }

    /// Counts a frame out that comes back, if it was counted.
    pub fn give(&mut self, frame: &Frame) {
        if frame.egress != NOWHERE
            && let Some((slots, chunks)) = self.0.get_mut(usize::from(frame.egress))
        {
            *slots = slots.saturating_sub(1);
            *chunks = chunks.saturating_sub(chunks_of(frame));
        }
    }
}

fn chunks_of(frame: &Frame) -> u16 {
    match frame.owner {
        Owner::Pool { chunks, .. } => chunks,
        _ => 0,
    }
}
