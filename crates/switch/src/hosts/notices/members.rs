//! The vNICs of other hosts that RDMA reaches, as their hosts announce them.
//!
//! ```text
//!  announcements, the last of each (peer, segment, MAC) ─▶ Members ─▶ of several hosts the latest since ─▶ Heard
//!  time: 35 s without one ─▶ sends alone; 80 s ─▶ forgotten  ▲
//!  its host does not hear this one ─▶ sends alone ───────────┤
//!  restart, another key, a segment less ─▶ forgotten ────────┘
//! ```
//!
//! Announcements may overtake each other: the one that was sent last counts. A vNIC that lost its queue pair is
//! remembered as such, so that an earlier announcement which comes late does not bring the queue pair back.

use crate::fdb::PeerIndex;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use tidegate_contract::{Mac, Segment};

/// Most members of one peer.
pub(super) const OF_PEER: usize = 1024;
/// Most members of all peers: contracts name no more remotes.
pub(super) const IN_ALL: usize = 16_384;
/// How long a member is sent to without an announcement (ns): three rounds, and a half.
pub(super) const FRESH_FOR: u64 = 35_000_000_000;
/// How long a member stays without one (ns). More than twice as long: while announcements are lost, its host still sends
/// to this one, and frames of no member are dropped.
pub(super) const FORGOTTEN_AFTER: u64 = 80_000_000_000;
/// Time between two looks at what is to be forgotten (ns).
const LOOK_EVERY: u64 = 1_000_000_000;
/// Time between two times that changes are told (ns): making tables is work of others.
const TELL_EVERY: u64 = 100_000_000;

/// A vNIC of another host that RDMA reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heard {
    /// Its segment.
    pub segment: Segment,
    /// Its own MAC.
    pub mac: Mac,
    /// Its host. The FDB decides where frames go: of use only while frames for the MAC go to this one.
    pub peer: PeerIndex,
    /// The host's address: also its GID.
    pub address: IpAddr,
    /// Number of its queue pair, 2 to 2^24 - 1.
    pub queue_pair: u32,
    /// Q_Key of the queue pair: of the key that made the announcement's tag.
    pub q_key: u32,
    /// Most bytes that it takes in a datagram behind the [header](tidegate_uplink::rdma::Header): a frame, and the
    /// frame's stamp if it has one. 14 at least.
    pub longest: u16,
    /// Whether frames go to it. If not, its announcements stay out, or its host does not hear this one: it may only send.
    pub is_fresh: bool,
}

/// The queue pair of a member, as announced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueuePair {
    pub(super) number: u32,
    pub(super) longest: u16,
    pub(super) q_key: u32,
}

/// One announcement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Said {
    /// `None`: it has none any more.
    pub(super) queue_pair: Option<QueuePair>,
    /// Since when the vNIC is there, by the peer's clock (ns).
    pub(super) since_ns: u64,
    /// The same by this host's clock (ns), within the clocks' error; `None`, and before all others, while the peer's clock is not known.
    pub(super) since: Option<i128>,
    /// When it was sent, by the peer's clock (ns).
    pub(super) sent_ns: u64,
}

/// There is no room for one more member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Full;

/// What peers have announced.
#[derive(Debug, Default)]
pub(super) struct Members {
    peers: BTreeMap<PeerIndex, BTreeMap<(Segment, Mac), Entry>>,
    /// How many entries there are.
    count: usize,
    /// Peers that do not hear this host: they take no frame of its vNICs.
    deaf: BTreeSet<PeerIndex>,
    told: Vec<Heard>,
    has_changed: bool,
    /// When changes may be told next (ns).
    tell_at: u64,
    /// When to look for what is to be forgotten (ns).
    look_at: u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    said: Said,
    address: IpAddr,
    /// When the last announcement came (ns).
    heard_at: u64,
    /// Whether frames go to it.
    is_fresh: bool,
}

impl Members {
    /// Takes an announcement of a peer that came at `now` (ns).
    ///
    /// # Errors
    /// The peer, or all peers together, have as many members as they may.
    pub(super) fn hear(
        &mut self,
        (peer, address): (PeerIndex, IpAddr),
        vnic: (Segment, Mac),
        said: Said,
        now: u64,
    ) -> Result<(), Full> {
        let of_peer = self.peers.entry(peer).or_default();
        let was_fresh = of_peer.get(&vnic).is_some_and(|entry| entry.is_fresh);
        let before = of_peer.get(&vnic).map(|entry| entry.said);
        let said = match before {
            Some(before) if said.sent_ns < before.sent_ns => return Ok(()),
            // The same time is not computed anew: with other estimates of the clock it would move.
            Some(before) if said.since_ns == before.since_ns => {
                Said { since: before.since.or(said.since), ..said }
            }
            _ => said,
        };
        if before.is_none() && (of_peer.len() >= OF_PEER || self.count >= IN_ALL) {
            let gone = of_peer.iter().filter(|(_, entry)| entry.said.queue_pair.is_none());
            let oldest = gone.min_by_key(|(_, entry)| entry.heard_at).map(|(vnic, _)| *vnic);
            of_peer.remove(&oldest.ok_or(Full)?);
            self.count -= 1;
        }
        self.count += usize::from(before.is_none());
        of_peer.insert(vnic, Entry { said, address, heard_at: now, is_fresh: true });
        let counts = |said: Said, is_fresh| Some((said.queue_pair?, said.since, is_fresh));
        self.has_changed |= before.and_then(|said| counts(said, was_fresh)) != counts(said, true);
        Ok(())
    }

    /// Forgets all of a peer.
    pub(super) fn forget(&mut self, peer: PeerIndex) {
        self.retain(|of, _, _| of != peer);
    }

    /// Forgets what does not stay valid: peers that left, segments that do not reach them, Q_Keys of former keys.
    pub(super) fn keep_valid(&mut self, is_valid: impl Fn(PeerIndex, Segment, Option<u32>) -> bool) {
        self.retain(|peer, (segment, _), entry| {
            is_valid(peer, *segment, entry.said.queue_pair.map(|queue_pair| queue_pair.q_key))
        });
    }

    /// Notes that vNICs of this host came or went.
    pub(super) fn locals_changed(&mut self) {
        self.has_changed |= self.count > 0 || !self.told.is_empty();
    }

    /// Returns when [`take`](Self::take) has something to do (ns).
    pub(super) fn due(&self) -> Option<u64> {
        let tells = self.has_changed.then_some(self.tell_at);
        let looks = (self.count > 0).then_some(self.look_at);
        tells.into_iter().chain(looks).min()
    }

    /// Returns all members, by segment and MAC, if they have changed since the last time; a bounded number of times a
    /// second. `is_here`: a vNIC of this host, whose address is no other host's; `hears`: a peer that hears this host.
    pub(super) fn take(
        &mut self,
        now: u64,
        is_here: impl Fn(Segment, Mac) -> bool,
        hears: impl Fn(PeerIndex) -> bool,
    ) -> Option<Vec<Heard>> {
        if now >= self.look_at && self.count > 0 {
            self.look_at = now + LOOK_EVERY;
            self.retain(|_, _, entry| now.saturating_sub(entry.heard_at) < FORGOTTEN_AFTER);
            for entry in self.peers.values_mut().flat_map(BTreeMap::values_mut) {
                let is_fresh = now.saturating_sub(entry.heard_at) < FRESH_FOR;
                self.has_changed |= is_fresh != entry.is_fresh && entry.said.queue_pair.is_some();
                entry.is_fresh = is_fresh;
            }
            let deaf: BTreeSet<_> = self.peers.keys().copied().filter(|peer| !hears(*peer)).collect();
            self.has_changed |= deaf != self.deaf;
            self.deaf = deaf;
        }
        if !self.has_changed || now < self.tell_at {
            return None;
        }
        (self.has_changed, self.tell_at) = (false, now + TELL_EVERY);
        let heard: Vec<_> = self.latest().filter(|heard| !is_here(heard.segment, heard.mac)).collect();
        if heard == self.told {
            return None;
        }
        self.told.clone_from(&heard);
        Some(heard)
    }

    /// Returns the members; of two hosts that announce one vNIC one that still does, of these the one that has it later, of two at
    /// the same time the first.
    fn latest(&self) -> impl Iterator<Item = Heard> {
        let mut latest = BTreeMap::<(Segment, Mac), ((bool, Option<i128>), Heard)>::new();
        for (peer, vnics) in &self.peers {
            for ((segment, mac), Entry { said, address, is_fresh, .. }) in vnics {
                let Some(QueuePair { number, longest, q_key }) = said.queue_pair else { continue };
                let rank = (*is_fresh, said.since);
                if latest.get(&(*segment, *mac)).is_some_and(|(known, _)| *known >= rank) {
                    continue;
                }
                let heard = Heard {
                    segment: *segment,
                    mac: *mac,
                    peer: *peer,
                    address: *address,
                    queue_pair: number,
                    q_key,
                    longest,
                    is_fresh: *is_fresh && !self.deaf.contains(peer),
                };
                latest.insert((*segment, *mac), (rank, heard));
            }
        }
        latest.into_values().map(|(_, heard)| heard)
    }

    fn retain(&mut self, stays: impl Fn(PeerIndex, &(Segment, Mac), &Entry) -> bool) {
        for (peer, vnics) in &mut self.peers {
            vnics.retain(|vnic, entry| {
                let stays = stays(*peer, vnic, entry);
                self.has_changed |= !stays && entry.said.queue_pair.is_some();
                self.count -= usize::from(!stays);
                stays
            });
        }
        self.peers.retain(|_, vnics| !vnics.is_empty());
    }
}

#[cfg(test)]
mod tests;
