//! Cuts super-frames to single frames, for a receiver without TSO or USO, or to smaller super-frames, so that
//! none exceeds a burst.
//!
//! ```text
//!  head │ payload ........................... │      one super-frame
//!       ├──── k·gso_size ────┼──── k·gso_size ┤
//!  head'│ part 1             │
//!  head''                    │ part 2         │      k = 1: plain frames
//! ```
//!
//! The segmenter writes only headers; the payload stays in place. A part's L4 checksum is partial: the
//! receiver completes it, or [`crate::frame::finish_checksum`] does.

use crate::frame::checksum;
use crate::frame::finish::{csum_offset, pseudo_sum};
use crate::frame::headers::{FRAME_MAX, HEADER_MAX, Headers, L3, L4, get, get16, put};
use crate::frame::offload::Offload;
use crate::frame::vnet_hdr::{GSO_ECN, NEEDS_CSUM, VnetHdr};

const TCP_FIN: u8 = 0x01;
const TCP_PSH: u8 = 0x08;
const TCP_CWR: u8 = 0x80;

/// Cuts one super-frame; see [`Segmenter::next`].
#[derive(Clone, Debug)]
pub struct Segmenter<'a> {
    head: &'a [u8],
    headers: Headers,
    gso_type: u8,
    /// L4 payload of one segment (bytes).
    gso_size: u32,
    /// L4 payload of one part (bytes), a multiple of `gso_size`.
    part: u32,
    payload_len: u32,
    offset: u32,
}

/// One part of a super-frame.
#[derive(Clone, Copy, Debug)]
pub struct SegmentPart {
    /// Bytes of its headers.
    pub head_len: usize,
    /// Offset of its payload from the end of the super-frame's headers (bytes).
    pub payload_offset: usize,
    /// Bytes of its payload.
    pub payload_len: usize,
    /// Its headers.
    pub headers: Headers,
    /// Its virtio header: always NEEDS_CSUM; GSO for more than one segment.
    pub vnet: VnetHdr,
    /// Number of segments.
    pub segments: u32,
}

impl<'a> Segmenter<'a> {
    /// Cuts the super-frame that begins with `head`, with `payload_len` bytes after its headers, to single
    /// frames. `None` if `offload` is no super-frame's, or was not checked against this frame.
    #[inline]
    pub fn new(head: &'a [u8], headers: &Headers, offload: Offload, payload_len: usize) -> Option<Self> {
        let gso_size = u32::from(offload.gso_size().filter(|size| *size > 0)?);
        let head = head.get(..usize::from(headers.len))?;
        if headers.end as usize != head.len() + payload_len {
            return None;
        }
        Some(Self {
            head,
            headers: *headers,
            gso_type: offload.gso_type(),
            gso_size,
            part: gso_size,
            payload_len: payload_len as u32,
            offset: 0,
        })
    }

    /// Makes parts of as many whole segments as fit into `max_payload` bytes, at least one.
    #[inline]
    pub fn with_size(mut self, max_payload: usize) -> Self {
        // Larger values mean all of it; twice the maximum, because the size is rounded down to segments.
        let most = max_payload.min(2 * FRAME_MAX) as u32;
        self.part = (most / self.gso_size).max(1) * self.gso_size;
        self
    }

    /// Continues `payload_offset` bytes after the super-frame's headers, where an earlier part ended.
    #[inline]
    pub fn starting_at(mut self, payload_offset: usize) -> Self {
        self.offset = u32::try_from(payload_offset).unwrap_or(u32::MAX);
        self
    }

    /// Writes the headers of the next part to the start of `out`; `None` after the last part.
    #[inline]
    #[allow(clippy::should_implement_trait)] // an Iterator cannot borrow the caller's buffer
    pub fn next(&mut self, out: &mut [u8; HEADER_MAX]) -> Option<SegmentPart> {
        let offset = self.offset;
        let left = self.payload_len.checked_sub(offset).filter(|left| *left > 0)?;
        let len = left.min(self.part);
        let last = len == left;
        self.offset += len;

        let out = out.get_mut(..self.head.len())?;
        out.copy_from_slice(self.head);
        let mut headers = self.headers;
        headers.end = u32::from(headers.len) + len;
        // Counts segments, so that identifications of super-frame parts do not collide.
        patch_l3(out, &headers, (offset / self.gso_size) as u16)?;
        let cwr = patch_l4(out, &headers, offset, last)?;

        let segments = len.div_ceil(self.gso_size);
        let mut vnet = VnetHdr {
            flags: NEEDS_CSUM,
            csum_start: u16::from(headers.l4_offset),
            csum_offset: csum_offset(headers.l4)?,
            num_buffers: 1,
            ..VnetHdr::default()
        };
        if segments > 1 {
            vnet.gso_type = self.gso_type | if cwr { GSO_ECN } else { 0 };
            vnet.gso_size = self.gso_size as u16;
            vnet.hdr_len = u16::from(headers.len);
        }
        Some(SegmentPart {
            head_len: out.len(),
            payload_offset: offset as usize,
            payload_len: len as usize,
            headers,
            vnet,
            segments,
        })
    }
}

/// Sets the length, and for IPv4 identification and header checksum.
#[inline]
fn patch_l3(out: &mut [u8], headers: &Headers, segments_before: u16) -> Option<()> {
    let l3 = usize::from(headers.l3_offset);
    let len = headers.end as usize - l3;
    match headers.l3 {
        L3::Ipv4 => {
            put(out, l3 + 2, (len as u16).to_be_bytes())?;
            let id = get16(out, l3 + 4)?.wrapping_add(segments_before);
            put(out, l3 + 4, id.to_be_bytes())?;
            put(out, l3 + 10, [0, 0])?;
            let sum = checksum::sum(out.get(l3..usize::from(headers.l4_offset))?);
            put(out, l3 + 10, (!sum).to_be_bytes())
        }
        L3::Ipv6 => put(out, l3 + 4, (len.saturating_sub(40) as u16).to_be_bytes()),
        L3::None | L3::Arp => None,
    }
}

/// Sets TCP's sequence number and flags, UDP's length, and the partial checksum. Returns whether CWR is set.
#[inline]
fn patch_l4(out: &mut [u8], headers: &Headers, offset: u32, last: bool) -> Option<bool> {
    let l4 = usize::from(headers.l4_offset);
    let mut cwr = false;
    match headers.l4 {
        L4::Tcp => {
            let seq = u32::from_be_bytes(*get(out, l4 + 4)?);
            put(out, l4 + 4, seq.wrapping_add(offset).to_be_bytes())?;
            let flags = out.get_mut(l4 + 13)?;
            if !last {
                *flags &= !(TCP_FIN | TCP_PSH);
            }
            // Only the first segment reports the reduced window (RFC 3168, 6.1.2).
            if offset > 0 {
                *flags &= !TCP_CWR;
            }
            cwr = *flags & TCP_CWR != 0;
        }
        L4::Udp => put(out, l4 + 4, (headers.l4_len() as u16).to_be_bytes())?,
        L4::None | L4::Other => return None,
    }
    let field = l4 + usize::from(csum_offset(headers.l4)?);
    put(out, field, pseudo_sum(out, headers)?.to_be_bytes())?;
    Some(cwr)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::finish_checksum;
    use crate::frame::offload::{check, segments, wire_bytes};
    use crate::frame::parse;
    use crate::frame::payload::{Payload, Span};
    use crate::frame::testing::{self, Frame};
    use crate::frame::vnet_hdr::{GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4};
    use proptest::prelude::*;

    struct Super {
        frame: Vec<u8>,
        headers: Headers,
        offload: Offload,
    }

    impl Super {
        fn new(spec: &Frame, gso_size: u16) -> Self {
            let frame = spec.build();
            let head = &frame[..frame.len().min(HEADER_MAX)];
            let headers = parse(head, frame.len()).unwrap();
            let vnet = VnetHdr {
                flags: NEEDS_CSUM,
                gso_type: match (spec.tcp, spec.v6) {
                    (true, false) => GSO_TCPV4,
                    (true, true) => GSO_TCPV6,
                    (false, _) => GSO_UDP_L4,
                },
                gso_size,
                csum_start: u16::from(headers.l4_offset),
                csum_offset: csum_offset(headers.l4).unwrap(),
                ..VnetHdr::default()
            };
            let offload = check(&vnet, &headers, head.len(), frame.len()).unwrap();
            Self { frame, headers, offload }
        }

        fn segmenter(&self) -> Segmenter<'_> {
            let payload = self.frame.len() - usize::from(self.headers.len);
            Segmenter::new(&self.frame, &self.headers, self.offload, payload).unwrap()
        }

        /// Returns every part: segmenter's output, frame, frame with finished checksum.
        fn cut(&self, mut by: Segmenter<'_>) -> Vec<(SegmentPart, Vec<u8>, Vec<u8>)> {
            let mut memory = self.frame[usize::from(self.headers.len)..].to_vec();
            let spans = [Span { ptr: memory.as_mut_ptr(), len: memory.len() as u32 }];
            // SAFETY: `memory` lives on and is not touched.
            let payload = unsafe { Payload::new(&spans) };
            let mut parts = vec![];
            let mut out = [0; HEADER_MAX];
            while let Some(part) = by.next(&mut out) {
                let body = payload.sub(part.payload_offset, part.payload_len);
                let mut bytes = vec![0; part.payload_len];
                assert_eq!(body.copy_to(0, &mut bytes), part.payload_len);
                let partial = [&out[..part.head_len], &bytes[..]].concat();
                let mut vnet = part.vnet;
                let head = &mut out[..part.head_len];
                assert!(finish_checksum(head, &mut vnet, &part.headers, &body));
                parts.push((part, partial, [&out[..part.head_len], &bytes[..]].concat()));
            }
            parts
        }
    }

    /// Compares the super-frame with its parts put together by an independent reading.
    fn verify(spec: &Frame, gso_size: u16, max_payload: Option<usize>) {
        let whole = Super::new(spec, gso_size);
        let size = usize::from(gso_size);
        let by = whole.segmenter();
        let parts = whole.cut(match max_payload {
            Some(max) => by.with_size(max),
            None => by,
        });
        let k = max_payload.map_or(1, |max| (max / size).max(1));
        let original = {
            let mut vnet = VnetHdr {
                flags: NEEDS_CSUM,
                csum_start: u16::from(whole.headers.l4_offset),
                csum_offset: csum_offset(whole.headers.l4).unwrap(),
                ..VnetHdr::default()
            };
            let mut frame = whole.frame.clone();
            assert!(finish_checksum(&mut frame, &mut vnet, &whole.headers, &Payload::EMPTY));
            testing::dissect(&frame, false)
        };

        let (mut payload, mut made_bytes, mut made_segments) = (vec![], 0, 0);
        for (i, (part, partial, finished)) in parts.iter().enumerate() {
            let (first, last) = (i == 0, i + 1 == parts.len());
            testing::dissect(partial, true);
            let parts_of = testing::dissect(finished, false);
            assert_eq!(parts_of.constant, original.constant, "unrelated header bytes");
            assert_eq!(parts_of.payload.len(), part.payload_len);
            assert!(last || parts_of.payload.len() == k * size);
            assert!(!last || (1..=k * size).contains(&parts_of.payload.len()));
            assert_eq!(
                parts_of.ip_id,
                match spec.v6 {
                    true => 0,
                    false => spec.ip_id.wrapping_add((i * k) as u16),
                }
            );
            if spec.tcp {
                assert_eq!(parts_of.seq, spec.seq.wrapping_add(payload.len() as u32));
                let mut flags = spec.flags;
                if !last {
                    flags &= !0x09;
                }
                if !first {
                    flags &= !0x80;
                }
                assert_eq!(parts_of.flags, flags);
            }

            // The part must pass the same checks as a guest's own frame.
            let head = &partial[..partial.len().min(HEADER_MAX)];
            let headers = parse(head, partial.len()).unwrap();
            assert_eq!(headers, part.headers);
            let offload = check(&part.vnet, &headers, head.len(), partial.len()).unwrap();
            assert_eq!(offload.gso_size(), (part.payload_len > size).then_some(gso_size));
            assert_eq!(part.segments, segments(offload, &headers, partial.len()));
            let ecn = spec.tcp && first && spec.flags & 0x80 != 0 && part.segments > 1;
            assert_eq!(part.vnet.gso_type & GSO_ECN != 0, ecn);
            made_bytes += wire_bytes(offload, &headers, partial.len());
            made_segments += part.segments;
            payload.extend(parts_of.payload);
        }
        assert_eq!(payload, spec.payload);
        assert_eq!(made_segments, segments(whole.offload, &whole.headers, whole.frame.len()));
        assert_eq!(made_bytes, wire_bytes(whole.offload, &whole.headers, whole.frame.len()));
        if k == 1 {
            let sum: usize = parts.iter().map(|p| p.2.len()).sum();
            assert_eq!(sum, made_bytes as usize, "wire_bytes is the frames really made");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        #[test]
        fn frames_put_together_again_are_the_super_frame(
            spec in testing::frame_up_to(6000).prop_filter("a super-frame", |s| s.payload.len() > 60),
            size in any::<prop::sample::Index>(),
            max in prop::option::of(0usize..8000),
        ) {
            // At least 60, since a UDP super-frame has at most 128 datagrams; below the payload.
            let size = 60 + size.index(spec.payload.len() - 60);
            verify(&spec, size as u16, max);
        }
    }

    #[test]
    fn largest_super_frames() {
        verify(&Frame { flags: 0x99, ..Frame::tcp4(65_535 - 40) }, 8, None);
        verify(&Frame { flags: 0x99, ..Frame::tcp4(65_535 - 40) }, 1448, Some(9000));
        verify(&Frame { flags: 0x99, ..Frame::tcp6(65_535 - 20) }, 1440, Some(65_535));
        verify(&Frame { seq: u32::MAX - 5, ip_id: u16::MAX, ..Frame::tcp4(3000) }, 1448, None);
        verify(&Frame::udp6(65_535 - 8), 1400, None);
    }

    #[test]
    fn an_unchecked_super_frame_is_not_cut() {
        let whole = Super::new(&Frame::tcp4(3000), 1448);
        let (frame, headers) = (&whole.frame[..], &whole.headers);
        assert!(Segmenter::new(frame, headers, Offload::None, 3000).is_none());
        assert!(Segmenter::new(frame, headers, Offload::Checksum, 3000).is_none());
        assert!(Segmenter::new(frame, headers, Offload::Tso4(0), 3000).is_none());
        assert!(Segmenter::new(frame, headers, Offload::Tso4(1448), 2999).is_none());
        assert!(Segmenter::new(&frame[..53], headers, Offload::Tso4(1448), 3000).is_none());
        assert!(Segmenter::new(&frame[..54], headers, Offload::Tso4(1448), 3000).is_some());
    }
}
