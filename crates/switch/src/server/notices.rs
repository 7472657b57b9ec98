//! What the thread of notices has to know of the table, and what it tells.
//!
//! ```text
//!  table, queue pairs ─▶ Setup, Local ─▶ thread of notices ─┬▶ Moved ─▶ pins
//!                                                         └▶ Heard ─▶ thread `rdma`
//! ```

use super::table::{End, Entry, Table};
use super::uplink::{KnownSegments, UplinkEntry};
use super::{Switch, pairs};
use crate::fdb::SegmentIndex;
use crate::hosts::notices::{KeyedSegment, LinkSetup, Local, PeerSetup, Setup};
use crate::vhost_user::status::State;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::Arc;
use tidegate_contract::{Peer, Segment, SegmentKey};

impl Switch {
    /// Starts the thread of notices.
    pub(super) fn start_notices(self: &Arc<Self>) -> io::Result<()> {
        let [look, told, hears] = [self.clone(), self.clone(), self.clone()];
        self.notices.spawn(
            move || look.locals(),
            move |moved| told.remote_moved(moved),
            move |members| hears.rdma.set_heard(members),
        )
    }

    /// Returns the vNICs of this host.
    fn locals(&self) -> Vec<Local> {
        let table = self.lock();
        let lanes = || table.uplinks.values().filter_map(|uplink| uplink.rdma.as_ref()?.as_ref().ok());
        let of = |entry: &Entry| {
            let pair = lanes().find_map(|lane| Some((lane.pair(entry.index)?, lane.longest())));
            Local {
                name: entry.vnic.name.clone(),
                segment: entry.vnic.segment,
                mac: entry.vnic.mac,
                is_up: entry.broken.is_none() && is_up(&entry.end),
                queue_pair: pair.map(|((number, _), _)| number),
                q_key: pair.map_or(0, |((_, q_key), _)| q_key),
                longest: pair.map_or(0, |(_, longest)| longest.try_into().unwrap_or(u16::MAX)),
            }
        };
        table.entries.values().map(of).collect()
    }
}

/// Whether frames reach the far end of a port.
fn is_up(end: &End) -> bool {
    match end {
        End::Tap { .. } => true,
        End::Vhost { status, .. } => status.snapshot().state == State::Ready,
    }
}

impl Table {
    /// Returns the links, peers and keys.
    pub(super) fn notices(&self, known: &KnownSegments) -> Setup {
        let links = self.uplinks.values().filter_map(link).collect();
        Setup { links, segments: self.keyed_segments(known) }
    }

    /// Returns the segments with keys.
    fn keyed_segments(&self, known: &KnownSegments) -> Vec<KeyedSegment> {
        let numbers: HashMap<Segment, SegmentIndex> =
            known.iter().map(|(index, segment)| (*segment, *index)).collect();
        let all: BTreeMap<Segment, &SegmentKey> = (self.uplinks.values())
            .flat_map(|entry| &entry.pairs.keys)
            .map(|keys| (keys.segment, keys))
            .collect();
        let keyed = |(segment, keys): (Segment, &SegmentKey)| KeyedSegment {
            segment,
            index: numbers.get(&segment).copied(),
            keys: pairs::valid(keys),
            sends: pairs::number(keys.key.is_odd()),
        };
        all.into_iter().map(keyed).collect()
    }
}

fn link(entry: &UplinkEntry) -> Option<LinkSetup> {
    let peer = |peer: &Peer| {
        Some(PeerSetup {
            index: entry.number(peer)?,
            name: peer.name.clone(),
            address: peer.address?,
            stamps: peer.stamps,
            segments: peer.segments.clone(),
        })
    };
    Some(LinkSetup {
        index: entry.index,
        name: entry.uplink.name.clone(),
        local: entry.uplink.local?,
        port: entry.uplink.notice_port,
        socket: entry.notices.clone()?,
        peers: entry.uplink.peers.iter().filter_map(peer).collect(),
    })
}
