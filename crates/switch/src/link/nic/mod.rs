//! A plain NIC: frames with a VLAN tag whose number is their segment.
//!
//! ```text
//!  kernel ─ recvmmsg ─▶ tag beside the frame ─ VLAN ─▶ segment ─▶ store: frames wait there ─▶ worker ... give back
//!  kernel ◀ sendmmsg ── queue ◀─ tag put in, offloads asked for ◀─ FDB: behind the NIC, or all ◀─ worker
//! ```
//!
//! The network behind the NIC is the link's one [peer](Peers::of_nic).
//!
//! - [`wire`]: a frame with its tag
//! - [`queue`]: frames that wait to leave
//! - [`packet`]: the system calls of a packet socket
//! - `take`: the sending half
//! - `post`: the receiving half

pub mod packet;
mod post;
pub mod queue;
mod take;
#[cfg(test)]
mod tests;
pub mod wire;

use super::readiness::Readiness;
use super::store::Store;
use super::vxlan::share::Shares;
use super::vxlan::{Counters, OnWire, Peers};
use crate::fdb::{Fdb, PortIndex};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use tidegate_evidence::DropReason;

/// Bytes of frames that wait or are in flight.
const POOL: usize = 4 << 20;
/// Frames in flight.
const FRAMES: u16 = 2048;

/// What a link to a plain NIC is made of.
pub struct Setup {
    /// Packet sockets that receive: bound to the device, non-blocking, `PACKET_VNET_HDR`, `PACKET_AUXDATA`.
    pub receive: Vec<OwnedFd>,
    /// The packet socket that sends: bound to the device, non-blocking, `PACKET_VNET_HDR`.
    pub send: OwnedFd,
    /// The network behind the NIC, and its segments with their VLANs.
    pub peers: Arc<Peers>,
    /// Tells what is in front of an address.
    pub fdb: Arc<Fdb>,
}

/// Frames that come from the network.
pub struct Tx {
    sockets: Box<[Arc<OwnedFd>]>,
    /// Which sockets may hold frames.
    pub(super) readiness: Readiness,
    incoming: packet::Incoming,
    /// When these arrived.
    arrival: crate::slots::Arrival,
    /// Frames that were taken, and their memory.
    pub(super) store: Store,
    /// The parts of it that receivers hold.
    shares: Shares,
    peers: Arc<Peers>,
    /// The time of the last poll, ns.
    now: u64,
}

/// Frames that go to the network.
pub struct Rx {
    port: PortIndex,
    peers: Arc<Peers>,
    fdb: Arc<Fdb>,
    outgoing: packet::Outgoing,
    counters: Counters,
    on_wire: OnWire,
    /// Drops that were [taken](Self::take_dropped), by reason.
    reported: [u64; DropReason::COUNT],
}

impl Rx {
    /// Returns the fate of posted frames so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns the frames that were dropped after they were posted, by reason, since the last call.
    pub fn take_dropped(&mut self) -> impl Iterator<Item = (DropReason, u64)> {
        self.counters.fresh_drops(&mut self.reported)
    }

    /// Returns what went on the wire since the last call.
    #[inline]
    pub fn take_on_wire(&mut self) -> OnWire {
        std::mem::take(&mut self.on_wire)
    }

    /// Returns the network behind the NIC.
    pub fn peers(&self) -> &Arc<Peers> {
        &self.peers
    }
}

/// Both halves of the link.
pub(super) fn halves(setup: Setup, port: PortIndex, worker: u16, now: u64) -> (Tx, Rx) {
    let tx = Tx {
        readiness: Readiness::new(setup.receive.len(), now),
        sockets: setup.receive.into_iter().map(Arc::new).collect(),
        incoming: packet::Incoming::default(),
        arrival: crate::slots::Arrival::default(),
        store: Store::new(POOL, FRAMES, port, worker),
        shares: Shares::default(),
        peers: setup.peers.clone(),
        now,
    };
    let rx = Rx {
        port,
        peers: setup.peers,
        fdb: setup.fdb,
        outgoing: packet::Outgoing::new(setup.send),
        counters: Counters::default(),
        on_wire: OnWire::default(),
        reported: [0; DropReason::COUNT],
    };
    (tx, rx)
}
