//! Tests all rules together with two independent models.
//!
//! ```text
//!  Spec ─┬▶ bytes ─▶ parse, Policy ─┬▶ the same verdict
//!        └▶ Spec::expected ─────────┘
//!  bytes, some of them changed ─┬▶ parse, Policy: passes ─┬▶ then no receiver sees what is not allowed
//!                               └▶ Receiver, any of them ─┘
//! ```
//!
//! [`Spec::expected`] reads the intent, not the bytes. [`Receiver`] reads the bytes as receivers do: all of
//! the frame, header by header, also behind the header of a first fragment.

use super::receiver::Receiver;
use super::tests::{holding, of_contract};
use super::*;
use crate::frame::headers::{HEADER_MAX, PROTO_ICMP, PROTO_ICMPV6, PROTO_TCP, PROTO_UDP};
use crate::frame::plain::parse_plain;
use crate::frame::testing::{DST, SRC, hostile};
use crate::frame::{ParseError, parse};
use proptest::prelude::*;
use proptest::sample::select;
use std::net::Ipv6Addr;
use tidegate_contract::Allowed;

const FOREIGN: Mac = Mac([0x52, 0x54, 0, 0, 0, 9]);
const FURTHER: Mac = Mac([0x52, 0x54, 0, 0, 0, 5]);

/// Contracts of the vNIC, with and without prefixes.
const CONTRACTS: [&str; 6] = [
    "",
    "macs = [\"52:54:00:00:00:05\"], vlans = [7]",
    "macs = \"any\", control = true",
    "prefixes = [\"10.1.0.0/16\", \"fd01::/16\", \"fe80::77/128\"]",
    "macs = [\"52:54:00:00:00:05\"], prefixes = [\"10.1.0.0/16\", \"fd01::/16\"], vlans = [7], control = true, router = true",
    "macs = \"any\", prefixes = [\"10.1.0.0/16\", \"::/0\"], dhcp-server = true",
];
const HELD: &str = "fe80::1";
const SOURCES_V4: [&str; 5] = ["10.1.2.3", "10.2.0.1", "0.0.0.0", "169.254.1.1", "224.0.0.1"];
const SOURCES_V6: [&str; 7] = ["fd01::5", "fd02::5", "::", HELD, "fe80::2", "fe80::77", "febf::1"];

/// An intended frame.
#[derive(Clone, Debug)]
struct Spec {
    to: [u8; 6],
    from: Mac,
    tags: Vec<(u16, u16)>,
    body: Body,
}

#[derive(Clone, Debug)]
enum Body {
    Other(u16),
    /// An IEEE 802.3 frame, by its service access point.
    Llc(u8),
    Arp {
        rarp: bool,
        mac: Mac,
        ip: Ipv4Addr,
        asked: Ipv4Addr,
    },
    V4 {
        source: Ipv4Addr,
        options: usize,
        /// Offset in 8 bytes, and whether more follow.
        fragment: (u16, bool),
        upper: Upper,
    },
    V6 {
        source: Ipv6Addr,
        chain: Vec<Extension>,
        upper: Upper,
    },
}

#[derive(Clone, Copy, Debug)]
enum Extension {
    /// Type, and length in units of 8 bytes.
    Usual(u8, usize),
    /// A routing header that is not used up.
    UnderWay,
    Fragment(u16, bool),
}

#[derive(Clone, Debug)]
enum Upper {
    Udp(u16, u16),
    Tcp,
    /// ICMP of either version: type; target and options of neighbour discovery.
    Icmp {
        kind: u8,
        target: Ipv6Addr,
        options: Vec<(u8, Mac)>,
    },
    /// Another protocol.
    Opaque(u8),
}

impl Extension {
    fn number(self) -> u8 {
        match self {
            Self::Usual(number, _) => number,
            Self::UnderWay => 43,
            Self::Fragment(..) => 44,
        }
    }

    fn len(self) -> usize {
        match self {
            Self::Usual(_, units) => units * 8,
            Self::UnderWay => 24,
            Self::Fragment(..) => 8,
        }
    }

    fn bytes(self, next: u8) -> Vec<u8> {
        let mut bytes = vec![0; self.len()];
        bytes[0] = next;
        match self {
            // In units of 4 bytes beyond the first 8.
            Self::Usual(51, units) => bytes[1] = (units * 2 - 2) as u8,
            Self::Usual(_, units) => bytes[1] = (units - 1) as u8,
            Self::UnderWay => (bytes[1], bytes[3]) = (2, 1),
            Self::Fragment(offset, more) => {
                bytes[2..4].copy_from_slice(&(offset << 3 | u16::from(more)).to_be_bytes());
            }
        }
        bytes
    }
}

impl Upper {
    fn protocol(&self, v6: bool) -> u8 {
        match self {
            Self::Udp(..) => PROTO_UDP,
            Self::Tcp => PROTO_TCP,
            Self::Icmp { .. } if v6 => PROTO_ICMPV6,
            Self::Icmp { .. } => PROTO_ICMP,
            Self::Opaque(protocol) => *protocol,
        }
    }

    fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Udp(from, to) => {
                [&from.to_be_bytes()[..], &to.to_be_bytes(), &[0, 12, 0, 0, 1, 2, 3, 4]].concat()
            }
            Self::Tcp => [&[0; 12][..], &[0x50, 0x10], &[0; 6]].concat(),
            Self::Icmp { kind, target, options } => {
                let mut bytes = vec![*kind, 0, 0, 0, 0, 0, 0, 0];
                if [135, 136].contains(kind) {
                    bytes.extend(target.octets());
                }
                for (kind, mac) in options {
                    bytes.extend([*kind, 1]);
                    bytes.extend(mac.0);
                }
                bytes
            }
            Self::Opaque(_) => vec![0; 12],
        }
    }

    /// Returns how many first bytes show the purpose.
    fn telling(&self) -> usize {
        match self {
            Self::Udp(..) => 4,
            Self::Icmp { .. } => 1,
            Self::Tcp | Self::Opaque(_) => 0,
        }
    }
}

impl Spec {
    fn bytes(&self) -> Vec<u8> {
        let mut frame = [&self.to[..], &self.from.0].concat();
        for (tag, tci) in &self.tags {
            frame.extend(tag.to_be_bytes());
            frame.extend(tci.to_be_bytes());
        }
        match &self.body {
            Body::Other(ethertype) => {
                frame.extend(ethertype.to_be_bytes());
                frame.extend([0; 46]);
            }
            Body::Llc(service) => frame.extend([&[0, 46, *service, *service, 3][..], &[0; 43]].concat()),
            Body::Arp { rarp, mac, ip, asked } => {
                frame.extend(if *rarp { [0x80, 0x35] } else { [0x08, 0x06] });
                frame.extend([0, 1, 8, 0, 6, 4, 0, 1]);
                frame.extend(mac.0);
                frame.extend(ip.octets());
                frame.extend([0; 6]);
                frame.extend(asked.octets());
            }
            Body::V4 { source, options, fragment: (offset, more), upper } => {
                let bytes = upper.bytes();
                let header = 20 + options * 4;
                frame.extend([0x08, 0x00, 0x40 | (header / 4) as u8, 0]);
                frame.extend(((header + bytes.len()) as u16).to_be_bytes());
                frame.extend([0, 7]);
                frame.extend((offset | u16::from(*more) << 13).to_be_bytes());
                frame.extend([64, upper.protocol(false), 0, 0]);
                frame.extend(source.octets());
                frame.extend([10, 1, 0, 9]);
                frame.extend(vec![1; options * 4]);
                frame.extend(bytes);
            }
            Body::V6 { source, chain, upper } => {
                let number =
                    |at: usize| chain.get(at).map_or(upper.protocol(true), |extension| extension.number());
                let mut payload = Vec::new();
                for (at, extension) in chain.iter().enumerate() {
                    payload.extend(extension.bytes(number(at + 1)));
                }
                payload.extend(upper.bytes());
                frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
                frame.extend((payload.len() as u16).to_be_bytes());
                frame.extend([number(0), 255]);
                frame.extend(source.octets());
                frame.extend([0xff, 0x02, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
                frame.extend(payload);
            }
        }
        frame
    }

    /// Returns the verdict for a contract, and a vNIC that holds [`HELD`].
    fn expected(&self, allowed: &Allowed) -> Verdict {
        let rules = Rules { allowed, l3: 14 + 4 * self.tags.len() };
        rules.frame(self).map_or_else(|verdict| verdict, |()| Verdict::Pass)
    }
}

/// fe80::/10.
fn of_link(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.octets()[0] == 0xfe && ip.octets()[1] >> 6 == 2)
}

/// The rules of `docs/reference/frames.md`, in order. The first verdict other than pass decides.
struct Rules<'a> {
    allowed: &'a Allowed,
    l3: usize,
}

impl Rules<'_> {
    fn owns(&self, mac: Mac) -> bool {
        let listed = mac == SRC || self.allowed.macs.contains(&mac);
        listed || self.allowed.any_mac && mac.0[0] & 1 == 0
    }

    /// Whether a prefix contains `ip`; link-local prefixes must name single addresses.
    fn named(&self, ip: IpAddr) -> bool {
        self.allowed.prefixes.iter().any(|p| p.contains(ip) && (!of_link(ip) || p.len() > 64))
    }

    fn own_v6(&self, ip: Ipv6Addr, spoofed: Reason) -> Result<(), Verdict> {
        if ip.to_string() == HELD || self.named(ip.into()) {
            return Ok(());
        }
        Err(if of_link(ip.into()) { Verdict::Claim(ip) } else { Verdict::Drop(spoofed) })
    }

    fn frame(&self, spec: &Spec) -> Result<(), Verdict> {
        let drop = |reason| Err(Verdict::Drop(reason));
        if !self.owns(spec.from) {
            return drop(Reason::SourceMac);
        }
        if spec.to[..5] == [1, 0x80, 0xc2, 0, 0] && spec.to[5] < 16 && !self.allowed.control {
            return drop(Reason::Control);
        }
        let vlans = &self.allowed.vlans;
        match spec.tags.as_slice() {
            [] => {}
            [(0x8100, tci)] if tci & 0xfff == 0 || vlans.contains(&(tci & 0xfff)) => {}
            _ => return drop(Reason::Vlan),
        }
        let free = self.allowed.prefixes.is_empty();
        match &spec.body {
            Body::Other(_) => Ok(()),
            Body::Llc(0xaa | 0xab) if !(self.allowed.any_mac && free) => drop(Reason::Encapsulation),
            Body::Llc(_) => Ok(()),
            Body::Arp { mac, .. } if !self.owns(*mac) => drop(Reason::NeighbourMac),
            Body::Arp { ip, .. } if free || ip.is_unspecified() || self.named((*ip).into()) => Ok(()),
            Body::Arp { .. } => drop(Reason::ArpSpoof),
            _ if free => Ok(()),
            Body::V4 { source, .. } if !source.is_unspecified() && !self.named((*source).into()) => {
                drop(Reason::SourcePrefix)
            }
            Body::V4 { options, fragment: (offset, _), upper, .. } => match upper {
                _ if *offset > 0 => Ok(()),
                Upper::Udp(67, _) | Upper::Udp(_, 68) if !self.allowed.dhcp_server => {
                    drop(Reason::DhcpServer)
                }
                Upper::Icmp { kind: 5 | 9, .. } if !self.allowed.router => drop(Reason::Router),
                _ if self.l3 + 20 + options * 4 + upper.telling() > HEADER_MAX => drop(Reason::Hidden),
                _ => Ok(()),
            },
            Body::V6 { source, chain, upper } => {
                let source = match source.is_unspecified() {
                    true => Ok(()),
                    false => self.own_v6(*source, Reason::SourcePrefix),
                };
                // A dropped message claims no address.
                match (source, self.datagram(chain, upper)) {
                    (Err(Verdict::Drop(reason)), _) => drop(reason),
                    (_, Err(Verdict::Drop(reason))) => drop(reason),
                    (source, said) => source.and(said),
                }
            }
        }
    }

    fn datagram(&self, chain: &[Extension], upper: &Upper) -> Result<(), Verdict> {
        let drop = |reason| Err(Verdict::Drop(reason));
        let mut at = self.l3 + 40;
        let mut fragment = None;
        for extension in chain {
            let lost = matches!(extension, Extension::UnderWay) || at + extension.len() > HEADER_MAX;
            if lost || fragment.is_some() {
                return drop(Reason::Hidden);
            }
            if let Extension::Fragment(offset, _) = extension {
                fragment = Some(*offset);
            }
            at += extension.len();
        }
        if fragment.is_some_and(|offset| offset > 0) {
            return Ok(());
        }
        if at + upper.telling() > HEADER_MAX {
            return drop(Reason::Hidden);
        }
        match upper {
            Upper::Udp(547, _) | Upper::Udp(_, 546) if !self.allowed.dhcp_server => drop(Reason::DhcpServer),
            Upper::Icmp { kind: 133..=137, .. } if fragment.is_some() => drop(Reason::Hidden),
            Upper::Icmp { kind: 134 | 137, .. } if !self.allowed.router => drop(Reason::Router),
            Upper::Icmp { kind: 133, options, .. } => self.options(at + 8, options),
            Upper::Icmp { kind: 135, options, .. } => self.options(at + 24, options),
            Upper::Icmp { kind: 136, target, options } => {
                if at + 24 > HEADER_MAX {
                    return drop(Reason::Hidden);
                }
                let target = self.own_v6(*target, Reason::NeighbourSpoof);
                if let Err(Verdict::Drop(_)) = target {
                    return target;
                }
                self.options(at + 24, options)?;
                target
            }
            _ => Ok(()),
        }
    }

    fn options(&self, mut at: usize, options: &[(u8, Mac)]) -> Result<(), Verdict> {
        for (kind, mac) in options {
            let seen = at + if [1, 2].contains(kind) { 8 } else { 2 };
            if seen > HEADER_MAX {
                return Err(Verdict::Drop(Reason::Hidden));
            }
            if [1, 2].contains(kind) && !self.owns(*mac) {
                return Err(Verdict::Drop(Reason::NeighbourMac));
            }
            at += 8;
        }
        Ok(())
    }
}

fn any_mac() -> impl Strategy<Value = Mac> {
    select(vec![SRC, SRC, SRC, FURTHER, FOREIGN, Mac([0x53, 0, 0, 0, 0, 1])])
}

fn any_v4() -> impl Strategy<Value = Ipv4Addr> {
    select(SOURCES_V4.to_vec()).prop_map(|text| text.parse().unwrap())
}

fn any_v6() -> impl Strategy<Value = Ipv6Addr> {
    select(SOURCES_V6.to_vec()).prop_map(|text| text.parse().unwrap())
}

fn any_upper() -> impl Strategy<Value = Upper> {
    let port = || select(vec![67u16, 68, 546, 547, 53, 0]);
    let kind = select(vec![5u8, 9, 8, 128, 130, 133, 134, 135, 136, 136, 137, 143]);
    let options = prop::collection::vec((select(vec![1u8, 2, 14]), any_mac()), 0..3);
    prop_oneof![
        2 => (port(), port()).prop_map(|(from, to)| Upper::Udp(from, to)),
        1 => Just(Upper::Tcp),
        4 => (kind, any_v6(), options).prop_map(|(kind, target, options)| Upper::Icmp { kind, target, options }),
        1 => select(vec![50u8, 59, 4, 41, 47, 132, 136]).prop_map(Upper::Opaque)
    ]
}

fn any_extension() -> impl Strategy<Value = Extension> {
    let offset = || prop_oneof![2 => Just(0u16), 1 => 1u16..4];
    prop_oneof![
        6 => (select(vec![0u8, 43, 51, 60, 135, 139, 140]), prop_oneof![4 => 1usize..4, 1 => 4usize..20])
            .prop_map(|(number, units)| Extension::Usual(number, units)),
        1 => Just(Extension::UnderWay),
        3 => (offset(), any::<bool>()).prop_map(|(offset, more)| Extension::Fragment(offset, more))
    ]
}

fn any_body() -> impl Strategy<Value = Body> {
    let fragment = prop_oneof![3 => Just((0u16, false)), 1 => Just((0, true)), 1 => (1u16..4, any::<bool>())];
    let v4 = (any_v4(), 0usize..=10, fragment, any_upper())
        .prop_map(|(source, options, fragment, upper)| Body::V4 { source, options, fragment, upper });
    let chain = prop_oneof![2 => Just(vec![]), 3 => prop::collection::vec(any_extension(), 1..5)];
    let v6 =
        (any_v6(), chain, any_upper()).prop_map(|(source, chain, upper)| Body::V6 { source, chain, upper });
    let arp = (any::<bool>(), any_mac(), any_v4(), any_v4()).prop_map(|(rarp, mac, ip, asked)| Body::Arp {
        rarp,
        mac,
        ip,
        asked,
    });
    prop_oneof![
        1 => select(vec![0x88b5u16, 0x88cc, 0x8847]).prop_map(Body::Other),
        1 => select(vec![0xaau8, 0xab, 0x42, 0xfe]).prop_map(Body::Llc),
        3 => arp,
        4 => v4,
        10 => v6
    ]
}

fn any_spec() -> impl Strategy<Value = Spec> {
    let of_link = (0u8..32).prop_map(|last| [0x01, 0x80, 0xc2, 0, 0, last]);
    let to = prop_oneof![6 => Just(DST.0), 2 => Just([0xff; 6]), 1 => Just([0x33, 0x33, 0, 0, 0, 1]), 1 => of_link];
    let from = prop_oneof![6 => Just(SRC), 1 => any_mac()];
    let tag = (
        select(vec![0x8100u16, 0x8100, 0x8100, 0x88a8, 0x9100, 0x9200, 0x9300]),
        select(vec![0u16, 7, 8, 0xe007, 0xe000]),
    );
    let tags = prop_oneof![4 => Just(vec![]), 2 => prop::collection::vec(tag, 1..4)];
    (to, from, tags, any_body()).prop_map(|(to, from, tags, body)| Spec { to, from, tags, body })
}

fn decide(policy: &Policy, frame: &[u8]) -> Result<Verdict, ParseError> {
    let head = &frame[..frame.len().min(HEADER_MAX)];
    let headers = parse(head, frame.len())?;
    Ok(policy.check(head, &headers, &holding(&[HELD.parse().unwrap()])))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    #[test]
    fn the_verdict_is_that_of_the_rules(spec in any_spec(), contract in select(CONTRACTS.to_vec())) {
        let (policy, allowed) = of_contract(contract);
        let (frame, expected) = (spec.bytes(), spec.expected(&allowed));
        prop_assert_eq!(decide(&policy, &frame), Ok(expected), "{}", contract);
        // Frames that the direct way passes at first sight.
        if let Some(plain) = parse_plain(&frame[..frame.len().min(128)], frame.len())
            && policy.passes_plain(&frame, plain.src, &holding(&[HELD.parse().unwrap()]))
        {
            prop_assert_eq!(expected, Verdict::Pass, "{}", contract);
        }
    }

    /// A passed frame, of any bytes, tells no receiver what the vNIC may not say.
    #[test]
    fn a_passed_frame_claims_only_allowed_addresses(
        frame in prop_oneof![3 => any_spec().prop_map(|spec| spec.bytes()), 1 => hostile()],
        pokes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        contract in select(CONTRACTS.to_vec()),
    ) {
        let mut frame = frame;
        for (at, value) in pokes {
            if !frame.is_empty() {
                let at = at.index(frame.len());
                frame[at] = value;
            }
        }
        let (policy, allowed) = of_contract(contract);
        if decide(&policy, &frame) != Ok(Verdict::Pass) {
            return Ok(());
        }
        let seen = Receiver::of(&frame);
        prop_assert!(seen.is_allowed(SRC, &allowed, &[HELD.parse().unwrap()]), "{:?}", seen);
    }
}
