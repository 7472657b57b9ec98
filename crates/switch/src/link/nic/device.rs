//! The device of a link: a packet socket, or AF_XDP.

use super::packet::{self, Received};
use super::wire::{self, Written};
use super::xdp;
use crate::link::vxlan::{Counters, OnWire};
use crate::slots::Frame;
use rustix::io::Errno;
use std::os::fd::{AsFd, OwnedFd};
use tidegate_evidence::DropReason;

/// What the agent made.
pub enum Device {
    /// Packet sockets, bound to the device, non-blocking, `PACKET_VNET_HDR`.
    Packet {
        /// Those that receive, with `PACKET_AUXDATA`.
        receive: Vec<OwnedFd>,
        /// The one that sends.
        send: OwnedFd,
    },
    /// AF_XDP.
    Xdp {
        /// Sockets, each bound to a queue of the device.
        sockets: Vec<OwnedFd>,
        /// The memory of each.
        memories: Vec<OwnedFd>,
        /// The program's link to the device.
        program: OwnedFd,
    },
}

/// Frames that arrived.
pub enum Incoming {
    /// By a packet socket.
    Packet(packet::Incoming),
    /// By AF_XDP.
    Xdp(xdp::Incoming),
}

/// Frames that leave.
pub enum Outgoing {
    /// By a packet socket.
    Packet(packet::Outgoing),
    /// By AF_XDP.
    Xdp(xdp::Outgoing),
}

impl Device {
    /// Returns the sockets that receive, and both directions.
    ///
    /// # Errors
    /// A socket is not as it should be.
    pub fn open(self) -> Result<(Vec<OwnedFd>, Incoming, Outgoing), Errno> {
        match self {
            Self::Packet { receive, send } => {
                let outgoing = packet::Outgoing::new(send);
                Ok((receive, Incoming::Packet(packet::Incoming::default()), Outgoing::Packet(outgoing)))
            }
            Self::Xdp { sockets, memories, program } => {
                if sockets.len() != memories.len() {
                    return Err(Errno::INVAL);
                }
                let incoming = xdp::Incoming::new(&sockets, &memories)?;
                let (socket, memory) = sockets.first().zip(memories.first()).ok_or(Errno::INVAL)?;
                let socket = rustix::io::fcntl_dupfd_cloexec(socket, 0)?;
                let outgoing = xdp::Outgoing::new(socket, memory.as_fd(), program)?;
                Ok((sockets, Incoming::Xdp(incoming), Outgoing::Xdp(outgoing)))
            }
        }
    }
}

impl Incoming {
    /// Whether all received frames were taken.
    #[inline]
    pub fn is_empty(&self) -> bool {
        match self {
            Self::Packet(incoming) => incoming.is_empty(),
            Self::Xdp(incoming) => incoming.is_empty(),
        }
    }

    /// Receives frames of a queue, by its socket, in place of those before; returns whether there may be more.
    ///
    /// # Errors
    /// There is none (`EAGAIN`), or the kernel's reason.
    pub fn receive(&mut self, queue: usize, socket: &OwnedFd) -> Result<bool, Errno> {
        match self {
            Self::Packet(incoming) => incoming.receive(socket.as_fd()),
            Self::Xdp(incoming) => incoming.receive(queue),
        }
    }

    /// Takes the next frame; `None` without one.
    ///
    /// # Errors
    /// It is no frame with one tag, or was cut off.
    #[inline]
    pub fn take_next(&mut self) -> Option<Result<Received<'_>, DropReason>> {
        match self {
            Self::Packet(incoming) => incoming.take_next(),
            Self::Xdp(incoming) => incoming.take_next(),
        }
    }
}

impl Outgoing {
    /// Writes a frame with the tag of `vlan`: it leaves with the next flush.
    pub fn write(
        &mut self,
        frame: &Frame,
        vlan: u16,
        counters: &mut Counters,
        on_wire: &mut OnWire,
    ) -> Written {
        match self {
            Self::Packet(outgoing) => wire::write(
                frame,
                vlan,
                &wire::PACKET,
                &mut outgoing.place(frame.deadline, counters, on_wire),
            ),
            Self::Xdp(outgoing) => {
                wire::write(frame, vlan, &wire::XDP, &mut outgoing.place(frame.deadline, counters, on_wire))
            }
        }
    }

    /// Sends what the kernel takes.
    #[inline]
    pub fn flush(&mut self, counters: &mut Counters) {
        match self {
            Self::Packet(outgoing) => outgoing.flush(counters),
            Self::Xdp(outgoing) => outgoing.flush(counters),
        }
    }

    /// Whether a flush would send frames if the kernel took them.
    #[inline]
    pub fn has_unsent(&self) -> bool {
        match self {
            Self::Packet(outgoing) => outgoing.has_unsent(),
            Self::Xdp(outgoing) => outgoing.has_unsent(),
        }
    }
}
