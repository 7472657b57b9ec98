//! A tap port: a kernel network interface whose other end we are.

use super::pool::{CHUNK, Pool};
use super::slots::{Frame, FrameRef, Slots};
use super::vhost::{Pending, Receiver};
use crate::fdb::PortIndex;
use crate::frame::{FRAME_MAX, HEADER_MAX, VnetHdr};
use crate::virtio::Span;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::OwnedFd;

/// Bytes a tap's frames may wait in.
const POOL: usize = 4 << 20;
/// Frames a tap may have in flight.
const FRAMES: u16 = 2048;
/// Chunks of the longest frame.
const FRAME_CHUNKS: usize = FRAME_MAX.div_ceil(CHUNK);

/// One descriptor of a tap.
pub struct TapQueue {
    /// The descriptor, non-blocking, `IFF_VNET_HDR` with 12-byte headers.
    pub file: OwnedFd,
    /// It may hold frames: not yet read until it would block.
    pub readable: bool,
}

/// A kernel tap.
pub struct TapPort {
    /// One per queue pair.
    pub queues: Vec<TapQueue>,
    /// Where frames wait.
    pub pool: Pool,
    /// Frames in flight or waiting for tokens.
    pub slots: Slots,
    /// Frames read and not yet sent on: they wait for tokens.
    pub waiting: VecDeque<Pending>,
    /// The last time a read found nothing, or the wake-up.
    pub last_empty: u64,
    /// What is read into when the pool is full: read, counted and dropped.
    spill: Box<[u8]>,
}

/// What a read found.
pub enum Read {
    /// A frame.
    Frame(FrameRef),
    /// A frame, and no room for it: dropped.
    Full,
    /// A frame that is none, dropped.
    Malformed,
    /// Nothing.
    Empty,
    /// The tap is gone.
    Gone(Errno),
}

impl TapPort {
    /// A tap whose descriptors the agent opened.
    pub fn new(files: Vec<OwnedFd>, port: PortIndex, worker: u16, now: u64) -> Self {
        Self {
            queues: files.into_iter().map(|file| TapQueue { file, readable: true }).collect(),
            pool: Pool::new(POOL),
            slots: Slots::new(FRAMES, port, worker),
            waiting: VecDeque::with_capacity(FRAMES as usize),
            last_empty: now,
            spill: vec![0; FRAME_MAX + VnetHdr::LEN].into_boxed_slice(),
        }
    }

    /// What the kernel takes as it is: everything but UDP super-frames, which
    /// kernels before 6.2 refuse.
    pub const RECEIVER: Receiver = Receiver {
        csum: true,
        tso4: true,
        tso6: true,
        ecn: true,
        uso4: false,
        uso6: false,
        mergeable: true,
        header_len: VnetHdr::LEN,
    };

    /// Reads one frame from queue `index`.
    pub fn read(&mut self, index: usize) -> Read {
        let room = self.pool.free() >= FRAME_CHUNKS && self.slots.available() > 0;
        if !room {
            return self.spill(index);
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
            match rustix::io::retry_on_intr(|| rustix::io::readv(&self.queues[index].file, &mut buffers)) {
                Ok(len) => len,
                Err(Errno::AGAIN) => {
                    self.queues[index].readable = false;
                    return Read::Empty;
                }
                Err(error) => return Read::Gone(error),
            }
        };
        let (Some(vnet), Some(len)) = (VnetHdr::read(&header), len.checked_sub(VnetHdr::LEN)) else {
            return Read::Malformed;
        };
        if len == 0 {
            return Read::Malformed;
        }
        let Some(reference) = self.slots.take() else { return Read::Full };
        let frame = reference.get_mut();
        let head = len.min(HEADER_MAX);
        let mut first = self.pool.peek(1);
        if let Some(chunk) = first.next() {
            // SAFETY: the first chunk was just filled with at least `head` bytes.
            frame.bytes[..head].copy_from_slice(unsafe { std::slice::from_raw_parts(chunk, head) });
        }
        drop(first);
        let (first, chunks, spans) = self.pool.take(len, head, &mut frame.spans);
        frame.owner = super::Owner::Pool { first, chunks };
        frame.vnet = vnet;
        frame.len = len as u32;
        frame.head_len = head as u16;
        frame.span_count = spans;
        Read::Frame(reference)
    }

    /// Reads a frame there is no room for, so that the kernel's queue shows
    /// what comes after it.
    fn spill(&mut self, index: usize) -> Read {
        let file = &self.queues[index].file;
        match rustix::io::retry_on_intr(|| rustix::io::read(file, &mut self.spill[..])) {
            Ok(_) => Read::Full,
            Err(Errno::AGAIN) => {
                self.queues[index].readable = false;
                Read::Empty
            }
            Err(error) => Read::Gone(error),
        }
    }

    /// Gives a frame's memory back.
    pub fn give(&mut self, frame: FrameRef) {
        if let super::Owner::Pool { first, chunks } = frame.get().owner {
            self.pool.give(first, chunks);
        }
        self.slots.give(frame);
    }

    /// Writes one frame: `head`, then what `spans` point to.
    ///
    /// # Safety
    /// The spans are mapped.
    pub unsafe fn write(
        &self,
        queue: usize,
        vnet: &VnetHdr,
        head: &[u8],
        spans: &[Span],
    ) -> Result<(), Errno> {
        let mut header = [0u8; VnetHdr::LEN];
        vnet.write(&mut header);
        let mut buffers = [IoSlice::new(&[]); MAX_PARTS];
        buffers[0] = IoSlice::new(&header);
        buffers[1] = IoSlice::new(head);
        for (buffer, span) in buffers[2..].iter_mut().zip(spans) {
            // SAFETY: mapped by contract. A guest may change the bytes meanwhile; the kernel copies
            // them once and nothing here reads them.
            *buffer = IoSlice::new(unsafe { std::slice::from_raw_parts(span.ptr, span.len as usize) });
        }
        loop {
            match rustix::io::writev(&self.queues[queue].file, &buffers[..2 + spans.len()]) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// The flow's queue.
    pub fn queue_for(&self, frame: &Frame) -> usize {
        frame.flow as usize % self.queues.len()
    }
}

/// Header, head, and the most pieces a frame has: its spans and what of the
/// copied bytes belongs to the payload.
const MAX_PARTS: usize = crate::virtio::MAX_SPANS + 3;
