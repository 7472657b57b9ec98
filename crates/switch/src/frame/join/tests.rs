use super::*;
use crate::frame::offload::check;
use crate::frame::payload::{Payload, Span};
use crate::frame::testing::{self, Frame};
use crate::frame::{Segmenter, finish_checksum, parse};
use proptest::prelude::*;

/// A frame as it arrives from a wire.
fn arrived(frame: &[u8]) -> (&[u8], Headers, usize) {
    let head = &frame[..frame.len().min(HEADER_MAX)];
    (head, parse(head, frame.len()).unwrap(), frame.len())
}

/// The super-frame with its virtio header, and the frames that the segmenter makes of it, checksums finished.
fn cut(spec: &Frame, gso_size: u16) -> ((Vec<u8>, VnetHdr), Vec<Vec<u8>>) {
    let mut frame = spec.build();
    let (_, headers, total) = arrived(&frame);
    let vnet = VnetHdr {
        flags: NEEDS_CSUM,
        gso_type: match (spec.tcp, spec.v6) {
            (true, false) => GSO_TCPV4,
            (true, true) => GSO_TCPV6,
            (false, _) => GSO_UDP_L4,
        } | if spec.tcp && spec.flags & TCP_CWR != 0 { GSO_ECN } else { 0 },
        gso_size,
        hdr_len: u16::from(headers.len),
        csum_start: u16::from(headers.l4_offset),
        csum_offset: csum_offset(headers.l4).unwrap(),
        num_buffers: 1,
    };
    let offload = check(&vnet, &headers, total.min(HEADER_MAX), total).unwrap();
    let len = usize::from(headers.len);
    let mut memory = frame[len..].to_vec();
    let spans = [Span { ptr: memory.as_mut_ptr(), len: memory.len() as u32 }];
    // SAFETY: `memory` lives until the end of the function, and only `payload` reads it until then.
    let payload = unsafe { Payload::new(&spans) };
    let mut segmenter = Segmenter::new(&frame, &headers, offload, total - len).unwrap();
    let (mut out, mut parts) = ([0; HEADER_MAX], vec![]);
    while let Some(part) = segmenter.next(&mut out) {
        let body = payload.sub(part.payload_offset, part.payload_len);
        let mut bytes = vec![0; part.payload_len];
        body.copy_to(0, &mut bytes);
        let mut vnet = part.vnet;
        assert!(finish_checksum(&mut out[..part.head_len], &mut vnet, &part.headers, &body));
        parts.push([&out[..part.head_len], &bytes[..]].concat());
    }
    // The guest's partial checksum is the pseudo header's.
    let field = usize::from(headers.l4_offset) + usize::from(csum_offset(headers.l4).unwrap());
    let sum = pseudo_sum(&frame, &headers).unwrap();
    frame[field..field + 2].copy_from_slice(&sum.to_be_bytes());
    if !spec.v6 {
        let (l3, l4) = (usize::from(headers.l3_offset), usize::from(headers.l4_offset));
        frame[l3 + 10..l3 + 12].fill(0);
        let sum = !checksum::sum(&frame[l3..l4]);
        frame[l3 + 10..l3 + 12].copy_from_slice(&sum.to_be_bytes());
    }
    ((frame, vnet), parts)
}

/// All frames joined in their order: super-frames, and how many frames each holds.
fn join(frames: &[Vec<u8>]) -> Vec<(Vec<u8>, VnetHdr, u32)> {
    let mut done: Vec<(Vec<u8>, VnetHdr, u32)> = vec![];
    let mut open: Option<(Joined, Vec<u8>)> = None;
    let close = |open: Option<(Joined, Vec<u8>)>, done: &mut Vec<_>| {
        if let Some((joined, payload)) = open {
            let segments = joined.segments();
            let (head, headers, vnet) = joined.finish().unwrap();
            done.push(([&head[..usize::from(headers.len)], &payload].concat(), vnet, segments));
        }
    };
    for frame in frames {
        let (head, headers, total) = arrived(frame);
        if let Some((joined, payload)) = &mut open
            && joined.join(head, &headers, total)
        {
            payload.extend(&frame[usize::from(headers.len)..]);
            continue;
        }
        close(open.take(), &mut done);
        match Joined::begin(head, &headers, total) {
            Some(joined) => open = Some((joined, frame[usize::from(headers.len)..].to_vec())),
            None => done.push((frame.clone(), VnetHdr { num_buffers: 1, ..VnetHdr::default() }, 1)),
        }
    }
    close(open, &mut done);
    done
}

/// A super-frame of data: flags that a guest's stack sets on one.
fn data() -> impl Strategy<Value = (Frame, u16)> {
    let flags = prop::sample::select(vec![0x10u8, 0x18, 0x11, 0x19, 0x90, 0x98, 0x50]);
    (testing::frame_up_to(6000), flags, any::<prop::sample::Index>())
        .prop_filter("a super-frame", |(spec, ..)| spec.payload.len() > 60)
        .prop_map(|(spec, flags, size)| {
            let size = 60 + size.index(spec.payload.len() - 60);
            (Frame { flags, ..spec }, size as u16)
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn joined_segments_are_the_super_frame((spec, size) in data()) {
        let ((frame, vnet), parts) = cut(&spec, size);
        let joined = join(&parts);
        prop_assert_eq!(joined.len(), 1);
        let (bytes, hdr, segments) = &joined[0];
        prop_assert_eq!(*segments as usize, parts.len());
        prop_assert_eq!(bytes, &frame);
        prop_assert_eq!(hdr, &vnet);
    }

    /// Whatever is joined, cutting it gives the frames that arrived: losses, swaps and other flows included.
    #[test]
    fn cutting_the_joined_gives_what_arrived(
        (a, size) in data(), (b, other) in data(),
        order in prop::collection::vec((any::<bool>(), any::<prop::sample::Index>()), 1..30),
    ) {
        let (a, b) = (cut(&a, size).1, cut(&b, other).1);
        let frames: Vec<Vec<u8>> =
            order.iter().map(|(first, at)| if *first { at.get(&a) } else { at.get(&b) }.clone()).collect();
        let mut again = vec![];
        for (bytes, vnet, segments) in join(&frames) {
            if segments == 1 {
                again.push(bytes);
                continue;
            }
            let (head, headers, total) = arrived(&bytes);
            let offload = check(&vnet, &headers, head.len(), total).unwrap();
            let len = usize::from(headers.len);
            let mut memory = bytes[len..].to_vec();
            let spans = [Span { ptr: memory.as_mut_ptr(), len: memory.len() as u32 }];
            // SAFETY: `memory` lives until the end of the block, and only `payload` reads it.
            let payload = unsafe { Payload::new(&spans) };
            let mut segmenter = Segmenter::new(head, &headers, offload, total - len).unwrap();
            let mut out = [0; HEADER_MAX];
            while let Some(part) = segmenter.next(&mut out) {
                let body = payload.sub(part.payload_offset, part.payload_len);
                let mut copy = vec![0; part.payload_len];
                body.copy_to(0, &mut copy);
                let mut vnet = part.vnet;
                prop_assert!(finish_checksum(&mut out[..part.head_len], &mut vnet, &part.headers, &body));
                again.push([&out[..part.head_len], &copy[..]].concat());
            }
        }
        prop_assert_eq!(again, frames);
    }

    #[test]
    fn any_frames_are_joined_without_panic(first in testing::hostile(), second in testing::hostile()) {
        let heads = [&first, &second].map(|f| &f[..f.len().min(HEADER_MAX)]);
        let (Ok(a), Ok(b)) = (parse(heads[0], first.len()), parse(heads[1], second.len())) else { return Ok(()) };
        if let Some(mut joined) = Joined::begin(heads[0], &a, first.len()) {
            joined.join(heads[1], &b, second.len());
            prop_assert!(joined.finish().is_some());
        }
    }
}

#[test]
fn frames_that_end_a_burst_end_the_super_frame() {
    let spec = Frame { flags: 0x18, ..Frame::tcp4(3000) };
    let first = cut(&spec, 1000).1;
    let second = cut(&Frame { seq: spec.seq + 3000, ip_id: spec.ip_id + 3, ..spec.clone() }, 1000).1;
    let segments: Vec<u32> = join(&[first, second].concat()).iter().map(|j| j.2).collect();
    assert_eq!(segments, [3, 3], "PSH ends the first");
}

#[test]
fn a_super_frame_is_no_longer_than_an_ip_packet() {
    let frames: Vec<Vec<u8>> = (0..50)
        .flat_map(|n| cut(&Frame { seq: n * 2896, ip_id: n as u16 * 2, ..Frame::tcp4(2896) }, 1448).1)
        .collect();
    let joined = join(&frames);
    assert_eq!(joined.iter().map(|j| j.2).collect::<Vec<_>>(), [45, 45, 10]);
    assert!(joined.iter().all(|j| j.0.len() <= 14 + 65_535));
}
