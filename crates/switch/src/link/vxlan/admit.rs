//! Whether a datagram is a frame for this host. Pure.
//!
//! ```text
//!  datagram of a peer ─▶ VXLAN header ─▶ segment that the peer carries ─▶ frame of 14 bytes or more
//!        └──────────────────────┴──────────────────┴──────────────────────────┴─▶ refused: why
//! ```

use super::peers::{Peer, Peers};
use crate::fdb::SegmentIndex;
use crate::frame::{FRAME_MAX, HEADER_MAX, ecn, parse};
use tidegate_evidence::DropReason;
use tidegate_uplink::ecn::{CE, ECT_1, combined};
use tidegate_uplink::vxlan;

/// Least length of a frame (bytes): an Ethernet header.
const FRAME_MIN: usize = 14;

/// Returns the segment and the frame of a datagram that `peer` sent.
///
/// # Errors
/// Why it is refused.
#[inline]
pub fn admit<'a>(
    peers: &Peers,
    peer: &Peer,
    datagram: &'a [u8],
) -> Result<(SegmentIndex, &'a [u8]), DropReason> {
    let (vni, frame) = vxlan::parse(datagram).map_err(|_| DropReason::Malformed)?;
    let segment = peers.segment(vni).filter(|segment| peer.carries(*segment));
    let segment = segment.ok_or(DropReason::UnknownSegment)?;
    match frame.len() {
        ..FRAME_MIN => Err(DropReason::Malformed),
        FRAME_MIN..=FRAME_MAX => Ok((segment, frame)),
        _ => Err(DropReason::TooLong),
    }
}

/// Returns the congestion mark that a frame gets from its outer header (RFC 6040, 4.2); `None` if it keeps its
/// own.
///
/// # Errors
/// The frame must be dropped.
#[inline]
pub fn mark(frame: &[u8], traffic_class: u8) -> Result<Option<u8>, DropReason> {
    mark_of(&frame[..frame.len().min(HEADER_MAX)], frame.len(), traffic_class)
}

/// The same, of the head of a frame of `len` bytes.
///
/// # Errors
/// The same.
#[inline]
pub fn mark_of(head: &[u8], len: usize, traffic_class: u8) -> Result<Option<u8>, DropReason> {
    let outer = traffic_class & 3;
    // The others change nothing.
    if outer != CE && outer != ECT_1 {
        return Ok(None);
    }
    let Some(inner) = parse(head, len).ok().and_then(|headers| ecn(head, &headers)) else {
        return Ok(None);
    };
    match combined(inner, outer) {
        Some(mark) => Ok((mark != inner).then_some(mark)),
        None => Err(DropReason::Congested),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fdb::PeerIndex;
    use crate::frame::testing::{self, Frame};
    use proptest::prelude::*;

    fn peers() -> Peers {
        let peer = Peer {
            index: PeerIndex::MIN,
            address: ([10, 0, 0, 1], 4789).into(),
            segments: vec![SegmentIndex(1)],
            takes_stamps: false,
        };
        Peers::new(vec![peer], &[(SegmentIndex(1), 42), (SegmentIndex(2), 43)]).unwrap()
    }

    fn admitted(datagram: &[u8]) -> Result<(SegmentIndex, usize), DropReason> {
        let peers = peers();
        let peer = peers.get(PeerIndex::MIN).unwrap();
        admit(&peers, peer, datagram).map(|(segment, frame)| (segment, frame.len()))
    }

    fn datagram(vni: u32, len: usize) -> Vec<u8> {
        [&vxlan::header(vni)[..], &vec![0xee; len]].concat()
    }

    #[test]
    fn each_reason() {
        assert_eq!(admitted(&datagram(42, 14)), Ok((SegmentIndex(1), 14)));
        assert_eq!(admitted(&datagram(42, FRAME_MAX)), Ok((SegmentIndex(1), FRAME_MAX)));
        assert_eq!(admitted(&datagram(42, FRAME_MAX + 1)), Err(DropReason::TooLong));
        assert_eq!(admitted(&datagram(42, 13)), Err(DropReason::Malformed));
        assert_eq!(admitted(&datagram(42, 14)[..7]), Err(DropReason::Malformed));
        assert_eq!(admitted(&[0; 60]), Err(DropReason::Malformed), "no VNI");
        assert_eq!(admitted(&[0x0c; 60]), Err(DropReason::Malformed), "GPE");
        // A segment of this host that the peer does not carry, and none at all.
        assert_eq!(admitted(&datagram(43, 60)), Err(DropReason::UnknownSegment));
        assert_eq!(admitted(&datagram(44, 60)), Err(DropReason::UnknownSegment));
    }

    proptest! {
        #[test]
        fn any_datagram_is_judged_without_panic(datagram in prop::collection::vec(any::<u8>(), 0..200), class: u8) {
            if let Ok((segment, len)) = admitted(&datagram) {
                prop_assert_eq!((segment, len), (SegmentIndex(1), datagram.len() - vxlan::LEN));
            }
            _ = mark(&datagram, class);
        }

        #[test]
        fn a_mark_is_that_of_the_rfc(spec in testing::frame(), outer in 0..4u8, dscp in 0..64u8) {
            let expected = match combined(spec.ecn, outer) {
                None => Err(DropReason::Congested),
                Some(mark) => Ok((mark != spec.ecn).then_some(mark)),
            };
            prop_assert_eq!(mark(&spec.build(), dscp << 2 | outer), expected);
        }
    }

    #[test]
    fn a_frame_without_ip_keeps_its_bytes() {
        assert_eq!(mark(&testing::arp(testing::SRC, testing::SRC4), 3), Ok(None));
        assert_eq!(mark(&Frame::udp4(4).build(), 3), Err(DropReason::Congested));
    }
}
