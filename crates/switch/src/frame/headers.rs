//! The content and places of a frame's headers: Ethernet, one VLAN tag, IPv4, IPv6, ARP, TCP, UDP.
//! [`parse`](fn@crate::frame::parse) fills it in.
//!
//! ```text
//!  0          14 or 18        l4_offset          len                end     total_len
//!  │ Ethernet │ IPv4/IPv6/ARP │ TCP/UDP, options │ L4 payload        │ padding │
//!             l3_offset
//! ```

use crate::frame::extension::is_extension;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use tidegate_contract::Mac;

/// Most bytes of a frame that are copied for decisions.
pub const HEADER_MAX: usize = 192;
/// Longest frame: the largest IPv6 packet behind a tagged Ethernet header.
pub const FRAME_MAX: usize = tidegate_contract::frame::FRAME_MAX as usize;

/// EtherType of IPv4.
pub const ETHERTYPE_IPV4: u16 = 0x0800;
/// EtherType of ARP (RFC 826).
pub const ETHERTYPE_ARP: u16 = 0x0806;
/// EtherType of RARP (RFC 903), which has ARP's format.
pub const ETHERTYPE_RARP: u16 = 0x8035;
/// EtherType of a customer VLAN tag (IEEE 802.1Q).
pub const ETHERTYPE_VLAN: u16 = 0x8100;
/// EtherType of IPv6.
pub const ETHERTYPE_IPV6: u16 = 0x86dd;

/// IP protocol number of ICMP.
pub const PROTO_ICMP: u8 = 1;
/// IP protocol number of TCP.
pub const PROTO_TCP: u8 = 6;
/// IP protocol number of UDP.
pub const PROTO_UDP: u8 = 17;
/// IP protocol number of ICMPv6.
pub const PROTO_ICMPV6: u8 = 58;

/// Whether `dst` is for the link itself (STP, PAUSE, LACP, EAPOL, LLDP): bridges do not forward
/// 01:80:c2:00:00:00 to 0f (IEEE 802.1Q, table 8-1).
#[inline]
pub const fn is_of_link(dst: Mac) -> bool {
    matches!(dst.0, [0x01, 0x80, 0xc2, 0, 0, 0..=0x0f])
}

/// The network layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum L3 {
    /// Any other protocol.
    None,
    /// IPv4, header checked against the frame.
    Ipv4,
    /// IPv6, base header checked against the frame.
    Ipv6,
    /// ARP or RARP for IPv4 over Ethernet.
    Arp,
}

/// The transport layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum L4 {
    /// No transport header: not IP, or a fragment.
    None,
    /// TCP, header and options complete.
    Tcp,
    /// UDP, header complete.
    Udp,
    /// Another protocol, or a header that is broken or out of reach.
    Other,
}

/// The content of a frame's headers. Offsets are bytes from the frame's start, within the parsed head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headers {
    /// Destination MAC.
    pub dst: Mac,
    /// Source MAC.
    pub src: Mac,
    /// Tag control information: priority, DEI and VID.
    pub vlan: Option<u16>,
    /// EtherType behind the tag; below 1536 the length of an IEEE 802.3 frame.
    pub ethertype: u16,
    /// End of the IP datagram or ARP packet; padding follows. The frame's end for [`L3::None`].
    pub end: u32,
    /// The network layer.
    pub l3: L3,
    /// The transport layer.
    pub l4: L4,
    /// Start of L3: 14, or 18 with a tag.
    pub l3_offset: u8,
    /// Start of L4. Equal to `len` unless L4 is TCP or UDP.
    pub l4_offset: u8,
    /// Header bytes up to the end of L4's options.
    pub len: u8,
    /// Differentiated services code point, 0 to 63; 0 without IP.
    pub dscp: u8,
    /// IP protocol number at `l4_offset`, also of an extension header if the walk ended in one. 0 without IP.
    pub protocol: u8,
}

/// Returns `N` bytes of `head` at `at`, if present.
#[inline]
pub(super) fn get<const N: usize>(head: &[u8], at: usize) -> Option<&[u8; N]> {
    head.get(at..)?.first_chunk()
}

/// Returns the big-endian word of `head` at `at`, if present.
#[inline]
pub(super) fn get16(head: &[u8], at: usize) -> Option<u16> {
    get(head, at).map(|b| u16::from_be_bytes(*b))
}

/// Replaces bytes of `head` at `at`; `None`, without a change, if they are missing.
#[inline]
pub(super) fn put<const N: usize>(head: &mut [u8], at: usize, bytes: [u8; N]) -> Option<()> {
    *head.get_mut(at..)?.first_chunk_mut()? = bytes;
    Some(())
}

impl Headers {
    /// Headers of a frame that was not parsed yet.
    pub const NONE: Self = Self {
        dst: Mac([0; 6]),
        src: Mac([0; 6]),
        vlan: None,
        ethertype: 0,
        end: 0,
        l3: L3::None,
        l4: L4::None,
        l3_offset: 0,
        l4_offset: 0,
        len: 0,
        dscp: 0,
        protocol: 0,
    };

    /// Whether the walk over IPv6 extension headers ended in one of them, not counting fragment headers: the
    /// next header is unknown.
    #[inline]
    pub const fn ends_in_extension(&self) -> bool {
        is_extension(self.protocol) && matches!(self.l3, L3::Ipv6)
    }

    /// Returns the VLAN id of a tagged frame, 1 to 4095. A priority tag (VID 0) is no VLAN.
    #[inline]
    pub const fn vid(&self) -> Option<u16> {
        match self.vlan {
            Some(tci) if tci & 0xfff != 0 => Some(tci & 0xfff),
            _ => None,
        }
    }

    /// Returns the bytes of L4 header and payload, as the pseudo header counts them.
    #[inline]
    pub const fn l4_len(&self) -> u32 {
        self.end.saturating_sub(self.l4_offset as u32)
    }

    /// Returns the source address of an IP datagram.
    #[inline]
    pub fn source_ip(&self, head: &[u8]) -> Option<IpAddr> {
        self.ip(head, 12, 8)
    }

    /// Returns the destination address of an IP datagram.
    #[inline]
    pub fn destination_ip(&self, head: &[u8]) -> Option<IpAddr> {
        self.ip(head, 16, 24)
    }

    #[inline]
    fn ip(&self, head: &[u8], v4_at: usize, v6_at: usize) -> Option<IpAddr> {
        let l3 = usize::from(self.l3_offset);
        match self.l3 {
            L3::Ipv4 => Some(Ipv4Addr::from(*get::<4>(head, l3 + v4_at)?).into()),
            L3::Ipv6 => Some(Ipv6Addr::from(*get::<16>(head, l3 + v6_at)?).into()),
            L3::None | L3::Arp => None,
        }
    }

    /// Returns the sender hardware address of an ARP packet.
    #[inline]
    pub fn arp_sender_mac(&self, head: &[u8]) -> Option<Mac> {
        if self.l3 != L3::Arp {
            return None;
        }
        get(head, usize::from(self.l3_offset) + 8).map(|b| Mac(*b))
    }

    /// Returns the sender protocol address of an ARP packet.
    #[inline]
    pub fn arp_sender_ip(&self, head: &[u8]) -> Option<Ipv4Addr> {
        if self.l3 != L3::Arp {
            return None;
        }
        get::<4>(head, usize::from(self.l3_offset) + 14).map(|b| Ipv4Addr::from(*b))
    }
}

const _: () = assert!(size_of::<Headers>() <= 32, "two fit a cache line");
