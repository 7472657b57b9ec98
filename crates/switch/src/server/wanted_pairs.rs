//! Which pairs of vNICs have stamps, by contracts and keys; which have a path, by grants.
//!
//! ```text
//!  vNICs with a deadline, remotes, keys ─▶ Wanted: outgoing
//!  remotes with a deadline, their `to` ──▶         incoming, registered, receivers
//!  of a plain NIC: pairs that the network granted a path ─▶ marked
//! ```

use super::moves::Moves;
use super::pairs::{Wanted, WantedRemote, key, number, valid};
use super::table::Entry;
use super::uplink::{KnownSegments, UplinkEntry};
use crate::fdb::{PortIndex, SegmentIndex};
use crate::link::vxlan::pairs::{AddressKey, PAIRS, PairKey, TimeShares};
use crate::port::PortSet;
use std::collections::{BTreeMap, HashMap};
use tidegate_contract::{Bytes, Nanos, Peer, Rate, Remote, Segment, SegmentKey, UPLINK};

/// Time (ns) by which frames may bunch beyond their deadline and still be real-time frames: each late one is told, and
/// those behind it need not be late, too.
const LATER: u64 = 10_000_000;

impl Wanted {
    /// Finds the pairs of `uplink` with the vNICs of this host; remotes that moved are where they are.
    pub(super) fn of(
        uplink: &UplinkEntry,
        vnics: &BTreeMap<String, Entry>,
        known: &KnownSegments,
        moved: &Moves,
    ) -> Self {
        let keys: HashMap<Segment, &SegmentKey> =
            uplink.pairs.keys.iter().map(|keys| (keys.segment, keys)).collect();
        let indexes: HashMap<Segment, _> = known.iter().map(|(index, segment)| (*segment, *index)).collect();
        let peers: HashMap<&str, &Peer> =
            uplink.uplink.peers.iter().map(|peer| (peer.name.as_str(), peer)).collect();
        let mut wanted = Self::default();
        let mut by_segment: HashMap<Segment, Vec<&Remote>> = HashMap::new();
        let mut by_name: HashMap<&str, &Remote> = HashMap::new();
        for remote in &uplink.remotes {
            let (Some(keys), Some(index)) = (keys.get(&remote.segment), indexes.get(&remote.segment)) else {
                continue;
            };
            let peer = match moved.get(&(*index, remote.mac)) {
                Some(moved) => uplink.peer_at(moved.to),
                None => peers.get(remote.peer.as_str()).copied(),
            };
            let Some(peer) = peer.filter(|p| p.stamps && p.carries(remote.segment)) else { continue };
            let Some(number) = uplink.number(peer) else { continue };
            by_segment.entry(remote.segment).or_default().push(remote);
            by_name.insert(&remote.name, remote);
            let address = AddressKey::new(*index, remote.mac);
            wanted.registered.push(WantedRemote {
                address,
                peer: number,
                keys: valid(keys),
                envelope: envelope(remote),
            });
            let Some(deadline) = remote.deadline else { continue };
            let arrival = uplink.uplink.arrival_budget;
            let latency = uplink.uplink.network_budget(peer, deadline, arrival).map_or(0, Nanos::get);
            let shares = TimeShares { latency, arrival: arrival.get() };
            for name in &remote.to {
                let Some(entry) = vnics.get(name).filter(|entry| entry.segment == *index) else { continue };
                let pair = PairKey::new(*index, entry.vnic.mac, remote.mac);
                wanted.incoming.push(((name.clone(), remote.name.clone()), pair, number, shares));
                wanted.receivers.push(entry.index);
            }
        }
        for entry in vnics.values() {
            let vnic = &entry.vnic;
            let (Some(deadline), Some(keys)) = (vnic.deadline, keys.get(&vnic.segment)) else { continue };
            let deadline_us = u32::try_from(deadline.get().div_ceil(1000)).unwrap_or(u32::MAX);
            let all = vnic.to.iter().any(|to| to == UPLINK);
            let of_segment = by_segment.get(&vnic.segment).filter(|_| all).into_iter().flatten();
            let named = vnic.to.iter().filter_map(|to| by_name.get(to.as_str()));
            for remote in of_segment.chain(named).filter(|remote| remote.segment == vnic.segment) {
                let pair = PairKey::new(entry.segment, vnic.mac, remote.mac);
                let names = (vnic.name.clone(), remote.name.clone());
                wanted.outgoing.push((names, pair, deadline_us, number(keys.key.is_odd()), key(keys)));
            }
            if wanted.outgoing.len() > PAIRS {
                break;
            }
        }
        wanted
    }
}

/// Returns rate and depth that the frames of a vNIC with a deadline keep to at their arrival: with its deadline they may
/// have bunched for as long, and for a while more in a network that is late.
fn envelope(remote: &Remote) -> Option<(Rate, Bytes)> {
    let (rate, burst, deadline) = (remote.tx.max?, remote.tx.burst?, remote.deadline?);
    let bunched = u128::from(rate.bits()) * u128::from(deadline.get() + LATER) / 8_000_000_000;
    let burst = u128::from(burst.get()).saturating_add(bunched);
    Some((rate, Bytes::new(u64::try_from(burst).unwrap_or(u64::MAX))))
}

/// Returns the pairs that have a path through the network behind the plain NIC of `uplink`, in order; none without a
/// controller.
pub(super) fn marked(
    uplink: &UplinkEntry,
    vnics: &BTreeMap<String, Entry>,
    known: &KnownSegments,
) -> Vec<PairKey> {
    let Some(granted) = uplink.pairs.orders.granted.as_ref().filter(|_| uplink.uplink.is_plain()) else {
        return vec![];
    };
    let remotes: HashMap<&str, &Remote> =
        uplink.remotes.iter().map(|remote| (remote.name.as_str(), remote)).collect();
    let segments: HashMap<SegmentIndex, Segment> = known.iter().copied().collect();
    let pair = |(vnic, remote): &(String, String)| {
        let (entry, remote) = (vnics.get(vnic)?, remotes.get(remote.as_str())?);
        let is_one = segments.get(&entry.segment) == Some(&remote.segment);
        is_one.then(|| PairKey::new(entry.segment, entry.vnic.mac, remote.mac))
    };
    let mut marked: Vec<PairKey> = granted.iter().filter_map(pair).take(PAIRS).collect();
    marked.sort_unstable();
    marked
}

/// Returns the set of receivers.
pub(super) fn set_of(receivers: &[PortIndex]) -> PortSet {
    let mut set = PortSet::EMPTY;
    receivers.iter().for_each(|port| set.insert(*port));
    set
}
