//! Anti-spoofing: decides from its contract and the frame's bytes whether a vNIC may send a frame.
//!
//! ```text
//!  Vnic ─▶ Policy ─┐
//!                  ├─▶ Pass, Drop(Reason), Claim(address) or Take(addresses): once they are the vNIC's
//!  head, Headers ──┘
//! ```
//!
//! The policy checks the source MAC, link-only destinations, the VLAN tag, and the MACs in ARP. If the
//! contract names `allowed.prefixes`, it also checks every field from which IPv4 and IPv6 learn a neighbour's
//! address (IP source, ARP sender, target and link-layer address of neighbour discovery), and router and DHCP
//! server messages. It does not check an address that ARP or a neighbour solicitation *asks for*.
//!
//! A frame that hides one of these fields (a second VLAN tag, an LLC/SNAP encapsulation, too many extension
//! headers) is dropped, because receivers differ in what they unwrap (CVE-2021-27853, -27854, -27861).
//! `docs/reference/frames.md` lists all rules in a table; a test sends each of its rows.
//!
//! - [`prefixes`]: addresses that `allowed.prefixes` allows
//! - [`link_local`]: addresses that hosts choose themselves
//! - [`shared`]: addresses that several vNICs have one at a time
//! - [`message`]: whether a datagram is a router's, a DHCP server's or a neighbour's message
//! - `verdict`: the verdict on a frame
//! - `receiver`: an independent reading of frames, for tests

pub mod link_local;
pub mod message;
pub mod prefixes;
pub mod shared;
mod verdict;

#[cfg(test)]
mod properties;
#[cfg(any(test, feature = "fuzzing"))]
pub mod receiver;
#[cfg(test)]
pub(super) mod tests;

use crate::frame::headers::{ETHERTYPE_VLAN, Headers, L3, get, is_of_link};
use link_local::LinkLocals;
use message::{Message, message, plain_v4_is_other, plain_v6_is_other};
use prefixes::{Prefixes, Use};
use shared::Shared;
use std::net::{IpAddr, Ipv4Addr};
use tidegate_contract::{Mac, Prefix, Vnic};
use verdict::LINK_LAYER_ADDRESSES;
pub use verdict::{Reason, Verdict};

/// EtherTypes of service VLAN tags: IEEE 802.1ad, and its predecessors.
const SERVICE_TAGS: [u16; 4] = [0x88a8, 0x9100, 0x9200, 0x9300];
/// Least EtherType, 1536. A smaller value is a length, and an LLC header follows (IEEE 802.3, 3.2.6).
const ETHERTYPE_MIN: u16 = 0x0600;
/// The LLC service access point of SNAP (RFC 1042), which can carry IP and ARP.
const LLC_SNAP: u8 = 0xaa;
/// The frames that a vNIC's contract allows.
#[derive(Clone, Debug)]
pub struct Policy {
    mac: Mac,
    macs: Box<[Mac]>,
    any_mac: bool,
    control: bool,
    router: bool,
    dhcp_server: bool,
    prefixes: Prefixes,
    /// One bit per VID.
    vlans: Box<[u64; 64]>,
    /// Addresses shared with other vNICs; `None` if its segment shares none.
    shared: Option<Box<Shared>>,
    /// The source MAC alone does not decide a plain frame: there are prefixes or shared addresses.
    looks_closer: bool,
}

impl From<&Vnic> for Policy {
    fn from(vnic: &Vnic) -> Self {
        let mut vlans = Box::new([0u64; 64]);
        for vid in &vnic.allowed.vlans {
            if let Some(word) = vlans.get_mut(usize::from(vid / 64)) {
                *word |= 1 << (vid % 64);
            }
        }
        // Shared addresses are allowed here; `shared` decides whether the vNIC has them now.
        let shared = &vnic.allowed.shared;
        let macs = vnic.allowed.macs.iter().copied().chain(shared.iter().filter_map(|one| one.mac()));
        let prefixes = &vnic.allowed.prefixes;
        let with_shared =
            prefixes.iter().copied().chain(shared.iter().filter_map(|one| host_prefix(one.ip()?)));
        let prefixes = if prefixes.is_empty() { Vec::new() } else { with_shared.collect::<Vec<_>>() };
        Self {
            mac: vnic.mac,
            macs: macs.collect(),
            any_mac: vnic.allowed.any_mac,
            control: vnic.allowed.control,
            router: vnic.allowed.router,
            dhcp_server: vnic.allowed.dhcp_server,
            prefixes: Prefixes::new(&prefixes),
            vlans,
            shared: None,
            looks_closer: !prefixes.is_empty(),
        }
    }
}

/// Returns the prefix of one address.
fn host_prefix(ip: IpAddr) -> Option<Prefix> {
    Prefix::new(ip, if ip.is_ipv4() { 32 } else { 128 }).ok()
}

impl Policy {
    /// Returns the policy of a link to other hosts, whose switches have checked their senders: any address
    /// and any VLAN. Frames for the link itself end at each host.
    pub fn open() -> Self {
        Self {
            mac: Mac([0; 6]),
            macs: Box::default(),
            any_mac: true,
            control: false,
            router: true,
            dhcp_server: true,
            prefixes: Prefixes::new(&[]),
            vlans: Box::new([u64::MAX; 64]),
            shared: None,
            looks_closer: false,
        }
    }

    /// Sets the addresses that the vNIC shares with others.
    pub fn share(&mut self, shared: Option<Shared>) {
        self.shared = shared.map(Box::new);
        self.looks_closer = self.shared.is_some() || !self.prefixes.is_empty();
    }

    /// Returns a shared address by its number in the contract.
    pub fn shared(&self, number: usize) -> Option<&shared::Share> {
        self.shared.as_ref()?.get(number)
    }

    /// Whether the vNIC, with these link-local addresses, may send the frame.
    #[inline(always)]
    pub fn check(&self, head: &[u8], headers: &Headers, claimed: &LinkLocals) -> Verdict {
        let verdict = self.check_own(head, headers, claimed);
        match &self.shared {
            Some(shared) if !matches!(verdict, Verdict::Drop(_)) => {
                match shared.judge(head, headers, !self.prefixes.is_empty()) {
                    Verdict::Pass => verdict,
                    other => other,
                }
            }
            _ => verdict,
        }
    }

    /// The same, as if it had all shared addresses of its contract.
    #[inline(always)]
    fn check_own(&self, head: &[u8], headers: &Headers, claimed: &LinkLocals) -> Verdict {
        if !self.owns_mac(headers.src) {
            return Verdict::Drop(Reason::SourceMac);
        }
        if is_of_link(headers.dst) && !self.control {
            return Verdict::Drop(Reason::Control);
        }
        if headers.vid().is_some_and(|vid| !self.may_receive_tagged(vid)) {
            return Verdict::Drop(Reason::Vlan);
        }
        match headers.l3 {
            L3::Ipv4 | L3::Ipv6 if self.prefixes.is_empty() => Verdict::Pass,
            L3::Ipv4 => self.v4(head, headers),
            L3::Ipv6 => self.v6(head, headers, claimed),
            L3::Arp => self.arp(head, headers),
            L3::None => self.check_other(head, headers),
        }
    }

    /// Whether a [plain](super::plain) frame certainly passes [`check`](Self::check). If `false`, `check` decides.
    #[inline(always)]
    pub fn passes_plain(&self, head: &[u8], src: Mac, claimed: &LinkLocals) -> bool {
        self.owns_mac(src) && (!self.looks_closer || self.may_send_plain(head, src, claimed))
    }

    #[inline(never)]
    fn may_send_plain(&self, head: &[u8], src: Mac, claimed: &LinkLocals) -> bool {
        match &self.shared {
            None => self.is_within_prefixes(head, claimed),
            Some(shared) => self.may_send_plain_beside(shared, head, src, claimed),
        }
    }

    #[inline(never)]
    fn may_send_plain_beside(&self, shared: &Shared, head: &[u8], src: Mac, claimed: &LinkLocals) -> bool {
        let checks_ip = !self.prefixes.is_empty();
        shared.passes_plain(src, super::plain::source_ip(head).filter(|_| checks_ip))
            && (!checks_ip || self.is_within_prefixes(head, claimed))
    }

    #[inline(always)]
    fn is_within_prefixes(&self, head: &[u8], claimed: &LinkLocals) -> bool {
        if let Some(ip) = head.first_chunk::<38>()
            && ip[14] >> 4 == 4
        {
            let source = ip[26..].first_chunk::<4>().map(|source| Ipv4Addr::from(*source));
            return plain_v4_is_other(ip) && source.is_some_and(|source| self.prefixes.contain_v4(source));
        }
        self.may_send_plain_v6(head, claimed)
    }

    fn may_send_plain_v6(&self, head: &[u8], claimed: &LinkLocals) -> bool {
        let Some(ip) = head.first_chunk::<58>() else { return false };
        let Some(IpAddr::V6(source)) = super::plain::source_ip(ip) else { return false };
        plain_v6_is_other(ip) && self.prefixes.source_v6(source, claimed) == Use::Yes
    }

    /// Whether frames tagged with `vid` may be delivered to the vNIC. VID 0 is no VLAN.
    #[inline]
    pub fn may_receive_tagged(&self, vid: u16) -> bool {
        vid == 0 || self.vlans.get(usize::from(vid / 64)).is_some_and(|w| w >> (vid % 64) & 1 == 1)
    }

    /// Whether the vNIC must [hold](LinkLocals) link-local addresses before it uses them.
    pub fn holds_addresses(&self) -> bool {
        !self.prefixes.is_empty()
    }

    #[inline]
    fn owns_mac(&self, mac: Mac) -> bool {
        mac == self.mac || self.owns_further(mac)
    }

    #[inline(never)]
    fn owns_further(&self, mac: Mac) -> bool {
        !mac.is_group() && (self.any_mac || self.macs.contains(&mac))
    }

    #[inline(never)]
    fn v4(&self, head: &[u8], headers: &Headers) -> Verdict {
        match headers.source_ip(head) {
            Some(IpAddr::V4(source)) if self.prefixes.contain_v4(source) => {
                self.check_message(head, headers, &LinkLocals::default())
            }
            _ => Verdict::Drop(Reason::SourcePrefix),
        }
    }

    #[inline(never)]
    fn v6(&self, head: &[u8], headers: &Headers, claimed: &LinkLocals) -> Verdict {
        let Some(IpAddr::V6(source)) = headers.source_ip(head) else {
            return Verdict::Drop(Reason::SourcePrefix);
        };
        let source = self.prefixes.source_v6(source, claimed);
        match (source, self.check_message(head, headers, claimed)) {
            (Use::No, _) => Verdict::Drop(Reason::SourcePrefix),
            // A dropped frame claims no address.
            (Use::Claim(ip), Verdict::Pass | Verdict::Claim(_)) => Verdict::Claim(ip),
            (_, said) => said,
        }
    }

    /// Whether it may send a datagram of this purpose from any source.
    fn check_message(&self, head: &[u8], headers: &Headers, claimed: &LinkLocals) -> Verdict {
        match message(head, headers) {
            Message::OfRouter if !self.router => Verdict::Drop(Reason::Router),
            Message::OfDhcpServer if !self.dhcp_server => Verdict::Drop(Reason::DhcpServer),
            Message::Hidden => Verdict::Drop(Reason::Hidden),
            Message::Other | Message::OfRouter | Message::OfDhcpServer => Verdict::Pass,
            Message::Solicitation { options } => self.link_layer(head, headers, options),
            Message::Advertisement { target, options } => {
                match (self.prefixes.own_v6(target, claimed), self.link_layer(head, headers, options)) {
                    (Use::No, _) => Verdict::Drop(Reason::NeighbourSpoof),
                    (Use::Claim(target), Verdict::Pass) => Verdict::Claim(target),
                    (_, said) => said,
                }
            }
        }
    }

    /// Whether all MACs in the options of neighbour discovery are its own.
    fn link_layer(&self, head: &[u8], headers: &Headers, options: usize) -> Verdict {
        let mut at = options;
        while at < headers.end as usize {
            let (kind, len) = match get(head, at) {
                // Length in units of 8 bytes; 0 is malformed (RFC 4861, 4.6).
                Some(&[kind, len]) if len > 0 => (kind, usize::from(len) * 8),
                _ => return Verdict::Drop(Reason::Hidden),
            };
            if LINK_LAYER_ADDRESSES.contains(&kind) {
                match get(head, at + 2) {
                    Some(mac) if self.owns_mac(Mac(*mac)) => {}
                    Some(_) => return Verdict::Drop(Reason::NeighbourMac),
                    None => return Verdict::Drop(Reason::Hidden),
                }
            }
            at += len;
        }
        Verdict::Pass
    }

    fn arp(&self, head: &[u8], headers: &Headers) -> Verdict {
        let (Some(mac), Some(ip)) = (headers.arp_sender_mac(head), headers.arp_sender_ip(head)) else {
            return Verdict::Drop(Reason::ArpSpoof);
        };
        if !self.owns_mac(mac) {
            return Verdict::Drop(Reason::NeighbourMac);
        }
        match self.prefixes.is_empty() || self.prefixes.contain_v4(ip) {
            true => Verdict::Pass,
            false => Verdict::Drop(Reason::ArpSpoof),
        }
    }

    fn check_other(&self, head: &[u8], headers: &Headers) -> Verdict {
        if headers.ethertype == ETHERTYPE_VLAN || SERVICE_TAGS.contains(&headers.ethertype) {
            return Verdict::Drop(Reason::Vlan);
        }
        let service = head.get(usize::from(headers.l3_offset));
        // The lowest bit distinguishes group and individual.
        let snap =
            headers.ethertype < ETHERTYPE_MIN && service.is_some_and(|service| service & !1 == LLC_SNAP);
        match snap && !(self.any_mac && self.prefixes.is_empty()) {
            true => Verdict::Drop(Reason::Encapsulation),
            false => Verdict::Pass,
        }
    }
}
