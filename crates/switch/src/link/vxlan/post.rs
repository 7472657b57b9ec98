//! To other hosts: a frame is copied into datagrams, and a flush sends all by few calls.
//!
//! ```text
//!  frame ─ FDB ─┬▶ one peer ──────────────────▶ lane ─┐
//!               │     └▶ both have queue pairs: by RDMA
//!               ├▶ group, unknown ─▶ flood ─▶ lanes ──┴─ flush ─▶ kernel
//!               └▶ not behind this link: dropped
//! ```

use super::Rx;
use super::encapsulate::{Encapsulated, Outer, Stamping, Vxlan, encapsulate};
use super::pairs::{OutgoingPairs, PairKey};
use super::peers::{Peer, Peers};
use super::sockets::MESSAGE_MAX;
use crate::clock::RawTime;
use crate::fdb::{Destination, PeerIndex};
use crate::link::Posted;
use crate::slots::Frame;
use std::sync::Arc;
use tidegate_evidence::DropReason;
use tidegate_uplink::{stamp, vxlan};

/// Where a frame goes.
enum To {
    Peer(PeerIndex),
    /// All peers that carry its segment.
    All,
    Nowhere,
}

impl Rx {
    pub(in crate::link) fn post(&mut self, frame: &Frame) -> Posted {
        self.now = None;
        self.post_next(frame)
    }

    fn post_next(&mut self, frame: &Frame) -> Posted {
        // A frame of another host never goes to another host: two that flood to each other would loop.
        if frame.peer.is_some() {
            return Posted::Dropped(DropReason::NoReceiver);
        }
        let Some(vni) = self.peers.vni(frame.segment) else {
            return Posted::Dropped(DropReason::UnknownSegment);
        };
        let longest = match frame.offload.gso_size() {
            None => frame.len as usize,
            Some(size) => usize::from(frame.headers.len) + usize::from(size),
        };
        if longest + vxlan::LEN + stamp::LEN > MESSAGE_MAX {
            return Posted::Dropped(DropReason::PathMtu);
        }
        let outer = Outer::of(frame);
        let to = self.to(frame);
        if let To::Peer(peer) = to
            && let Some(way) = self.way(frame, vni, peer, longest)
        {
            return self.post_by_rdma(frame, way, &outer);
        }
        match to {
            To::Peer(peer) => self.post_to(frame, vni, peer, &outer),
            To::All => self.post_to_all(frame, vni, outer),
            To::Nowhere => Posted::Dropped(DropReason::NoReceiver),
        }
    }

    /// Posts the first of `frames`, which begin with `head`: returns how many are done, and the next one's result if it
    /// differs.
    pub(in crate::link) fn post_run<'a>(
        &mut self,
        head: &Frame,
        frames: impl Iterator<Item = &'a Frame>,
    ) -> (u32, Option<Posted>) {
        if self.may_hold(head) {
            // One by one: their source is the same, and each may be held.
            return (0, None);
        }
        self.now = None;
        let mut done = 0;
        for frame in frames {
            match self.post_next(frame) {
                Posted::Done => done += 1,
                other => return (done, Some(other)),
            }
        }
        (done, None)
    }

    /// Sends posted frames, as many as the kernel takes.
    pub(in crate::link) fn flush(&mut self) {
        self.flush_rdma();
        self.flood.advance(&mut self.lanes);
        self.lanes.flush();
    }

    /// Whether posted frames [may wait](super::lanes::Lanes::gathers) for more.
    #[inline]
    pub(in crate::link) fn gathers(&mut self, now: u64) -> bool {
        !self.flood.is_under_way() && !self.has_unsent_by_rdma() && self.lanes.gathers(now)
    }

    /// Whether they do.
    #[inline]
    pub(in crate::link) fn is_gathering(&self) -> bool {
        self.lanes.is_gathering()
    }

    /// Whether a flush would send frames if the kernel took them.
    #[inline]
    pub(in crate::link) fn has_unsent(&self) -> bool {
        self.lanes.has_unsent() || self.flood.is_under_way() || self.has_unsent_by_rdma()
    }

    /// Replaces the peers, and returns those before; a flood under way still reaches them.
    pub fn set_peers(&mut self, peers: Arc<Peers>) -> Arc<Peers> {
        std::mem::replace(&mut self.peers, peers)
    }

    /// Replaces the pairs whose frames get stamps, and returns those before.
    pub fn set_pairs(&mut self, mut pairs: OutgoingPairs) -> OutgoingPairs {
        pairs.continue_from(&self.pairs);
        std::mem::replace(&mut self.pairs, pairs)
    }

    fn to(&self, frame: &Frame) -> To {
        let dst = frame.headers.dst;
        if dst.is_group() {
            return To::All;
        }
        match self.fdb.destination(frame.segment, dst) {
            Some(Destination::Peer { link, peer }) if link == self.port => To::Peer(peer),
            Some(_) => To::Nowhere,
            None => To::All,
        }
    }

    fn post_to(&mut self, frame: &Frame, vni: u32, peer: PeerIndex, outer: &Outer) -> Posted {
        let Some(peer) = self.peers.get(peer).filter(|peer| peer.carries(frame.segment)) else {
            return Posted::Dropped(DropReason::NoReceiver);
        };
        let stamping = stamping(&mut self.pairs, &mut self.time, &mut self.now, frame, peer);
        let outer = &Outer { lane: stamping.as_ref().and_then(|stamping| stamping.pair.lane), ..*outer };
        let Some(mut room) = self.lanes.destined(peer.address, outer) else {
            return Posted::Dropped(DropReason::NoRoute);
        };
        match encapsulate(frame, &mut Vxlan::of(vni), &mut room, stamping) {
            Encapsulated::All => Posted::Done,
            Encapsulated::Part(payload) => Posted::Part(payload),
            Encapsulated::NoRoom if self.lanes.gives_way(peer.address, outer) => {
                Posted::Dropped(DropReason::NoBuffers)
            }
            Encapsulated::NoRoom => Posted::NoBuffers,
            Encapsulated::Malformed => Posted::Dropped(DropReason::Malformed),
        }
    }

    fn post_to_all(&mut self, frame: &Frame, vni: u32, outer: Outer) -> Posted {
        match self.peers.of_segment(frame.segment) {
            [] => return Posted::Dropped(DropReason::NoReceiver),
            [only] => return self.post_to(frame, vni, *only, &outer),
            _ => {}
        }
        self.flood.advance(&mut self.lanes);
        if self.flood.is_under_way() {
            // It would hold up frames to single peers, of other segments.
            return Posted::Dropped(DropReason::FloodCap);
        }
        let written = encapsulate(frame, &mut Vxlan::of(vni), &mut self.flood.room(), None);
        match written {
            Encapsulated::All => {
                self.flood.begin(self.peers.clone(), frame.segment, outer);
                self.flood.advance(&mut self.lanes);
                Posted::Done
            }
            // Longer than any flood of the switch.
            Encapsulated::Part(_) | Encapsulated::NoRoom => Posted::Dropped(DropReason::Unacceptable),
            Encapsulated::Malformed => Posted::Dropped(DropReason::Malformed),
        }
    }
}

/// Returns how a frame to `peer` is stamped, if it is: with a deadline, of a registered pair. `now` is read once for
/// frames that leave together.
#[inline]
pub(super) fn stamping<'a>(
    pairs: &'a mut OutgoingPairs,
    time: &mut RawTime,
    now: &mut Option<u64>,
    frame: &Frame,
    peer: &Peer,
) -> Option<Stamping<'a>> {
    if !frame.is_realtime() || !peer.takes_stamps || pairs.is_empty() {
        return None;
    }
    let pair = pairs.find(PairKey::new(frame.segment, frame.headers.src, frame.headers.dst))?;
    let now = *now.get_or_insert_with(|| time.now());
    Some(Stamping { pair, sent: time.of(frame.started), now })
}
