//! Other hosts: frames as VXLAN (RFC 7348) over UDP sockets. The kernel does routes, neighbours and path MTU.
//!
//! ```text
//!  kernel ─ recvmmsg ─▶ messages ─ admit ─▶ store: frames wait there ─▶ worker ... give back ─▶ free
//!  kernel ◀ sendmmsg ── trains in lanes ◀─ encapsulate ◀─ FDB: one peer, or all of the segment ◀─ worker
//! ```
//!
//! - [`peers`]: the other hosts, their addresses and segments
//! - [`admit`]: whether a datagram is a frame for this host
//! - `by_rdma`: the second lane, by RDMA
//! - [`rejoin`]: segments of a super-frame as one again
//! - `take`: the sending half
//! - [`encapsulate`]: a frame as datagrams
//! - [`pairs`]: pairs of vNICs between which frames carry stamps; [`pair_counts`]: their counters
//! - [`trains`]: datagrams that wait to be sent together
//! - [`lanes`]: sockets with their trains
//! - [`flood`]: a frame to all peers of its segment
//! - `post`: the receiving half
//! - [`counters`]: the fate of posted frames; [`wire`]: their bytes
//! - [`share`]: a receiver's part of the store
//! - [`sockets`]: the system calls

pub mod admit;
mod by_rdma;
pub mod counters;
pub mod encapsulate;
pub mod flood;
pub mod lanes;
pub mod pair_counts;
pub mod pairs;
pub mod peers;
mod post;
pub mod rejoin;
pub mod share;
pub mod sockets;
mod take;
#[cfg(test)]
pub(crate) mod tests;
pub mod trains;
pub mod wire;

pub use counters::Counters;
pub use peers::{Peer, Peers, PeersError};
pub use wire::OnWire;

use super::rdma;
use super::readiness::Readiness;
use super::store::Store;
use crate::clock::RawTime;
use crate::fdb::{Fdb, PortIndex};
use crate::hosts::Clocks;
use crate::slots::Arrival;
use flood::Flood;
use lanes::Lanes;
use pairs::{IncomingPairs, OutgoingPairs};
use share::Shares;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use take::Batch;
use tidegate_evidence::DropReason;

/// Bytes of frames that wait or are in flight.
const POOL: usize = 4 << 20;
/// Frames in flight.
const FRAMES: u16 = 2048;

/// What a link to other hosts is made of.
pub struct Setup {
    /// Sockets bound to VXLAN's port: non-blocking, with `UDP_GRO`, `IP_RECVTOS`, `IPV6_RECVTCLASS`, and
    /// `SO_TIMESTAMPNS` if the arrival is to be known while the worker sleeps.
    pub receive: Vec<OwnedFd>,
    /// IPv4 sockets, each with a source port of its own: non-blocking, not fragmenting.
    pub send_v4: Vec<OwnedFd>,
    /// The same for IPv6.
    pub send_v6: Vec<OwnedFd>,
    /// The same, of the family of those, each for one pair of vNICs with stamps.
    pub pairs: Vec<OwnedFd>,
    /// The other hosts.
    pub peers: Arc<Peers>,
    /// Tells the peer in front of an address.
    pub fdb: Arc<Fdb>,
    /// The offsets of other hosts' clocks.
    pub clocks: Arc<Clocks>,
    /// Longest train (bytes): a more urgent frame waits for one. At most 65,507; a longer datagram is alone.
    pub train: usize,
    /// Queue pairs as a second lane, if its uplink has RDMA.
    pub rdma: Option<rdma::Setup>,
}

/// Frames that other hosts send.
pub struct Tx {
    sockets: Box<[Arc<OwnedFd>]>,
    /// Which sockets may hold messages; the last one is the lane of RDMA, if there is one.
    pub(super) readiness: Readiness,
    /// Messages that were received and not yet taken.
    batch: Batch,
    /// Frames that were taken, and their memory.
    pub(super) store: Store,
    /// The parts of it that receivers hold.
    shares: Shares,
    peers: Arc<Peers>,
    /// Pairs whose frames arrive with a deadline.
    pairs: IncomingPairs,
    clocks: Arc<Clocks>,
    time: RawTime,
    /// Frames of members, and when those of the last look arrived.
    rdma: Option<Box<rdma::Incoming>>,
    arrived: Arrival,
    /// The time of the last poll, ns.
    now: u64,
}

/// Frames that other hosts receive.
pub struct Rx {
    port: PortIndex,
    peers: Arc<Peers>,
    fdb: Arc<Fdb>,
    lanes: Lanes,
    /// Frames to members.
    rdma: Option<Box<rdma::Outgoing>>,
    flood: Flood,
    /// Pairs whose frames leave with a stamp.
    pairs: OutgoingPairs,
    time: RawTime,
    /// The time of this run (ns, raw), once it is read.
    now: Option<u64>,
    /// Drops that were [taken](Self::take_dropped), by reason.
    reported: [u64; DropReason::COUNT],
}

impl Rx {
    /// Returns the fate of posted frames so far.
    pub fn counters(&self) -> &Counters {
        &self.lanes.counters
    }

    /// Returns the frames that were dropped after they were posted, by reason, since the last call.
    pub fn take_dropped(&mut self) -> impl Iterator<Item = (DropReason, u64)> {
        self.lanes.counters.fresh_drops(&mut self.reported)
    }

    /// Returns what went on the wire since the last call.
    #[inline]
    pub fn take_on_wire(&mut self) -> OnWire {
        std::mem::take(&mut self.lanes.on_wire)
    }

    /// Returns the peers.
    pub fn peers(&self) -> &Arc<Peers> {
        &self.peers
    }
}

/// Both halves of the link to other hosts.
pub(super) fn halves(setup: Setup, port: PortIndex, worker: u16, now: u64) -> (Tx, Rx) {
    let tx = Tx {
        readiness: Readiness::new(setup.receive.len() + usize::from(setup.rdma.is_some()), now),
        sockets: setup.receive.into_iter().map(Arc::new).collect(),
        batch: Batch::new(),
        store: Store::new(POOL, FRAMES, port, worker),
        shares: Shares::default(),
        peers: setup.peers.clone(),
        pairs: IncomingPairs::default(),
        clocks: setup.clocks,
        time: RawTime::default(),
        rdma: setup.rdma.as_ref().map(|rdma| Box::new(rdma::Incoming::new(rdma))),
        arrived: Arrival::default(),
        now,
    };
    let lanes = Lanes::new(setup.send_v4, setup.send_v6, setup.pairs, setup.train);
    let (flood, reported) = (Flood::default(), [0; DropReason::COUNT]);
    let rx = Rx {
        port,
        peers: setup.peers,
        fdb: setup.fdb,
        lanes,
        rdma: setup.rdma.as_ref().map(|rdma| Box::new(rdma::Outgoing::new(rdma))),
        flood,
        pairs: OutgoingPairs::default(),
        time: RawTime::default(),
        now: None,
        reported,
    };
    (tx, rx)
}
