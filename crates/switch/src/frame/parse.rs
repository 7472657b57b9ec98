//! Reads the headers of a frame from its copied bytes.
//!
//! ```text
//!  head ─▶ Ethernet ─▶ VLAN? ─┬▶ IPv4 ─────────────┬▶ TCP, UDP ─▶ Headers
//!                             ├▶ IPv6 ─ extensions ┘
//!                             └▶ ARP
//! ```
//!
//! Unknown but harmless frames (an unknown protocol, a chain of headers longer than [`HEADER_MAX`]) are
//! carried as [`L4::Other`]; contradictions are a [`ParseError`].

use crate::frame::extension::{PROTO_AUTHENTICATION, PROTO_FRAGMENT, PROTO_ROUTING, is_extension};
use crate::frame::headers::{
    ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_RARP, ETHERTYPE_VLAN, FRAME_MAX, HEADER_MAX,
    Headers, L3, L4, PROTO_TCP, PROTO_UDP, get,
};
use tidegate_contract::Mac;

const ARP_LEN: usize = 28;

/// The reason why a frame cannot be carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// No room for an Ethernet header.
    #[error("frame is shorter than an Ethernet header (14 bytes)")]
    Short,
    /// Longer than any protocol allows.
    #[error("frame is longer than {FRAME_MAX} bytes")]
    Long,
    /// The caller passed fewer bytes than the headers need, and the frame has.
    #[error("headers continue beyond the bytes that were copied")]
    Truncated,
    /// The frame ends within its tag.
    #[error("VLAN tag is cut off")]
    Vlan,
    /// Wrong version, or lengths that contradict each other or the frame.
    #[error("IPv4 header has a wrong version or contradicts the frame's length")]
    Ipv4,
    /// Wrong version, or a payload longer than the frame.
    #[error("IPv6 header has a wrong version or contradicts the frame's length")]
    Ipv6,
    /// Cut off, or not IPv4 over Ethernet.
    #[error("ARP packet is cut off or not for IPv4 over Ethernet")]
    Arp,
}

/// The headers behind Ethernet. Layers are returned by value and [`Headers`] is written once, to avoid reads
/// of bytes that were just stored.
struct Upper {
    end: u32,
    l3: L3,
    dscp: u8,
    l4: Transport,
}

/// The transport layer and its place.
struct Transport {
    l4: L4,
    offset: u8,
    len: u8,
    protocol: u8,
}

impl Transport {
    /// No readable transport header; the headers end at `at`.
    #[inline]
    const fn none(l4: L4, at: usize, protocol: u8) -> Self {
        Self { l4, offset: at as u8, len: at as u8, protocol }
    }
}

/// Reads the headers of a frame of `total_len` bytes from its first `min(total_len, HEADER_MAX)` bytes.
///
/// # Errors
///
/// The headers contradict themselves or the frame's length, or `head` is too short.
#[inline(always)]
pub fn parse(head: &[u8], total_len: usize) -> Result<Headers, ParseError> {
    if total_len > FRAME_MAX {
        return Err(ParseError::Long);
    }
    let head = &head[..head.len().min(total_len).min(HEADER_MAX)];
    let Some(ethernet) = head.first_chunk::<14>() else {
        return Err(missing_header_error(14, total_len, ParseError::Short));
    };
    let ethertype = u16::from_be_bytes([ethernet[12], ethernet[13]]);
    if ethertype == ETHERTYPE_VLAN {
        return tagged(head, ethernet, total_len);
    }
    // A constant offset halves the number of instructions.
    let upper = upper(head, ethertype, 14, total_len)?;
    Ok(headers(ethernet, None, ethertype, 14, &upper))
}

#[inline(never)]
fn tagged(head: &[u8], ethernet: &[u8; 14], total_len: usize) -> Result<Headers, ParseError> {
    let Some(&[c0, c1, t0, t1]) = get(head, 14) else {
        return Err(missing_header_error(18, total_len, ParseError::Vlan));
    };
    let ethertype = u16::from_be_bytes([t0, t1]);
    let upper = upper(head, ethertype, 18, total_len)?;
    Ok(headers(ethernet, Some(u16::from_be_bytes([c0, c1])), ethertype, 18, &upper))
}

#[inline(always)]
fn upper(head: &[u8], ethertype: u16, l3: usize, total_len: usize) -> Result<Upper, ParseError> {
    match ethertype {
        ETHERTYPE_IPV4 => ipv4(head, l3, total_len),
        ETHERTYPE_IPV6 => ipv6(head, l3, total_len),
        ETHERTYPE_ARP | ETHERTYPE_RARP => arp(head, l3, total_len),
        _ => {
            let l4 = Transport::none(L4::None, l3, 0);
            Ok(Upper { end: total_len as u32, l3: L3::None, dscp: 0, l4 })
        }
    }
}

#[inline(always)]
fn headers(ethernet: &[u8; 14], vlan: Option<u16>, ethertype: u16, l3: usize, upper: &Upper) -> Headers {
    let [mut dst, mut src] = [[0; 6]; 2];
    dst.copy_from_slice(&ethernet[..6]);
    src.copy_from_slice(&ethernet[6..12]);
    Headers {
        dst: Mac(dst),
        src: Mac(src),
        vlan,
        ethertype,
        end: upper.end,
        l3: upper.l3,
        l4: upper.l4.l4,
        l3_offset: l3 as u8,
        l4_offset: upper.l4.offset,
        len: upper.l4.len,
        dscp: upper.dscp,
        protocol: upper.l4.protocol,
    }
}

/// Returns the error for a header outside the copied bytes: `malformed` if the frame lacks it, too.
#[inline]
fn missing_header_error(header_end: usize, total_len: usize, malformed: ParseError) -> ParseError {
    if header_end > total_len { malformed } else { ParseError::Truncated }
}

#[inline(always)]
fn ipv4(head: &[u8], l3: usize, total_len: usize) -> Result<Upper, ParseError> {
    let Some(ip) = get::<20>(head, l3) else {
        return Err(missing_header_error(l3 + 20, total_len, ParseError::Ipv4));
    };
    // Usually there are no options: then the place of the transport header is constant, too.
    match ip[0] {
        0x45 => behind_ipv4(head, ip, l3, 20, total_len),
        _ => ipv4_with_options(head, ip, l3, total_len),
    }
}

#[inline(never)]
fn ipv4_with_options(head: &[u8], ip: &[u8; 20], l3: usize, total_len: usize) -> Result<Upper, ParseError> {
    let header_len = usize::from(ip[0] & 0xf) * 4;
    if ip[0] >> 4 != 4 || header_len < 20 {
        return Err(ParseError::Ipv4);
    }
    behind_ipv4(head, ip, l3, header_len, total_len)
}

#[inline(always)]
fn behind_ipv4(
    head: &[u8],
    ip: &[u8; 20],
    l3: usize,
    header_len: usize,
    total_len: usize,
) -> Result<Upper, ParseError> {
    let ip_len = usize::from(u16::from_be_bytes([ip[2], ip[3]]));
    let (l4, end) = (l3 + header_len, l3 + ip_len);
    if ip_len < header_len || end > total_len {
        return Err(ParseError::Ipv4);
    }
    if l4 > head.len() {
        return Err(ParseError::Truncated);
    }
    // More-fragments flag or an offset: a part of a datagram.
    let fragment = u16::from_be_bytes([ip[6], ip[7]]) & 0x3fff != 0;
    let protocol = ip[9];
    Ok(Upper {
        end: end as u32,
        l3: L3::Ipv4,
        dscp: ip[1] >> 2,
        l4: if fragment {
            Transport::none(L4::None, l4, protocol)
        } else {
            transport(&head[..head.len().min(end)], l4, protocol)
        },
    })
}

#[inline(always)]
fn ipv6(head: &[u8], l3: usize, total_len: usize) -> Result<Upper, ParseError> {
    let Some(ip) = get::<40>(head, l3) else {
        return Err(missing_header_error(l3 + 40, total_len, ParseError::Ipv6));
    };
    let end = l3 + 40 + usize::from(u16::from_be_bytes([ip[4], ip[5]]));
    if ip[0] >> 4 != 6 || end > total_len {
        return Err(ParseError::Ipv6);
    }
    let head = &head[..head.len().min(end)];
    Ok(Upper {
        end: end as u32,
        l3: L3::Ipv6,
        dscp: (ip[0] & 0xf) << 2 | ip[1] >> 6,
        l4: match ip[6] {
            protocol @ (PROTO_TCP | PROTO_UDP) => transport(head, l3 + 40, protocol),
            protocol => extensions(head, l3 + 40, protocol),
        },
    })
}

#[inline(never)]
fn arp(head: &[u8], l3: usize, total_len: usize) -> Result<Upper, ParseError> {
    let Some(arp) = get::<ARP_LEN>(head, l3) else {
        return Err(missing_header_error(l3 + ARP_LEN, total_len, ParseError::Arp));
    };
    // The hardware type is ignored: receivers accept 6 (IEEE 802) for 1 (Ethernet).
    if arp[2..6] != [0x08, 0x00, 6, 4] {
        return Err(ParseError::Arp);
    }
    let end = l3 + ARP_LEN;
    Ok(Upper { end: end as u32, l3: L3::Arp, dscp: 0, l4: Transport::none(L4::None, end, 0) })
}

/// Reads the transport header at `at`. `head` ends with the datagram or before.
#[inline(always)]
fn transport(head: &[u8], at: usize, protocol: u8) -> Transport {
    let mut l4 = L4::Other;
    let mut len = at;
    if protocol == PROTO_TCP
        && let Some(tcp) = get::<20>(head, at)
    {
        let header_len = usize::from(tcp[12] >> 4) * 4;
        if header_len >= 20 && at + header_len <= head.len() {
            l4 = L4::Tcp;
            len = at + header_len;
        }
    } else if protocol == PROTO_UDP && at + 8 <= head.len() {
        l4 = L4::Udp;
        len = at + 8;
    }
    Transport { l4, offset: at as u8, len: len as u8, protocol }
}

/// Walks IPv6 extension headers from `at` to the transport header (RFC 8200, 4).
#[inline(never)]
fn extensions(head: &[u8], mut at: usize, mut protocol: u8) -> Transport {
    // Ends: every round advances by at least 8 bytes.
    loop {
        if protocol == PROTO_FRAGMENT {
            return Transport::none(L4::None, at, protocol);
        }
        if !is_extension(protocol) {
            return transport(head, at, protocol);
        }
        let Some(&[next, len, _, segments_left]) = get(head, at) else {
            return Transport::none(L4::Other, at, protocol);
        };
        // In units of 8 bytes, in this one of 4 (RFC 4302, 2.2).
        let unit = if protocol == PROTO_AUTHENTICATION { 4 } else { 8 };
        let len = 8 + usize::from(len) * unit;
        // Until a routing header is used up, the checksum counts another address than the destination (RFC 8200, 8.1).
        let under_way = protocol == PROTO_ROUTING && segments_left != 0;
        if at + len > head.len() || under_way {
            return Transport::none(L4::Other, at, protocol);
        }
        protocol = next;
        at += len;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::testing::{self, Frame, V6};
    use proptest::prelude::*;
    use std::net::{IpAddr, Ipv4Addr};

    fn parsed(frame: &[u8]) -> Result<Headers, ParseError> {
        parse(&frame[..frame.len().min(HEADER_MAX)], frame.len())
    }

    #[test]
    fn tcp_over_ipv4_with_options() {
        let f = Frame { tcp_options: 12, dscp: 46, ..Frame::tcp4(100) }.build();
        let h = parsed(&f).unwrap();
        assert_eq!((h.dst, h.src), (testing::DST, testing::SRC));
        assert_eq!((h.l3, h.l4, h.vlan, h.dscp), (L3::Ipv4, L4::Tcp, None, 46));
        assert_eq!((h.l3_offset, h.l4_offset, h.len, h.protocol), (14, 34, 66, 6));
        assert_eq!((h.end, h.l4_len()), (166, 132));
        assert_eq!(h.source_ip(&f), Some(IpAddr::from(testing::SRC4)));
        assert_eq!(h.destination_ip(&f), Some(IpAddr::from(testing::DST4)));
    }

    #[test]
    fn udp_over_ipv6_behind_a_tag() {
        let f = Frame { vlan: Some(0xa02a), dscp: 0b10_1101, ..Frame::udp6(5) }.build();
        let h = parsed(&f).unwrap();
        assert_eq!((h.l3, h.l4, h.dscp), (L3::Ipv6, L4::Udp, 0b10_1101));
        assert_eq!((h.vlan, h.vid()), (Some(0xa02a), Some(42)));
        assert_eq!((h.l3_offset, h.l4_offset, h.len, h.end), (18, 58, 66, 71));
        assert_eq!(h.source_ip(&f), Some(IpAddr::from(testing::SRC6)));
    }

    #[test]
    fn priority_tag_is_no_vlan() {
        let f = Frame { vlan: Some(0xe000), ..Frame::udp4(5) }.build();
        assert_eq!(parsed(&f).unwrap().vid(), None);
    }

    #[test]
    fn padding_is_not_datagram() {
        let mut f = Frame::udp4(4).build();
        assert_eq!(f.len(), 46);
        f.resize(60, 0xee);
        assert_eq!(parsed(&f).unwrap().end, 46);
    }

    #[test]
    fn fragments_have_no_transport() {
        for word in [0x2000u16, 0x0001, 0x2010] {
            let mut f = Frame::udp4(16).build();
            f[20..22].copy_from_slice(&word.to_be_bytes());
            let h = parsed(&f).unwrap();
            assert_eq!((h.l3, h.l4, h.l4_offset, h.len), (L3::Ipv4, L4::None, 34, 34));
        }
        let mut f = Frame::udp4(16).build();
        f[20] = 0x40; // don't fragment
        assert_eq!(parsed(&f).unwrap().l4, L4::Udp);
    }

    #[test]
    fn ipv6_extension_headers() {
        let hop = vec![0, 0, 0, 0, 0, 0, 0, 0];
        let routing_done = vec![0, 2, 4, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2];
        let mut routing_open = routing_done.clone();
        routing_open[3] = 1;
        let auth = vec![0, 4, 0, 0, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9];
        let long = {
            let mut e = vec![0; 160];
            e[1] = 19;
            e
        };
        for (chain, l4, l4_offset, protocol) in [
            (vec![(0, hop.clone())], L4::Tcp, 62, 6),
            (vec![(0, hop.clone()), (43, routing_done)], L4::Tcp, 86, 6),
            (vec![(0, hop.clone()), (43, routing_open)], L4::Other, 62, 43),
            (vec![(51, auth)], L4::Tcp, 78, 6),
            (vec![(60, hop.clone()), (44, hop.clone())], L4::None, 62, 44),
            (vec![(60, long)], L4::Other, 54, 60),
            (vec![(60, hop.clone()); 15], L4::Other, 174, 6),
            (vec![(60, hop.clone()); 14], L4::Tcp, 166, 6),
        ] {
            let f = Frame { extensions: chain.clone(), ..Frame::tcp6(300) }.build();
            let h = parsed(&f).unwrap();
            assert_eq!(
                (h.l3, h.l4, h.l4_offset, h.protocol),
                (L3::Ipv6, l4, l4_offset, protocol),
                "{chain:?}"
            );
            assert_eq!(h.end as usize, f.len());
        }
    }

    #[test]
    fn extension_header_past_the_datagram_is_other() {
        let mut f = Frame { extensions: vec![(0, vec![0; 8])], ..Frame::tcp6(0) }.build();
        f[V6 + 4..V6 + 6].copy_from_slice(&4u16.to_be_bytes());
        let h = parsed(&f).unwrap();
        assert_eq!((h.l4, h.l4_offset, h.end), (L4::Other, 54, 58));
    }

    #[test]
    fn broken_transport_is_other() {
        let mut f = Frame::tcp4(0).build();
        f[46] = 0x40; // data offset 16 bytes
        assert_eq!(parsed(&f).unwrap().l4, L4::Other);
        f[46] = 0x60; // 24, the datagram has 20
        assert_eq!(parsed(&f).unwrap().l4, L4::Other);
        // A datagram of 27 bytes ends within the UDP header; padding follows.
        let mut f = Frame::udp4(20).build();
        f[16..18].copy_from_slice(&27u16.to_be_bytes());
        assert_eq!(parsed(&f).unwrap().l4, L4::Other);
    }

    #[test]
    fn arp() {
        let f = testing::arp(testing::SRC, testing::SRC4);
        let h = parsed(&f).unwrap();
        assert_eq!((h.l3, h.l4, h.len, h.end), (L3::Arp, L4::None, 42, 42));
        assert_eq!(h.arp_sender_mac(&f), Some(testing::SRC));
        assert_eq!(h.arp_sender_ip(&f), Some(Ipv4Addr::from(testing::SRC4)));
        assert_eq!(h.source_ip(&f), None);
    }

    #[test]
    fn headers_that_contradict_each_other_are_refused() {
        let udp4 = Frame::udp4(4).build();
        let udp6 = Frame::udp6(4).build();
        let tagged = Frame { vlan: Some(1), ..Frame::udp4(0) }.build();
        let arp = testing::arp(testing::SRC, testing::SRC4);
        let with = |f: &[u8], at: usize, v: u8| {
            let mut f = f.to_vec();
            f[at] = v;
            f
        };
        for (frame, error) in [
            (vec![], ParseError::Short),
            (vec![0; 13], ParseError::Short),
            (vec![0; FRAME_MAX + 1], ParseError::Long),
            (tagged[..17].to_vec(), ParseError::Vlan),
            (udp4[..33].to_vec(), ParseError::Ipv4),
            (with(&udp4, 14, 0x65), ParseError::Ipv4), // version
            (with(&udp4, 14, 0x44), ParseError::Ipv4), // header length 16
            (with(&udp4, 14, 0x4f), ParseError::Ipv4), // header length over total length
            (with(&udp4, 17, 33), ParseError::Ipv4),   // total length over the frame
            (udp6[..53].to_vec(), ParseError::Ipv6),
            (with(&udp6, 14, 0x40), ParseError::Ipv6),
            (with(&udp6, 19, 13), ParseError::Ipv6),
            (arp[..41].to_vec(), ParseError::Arp),
            (with(&arp, 18, 8), ParseError::Arp),
        ] {
            assert_eq!(parsed(&frame), Err(error), "{frame:02x?}");
        }
        assert_eq!(parse(&udp4[..33], udp4.len()), Err(ParseError::Truncated));
        assert_eq!(parse(&udp4[..10], udp4.len()), Err(ParseError::Truncated));
    }

    #[test]
    fn unknown_ethertype_is_carried() {
        let mut f = Frame::udp4(4).build();
        f[12..14].copy_from_slice(&0x88ccu16.to_be_bytes());
        let h = parsed(&f).unwrap();
        assert_eq!((h.l3, h.l4, h.len, h.end), (L3::None, L4::None, 14, 46));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4096))]

        #[test]
        fn offsets_stay_in_bounds(frame in testing::hostile(), total in 0usize..70_000) {
            // Also with a total that contradicts the bytes.
            for total in [frame.len(), total] {
                if let Ok(h) = parse(&frame, total) {
                    let head = frame.len().min(total).min(HEADER_MAX);
                    prop_assert!(h.l3_offset <= h.l4_offset && h.l4_offset <= h.len);
                    prop_assert!(usize::from(h.len) <= head);
                    prop_assert!(h.end as usize <= total);
                    prop_assert!(h.dscp < 64);
                    if h.l4 != L4::Other {
                        prop_assert!(u32::from(h.len) <= h.end);
                    }
                    let _ = (h.source_ip(&[]), h.arp_sender_ip(&[]), h.arp_sender_mac(&[]));
                }
            }
        }

        #[test]
        fn built_frames_parse_to_their_specification(spec in testing::frame()) {
            let f = spec.build();
            let h = parsed(&f).unwrap();
            prop_assert_eq!(h.vlan, spec.vlan);
            prop_assert_eq!(h.dscp, spec.dscp);
            prop_assert_eq!(h.l4 == L4::Tcp, spec.tcp);
            prop_assert_eq!(h.l3 == L3::Ipv6, spec.v6);
            prop_assert_eq!(usize::from(h.len), f.len() - spec.payload.len());
        }
    }
}
