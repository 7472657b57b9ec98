//! Frames of every kind: with and without tunnels, whole, cut short, and damaged.

use crate::table::{PEER, Table, VXLAN_PORT};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::net::IpAddr;

/// Addresses, ports and numbers are few, so that flows meet entries.
const FEW: std::ops::Range<u8> = 0..3;

/// Peers of some frames: outer addresses as in [`ip`].
pub fn peers() -> BTreeSet<[u8; PEER]> {
    let v4 = |from| ([10, 0, 0, from].into(), [10, 0, 1, 1].into());
    let v6 =
        |from| (IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, from]), IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, 1]));
    let pairs = [v4(1), v4(2), v6(1), v6(2)].into();
    Table::new(vec![], BTreeSet::new(), VXLAN_PORT).unwrap().with_peers(&pairs).peers
}

fn mac() -> impl Strategy<Value = Vec<u8>> {
    FEW.prop_map(|n| vec![0x52, 0x54, 0, 0, 0, n])
}

/// Ethernet with up to three tags, up to the type.
fn ethernet() -> impl Strategy<Value = Vec<u8>> {
    let tag = (any::<bool>(), FEW, any::<u8>());
    (mac(), prop::collection::vec(tag, 0..4)).prop_map(|(mac, tags)| {
        let mut bytes = [mac, vec![2; 6]].concat();
        for (service, vlan, priority) in tags {
            bytes.extend(if service { [0x88, 0xa8] } else { [0x81, 0] });
            bytes.extend([priority & 0xf0, vlan]);
        }
        bytes
    })
}

/// Type, and an IP header for a protocol.
fn ip(protocol: u8) -> BoxedStrategy<Vec<u8>> {
    let fragment =
        prop_oneof![8 => Just([0, 0]), 1 => Just([0x40, 0]), 1 => Just([0x20, 0]), 1 => Just([0, 7])];
    let v4 = (0..=10_usize, fragment, FEW, FEW).prop_map(move |(words, fragment, from, to)| {
        let mut header =
            vec![0x45 + words as u8, 0, 0, 0, 0, 1, fragment[0], fragment[1], 64, protocol, 0, 0];
        header.extend([10, 0, 0, from, 10, 0, 1, to]);
        header.extend(vec![1; words * 4]);
        [vec![8, 0], header].concat()
    });
    let extension =
        (prop::sample::select(vec![0, 43, 60, 44, 51]), prop_oneof![4 => 0..3_u8, 1 => any::<u8>()]);
    let extensions = prop_oneof![4 => Just(vec![]), 1 => prop::collection::vec(extension, 1..7)];
    let v6 = (extensions, FEW, FEW).prop_map(move |(extensions, from, to)| {
        let mut next: Vec<u8> = extensions.iter().map(|(kind, _)| *kind).collect();
        next.push(protocol);
        let mut header = vec![0x60, 0, 0, 0, 0, 0, next[0], 64];
        for last in [from, to] {
            header.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
        }
        for (kind, (_, length)) in next[1..].iter().zip(extensions) {
            header.extend([*kind, length]);
            header.extend(vec![0; 6 + usize::from(length) * 8]);
        }
        [vec![0x86, 0xdd], header].concat()
    });
    prop_oneof![v4, v6].boxed()
}

fn ports(to: u16) -> impl Strategy<Value = Vec<u8>> {
    FEW.prop_map(move |from| [&u16::from(from).to_be_bytes()[..], &to.to_be_bytes(), &[0; 4]].concat())
}

/// Type, IP, and what is in it, without a tunnel.
fn packet() -> impl Strategy<Value = Vec<u8>> {
    let some = prop::sample::select(vec![6_u8, 17, 33, 132, 136, 1, 58, 59, 4]);
    let carried = some.prop_flat_map(|protocol| (ip(protocol), FEW.prop_flat_map(|to| ports(to.into()))));
    let other = prop::collection::vec(any::<u8>(), 30).prop_map(|bytes| [vec![8, 6], bytes].concat());
    prop_oneof![8 => carried.prop_map(|(ip, ports)| [ip, ports].concat()), 1 => other]
}

/// An Ethernet frame, without a tunnel.
fn plain() -> impl Strategy<Value = Vec<u8>> {
    (ethernet(), packet()).prop_map(|(ethernet, packet)| [ethernet, packet].concat())
}

/// What is in a tunnel that names its type: the type and the rest.
fn typed() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![plain().prop_map(|frame| [vec![0x65, 0x58], frame].concat()), packet()]
}

fn vxlan() -> impl Strategy<Value = Vec<u8>> {
    let flags = prop_oneof![8 => Just(8_u8), 1 => any::<u8>()];
    (ip(17), ports(4789), flags, FEW, plain()).prop_map(|(ip, ports, flags, id, frame)| {
        [ip, ports, vec![flags, 0, 0, 0, 0, 0, id, 0], frame].concat()
    })
}

fn geneve() -> impl Strategy<Value = Vec<u8>> {
    let first = prop_oneof![8 => 0..5_u8, 1 => any::<u8>()];
    let flags = prop_oneof![8 => Just(0_u8), 1 => any::<u8>()];
    (ip(17), ports(6081), first, flags, FEW, typed()).prop_map(|(ip, ports, first, flags, id, typed)| {
        let options = vec![0; usize::from(first & 63) * 4];
        [ip, ports, vec![first, flags, typed[0], typed[1], 0, 0, id, 0], options, typed[2..].to_vec()]
            .concat()
    })
}

fn gre() -> impl Strategy<Value = Vec<u8>> {
    let flags = prop_oneof![8 => (0..8_u8).prop_map(|bits| [(bits & 4) << 5 | (bits & 3) << 4, 0]), 1 => any::<[u8; 2]>()];
    (ip(47), flags, FEW, typed()).prop_map(|(ip, flags, id, typed)| {
        let mut header = vec![flags[0], flags[1], typed[0], typed[1]];
        for (bit, last) in [(0x80, 9), (0x20, id), (0x10, 9)] {
            if flags[0] & bit != 0 {
                header.extend([0, 0, 0, last]);
            }
        }
        [ip, header, typed[2..].to_vec()].concat()
    })
}

fn esp() -> impl Strategy<Value = Vec<u8>> {
    (ip(50), FEW).prop_map(|(ip, id)| [ip, vec![0, 0, 0, id, 0, 0, 0, 1], vec![7; 20]].concat())
}

/// A frame as a sender makes it.
pub fn whole() -> impl Strategy<Value = Vec<u8>> {
    let within = prop_oneof![2 => vxlan(), 2 => geneve(), 2 => gre(), 1 => esp(), 2 => packet()];
    (ethernet(), within).prop_map(|(ethernet, within)| [ethernet, within].concat())
}

/// A frame as it may come: up to three of its bytes are others, or its end is missing. At least as long as the kernel's test runs need.
pub fn any_frame() -> impl Strategy<Value = Vec<u8>> {
    let damage = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4);
    let damaged = (whole(), damage).prop_map(|(mut frame, damage)| {
        for (at, byte) in damage {
            let at = at.index(frame.len());
            frame[at] = byte;
        }
        frame
    });
    let cut = (whole(), any::<prop::sample::Index>()).prop_map(|(mut frame, at)| {
        frame.truncate(at.index(frame.len()).max(super::run::SHORTEST));
        frame
    });
    let random = prop::collection::vec(any::<u8>(), super::run::SHORTEST..200);
    prop_oneof![4 => whole(), 3 => damaged, 1 => cut, 1 => random].prop_map(|mut frame| {
        frame.truncate(super::run::LONGEST);
        frame
    })
}
