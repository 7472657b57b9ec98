//! From the kernel, by a read for each frame.

use super::super::pool::CHUNK;
use super::super::reading::{Read, Reads};
use super::super::store::{FRAME_CHUNKS, Store};
use super::Tx;
use crate::clock::clock;
use crate::frame::{HEADER_MAX, VnetHdr};
use crate::slots::Owner;
use rustix::io::Errno;
use std::io::IoSliceMut;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use tidegate_evidence::DropReason;

impl Reads for Tx {
    fn store(&mut self) -> &mut Store {
        &mut self.store
    }

    /// Reads from one queue after the other while any is readable.
    fn read(&mut self) -> Read {
        while let Some(queue) = self.readiness.turn() {
            match self.read_queue(queue) {
                Ok(Some(read)) => return read,
                Ok(None) => self.readiness.drained(queue, self.now),
                Err(error) => {
                    self.readiness.gone(queue);
                    return Read::Gone(format!("the tap cannot be read: {error}"));
                }
            }
        }
        Read::Empty
    }
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

    /// Reads from one queue; `None` if that is empty.
    fn read_queue(&mut self, queue: usize) -> Result<Option<Read>, Errno> {
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
                Err(Errno::AGAIN) => return Ok(None),
                Err(error) => return Err(error),
            }
        };
        let (Some(vnet), Some(len @ 1..)) = (VnetHdr::read(&header), len.checked_sub(VnetHdr::LEN)) else {
            return Ok(Some(Read::Dropped(DropReason::Malformed)));
        };
        let Some(reference) = self.store.slots.take() else {
            return Ok(Some(Read::Dropped(DropReason::PoolFull)));
        };
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
        Ok(Some(Read::Frame(reference, self.readiness.arrival(queue, clock()))))
    }

    /// Reads a frame without room, so that the kernel's queue advances.
    fn spill(&mut self, queue: usize) -> Result<Option<Read>, Errno> {
        let file = &self.files[queue];
        match rustix::io::retry_on_intr(|| rustix::io::read(&**file, &mut self.spill[..])) {
            Ok(_) => Ok(Some(Read::Dropped(DropReason::PoolFull))),
            Err(Errno::AGAIN) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Takes slots as if receivers held so many frames.
    #[cfg(test)]
    pub fn hold(&mut self, frames: usize) -> Vec<crate::slots::FrameRef> {
        self.store.hold(frames)
    }

    /// Frees them.
    #[cfg(test)]
    pub fn free(&mut self, held: Vec<crate::slots::FrameRef>) {
        self.store.free(held);
    }

    /// No read frame waits, and each queue was read until it would block: the next frame makes its
    /// descriptor readable.
    #[inline]
    pub(in crate::link) fn can_be_quiet(&self) -> bool {
        !self.store.has_waiting() && !self.readiness.any()
    }
}
