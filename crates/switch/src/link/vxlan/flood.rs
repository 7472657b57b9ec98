//! One frame to every peer that carries its segment (head-end replication, RFC 7348, section 4.2).
//!
//! ```text
//!  frame ─▶ datagrams, in own memory ─▶ peer, peer, peer ┊ next call: peer, peer ...
//! ```
//!
//! A call makes a bounded number of copies, so that a segment of thousands of peers holds up nothing else.
//! The next flood is dropped while this one is under way. A flood without room waits for one loop; then its
//! remaining copies are dropped.

use super::encapsulate::{Outer, Room};
use super::lanes::Lanes;
use super::peers::Peers;
use crate::fdb::SegmentIndex;
use crate::slots::NEVER;
use std::sync::Arc;
use tidegate_evidence::DropReason;

/// Bytes of a flooded frame's datagrams.
const BYTES: usize = 1 << 17;
/// Most datagrams of a flooded frame.
const MOST: usize = 2048;
/// Most copies of datagrams in one call.
const COPIES: usize = 128;
/// Most bytes of them, but for the last.
const STEP: usize = 1 << 17;

/// A flood under way, or none.
pub struct Flood {
    memory: Box<[u8]>,
    /// Lengths of its datagrams.
    lens: Vec<u16>,
    /// Their bytes.
    len: usize,
    /// The peers when it began; `None`: nothing is under way.
    peers: Option<Arc<Peers>>,
    segment: SegmentIndex,
    outer: Outer,
    /// The peer that is next, of those that carry the segment.
    peer: usize,
    /// Its next datagram, and that one's place.
    datagram: usize,
    at: usize,
}

impl Default for Flood {
    /// Returns the memory for a flood at a time.
    fn default() -> Self {
        Self {
            memory: vec![0; BYTES].into(),
            lens: Vec::with_capacity(MOST),
            len: 0,
            peers: None,
            segment: SegmentIndex(0),
            outer: Outer { traffic_class: 0, flow: 0, lane: None, deadline: NEVER },
            peer: 0,
            datagram: 0,
            at: 0,
        }
    }
}

impl Flood {
    /// Whether one is under way.
    #[inline]
    pub fn is_under_way(&self) -> bool {
        self.peers.is_some()
    }

    /// Returns the memory for the datagrams of a new flood; only if none is under way.
    pub fn room(&mut self) -> impl Room + '_ {
        debug_assert!(!self.is_under_way(), "the memory is in use");
        self.lens.clear();
        self.len = 0;
        FloodRoom(self)
    }

    /// Begins to copy these datagrams to the peers that carry `segment`.
    pub fn begin(&mut self, peers: Arc<Peers>, segment: SegmentIndex, outer: Outer) {
        (self.peers, self.segment, self.outer) = (Some(peers), segment, outer);
        (self.peer, self.datagram, self.at) = (0, 0, 0);
    }

    /// Copies to the next peers, as long as there is room, and up to a bound.
    pub fn advance(&mut self, lanes: &mut Lanes) {
        let Some(peers) = &self.peers else { return };
        let members = peers.of_segment(self.segment);
        let mut bytes = 0;
        for _ in 0..COPIES {
            if bytes >= STEP {
                return;
            }
            let Some(peer) = members.get(self.peer).and_then(|peer| peers.get(*peer)) else {
                self.peers = None;
                return;
            };
            let len = usize::from(self.lens[self.datagram]);
            match lanes.destined(peer.address, &self.outer) {
                Some(mut room) => {
                    let Some(room) = room.room(len) else {
                        if lanes.stays_full(peer.address, &self.outer) {
                            let left = (members.len() - self.peer) * self.lens.len() - self.datagram;
                            lanes.counters.drop(DropReason::NoBuffers, left as u64);
                            self.peers = None;
                        }
                        return;
                    };
                    room.copy_from_slice(&self.memory[self.at..self.at + len]);
                    if self.peer > 0 {
                        lanes.on_wire.note_copy(len);
                    }
                    bytes += len;
                }
                None => lanes.counters.drop(DropReason::NoRoute, 1),
            }
            self.at += len;
            self.datagram += 1;
            if self.datagram == self.lens.len() {
                (self.peer, self.datagram, self.at) = (self.peer + 1, 0, 0);
            }
        }
    }
}

struct FloodRoom<'a>(&'a mut Flood);

impl Room for FloodRoom<'_> {
    fn room(&mut self, len: usize) -> Option<&mut [u8]> {
        let flood = &mut *self.0;
        if flood.lens.len() == MOST {
            return None;
        }
        let room = flood.memory.get_mut(flood.len..)?.get_mut(..len)?;
        flood.lens.push(u16::try_from(len).ok()?);
        flood.len += len;
        Some(room)
    }
}
