//! Which flow a frame belongs to: frames of a flow keep their order, so they go to one queue.

use crate::frame::headers::{Headers, L3, L4};
use crate::frame::parse;

/// Equal for all frames of a flow, and of fragments to the same host, by the first bytes of a frame of `len` bytes.
pub fn flow(head: &[u8], len: usize) -> u32 {
    parse(head, len).map_or(0, |headers| hash(head, &headers))
}

fn hash(head: &[u8], headers: &Headers) -> u32 {
    let (l3, l4) = (headers.l3_offset as usize, headers.l4_offset as usize);
    let addresses = match headers.l3 {
        L3::Ipv4 => l3 + 12..l3 + 20,
        L3::Ipv6 => l3 + 8..l3 + 40,
        _ => 0..12,
    };
    let ports = match headers.l4 {
        L4::Tcp | L4::Udp => l4..l4 + 4,
        _ => 0..0,
    };
    let bytes = |range| head.get::<std::ops::Range<usize>>(range).unwrap_or(&[]);
    let mix = |hash: u32, word: &[u8; 4]| {
        (hash.rotate_left(5) ^ u32::from_le_bytes(*word)).wrapping_mul(0x9e37_79b1)
    };
    let (words, _) = bytes(addresses).as_chunks();
    let hash = words.iter().fold(0, mix);
    let (words, _) = bytes(ports).as_chunks();
    // The low bits choose the queue: the high ones are mixed best.
    words.iter().fold(hash, mix) >> 8
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::testing::{self, Frame};
    use proptest::prelude::*;

    proptest! {
        /// However much of the frame was copied beyond its headers, and whatever follows them.
        #[test]
        fn frames_of_a_flow_are_equal(spec in testing::frame(), payload in 0usize..400) {
            let frame = spec.build();
            let headers = frame.len() - spec.payload.len();
            let other = Frame { payload: vec![7; payload], ..spec }.build();
            prop_assert_eq!(flow(&frame, frame.len()), flow(&other, other.len()));
            for copied in [headers, 128, 192] {
                let head = &frame[..frame.len().min(copied.max(headers))];
                prop_assert_eq!(flow(head, frame.len()), flow(&frame, frame.len()));
            }
        }
    }

    #[test]
    fn flows_are_spread() {
        let mut seen = std::collections::BTreeSet::new();
        for port in 0..64u8 {
            let mut frame = Frame::udp4(4).build();
            frame[35] = port;
            seen.insert(flow(&frame, frame.len()) % 4);
        }
        assert_eq!(seen.len(), 4);
    }
}
