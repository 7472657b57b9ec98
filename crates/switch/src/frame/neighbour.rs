//! Requests for a neighbour's MAC, and replies for it: ARP (RFC 826) and neighbour discovery (RFC 4861). Pure.
//!
//! ```text
//!  frame ─ request ─▶ Request: who asks for which address ─ reply(MAC of the address) ─▶ frame to the asker
//!             └▶ None: anything else, and what is not exactly well-formed
//! ```
//!
//! Only requests to a group are read: one to a MAC checks whether that neighbour still answers itself.

use super::checksum::{add, pseudo_v6, sum};
use super::headers::{ETHERTYPE_ARP, ETHERTYPE_IPV6, HEADER_MAX, Headers, L3, PROTO_ICMPV6, get, get16};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use tidegate_contract::Mac;

const ETHERNET: usize = 14;
/// Bytes of an ARP packet for IPv4 over Ethernet.
const ARP: usize = 28;
/// Hardware and protocol type and lengths of these, and the operations (RFC 826).
const ARP_HEAD: [u8; 6] = [0, 1, 8, 0, 6, 4];
const ARP_REQUEST: u16 = 1;
const ARP_REPLY: u16 = 2;
/// Shortest frame.
const SHORTEST: usize = 60;
const IPV6: usize = 40;
/// ICMPv6 types (RFC 4861, 4.3 and 4.4), and the bytes of both messages without options.
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
const MESSAGE: usize = 24;
/// Proves that no router forwarded it (RFC 4861, 7.1).
const HOP_LIMIT: u8 = 255;
/// The answer to a solicitation, and one that replaces what the asker knew (RFC 4861, 4.4).
const SOLICITED: u8 = 0x40;
const OVERRIDE: u8 = 0x20;
/// The option with the MAC of the target: its type, and its length in units of 8 bytes (RFC 4861, 4.6.1).
const TARGET_MAC: [u8; 2] = [2, 1];
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const ALL_NODES_MAC: Mac = Mac([0x33, 0x33, 0, 0, 0, 1]);

/// A request for the MAC of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The asker's MAC.
    from: Mac,
    /// The asker's address; unspecified while it has none.
    asker: IpAddr,
    /// The address that it asks for.
    pub target: IpAddr,
}

/// A reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    bytes: [u8; HEADER_MAX],
    len: usize,
}

impl Reply {
    /// Returns the frame.
    pub fn frame(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Returns the frame in a buffer for a frame's head.
    pub fn head(&self) -> [u8; HEADER_MAX] {
        self.bytes
    }
}

/// Reads a request to a group from a whole `frame` without a VLAN tag, whose checksums are finished.
pub fn request(frame: &[u8], headers: &Headers) -> Option<Request> {
    if headers.vlan.is_some() || !headers.dst.is_group() || headers.src.is_group() {
        return None;
    }
    match headers.l3 {
        L3::Arp if headers.ethertype == ETHERTYPE_ARP && headers.dst == Mac([0xff; 6]) => arp(frame, headers),
        L3::Ipv6 => solicitation(frame, headers),
        _ => None,
    }
}

fn arp(frame: &[u8], headers: &Headers) -> Option<Request> {
    let packet = get::<ARP>(frame, ETHERNET)?;
    let ip = |at: usize| get::<4>(packet, at).map(|ip| Ipv4Addr::from(*ip));
    let (asker, target) = (ip(14)?, ip(24)?);
    let is_request = packet[..6] == ARP_HEAD
        && get16(packet, 6) == Some(ARP_REQUEST)
        && packet[8..14] == headers.src.0
        // An announcement of the sender's own address asks nothing (RFC 5227, 2.3).
        && asker != target;
    is_request.then_some(Request { from: headers.src, asker: asker.into(), target: target.into() })
}

fn solicitation(frame: &[u8], headers: &Headers) -> Option<Request> {
    let ip = get::<IPV6>(frame, ETHERNET)?;
    let len = usize::from(get16(ip, 4)?);
    let message = frame.get(ETHERNET + IPV6..)?.get(..len)?;
    let address = |bytes: &[u8], at: usize| get::<16>(bytes, at).map(|ip| Ipv6Addr::from(*ip));
    let (src, dst, target) = (address(ip, 8)?, address(ip, 24)?, address(message, 8)?);
    let group = target.octets();
    let solicited = Ipv6Addr::new(
        0xff02,
        0,
        0,
        0,
        0,
        1,
        0xff00 | u16::from(group[13]),
        u16::from_be_bytes([group[14], group[15]]),
    );
    let is_solicitation = ip[6] == PROTO_ICMPV6
        && ip[7] == HOP_LIMIT
        && message[..2] == [SOLICITATION, 0]
        && dst == solicited
        && headers.dst.0[..2] == [0x33, 0x33]
        && !target.is_multicast()
        && !src.is_multicast()
        && options(&message[MESSAGE..], src, headers.src)
        && add(pseudo_v6(&src.octets(), &dst.octets(), PROTO_ICMPV6, len as u32), sum(message)) == 0xffff;
    is_solicitation.then_some(Request { from: headers.src, asker: src.into(), target: target.into() })
}

/// Whether the options of a solicitation are complete, and name `mac` if any MAC (RFC 4861, 7.1.1).
fn options(mut options: &[u8], src: Ipv6Addr, mac: Mac) -> bool {
    while let [kind, units, ..] = *options {
        let Some((option, rest)) = options.split_at_checked(8 * usize::from(units)) else { return false };
        if option.is_empty() || kind == 1 && (src.is_unspecified() || option[2..] != mac.0) {
            return false;
        }
        options = rest;
    }
    options.is_empty()
}

impl Request {
    /// Returns the reply: the target has `mac`.
    pub fn reply(&self, mac: Mac) -> Reply {
        match (self.asker, self.target) {
            (IpAddr::V4(asker), IpAddr::V4(target)) => self.arp_reply(asker, target, mac),
            (IpAddr::V6(asker), IpAddr::V6(target)) => self.advertisement(asker, target, mac),
            _ => unreachable!("both are of one family"),
        }
    }

    fn arp_reply(&self, asker: Ipv4Addr, target: Ipv4Addr, mac: Mac) -> Reply {
        let mut reply = Reply { bytes: [0; HEADER_MAX], len: 0 };
        reply.push(&self.from.0);
        reply.push(&mac.0);
        reply.push(&ETHERTYPE_ARP.to_be_bytes());
        reply.push(&ARP_HEAD);
        reply.push(&ARP_REPLY.to_be_bytes());
        reply.push(&mac.0);
        reply.push(&target.octets());
        reply.push(&self.from.0);
        reply.push(&asker.octets());
        reply.len = SHORTEST;
        reply
    }

    fn advertisement(&self, asker: Ipv6Addr, target: Ipv6Addr, mac: Mac) -> Reply {
        // An asker without an address hears all nodes' (RFC 4861, 7.2.4).
        let (dst_mac, dst, flags) = match asker.is_unspecified() {
            true => (ALL_NODES_MAC, ALL_NODES, OVERRIDE),
            false => (self.from, asker, SOLICITED | OVERRIDE),
        };
        let mut message = [0u8; MESSAGE + 8];
        (message[0], message[4]) = (ADVERTISEMENT, flags);
        message[8..24].copy_from_slice(&target.octets());
        message[24..26].copy_from_slice(&TARGET_MAC);
        message[26..32].copy_from_slice(&mac.0);
        let pseudo = pseudo_v6(&target.octets(), &dst.octets(), PROTO_ICMPV6, message.len() as u32);
        let checksum = !add(pseudo, sum(&message));
        message[2..4].copy_from_slice(&checksum.to_be_bytes());
        let mut reply = Reply { bytes: [0; HEADER_MAX], len: 0 };
        reply.push(&dst_mac.0);
        reply.push(&mac.0);
        reply.push(&ETHERTYPE_IPV6.to_be_bytes());
        reply.push(&[0x60, 0, 0, 0]);
        reply.push(&(message.len() as u16).to_be_bytes());
        reply.push(&[PROTO_ICMPV6, HOP_LIMIT]);
        reply.push(&target.octets());
        reply.push(&dst.octets());
        reply.push(&message);
        reply
    }
}

impl Reply {
    fn push(&mut self, bytes: &[u8]) {
        self.bytes[self.len..][..bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::parse;
    use crate::frame::testing;
    use proptest::prelude::*;

    const ASKER: Mac = Mac([0x52, 0x54, 0, 0, 0, 1]);
    const FAR: Mac = Mac([0x52, 0x54, 0, 0, 9, 2]);

    fn read(frame: &[u8]) -> Option<Request> {
        request(frame, &parse(frame, frame.len()).ok()?)
    }

    /// As tcpdump shows an ARP request of Linux.
    fn arp(asker: Ipv4Addr, target: Ipv4Addr) -> Vec<u8> {
        let head = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff];
        let packet =
            [&[8, 6, 0, 1, 8, 0, 6, 4, 0, 1][..], &ASKER.0, &asker.octets(), &[0; 6], &target.octets()];
        [&head[..], &ASKER.0, &packet.concat()].concat()
    }

    /// Sums 16-bit words with end-around carry, one by one (RFC 1071).
    fn slow_sum(bytes: &[u8]) -> u16 {
        let words =
            bytes.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(*word.get(1).unwrap_or(&0)));
        let mut all: u32 = words.sum();
        while all > 0xffff {
            all = (all & 0xffff) + (all >> 16);
        }
        all as u16
    }

    fn with_checksum(src: Ipv6Addr, dst: Ipv6Addr, mut message: Vec<u8>) -> Vec<u8> {
        message[2..4].fill(0);
        let pseudo = [
            &src.octets()[..],
            &dst.octets(),
            &(message.len() as u32).to_be_bytes(),
            &[0, 0, 0, 58],
            &message,
        ];
        let checksum = !slow_sum(&pseudo.concat());
        message[2..4].copy_from_slice(&checksum.to_be_bytes());
        message
    }

    fn solicitation(src: Ipv6Addr, target: Ipv6Addr, options: &[u8]) -> Vec<u8> {
        let low = target.octets();
        let dst = Ipv6Addr::from([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, low[13], low[14], low[15]]);
        let message = [&[135, 0, 0, 0, 0, 0, 0, 0][..], &target.octets(), options].concat();
        let message = with_checksum(src, dst, message);
        let mac = [0x33, 0x33, 0xff, low[13], low[14], low[15]];
        let ip =
            [&[0x60, 0, 0, 0, 0, message.len() as u8, 58, 255][..], &src.octets(), &dst.octets()].concat();
        [&mac[..], &ASKER.0, &[0x86, 0xdd], &ip, &message].concat()
    }

    fn own_mac() -> Vec<u8> {
        [&[1, 1][..], &ASKER.0].concat()
    }

    #[test]
    fn an_arp_request_is_answered_as_its_target_would() {
        let (asker, target) = (Ipv4Addr::new(10, 9, 0, 1), Ipv4Addr::new(10, 9, 0, 2));
        let found = read(&arp(asker, target)).unwrap();
        assert_eq!(found.target, IpAddr::from(target));
        let reply = found.reply(FAR);
        let packet =
            [&[8, 6, 0, 1, 8, 0, 6, 4, 0, 2][..], &FAR.0, &target.octets(), &ASKER.0, &asker.octets()];
        assert_eq!(reply.frame()[..42], [&ASKER.0[..], &FAR.0, &packet.concat()].concat());
        assert_eq!(reply.frame().len(), 60);
    }

    #[test]
    fn what_is_no_request_to_all_is_not_read() {
        let (asker, target) = (Ipv4Addr::new(10, 9, 0, 1), Ipv4Addr::new(10, 9, 0, 2));
        let good = arp(asker, target);
        let changed = |at: usize, to: u8| {
            let mut frame = good.clone();
            frame[at] = to;
            read(&frame)
        };
        assert!(read(&good).is_some());
        assert!(read(&arp(Ipv4Addr::UNSPECIFIED, target)).is_some(), "a probe (RFC 5227)");
        assert_eq!(read(&arp(target, target)), None, "an announcement");
        assert_eq!(changed(21, 2), None, "a reply");
        assert_eq!(changed(13, 0x35), None, "RARP");
        assert_eq!(changed(0, 0x52), None, "to one MAC");
        assert_eq!(changed(22, 2), None, "another sender's MAC");
        assert_eq!(changed(19, 8), None, "other lengths");
        let tagged = [&good[..12], &[0x81, 0, 0, 5], &good[12..]].concat();
        assert_eq!(read(&tagged), None);
        assert_eq!(read(&good[..41]), None);
    }

    #[test]
    fn solicitations_are_read_only_if_they_are_valid() {
        let (src, target): (Ipv6Addr, Ipv6Addr) =
            ("fd09::1".parse().unwrap(), "fd09::12:3456".parse().unwrap());
        let good = solicitation(src, target, &own_mac());
        assert_eq!(read(&good).unwrap().target, IpAddr::from(target));
        assert!(read(&solicitation(src, target, &[])).is_some());
        for at in [14 + 7, 14 + 6, 54, 55, 56, 70, 20, 24, 42] {
            let mut frame = good.clone();
            frame[at] ^= 1;
            assert_eq!(read(&frame), None, "byte {at}");
        }
        assert!(read(&solicitation(Ipv6Addr::UNSPECIFIED, target, &[])).is_some(), "for a new address");
        assert_eq!(read(&solicitation(Ipv6Addr::UNSPECIFIED, target, &own_mac())), None);
        assert_eq!(read(&solicitation(src, "ff02::5".parse().unwrap(), &own_mac())), None);
        assert_eq!(read(&solicitation(src, target, &[1, 1, 2, 0, 0, 0, 0, 7])), None, "another's MAC");
        for broken in [&[1, 0, 0, 0, 0, 0, 0, 0][..], &[9, 2, 0, 0, 0, 0, 0, 0], &[9]] {
            assert_eq!(read(&solicitation(src, target, broken)), None, "{broken:?}");
        }
    }

    fn mac() -> impl Strategy<Value = Mac> {
        any::<[u8; 6]>()
            .prop_map(|bytes| Mac([bytes[0] & !1, bytes[1], bytes[2], bytes[3], bytes[4], bytes[5]]))
    }

    proptest! {
        /// The reply parses; its checksum, by another sum, is right; it goes to the asker, from the target.
        #[test]
        fn advertisements_are_as_rfc_4861_asks(
            src in prop::option::of(any::<[u8; 16]>()), target in any::<[u8; 16]>(), mac in mac(),
        ) {
            let src = src.map_or(Ipv6Addr::UNSPECIFIED, |mut ip| { ip[0] = 0xfd; ip.into() });
            let mut target = target;
            target[0] = 0xfd;
            let target = Ipv6Addr::from(target);
            let found = read(&solicitation(src, target, &[])).unwrap();
            let reply = found.reply(mac);
            let frame = reply.frame();
            let headers = parse(frame, frame.len()).unwrap();
            let all = src.is_unspecified();
            prop_assert_eq!(headers.src, mac);
            prop_assert_eq!(headers.dst, if all { ALL_NODES_MAC } else { ASKER });
            let dst = if all { ALL_NODES } else { src };
            prop_assert_eq!(&frame[22..38], &target.octets());
            prop_assert_eq!(&frame[38..54], &dst.octets());
            prop_assert_eq!((frame[20], frame[21], frame.len()), (58, 255, 86));
            let flags = if all { 0x20 } else { 0x60 };
            let message = [&[136, 0, 0, 0, flags, 0, 0, 0][..], &target.octets(), &[2, 1], &mac.0].concat();
            prop_assert_eq!(&frame[54..], &with_checksum(target, dst, message)[..]);
        }

        #[test]
        fn hostile_frames_cause_no_panic(frame in testing::hostile()) {
            read(&frame).map(|found| found.reply(FAR));
        }

        /// A request with one byte changed is read as one for that address, or not at all.
        #[test]
        fn a_changed_request_is_never_another(at in 0usize..86, bit in 0u8..8) {
            let (src, target): (Ipv6Addr, Ipv6Addr) = ("fd09::1".parse().unwrap(), "fd09::2".parse().unwrap());
            let mut frame = solicitation(src, target, &own_mac());
            frame[at] ^= 1 << bit;
            if let Some(found) = read(&frame) {
                prop_assert_eq!((found.target, found.asker), (target.into(), src.into()));
            }
        }
    }
}
