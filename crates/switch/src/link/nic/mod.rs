//! A plain NIC: frames with a VLAN tag whose number is their segment.
//!
//! ```text
//!  device ─▶ packet socket, AF_XDP ─▶ frame, VLAN ─▶ segment ─▶ store: frames wait there ─▶ worker ... give back
//!  device ◀─ packet socket, AF_XDP ◀─ frame with its tag ◀─ FDB: behind the NIC, or all ◀─ worker
//! ```
//!
//! The network behind the NIC is the link's one [peer](Peers::of_nic).
//!
//! - [`wire`]: a frame with its tag
//! - [`queue`]: frames that wait for a packet socket
//! - [`packet`]: the system calls of a packet socket
//! - [`xdp`]: the rings of AF_XDP
//! - [`device`]: one of both
//! - `take`: the sending half
//! - `post`: the receiving half

pub mod device;
pub mod packet;
mod post;
pub mod queue;
mod take;
#[cfg(test)]
mod tests;
pub mod wire;
pub mod xdp;

use super::readiness::Readiness;
use super::store::Store;
use super::vxlan::share::Shares;
use super::vxlan::{Counters, OnWire, Peers};
use crate::fdb::{Fdb, PortIndex};
pub use device::Device;
use device::{Incoming, Outgoing};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use tidegate_evidence::DropReason;

/// Bytes of frames that wait or are in flight.
const POOL: usize = 4 << 20;
/// Frames in flight.
const FRAMES: u16 = 2048;

/// What a link to a plain NIC is made of.
pub struct Setup {
    /// The device.
    pub device: Device,
    /// Longest frame (bytes without a tag).
    pub longest: u32,
    /// The network behind the NIC, and its segments with their VLANs.
    pub peers: Arc<Peers>,
    /// Tells what is in front of an address.
    pub fdb: Arc<Fdb>,
    /// Of a worker that only receives: the worker that sends, and waits for memory that this one gives back.
    pub owner: Option<u16>,
}

/// Frames that come from the network.
pub struct Tx {
    sockets: Box<[Arc<OwnedFd>]>,
    /// Which sockets may hold frames.
    pub(super) readiness: Readiness,
    incoming: Incoming,
    /// When these arrived.
    arrival: crate::slots::Arrival,
    /// Frames that were taken, and their memory.
    pub(super) store: Store,
    /// The parts of it that receivers hold.
    shares: Shares,
    peers: Arc<Peers>,
    /// The worker that waits for memory.
    owner: Option<u16>,
    /// The time of the last poll, ns.
    now: u64,
}

/// Frames that go to the network.
pub struct Rx {
    port: PortIndex,
    peers: Arc<Peers>,
    fdb: Arc<Fdb>,
    outgoing: Outgoing,
    longest: u32,
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
    let (sockets, incoming, outgoing) = setup.device.open();
    let tx = Tx {
        readiness: Readiness::new(sockets.len(), now),
        sockets: sockets.into_iter().map(Arc::new).collect(),
        incoming,
        arrival: crate::slots::Arrival::default(),
        store: Store::new(POOL, FRAMES, port, worker),
        shares: Shares::default(),
        peers: setup.peers.clone(),
        owner: setup.owner,
        now,
    };
    let rx = Rx {
        port,
        peers: setup.peers,
        fdb: setup.fdb,
        outgoing,
        longest: setup.longest,
        counters: Counters::default(),
        on_wire: OnWire::default(),
        reported: [0; DropReason::COUNT],
    };
    (tx, rx)
}
