//! Anti-spoofing: whether a vNIC may send a frame, from its contract and the
//! frame's own bytes.
//!
//! ```text
//!  Vnic ─▶ Policy ─┐
//!                  ├─▶ Pass, or Drop(Reason)
//!  head, Headers ──┘
//! ```
//!
//! Checked are the source MAC, the VLAN tag and, if the contract names
//! `allowed.prefixes`, every place where IPv4 and IPv6 take a neighbour's word
//! for an address: IP source, ARP sender, target of a neighbour advertisement.
//! A frame that hides one of these from us (a second VLAN tag, an LLC/SNAP
//! encapsulation, too many extension headers) is dropped rather than guessed at:
//! receivers differ in what they unwrap (CVE-2021-27853, -27854, -27861).

use crate::frame::headers::{ETHERTYPE_VLAN, Headers, L3, L4, PROTO_ICMPV6, get};
use std::net::{IpAddr, Ipv6Addr};
use tidegate_contract::{Mac, Prefix, Vnic};

/// EtherTypes of service VLAN tags: IEEE 802.1ad, and what was used before it.
const SERVICE_TAGS: [u16; 2] = [0x88a8, 0x9100];
/// EtherTypes are 1536 and up; smaller is a length, and an LLC header follows (IEEE 802.3, 3.2.6).
const ETHERTYPE_MIN: u16 = 0x0600;
/// The LLC service access point of SNAP (RFC 1042), which can carry IP and ARP.
const LLC_SNAP: u8 = 0xaa;
/// ICMPv6 type of a neighbour advertisement (RFC 4861, 4.4).
const NEIGHBOUR_ADVERTISEMENT: u8 = 136;

/// What the contract of one vNIC lets it send.
#[derive(Clone, Debug)]
pub struct Policy {
    mac: Mac,
    macs: Box<[Mac]>,
    any_mac: bool,
    prefixes: Prefixes,
    /// One bit per VID.
    vlans: Box<[u64; 64]>,
}

/// `allowed.prefixes` as (network, mask), so that a lookup is two instructions each.
#[derive(Clone, Debug)]
struct Prefixes {
    v4: Box<[(u32, u32)]>,
    v6: Box<[(u128, u128)]>,
}

impl Prefixes {
    fn new(prefixes: &[Prefix]) -> Self {
        let v4 = prefixes.iter().filter_map(|p| match p.addr() {
            IpAddr::V4(a) => Some((a.to_bits(), high_bits(p.len(), 32) as u32)),
            IpAddr::V6(_) => None,
        });
        let v6 = prefixes.iter().filter_map(|p| match p.addr() {
            IpAddr::V4(_) => None,
            IpAddr::V6(a) => Some((a.to_bits(), high_bits(p.len(), 128))),
        });
        Self { v4: v4.collect(), v6: v6.collect() }
    }

    #[inline]
    fn is_empty(&self) -> bool {
        self.v4.is_empty() && self.v6.is_empty()
    }

    #[inline]
    fn contain(&self, ip: IpAddr) -> bool {
        match ip {
            IpAddr::V4(ip) => self.v4.iter().any(|(net, mask)| ip.to_bits() & mask == *net),
            IpAddr::V6(ip) => self.v6.iter().any(|(net, mask)| ip.to_bits() & mask == *net),
        }
    }
}

/// The mask of the first `len` of `width` bits.
fn high_bits(len: u8, width: u8) -> u128 {
    let low = u32::from(width.saturating_sub(len));
    u128::MAX.checked_shl(low).unwrap_or(0)
}

/// The outcome of [`Policy::check`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The frame may be sent.
    Pass,
    /// It may not.
    Drop(Reason),
}

/// Why a frame may not be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Reason {
    /// Neither the vNIC's own MAC nor in `allowed.macs`, or a group address.
    #[error("source MAC is not the vNIC's own and not in allowed.macs")]
    SourceMac,
    /// A VID not in `allowed.vlans`, a service tag or a second tag.
    #[error("VLAN tag is not in allowed.vlans, or a second tag follows it")]
    Vlan,
    /// IP source outside `allowed.prefixes`.
    #[error("source address is not in allowed.prefixes")]
    SourcePrefix,
    /// ARP that claims another's MAC or an address outside `allowed.prefixes`.
    #[error("ARP sender address is not one the vNIC may use")]
    ArpSpoof,
    /// Neighbour advertisement for an address outside `allowed.prefixes`, or one that
    /// might hide behind more extension headers than are looked at.
    #[error("IPv6 neighbour advertisement for an address not in allowed.prefixes")]
    NeighbourSpoof,
    /// LLC/SNAP, in which addresses are not checked.
    #[error("LLC/SNAP encapsulation hides the addresses to be checked")]
    Encapsulation,
}

impl From<&Vnic> for Policy {
    fn from(vnic: &Vnic) -> Self {
        let mut vlans = Box::new([0u64; 64]);
        for vid in &vnic.allowed.vlans {
            if let Some(word) = vlans.get_mut(usize::from(vid / 64)) {
                *word |= 1 << (vid % 64);
            }
        }
        Self {
            mac: vnic.mac,
            macs: vnic.allowed.macs.clone().into(),
            any_mac: vnic.allowed.any_mac,
            prefixes: Prefixes::new(&vnic.allowed.prefixes),
            vlans,
        }
    }
}

impl Policy {
    /// Whether the vNIC may send the frame that begins with `head`.
    #[inline(always)]
    pub fn check(&self, head: &[u8], headers: &Headers) -> Verdict {
        match self.reason_to_drop(head, headers) {
            None => Verdict::Pass,
            Some(reason) => Verdict::Drop(reason),
        }
    }

    /// Whether a [plain](super::plain) frame passes: what [`check`](Self::check) would say.
    #[inline(always)]
    pub fn passes_plain(&self, head: &[u8], src: Mac) -> bool {
        self.owns_mac(src) && (self.prefixes.is_empty() || self.owns_plain_source(head))
    }

    #[inline(never)]
    fn owns_plain_source(&self, head: &[u8]) -> bool {
        super::plain::source_ip(head).is_some_and(|ip| self.owns_ip(ip))
    }

    /// Whether frames tagged with `vid` may be delivered to the vNIC. VID 0 is
    /// no VLAN.
    #[inline]
    pub fn may_receive_tagged(&self, vid: u16) -> bool {
        vid == 0 || self.vlans.get(usize::from(vid / 64)).is_some_and(|w| w >> (vid % 64) & 1 == 1)
    }

    #[inline(always)]
    fn reason_to_drop(&self, head: &[u8], headers: &Headers) -> Option<Reason> {
        if !self.owns_mac(headers.src) {
            return Some(Reason::SourceMac);
        }
        if headers.vid().is_some_and(|vid| !self.may_receive_tagged(vid)) {
            return Some(Reason::Vlan);
        }
        match headers.l3 {
            L3::Ipv4 | L3::Ipv6 if self.prefixes.is_empty() => None,
            L3::Ipv4 | L3::Ipv6 => self.ip(head, headers),
            L3::Arp => self.arp(head, headers),
            L3::None => self.other(head, headers),
        }
    }

    #[inline]
    fn owns_mac(&self, mac: Mac) -> bool {
        mac == self.mac || self.owns_further(mac)
    }

    #[inline(never)]
    fn owns_further(&self, mac: Mac) -> bool {
        !mac.is_group() && (self.any_mac || self.macs.contains(&mac))
    }

    /// Whether `ip` is in the prefixes, or one that hosts use before they have
    /// another: 0.0.0.0 (DHCP, ARP probe), :: (duplicate address detection), fe80::/10.
    #[inline]
    fn owns_ip(&self, ip: IpAddr) -> bool {
        ip.is_unspecified()
            || matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
            || self.prefixes.contain(ip)
    }

    #[inline(never)]
    fn ip(&self, head: &[u8], headers: &Headers) -> Option<Reason> {
        if !headers.source_ip(head).is_some_and(|ip| self.owns_ip(ip)) {
            return Some(Reason::SourcePrefix);
        }
        if headers.l3 == L3::Ipv6 && headers.l4 == L4::Other && !self.advertises_own(head, headers) {
            return Some(Reason::NeighbourSpoof);
        }
        None
    }

    /// Whether an IPv6 datagram of neither TCP nor UDP is no advertisement of
    /// another's address. Fragments need no look: receivers ignore fragmented
    /// neighbour discovery (RFC 6980).
    fn advertises_own(&self, head: &[u8], headers: &Headers) -> bool {
        let l4 = usize::from(headers.l4_offset);
        match headers.protocol {
            PROTO_ICMPV6 => {
                head.get(l4).is_some_and(|kind| *kind != NEIGHBOUR_ADVERTISEMENT)
                    || get::<16>(head, l4 + 8)
                        .is_some_and(|target| self.owns_ip(Ipv6Addr::from(*target).into()))
            }
            _ => !headers.ends_in_extension(),
        }
    }

    fn arp(&self, head: &[u8], headers: &Headers) -> Option<Reason> {
        let mac = headers.arp_sender_mac(head)?;
        let ip = headers.arp_sender_ip(head)?;
        let own = self.owns_mac(mac) && (self.prefixes.is_empty() || self.owns_ip(ip.into()));
        (!own).then_some(Reason::ArpSpoof)
    }

    fn other(&self, head: &[u8], headers: &Headers) -> Option<Reason> {
        if headers.ethertype == ETHERTYPE_VLAN || SERVICE_TAGS.contains(&headers.ethertype) {
            return Some(Reason::Vlan);
        }
        let snap =
            headers.ethertype < ETHERTYPE_MIN && head.get(usize::from(headers.l3_offset)) == Some(&LLC_SNAP);
        let unchecked = self.any_mac && self.prefixes.is_empty();
        (snap && !unchecked).then_some(Reason::Encapsulation)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::frame::headers::HEADER_MAX;
    use crate::frame::parse;
    use crate::frame::testing::{self, DST, Frame, SRC, SRC4, SRC6, V6};
    use Verdict::{Drop, Pass};
    use proptest::prelude::*;
    use std::net::Ipv4Addr;

    const OTHER: Mac = Mac([0x52, 0x54, 0, 0, 0, 9]);

    fn policy(change: impl FnOnce(&mut Policy)) -> Policy {
        let mut p = Policy {
            mac: SRC,
            macs: [].into(),
            any_mac: false,
            prefixes: Prefixes::new(&[]),
            vlans: Box::new([0; 64]),
        };
        change(&mut p);
        p
    }

    /// Of the vNIC that [`testing`] sends from, with or without prefixes.
    pub fn a_policy(prefixes: bool) -> Policy {
        policy(|p| {
            if prefixes {
                p.prefixes = Prefixes::new(&[prefix(SRC4, 32), prefix(SRC6, 128)]);
            }
        })
    }

    fn prefix(addr: impl Into<IpAddr>, len: u8) -> Prefix {
        Prefix::new(addr.into(), len).unwrap()
    }

    fn only(prefixes: &[Prefix]) -> Policy {
        policy(|p| p.prefixes = Prefixes::new(prefixes))
    }

    fn run(policy: &Policy, frame: &[u8]) -> Verdict {
        let head = &frame[..frame.len().min(HEADER_MAX)];
        policy.check(head, &parse(head, frame.len()).unwrap())
    }

    fn from(mut frame: Vec<u8>, src: Mac) -> Vec<u8> {
        frame[6..12].copy_from_slice(&src.0);
        frame
    }

    fn v4_from(src: [u8; 4]) -> Vec<u8> {
        let mut f = Frame::udp4(4).build();
        f[26..30].copy_from_slice(&src);
        f
    }

    fn v6_from(src: [u8; 16]) -> Vec<u8> {
        let mut f = Frame::udp6(4).build();
        f[V6 + 8..V6 + 24].copy_from_slice(&src);
        f
    }

    /// A neighbour advertisement of `target` from a link-local source.
    fn advertisement(target: [u8; 16]) -> Vec<u8> {
        let mut f = v6_from(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1).octets());
        f.truncate(54);
        f[V6 + 4..V6 + 7].copy_from_slice(&[0, 24, PROTO_ICMPV6]);
        f.extend([136, 0, 0, 0, 0x20, 0, 0, 0]);
        f.extend(target);
        f
    }

    #[test]
    fn contract_becomes_policy() {
        let vnic = vnic();
        let p = Policy::from(&vnic);
        assert_eq!((p.mac, p.any_mac), (SRC, false));
        assert_eq!(run(&p, &Frame::udp4(1).build()), Pass);
        assert_eq!(run(&p, &from(Frame::udp4(1).build(), OTHER)), Pass);
        assert_eq!(run(&p, &from(Frame::udp4(1).build(), DST)), Drop(Reason::SourceMac));
        assert_eq!(run(&p, &Frame::udp6(1).build()), Drop(Reason::SourcePrefix));
        let vids: Vec<u16> = (0..=u16::MAX).filter(|v| p.may_receive_tagged(*v)).collect();
        assert_eq!(vids, [0, 1, 63, 64, 4094]);
    }

    fn vnic() -> Vnic {
        use tidegate_contract::{Allowed, Attach, Rx, Segment, Tx};
        Vnic {
            name: "a".into(),
            attach: Attach::Netdev { name: "a".into() },
            mac: SRC,
            segment: Segment::new(1).unwrap(),
            tx: Tx::default(),
            rx: Rx::default(),
            weight: 1,
            deadline: None,
            to: vec![],
            allowed: Allowed {
                macs: vec![OTHER],
                any_mac: false,
                prefixes: vec![prefix(Ipv4Addr::new(10, 0, 0, 0), 8)],
                vlans: vec![1, 63, 64, 4094],
            },
            mtu: 1500,
            queues: 1,
            guest: None,
        }
    }

    #[test]
    fn source_mac() {
        let f = Frame::udp4(4).build();
        let group = Mac([0x53, 0x54, 0, 0, 0, 1]);
        let own = policy(|_| ());
        let any = policy(|p| p.any_mac = true);
        let listed = policy(|p| p.macs = [OTHER].into());
        for (policy, mac, verdict) in [
            (&own, SRC, Pass),
            (&own, OTHER, Drop(Reason::SourceMac)),
            (&listed, OTHER, Pass),
            (&listed, DST, Drop(Reason::SourceMac)),
            (&any, OTHER, Pass),
            (&any, group, Drop(Reason::SourceMac)),
            (&any, Mac([0xff; 6]), Drop(Reason::SourceMac)),
        ] {
            assert_eq!(run(policy, &from(f.clone(), mac)), verdict, "{mac:?}");
        }
    }

    #[test]
    fn vlans() {
        let trunk = policy(|p| p.vlans[0] = 1 << 42);
        let access = policy(|_| ());
        let tagged = |tci| Frame { vlan: Some(tci), ..Frame::udp4(4) }.build();
        for (policy, tci, verdict) in [
            (&trunk, 42, Pass),
            (&trunk, 0xf02a, Pass),
            (&trunk, 43, Drop(Reason::Vlan)),
            (&trunk, 4095, Drop(Reason::Vlan)),
            (&trunk, 0xe000, Pass),
            (&access, 0xe000, Pass),
            (&access, 42, Drop(Reason::Vlan)),
        ] {
            assert_eq!(run(policy, &tagged(tci)), verdict, "{tci:x}");
        }
        assert_eq!(run(&trunk, &Frame::udp4(4).build()), Pass);

        // A second tag could carry anything, with priority tags even to untagged receivers.
        for outer in [0, 42] {
            let mut stacked = tagged(outer);
            stacked.splice(16..16, [0x81, 0, 0, 42]);
            assert_eq!(run(&trunk, &stacked), Drop(Reason::Vlan));
        }
        for service in [[0x88, 0xa8], [0x91, 0x00]] {
            let mut f = tagged(42);
            f[12..14].copy_from_slice(&service);
            assert_eq!(run(&trunk, &f), Drop(Reason::Vlan));
        }
    }

    #[test]
    fn source_prefixes() {
        let v4 = prefix(Ipv4Addr::new(10, 1, 0, 0), 16);
        let v6 = prefix(Ipv6Addr::new(0xfd01, 0, 0, 0, 0, 0, 0, 0), 16);
        let both = only(&[v4, v6]);
        for (policy, frame, verdict) in [
            (&both, v4_from([10, 1, 255, 255]), Pass),
            (&both, v4_from([10, 2, 0, 0]), Drop(Reason::SourcePrefix)),
            (&both, v4_from([0; 4]), Pass),
            (&both, v6_from([0; 16]), Pass),
            (&both, v6_from(SRC6), Pass),
            (&both, v6_from(testing::DST6), Drop(Reason::SourcePrefix)),
            (&both, v6_from(Ipv6Addr::new(0xfebf, 1, 0, 0, 0, 0, 0, 1).octets()), Pass),
            (&both, v6_from(Ipv6Addr::new(0xfec0, 1, 0, 0, 0, 0, 0, 1).octets()), Drop(Reason::SourcePrefix)),
            // An IPv4 address dressed as IPv6 is not that address.
            (
                &both,
                v6_from(Ipv4Addr::new(10, 1, 0, 1).to_ipv6_mapped().octets()),
                Drop(Reason::SourcePrefix),
            ),
            (&only(&[v4]), v6_from(SRC6), Drop(Reason::SourcePrefix)),
            (&policy(|_| ()), v4_from([8, 8, 8, 8]), Pass),
        ] {
            assert_eq!(run(policy, &frame), verdict, "{frame:02x?}");
        }
        let tagged = Frame { vlan: Some(0), ..Frame::udp4(4) };
        assert_eq!(run(&only(&[v6]), &tagged.build()), Drop(Reason::SourcePrefix));
        let mut fragment = v4_from([9, 9, 9, 9]);
        fragment[21] = 7;
        assert_eq!(run(&both, &fragment), Drop(Reason::SourcePrefix));
    }

    #[test]
    fn arp() {
        let inside = only(&[prefix(Ipv4Addr::new(10, 1, 0, 0), 16)]);
        let any = policy(|p| p.any_mac = true);
        let own = policy(|_| ());
        let spoof = Drop(Reason::ArpSpoof);
        for (policy, mac, ip, verdict) in [
            (&inside, SRC, SRC4, Pass),
            (&inside, SRC, [0; 4], Pass),
            (&inside, SRC, [10, 2, 0, 1], spoof),
            (&inside, OTHER, SRC4, spoof),
            (&own, SRC, [9, 9, 9, 9], Pass),
            (&own, OTHER, SRC4, spoof),
            (&any, OTHER, SRC4, Pass),
            (&any, Mac([0xff; 6]), SRC4, spoof),
        ] {
            let mut f = testing::arp(mac, ip);
            assert_eq!(run(policy, &f), verdict, "{mac:?} {ip:?}");
            f[12..14].copy_from_slice(&[0x80, 0x35]);
            assert_eq!(run(policy, &f), verdict, "RARP {mac:?} {ip:?}");
        }
    }

    #[test]
    fn neighbour_advertisements() {
        let inside = only(&[prefix(Ipv6Addr::new(0xfd01, 0, 0, 0, 0, 0, 0, 0), 16)]);
        let spoof = Drop(Reason::NeighbourSpoof);
        assert_eq!(run(&inside, &advertisement(SRC6)), Pass);
        assert_eq!(run(&inside, &advertisement(testing::DST6)), spoof);
        assert_eq!(run(&policy(|_| ()), &advertisement(testing::DST6)), Pass);
        let mut echo = advertisement(testing::DST6);
        echo[54] = 128;
        assert_eq!(run(&inside, &echo), Pass);
        let mut behind_hop_by_hop = advertisement(testing::DST6);
        behind_hop_by_hop[V6 + 5] += 8;
        behind_hop_by_hop[V6 + 6] = 0;
        behind_hop_by_hop.splice(54..54, [PROTO_ICMPV6, 0, 1, 4, 0, 0, 0, 0]);
        assert_eq!(run(&inside, &behind_hop_by_hop), spoof);
        // Out of sight: behind 160 bytes of options, or cut by them.
        for len in [152, 112] {
            let mut hidden = advertisement(SRC6);
            hidden[V6 + 5] += len;
            hidden[V6 + 6] = 60;
            let mut options = vec![0; usize::from(len)];
            options[..2].copy_from_slice(&[PROTO_ICMPV6, len / 8 - 1]);
            hidden.splice(54..54, options);
            let expected = if len == 112 { Pass } else { spoof };
            assert_eq!(run(&inside, &hidden), expected, "{len}");
        }
    }

    #[test]
    fn encapsulation_that_hides_addresses() {
        let inner = &Frame::udp4(20).build()[14..];
        let mut f = Frame::udp4(0).build()[..14].to_vec();
        let len = (inner.len() + 8) as u16;
        f[12..14].copy_from_slice(&len.to_be_bytes());
        f.extend([0xaa, 0xaa, 3, 0, 0, 0, 8, 0]);
        f.extend(inner);
        let v4 = prefix(Ipv4Addr::new(10, 1, 0, 0), 16);
        let hidden = Drop(Reason::Encapsulation);
        assert_eq!(run(&only(&[v4]), &f), hidden);
        assert_eq!(run(&policy(|_| ()), &f), hidden, "ARP may hide in it");
        assert_eq!(run(&policy(|p| p.any_mac = true), &f), Pass);
        // Spanning tree is LLC as well, and hides nothing.
        f[14..17].copy_from_slice(&[0x42, 0x42, 3]);
        assert_eq!(run(&only(&[v4]), &f), Pass);
    }

    proptest! {
        #[test]
        fn lookup_is_that_of_the_contract(addr: u128, flip in 0u32..128, len in 0u8..=128, v4: bool) {
            let (addr, other, network, len): (IpAddr, IpAddr, IpAddr, u8) = if v4 {
                let (addr, len) = (addr as u32, len.min(32));
                let v4 = |bits: u32| Ipv4Addr::from_bits(bits).into();
                (v4(addr), v4(addr ^ 1 << (flip % 32)), v4(addr & high_bits(len, 32) as u32), len)
            } else {
                let v6 = |bits: u128| Ipv6Addr::from_bits(bits).into();
                (v6(addr), v6(addr ^ 1 << flip), v6(addr & high_bits(len, 128)), len)
            };
            let p = prefix(network, len);
            let list = Prefixes::new(&[p]);
            prop_assert!(list.contain(addr));
            prop_assert_eq!(list.contain(other), p.contains(other));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4096))]

        /// What passes never claims a MAC or an address that is not allowed.
        #[test]
        fn what_passes_is_allowed(frame in testing::hostile()) {
            let head = &frame[..frame.len().min(HEADER_MAX)];
            let Ok(h) = parse(head, frame.len()) else { return Ok(()) };
            let p = only(&[prefix(Ipv4Addr::new(10, 1, 2, 0), 24)]);
            if p.check(head, &h) == Pass {
                prop_assert_eq!(&frame[6..12], &SRC.0);
                let l3 = if frame[12..14] == [0x81, 0] { 18 } else { 14 };
                if frame[l3 - 2..l3] == [8, 0] {
                    let src = &frame[l3 + 12..l3 + 16];
                    prop_assert!(src[..3] == [10, 1, 2] || src == [0; 4]);
                }
                if l3 == 18 {
                    prop_assert_eq!(u16::from_be_bytes([frame[14], frame[15]]) & 0xfff, 0);
                }
            }
        }
    }
}
