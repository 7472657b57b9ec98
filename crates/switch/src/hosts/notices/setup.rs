//! What the thread of notices has to know: links, peers, keys, vNICs.
//!
//! ```text
//!  uplinks, segments' keys ─▶ Setup ─┐
//!  vNICs with their state ─▶ Local ──┴▶ engine
//! ```

use crate::fdb::{PeerIndex, PortIndex, SegmentIndex};
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use tidegate_contract::{Mac, Segment};
use tidegate_uplink::rdma::q_key;
use tidegate_uplink::stamp::{KeyNumber, Keys};

/// Links, peers and keys.
#[derive(Default)]
pub struct Setup {
    /// The uplinks with a socket of notices.
    pub links: Vec<LinkSetup>,
    /// The segments with keys.
    pub segments: Vec<KeyedSegment>,
}

/// One uplink.
pub struct LinkSetup {
    /// Its port.
    pub index: PortIndex,
    /// Its name.
    pub name: String,
    /// This host's address.
    pub local: IpAddr,
    /// The UDP port of notices, at both ends.
    pub port: u16,
    /// Bound to both.
    pub socket: Arc<OwnedFd>,
    /// The hosts that it leads to.
    pub peers: Vec<PeerSetup>,
}

/// One other host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerSetup {
    /// Its number.
    pub index: PeerIndex,
    /// Its name.
    pub name: String,
    /// Its address.
    pub address: IpAddr,
    /// Whether it is a Tidegate host: only such a one is sent notices.
    pub stamps: bool,
    /// The segments that reach it; all if absent.
    pub segments: Option<Vec<Segment>>,
}

impl PeerSetup {
    /// Returns whether a segment reaches the peer.
    pub fn carries(&self, segment: Segment) -> bool {
        self.segments.as_ref().is_none_or(|segments| segments.contains(&segment))
    }
}

/// The keys of one segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyedSegment {
    /// The segment.
    pub segment: Segment,
    /// Its number here; absent if no port is in it.
    pub index: Option<SegmentIndex>,
    /// The keys that are valid.
    pub keys: Keys,
    /// The key of what this host sends. Queue pairs with the Q_Key of another one are not announced.
    pub sends: KeyNumber,
}

impl KeyedSegment {
    /// Returns the Q_Key under the key of a number; `None` if there is no such key.
    pub(super) fn q_key(&self, number: KeyNumber) -> Option<u32> {
        self.keys.get(number).map(|key| q_key(key, self.segment.id()))
    }

    /// Returns all its Q_Keys: those that queue pairs of other hosts may have.
    pub(super) fn q_keys(&self) -> [Option<u32>; 2] {
        [KeyNumber::Even, KeyNumber::Odd].map(|number| self.q_key(number))
    }
}

/// One vNIC of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Local {
    /// Its name.
    pub name: String,
    /// Its segment.
    pub segment: Segment,
    /// Its own MAC.
    pub mac: Mac,
    /// Whether frames to it arrive: a front end with queues, or a tap.
    pub is_up: bool,
    /// Number of the queue pair that takes frames for it, 2 to 2^24 - 1, if it has one.
    pub queue_pair: Option<u32>,
    /// The Q_Key that the queue pair has now.
    pub q_key: u32,
    /// Most bytes that the queue pair takes behind the [header](tidegate_uplink::rdma::Header): 14 at least.
    pub longest: u16,
}
