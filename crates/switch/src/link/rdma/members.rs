//! Which queue pairs there are: of this host's vNICs, and of members, other hosts' vNICs. Pure.
//!
//! ```text
//!  sending:  port ─▶ pair, guest ─▶ LocalPair, GuestRegions       segment, MAC ─▶ member ─▶ queue pair, Q_Key, address handles
//!  arrival:  number here ─▶ by_number ─▶ LocalPair       address, number there, segment ─▶ sender ─▶ member
//! ```
//!
//! The tables never change: the control plane makes new ones. All lookups are binary searches.

use super::guest::GuestRegions;
use super::pair::LocalPair;
use super::setup::PAIRS;
use crate::fdb::{PeerIndex, PortIndex, SegmentIndex};
use std::net::IpAddr;
use std::sync::Arc;
use tidegate_contract::Mac;
use tidegate_verbs::Address;

/// Address handles of a member: for each traffic class that frames may have.
pub const HANDLES: usize = 8;

/// A vNIC of another host that announced a queue pair.
#[derive(Clone, Debug)]
pub struct MemberEntry {
    /// Its segment.
    pub segment: SegmentIndex,
    /// That one's VNI: the index is given to another segment as soon as this one is gone.
    pub vni: u32,
    /// Its address in that.
    pub mac: Mac,
    /// The peer where it is.
    pub peer: PeerIndex,
    /// That peer's address, which is its GID.
    pub address: IpAddr,
    /// The number of its queue pair: 24 bits.
    pub queue_pair: u32,
    /// That one's Q_Key.
    pub q_key: u32,
    /// Longest frame that it takes (bytes), with a stamp if it has one.
    pub longest: u32,
    /// Handles of its host, by [`traffic_class`]; `None`: it may send, and frames to it leave by VXLAN.
    pub handles: Option<[Arc<Address>; HANDLES]>,
}

/// Returns the traffic class of handle `at`: ECN (RFC 3168) in its lower two bits, expedited forwarding from 4 on.
pub const fn traffic_class(at: usize) -> u8 {
    let dscp = if at & 4 == 0 { 0 } else { crate::frame::dscp::EF };
    dscp << 2 | (at & 3) as u8
}

/// Returns the place of the handle for a traffic class.
#[inline]
pub const fn handle(traffic_class: u8) -> usize {
    let ef = if traffic_class >> 2 == 0 { 0 } else { 4 };
    ef | (traffic_class & 3) as usize
}

/// All queue pairs of one link.
#[derive(Debug, Default)]
pub struct Tables {
    /// By port.
    pairs: Box<[Arc<LocalPair>]>,
    /// Numbers of these, with their places.
    numbers: Box<[(u32, u16)]>,
    /// By segment and address.
    members: Box<[(MemberKey, MemberEntry)]>,
    /// The queue pairs of these, with their places.
    senders: Box<[(SenderKey, u32)]>,
    /// Memory that the queue pairs of these ports send from, by port. After the queue pairs: freed later.
    guests: Box<[Arc<GuestRegions>]>,
}

/// A segment, and an address in it.
type MemberKey = (SegmentIndex, [u8; 6]);
/// The address and number of a queue pair, and the segment in which it was announced: what is announced in another
/// segment, under that one's key, hides none.
type SenderKey = (IpAddr, u32, SegmentIndex);

impl Tables {
    /// Returns the tables of these. Of several pairs of one port, the last counts, of all pairs as many as a
    /// [lane has](PAIRS); of several members of one address, or of one queue pair, in a segment, the first.
    pub fn new(mut pairs: Vec<Arc<LocalPair>>, members: Vec<MemberEntry>) -> Self {
        // The sort is stable.
        pairs.reverse();
        pairs.sort_by_key(|pair| pair.port);
        pairs.dedup_by_key(|pair| pair.port);
        pairs.truncate(PAIRS);
        let mut numbers: Vec<_> = (0..).zip(&pairs).map(|(at, pair)| (pair.number(), at)).collect();
        numbers.sort_unstable();
        let mut members: Vec<_> =
            members.into_iter().map(|member| ((member.segment, member.mac.0), member)).collect();
        members.sort_by_key(|(key, _)| *key);
        members.dedup_by_key(|(key, _)| *key);
        let mut senders: Vec<_> = (0..)
            .zip(&members)
            .map(|(at, (_, member))| ((member.address.to_canonical(), member.queue_pair, member.segment), at))
            .collect();
        senders.sort_unstable();
        senders.dedup_by_key(|(key, _)| *key);
        Self {
            pairs: pairs.into(),
            numbers: numbers.into(),
            members: members.into(),
            senders: senders.into(),
            guests: Box::default(),
        }
    }

    /// Lets queue pairs of ports send from the memory of these guests, at most one for each port.
    #[must_use]
    pub fn with_guests(self, mut guests: Vec<Arc<GuestRegions>>) -> Self {
        guests.sort_by_key(|guest| guest.port);
        guests.dedup_by_key(|guest| guest.port);
        Self { guests: guests.into(), ..self }
    }

    /// Returns the memory of all guests.
    pub fn guests(&self) -> &[Arc<GuestRegions>] {
        &self.guests
    }

    /// Returns the memory of a port's guest, if the device may read it.
    #[inline]
    pub fn guest(&self, port: PortIndex) -> Option<&Arc<GuestRegions>> {
        let at = self.guests.binary_search_by_key(&port, |guest| guest.port).ok()?;
        self.guests.get(at)
    }

    /// Returns the queue pair of a port.
    #[inline]
    pub fn pair(&self, port: PortIndex) -> Option<&Arc<LocalPair>> {
        self.pairs.get(self.pair_place(port)?)
    }

    /// Returns its place in the table.
    #[inline]
    pub(super) fn pair_place(&self, port: PortIndex) -> Option<usize> {
        self.pairs.binary_search_by_key(&port, |pair| pair.port).ok()
    }

    /// Returns the queue pair of this number.
    #[inline]
    pub fn by_number(&self, number: u32) -> Option<&Arc<LocalPair>> {
        let at = self.numbers.binary_search_by_key(&number, |(number, _)| *number).ok()?;
        self.pairs.get(usize::from(self.numbers[at].1))
    }

    /// Returns the member of an address in a segment.
    #[inline]
    pub fn member(&self, segment: SegmentIndex, mac: Mac) -> Option<&MemberEntry> {
        self.members.get(self.place(segment, mac)?).map(|(_, member)| member)
    }

    /// Returns its place in the table.
    #[inline]
    pub(super) fn place(&self, segment: SegmentIndex, mac: Mac) -> Option<usize> {
        self.members.binary_search_by_key(&(segment, mac.0), |(key, _)| *key).ok()
    }

    /// Returns the member at a place.
    #[inline]
    pub(super) fn at(&self, place: usize) -> Option<&MemberEntry> {
        self.members.get(place).map(|(_, member)| member)
    }

    /// Returns the member of a segment whose datagrams come from this address and queue pair.
    #[inline]
    pub fn sender(&self, address: IpAddr, number: u32, segment: SegmentIndex) -> Option<&MemberEntry> {
        let key = (address.to_canonical(), number, segment);
        let at = self.senders.binary_search_by_key(&key, |(key, _)| *key).ok()?;
        self.at(self.senders[at].1 as usize)
    }

    /// Returns the queue pairs, by port.
    pub fn pairs(&self) -> &[Arc<LocalPair>] {
        &self.pairs
    }

    /// Returns the members, by segment and address.
    pub fn members(&self) -> impl ExactSizeIterator<Item = &MemberEntry> {
        self.members.iter().map(|(_, member)| member)
    }
}
