//! The part of a frame that is delivered: all of it, or some segments of a super-frame; with or without a
//! congestion mark.
//!
//! ```text
//!  head │ payload: segments of gso_size bytes ...................│     a super-frame that waits
//!       ├─ went ─────────┼─ from ─── Delivery ─── to ─┼─ waits ──┤
//!                        head' │ these segments       │                a smaller frame, in a copy of the head
//! ```
//!
//! The [rest](crate::sched::Queued::bytes) of a waiting frame tells which segments went, so there is no
//! cursor, and the rest shares the fate of the frame in its queue.

use crate::frame::ecn::set_ce;
use crate::frame::{self, Headers, Offload, Segmenter, parse};
use crate::slots::{Frame, body_spans, slice_spans};

/// The part of a frame that is delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// First byte of its payload: 0, or the beginning of a segment.
    pub from: u32,
    /// End of its payload, at the end of a segment; beyond the frame's end it means all.
    pub to: u32,
    /// Set "congestion experienced" in the header, if the sender [understands](crate::frame::ecn::ect) it.
    pub ce: bool,
}

impl Delivery {
    /// All of a frame, unchanged.
    pub const WHOLE: Self = Self { from: 0, to: u32::MAX, ce: false };

    /// Returns the delivery of a frame's rest of `left` bytes on the wire.
    #[inline]
    pub fn of_rest(frame: &Frame, left: u32) -> Self {
        if left == frame.wire_bytes {
            Self::WHOLE
        } else {
            Self { from: sent_payload(frame, left), ..Self::WHOLE }
        }
    }

    /// Returns the next part of a frame with `left` bytes on the wire, and its bytes: whole segments of at
    /// most `most` bytes, or a single segment; the whole rest of a frame that is no super-frame.
    pub fn next(frame: &Frame, left: u32, most: u32) -> (Self, u32) {
        let rest = Self::of_rest(frame, left);
        let Some(size) = frame.offload.gso_size().map(u32::from).filter(|_| most < left) else {
            return (rest, left);
        };
        let segment = u32::from(frame.headers.len) + size;
        let segments = (most / segment).max(1);
        let bytes = segments * segment;
        if bytes < left { (Self { to: rest.from + segments * size, ..rest }, bytes) } else { (rest, left) }
    }

    /// Returns the part as a frame in the memory of `frame`: a smaller super-frame, a single segment, or
    /// the whole. `None` if there are no such segments.
    pub fn cut(self, frame: &Frame) -> Option<Frame> {
        let mut whole = frame.clone();
        if self.ce {
            set_ce(&mut whole.bytes[..usize::from(frame.head_len)], &all_headers(frame));
        }
        let Some(size) = frame.offload.gso_size() else { return (self.from == 0).then_some(whole) };
        let payload = payload(frame);
        if self.from == 0 && self.to >= payload {
            return Some(whole);
        }
        let size = u32::from(size);
        // Whole segments, the last perhaps shorter.
        let most = (self.to.min(payload).checked_sub(self.from)?.div_ceil(size) * size) as usize;
        let mut part = whole.clone();
        let segmenter = Segmenter::new(whole.head(), &frame.headers, frame.offload, payload as usize)?;
        let cut = segmenter.with_size(most).starting_at(self.from as usize).next(&mut part.bytes)?;
        let len = cut.payload_len as u32;
        part.len = cut.head_len as u32 + len;
        part.head_len = cut.head_len as u16;
        (part.headers, part.vnet) = (cut.headers, cut.vnet);
        (part.wire_frames, part.wire_bytes) = on_wire(frame, len);
        if cut.segments == 1 {
            part.offload = Offload::Checksum;
        }
        let (spans, count) = body_spans(frame);
        let spans = &spans[..count];
        part.span_count = slice_spans(spans, cut.payload_offset, cut.payload_len, &mut part.spans) as u16;
        Some(part)
    }
}

/// Whether the sender of a frame [understands marks](frame::ect).
pub fn understands_marks(frame: &Frame) -> bool {
    frame::ect(frame.head(), &all_headers(frame))
}

/// Returns all headers of a frame; for a frame without requests, not all were parsed.
fn all_headers(frame: &Frame) -> Headers {
    match frame.offload {
        Offload::None => parse(frame.head(), frame.len as usize).unwrap_or(Headers::NONE),
        _ => frame.headers,
    }
}

/// Returns the bytes after the headers of a super-frame.
pub fn payload(frame: &Frame) -> u32 {
    frame.len - u32::from(frame.headers.len)
}

/// Returns how much of a frame's payload went if `left` bytes on the wire remain.
#[cold]
fn sent_payload(frame: &Frame, left: u32) -> u32 {
    let Some(size) = frame.offload.gso_size().map(u32::from) else { return 0 };
    // Only the last segment is shorter, and it remains.
    let segments = frame.wire_bytes.saturating_sub(left) / (u32::from(frame.headers.len) + size);
    segments * size
}

/// Returns frames and bytes on the wire of so many payload bytes of a super-frame, whole segments.
pub fn on_wire(frame: &Frame, payload: u32) -> (u32, u32) {
    let size = u32::from(frame.offload.gso_size().unwrap_or(u16::MAX));
    let segments = payload.div_ceil(size);
    (segments, segments * u32::from(frame.headers.len) + payload)
}

/// Returns the remaining segments of a frame with `left` bytes on the wire.
#[inline]
pub fn wire_frames_left(frame: &Frame, left: u32) -> u32 {
    if left == frame.wire_bytes {
        return frame.wire_frames;
    }
    on_wire(frame, payload(frame).saturating_sub(sent_payload(frame, left))).0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::offload::{check, segments, wire_bytes};
    use crate::frame::testing::{self, Frame as Spec};
    use crate::frame::vnet_hdr::{GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, NEEDS_CSUM};
    use crate::frame::{HEADER_MAX, VnetHdr};
    use crate::link::scratch::staged;
    use crate::slots::Slots;
    use crate::virtio::Span;
    use proptest::prelude::*;

    /// Returns a frame in `memory` whose sender asks for segments of `size` bytes, or for a checksum.
    fn frame(spec: &Spec, size: Option<u16>, memory: &mut [u8]) -> Frame {
        let headers = parse(&memory[..memory.len().min(HEADER_MAX)], memory.len()).unwrap();
        let gso_type = match (spec.tcp, spec.v6) {
            (true, false) => GSO_TCPV4,
            (true, true) => GSO_TCPV6,
            (false, _) => GSO_UDP_L4,
        };
        let vnet = VnetHdr {
            flags: NEEDS_CSUM,
            gso_type: size.map_or(0, |_| gso_type),
            gso_size: size.unwrap_or(0),
            csum_start: u16::from(headers.l4_offset),
            csum_offset: if spec.tcp { 16 } else { 6 },
            ..VnetHdr::default()
        };
        let mut slots = Slots::new(1, 0, 0);
        let reference = slots.take().unwrap();
        let frame = reference.get_mut();
        frame.head_len = memory.len().min(HEADER_MAX) as u16;
        frame.bytes[..usize::from(frame.head_len)].copy_from_slice(&memory[..usize::from(frame.head_len)]);
        frame.offload = check(&vnet, &headers, usize::from(frame.head_len), memory.len()).unwrap();
        (frame.headers, frame.vnet, frame.len) = (headers, vnet, memory.len() as u32);
        frame.wire_bytes = wire_bytes(frame.offload, &headers, memory.len());
        frame.wire_frames = segments(frame.offload, &headers, memory.len());
        let rest = &mut memory[usize::from(frame.head_len)..];
        // In two pieces; the second begins anywhere.
        let (first, second) = rest.split_at_mut(rest.len() / 3);
        frame.spans[0] = Span { ptr: first.as_mut_ptr(), len: first.len() as u32 };
        frame.spans[1] = Span { ptr: second.as_mut_ptr(), len: second.len() as u32 };
        frame.span_count = 2;
        let frame = frame.clone();
        slots.give(reference);
        frame
    }

    fn bytes(head: &[u8], spans: &[Span]) -> Vec<u8> {
        let mut bytes = head.to_vec();
        for span in spans {
            // SAFETY: it points into the test's memory, or the head of a living frame.
            bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(span.ptr, span.len as usize) });
        }
        bytes
    }

    /// Returns the frames on the wire of a frame.
    fn on_the_wire(frame: &Frame) -> Vec<Vec<u8>> {
        if frame.offload.gso_size().is_none() {
            return vec![bytes(frame.head(), frame.payload())];
        }
        let payload = payload(frame) as usize;
        let mut segmenter = Segmenter::new(frame.head(), &frame.headers, frame.offload, payload).unwrap();
        let (spans, count) = body_spans(frame);
        let (mut head, mut all) = ([0; HEADER_MAX], vec![]);
        while let Some(part) = segmenter.next(&mut head) {
            let mut piece = [Span::EMPTY; crate::virtio::MAX_SPANS + 1];
            let n = slice_spans(&spans[..count], part.payload_offset, part.payload_len, &mut piece);
            all.push(bytes(&head[..part.head_len], &piece[..n]));
        }
        all
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        /// However a super-frame is cut, the frames on the wire are the same: numbers, flags, checksums.
        #[test]
        fn parts_are_the_segments_of_the_whole(
            spec in testing::frame_up_to(6000).prop_filter("a super-frame", |s| s.payload.len() > 60),
            size in any::<prop::sample::Index>(),
            cuts in prop::collection::vec(1u32..9, 1..20),
            ce: bool,
        ) {
            let mut memory = spec.build();
            let size = 60 + size.index(spec.payload.len() - 60) as u16;
            let whole = frame(&spec, Some(size), &mut memory);
            let marked = Spec { ecn: if ce && spec.ecn != 0 { 3 } else { spec.ecn }, ..spec.clone() };
            let mut expected = marked.build();
            let expected = on_the_wire(&frame(&marked, Some(size), &mut expected));
            let (mut left, mut got) = (whole.wire_bytes, vec![]);
            let mut cuts = cuts.into_iter().cycle();
            while left > 0 {
                let rest = Delivery::of_rest(&whole, left);
                prop_assert_eq!(rest == Delivery::WHOLE, left == whole.wire_bytes);
                prop_assert_eq!(wire_frames_left(&whole, left) as usize, expected.len() - got.len());
                let to = rest.from + cuts.next().unwrap() * u32::from(size);
                let part = Delivery { to, ce, ..rest }.cut(&whole).unwrap();
                let (next, wire) = Delivery::next(&whole, left, part.wire_bytes);
                prop_assert_eq!((wire, next.cut(&whole).unwrap().len), (part.wire_bytes, part.len));
                let (next, wire) = Delivery::next(&whole, left, 0);
                prop_assert_eq!((wire, next.cut(&whole).unwrap().wire_frames), (expected[got.len()].len() as u32, 1));
                prop_assert_eq!(rest.from + super::payload(&part), to.min(super::payload(&whole)), "all of it");
                let sent = on_the_wire(&part);
                prop_assert_eq!(part.wire_bytes as usize, sent.iter().map(Vec::len).sum::<usize>());
                prop_assert_eq!(part.wire_frames as usize, sent.len());
                left -= part.wire_bytes;
                got.extend(sent);
                // A receiver's checks find a frame that a guest may send.
                let all = bytes(part.head(), part.payload());
                let headers = parse(&all[..all.len().min(HEADER_MAX)], all.len()).unwrap();
                prop_assert_eq!(headers, part.headers);
                let checked = check(&part.vnet, &headers, all.len().min(HEADER_MAX), all.len());
                prop_assert_eq!(checked, Ok(part.offload));
            }
            prop_assert_eq!(got, expected);
            let nothing = Delivery { from: payload(&whole), ..Delivery::WHOLE };
            prop_assert!(nothing.cut(&whole).is_none());
        }
    }

    /// Of a frame that goes through the worker's own memory, only the delivered part is copied there.
    #[test]
    fn a_part_alone_is_staged() {
        let spec = Spec::tcp4(6000);
        let mut memory = spec.build();
        let whole = frame(&spec, Some(1000), &mut memory);
        for (from, to, len) in [(0, 1000, 1000), (2000, 4000, 2000), (5000, u32::MAX, 1000)] {
            let what = Delivery { from, to, ce: false };
            let mut buffer = vec![0xee; 8000];
            let part = staged(&whole, what, &mut buffer).unwrap();
            assert_eq!(on_the_wire(&part), on_the_wire(&what.cut(&whole).unwrap()));
            assert!(buffer[len..].iter().all(|byte| *byte == 0xee), "{from}");
            assert!(staged(&whole, what, &mut buffer[..len - 200]).is_none());
        }
    }

    /// A plain frame has no parts; it is marked although its way did not read its headers.
    #[test]
    fn a_plain_frame_is_marked_whole() {
        for spec in [Spec { ecn: 2, ..Spec::tcp4(700) }, Spec { ecn: 1, ..Spec::tcp6(10) }] {
            for asks in [false, true] {
                let mut memory = spec.build();
                let mut plain = frame(&spec, None, &mut memory);
                if !asks {
                    (plain.offload, plain.headers) = (Offload::None, Headers::NONE);
                }
                let marked = Delivery { ce: true, ..Delivery::WHOLE }.cut(&plain).unwrap();
                let expected = Spec { ecn: 3, ..spec.clone() }.build();
                assert_eq!(bytes(marked.head(), marked.payload()), expected);
                assert!(Delivery { from: 60, ..Delivery::WHOLE }.cut(&plain).is_none());
            }
        }
    }
}
