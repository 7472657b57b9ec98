//! Priority marks in the IP header (DSCP, RFC 2474). The ECN bits beside them belong to the endpoints and stay.

use crate::frame::checksum;
use crate::frame::headers::{Headers, L3, get16, put};

/// Class selector 6, network control (RFC 2474, 4.2.2).
pub const CS6: u8 = 48;
/// Class selector 7.
pub const CS7: u8 = 56;
/// Expedited forwarding (RFC 3246): voice and real-time traffic.
pub const EF: u8 = 46;
/// Voice with admission (RFC 5865).
pub const VOICE_ADMIT: u8 = 44;

/// Whether networks treat `dscp` as real-time traffic.
#[inline]
pub const fn is_realtime(dscp: u8) -> bool {
    const MARKS: u64 = 1 << EF | 1 << VOICE_ADMIT | 1 << CS6 | 1 << CS7;
    MARKS >> (dscp & 0x3f) & 1 == 1
}

/// Sets a real-time mark to 0 (best effort); returns whether there was one.
#[inline]
pub fn clear_realtime_marks(head: &mut [u8], headers: &mut Headers) -> bool {
    is_realtime(headers.dscp) && set_dscp(head, headers, 0)
}

/// Sets the DSCP, 0 to 63 (higher bits are ignored), in the header and in `headers`. Returns whether the
/// frame now carries it: `false` without IP.
#[inline]
pub fn set_dscp(head: &mut [u8], headers: &mut Headers, value: u8) -> bool {
    let value = value & 0x3f;
    let l3 = usize::from(headers.l3_offset);
    let Some(old) = get16(head, l3) else {
        return false;
    };
    // IPv4: version, header length, then DSCP. IPv6: version, then DSCP.
    let shift = match headers.l3 {
        L3::Ipv4 => 2,
        L3::Ipv6 => 6,
        L3::None | L3::Arp => return false,
    };
    let new = old & !(0x3f << shift) | u16::from(value) << shift;
    if headers.l3 == L3::Ipv4 {
        let Some(check) = get16(head, l3 + 10) else {
            return false;
        };
        let check = checksum::update(check, old, new);
        put(head, l3 + 10, check.to_be_bytes());
    }
    put(head, l3, new.to_be_bytes());
    headers.dscp = value;
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::headers::HEADER_MAX;
    use crate::frame::parse;
    use crate::frame::testing::{self, Frame};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn set_is_as_if_built_so(spec in testing::frame(), value in 0u8..64) {
            let mut frame = spec.build();
            let expected = Frame { dscp: value, ..spec }.build();
            let head = frame.len().min(HEADER_MAX);
            let mut headers = parse(&frame[..head], frame.len()).unwrap();
            prop_assert!(set_dscp(&mut frame, &mut headers, value));
            prop_assert_eq!(&frame, &expected);
            prop_assert_eq!(headers, parse(&expected[..head], expected.len()).unwrap());
        }

        #[test]
        fn only_realtime_marks_are_cleared(spec in testing::frame()) {
            let mut frame = spec.build();
            let mut headers = parse(&frame[..frame.len().min(HEADER_MAX)], frame.len()).unwrap();
            let marked = [46, 44, 48, 56].contains(&spec.dscp);
            prop_assert_eq!(clear_realtime_marks(&mut frame, &mut headers), marked);
            let dscp = if marked { 0 } else { spec.dscp };
            prop_assert_eq!(frame, Frame { dscp, ..spec }.build());
        }
    }

    #[test]
    fn every_realtime_mark_is_cleared() {
        for dscp in 0..64 {
            for spec in [Frame::udp4(3), Frame::udp6(3)] {
                let mut f = Frame { dscp, ecn: 3, ..spec.clone() }.build();
                let mut h = parse(&f, f.len()).unwrap();
                let cleared = clear_realtime_marks(&mut f, &mut h);
                assert_eq!(cleared, [46, 44, 48, 56].contains(&dscp), "{dscp}");
                let left = if cleared { 0 } else { dscp };
                assert_eq!(f, Frame { dscp: left, ecn: 3, ..spec }.build());
            }
        }
    }

    #[test]
    fn frames_without_ip_stay() {
        let mut f = testing::arp(testing::SRC, testing::SRC4);
        let mut h = parse(&f, f.len()).unwrap();
        let before = f.clone();
        assert!(!set_dscp(&mut f, &mut h, 46));
        assert_eq!(f, before);
    }
}
