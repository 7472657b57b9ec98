//! The other hosts that a link reaches: addresses, and the segments that each carries. Pure.
//!
//! ```text
//!  arrival:  outer source ─▶ by_source ─▶ peer ─┐
//!            VNI ─────────▶ segment ────────────┴▶ carries?
//!  sending:  peer ──▶ get ─▶ socket address        segment ─▶ vni
//!            segment ─▶ of_segment ─▶ all peers that get a copy
//! ```
//!
//! The table never changes: the control plane makes a new one. All lookups are binary searches.

use super::pairs::PairKey;
use crate::fdb::{PeerIndex, SegmentIndex};
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use tidegate_uplink::vxlan::VNI_MAX;

/// Most segments.
pub const SEGMENTS: usize = 65_535;
/// Most pairs of a peer and a segment that it carries.
pub const MEMBERSHIPS: usize = 1 << 20;

/// Another host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its number, unique over all links.
    pub index: PeerIndex,
    /// Where it receives VXLAN. Its frames come from this address, and any port.
    pub address: SocketAddr,
    /// Segments that it carries: it gets copies of their floods, and its frames of others are refused.
    pub segments: Vec<SegmentIndex>,
    /// It is a Tidegate host, and removes stamps.
    pub takes_stamps: bool,
}

/// Why a table cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeersError {
    /// Peers are told apart by their address.
    #[error("two peers have the address {0}: give each its own")]
    SameAddress(IpAddr),
    /// Peers are told apart by their number.
    #[error("two peers have the number {0}")]
    SameIndex(u16),
    /// It is no single host's address.
    #[error("{0} is not the address and port of one host")]
    Address(SocketAddr),
    /// The VNI exceeds 24 bits.
    #[error("VNI {0} is above {VNI_MAX}")]
    Vni(u32),
    /// A VNI or a segment occurs twice.
    #[error("VNI {vni} or segment number {segment} occurs twice")]
    SameSegment {
        /// The VNI.
        vni: u32,
        /// The segment's number.
        segment: u16,
    },
    /// A peer carries a segment without a VNI.
    #[error("the peer {address} carries segment number {segment}, which has no VNI")]
    NoVni {
        /// The peer.
        address: SocketAddr,
        /// The segment's number.
        segment: u16,
    },
    /// There are too many segments, or pairs of a peer and a segment.
    #[error("{0} segments and {1} pairs of peer and segment: at most {SEGMENTS} and {MEMBERSHIPS}")]
    TooMany(usize, usize),
}

/// The peers of one link, and its segments.
#[derive(Debug, Default)]
pub struct Peers {
    /// By number.
    peers: Box<[Peer]>,
    /// Positions in `peers`, by address.
    sources: Box<[(IpAddr, u16)]>,
    /// By VNI.
    vnis: Box<[(u32, SegmentIndex)]>,
    /// VNIs and members, by segment.
    segments: Box<[Segment]>,
    /// Peers that carry a segment, by number; segment after segment.
    members: Box<[PeerIndex]>,
    /// Copies that a flood makes, by segment; at least 1.
    copies: Arc<[u16]>,
    /// Pairs with a path behind a plain NIC, in order.
    marked: Box<[PairKey]>,
}

#[derive(Debug)]
struct Segment {
    segment: SegmentIndex,
    vni: u32,
    /// Its part of `members`.
    from: u32,
    to: u32,
}

impl Peers {
    /// Returns the table of `peers`, and of `segments` with their VNIs.
    ///
    /// # Errors
    /// An address, a number or a VNI is invalid or occurs twice, a peer carries an unknown segment, or there
    /// are too many.
    pub fn new(mut peers: Vec<Peer>, segments: &[(SegmentIndex, u32)]) -> Result<Self, PeersError> {
        let memberships = peers.iter().map(|peer| peer.segments.len()).sum();
        if segments.len() > SEGMENTS || memberships > MEMBERSHIPS {
            return Err(PeersError::TooMany(segments.len(), memberships));
        }
        peers.sort_unstable_by_key(|peer| peer.index);
        if let Some(two) = peers.windows(2).find(|two| two[0].index == two[1].index) {
            return Err(PeersError::SameIndex(two[0].index.get()));
        }
        for peer in &mut peers {
            peer.segments.sort_unstable();
            peer.segments.dedup();
            let ip = peer.address.ip();
            if peer.address.port() == 0 || ip.is_unspecified() || ip.is_multicast() || ip.to_canonical() != ip
            {
                return Err(PeersError::Address(peer.address));
            }
        }
        // PeerIndex bounds the number of peers.
        let mut sources: Vec<_> = (0..).zip(&peers).map(|(at, peer)| (peer.address.ip(), at)).collect();
        sources.sort_unstable();
        if let Some(two) = sources.windows(2).find(|two| two[0].0 == two[1].0) {
            return Err(PeersError::SameAddress(two[0].0));
        }
        let (vnis, segments) = segments_of(segments)?;
        let mut table =
            Self { peers: peers.into(), sources: sources.into(), vnis, segments, ..Self::default() };
        table.enter_members()?;
        Ok(table)
    }

    /// Returns the table of a plain NIC: one peer, the network behind it, carries all `segments`, here with their
    /// VLANs. It has no address, so it is found by [segment](Self::of_segment) alone.
    ///
    /// # Errors
    /// A segment or a VLAN occurs twice, or there are too many.
    pub fn of_nic(peer: PeerIndex, segments: &[(SegmentIndex, u32)]) -> Result<Self, PeersError> {
        let mut table = Self::new(vec![], segments)?;
        for (at, entry) in (0..).zip(&mut table.segments) {
            (entry.from, entry.to) = (at, at + 1);
        }
        table.members = vec![peer; table.segments.len()].into();
        Ok(table)
    }

    /// The same, in which these pairs have a path through the network behind a plain NIC.
    pub fn with_marked(self, mut pairs: Vec<PairKey>) -> Self {
        pairs.sort_unstable();
        Self { marked: pairs.into(), ..self }
    }

    /// Returns whether frames of a pair have a path: switches tell them by a priority in their tag.
    #[inline]
    pub fn is_marked(&self, pair: &PairKey) -> bool {
        self.marked.binary_search(pair).is_ok()
    }

    fn enter_members(&mut self) -> Result<(), PeersError> {
        let mut pairs = BTreeSet::new();
        for peer in &self.peers {
            for segment in &peer.segments {
                if self.vni(*segment).is_none() {
                    return Err(PeersError::NoVni { address: peer.address, segment: segment.0 });
                }
                pairs.insert((*segment, peer.index));
            }
        }
        let mut from = 0;
        for entry in &mut self.segments {
            let end = (SegmentIndex(u16::MAX), PeerIndex::MAX);
            let these = pairs.range((entry.segment, PeerIndex::MIN)..=end);
            let count = these.take_while(|(segment, _)| *segment == entry.segment).count() as u32;
            (entry.from, entry.to) = (from, from + count);
            from += count;
        }
        self.members = pairs.into_iter().map(|(_, peer)| peer).collect();
        let mut copies = vec![1; self.segments.last().map_or(0, |last| usize::from(last.segment.0) + 1)];
        for entry in &self.segments {
            copies[usize::from(entry.segment.0)] = ((entry.to - entry.from) as u16).max(1);
        }
        self.copies = copies.into();
        Ok(())
    }

    /// Returns the peer with that outer source address. IPv4 addresses may be mapped to IPv6.
    #[inline]
    pub fn by_source(&self, source: IpAddr) -> Option<&Peer> {
        let source = source.to_canonical();
        let at = self.sources.binary_search_by_key(&source, |(address, _)| *address).ok()?;
        self.peers.get(usize::from(self.sources[at].1))
    }

    /// Returns a peer.
    #[inline]
    pub fn get(&self, peer: PeerIndex) -> Option<&Peer> {
        let at = self.peers.binary_search_by_key(&peer, |peer| peer.index).ok()?;
        self.peers.get(at)
    }

    /// Returns the segment of a VNI.
    #[inline]
    pub fn segment(&self, vni: u32) -> Option<SegmentIndex> {
        let at = self.vnis.binary_search_by_key(&vni, |(vni, _)| *vni).ok()?;
        Some(self.vnis[at].1)
    }

    /// Returns the VNI of a segment.
    #[inline]
    pub fn vni(&self, segment: SegmentIndex) -> Option<u32> {
        self.entry(segment).map(|entry| entry.vni)
    }

    /// Returns the segments.
    pub fn segments(&self) -> impl ExactSizeIterator<Item = SegmentIndex> {
        self.segments.iter().map(|entry| entry.segment)
    }

    /// Returns how many copies a flood makes, by segment: its peers, and 1 without any.
    pub fn copies(&self) -> &Arc<[u16]> {
        &self.copies
    }

    /// Returns the peers that carry a segment, by number.
    #[inline]
    pub fn of_segment(&self, segment: SegmentIndex) -> &[PeerIndex] {
        self.entry(segment).map_or(&[], |entry| &self.members[entry.from as usize..entry.to as usize])
    }

    #[inline]
    fn entry(&self, segment: SegmentIndex) -> Option<&Segment> {
        let at = self.segments.binary_search_by_key(&segment, |entry| entry.segment).ok()?;
        self.segments.get(at)
    }
}

impl Peer {
    /// Whether it carries a segment.
    #[inline]
    pub fn carries(&self, segment: SegmentIndex) -> bool {
        self.segments.binary_search(&segment).is_ok()
    }
}

/// Returns segments by VNI, and VNIs by segment, without members.
#[allow(clippy::type_complexity, reason = "two fields of the table")]
fn segments_of(
    segments: &[(SegmentIndex, u32)],
) -> Result<(Box<[(u32, SegmentIndex)]>, Box<[Segment]>), PeersError> {
    if let Some((_, vni)) = segments.iter().find(|(_, vni)| *vni > VNI_MAX) {
        return Err(PeersError::Vni(*vni));
    }
    let mut vnis: Vec<_> = segments.iter().map(|(segment, vni)| (*vni, *segment)).collect();
    vnis.sort_unstable();
    let mut by_segment: Vec<_> = segments
        .iter()
        .map(|(segment, vni)| Segment { segment: *segment, vni: *vni, from: 0, to: 0 })
        .collect();
    by_segment.sort_unstable_by_key(|entry| entry.segment);
    let vni_twice = vnis.windows(2).find(|two| two[0].0 == two[1].0).map(|two| two[0]);
    let twice = by_segment.windows(2).find(|two| two[0].segment == two[1].segment);
    if let Some((vni, segment)) = vni_twice.or(twice.map(|two| (two[0].vni, two[0].segment))) {
        return Err(PeersError::SameSegment { vni, segment: segment.0 });
    }
    Ok((vnis.into(), by_segment.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn peer(number: u16, address: SocketAddr, segments: &[u16]) -> Peer {
        Peer {
            index: PeerIndex::new(number).unwrap(),
            address,
            segments: segments.iter().copied().map(SegmentIndex).collect(),
            takes_stamps: false,
        }
    }

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    proptest! {
        /// The model is a map of each kind.
        #[test]
        fn lookups_find_what_was_entered(
            peers in prop::collection::btree_map(0..PeerIndex::MOST, (any::<u8>(), any::<bool>(), prop::collection::vec(0..20u16, 0..6)), 0..40),
            vnis in prop::collection::vec(0..=VNI_MAX, 20),
        ) {
            let vnis: BTreeMap<u16, u32> = (0..).zip(vnis).collect();
            let mut addresses = BTreeMap::new();
            for (number, (byte, v6, carried)) in &peers {
                let ip: IpAddr = if *v6 { [0xfd00, 0, 0, 0, 0, 0, 1, u16::from(*byte)].into() } else { [10, 0, 1, *byte].into() };
                addresses.entry(ip).or_insert((*number, carried.clone()));
            }
            let segments: Vec<_> = vnis.iter().map(|(segment, vni)| (SegmentIndex(*segment), *vni)).collect();
            let list = addresses.iter().map(|(ip, (number, carried))| peer(*number, (*ip, 4789).into(), carried)).collect();
            let distinct: BTreeSet<_> = vnis.values().collect();
            let table = match Peers::new(list, &segments) {
                Ok(table) => table,
                Err(error) => {
                    prop_assert!(distinct.len() < vnis.len(), "{}", error);
                    return Ok(());
                }
            };
            for byte in 0..=255u8 {
                for ip in [IpAddr::from([10, 0, 1, byte]), [0xfd00, 0, 0, 0, 0, 0, 1, u16::from(byte)].into()] {
                    let found = table.by_source(ip).map(|peer| peer.index.get());
                    prop_assert_eq!(found, addresses.get(&ip).map(|(number, _)| *number));
                    if let IpAddr::V4(v4) = ip {
                        prop_assert_eq!(table.by_source(v4.to_ipv6_mapped().into()).map(|peer| peer.index.get()), found);
                    }
                }
            }
            for segment in 0..25u16 {
                let expected = vnis.get(&segment).copied();
                prop_assert_eq!(table.vni(SegmentIndex(segment)), expected);
                prop_assert!(expected.is_none_or(|vni| table.segment(vni) == Some(SegmentIndex(segment))));
                let mut members: Vec<_> = addresses.values().filter(|(_, carried)| carried.contains(&segment)).map(|(number, _)| *number).collect();
                members.sort_unstable();
                let found: Vec<_> = table.of_segment(SegmentIndex(segment)).iter().map(|peer| peer.get()).collect();
                prop_assert_eq!(&found, &members);
                let copies = table.copies().get(usize::from(segment)).copied();
                prop_assert_eq!(copies, expected.map(|_| members.len().max(1) as u16));
                for (number, _) in addresses.values() {
                    let peer = table.get(PeerIndex::new(*number).unwrap()).unwrap();
                    prop_assert_eq!((peer.index.get(), peer.carries(SegmentIndex(segment))), (*number, members.contains(number)));
                }
            }
        }
    }

    #[test]
    fn invalid_tables_are_named() {
        let segments = [(SegmentIndex(1), 42)];
        let (a, b) = (address("10.0.0.1:4789"), address("10.0.0.1:4790"));
        let error = |peers: Vec<Peer>, segments: &[_]| Peers::new(peers, segments).unwrap_err();
        assert_eq!(error(vec![peer(1, a, &[]), peer(2, b, &[])], &segments), PeersError::SameAddress(a.ip()));
        assert_eq!(
            error(vec![peer(1, a, &[]), peer(1, address("10.0.0.2:1"), &[])], &[]),
            PeersError::SameIndex(1)
        );
        for wrong in
            ["0.0.0.0:4789", "10.0.0.1:0", "224.0.0.1:4789", "[ff02::1]:4789", "[::ffff:10.0.0.1]:4789"]
        {
            assert_eq!(error(vec![peer(1, address(wrong), &[])], &[]), PeersError::Address(address(wrong)));
        }
        assert_eq!(error(vec![], &[(SegmentIndex(1), 1 << 24)]), PeersError::Vni(1 << 24));
        let same = PeersError::SameSegment { vni: 5, segment: 1 };
        assert_eq!(error(vec![], &[(SegmentIndex(1), 5), (SegmentIndex(2), 5)]), same);
        assert_eq!(error(vec![], &[(SegmentIndex(1), 5), (SegmentIndex(1), 6)]), same);
        assert_eq!(error(vec![peer(1, a, &[2])], &segments), PeersError::NoVni { address: a, segment: 2 });
        let many: Vec<_> = (0..=SEGMENTS as u32).map(|vni| (SegmentIndex(vni as u16), vni)).collect();
        assert_eq!(error(vec![], &many), PeersError::TooMany(SEGMENTS + 1, 0));
    }

    #[test]
    fn all_segments_of_a_nic_have_its_one_peer() {
        let index = PeerIndex::new(7).unwrap();
        let table = Peers::of_nic(index, &[(SegmentIndex(2), 42), (SegmentIndex(5), 7)]).unwrap();
        assert_eq!((table.segment(7), table.vni(SegmentIndex(2))), (Some(SegmentIndex(5)), Some(42)));
        assert_eq!(table.of_segment(SegmentIndex(2)), [index]);
        assert_eq!(table.of_segment(SegmentIndex(5)), [index]);
        assert_eq!((table.of_segment(SegmentIndex(3)), &table.copies()[..]), (&[][..], &[1; 6][..]));
        assert!(Peers::of_nic(index, &[(SegmentIndex(2), 42), (SegmentIndex(5), 42)]).is_err());
    }

    #[test]
    fn the_largest_table_is_made() {
        let segments: Vec<_> = (0..SEGMENTS as u32).map(|vni| (SegmentIndex(vni as u16), vni + 7)).collect();
        let peers = (0..PeerIndex::MOST)
            .map(|n| peer(n, ([10, 9, (n >> 8) as u8, n as u8], 4789).into(), &[n, 65_534]));
        let table = Peers::new(peers.collect(), &segments).unwrap();
        assert_eq!(table.of_segment(SegmentIndex(65_534)).len(), usize::from(PeerIndex::MOST));
        assert_eq!(table.of_segment(SegmentIndex(8000)).len(), 1);
        assert_eq!(table.segment(65_541), Some(SegmentIndex(65_534)));
        assert_eq!(table.by_source([10, 9, 31, 255].into()).map(|peer| peer.index.get()), Some(8191));
    }
}
