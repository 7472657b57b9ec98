//! Congestion marks in the outermost IP header (ECN, RFC 3168). The marks of an inner header belong to its endpoints.

use crate::frame::checksum;
use crate::frame::headers::{Headers, L3, get16, put};

/// Congestion experienced. The other codes except 0 say that the sender understands it.
const CE: u8 = 3;

/// Returns the frame's mark as the lowest two bits, and its shift in the word; `None` without IP.
#[inline]
fn mark(head: &[u8], headers: &Headers) -> Option<(u16, u32)> {
    // IPv4: version, header length, DSCP, ECN. IPv6: version, DSCP, ECN, flow label.
    let shift = match headers.l3 {
        L3::Ipv4 => 0,
        L3::Ipv6 => 4,
        L3::None | L3::Arp => return None,
    };
    Some((get16(head, usize::from(headers.l3_offset))? >> shift & 3, shift))
}

/// Whether the sender understands congestion marks: the frame carries ECT(0), ECT(1) or CE.
#[inline]
pub fn ect(head: &[u8], headers: &Headers) -> bool {
    mark(head, headers).is_some_and(|(mark, _)| mark != 0)
}

/// Returns a frame's mark (0 to 3); `None` without IP.
#[inline]
pub fn ecn(head: &[u8], headers: &Headers) -> Option<u8> {
    mark(head, headers).map(|(mark, _)| mark as u8)
}

/// Replaces a frame's mark by `value` (0 to 3; higher bits are ignored), and updates IPv4's header checksum:
/// a wrong one stays wrong. Returns whether the frame carries the mark now.
#[inline]
pub fn set_ecn(head: &mut [u8], headers: &Headers, value: u8) -> bool {
    let Some((before, shift)) = mark(head, headers) else { return false };
    let l3 = usize::from(headers.l3_offset);
    let value = u16::from(value & 3);
    let Some(old) = get16(head, l3) else { return false };
    let new = old & !(3 << shift) | value << shift;
    if headers.l3 == L3::Ipv4 && before != value {
        let Some(check) = get16(head, l3 + 10) else { return false };
        put(head, l3 + 10, checksum::update(check, old, new).to_be_bytes());
    }
    put(head, l3, new.to_be_bytes());
    true
}

/// Marks a frame whose sender [understands](ect) it with CE, and updates IPv4's header checksum: a wrong one
/// stays wrong. Returns whether the frame carries the mark now.
#[inline]
pub fn set_ce(head: &mut [u8], headers: &Headers) -> bool {
    ect(head, headers) && set_ecn(head, headers, CE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::headers::HEADER_MAX;
    use crate::frame::parse;
    use crate::frame::testing::{self, Frame};
    use proptest::prelude::*;

    fn parsed(frame: &[u8]) -> Headers {
        parse(&frame[..frame.len().min(HEADER_MAX)], frame.len()).unwrap()
    }

    proptest! {
        /// A marked frame equals one that was built with the mark, with a fully computed checksum.
        #[test]
        fn a_mark_is_as_if_built_so(spec in testing::frame()) {
            let mut frame = spec.build();
            let headers = parsed(&frame);
            let understands = spec.ecn != 0;
            prop_assert_eq!(ect(&frame, &headers), understands);
            prop_assert_eq!(set_ce(&mut frame, &headers), understands);
            let ecn = if understands { 3 } else { 0 };
            let expected = Frame { ecn, ..spec }.build();
            prop_assert_eq!(&frame, &expected);
            prop_assert_eq!(headers, parsed(&expected), "nothing else changes");
        }

        #[test]
        fn a_replaced_mark_is_as_if_built_so(spec in testing::frame(), ecn in 0..4u8) {
            let mut frame = spec.build();
            let headers = parsed(&frame);
            prop_assert_eq!(super::ecn(&frame, &headers), Some(spec.ecn));
            prop_assert!(set_ecn(&mut frame, &headers, ecn));
            prop_assert_eq!(frame, Frame { ecn, ..spec }.build());
        }

        #[test]
        fn a_wrong_checksum_stays_wrong_by_as_much(spec in testing::frame(), wrong: u16) {
            let spec = Frame { v6: false, ecn: 2, extensions: vec![], ..spec };
            let mut frame = spec.build();
            let headers = parsed(&frame);
            let at = usize::from(headers.l3_offset) + 10;
            let right = u16::from_be_bytes([frame[at], frame[at + 1]]);
            frame[at..at + 2].copy_from_slice(&(right ^ wrong).to_be_bytes());
            prop_assert!(set_ce(&mut frame, &headers));
            let l3 = usize::from(headers.l3_offset);
            let end = l3 + 20 + spec.ip_options;
            let off = |frame: &[u8]| checksum::sum(&frame[l3..end]) % 0xffff;
            let mut before = spec.build();
            before[at..at + 2].copy_from_slice(&(right ^ wrong).to_be_bytes());
            prop_assert_eq!(off(&frame), off(&before));
        }

        #[test]
        fn only_the_mark_of_a_hostile_frame_changes(mut frame in testing::hostile()) {
            let Ok(headers) = parse(&frame[..frame.len().min(HEADER_MAX)], frame.len()) else { return Ok(()) };
            let before = frame.clone();
            let marked = set_ce(&mut frame, &headers);
            prop_assert_eq!(marked, ect(&before, &headers));
            let l3 = usize::from(headers.l3_offset);
            for (at, (new, old)) in frame.iter().zip(&before).enumerate() {
                let may = marked && [l3, l3 + 1, l3 + 10, l3 + 11].contains(&at);
                prop_assert!(new == old || may, "byte {}", at);
            }
        }
    }

    #[test]
    fn all_codes_of_both_families() {
        for (ecn, understands) in [(0, false), (1, true), (2, true), (3, true)] {
            for spec in [Frame::tcp4(9), Frame::tcp6(9)] {
                let mut frame = Frame { ecn, dscp: 11, vlan: Some(7), ..spec }.build();
                let headers = parsed(&frame);
                assert_eq!(set_ce(&mut frame, &headers), understands, "{ecn}");
                assert_eq!(parsed(&frame).dscp, 11);
            }
        }
    }

    #[test]
    fn a_frame_without_ip_and_a_head_cut_short_stay() {
        let mut frame = testing::arp(testing::SRC, testing::SRC4);
        let headers = parsed(&frame);
        let before = frame.clone();
        assert!(!set_ce(&mut frame, &headers));
        assert_eq!(frame, before);
        let whole = Frame { ecn: 2, ..Frame::tcp4(9) }.build();
        let headers = parsed(&whole);
        let mut short = whole[..24].to_vec();
        assert!(!set_ce(&mut short, &headers), "its checksum is not there");
        assert_eq!(short, &whole[..24]);
    }
}
