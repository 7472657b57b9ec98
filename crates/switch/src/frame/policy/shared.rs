//! Addresses that several vNICs have one at a time (`allowed.shared`): which of them a frame uses, and
//! whether its sender may.
//!
//! ```text
//!  frame ─▶ addresses that it says are its sender's ─┬▶ a shared one that the contract does not name ──▶ Drop
//!                                                    ├▶ the sender has them all ───────────────────────▶ Pass
//!                                                    ├▶ no vNIC has it, or the frame is an announcement ▶ Take
//!                                                    └▶ another has it ────────────────────────────────▶ Drop
//! ```
//!
//! A frame moves an address only if it *announces* it to all: a gratuitous ARP packet, an unsolicited
//! neighbour advertisement, and for a MAC the advertisement of a virtual router (VRRP, CARP). So data frames
//! of a router that is no longer the master move no address, and are dropped.

use super::message::{Message, message};
pub use super::verdict::Taking;
use super::{LINK_LAYER_ADDRESSES, Reason, Verdict};
use crate::fdb::PortIndex;
use crate::frame::headers::{ETHERTYPE_ARP, Headers, L3, get};
use crate::holder::Holder;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use tidegate_contract::{Mac, SharedAddress};

/// IP protocol number of VRRP (RFC 9568, 5.1.1.4) and of CARP.
const PROTO_VRRP: u8 = 112;
/// Destinations of their advertisements (RFC 9568, 5.1.1.2 and 5.1.2.2).
const VRRP_V4: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 18);
const VRRP_V6: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x12);
/// Flag of a solicited neighbour advertisement (RFC 4861, 4.4).
const SOLICITED: u8 = 0x40;

/// A shared address and its holder.
pub type Share = (SharedAddress, Arc<Holder>);

/// The shared addresses of one vNIC.
#[derive(Clone, Debug)]
pub struct Shared {
    port: PortIndex,
    /// Shared addresses that its contract names; at most 64.
    own: Box<[Share]>,
    /// Shared IP addresses of all vNICs of the segment, in order.
    all: Arc<[IpAddr]>,
}

/// The addresses that a frame announces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Announced {
    Nothing,
    /// The source MACs.
    Macs,
    /// All its addresses.
    All,
}

impl Shared {
    /// Returns the shared addresses of the vNIC at `port`: `own` of its contract, `all` IP addresses of the
    /// segment, in order. `None` if both are empty.
    ///
    /// # Panics
    /// If `own` has more than 64 addresses: [`tidegate_contract::check::SHARED`].
    pub fn new(port: PortIndex, own: Vec<Share>, all: Arc<[IpAddr]>) -> Option<Self> {
        assert!(own.len() <= tidegate_contract::check::SHARED, "a bit for each");
        (!own.is_empty() || !all.is_empty()).then(|| Self { port, own: own.into(), all })
    }

    /// Returns the address with this number in the contract's list.
    pub fn get(&self, number: usize) -> Option<&Share> {
        self.own.get(number)
    }

    /// Whether the sender may use the shared addresses in an otherwise valid frame. IP addresses count only
    /// if `checks_ip`.
    #[inline(never)]
    pub(super) fn judge(&self, head: &[u8], headers: &Headers, checks_ip: bool) -> Verdict {
        let (mut used, mut anothers) = (0, false);
        self.macs(head, headers, checks_ip, |mac| used |= self.bit(SharedAddress::Mac(mac)));
        if checks_ip {
            ips(head, headers, |ip| match self.bit(SharedAddress::Ip(ip)) {
                0 => anothers |= self.all.binary_search(&ip).is_ok(),
                bit => used |= bit,
            });
        }
        if anothers {
            return Verdict::Drop(Reason::SourcePrefix);
        }
        let missing = self.missing_addresses(used);
        if missing == 0 {
            return Verdict::Pass;
        }
        let announces = announces(head, headers);
        let mut taking = Taking { own: missing, announced: 0 };
        for (number, _) in (Taking { own: missing, announced: 0 }).iter() {
            let (address, holder) = &self.own[number];
            let announced = match announces {
                Announced::Nothing => false,
                Announced::Macs => address.mac().is_some(),
                Announced::All => true,
            };
            if !announced && holder.port().is_some() {
                return Verdict::Drop(Reason::Shared);
            }
            taking.announced |= u64::from(announced) << number;
        }
        Verdict::Take(taking)
    }

    /// Whether a [plain](crate::frame::plain) frame uses only shared addresses that its sender has.
    pub(super) fn passes_plain(&self, src: Mac, ip: Option<IpAddr>) -> bool {
        let used = ip.map_or(0, |ip| self.bit(SharedAddress::Ip(ip)));
        let anothers = ip.is_some_and(|ip| used == 0 && self.all.binary_search(&ip).is_ok());
        !anothers && self.missing_addresses(used | self.bit(SharedAddress::Mac(src))) == 0
    }

    /// Returns the bit of an address in the contract; 0 for others.
    fn bit(&self, address: SharedAddress) -> u64 {
        self.own.iter().position(|(own, _)| *own == address).map_or(0, |number| 1 << number)
    }

    fn missing_addresses(&self, used: u64) -> u64 {
        let has = |number: usize| self.own[number].1.is(self.port);
        let numbers = Taking { own: used, announced: 0 }.iter();
        numbers.fold(0, |missing, (number, _)| missing | u64::from(!has(number)) << number)
    }

    /// Calls `each` with the MACs that a frame claims for its sender.
    fn macs(&self, head: &[u8], headers: &Headers, checks_ip: bool, mut each: impl FnMut(Mac)) {
        each(headers.src);
        if let Some(mac) = headers.arp_sender_mac(head) {
            each(mac);
        }
        if !checks_ip || headers.l3 != L3::Ipv6 {
            return;
        }
        let mut at = match message(head, headers) {
            Message::Solicitation { options } | Message::Advertisement { options, .. } => options,
            _ => return,
        };
        // The options' form was checked before.
        while let Some(&[kind, len]) = get(head, at)
            && at < headers.end as usize
            && len > 0
        {
            if LINK_LAYER_ADDRESSES.contains(&kind)
                && let Some(mac) = get(head, at + 2)
            {
                each(Mac(*mac));
            }
            at += usize::from(len) * 8;
        }
    }
}

/// Calls `each` with the IP addresses that a frame claims for its sender.
fn ips(head: &[u8], headers: &Headers, mut each: impl FnMut(IpAddr)) {
    match headers.l3 {
        L3::Arp => headers.arp_sender_ip(head).into_iter().for_each(|ip| each(ip.into())),
        L3::Ipv4 | L3::Ipv6 => {
            headers.source_ip(head).into_iter().for_each(&mut each);
            if headers.l3 == L3::Ipv6
                && let Message::Advertisement { target, .. } = message(head, headers)
            {
                each(target.into());
            }
        }
        L3::None => {}
    }
}

/// Returns the addresses that a frame announces to all.
fn announces(head: &[u8], headers: &Headers) -> Announced {
    if !headers.dst.is_group() {
        return Announced::Nothing;
    }
    match headers.l3 {
        // RFC 5227, 2.3; RFC 5944, 4.6.
        L3::Arp if headers.ethertype == ETHERTYPE_ARP => {
            let sender = headers.arp_sender_ip(head).filter(|ip| !ip.is_unspecified());
            let target = get::<4>(head, usize::from(headers.l3_offset) + 24).map(|ip| Ipv4Addr::from(*ip));
            if sender.is_some() && sender == target { Announced::All } else { Announced::Nothing }
        }
        L3::Ipv4 | L3::Ipv6 if headers.protocol == PROTO_VRRP => match headers.destination_ip(head) {
            Some(IpAddr::V4(VRRP_V4)) | Some(IpAddr::V6(VRRP_V6)) => Announced::Macs,
            _ => Announced::Nothing,
        },
        // RFC 4861, 7.2.6.
        L3::Ipv6 => match message(head, headers) {
            Message::Advertisement { options, .. } => match head.get(options - 20) {
                Some(flags) if flags & SOLICITED == 0 => Announced::All,
                _ => Announced::Nothing,
            },
            _ => Announced::Nothing,
        },
        _ => Announced::Nothing,
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::of_contract;
    use super::*;
    use crate::frame::policy::LinkLocals;
    use crate::frame::testing::SRC;
    use crate::frame::{HEADER_MAX, parse};
    use proptest::prelude::*;
    use proptest::sample::select;

    const ME: PortIndex = 1;
    const ANOTHER: PortIndex = 2;
    const VIRTUAL: Mac = Mac([0, 0, 0x5e, 0, 1, 0x33]);
    /// Addresses: own, shared by this contract, shared only by others.
    const V4: [Ipv4Addr; 3] =
        [Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 10), Ipv4Addr::new(10, 0, 0, 20)];
    const V6: [Ipv6Addr; 3] = [
        Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1),
        Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 0x10),
        Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 0x20),
    ];
    const ALL: Mac = Mac([0xff; 6]);
    const ONE: Mac = Mac([0x52, 0x54, 0, 0, 0, 0x77]);

    /// An intended frame; addresses are numbers of [`V4`] and [`V6`].
    #[derive(Clone, Debug)]
    enum Body {
        Udp4(usize),
        Udp6(usize),
        Arp { sender: Mac, ip: usize, gratuitous: bool },
        Advertisement { source: usize, target: usize, mac: Mac, solicited: bool },
        Vrrp4 { source: usize, to_all: bool },
    }

    #[derive(Clone, Debug)]
    struct Spec {
        from: Mac,
        to: Mac,
        body: Body,
    }

    fn ethernet(spec: &Spec, ethertype: u16, packet: &[u8]) -> Vec<u8> {
        [&spec.to.0[..], &spec.from.0, &ethertype.to_be_bytes(), packet].concat()
    }

    fn v4(source: Ipv4Addr, to: Ipv4Addr, protocol: u8) -> Vec<u8> {
        let header = [0x45, 0, 0, 28, 0, 0, 0, 0, 64, protocol, 0, 0];
        [&header[..], &source.octets(), &to.octets(), &[0, 9, 0, 9, 0, 8, 0, 0]].concat()
    }

    fn v6(source: Ipv6Addr, protocol: u8, upper: &[u8]) -> Vec<u8> {
        let header = [0x60, 0, 0, 0, 0, upper.len() as u8, protocol, 255];
        let to = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
        [&header[..], &source.octets(), &to.octets(), upper].concat()
    }

    impl Spec {
        fn build(&self) -> Vec<u8> {
            match &self.body {
                Body::Udp4(source) => ethernet(self, 0x800, &v4(V4[*source], V4[0], 17)),
                Body::Udp6(source) => ethernet(self, 0x86dd, &v6(V6[*source], 17, &[0, 9, 0, 9, 0, 8, 0, 0])),
                Body::Vrrp4 { source, to_all } => {
                    ethernet(self, 0x800, &v4(V4[*source], if *to_all { VRRP_V4 } else { V4[0] }, PROTO_VRRP))
                }
                Body::Arp { sender, ip, gratuitous } => {
                    let asked = if *gratuitous { V4[*ip] } else { Ipv4Addr::new(10, 9, 9, 9) };
                    let parts = [
                        &[0, 1, 8, 0, 6, 4, 0, 1][..],
                        &sender.0,
                        &V4[*ip].octets(),
                        &[0; 6],
                        &asked.octets(),
                    ];
                    ethernet(self, 0x806, &parts.concat())
                }
                Body::Advertisement { source, target, mac, solicited } => {
                    let flags = if *solicited { 0x60 } else { 0x20 };
                    let parts = [&[136, 0, 0, 0, flags, 0, 0, 0][..], &V6[*target].octets(), &[2, 1], &mac.0];
                    ethernet(self, 0x86dd, &v6(V6[*source], 58, &parts.concat()))
                }
            }
        }

        /// Returns the verdict if `has` are the holders of the virtual MAC, [`V4`]`[1]` and [`V6`]`[1]`.
        fn expected(&self, has: [Option<PortIndex>; 3]) -> Verdict {
            let (mut macs, mut ips) = (vec![self.from], vec![]);
            match &self.body {
                Body::Udp4(ip) | Body::Vrrp4 { source: ip, .. } => ips.push((*ip, 1)),
                Body::Udp6(ip) => ips.push((*ip, 2)),
                Body::Arp { sender, ip, .. } => {
                    macs.push(*sender);
                    ips.push((*ip, 1));
                }
                Body::Advertisement { source, target, mac, .. } => {
                    macs.push(*mac);
                    ips.extend([(*source, 2), (*target, 2)]);
                }
            }
            if ips.iter().any(|(ip, _)| *ip == 2) {
                return Verdict::Drop(Reason::SourcePrefix);
            }
            let mut used = vec![];
            used.extend(macs.contains(&VIRTUAL).then_some(0));
            used.extend(ips.iter().filter(|(ip, _)| *ip == 1).map(|(_, number)| *number));
            let announces = |number: usize| match &self.body {
                Body::Udp4(_) | Body::Udp6(_) => false,
                Body::Arp { gratuitous, .. } => *gratuitous && self.to.is_group(),
                Body::Advertisement { solicited, .. } => !solicited && self.to.is_group(),
                Body::Vrrp4 { to_all, .. } => *to_all && self.to.is_group() && number == 0,
            };
            used.retain(|number| has[*number] != Some(ME));
            if used.iter().any(|number| has[*number].is_some() && !announces(*number)) {
                return Verdict::Drop(Reason::Shared);
            }
            let (mut own, mut announced) = (0, 0);
            for number in used {
                own |= 1 << number;
                announced |= u64::from(announces(number)) << number;
            }
            if own == 0 { Verdict::Pass } else { Verdict::Take(Taking { own, announced }) }
        }
    }

    fn spec() -> impl Strategy<Value = Spec> {
        let ip = || 0usize..3;
        let mac = || select(vec![SRC, VIRTUAL]);
        let body = prop_oneof![
            ip().prop_map(Body::Udp4),
            ip().prop_map(Body::Udp6),
            (mac(), ip(), any::<bool>()).prop_map(|(sender, ip, gratuitous)| Body::Arp {
                sender,
                ip,
                gratuitous
            }),
            (ip(), ip(), mac(), any::<bool>()).prop_map(|(source, target, mac, solicited)| {
                Body::Advertisement { source, target, mac, solicited }
            }),
            (ip(), any::<bool>()).prop_map(|(source, to_all)| Body::Vrrp4 { source, to_all }),
        ];
        (mac(), select(vec![ALL, ONE]), body).prop_map(|(from, to, body)| Spec { from, to, body })
    }

    /// Returns the policy's verdict with these holders.
    fn judged(spec: &Spec, has: [Option<PortIndex>; 3]) -> Verdict {
        let shared = "shared = [\"00:00:5e:00:01:33\", \"10.0.0.10\", \"fd00::10\"]";
        let (mut policy, allowed) =
            of_contract(&format!("prefixes = [\"10.0.0.0/8\", \"fd00::/16\"], {shared}"));
        let share = |(address, has): (&SharedAddress, Option<PortIndex>)| {
            let holder = Holder::default();
            has.into_iter().for_each(|port| _ = holder.take(port, false, 0));
            (*address, Arc::new(holder))
        };
        let own: Vec<Share> = allowed.shared.iter().zip(has).map(share).collect();
        let mut all: Vec<IpAddr> = vec![V4[1].into(), V4[2].into(), V6[1].into(), V6[2].into()];
        all.sort();
        policy.share(Shared::new(ME, own, all.into()));
        let frame = spec.build();
        let head = &frame[..frame.len().min(HEADER_MAX)];
        let headers = parse(head, frame.len()).expect("well formed");
        let verdict = policy.check(head, &headers, &LinkLocals::default());
        if policy.passes_plain(head, headers.src, &LinkLocals::default())
            && crate::frame::plain::parse_plain(head, frame.len()).is_some()
        {
            assert_eq!(verdict, Verdict::Pass, "{spec:?}");
        }
        verdict
    }

    fn holders() -> impl Strategy<Value = [Option<PortIndex>; 3]> {
        let one = || select(vec![None, Some(ME), Some(ANOTHER)]);
        (one(), one(), one()).prop_map(|(mac, v4, v6)| [mac, v4, v6])
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2048))]

        #[test]
        fn a_frame_may_use_addresses_that_its_sender_has_or_announces(spec in spec(), has in holders()) {
            prop_assert_eq!(judged(&spec, has), spec.expected(has), "{:?}", spec);
        }
    }

    #[test]
    fn a_vnic_without_shared_addresses_cannot_use_those_of_others() {
        let (mut policy, _) = of_contract("prefixes = [\"10.0.0.0/8\"]");
        let says = |policy: &crate::frame::Policy, body: Body| {
            let frame = Spec { from: SRC, to: ALL, body }.build();
            policy.check(&frame, &parse(&frame, frame.len()).expect("well formed"), &LinkLocals::default())
        };
        let claims = || Body::Arp { sender: SRC, ip: 1, gratuitous: true };
        assert_eq!(says(&policy, claims()), Verdict::Pass, "nothing is shared");
        policy.share(Shared::new(ME, vec![], [V4[1].into()].into()));
        assert_eq!(says(&policy, claims()), Verdict::Drop(Reason::SourcePrefix));
        assert_eq!(says(&policy, Body::Udp4(1)), Verdict::Drop(Reason::SourcePrefix));
        assert_eq!(says(&policy, Body::Udp4(0)), Verdict::Pass);
    }
}
