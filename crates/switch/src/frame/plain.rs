//! Recognises the most frequent frames in few instructions: to one receiver, untagged IPv4 without options,
//! and TCP or UDP over IPv6 without extension headers.
//!
//! ```text
//!  head ─▶ look ─┬▶ Plain: what [`parse`](fn@crate::frame::parse) would say, the part that is needed
//!                └▶ None: parse it
//! ```
//!
//! Addresses, and in few cases ports, decide whether such a frame is carried
//! ([`Policy::passes_plain`](super::Policy::passes_plain)).

use super::headers::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, PROTO_TCP, PROTO_UDP};
use super::offload::{TCP_CSUM_OFFSET, UDP_CSUM_OFFSET};
use super::vnet_hdr::{GSO_NONE, NEEDS_CSUM, VnetHdr};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use tidegate_contract::Mac;

/// The fields of a plain frame that decide about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plain {
    /// Destination MAC.
    pub dst: Mac,
    /// Source MAC.
    pub src: Mac,
    /// Differentiated services code point.
    pub dscp: u8,
}

/// Looks at the first bytes of a frame of `len` bytes, all or at least 128. `None` says nothing about the frame.
#[inline(always)]
pub fn parse_plain(head: &[u8], len: usize) -> Option<Plain> {
    let ip = head.first_chunk::<34>()?;
    let word = |at: usize| u16::from_be_bytes([ip[at], ip[at + 1]]);
    if ip[0] & 1 == 1 {
        return None;
    }
    let dscp = match word(12) {
        ETHERTYPE_IPV4 => {
            let ip_len = usize::from(word(16));
            if ip[14] != 0x45 || ip_len < 20 || 14 + ip_len > len {
                return None;
            }
            ip[15] >> 2
        }
        ETHERTYPE_IPV6 => {
            let end = 54 + usize::from(word(18));
            if ip[14] >> 4 != 6 || end > len || !matches!(ip[20], PROTO_TCP | PROTO_UDP) {
                return None;
            }
            (ip[14] & 0xf) << 2 | ip[15] >> 6
        }
        _ => return None,
    };
    let [mut dst, mut src] = [[0; 6]; 2];
    dst.copy_from_slice(&ip[..6]);
    src.copy_from_slice(&ip[6..12]);
    Some(Plain { dst: Mac(dst), src: Mac(src), dscp })
}

/// Returns the virtio header to deliver with a frame recognised by [`parse_plain`], if it requests only the checksum
/// of its own TCP or UDP header. `None` says nothing about the frame.
#[inline(always)]
pub fn own_checksum(head: &[u8], asked: &[u8; VnetHdr::LEN]) -> Option<[u8; VnetHdr::LEN]> {
    let &[NEEDS_CSUM, GSO_NONE, _, _, _, _, s0, s1, o0, o1, ..] = asked else { return None };
    let ip = head.first_chunk::<34>()?;
    let word = |at: usize| u16::from_be_bytes([ip[at], ip[at + 1]]);
    let (at, end, protocol) = match ip[14] >> 4 {
        // More-fragments flag or an offset: a part of a datagram.
        4 if word(20) & 0x3fff != 0 => return None,
        4 => (34, 14 + usize::from(word(16)), ip[23]),
        _ => (54, 54 + usize::from(word(18)), ip[20]),
    };
    let l4 = head[..head.len().min(end)].get(at..)?;
    let (header_len, offset) = match protocol {
        PROTO_UDP => (8, UDP_CSUM_OFFSET),
        PROTO_TCP => (usize::from(l4.get(12)? >> 4) * 4, TCP_CSUM_OFFSET),
        _ => return None,
    };
    let least = usize::from(offset) + 2;
    let is_own = (u16::from_le_bytes([s0, s1]), u16::from_le_bytes([o0, o1])) == (at as u16, offset);
    let is_whole = header_len >= least && header_len <= l4.len();
    (is_own && is_whole).then_some([NEEDS_CSUM, GSO_NONE, 0, 0, 0, 0, s0, s1, o0, o1, 1, 0])
}

/// Returns the source address of a frame recognised by [`parse_plain`].
pub fn source_ip(head: &[u8]) -> Option<IpAddr> {
    match head.get(14)? >> 4 {
        4 => head.get(26..)?.first_chunk::<4>().map(|a| Ipv4Addr::from(*a).into()),
        _ => head.get(22..)?.first_chunk::<16>().map(|a| Ipv6Addr::from(*a).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::offload::{Offload, check, receiver_hdr};
    use crate::frame::policy::link_local::LinkLocals;
    use crate::frame::policy::tests::a_policy;
    use crate::frame::testing;
    use crate::frame::{HEADER_MAX, L4, Verdict, parse};
    use proptest::prelude::*;

    fn agrees(frame: &[u8], len: usize) -> bool {
        let Some(plain) = parse_plain(&frame[..frame.len().min(128)], len) else { return false };
        let head = &frame[..frame.len().min(HEADER_MAX)];
        let headers = parse(head, len).expect("what is plain is no contradiction");
        assert_eq!((headers.dst, headers.src, headers.dscp), (plain.dst, plain.src, plain.dscp));
        assert_eq!((headers.vlan, headers.source_ip(head)), (None, source_ip(head)));
        for policy in [a_policy(false), a_policy(true)] {
            let passes = policy.check(head, &headers, &LinkLocals::default()) == Verdict::Pass;
            let plainly = policy.passes_plain(head, plain.src, &LinkLocals::default());
            // Without prefixes nothing else is checked.
            assert!(
                if policy.holds_addresses() { !plainly || passes } else { plainly == passes },
                "{headers:?}"
            );
        }
        true
    }

    /// A recognised own checksum passes [`check`] and is delivered alike; returns whether it was recognised.
    fn leaves_its_checksum(frame: &[u8], asked: [u8; VnetHdr::LEN]) -> bool {
        let head = &frame[..frame.len().min(128)];
        let (plain, deliver) = (parse_plain(head, frame.len()), own_checksum(head, &asked));
        let (Some(_), Some(deliver)) = (plain, deliver) else { return false };
        let (headers, vnet) = (parse(head, frame.len()).unwrap(), VnetHdr::read_legacy(&asked).unwrap());
        assert_eq!(check(&vnet, &headers, head.len(), frame.len()), Ok(Offload::Checksum), "{headers:?}");
        assert!(matches!(headers.l4, L4::Tcp | L4::Udp));
        let mut expected = [0; VnetHdr::LEN];
        receiver_hdr(&vnet, &headers, Offload::Checksum).write(&mut expected);
        assert_eq!(deliver, expected);
        true
    }

    fn asks(start: u8, tcp: bool) -> [u8; VnetHdr::LEN] {
        [NEEDS_CSUM, 0, 9, 9, 9, 9, start, 0, if tcp { 16 } else { 6 }, 0, 9, 9]
    }

    proptest! {
        #[test]
        fn an_own_checksum_agrees_with_the_whole_check(
            frame in prop_oneof![testing::frame().prop_map(|spec| spec.build()), testing::hostile()],
            start in prop_oneof![Just(34u8), Just(54), any::<u8>()],
            tcp in any::<bool>(),
            change in prop::option::of((0usize..VnetHdr::LEN, any::<u8>())),
            cut in 0usize..40,
        ) {
            let mut asked = asks(start, tcp);
            if let Some((at, byte)) = change {
                asked[at] = byte;
            }
            let mut frame = frame;
            frame.truncate(frame.len().saturating_sub(cut));
            leaves_its_checksum(&frame, asked);
        }

        #[test]
        fn a_plain_frame_agrees_with_the_parser(spec in testing::frame()) {
            let frame = spec.build();
            agrees(&frame, frame.len());
        }

        #[test]
        fn a_broken_frame_is_not_taken_for_a_plain_one(
            spec in testing::frame(),
            changes in prop::collection::vec((0usize..60, any::<u8>()), 1..6),
            cut in 0usize..40,
        ) {
            let mut frame = spec.build();
            for (at, byte) in changes {
                if let Some(place) = frame.get_mut(at) {
                    *place = byte;
                }
            }
            frame.truncate(frame.len().saturating_sub(cut));
            agrees(&frame, frame.len());
        }
    }

    #[test]
    fn the_usual_checksums_are_known() {
        use testing::Frame;
        for (spec, start) in [(Frame::udp4(3), 34), (Frame::tcp4(1000), 34), (Frame::tcp6(100), 54)] {
            assert!(leaves_its_checksum(&spec.build(), asks(start, spec.tcp)), "{spec:?}");
            assert!(!leaves_its_checksum(&spec.build(), asks(start, !spec.tcp)), "{spec:?}");
            assert!(!leaves_its_checksum(&spec.build(), asks(start + 1, spec.tcp)), "{spec:?}");
        }
    }

    #[test]
    fn the_usual_frames_are_plain() {
        use testing::Frame;
        for spec in [Frame::udp4(3), Frame::tcp4(1000), Frame::udp6(0), Frame::tcp6(100)] {
            let frame = spec.build();
            assert!(agrees(&frame, frame.len()), "{spec:?}");
            for policy in [a_policy(false), a_policy(true)] {
                assert!(policy.passes_plain(&frame, testing::SRC, &LinkLocals::default()), "{spec:?}");
            }
        }
        let mut to_all = Frame::udp4(3).build();
        to_all[..6].fill(0xff);
        assert!(!agrees(&to_all, to_all.len()));
        let tagged = Frame { vlan: Some(5), ..Frame::udp4(3) }.build();
        assert!(!agrees(&tagged, tagged.len()));
        assert!(!agrees(&testing::arp(testing::SRC, testing::SRC4), 42));
    }
}
