//! One uplink in the table, and what its link and the FDB have to know.
//!
//! ```text
//!  Uplink, numbers of peers ─┬▶ its peers with their addresses and segments, for the link
//!  known segments ───────────┘
//!  Remotes ─▶ (segment, MAC) ─▶ peer, for the FDB
//! ```

use super::lane::Lane;
use super::pairs::Pairs;
use crate::fdb::{Destination, PeerIndex, PortIndex, SegmentIndex};
use crate::link::vxlan::{self, pairs::PairKey};
use crate::port::{PortContract, PortInfo};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use tidegate_contract::rdma::frames_grow_by;
use tidegate_contract::{Host, Mac, Nanos, Peer, Remote, Segment, UPLINK, Uplink, Vnic};

/// The segments that ports are in.
pub type KnownSegments = [(SegmentIndex, Segment)];

/// Numbers of peers, by name and address: another host of the name gets another number, and the FDB forgets the
/// former one.
pub type PeerNumbers = BTreeMap<(String, Option<IpAddr>), PeerIndex>;

/// A port of an uplink at another worker than the uplink's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arm {
    /// Index of its port in all tables.
    pub index: PortIndex,
    /// The worker that owns it.
    pub worker: usize,
}

/// One uplink.
pub struct UplinkEntry {
    /// Index of its port in all tables.
    pub index: PortIndex,
    /// The worker that owns it.
    pub worker: usize,
    /// Its ports at other workers.
    pub arms: Vec<Arm>,
    /// The declaration in force.
    pub uplink: Uplink,
    /// vNICs behind its peers.
    pub remotes: Vec<Remote>,
    /// Why it has to be made anew, if it has: its link broke, or its RDMA device could do more.
    pub broken: Option<String>,
    /// Number of each peer, by name and address.
    pub(super) numbers: PeerNumbers,
    /// Addresses that the FDB holds for its remotes.
    pub(super) pins: BTreeSet<(SegmentIndex, Mac, PeerIndex)>,
    /// The socket of notices; absent if the agent sent none.
    pub(super) notices: Option<Arc<OwnedFd>>,
    /// The segments that its peers carried when the link's table was made.
    pub(super) published: Option<Vec<(SegmentIndex, u32)>>,
    /// The pairs with a path behind a plain NIC in that table.
    pub(super) marked: Vec<PairKey>,
    /// Its pairs of vNICs with stamps.
    pub(super) pairs: Pairs,
    /// The data about its port that the workers have.
    pub(super) info: PortInfo,
    /// Its RDMA, or why it has none; absent if it names no device.
    pub(super) rdma: Option<Result<Arc<Lane>, String>>,
}

impl UplinkEntry {
    /// Returns the indices of its ports, its own first.
    pub(super) fn indices(&self) -> impl Iterator<Item = PortIndex> {
        self.ports().map(|(index, _)| index)
    }

    /// Returns the indices and workers of its ports, its own first.
    pub(super) fn ports(&self) -> impl Iterator<Item = (PortIndex, usize)> {
        let arms = self.arms.iter().map(|arm| (arm.index, arm.worker));
        std::iter::once((self.index, self.worker)).chain(arms)
    }

    /// Returns the numbers of its peers.
    pub(super) fn numbers(&self) -> impl Iterator<Item = PeerIndex> {
        self.numbers.values().copied()
    }

    pub(super) fn number(&self, peer: &Peer) -> Option<PeerIndex> {
        self.numbers.get(&(peer.name.clone(), peer.address)).copied()
    }

    /// Returns the segments that its peers carry, of those with ports here, with their VNIs.
    pub(super) fn segments(&self, known: &KnownSegments) -> Vec<(SegmentIndex, u32)> {
        let carried = |segment| self.uplink.peers.iter().any(|peer| peer.carries(segment));
        let here = known.iter().copied().filter(|(_, segment)| carried(*segment));
        here.map(|(index, segment)| (index, segment.id())).collect()
    }

    /// Returns the table of its peers.
    pub(super) fn peers(&self, known: &KnownSegments) -> Result<vxlan::Peers, String> {
        let made = if self.uplink.is_plain() { self.behind_nic(known) } else { self.hosts(known) };
        made.map_err(|error| format!("uplink {}: {error}", self.uplink.name))
    }

    fn behind_nic(&self, known: &KnownSegments) -> Result<vxlan::Peers, String> {
        let peer = self.uplink.peers.first().and_then(|peer| self.number(peer));
        let peer = peer.ok_or("a plain NIC has one peer, the network behind it")?;
        vxlan::Peers::of_nic(peer, &self.segments(known)).map_err(|error| error.to_string())
    }

    fn hosts(&self, known: &KnownSegments) -> Result<vxlan::Peers, String> {
        let peer = |peer: &Peer| {
            let here = known.iter().copied().filter(|(_, segment)| peer.carries(*segment));
            Some(vxlan::Peer {
                index: self.number(peer)?,
                address: SocketAddr::new(peer.address?, self.uplink.port),
                segments: here.map(|(index, _)| index).collect(),
                takes_stamps: peer.stamps,
            })
        };
        let peers = self.uplink.peers.iter().filter_map(peer).collect();
        vxlan::Peers::new(peers, &self.segments(known)).map_err(|error| error.to_string())
    }

    /// Returns the addresses that the FDB has to hold for its remotes.
    pub(super) fn wanted_pins(&self, known: &KnownSegments) -> BTreeSet<(SegmentIndex, Mac, PeerIndex)> {
        let segments: HashMap<Segment, SegmentIndex> =
            known.iter().map(|(index, segment)| (*segment, *index)).collect();
        let numbered = |peer: &'_ Peer| Some((peer.name.clone(), self.number(peer)?));
        let peers: HashMap<String, PeerIndex> = self.uplink.peers.iter().filter_map(numbered).collect();
        let pin =
            |remote: &Remote| Some((*segments.get(&remote.segment)?, remote.mac, *peers.get(&remote.peer)?));
        self.remotes.iter().filter_map(pin).collect()
    }

    /// Returns the addresses of its remotes in segments with ports here, with their MACs.
    pub(super) fn neighbours(
        &self,
        known: &KnownSegments,
    ) -> impl Iterator<Item = ((SegmentIndex, IpAddr), Mac)> {
        let indices: HashMap<Segment, SegmentIndex> =
            known.iter().map(|(index, segment)| (*segment, *index)).collect();
        let of = move |remote: &Remote| {
            let segment = indices.get(&remote.segment).copied();
            let mac = remote.mac;
            let all = segment
                .map(|segment| remote.addresses.clone().into_iter().map(move |ip| ((segment, ip), mac)));
            all.into_iter().flatten()
        };
        self.remotes.iter().flat_map(of)
    }

    pub(super) fn contract(&self, host: &Host) -> PortContract {
        let (frame_max, overhead) = (self.uplink.largest_inner_frame(), self.uplink.encapsulation());
        let largest = frame_max + overhead + frames_grow_by(&self.uplink);
        PortContract::of_uplink(self.uplink.rate, frame_max as u32, overhead as u32, largest as u32, host)
    }

    /// Returns how long (ns) frames of a vNIC with a deadline are away from this host over this uplink, at most: the
    /// latency of the network and the arrival budget of the peer. `None` if it promises nothing here.
    pub(super) fn away(&self, vnic: &Vnic) -> Option<u64> {
        let named = |remote: &&Remote| vnic.to.contains(&remote.name);
        let all = vnic.to.iter().any(|to| to == UPLINK);
        let behind: BTreeSet<&str> =
            self.remotes.iter().filter(named).map(|remote| remote.peer.as_str()).collect();
        let reached = |peer: &&Peer| behind.contains(peer.name.as_str()) || all && peer.carries(vnic.segment);
        let deadline = vnic.deadline.unwrap_or(Nanos::new(0));
        let away = |peer: &Peer| {
            let arrival = self.uplink.arrival_budget_of(peer);
            let latency = self.uplink.network_budget(peer, deadline, arrival);
            latency.map_or(0, Nanos::get) + arrival.get()
        };
        self.uplink.peers.iter().filter(reached).map(away).max()
    }

    /// Returns the peer to which a destination leads, if it is this uplink's.
    pub(super) fn peer_at(&self, to: Destination) -> Option<&Peer> {
        self.uplink.peers.iter().find(|peer| self.number(peer).map(|number| self.peer(number)) == Some(to))
    }

    pub(super) fn peer(&self, peer: PeerIndex) -> Destination {
        Destination::Peer { link: self.index, peer }
    }
}
