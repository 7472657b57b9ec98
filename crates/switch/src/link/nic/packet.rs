//! The system calls of a packet socket (packet(7)): many frames by one call.
//!
//! ```text
//!  socket ─ recvmmsg ─▶ Incoming ─▶ Received: virtio header, VLAN that the kernel took out, frame
//!  socket ◀ sendmmsg ── Outgoing ◀─ virtio header, frame with its tag
//! ```
//!
//! The agent makes the socket: bound to a device, with a filter for the VLANs of the contract, non-blocking,
//! `PACKET_VNET_HDR`, `PACKET_AUXDATA`. The kernel takes the tag out of each frame that arrives, and tells it.

use super::queue::Queue;
use super::wire::{Room, Size};
use crate::clock::clock;
use crate::frame::headers::ETHERTYPE_VLAN;
use crate::frame::{FRAME_MAX, VnetHdr};
use crate::link::vxlan::sockets::{CONTROL, Calls, Controls, MESSAGES, last_error};
use crate::link::vxlan::{Counters, OnWire};
use crate::slots::NEVER;
use rustix::io::Errno;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use tidegate_evidence::DropReason;

/// Most frames of a call that receives: so many of the longest are copied in some 60 us.
const RECEIVED: usize = 8;
/// A receive buffer (bytes): a tag that the kernel left in makes a frame too long.
const BUFFER: usize = VnetHdr::LEGACY_LEN + FRAME_MAX + 1;
/// From one buffer to the next (bytes), so that their beginnings fall into different sets of a cache.
const STRIDE: usize = BUFFER.next_multiple_of(4096) + 192;

/// Bytes that wait for the socket, and frames.
const OTHERS: (usize, usize) = (1 << 19, 512);
/// The same, of frames with a deadline.
const URGENT: (usize, usize) = (1 << 18, 256);
/// Longest wait of a frame without a deadline for the socket (ns): as long as a receiver may hold a frame.
const HOLD: u64 = 10_000_000;

/// `PACKET_AUXDATA` and its structure's status bits (linux/if_packet.h).
const AUXDATA: libc::c_int = 8;
const TP_STATUS_VLAN_VALID: u32 = 1 << 4;
const TP_STATUS_VLAN_TPID_VALID: u32 = 1 << 6;
/// Places in `struct tpacket_auxdata`: status, tag, its type.
const STATUS: usize = 0;
const TCI: usize = 16;
const TPID: usize = 18;

/// Received frames, in own memory.
pub struct Incoming {
    memory: Box<[u8]>,
    calls: Box<Calls>,
    count: usize,
    /// The next frame.
    next: usize,
}

/// A received frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received<'a> {
    /// Its unfinished checksum, and the segments of a super-frame.
    pub vnet: VnetHdr,
    /// The VLAN of its tag, 0 to 4095.
    pub vlan: u16,
    /// The frame without the tag.
    pub bytes: &'a [u8],
}

impl Default for Incoming {
    /// Returns an empty batch. Pages are touched when first used.
    fn default() -> Self {
        Self { memory: vec![0; RECEIVED * STRIDE].into(), calls: Calls::new(), count: 0, next: 0 }
    }
}

impl Incoming {
    /// Whether all received frames were taken.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.next == self.count
    }

    /// Receives frames in place of those before; returns whether there may be more.
    ///
    /// # Errors
    /// There is none (`EAGAIN`), or the kernel's reason.
    pub fn receive(&mut self, socket: BorrowedFd<'_>) -> Result<bool, Errno> {
        (self.count, self.next) = (0, 0);
        for (at, buffer) in self.memory.chunks_exact_mut(STRIDE).enumerate() {
            self.calls.point(at, buffer.as_mut_ptr(), BUFFER, 0, CONTROL);
        }
        let headers = self.calls.headers.as_mut_ptr();
        // SAFETY: the headers lead to buffers and control messages of those lengths, which are exclusive during
        // the call.
        let result = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                headers,
                RECEIVED as libc::c_uint,
                libc::MSG_DONTWAIT as _,
                std::ptr::null_mut(),
            )
        };
        self.count = usize::try_from(result).map_err(|_| last_error())?;
        Ok(self.count == RECEIVED)
    }

    /// Takes the next frame; `None` without one.
    ///
    /// # Errors
    /// It is no frame with one tag, or was cut off.
    #[inline]
    pub fn take_next(&mut self) -> Option<Result<Received<'_>, DropReason>> {
        if self.is_empty() {
            return None;
        }
        self.next += 1;
        Some(self.frame(self.next - 1))
    }

    fn frame(&self, at: usize) -> Result<Received<'_>, DropReason> {
        let header = &self.calls.headers[at];
        let hdr = &header.msg_hdr;
        if hdr.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0 {
            return Err(DropReason::TooLong);
        }
        let bytes = self.memory.get(at * STRIDE..).and_then(|from| from.get(..header.msg_len as usize));
        let bytes = bytes.ok_or(DropReason::Malformed)?;
        let vnet = VnetHdr::read_legacy(bytes).ok_or(DropReason::Malformed)?;
        let control = self.calls.controls[at].0.get(..hdr.msg_controllen).unwrap_or(&[]);
        let vlan = Controls(control)
            .find(|(level, kind, _)| (*level, *kind) == (libc::SOL_PACKET, AUXDATA))
            .and_then(|(_, _, data)| vlan(data));
        let vlan = vlan.ok_or(DropReason::UnknownSegment)?;
        Ok(Received { vnet, vlan, bytes: &bytes[VnetHdr::LEGACY_LEN..] })
    }
}

/// Returns the VLAN in a `struct tpacket_auxdata`; `None` without a customer tag.
fn vlan(data: &[u8]) -> Option<u16> {
    let status = u32::from_ne_bytes(*data.get(STATUS..)?.first_chunk()?);
    let short = |at: usize| data.get(at..)?.first_chunk().map(|bytes| u16::from_ne_bytes(*bytes));
    let is_customer = status & TP_STATUS_VLAN_TPID_VALID == 0 || short(TPID)? == ETHERTYPE_VLAN;
    (status & TP_STATUS_VLAN_VALID != 0 && is_customer).then_some(short(TCI)? & 0xfff)
}

/// Frames that wait for the socket, and that socket.
pub struct Outgoing {
    socket: OwnedFd,
    urgent: Queue,
    others: Queue,
    calls: Box<Calls>,
    /// There was no room for a frame since the last flush, nor did the kernel make any.
    is_full: bool,
}

/// Room for a frame.
pub struct Place<'a> {
    outgoing: &'a mut Outgoing,
    counters: &'a mut Counters,
    on_wire: &'a mut OnWire,
    deadline: u64,
}

impl Outgoing {
    /// Returns the sending side of a socket.
    pub fn new(socket: OwnedFd) -> Self {
        Self {
            socket,
            urgent: Queue::new(URGENT.0, URGENT.1),
            others: Queue::new(OTHERS.0, OTHERS.1),
            calls: Calls::new(),
            is_full: false,
        }
    }

    /// Returns the room for a frame; before others if it has a deadline (ns), and [`NEVER`] otherwise.
    #[inline]
    pub fn place<'a>(
        &'a mut self,
        deadline: u64,
        counters: &'a mut Counters,
        on_wire: &'a mut OnWire,
    ) -> Place<'a> {
        Place { outgoing: self, counters, on_wire, deadline }
    }

    /// Whether frames wait.
    #[inline]
    pub fn has_unsent(&self) -> bool {
        !self.urgent.is_empty() || !self.others.is_empty()
    }

    /// Sends what the kernel takes, frames with a deadline first.
    pub fn flush(&mut self, counters: &mut Counters) {
        self.is_full = false;
        if !self.has_unsent() {
            return;
        }
        self.send(counters);
        if self.has_unsent() {
            self.expire(clock(), counters);
        }
    }

    /// Drops frames that waited too long.
    #[cold]
    fn expire(&mut self, now: u64, counters: &mut Counters) {
        counters.drop(DropReason::Late, self.urgent.expire(now, HOLD).frames);
        counters.drop(DropReason::HeldTooLong, self.others.expire(now, HOLD).frames);
    }

    fn send(&mut self, counters: &mut Counters) {
        let Self { socket, urgent, others, calls, .. } = self;
        if send(socket, urgent, calls, counters) {
            send(socket, others, calls, counters);
        }
    }
}

/// Sends until the queue is empty, or the socket full: then `false`. Each call of the kernel ends a frame, or is
/// the last.
fn send(socket: &OwnedFd, queue: &mut Queue, calls: &mut Calls, counters: &mut Counters) -> bool {
    while !queue.is_empty() {
        match send_some(socket.as_fd(), queue, calls) {
            Ok(sent) => {
                let left = queue.remove(sent);
                counters.frames += left.frames;
                counters.bytes += left.bytes;
            }
            Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM | Errno::INTR) => return false,
            Err(error) => counters.drop(reason(error), queue.remove(1).frames),
        }
    }
    true
}

/// Returns the reason of a frame that the kernel refused.
fn reason(error: Errno) -> DropReason {
    match error {
        Errno::MSGSIZE => DropReason::PathMtu,
        // The device is down, or gone.
        Errno::NETDOWN | Errno::NXIO | Errno::NODEV => DropReason::NoRoute,
        _ => DropReason::UplinkRefused,
    }
}

/// Sends the first frames by one call; returns their number, at least 1.
fn send_some(socket: BorrowedFd<'_>, queue: &Queue, calls: &mut Calls) -> Result<usize, Errno> {
    let mut count = 0;
    for (at, frame) in queue.iter().take(MESSAGES).enumerate() {
        calls.point(at, frame.as_ptr().cast_mut(), frame.len(), 0, 0);
        count = at + 1;
    }
    let headers = calls.headers.as_mut_ptr();
    // SAFETY: `count` headers lead to frames of those lengths, which live during the call. It only reads them.
    let result = unsafe {
        libc::sendmmsg(socket.as_raw_fd(), headers, count as libc::c_uint, libc::MSG_DONTWAIT as _)
    };
    usize::try_from(result).map_err(|_| last_error())
}

impl Room for Place<'_> {
    #[inline]
    fn room(&mut self, len: usize, size: Size) -> Option<&mut [u8]> {
        let Self { outgoing, counters, on_wire, deadline } = self;
        if !outgoing.queue(*deadline).has_room(len) {
            if outgoing.is_full {
                // One call of the kernel a loop.
                return None;
            }
            outgoing.send(counters);
            if !outgoing.queue(*deadline).has_room(len) {
                outgoing.is_full = true;
                return None;
            }
        }
        on_wire.add_frames(size.frames, size.bytes);
        outgoing.queue(*deadline).reserve(len, size, *deadline)
    }
}

impl Outgoing {
    #[inline]
    fn queue(&mut self, deadline: u64) -> &mut Queue {
        if deadline == NEVER { &mut self.others } else { &mut self.urgent }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn auxdata(status: u32, tci: u16, tpid: u16) -> Vec<u8> {
        [&status.to_ne_bytes()[..], &[0; 12], &tci.to_ne_bytes(), &tpid.to_ne_bytes()].concat()
    }

    #[test]
    fn a_customer_tag_is_read() {
        let valid = TP_STATUS_VLAN_VALID | TP_STATUS_VLAN_TPID_VALID;
        assert_eq!(vlan(&auxdata(valid, 0xe02a, 0x8100)), Some(42), "with any priority");
        assert_eq!(vlan(&auxdata(TP_STATUS_VLAN_VALID, 42, 0)), Some(42));
        assert_eq!(vlan(&auxdata(valid, 42, 0x88a8)), None, "a service tag");
        assert_eq!(vlan(&auxdata(0, 42, 0x8100)), None);
        assert_eq!(vlan(&auxdata(valid, 42, 0x8100)[..19]), None);
    }

    proptest! {
        #[test]
        fn any_auxdata_is_read_without_panic(data in prop::collection::vec(any::<u8>(), 0..24)) {
            _ = vlan(&data);
        }
    }
}
