//! The frames that nearly all are, recognised in few instructions: to one receiver, untagged IPv4 without
//! options, and TCP or UDP over IPv6 without extension headers.
//!
//! ```text
//!  head ─▶ look ─┬▶ Plain: what [`parse`](fn@crate::frame::parse) would say, the part that is needed
//!                └▶ None: parse it
//! ```
//!
//! Whether such a frame is carried is decided by its addresses, and in few cases by its ports
//! ([`Policy::passes_plain`](super::Policy::passes_plain)).

use super::headers::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, PROTO_TCP, PROTO_UDP};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use tidegate_contract::Mac;

/// What decides on a plain frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plain {
    /// Destination MAC.
    pub dst: Mac,
    /// Source MAC.
    pub src: Mac,
    /// Differentiated services code point.
    pub dscp: u8,
}

/// Looks at the first bytes of a frame of `len` bytes: all of it, or 128 at least. `None` says
/// nothing about the frame.
#[inline(always)]
pub fn look(head: &[u8], len: usize) -> Option<Plain> {
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

/// The source address of a frame that [`look`] recognised in `head`.
pub fn source_ip(head: &[u8]) -> Option<IpAddr> {
    match head.get(14)? >> 4 {
        4 => head.get(26..)?.first_chunk::<4>().map(|a| Ipv4Addr::from(*a).into()),
        _ => head.get(22..)?.first_chunk::<16>().map(|a| Ipv6Addr::from(*a).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::policy::link_local::Held;
    use crate::frame::policy::tests::a_policy;
    use crate::frame::testing;
    use crate::frame::{HEADER_MAX, Verdict, parse};
    use proptest::prelude::*;

    /// What is recognised, the whole parser and policy see the same way.
    fn agrees(frame: &[u8], len: usize) -> bool {
        let Some(plain) = look(&frame[..frame.len().min(128)], len) else { return false };
        let head = &frame[..frame.len().min(HEADER_MAX)];
        let headers = parse(head, len).expect("what is plain is no contradiction");
        assert_eq!((headers.dst, headers.src, headers.dscp), (plain.dst, plain.src, plain.dscp));
        assert_eq!((headers.vlan, headers.source_ip(head)), (None, source_ip(head)));
        for policy in [a_policy(false), a_policy(true)] {
            let passes = policy.check(head, &headers, &Held::default()) == Verdict::Pass;
            let plainly = policy.passes_plain(head, plain.src, &Held::default());
            // Without prefixes nothing is left to ask.
            assert!(
                if policy.holds_addresses() { !plainly || passes } else { plainly == passes },
                "{headers:?}"
            );
        }
        true
    }

    proptest! {
        #[test]
        fn a_plain_frame_is_what_the_parser_says(spec in testing::frame()) {
            let frame = spec.build();
            agrees(&frame, frame.len());
        }

        /// Also where the bytes are changed at random.
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
    fn the_usual_frames_are_plain() {
        use testing::Frame;
        for spec in [Frame::udp4(3), Frame::tcp4(1000), Frame::udp6(0), Frame::tcp6(100)] {
            let frame = spec.build();
            assert!(agrees(&frame, frame.len()), "{spec:?}");
            for policy in [a_policy(false), a_policy(true)] {
                assert!(policy.passes_plain(&frame, testing::SRC, &Held::default()), "{spec:?}");
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
