//! Which queue pairs and members the links of uplinks should have, by the table of ports. No device is asked.
//!
//! ```text
//!  table: vNICs with `transport = "rdma"`, keys of segments, peers ─▶ Wished: port ─▶ Wanted
//!  Heard: what peers announced ───────────────────────────────────▶         members, by segment
//! ```

use super::plan::Wanted;
use crate::fdb::{PeerIndex, PortIndex, SegmentIndex};
use crate::hosts::notices::Heard;
use crate::server::lane::Lane;
use crate::server::pairs;
use crate::server::table::Table;
use crate::server::uplink::UplinkEntry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use tidegate_contract::rdma::around_packet;
use tidegate_contract::{Mac, Peer, Segment, Transport};
use tidegate_uplink::rdma::q_key;

/// What one uplink's link should have.
pub(super) struct Wished {
    /// The uplink.
    pub(super) name: String,
    /// Its RDMA.
    pub(super) lane: Arc<Lane>,
    /// Queue pairs of vNICs here.
    pub(super) pairs: BTreeMap<PortIndex, Wanted>,
    /// vNICs whose guests' memory the device should read.
    pub(super) zero_copy: BTreeSet<PortIndex>,
    /// Names of vNICs that should have one.
    pub(super) vnics: BTreeMap<PortIndex, String>,
    /// Why some of them can have none.
    pub(super) refused: BTreeMap<PortIndex, String>,
    /// vNICs of other hosts, in segments of these.
    pub(super) members: Vec<Member>,
}

/// A vNIC of another host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Member {
    pub(super) id: Segment,
    pub(super) segment: SegmentIndex,
    pub(super) mac: Mac,
    pub(super) peer: PeerIndex,
    /// The name of that.
    pub(super) host: String,
    /// The vNIC's, if a contract declares it.
    pub(super) remote: Option<String>,
    pub(super) address: IpAddr,
    pub(super) queue_pair: u32,
    pub(super) q_key: u32,
    pub(super) longest: u32,
    /// Whether frames go to it; if not, it may only send.
    pub(super) is_fresh: bool,
}

impl Wished {
    /// Whether it is an uplink's that is in the table now.
    pub(super) fn is_of(&self, entry: &UplinkEntry) -> bool {
        matches!(&entry.rdma, Some(Ok(lane)) if Arc::ptr_eq(lane, &self.lane))
    }

    /// Returns what the links of uplinks with RDMA should have.
    pub(super) fn all(table: &Table, heard: &[Heard]) -> Vec<Self> {
        let lanes =
            table.uplinks.values().filter_map(|entry| Some((entry, entry.rdma.as_ref()?.as_ref().ok()?)));
        lanes.map(|(entry, lane)| Self::of(table, entry, lane, heard)).collect()
    }

    fn of(table: &Table, entry: &UplinkEntry, lane: &Arc<Lane>, heard: &[Heard]) -> Self {
        let indices: HashMap<Segment, SegmentIndex> =
            table.known_segments().into_iter().map(|(index, segment)| (segment, index)).collect();
        let q_keys: HashMap<Segment, u32> = (entry.pairs.keys.iter())
            .map(|keys| (keys.segment, q_key(&pairs::key(keys), keys.segment.id())))
            .collect();
        let (mut pairs, mut vnics, mut refused) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let mut zero_copy = BTreeSet::new();
        for port in table.entries.values() {
            let (segment, index) = (port.vnic.segment, port.index);
            if port.vnic.transport != Transport::Rdma || !tells_of(entry, segment) {
                continue;
            }
            vnics.insert(index, port.vnic.name.clone());
            if port.vnic.zero_copy {
                zero_copy.insert(index);
            }
            let also =
                table.uplinks.values().find(|other| other.index != entry.index && tells_of(other, segment));
            let id = segment.id();
            match (q_keys.get(&segment), also) {
                (Some(q_key), None) => {
                    let wanted = Wanted { segment: (port.segment, id), mac: port.vnic.mac, q_key: *q_key };
                    pairs.insert(index, wanted);
                }
                (None, _) => {
                    _ = refused.insert(index, format!("segment {id} has no key: write [segment.{id}]"))
                }
                (_, Some(other)) => {
                    let other = &other.uplink.name;
                    let why = format!(
                        "segment {id} reaches hosts over {other}, too, and a queue pair is told to the hosts of one \
                         uplink alone: name the segments of each peer"
                    );
                    refused.insert(index, why);
                }
            }
        }
        let here: BTreeSet<SegmentIndex> = pairs.values().map(|wanted| wanted.segment.0).collect();
        let remotes: HashMap<(Segment, Mac), &str> =
            entry.remotes.iter().map(|remote| ((remote.segment, remote.mac), remote.name.as_str())).collect();
        let peers: HashMap<PeerIndex, &Peer> =
            entry.uplink.peers.iter().filter_map(|peer| Some((entry.number(peer)?, peer))).collect();
        let member = |heard: &Heard| {
            let segment = *indices.get(&heard.segment).filter(|index| here.contains(index))?;
            // Numbers are given again: another host may have the one under which this was heard.
            let is_it = |peer: &&&Peer| peer.address == Some(heard.address) && peer.carries(heard.segment);
            let peer = peers.get(&heard.peer).filter(is_it)?;
            Some(Member {
                id: heard.segment,
                segment,
                mac: heard.mac,
                peer: heard.peer,
                host: peer.name.clone(),
                remote: remotes.get(&(heard.segment, heard.mac)).map(|name| (*name).to_owned()),
                address: heard.address,
                queue_pair: heard.queue_pair,
                q_key: heard.q_key,
                longest: heard.longest.into(),
                is_fresh: heard.is_fresh,
            })
        };
        let members = heard.iter().filter_map(member).collect();
        Self {
            name: entry.uplink.name.clone(),
            lane: lane.clone(),
            pairs,
            zero_copy,
            vnics,
            refused,
            members,
        }
    }
}

/// Returns the bytes of the longest datagram that frames of vNICs here need on an uplink; `None` if no vNIC wants RDMA there.
pub(super) fn datagrams_of(table: &Table, entry: &UplinkEntry) -> Option<u32> {
    let here = table.entries.values().map(|port| &port.vnic);
    let by_rdma = here.filter(|vnic| vnic.transport == Transport::Rdma && tells_of(entry, vnic.segment));
    by_rdma.map(|vnic| u32::from(vnic.mtu) + around_packet(vnic) as u32).max()
}

/// Whether the peers of an uplink are told of queue pairs in a segment.
fn tells_of(entry: &UplinkEntry, segment: Segment) -> bool {
    entry.uplink.peers.iter().any(|peer| peer.stamps && peer.carries(segment))
}
