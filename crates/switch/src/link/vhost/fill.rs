//! Receive buffers taken a few at a time, filled with a frame each, and given back together.
//!
//! ```text
//!  rx ring ─ pop_singles ─▶ next ▶ next ▶ next ... ─▶ finish: filled ones completed, the others put back
//! ```
//!
//! No other code may use the ring in between: [`Rx`](super::Rx) finishes first.

use super::Ring;
use super::copy::{COMPLETE, write_parts};
use crate::slots::Frame;
use crate::virtio::{Single, Span};

/// Buffers taken at a time.
const MOST: usize = 16;

/// Buffers of one ring.
#[derive(Default)]
pub(super) struct Fill {
    /// Their queue pair.
    queue: u16,
    taken: u8,
    filled: u8,
    /// Filled ones have the written length.
    buffers: [Single; MOST],
}

impl Fill {
    /// Writes frames without requests into buffers of `queue`, up to the first whose rest is not in one
    /// piece, or without a fitting buffer; returns their number. Takes at most `ahead` buffers for them and
    /// later ones.
    #[inline]
    pub(super) fn post<'a>(
        &mut self,
        ring: &mut Ring,
        queue: u16,
        header_len: usize,
        frames: impl Iterator<Item = &'a Frame>,
        ahead: usize,
    ) -> u32 {
        if self.queue != queue {
            debug_assert!(self.taken == 0, "finished before another ring is filled");
            (self.queue, self.taken, self.filled) = (queue, 0, 0);
        }
        let mut posted = 0;
        for frame in frames {
            let rest = match frame.payload() {
                [] => Span::EMPTY,
                [rest] => *rest,
                _ => break,
            };
            if self.filled == self.taken {
                self.take(ring, ahead);
            }
            let needed = header_len as u32 + frame.len;
            let buffer = self.buffers.get_mut(usize::from(self.filled)).filter(|_| self.filled < self.taken);
            let Some(buffer) = buffer.filter(|buffer| buffer.len >= needed) else { break };
            // SAFETY: the buffer was popped from this ring, whose memory stays mapped while its port runs,
            // and has room for head and rest, which are the frame. The source's memory stays mapped while
            // this worker holds its frame.
            unsafe { write_parts(buffer.ptr, header_len, &COMPLETE, frame.head(), rest) };
            buffer.len = needed;
            self.filled += 1;
            posted += 1;
        }
        posted
    }

    /// Takes up to `ahead` buffers, replacing filled ones.
    #[inline(never)]
    fn take(&mut self, ring: &mut Ring, ahead: usize) {
        self.finish(ring);
        let ahead = ahead.clamp(1, MOST);
        // The next pop of a chain reports an invalid index.
        if usize::from(ring.queue.pending()) >= ahead || ring.queue.available().is_ok() {
            self.taken = ring.queue.pop_singles::<true>(&mut self.buffers[..ahead]) as u8;
        }
    }

    /// Returns the queue of the buffers.
    #[inline]
    pub(super) fn queue(&self) -> Option<u16> {
        (self.taken > 0).then_some(self.queue)
    }

    /// Gives all buffers back to their ring.
    #[inline]
    pub(super) fn finish(&mut self, ring: &mut Ring) {
        let (filled, unused) = self.buffers[..usize::from(self.taken)].split_at(usize::from(self.filled));
        if !unused.is_empty() {
            ring.queue.put_back(unused);
        }
        if !filled.is_empty() {
            ring.queue.complete_all(filled.iter().map(|buffer| (buffer.head, buffer.len)));
            ring.dirty = true;
        }
        (self.taken, self.filled) = (0, 0);
    }
}
