//! The purpose of an IP datagram, in the terms of `allowed`: a router's or DHCP server's message, or one that
//! says which MAC an address has.
//!
//! ```text
//!  Headers ─▶ fragment? ─▶ UDP ports, ICMP type ─▶ Message
//!                └▶ Hidden: no filter that sees one frame at a time can tell
//! ```
//!
//! Receivers join fragments and follow longer chains of extension headers than the switch, so a frame could
//! hide its purpose there (RFC 7113, RFC 7610). The first fragment shows it: the transport header begins
//! right behind the fragment header, where no later fragment reaches, even in receivers that let fragments
//! overlap (RFC 5722). With another extension header between them, it does not (RFC 7112).

use crate::frame::extension::{PROTO_FRAGMENT, is_extension};
use crate::frame::headers::{Headers, L3, PROTO_ICMP, PROTO_ICMPV6, PROTO_UDP, get, get16};
use std::net::Ipv6Addr;

/// ICMPv4 redirect (RFC 792) and router advertisement (RFC 1256).
const ICMP_OF_ROUTERS: [u8; 2] = [5, 9];
/// Types of neighbour discovery (RFC 4861, 4).
const ROUTER_SOLICITATION: u8 = 133;
const ROUTER_ADVERTISEMENT: u8 = 134;
const NEIGHBOUR_SOLICITATION: u8 = 135;
const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
const REDIRECT: u8 = 137;
/// Ports of servers and relays, and of clients (RFC 2131, 4.1; RFC 8415, 7.2). Clients accept any source
/// port, so one of the two is enough.
const DHCP: (u16, u16) = (67, 68);
const DHCPV6: (u16, u16) = (547, 546);

/// The purpose of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// Any other purpose.
    Other,
    /// Router advertisement or redirect.
    OfRouter,
    /// From a DHCP server or relay, or to a client.
    OfDhcpServer,
    /// Neighbour or router solicitation.
    Solicitation {
        /// Start of its options.
        options: usize,
    },
    /// Neighbour advertisement.
    Advertisement {
        /// The address claimed for the sender's MAC.
        target: Ipv6Addr,
        /// Start of its options.
        options: usize,
    },
    /// The visible bytes do not show the purpose.
    Hidden,
}

/// Returns the purpose of the IP datagram in the frame that begins with `head`.
pub fn message(head: &[u8], headers: &Headers) -> Message {
    match headers.l3 {
        L3::Ipv4 => v4(head, headers),
        _ => v6(head, headers),
    }
}

/// Whether a [plain](crate::frame::plain) IPv4 datagram in `head` is certainly [`Message::Other`].
#[inline(always)]
pub fn plain_v4_is_other(head: &[u8; 38]) -> bool {
    let word = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
    if head[23] == PROTO_UDP {
        return word(34) != DHCP.0 && word(36) != DHCP.1;
    }
    head[23] != PROTO_ICMP || !ICMP_OF_ROUTERS.contains(&head[34])
}

/// Whether a plain IPv6 datagram, TCP or UDP, is certainly of another purpose.
#[inline(always)]
pub fn plain_v6_is_other(head: &[u8; 58]) -> bool {
    let word = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
    head[20] != PROTO_UDP || word(54) != DHCPV6.0 && word(56) != DHCPV6.1
}

fn v4(head: &[u8], headers: &Headers) -> Message {
    let offset = get16(head, usize::from(headers.l3_offset) + 6).map_or(0, |word| word & 0x1fff);
    let at = usize::from(headers.l4_offset);
    match headers.protocol {
        _ if offset != 0 => Message::Other,
        PROTO_UDP => udp(head, at, DHCP),
        PROTO_ICMP => match head.get(at) {
            Some(kind) if ICMP_OF_ROUTERS.contains(kind) => Message::OfRouter,
            Some(_) => Message::Other,
            None => Message::Hidden,
        },
        _ => Message::Other,
    }
}

fn v6(head: &[u8], headers: &Headers) -> Message {
    let at = usize::from(headers.l4_offset);
    if headers.protocol != PROTO_FRAGMENT {
        return match headers.ends_in_extension() {
            true => Message::Hidden,
            false => upper(head, at, headers.protocol, false),
        };
    }
    let Some(&[next, _, high, low, ..]) = get::<8>(head, at) else { return Message::Hidden };
    if next == PROTO_FRAGMENT || is_extension(next) {
        return Message::Hidden;
    }
    match u16::from_be_bytes([high, low]) >> 3 {
        0 => upper(head, at + 8, next, true),
        _ => Message::Other,
    }
}

fn upper(head: &[u8], at: usize, protocol: u8, fragment: bool) -> Message {
    match protocol {
        PROTO_UDP => udp(head, at, DHCPV6),
        PROTO_ICMPV6 => match head.get(at) {
            // Receivers should ignore these (RFC 6980), but not all do.
            Some(ROUTER_SOLICITATION..=REDIRECT) if fragment => Message::Hidden,
            Some(&(ROUTER_ADVERTISEMENT | REDIRECT)) => Message::OfRouter,
            Some(&ROUTER_SOLICITATION) => Message::Solicitation { options: at + 8 },
            Some(&NEIGHBOUR_SOLICITATION) => Message::Solicitation { options: at + 24 },
            Some(&NEIGHBOUR_ADVERTISEMENT) => match get::<16>(head, at + 8) {
                Some(target) => Message::Advertisement { target: Ipv6Addr::from(*target), options: at + 24 },
                None => Message::Hidden,
            },
            Some(_) => Message::Other,
            None => Message::Hidden,
        },
        _ => Message::Other,
    }
}

fn udp(head: &[u8], at: usize, (server, client): (u16, u16)) -> Message {
    match (get16(head, at), get16(head, at + 2)) {
        (Some(from), Some(to)) if from == server || to == client => Message::OfDhcpServer,
        (Some(_), Some(_)) => Message::Other,
        _ => Message::Hidden,
    }
}
