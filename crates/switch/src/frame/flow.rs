//! The flow of a frame. Frames of a flow keep their order, so they go to one queue.

use crate::frame::headers::{Headers, L3, L4, get};
use crate::frame::parse;
use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;

/// Random keys: a sender that does not know them cannot choose flows that collide.
static KEYS: LazyLock<Keys> = LazyLock::new(|| {
    let random = RandomState::new();
    let mut numbers = 0u64..;
    let mut next = || random.hash_one(numbers.next());
    Keys { flow: std::array::from_fn(|_| next()), host: std::array::from_fn(|_| next()) }
});

/// Words that identify a flow: addresses, ports, and protocol.
const WORDS: usize = 10;

/// Random numbers, one for each 32-bit word and one more.
struct Keys {
    flow: [u64; WORDS + 1],
    host: [u64; 4 + 1],
}

/// Multilinear hashing: two different texts have equal hashes for one in 2^32 keys (Lemire and Kaser,
/// *Strongly universal string hashing is fast*, 2014).
#[inline]
fn hash_keyed(first: u64, keys: &[u64], words: &[[u8; 4]]) -> u32 {
    let add = |sum: u64, (word, key): (&[u8; 4], &u64)| {
        sum.wrapping_add(key.wrapping_mul(u32::from_le_bytes(*word).into()))
    };
    (words.iter().zip(keys).fold(first, add) >> 32) as u32
}

/// The end of a flow that is its host. The flows of a host may [share](crate::sched) one part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostEnd {
    /// The source address: for frames from a vNIC.
    Source,
    /// The destination address: for frames to a vNIC.
    Destination,
}

/// Hashes of a frame's flow and host, with keys of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowKey {
    /// Hash of addresses, protocol and ports. Fragments have no ports: those between two hosts are one flow.
    /// Without IP: hash of the MACs and the EtherType.
    pub flow: u32,
    /// Hash of one address.
    pub host: u32,
}

impl FlowKey {
    /// Hashes a frame of `len` bytes by its first bytes; frames with broken headers have equal keys.
    pub fn of(head: &[u8], len: usize, end: HostEnd) -> Self {
        parse(head, len).map_or(Self { flow: 0, host: 0 }, |headers| Self::parsed(head, &headers, end))
    }

    /// Hashes a frame with [parsed](parse()) headers.
    pub fn parsed(head: &[u8], headers: &Headers, end: HostEnd) -> Self {
        // Addresses, ports, protocol, and the kind of addresses.
        let mut bytes = [0; 4 * WORDS];
        let host = addresses(head, headers, &mut bytes, end);
        if let (L4::Tcp | L4::Udp, Some(ports)) = (headers.l4, get::<4>(head, headers.l4_offset.into())) {
            bytes[32..36].copy_from_slice(ports);
        }
        if headers.l4 != L4::None {
            bytes[36] = headers.protocol;
        }
        bytes[37] = headers.l3 as u8;
        let Keys { flow: [first, flow @ ..], host: [other, keys @ ..] } = &*KEYS;
        Self {
            flow: hash_keyed(*first, flow, bytes.as_chunks().0),
            host: hash_keyed(*other, keys, host.as_chunks().0),
        }
    }
}

/// Writes both addresses of a frame to the front of `bytes`; returns the host's.
fn addresses(head: &[u8], headers: &Headers, bytes: &mut [u8; 4 * WORDS], end: HostEnd) -> [u8; 16] {
    let l3 = usize::from(headers.l3_offset);
    let is_source = end == HostEnd::Source;
    let mut host = [0; 16];
    match headers.l3 {
        L3::Ipv4 => {
            if let Some(both) = get::<8>(head, l3 + 12) {
                bytes[..8].copy_from_slice(both);
            }
            host[..4].copy_from_slice(if is_source { &bytes[..4] } else { &bytes[4..8] });
        }
        L3::Ipv6 => {
            if let Some(both) = get::<32>(head, l3 + 8) {
                bytes[..32].copy_from_slice(both);
            }
            host.copy_from_slice(if is_source { &bytes[..16] } else { &bytes[16..32] });
        }
        L3::None | L3::Arp => {
            bytes[..6].copy_from_slice(&headers.dst.0);
            bytes[6..12].copy_from_slice(&headers.src.0);
            bytes[12..14].copy_from_slice(&headers.ethertype.to_be_bytes());
            host[..6].copy_from_slice(if is_source { &headers.src.0 } else { &headers.dst.0 });
        }
    }
    host
}

/// Returns a value, from a frame's first bytes, that is equal for all frames of a flow, and for all fragments
/// between two hosts.
pub fn flow(head: &[u8], len: usize) -> u32 {
    parse(head, len).map_or(0, |headers| flow_of(head, &headers))
}

/// The same, from [parsed](parse()) headers.
pub fn flow_of(head: &[u8], headers: &Headers) -> u32 {
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
    // The low bits choose the queue; the high bits are mixed best.
    words.iter().fold(hash, mix) >> 8
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::testing::{self, Frame};
    use proptest::prelude::*;

    proptest! {
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

    fn key(frame: &[u8]) -> FlowKey {
        FlowKey::of(frame, frame.len(), HostEnd::Source)
    }

    proptest! {
        /// Other differences do not matter; different keys may be equal only by chance.
        #[test]
        fn the_key_is_of_the_five(a in testing::frame(), b in testing::frame()) {
            let five = |f: &Frame| (f.v6, f.tcp, f.v6.then_some(f.src6), f.ports);
            prop_assert_eq!(key(&a.build()) == key(&b.build()), five(&a) == five(&b));
            let as_b = Frame { v6: b.v6, tcp: b.tcp, src6: b.src6, ports: b.ports, extensions: vec![], ..a };
            prop_assert_eq!(key(&as_b.build()), key(&b.build()));
        }

        #[test]
        fn a_hostile_frame_has_a_key(frame in testing::hostile(), len in 0..70_000usize) {
            for end in [HostEnd::Source, HostEnd::Destination] {
                FlowKey::of(&frame, len, end);
            }
        }
    }

    #[test]
    fn the_host_is_one_address() {
        let [frame, mut other] = [Frame::udp4(4).build(), Frame::tcp4(9).build()];
        other[30] ^= 1; // the destination
        let hosts = |frame: &[u8]| {
            [HostEnd::Source, HostEnd::Destination].map(|end| FlowKey::of(frame, frame.len(), end).host)
        };
        assert_eq!(hosts(&frame)[0], hosts(&other)[0]);
        assert_ne!(hosts(&frame)[1], hosts(&other)[1]);
        assert_ne!(hosts(&frame)[0], hosts(&frame)[1]);
    }

    #[test]
    fn fragments_between_two_hosts_are_one_flow() {
        let fragment = |payload, offset: u8| {
            let mut frame = Frame::udp4(payload).build();
            frame[21] = offset;
            frame[20] = 0x20;
            frame[24..26].fill(0);
            let check = !testing::sum(&frame[14..34]);
            frame[24..26].copy_from_slice(&check.to_be_bytes());
            frame
        };
        let [first, second] = [fragment(80, 0), fragment(90, 11)];
        assert_eq!(key(&first), key(&second));
        assert_ne!(key(&first), key(&Frame::udp4(80).build()), "whole datagrams have ports");
    }

    #[test]
    fn frames_without_ip_are_flows_by_mac() {
        let arp = testing::arp(testing::SRC, testing::SRC4);
        let mut other = arp.clone();
        other[11] ^= 1;
        assert_eq!(key(&arp), key(&arp));
        assert_ne!(key(&arp), key(&other));
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
