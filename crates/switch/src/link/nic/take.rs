//! From the network: the VLAN tells the segment.

use super::Tx;
use super::packet::Received;
use crate::clock::clock;
use crate::fdb::{PeerIndex, PortIndex, SegmentIndex};
use crate::frame::FRAME_MAX;
use crate::link::reading::{Read, Reads};
use crate::link::store::Store;
use crate::link::vxlan::Peers;
use crate::slots::{Frame, FrameRef, NOWHERE};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use tidegate_evidence::DropReason;

/// Least length of a frame (bytes): an Ethernet header.
const FRAME_MIN: usize = 14;

impl Tx {
    /// All sockets count as one queue: their frames wait in one store.
    #[inline]
    pub(in crate::link) fn queues(&self) -> usize {
        1
    }

    pub(in crate::link) fn sockets(&self) -> &[Arc<OwnedFd>] {
        &self.sockets
    }

    #[inline]
    pub(in crate::link) fn poll(&mut self, now: u64) -> bool {
        self.now = now;
        self.store.has_waiting() || !self.incoming.is_empty() || self.readiness.any()
    }

    /// Lets `egress` hold a frame, whose egress the caller then sets; `false` if it holds its part of the store.
    #[inline]
    pub(in crate::link) fn hold(&mut self, frame: &Frame, egress: PortIndex) -> bool {
        self.shares.take(&self.store, frame, egress)
    }

    #[inline(never)]
    pub(in crate::link) fn give_back(&mut self, reference: FrameRef) {
        self.shares.give(reference.get());
        self.store.give_back(reference);
    }

    /// No frame waits, and each socket was read until it would block: the next frame makes it readable.
    #[inline]
    pub(in crate::link) fn can_be_quiet(&self) -> bool {
        !self.store.has_waiting() && self.incoming.is_empty() && !self.readiness.any()
    }

    /// Gives the kernel the memory that other workers gave back, and calls it if its driver waits for that.
    #[inline]
    pub(in crate::link) fn collect(&mut self) {
        self.incoming.collect(&self.sockets);
    }

    /// Whether it gives the kernel memory.
    pub(in crate::link) fn is_owner(&self) -> bool {
        self.incoming.is_owner()
    }

    /// Returns the worker that is to be told of memory given back; it is told once of each.
    #[inline]
    pub(in crate::link) fn tells(&mut self) -> Option<u16> {
        self.owner.filter(|_| self.incoming.is_due())
    }

    /// Replaces the network behind the NIC, also for frames that were received before.
    pub fn set_peers(&mut self, peers: Arc<Peers>) {
        self.peers = peers;
    }
}

impl Reads for Tx {
    fn store(&mut self) -> &mut Store {
        &mut self.store
    }

    fn read(&mut self) -> Read {
        let mut failed = false;
        loop {
            if let Some(received) = self.incoming.take_next() {
                return match received.and_then(|frame| keep(&mut self.store, &self.peers, &frame)) {
                    Ok(frame) => Read::Frame(frame, self.arrival),
                    Err(reason) => Read::Dropped(reason),
                };
            }
            let Some(queue) = self.readiness.turn() else { return Read::Empty };
            match self.incoming.receive(queue, &self.sockets[queue]) {
                Ok(may_have_more) => {
                    self.arrival = self.readiness.arrival(queue, clock());
                    if !may_have_more {
                        self.readiness.drained(queue, self.now);
                    }
                }
                Err(Errno::AGAIN) => self.readiness.drained(queue, self.now),
                Err(error @ (Errno::BADF | Errno::NOTSOCK | Errno::FAULT | Errno::INVAL)) => {
                    self.readiness.gone(queue);
                    return Read::Gone(format!("the socket of a network device cannot be read: {error}"));
                }
                // The device went down, told once.
                Err(_) if !failed => failed = true,
                // Such as a lack of memory: it is read again when its descriptor says so.
                Err(_) => self.readiness.gone(queue),
            }
        }
    }
}

/// Copies a frame into the store.
///
/// # Errors
/// Why it is refused.
fn keep(store: &mut Store, peers: &Peers, frame: &Received<'_>) -> Result<FrameRef, DropReason> {
    let (segment, peer) = admit(peers, frame.vlan, frame.bytes.len())?;
    let reference = store.keep(frame.bytes).ok_or(DropReason::PoolFull)?;
    let kept = reference.get_mut();
    (kept.segment, kept.peer, kept.egress) = (segment, Some(peer), NOWHERE);
    kept.vnet = frame.vnet;
    Ok(reference)
}

/// Returns the segment of a frame of `len` bytes, and the peer that it comes from.
///
/// # Errors
/// Why it is refused.
fn admit(peers: &Peers, vlan: u16, len: usize) -> Result<(SegmentIndex, PeerIndex), DropReason> {
    let segment = peers.segment(vlan.into()).ok_or(DropReason::UnknownSegment)?;
    let peer = peers.of_segment(segment).first().ok_or(DropReason::UnknownSegment)?;
    match len {
        ..FRAME_MIN => Err(DropReason::Malformed),
        FRAME_MIN..=FRAME_MAX => Ok((segment, *peer)),
        _ => Err(DropReason::TooLong),
    }
}
