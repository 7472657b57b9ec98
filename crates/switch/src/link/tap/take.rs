//! From the kernel, by a read for each frame.

use super::super::{Absorbed, Pending, Taken};
use super::Tx;
use super::pool::CHUNK;
use crate::clock::clock;
use crate::frame::{FRAME_MAX, HEADER_MAX, VnetHdr};
use crate::slots::Arrival;
use crate::slots::arrival::UnseenSince;
use crate::slots::{Frame, FrameRef, Owner};
use rustix::io::Errno;
use std::io::IoSliceMut;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use tidegate_evidence::DropReason;

/// Chunks of the longest frame.
const FRAME_CHUNKS: usize = FRAME_MAX.div_ceil(CHUNK);

/// Slots for pieces of waiting frames, not for frames.
const FOR_PIECES: usize = 64;
/// Most slots of pieces: the others are for frames.
const MOST_PIECES: usize = 1024;

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
        self.pending.is_some() || !self.waiting.is_empty() || self.readable.iter().any(|readable| *readable)
    }

    pub(in crate::link) fn take(&mut self) -> Taken {
        if let Some(pending) = self.pending.take() {
            return Taken::PutBack(pending);
        }
        if let Some((frame, arrival)) = self.waiting.pop_front() {
            return Taken::New(Pending { frame, arrival, sent: 0, number: 0 }, 1);
        }
        match self.read_next() {
            Read::Frame(frame, arrival) => Taken::New(Pending { frame, arrival, sent: 0, number: 0 }, 1),
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
                    self.waiting.push_back((frame, arrival));
                }
                Read::Dropped(DropReason::PoolFull) => absorbed.full += 1,
                Read::Dropped(_) => absorbed.malformed += 1,
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
        for _ in 0..self.files.len() {
            let queue = self.next;
            self.next = (queue + 1) % self.files.len();
            if !self.readable[queue] {
                continue;
            }
            match self.read(queue) {
                Read::Empty => {
                    self.readable[queue] = false;
                    self.unseen[queue].polled(self.now);
                }
                Read::Gone(error) => {
                    self.readable[queue] = false;
                    return Read::Gone(error);
                }
                read => return read,
            }
        }
        Read::Empty
    }

    fn read(&mut self, queue: usize) -> Read {
        if !self.may_look_ahead() {
            return self.spill(queue);
        }
        let mut header = [0u8; VnetHdr::LEN];
        let len = {
            let mut buffers: [IoSliceMut<'_>; FRAME_CHUNKS + 1] =
                std::array::from_fn(|_| IoSliceMut::new(&mut []));
            buffers[0] = IoSliceMut::new(&mut header);
            for (buffer, chunk) in buffers[1..].iter_mut().zip(self.pool.peek(FRAME_CHUNKS)) {
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
        let Some(reference) = self.slots.take() else { return Read::Dropped(DropReason::PoolFull) };
        let frame = reference.get_mut();
        let head = len.min(HEADER_MAX);
        if let Some(chunk) = self.pool.peek(1).next() {
            // SAFETY: the first chunk was just filled with at least `head` bytes.
            frame.bytes[..head].copy_from_slice(unsafe { std::slice::from_raw_parts(chunk, head) });
        }
        let (first, chunks, spans) = self.pool.take(len, head, &mut frame.spans);
        frame.owner = Owner::Pool { first, chunks };
        frame.vnet = vnet;
        frame.len = len as u32;
        frame.head_len = head as u16;
        frame.span_count = spans;
        // Present by now: the kernel does not tell since when.
        Read::Frame(reference, self.unseen[queue].arrival(clock()))
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

    /// Whether there is room for a frame and its pieces.
    #[inline]
    pub(in crate::link) fn may_look_ahead(&self) -> bool {
        self.pool.free() >= FRAME_CHUNKS && self.slots.available() > FOR_PIECES
    }

    #[inline]
    pub(in crate::link) fn put_back(&mut self, pending: Pending) {
        debug_assert!(self.pending.is_none(), "one waits already");
        self.pending = Some(pending);
    }

    pub(in crate::link) fn may_leave(&self, _frame: &Frame, in_parts: bool) -> bool {
        !in_parts || self.slots.available() > 0 && self.slots.pieces() < MOST_PIECES
    }

    pub(in crate::link) fn slot_for_piece(&mut self, _whole: &Frame) -> Option<FrameRef> {
        self.slots.take().inspect(|_| self.slots.note_piece())
    }

    pub(in crate::link) fn give_back(&mut self, reference: FrameRef) {
        let owner = reference.get().owner;
        self.slots.give(reference);
        match owner {
            Owner::Pool { first, chunks } => self.pool.give(first, chunks),
            Owner::Piece { whole } => {
                self.slots.end_piece();
                if whole.get().release() {
                    self.give_back(whole);
                }
            }
            owner => debug_assert!(false, "{owner:?} does not belong to a tap"),
        }
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

    pub(in crate::link) fn take_pending(&mut self) -> Option<Pending> {
        let read = || {
            self.waiting.pop_front().map(|(frame, arrival)| Pending { frame, arrival, sent: 0, number: 0 })
        };
        self.pending.take().or_else(read)
    }

    pub(in crate::link) fn in_flight(&self) -> usize {
        self.slots.in_flight()
    }

    pub(in crate::link) fn waiting(&self) -> usize {
        self.waiting.len() + usize::from(self.pending.is_some_and(|pending| pending.sent == 0))
    }

    pub(in crate::link) fn count_as_arrived(&mut self, now: u64) {
        self.unseen.fill(UnseenSince::from(now));
    }

    /// Only for unreadable queues: the others have a known time.
    #[inline]
    pub(in crate::link) fn note_sleep(&mut self, since: u64, woke: u64) {
        let silent = self.unseen.iter_mut().zip(&self.readable).filter(|(_, readable)| !**readable);
        silent.for_each(|(unseen, _)| unseen.note_sleep(since, woke));
    }

    /// No read frame waits, and each queue was read until it would block: the next frame makes its
    /// descriptor readable.
    #[inline]
    pub(in crate::link) fn can_be_quiet(&self) -> bool {
        self.pending.is_none() && self.waiting.is_empty() && !self.readable.contains(&true)
    }

    #[inline]
    pub(in crate::link) fn note_readable(&mut self, queue: usize, since: u64, woke: u64) {
        if let Some(readable) = self.readable.get_mut(queue)
            && !std::mem::replace(readable, true)
        {
            self.unseen[queue].note_sleep(since, woke);
        }
    }

    #[inline]
    pub(in crate::link) fn note_empty(&mut self, now: u64) {
        let silent = self.unseen.iter_mut().zip(&self.readable).filter(|(_, readable)| !**readable);
        silent.for_each(|(unseen, _)| unseen.polled(now));
    }
}

fn read_error(error: Errno) -> String {
    format!("the tap cannot be read: {error}")
}
