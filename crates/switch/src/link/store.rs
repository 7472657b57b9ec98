//! Frames that wait in a link's own memory, since its source has no ring to wait in.
//!
//! ```text
//!  read ─▶ slot + pool ─┬▶ worker ─▶ ... give back ─▶ free
//!                       └▶ waiting: absorbed while an earlier one waits for tokens ─▶ worker
//! ```

use super::pool::{CHUNK, Pool};
use super::{Pending, Taken};
use crate::fdb::PortIndex;
use crate::frame::{FRAME_MAX, HEADER_MAX};
use crate::slots::{Arrival, FrameRef, Owner, Slots};
use crate::virtio::Span;
use std::collections::VecDeque;

/// Chunks of the longest frame.
pub const FRAME_CHUNKS: usize = FRAME_MAX.div_ceil(CHUNK);

/// Slots for pieces of waiting frames, not for frames.
const FOR_PIECES: usize = 64;
/// Most slots of pieces: the others are for frames.
const MOST_PIECES: usize = 1024;

/// A link's frames, and their memory.
pub struct Store {
    /// Memory of frames.
    pub(super) pool: Pool,
    /// Frames in flight or waiting.
    pub(super) slots: Slots,
    /// Frames that were read and not yet processed, with their arrival.
    waiting: VecDeque<(FrameRef, Arrival)>,
    /// The frame that waits for tokens, before those.
    pending: Option<Pending>,
}

impl Store {
    /// Returns room for `frames` frames with `bytes` bytes of port `port`, which `worker` owns.
    pub fn new(bytes: usize, frames: u16, port: PortIndex, worker: u16) -> Self {
        Self {
            pool: Pool::new(bytes),
            slots: Slots::new(frames, port, worker),
            waiting: VecDeque::with_capacity(frames.into()),
            pending: None,
        }
    }

    /// Whether there is room for a frame and its pieces.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.pool.free() >= FRAME_CHUNKS && self.slots.available() > FOR_PIECES
    }

    /// Returns its slots and chunks.
    pub fn capacity(&self) -> (usize, usize) {
        (self.slots.made(), self.pool.size())
    }

    /// Returns the slots and chunks that are free for frames.
    pub fn room(&self) -> (usize, usize) {
        (self.slots.available().saturating_sub(FOR_PIECES), self.pool.free().saturating_sub(FRAME_CHUNKS))
    }

    /// Copies a frame of at most [`FRAME_MAX`] bytes; `None` without room.
    pub fn keep(&mut self, bytes: &[u8]) -> Option<FrameRef> {
        let (head, rest) = bytes.split_at(bytes.len().min(HEADER_MAX));
        self.gather(head, std::iter::once(rest))
    }

    /// Copies a frame of at most [`FRAME_MAX`] bytes: a head of at most [`HEADER_MAX`] bytes, and the parts of
    /// its body. `None` without room.
    pub fn gather<'a>(
        &mut self,
        head: &[u8],
        body: impl Iterator<Item = &'a [u8]> + Clone,
    ) -> Option<FrameRef> {
        if !self.has_room() {
            return None;
        }
        let reference = self.slots.take()?;
        let frame = reference.get_mut();
        frame.bytes[..head.len()].copy_from_slice(head);
        let (first, chunks, spans) = self.pool.store(body.clone(), &mut frame.spans);
        frame.owner = Owner::Pool { first, chunks };
        frame.len = (head.len() + body.map(<[u8]>::len).sum::<usize>()) as u32;
        frame.head_len = head.len() as u16;
        frame.span_count = spans;
        Some(reference)
    }

    /// Takes in a frame that lies elsewhere, in slot `slot` of a landing: a head of at most [`HEADER_MAX`] bytes, which is copied, and
    /// the places of its body. `None` without room.
    pub fn refer(
        &mut self,
        (landing, slot): (u32, u16),
        head: &[u8],
        body: &[Span],
        len: u32,
    ) -> Option<FrameRef> {
        if !self.has_room() {
            return None;
        }
        let reference = self.slots.take()?;
        let frame = reference.get_mut();
        frame.bytes[..head.len()].copy_from_slice(head);
        frame.spans[..body.len()].copy_from_slice(body);
        frame.owner = Owner::Landed { landing, slot };
        frame.len = len;
        frame.head_len = head.len() as u16;
        frame.span_count = body.len() as u16;
        Some(reference)
    }

    /// Lets a frame wait behind those that were read before.
    #[inline]
    pub fn absorb(&mut self, frame: FrameRef, arrival: Arrival) {
        self.waiting.push_back((frame, arrival));
    }

    /// Returns the frame that waits first.
    #[inline]
    pub fn take_waiting(&mut self) -> Option<Taken> {
        if let Some(pending) = self.pending.take() {
            return Some(Taken::PutBack(pending));
        }
        self.waiting.pop_front().map(|(frame, arrival)| new(frame, arrival))
    }

    /// Whether a frame waits.
    #[inline]
    pub fn has_waiting(&self) -> bool {
        self.pending.is_some() || !self.waiting.is_empty()
    }

    /// Puts a frame back that waits for tokens: it is the first of those that wait.
    ///
    /// # Panics
    /// In debug builds, if one waits already.
    #[inline]
    pub fn put_back(&mut self, pending: Pending) {
        debug_assert!(self.pending.is_none(), "one waits already");
        self.pending = Some(pending);
    }

    /// Whether a waiting frame may be sent, or be sent in parts.
    pub fn may_leave(&self, in_parts: bool) -> bool {
        !in_parts || self.slots.available() > 0 && self.slots.pieces() < MOST_PIECES
    }

    /// Returns a slot for a piece of a frame.
    pub fn slot_for_piece(&mut self) -> Option<FrameRef> {
        self.slots.take().inspect(|_| self.slots.note_piece())
    }

    /// Takes back the memory of a frame or a piece; the last piece returns the whole's. Returns the landing and the slot of one
    /// that [lies elsewhere](Self::refer).
    #[inline]
    pub fn give_back(&mut self, reference: FrameRef) -> Option<(u32, u16)> {
        let owner = reference.get().owner;
        self.slots.give(reference);
        match owner {
            Owner::Pool { first, chunks } => self.pool.give(first, chunks),
            Owner::Piece { whole } => {
                self.slots.end_piece();
                if whole.get().release() {
                    return self.give_back(whole);
                }
            }
            Owner::Landed { landing, slot } => return Some((landing, slot)),
            owner => debug_assert!(false, "{owner:?} is of another link"),
        }
        None
    }

    /// Takes out a frame that waits; `None` if none remains.
    pub fn take_pending(&mut self) -> Option<Pending> {
        let read = || {
            self.waiting.pop_front().map(|(frame, arrival)| Pending { frame, arrival, sent: 0, number: 0 })
        };
        self.pending.take().or_else(read)
    }

    /// Returns the number of frames taken and not given back.
    pub fn in_flight(&self) -> usize {
        self.slots.in_flight()
    }

    /// Returns how many of these wait, unsent.
    pub fn waiting(&self) -> usize {
        self.waiting.len() + usize::from(self.pending.is_some_and(|pending| pending.sent == 0))
    }

    /// Takes slots as if receivers held so many frames.
    #[cfg(test)]
    pub fn hold(&mut self, frames: usize) -> Vec<FrameRef> {
        (0..frames).filter_map(|_| self.slots.take()).collect()
    }

    /// Frees them.
    #[cfg(test)]
    pub fn free(&mut self, held: Vec<FrameRef>) {
        held.into_iter().for_each(|frame| self.slots.give(frame));
    }
}

/// Returns a frame that was just read.
#[inline]
pub fn new(frame: FrameRef, arrival: Arrival) -> Taken {
    Taken::New(Pending { frame, arrival, sent: 0, number: 0 }, 1)
}
