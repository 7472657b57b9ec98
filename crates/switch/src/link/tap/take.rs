//! From the kernel, by a read for each frame.

use super::super::pool::CHUNK;
use super::super::store::{self, FRAME_CHUNKS};
use super::super::{Absorbed, Taken};
use super::Tx;
use crate::clock::clock;
use crate::frame::{HEADER_MAX, VnetHdr};
use crate::slots::{Arrival, FrameRef, Owner};
use rustix::io::Errno;
use std::io::IoSliceMut;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use tidegate_evidence::DropReason;

/// The result of a read.
enum Read {
    /// A frame, and when it arrived.
    Frame(FrameRef, Arrival),
    /// An invalid frame, or one without room.
    Dropped(DropReason),
    /// Nothing.
    Empty,
    /// The tap is gone.
    Gone(Errno),
}

impl Tx {
    /// All queues count as one: their frames wait in one pool.
    #[inline]
    pub(in crate::link) fn queues(&self) -> usize {
        1
    }

    pub(in crate::link) fn files(&self) -> &[Arc<OwnedFd>] {
        &self.files
    }

    #[inline]
    pub(in crate::link) fn poll(&mut self, now: u64) -> bool {
        self.now = now;
        self.store.has_waiting() || self.readiness.any()
    }

    pub(in crate::link) fn take(&mut self) -> Taken {
        if let Some(waiting) = self.store.take_waiting() {
            return waiting;
        }
        match self.read_next() {
            Read::Frame(frame, arrival) => store::new(frame, arrival),
            Read::Dropped(reason) => Taken::Dropped(reason, 1),
            Read::Empty => Taken::Nothing,
            Read::Gone(error) => Taken::Broken(read_error(error)),
        }
    }

    pub(in crate::link) fn absorb(&mut self, most: usize) -> Absorbed {
        let mut absorbed = Absorbed::default();
        while absorbed.frames < most {
            match self.read_next() {
                Read::Frame(frame, arrival) => {
                    absorbed.bytes += frame.get().len as usize;
                    self.store.absorb(frame, arrival);
                }
                Read::Dropped(reason) => absorbed.dropped[reason as usize] += 1,
                Read::Empty => break,
                Read::Gone(error) => {
                    absorbed.broken = Some(read_error(error));
                    break;
                }
            }
            absorbed.frames += 1;
        }
        absorbed
    }

    /// Reads from one queue after the other while any is readable.
    fn read_next(&mut self) -> Read {
        while let Some(queue) = self.readiness.turn() {
            match self.read(queue) {
                Read::Empty => self.readiness.drained(queue, self.now),
                Read::Gone(error) => {
                    self.readiness.gone(queue);
                    return Read::Gone(error);
                }
                read => return read,
            }
        }
        Read::Empty
    }

    fn read(&mut self, queue: usize) -> Read {
        if !self.store.has_room() {
            return self.spill(queue);
        }
        let mut header = [0u8; VnetHdr::LEN];
        let len = {
            let mut buffers: [IoSliceMut<'_>; FRAME_CHUNKS + 1] =
                std::array::from_fn(|_| IoSliceMut::new(&mut []));
            buffers[0] = IoSliceMut::new(&mut header);
            for (buffer, chunk) in buffers[1..].iter_mut().zip(self.store.pool.peek(FRAME_CHUNKS)) {
                // SAFETY: a free chunk of the pool: CHUNK bytes that no other code uses.
                *buffer = IoSliceMut::new(unsafe { std::slice::from_raw_parts_mut(chunk, CHUNK) });
            }
            match rustix::io::retry_on_intr(|| rustix::io::readv(&*self.files[queue], &mut buffers)) {
                Ok(len) => len,
                Err(Errno::AGAIN) => return Read::Empty,
                Err(error) => return Read::Gone(error),
            }
        };
        let (Some(vnet), Some(len @ 1..)) = (VnetHdr::read(&header), len.checked_sub(VnetHdr::LEN)) else {
            return Read::Dropped(DropReason::Malformed);
        };
        let Some(reference) = self.store.slots.take() else { return Read::Dropped(DropReason::PoolFull) };
        let frame = reference.get_mut();
        let head = len.min(HEADER_MAX);
        if let Some(chunk) = self.store.pool.peek(1).next() {
            // SAFETY: the first chunk was just filled with at least `head` bytes.
            frame.bytes[..head].copy_from_slice(unsafe { std::slice::from_raw_parts(chunk, head) });
        }
        let (first, chunks, spans) = self.store.pool.take(len, head, &mut frame.spans);
        frame.owner = Owner::Pool { first, chunks };
        frame.vnet = vnet;
        frame.len = len as u32;
        frame.head_len = head as u16;
        frame.span_count = spans;
        Read::Frame(reference, self.readiness.arrival(queue, clock()))
    }

    /// Reads a frame without room, so that the kernel's queue advances.
    fn spill(&mut self, queue: usize) -> Read {
        let file = &self.files[queue];
        match rustix::io::retry_on_intr(|| rustix::io::read(&**file, &mut self.spill[..])) {
            Ok(_) => Read::Dropped(DropReason::PoolFull),
            Err(Errno::AGAIN) => Read::Empty,
            Err(error) => Read::Gone(error),
        }
    }

    /// Takes slots as if receivers held so many frames.
    #[cfg(test)]
    pub fn hold(&mut self, frames: usize) -> Vec<FrameRef> {
        self.store.hold(frames)
    }

    /// Frees them.
    #[cfg(test)]
    pub fn free(&mut self, held: Vec<FrameRef>) {
        self.store.free(held);
    }

    /// No read frame waits, and each queue was read until it would block: the next frame makes its
    /// descriptor readable.
    #[inline]
    pub(in crate::link) fn can_be_quiet(&self) -> bool {
        !self.store.has_waiting() && !self.readiness.any()
    }
}

fn read_error(error: Errno) -> String {
    format!("the tap cannot be read: {error}")
}
