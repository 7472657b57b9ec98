//! The pairs of vNICs with stamps of one uplink: their tables for the link, and their counters.
//!
//! ```text
//!  Wanted ─▶ outgoing: Td, key, lane if granted ─▶ link
//!         └▶ incoming: shares, keys ──┘
//!  PairCounts ◀─ the link counts; the control plane reads: PairStatus
//! ```

use crate::control::message::{KeyPrint, PortOrders};
use crate::fdb::{PeerIndex, PortIndex};
use crate::link::vxlan::lanes::PAIR_LANES;
use crate::link::vxlan::pair_counts::PairCounts;
use crate::link::vxlan::pairs::{
    AddressKey, Envelope, Incoming, IncomingPairs, Outgoing, OutgoingPairs, PAIRS, PairKey, Registered,
    TimeShares,
};
use crate::stats::layout::Counter;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use tidegate_contract::{Bytes, Rate, SegmentKey};
use tidegate_evidence::{LateCounts, PairStatus};
use tidegate_uplink::stamp::{Key, KeyNumber, Keys};

/// Names of a pair: of a vNIC of this host, and of one of another host.
pub(super) type Names = (String, String);

/// Keys of segments, counters, and the tables that the link has.
#[derive(Default)]
pub struct Pairs {
    /// The keys of segments.
    pub(super) keys: Vec<SegmentKey>,
    /// By the names of the pair.
    counts: BTreeMap<Names, Arc<PairCounts>>,
    /// Lanes of their own, by the names of the pair.
    lanes: BTreeMap<Names, u8>,
    /// Source port of each lane.
    ports: Vec<u16>,
    /// The agent's, for lanes and their use.
    pub(super) orders: PortOrders,
    /// Trailers like stamps, of no pair.
    foreign: Arc<Counter>,
    /// What the link has.
    published: Option<(Wanted, PortOrders)>,
}

/// A registered vNIC of another host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WantedRemote {
    pub(super) address: AddressKey,
    pub(super) peer: PeerIndex,
    /// Valid keys.
    pub(super) keys: Keys,
    /// Rate and depth of its frames with a deadline, at their arrival.
    pub(super) envelope: Option<(Rate, Bytes)>,
}

/// What the link has to know.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Wanted {
    /// Pairs, Td (us), keys.
    pub(super) outgoing: Vec<(Names, PairKey, u32, KeyNumber, Key)>,
    pub(super) incoming: Vec<(Names, PairKey, PeerIndex, TimeShares)>,
    pub(super) registered: Vec<WantedRemote>,
    /// Receivers of frames with a deadline.
    pub(super) receivers: Vec<PortIndex>,
}

/// Returns the number of a key.
pub(super) fn number(is_odd: bool) -> KeyNumber {
    if is_odd { KeyNumber::Odd } else { KeyNumber::Even }
}

/// Returns the key in use.
pub(super) fn key(keys: &SegmentKey) -> Key {
    Key::new(keys.key.bytes())
}

/// Returns the keys whose stamps are valid.
pub(super) fn valid(keys: &SegmentKey) -> Keys {
    let mut valid = Keys::default();
    // The key in use last: it prevails over one of the same parity, which the agent refuses.
    for secret in keys.next.iter().chain([&keys.key]) {
        let place = if secret.is_odd() { &mut valid.odd } else { &mut valid.even };
        *place = Some(Key::new(secret.bytes()));
    }
    valid
}

impl Pairs {
    /// Returns no pairs, of segments with these keys, source ports of lanes, and orders for these.
    pub(super) fn new(keys: Vec<SegmentKey>, ports: Vec<u16>, orders: PortOrders) -> Self {
        Self { keys, ports, orders, ..Self::default() }
    }

    /// Returns the lanes whose ports pairs had.
    fn kept(&self) -> BTreeMap<Names, u8> {
        let lane_of = |port: u16| self.ports.iter().take(PAIR_LANES).position(|own| *own == port && port > 0);
        let kept = self.orders.kept.iter();
        kept.filter_map(|pair| Some(((pair.vnic.clone(), pair.remote.clone()), lane_of(pair.port)? as u8)))
            .collect()
    }

    /// Returns new tables for the link if it has others than `wanted`, by the orders.
    pub(super) fn tables(&mut self, uplink: &str, wanted: Wanted) -> Option<(OutgoingPairs, IncomingPairs)> {
        if self.published.as_ref().is_some_and(|(there, orders)| *there == wanted && *orders == self.orders) {
            return None;
        }
        let most = wanted.outgoing.len().max(wanted.incoming.len());
        if most > PAIRS {
            tracing::error!(
                uplink,
                "more than {PAIRS} pairs of vNICs with a deadline: the others have no stamps"
            );
        }
        let kept = self.kept();
        let mut before = std::mem::take(&mut self.counts);
        let counts = &mut self.counts;
        let mut counts_of = |names: &Names| {
            let kept = || before.remove(names).unwrap_or_default();
            counts.entry(names.clone()).or_insert_with(kept).clone()
        };
        let sending = || wanted.outgoing.iter().take(PAIRS);
        give_lanes(&mut self.lanes, sending().map(|(names, ..)| names), &kept);
        let (lanes, granted) = (&self.lanes, &self.orders.granted);
        let may_use = |names: &Names| granted.as_ref().is_none_or(|granted| granted.contains(names));
        let outgoing = sending().map(|(names, pair, deadline, number, key)| {
            let pair = Outgoing::new(*pair, *deadline, (*number, *key), counts_of(names));
            pair.with_lane(lanes.get(names).copied().filter(|_| may_use(names)))
        });
        let outgoing = OutgoingPairs::new(outgoing.collect());
        let incoming = wanted.incoming.iter().take(PAIRS);
        let incoming = incoming
            .map(|(names, pair, peer, shares)| Incoming::new(*pair, *peer, *shares, counts_of(names)));
        let incoming = incoming.collect();
        let registered = wanted.registered.iter().map(|remote| Registered {
            address: remote.address,
            peer: remote.peer,
            keys: remote.keys,
            envelope: remote.envelope.map(|(rate, burst)| Envelope::new(rate, burst)),
        });
        let incoming = IncomingPairs::new(registered.collect(), incoming, self.foreign.clone());
        self.published = Some((wanted, self.orders.clone()));
        Some((outgoing, incoming))
    }

    /// Returns which keys it has.
    pub(super) fn prints(&self) -> Vec<KeyPrint> {
        self.keys.iter().map(KeyPrint::of).collect()
    }

    /// Returns the counts of trailers like stamps that came from no pair.
    pub(super) fn foreign(&self) -> u64 {
        self.foreign.get()
    }

    /// Returns the source port of a pair's lane.
    fn port(&self, names: &Names) -> Option<u16> {
        let lane = self.lanes.get(names)?;
        self.ports.get(usize::from(*lane)).copied().filter(|port| *port > 0)
    }

    /// Returns what the counters say now.
    pub(super) fn status(&self) -> Vec<PairStatus> {
        let late = |[sender, network, receiver]: &[Counter; 3]| LateCounts {
            sender: sender.get(),
            network: network.get(),
            receiver: receiver.get(),
        };
        let status = |(names @ (vnic, remote), counts): (&Names, &Arc<PairCounts>)| PairStatus {
            vnic: vnic.clone(),
            remote: remote.clone(),
            port: self.port(names),
            sent: counts.sent.get(),
            arrived: counts.arrived.get(),
            lost: counts.lost.get(),
            reordered: counts.reordered.get(),
            restarted: counts.restarted.get(),
            replayed: counts.replayed.get(),
            forged: counts.forged.get(),
            excess: counts.excess.get(),
            dropped: counts.dropped.get(),
            met: counts.met.get(),
            late: late(&counts.late),
            uncertain: late(&counts.uncertain),
            unjudged: counts.unjudged.get(),
            worst_ns: counts.worst.get(),
        };
        self.counts.iter().map(status).collect()
    }
}

/// Gives lanes to pairs without one: first to those for which one is kept, then to the first others, of lanes kept for
/// no pair first. A pair keeps its lane as long as it is wanted.
fn give_lanes<'a>(
    lanes: &mut BTreeMap<Names, u8>,
    wanted: impl Iterator<Item = &'a Names> + Clone,
    kept: &BTreeMap<Names, u8>,
) {
    let stays: HashSet<&Names> = wanted.clone().collect();
    lanes.retain(|names, _| stays.contains(names));
    let mut used: HashSet<u8> = lanes.values().copied().collect();
    for names in wanted.clone().filter(|names| !lanes.contains_key(*names)).collect::<Vec<_>>() {
        if let Some(lane) = kept.get(names).filter(|lane| used.insert(**lane)) {
            lanes.insert(names.clone(), *lane);
        }
    }
    let kept: HashSet<u8> = kept.values().copied().collect();
    let mut free: Vec<u8> = (0..PAIR_LANES as u8).filter(|lane| !used.contains(lane)).collect();
    free.sort_by_key(|lane| kept.contains(lane));
    let mut free = free.into_iter();
    for names in wanted {
        if !lanes.contains_key(names) {
            let Some(lane) = free.next() else { return };
            lanes.insert(names.clone(), lane);
        }
    }
}

#[cfg(test)]
mod tests;
