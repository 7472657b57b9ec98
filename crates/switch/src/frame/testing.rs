//! Builds frames for tests byte by byte, independently of the tested code; checks finished frames by
//! recomputing everything.

use proptest::prelude::*;
use std::net::{Ipv4Addr, Ipv6Addr};
use tidegate_contract::Mac;

pub const DST: Mac = Mac([0x52, 0x54, 0, 0, 0, 2]);
pub const SRC: Mac = Mac([0x52, 0x54, 0, 0, 0, 1]);
pub const SRC4: [u8; 4] = [10, 1, 2, 3];
pub const DST4: [u8; 4] = [10, 1, 2, 254];
pub const SRC6: [u8; 16] = [0xfd, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
pub const DST6: [u8; 16] = [0xfd, 9, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 255];
const PORTS: [u16; 2] = [0x9c40, 0x1451];
/// Offset of the IP header in an untagged frame.
pub const V6: usize = 14;

/// A TCP or UDP frame to build. Its L4 checksum field holds garbage, as a guest's may.
#[derive(Clone, Debug)]
pub struct Frame {
    pub vlan: Option<u16>,
    pub v6: bool,
    pub tcp: bool,
    /// IPv6 source address.
    pub src6: [u8; 16],
    /// Source and destination.
    pub ports: [u16; 2],
    pub dscp: u8,
    pub ecn: u8,
    pub ip_id: u16,
    /// Bytes of IPv4 options, a multiple of 4 up to 40.
    pub ip_options: usize,
    /// IPv6 extension headers: protocol number and bytes; `build` fills in next-header.
    pub extensions: Vec<(u8, Vec<u8>)>,
    pub seq: u32,
    pub flags: u8,
    /// Bytes of TCP options, a multiple of 4 up to 40.
    pub tcp_options: usize,
    pub payload: Vec<u8>,
}

impl Frame {
    fn plain(v6: bool, tcp: bool, payload: usize) -> Self {
        Self {
            vlan: None,
            v6,
            tcp,
            src6: SRC6,
            ports: PORTS,
            dscp: 0,
            ecn: 0,
            ip_id: 7,
            ip_options: 0,
            extensions: vec![],
            seq: 1000,
            flags: 0x10,
            tcp_options: 0,
            payload: (0..payload).map(|i| (i * 7 + i / 251) as u8).collect(),
        }
    }
    pub fn tcp4(payload: usize) -> Self {
        Self::plain(false, true, payload)
    }
    pub fn tcp6(payload: usize) -> Self {
        Self::plain(true, true, payload)
    }
    pub fn udp4(payload: usize) -> Self {
        Self::plain(false, false, payload)
    }
    pub fn udp6(payload: usize) -> Self {
        Self::plain(true, false, payload)
    }

    pub fn build(&self) -> Vec<u8> {
        let mut l4 = vec![];
        self.ports.iter().for_each(|port| l4.extend(port.to_be_bytes()));
        if self.tcp {
            l4.extend(self.seq.to_be_bytes());
            l4.extend([0, 0, 0, 9]);
            l4.extend([((20 + self.tcp_options) << 2) as u8, self.flags, 0xff, 0xff]);
            l4.extend([0xde, 0xad, 0, 0]);
            l4.extend(vec![1; self.tcp_options]);
        } else {
            l4.extend(((8 + self.payload.len()) as u16).to_be_bytes());
            l4.extend([0xde, 0xad]);
        }
        l4.extend(&self.payload);
        let protocol = if self.tcp { 6 } else { 17 };

        let mut f = vec![];
        f.extend(DST.0);
        f.extend(SRC.0);
        if let Some(tci) = self.vlan {
            f.extend([0x81, 0]);
            f.extend(tci.to_be_bytes());
        }
        let tc = self.dscp << 2 | self.ecn;
        if self.v6 {
            let mut chain = vec![];
            for (i, (_, bytes)) in self.extensions.iter().enumerate() {
                let mut bytes = bytes.clone();
                bytes[0] = self.extensions.get(i + 1).map_or(protocol, |e| e.0);
                chain.extend(bytes);
            }
            f.extend([0x86, 0xdd, 0x60 | tc >> 4, tc << 4 | 0xa, 0xbc, 0xde]);
            f.extend(((chain.len() + l4.len()) as u16).to_be_bytes());
            f.extend([self.extensions.first().map_or(protocol, |e| e.0), 64]);
            f.extend(self.src6);
            f.extend(DST6);
            f.extend(chain);
        } else {
            let header = 20 + self.ip_options;
            f.extend([8, 0]);
            let mut ip = vec![0x40 | (header / 4) as u8, tc];
            ip.extend(((header + l4.len()) as u16).to_be_bytes());
            ip.extend(self.ip_id.to_be_bytes());
            ip.extend([0x40, 0, 64, protocol, 0, 0]);
            ip.extend(SRC4);
            ip.extend(DST4);
            ip.extend(vec![1; self.ip_options]);
            let check = !sum(&ip);
            ip[10..12].copy_from_slice(&check.to_be_bytes());
            f.extend(ip);
        }
        f.extend(l4);
        f
    }
}

/// RFC 1071 literally.
pub fn sum(bytes: &[u8]) -> u16 {
    let mut s = 0u32;
    for w in bytes.chunks(2) {
        s += u32::from(w[0]) << 8 | u32::from(*w.get(1).unwrap_or(&0));
        s = (s & 0xffff) + (s >> 16);
    }
    s as u16
}

/// The parts of a finished TCP or UDP frame.
#[derive(Debug, PartialEq, Eq)]
pub struct Parts {
    /// Everything before the payload, with the fields that segmentation changes set to 0.
    pub constant: Vec<u8>,
    pub ip_len: usize,
    pub ip_id: u16,
    pub seq: u32,
    pub flags: u8,
    pub udp_len: usize,
    pub payload: Vec<u8>,
}

/// Takes a frame apart. Panics unless lengths and checksums are right by full recomputation (`partial`: the
/// L4 checksum is the pseudo header's sum).
pub fn dissect(frame: &[u8], partial: bool) -> Parts {
    let mut f = frame.to_vec();
    let l3 = if f[12..14] == [0x81, 0] { 18 } else { 14 };
    let be = |f: &[u8], at: usize| u16::from_be_bytes([f[at], f[at + 1]]);
    let v6 = f[l3] >> 4 == 6;
    let (l4, protocol, ip_len, ip_id, mut pseudo);
    if v6 {
        ip_len = 40 + usize::from(be(&f, l3 + 4));
        let (mut at, mut next) = (l3 + 40, f[l3 + 6]);
        while [0, 43, 60].contains(&next) {
            next = f[at];
            at += 8 + usize::from(f[at + 1]) * 8;
        }
        (l4, protocol, ip_id) = (at, next, 0);
        pseudo = f[l3 + 8..l3 + 40].to_vec();
        f[l3 + 4..l3 + 6].fill(0);
    } else {
        let header = usize::from(f[l3] & 0xf) * 4;
        assert_eq!(sum(&f[l3..l3 + header]), 0xffff, "IPv4 header checksum");
        (l4, protocol, ip_len, ip_id) = (l3 + header, f[l3 + 9], usize::from(be(&f, l3 + 2)), be(&f, l3 + 4));
        pseudo = f[l3 + 12..l3 + 20].to_vec();
        f[l3 + 2..l3 + 6].fill(0);
        f[l3 + 10..l3 + 12].fill(0);
    }
    assert_eq!(l3 + ip_len, frame.len(), "IP length");
    pseudo.extend(((frame.len() - l4) as u32).to_be_bytes());
    pseudo.extend([0, 0, 0, protocol]);
    let check_at = if protocol == 6 { l4 + 16 } else { l4 + 6 };
    if partial {
        assert_eq!(be(frame, check_at), sum(&pseudo), "partial L4 checksum");
    } else {
        assert!(protocol == 6 || be(frame, check_at) != 0, "UDP checksum must not be 0");
        pseudo.extend(&frame[l4..]);
        assert_eq!(sum(&pseudo), 0xffff, "L4 checksum");
    }
    f[check_at..check_at + 2].fill(0);
    let (header_end, seq, flags, udp_len);
    if protocol == 6 {
        header_end = l4 + usize::from(f[l4 + 12] >> 4) * 4;
        seq = u32::from_be_bytes([f[l4 + 4], f[l4 + 5], f[l4 + 6], f[l4 + 7]]);
        (flags, udp_len) = (f[l4 + 13], 0);
        f[l4 + 4..l4 + 8].fill(0);
        f[l4 + 13] = 0;
    } else {
        header_end = l4 + 8;
        (seq, flags, udp_len) = (0, 0, usize::from(be(&f, l4 + 4)));
        assert_eq!(udp_len, frame.len() - l4, "UDP length");
        f[l4 + 4..l4 + 6].fill(0);
    }
    let payload = f.split_off(header_end);
    Parts { constant: f, ip_len, ip_id, seq, flags, udp_len, payload }
}

/// A gratuitous ARP request.
pub fn arp(sender: Mac, ip: [u8; 4]) -> Vec<u8> {
    let mut f = vec![0xff; 6];
    f.extend(SRC.0);
    f.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    f.extend(sender.0);
    f.extend(ip);
    f.extend([0; 6]);
    f.extend(Ipv4Addr::from(ip).octets());
    f
}

/// Returns any frame of [`Frame`], with up to `max` bytes of payload.
pub fn frame_up_to(max: usize) -> impl Strategy<Value = Frame> {
    let shape = (
        prop::option::of(any::<u16>()),
        any::<bool>(),
        any::<bool>(),
        0u8..64,
        0u8..4,
        0usize..=3,
        0usize..=3,
    );
    let values = (any::<u16>(), any::<u32>(), any::<u8>(), 0usize..=10);
    let extension = (prop::sample::select(vec![0u8, 60]), 0usize..2);
    // A few with DHCP ports.
    let ports = prop_oneof![9 => Just(PORTS), 1 => prop::sample::select(vec![[67, 68], [68, 67], [547, 546], [9, 68]])];
    let link_local = (1u16..8).prop_map(|n| Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, n).octets());
    let src6 = prop_oneof![9 => Just(SRC6), 1 => link_local];
    let ends = (ports, src6, prop::collection::vec(extension, 0..3));
    (shape, values, ends, 0..=max, any::<u8>()).prop_map(
        |(
            (vlan, v6, tcp, dscp, ecn, ip_opt, _),
            (ip_id, seq, flags, tcp_opt),
            (ports, src6, ext),
            len,
            seed,
        )| {
            let extensions = ext.into_iter().map(|(p, n)| {
                let mut bytes = vec![0; 8 + 8 * n];
                bytes[1] = n as u8;
                (p, bytes)
            });
            Frame {
                vlan,
                v6,
                tcp,
                src6,
                ports,
                dscp,
                ecn,
                ip_id,
                ip_options: ip_opt * 4,
                extensions: if v6 { extensions.collect() } else { vec![] },
                seq,
                flags,
                tcp_options: tcp_opt * 4,
                payload: (0..len).map(|i| (i as u8).wrapping_mul(seed | 1) ^ (i >> 8) as u8).collect(),
            }
        },
    )
}

pub fn frame() -> impl Strategy<Value = Frame> {
    frame_up_to(400)
}

/// Returns bytes a hostile guest may send: noise, and good frames mutated and cut.
pub fn hostile() -> impl Strategy<Value = Vec<u8>> {
    let noise = prop::collection::vec(any::<u8>(), 0..300);
    let pokes = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6);
    let mutated = (frame(), pokes, any::<prop::sample::Index>(), any::<bool>()).prop_map(
        |(frame, pokes, cut, do_cut)| {
            let mut bytes = frame.build();
            for (at, value) in pokes {
                // Changes mainly headers.
                let reach = bytes.len().min(100);
                bytes[at.index(reach)] = value;
            }
            if do_cut {
                bytes.truncate(cut.index(bytes.len() + 1));
            }
            bytes
        },
    );
    prop_oneof![1 => noise, 4 => mutated]
}
