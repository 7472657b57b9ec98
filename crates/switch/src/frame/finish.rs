//! Completes the checksum of a frame for a receiver without GUEST_CSUM (virtio 1.2, 5.1.3), which would not.

use crate::frame::checksum;
use crate::frame::headers::{Headers, L3, L4, PROTO_TCP, PROTO_UDP, get, put};
use crate::frame::offload::{TCP_CSUM_OFFSET, UDP_CSUM_OFFSET};
use crate::frame::payload::Payload;
use crate::frame::vnet_hdr::{NEEDS_CSUM, VnetHdr};

/// Completes the checksum of a frame, `head` followed by `payload`, if `vnet` marks it as partial, and clears
/// that mark. `vnet` is that of [`receiver_hdr`](crate::frame::receiver_hdr) or of a
/// [`SegmentPart`](crate::frame::SegmentPart); super-frames must be segmented first.
///
/// A guest's partial sum in a TCP or UDP header is not trusted: the pseudo header is summed from the checked
/// IP header. A checksum beyond these headers (a tunnel's inner one) has no other source.
///
/// Returns whether the checksum is complete. `false`, without a change, only if the field is not in `head`,
/// which [`crate::frame::offload::check`] refuses.
pub fn finish_checksum(
    head: &mut [u8],
    vnet: &mut VnetHdr,
    headers: &Headers,
    payload: &Payload<'_>,
) -> bool {
    if !vnet.needs_csum() {
        return true;
    }
    let start = usize::from(vnet.csum_start);
    let field = start + usize::from(vnet.csum_offset);
    let end = headers.end as usize;
    let in_head = head.len().min(end);
    if field + 2 > in_head {
        return false;
    }
    let own = start == usize::from(headers.l4_offset);
    if own && let Some(sum) = pseudo_sum(head, headers) {
        put(head, field, sum.to_be_bytes());
    }
    let sum = checksum::combine(
        checksum::sum(&head[start..in_head]),
        payload.checksum(0, end - in_head),
        in_head - start,
    );
    // In UDP, 0 means "no checksum" (RFC 768). 0xffff is the same number, and correct for unknown protocols.
    let checksum = match !sum {
        0 if headers.l4 != L4::Tcp || !own => 0xffff,
        c => c,
    };
    put(head, field, checksum.to_be_bytes());
    vnet.flags &= !NEEDS_CSUM;
    vnet.csum_start = 0;
    vnet.csum_offset = 0;
    true
}

/// Whether the checksums of a complete TCP segment are right, that of its IPv4 header among them.
pub fn is_intact(frame: &[u8], headers: &Headers) -> bool {
    let (l3, l4) = (usize::from(headers.l3_offset), usize::from(headers.l4_offset));
    let (Some(ip), Some(segment)) = (frame.get(l3..l4), frame.get(l4..headers.end as usize)) else {
        return false;
    };
    let Some(pseudo) = pseudo_sum(frame, headers).filter(|_| headers.l4 == L4::Tcp) else { return false };
    (headers.l3 != L3::Ipv4 || checksum::sum(ip) == 0xffff)
        && checksum::add(checksum::sum(segment), pseudo) == 0xffff
}

/// Returns the sum of the pseudo header of a TCP or UDP datagram; `None` for others.
#[inline]
pub(super) fn pseudo_sum(head: &[u8], headers: &Headers) -> Option<u16> {
    let protocol = match headers.l4 {
        L4::Tcp => PROTO_TCP,
        L4::Udp => PROTO_UDP,
        L4::None | L4::Other => return None,
    };
    let l3 = usize::from(headers.l3_offset);
    match headers.l3 {
        L3::Ipv4 => Some(checksum::pseudo_v4(
            get(head, l3 + 12)?,
            get(head, l3 + 16)?,
            protocol,
            headers.l4_len() as u16,
        )),
        L3::Ipv6 => {
            Some(checksum::pseudo_v6(get(head, l3 + 8)?, get(head, l3 + 24)?, protocol, headers.l4_len()))
        }
        L3::None | L3::Arp => None,
    }
}

/// Returns the offset of the checksum in a TCP or UDP header (bytes).
#[inline]
pub(super) fn csum_offset(l4: L4) -> Option<u16> {
    match l4 {
        L4::Tcp => Some(TCP_CSUM_OFFSET),
        L4::Udp => Some(UDP_CSUM_OFFSET),
        L4::None | L4::Other => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::headers::HEADER_MAX;
    use crate::frame::parse;
    use crate::frame::payload::Span;
    use crate::frame::testing::{self, Frame};
    use proptest::prelude::*;

    fn finish(frame: &[u8], head_len: usize, start: u16, offset: u16) -> (Vec<u8>, VnetHdr, bool) {
        let headers = parse(&frame[..frame.len().min(HEADER_MAX)], frame.len()).unwrap();
        let mut vnet =
            VnetHdr { flags: NEEDS_CSUM, csum_start: start, csum_offset: offset, ..VnetHdr::default() };
        let (head, tail) = frame.split_at(head_len);
        let (mut head, mut tail) = (head.to_vec(), tail.to_vec());
        let spans = [Span { ptr: tail.as_mut_ptr(), len: tail.len() as u32 }];
        // SAFETY: `tail` lives on and is not touched meanwhile.
        let payload = unsafe { Payload::new(&spans) };
        let done = finish_checksum(&mut head, &mut vnet, &headers, &payload);
        head.extend(tail);
        (head, vnet, done)
    }

    proptest! {
        #[test]
        fn finished_frames_verify(spec in testing::frame_up_to(3000), more in any::<prop::sample::Index>()) {
            let f = spec.build();
            let h = parse(&f[..f.len().min(HEADER_MAX)], f.len()).unwrap();
            let offset = csum_offset(h.l4).unwrap();
            // Any split with whole headers.
            let head_len = usize::from(h.len) + more.index(spec.payload.len() + 1);
            let (out, vnet, done) = finish(&f, head_len, u16::from(h.l4_offset), offset);
            prop_assert!(done);
            prop_assert_eq!(vnet, VnetHdr::default());
            prop_assert_eq!(testing::dissect(&out, false).payload, spec.payload);
        }
    }

    #[test]
    fn udp_checksum_of_zero_is_sent_as_ones() {
        // Choose the only word of the payload so that the checksum becomes 0.
        let mut spec = Frame { payload: vec![0, 0], ..Frame::udp4(0) };
        let zero = finish(&spec.build(), 42, 34, 6).0;
        spec.payload = zero[40..42].to_vec();
        let (out, ..) = finish(&spec.build(), 42, 34, 6);
        assert_eq!(out[40..42], [0xff, 0xff]);
        testing::dissect(&out, false);
    }

    #[test]
    fn padding_is_not_summed() {
        let mut f = Frame::udp4(5).build();
        let plain = finish(&f, 42, 34, 6).0;
        f.resize(60, 0xab);
        for head_len in [42, 47, 50, 60] {
            assert_eq!(finish(&f, head_len, 34, 6).0[..47], plain[..]);
        }
    }

    #[test]
    fn the_inner_checksum_includes_the_partial_sum_in_the_field() {
        let inner = Frame::tcp4(50).build();
        let inner_headers = parse(&inner, inner.len()).unwrap();
        let mut outer = Frame::udp4(8).build();
        outer.extend(&inner);
        let ip_len = (outer.len() - 14) as u16;
        outer[16..18].copy_from_slice(&ip_len.to_be_bytes());
        let at = 42 + 8 + 34;
        let partial = pseudo_sum(&inner, &inner_headers).unwrap();
        outer[at + 16..at + 18].copy_from_slice(&partial.to_be_bytes());
        let (out, _, done) = finish(&outer, at + 20, at as u16, 16);
        assert!(done);
        testing::dissect(&out[50..], false);
        assert_eq!(out[..50], outer[..50], "the outer headers stay as they were");
    }

    #[test]
    fn nothing_changes_without_a_request_or_a_field() {
        let f = Frame::tcp4(5).build();
        let (out, vnet, done) = finish(&f, f.len(), 50, 16);
        assert!(!done && out == f && vnet.needs_csum());
        let headers = parse(&f, f.len()).unwrap();
        let mut head = f.clone();
        let mut complete = VnetHdr::default();
        assert!(finish_checksum(&mut head, &mut complete, &headers, &Payload::EMPTY));
        assert_eq!(head, f);
    }
}
