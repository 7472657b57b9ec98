//! One uplink in the table, and what its link and the FDB have to know.
//!
//! ```text
//!  Uplink, numbers of peers ─┬▶ its peers with their addresses and segments, for the link
//!  known segments ───────────┘
//!  Remotes ─▶ (segment, MAC) ─▶ peer, for the FDB
//! ```

use crate::fdb::{Destination, PeerIndex, PortIndex, SegmentIndex};
use crate::link::vxlan;
use crate::port::PortContract;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use tidegate_contract::{Host, Mac, Peer, Remote, Segment, Uplink};

/// The segments that ports are in.
pub type KnownSegments = [(SegmentIndex, Segment)];

/// Numbers of peers, by name and address: another host of the name gets another number, and the FDB forgets the
/// former one.
pub type PeerNumbers = BTreeMap<(String, Option<IpAddr>), PeerIndex>;

/// One uplink.
pub struct UplinkEntry {
    /// Index of its port in all tables.
    pub index: PortIndex,
    /// The worker that owns it.
    pub worker: usize,
    /// The declaration in force.
    pub uplink: Uplink,
    /// vNICs behind its peers.
    pub remotes: Vec<Remote>,
    /// Number of each peer, by name and address.
    pub(super) numbers: PeerNumbers,
    /// Addresses that the FDB holds for its remotes.
    pub(super) pins: BTreeSet<(SegmentIndex, Mac, PeerIndex)>,
    /// The segments that its peers carried when the link's table was made.
    pub(super) published: Option<Vec<(SegmentIndex, u32)>>,
}

impl UplinkEntry {
    /// Returns the numbers of its peers.
    pub(super) fn numbers(&self) -> impl Iterator<Item = PeerIndex> {
        self.numbers.values().copied()
    }

    fn number(&self, peer: &Peer) -> Option<PeerIndex> {
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

    pub(super) fn contract(&self, host: &Host) -> PortContract {
        let (frame_max, overhead) = (self.uplink.largest_inner_frame(), self.uplink.encapsulation());
        PortContract::of_uplink(self.uplink.rate, frame_max as u32, overhead as u32, host)
    }

    pub(super) fn peer(&self, peer: PeerIndex) -> Destination {
        Destination::Peer { link: self.index, peer }
    }
}
