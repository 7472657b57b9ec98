//! The device of a link: a packet socket, or AF_XDP.

use super::packet::{self, Received};
use super::wire::{self, Tci, Written};
use super::xdp::{self, form::Form};
use crate::link::vxlan::{Counters, OnWire};
use crate::slots::Frame;
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
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
        /// Sockets of one worker, each bound to a queue of the device.
        receiver: xdp::Receiver,
        /// `None` of a worker that only receives.
        outgoing: Option<Box<xdp::Outgoing>>,
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
    Xdp(Box<xdp::Outgoing>),
    /// By another worker alone.
    Nowhere,
}

impl Device {
    /// Maps AF_XDP sockets, those of a queue together, each queue's memory, and the program's link to the device. Returns the
    /// parts of the workers that have a socket of each queue: the first one's, which sends, and those that only receive.
    ///
    /// # Errors
    /// A socket is not as it should be.
    pub fn xdp(sockets: Vec<OwnedFd>, memories: &[OwnedFd], program: OwnedFd) -> Result<Vec<Self>, Errno> {
        let (socket, memory) = sockets.first().zip(memories.first()).ok_or(Errno::INVAL)?;
        let sending = rustix::io::fcntl_dupfd_cloexec(socket, 0)?;
        let form = Form::new(sockets.len() / memories.len()).ok_or(Errno::INVAL)?;
        let outgoing = xdp::Outgoing::new(sending, memory.as_fd(), form, program)?;
        let mut outgoing = Some(Box::new(outgoing));
        let receivers = xdp::receivers(sockets, memories)?.into_iter();
        Ok(receivers.map(|receiver| Self::Xdp { receiver, outgoing: outgoing.take() }).collect())
    }

    /// Returns the sockets that receive, and both directions.
    pub fn open(self) -> (Vec<OwnedFd>, Incoming, Outgoing) {
        match self {
            Self::Packet { receive, send } => {
                let outgoing = packet::Outgoing::new(send);
                (receive, Incoming::Packet(packet::Incoming::default()), Outgoing::Packet(outgoing))
            }
            Self::Xdp { receiver, outgoing } => {
                let xdp::Receiver { sockets, incoming } = receiver;
                (sockets, Incoming::Xdp(incoming), outgoing.map_or(Outgoing::Nowhere, Outgoing::Xdp))
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

    /// Gives the kernel the memory that other workers gave back, and calls it by the `sockets` of those queues whose driver waits for
    /// memory.
    #[inline]
    pub fn collect(&mut self, sockets: &[Arc<OwnedFd>]) {
        if let Self::Xdp(incoming) = self {
            // In vain while the device is down.
            incoming.collect(|queue| _ = recv(&sockets[queue], &mut [0; 0], RecvFlags::DONTWAIT));
        }
    }

    /// Whether it gives the kernel memory.
    pub fn is_owner(&self) -> bool {
        matches!(self, Self::Xdp(incoming) if incoming.is_owner())
    }

    /// Whether the owner is to be told of memory given back; it is told once of each.
    #[inline]
    pub fn is_due(&mut self) -> bool {
        match self {
            Self::Packet(_) => false,
            Self::Xdp(incoming) => incoming.is_due(),
        }
    }
}

impl Outgoing {
    /// Writes a frame with a tag: it leaves with the next flush.
    pub fn write(
        &mut self,
        frame: &Frame,
        tci: Tci,
        counters: &mut Counters,
        on_wire: &mut OnWire,
    ) -> Written {
        match self {
            Self::Packet(outgoing) => {
                wire::write(frame, tci, &wire::PACKET, &mut outgoing.place(frame.deadline, counters, on_wire))
            }
            Self::Xdp(outgoing) => {
                wire::write(frame, tci, &wire::XDP, &mut outgoing.place(frame.deadline, counters, on_wire))
            }
            Self::Nowhere => Written::NoRoom,
        }
    }

    /// Sends what the kernel takes.
    #[inline]
    pub fn flush(&mut self, counters: &mut Counters) {
        match self {
            Self::Packet(outgoing) => outgoing.flush(counters),
            Self::Xdp(outgoing) => outgoing.flush(counters),
            Self::Nowhere => {}
        }
    }

    /// Whether a flush would send frames if the kernel took them.
    #[inline]
    pub fn has_unsent(&self) -> bool {
        match self {
            Self::Packet(outgoing) => outgoing.has_unsent(),
            Self::Xdp(outgoing) => outgoing.has_unsent(),
            Self::Nowhere => false,
        }
    }
}
