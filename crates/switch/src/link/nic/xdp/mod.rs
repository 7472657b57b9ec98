//! AF_XDP: frames in memory that the kernel shares, without a system call for each.
//!
//! ```text
//!  NIC ─ program: VLANs of the contract ─▶ receive ring ─▶ Received ─▶ store        chunk ─▶ fill ring
//!           └ a vNIC of another worker ──▶ receive ring ─▶ Received ─▶ its store    chunk ─▶ owner ─▶ fill ring
//!  NIC ◀──────────────── call, if asked for ── send ring ◀─ frame with its tag      chunk ◀─ completion ring
//! ```
//!
//! The agent makes the sockets, for each queue of the device one, or one of each worker where the driver copies frames. It registers their
//! memory, binds them, and loads the program. The first socket of a queue is its owner's, which has the rings of free and sent chunks. Guests' memory is never shared: a frame is
//! copied once out of it, and once into it. A chunk has one place: with us, in a ring, or with the kernel.
//!
//! - [`form`]: how many chunks and entries there are
//! - [`ring`]: the memory shared with the kernel
//! - `chunks`: their way back to the kernel

mod chunks;
pub mod form;
pub mod ring;
#[cfg(test)]
mod tests;

use super::packet::Received;
use super::wire::{ADDRESSES, Room, Size, TAG};
use crate::frame::VnetHdr;
use crate::frame::headers::ETHERTYPE_VLAN;
use crate::link::vxlan::{Counters, OnWire};
use crate::slots::NEVER;
use chunks::Chunks;
use form::{CHUNK, ENTRIES, Form};
use ring::{Desc, Frames, Kind, Ring};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use tidegate_evidence::DropReason;

/// Most frames of a look into a ring.
const BATCH: u32 = 64;
/// Chunks to send that only frames with a deadline take.
const FOR_URGENT: usize = ENTRIES as usize / 4;
/// Most calls of a flush: in copy mode the kernel sends up to 32 frames by one.
const CALLS: u32 = ENTRIES / 32;

/// The sockets of one worker, one of each queue, and what arrives by them.
pub struct Receiver {
    /// The sockets.
    pub sockets: Vec<OwnedFd>,
    /// Their frames.
    pub incoming: Incoming,
}

/// Maps the receiving rings of all queues, `sockets` queue by queue, and gives the kernel chunks; returns the part of each worker that
/// has sockets, the owner's first.
///
/// # Errors
/// A socket is no bound AF_XDP socket, a memory is not of the form, or the queues have different numbers of sockets.
pub fn receivers(sockets: Vec<OwnedFd>, memories: &[OwnedFd]) -> Result<Vec<Receiver>, Errno> {
    let each = sockets.len().checked_div(memories.len()).ok_or(Errno::INVAL)?;
    let form = Form::new(each).filter(|_| each * memories.len() == sockets.len()).ok_or(Errno::INVAL)?;
    let mut parts: Vec<(Vec<OwnedFd>, Vec<Queue>)> = (0..each).map(|_| (vec![], vec![])).collect();
    let mut sockets = sockets.into_iter();
    for memory in memories {
        let of_queue: Vec<OwnedFd> = sockets.by_ref().take(each).collect();
        let fill = Ring::map(of_queue[0].as_fd(), Kind::Fill, form.to_receive())?;
        let chunks = Chunks::of_queue(fill, form);
        for (place, ((socket, chunks), (sockets, queues))) in
            of_queue.into_iter().zip(chunks).zip(&mut parts).enumerate()
        {
            let receive = Ring::map(socket.as_fd(), Kind::Receive, form.entries(place))?;
            queues.push(Queue { receive, chunks, frames: Frames::map(memory.as_fd(), form)? });
            sockets.push(socket);
        }
    }
    let receiver = |(sockets, queues)| Receiver { sockets, incoming: Incoming::of(queues) };
    Ok(parts.into_iter().map(receiver).collect())
}

/// Frames of one queue of the device.
struct Queue {
    receive: Ring<Desc>,
    chunks: Chunks,
    frames: Frames,
}

/// Frames that arrived.
pub struct Incoming {
    queues: Box<[Queue]>,
    /// The queue in whose ring frames are.
    queue: usize,
    /// How many of these are to be taken.
    left: u32,
    /// The chunk of the frame that was taken last.
    taken: Option<u64>,
}

impl Incoming {
    fn of(queues: Vec<Queue>) -> Self {
        Self { queues: queues.into(), queue: 0, left: 0, taken: None }
    }

    /// Whether all frames of the last look were taken.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.left == 0
    }

    /// Looks for frames in a queue; returns whether there may be more afterwards.
    ///
    /// # Errors
    /// There are none (`EAGAIN`), or a chunk was in two places (`EFAULT`).
    pub fn receive(&mut self, queue: usize) -> Result<bool, Errno> {
        self.give_chunk();
        let here = self.queues.get_mut(queue).ok_or(Errno::BADF)?;
        here.chunks.collect();
        if here.chunks.is_broken() {
            return Err(Errno::FAULT);
        }
        let filled = here.receive.filled();
        if filled == 0 {
            return Err(Errno::AGAIN);
        }
        (self.queue, self.left) = (queue, filled.min(BATCH));
        Ok(true)
    }

    /// Takes the next frame; `None` without one.
    ///
    /// # Errors
    /// It has no tag.
    #[inline]
    pub fn take_next(&mut self) -> Option<Result<Received<'_>, DropReason>> {
        self.give_chunk();
        self.left = self.left.checked_sub(1)?;
        let queue = self.queues.get_mut(self.queue)?;
        let frame = queue.receive.pop()?;
        queue.receive.release();
        self.taken = Some(frame.at);
        let bytes = queue.frames.bytes(frame.at, frame.len as usize);
        Some(bytes.ok_or(DropReason::Malformed).and_then(untag))
    }

    /// Gives back the chunk of the frame that was taken last.
    #[inline]
    fn give_chunk(&mut self) {
        let Some(at) = self.taken.take() else { return };
        self.queues[self.queue].chunks.give(at);
    }

    /// Gives the kernel the chunks that other workers gave back, and has it called for the queues whose driver waits for chunks. The
    /// driver asks for that after it found none: it would never look again.
    #[inline]
    pub fn collect(&mut self, mut call: impl FnMut(usize)) {
        for (number, queue) in self.queues.iter_mut().enumerate() {
            queue.chunks.collect();
            if queue.chunks.needs_call() {
                call(number);
            }
        }
    }

    /// Whether it gives the kernel chunks.
    pub fn is_owner(&self) -> bool {
        self.queues.iter().any(|queue| queue.chunks.is_own())
    }

    /// Whether the owner is to be told of chunks given back; it is told once of them.
    #[inline]
    pub fn is_due(&mut self) -> bool {
        // Each of them, also after the first that is.
        self.queues.iter_mut().fold(false, |due, queue| queue.chunks.is_due() | due)
    }
}

/// Takes the tag out of a frame, by moving the addresses over it.
fn untag(bytes: &mut [u8]) -> Result<Received<'_>, DropReason> {
    let tag = bytes.get(ADDRESSES..).and_then(|rest| rest.first_chunk::<TAG>());
    let [t0, t1, v0, v1] = *tag.ok_or(DropReason::Malformed)?;
    if u16::from_be_bytes([t0, t1]) != ETHERTYPE_VLAN {
        return Err(DropReason::UnknownSegment);
    }
    bytes.copy_within(..ADDRESSES, TAG);
    let vlan = u16::from_be_bytes([v0, v1]) & 0xfff;
    Ok(Received { vnet: VnetHdr::default(), vlan, bytes: &bytes[TAG..] })
}

/// Frames that leave, by the device's first queue.
pub struct Outgoing {
    socket: OwnedFd,
    send: Ring<Desc>,
    completion: Ring<u64>,
    frames: Frames,
    /// Chunks that are not in use.
    free: Vec<u64>,
    /// There was no room for a frame since the last flush.
    is_full: bool,
    /// Keeps the program at the device, should the agent end.
    _program: OwnedFd,
}

/// Room for a frame.
pub struct Place<'a> {
    outgoing: &'a mut Outgoing,
    counters: &'a mut Counters,
    on_wire: &'a mut OnWire,
    is_urgent: bool,
}

impl Outgoing {
    /// Maps the rings of a socket, and its memory.
    ///
    /// # Errors
    /// As [`receivers`].
    pub fn new(socket: OwnedFd, memory: BorrowedFd<'_>, form: Form, program: OwnedFd) -> Result<Self, Errno> {
        Ok(Self {
            send: Ring::map(socket.as_fd(), Kind::Send, ENTRIES)?,
            completion: Ring::map(socket.as_fd(), Kind::Completion, ENTRIES)?,
            frames: Frames::map(memory, form)?,
            free: form.sent().collect(),
            is_full: false,
            socket,
            _program: program,
        })
    }

    /// Returns the room for a frame with a deadline (ns), or [`NEVER`].
    #[inline]
    pub fn place<'a>(
        &'a mut self,
        deadline: u64,
        counters: &'a mut Counters,
        on_wire: &'a mut OnWire,
    ) -> Place<'a> {
        Place { outgoing: self, counters, on_wire, is_urgent: deadline != NEVER }
    }

    /// Whether the kernel did not take all frames.
    #[inline]
    pub fn has_unsent(&self) -> bool {
        self.send.untaken() > 0 && self.send.needs_wakeup()
    }

    /// Shows posted frames to the kernel, and calls it if it asks for that.
    pub fn flush(&mut self, counters: &mut Counters) {
        self.is_full = false;
        self.push_out(counters);
    }

    fn push_out(&mut self, counters: &mut Counters) {
        self.send.publish();
        for _ in 0..CALLS {
            let before = self.send.untaken();
            if before == 0 || !self.send.needs_wakeup() {
                break;
            }
            match rustix::net::send(&self.socket, &[], rustix::net::SendFlags::DONTWAIT) {
                // The device's queue is full, or the kernel has sent its part.
                Ok(_) | Err(Errno::AGAIN | Errno::NOBUFS | Errno::INTR) if self.send.untaken() < before => {}
                // It took a frame, and dropped it.
                Err(Errno::BUSY) if self.send.untaken() < before => {
                    counters.drop(DropReason::UplinkRefused, 1);
                }
                // The device is down: frames wait, and posts are refused.
                _ => break,
            }
        }
        while let Some(at) = self.completion.pop() {
            self.free.push(at);
        }
        self.completion.release();
    }

    /// Returns the least free chunks that a frame leaves.
    fn reserved(is_urgent: bool) -> usize {
        if is_urgent { 0 } else { FOR_URGENT }
    }
}

impl Room for Place<'_> {
    #[inline]
    fn room(&mut self, len: usize, size: Size) -> Option<&mut [u8]> {
        let reserved = Outgoing::reserved(self.is_urgent);
        let outgoing = &mut *self.outgoing;
        if outgoing.free.len() <= reserved {
            if outgoing.is_full {
                // One call of the kernel a loop.
                return None;
            }
            outgoing.push_out(self.counters);
            outgoing.is_full = outgoing.free.len() <= reserved;
        }
        if outgoing.free.len() <= reserved || outgoing.send.room() == 0 || len > CHUNK {
            return None;
        }
        let at = outgoing.free.pop()?;
        outgoing.send.push(Desc { at, len: len as u32, options: 0 });
        self.counters.frames += u64::from(size.frames);
        self.counters.bytes += u64::from(size.bytes);
        self.on_wire.add_frames(size.frames, size.bytes);
        outgoing.frames.bytes(at, len)
    }
}
