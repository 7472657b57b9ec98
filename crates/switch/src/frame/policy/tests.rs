//! Tests each rule with frames.

use super::*;
use crate::frame::headers::{HEADER_MAX, PROTO_ICMP, PROTO_ICMPV6, PROTO_UDP};
use crate::frame::parse;
use crate::frame::testing::{self, DST, Frame, SRC, SRC4, SRC6, V6};
use Verdict::{Claim, Drop, Pass};
use std::net::Ipv4Addr;
use std::net::Ipv6Addr;
use tidegate_contract::{Allowed, Prefix};

const OTHER: Mac = Mac([0x52, 0x54, 0, 0, 0, 9]);

fn policy(change: impl FnOnce(&mut Policy)) -> Policy {
    let mut p = Policy {
        mac: SRC,
        macs: [].into(),
        any_mac: false,
        control: false,
        router: false,
        dhcp_server: false,
        prefixes: Prefixes::new(&[]),
        vlans: Box::new([0; 64]),
        shared: None,
        looks_closer: false,
    };
    change(&mut p);
    p.looks_closer = !p.prefixes.is_empty();
    p
}

/// Returns a policy for the vNIC that [`testing`] sends from, with or without prefixes.
pub fn a_policy(prefixes: bool) -> Policy {
    policy(|p| {
        if prefixes {
            p.prefixes = Prefixes::new(&[prefix(SRC4, 32), prefix(SRC6, 128)]);
        }
    })
}

/// Returns the policy of [`testing::SRC`] with this table `allowed`, and the table.
pub fn of_contract(allowed: &str) -> (Policy, Allowed) {
    let text = format!(
        "[vnic.a]\nattach = {{ tap = \"a\" }}\nmac = \"{SRC}\"\nsegment = 1\nallowed = {{ {allowed} }}"
    );
    let vnic = tidegate_contract::parse(&text, "test").unwrap().vnics.remove(0).value;
    (Policy::from(&vnic), vnic.allowed)
}

pub fn holding(addresses: &[Ipv6Addr]) -> LinkLocals {
    let mut held = LinkLocals::default();
    assert!(addresses.iter().all(|ip| held.insert(*ip)));
    held
}

fn prefix(addr: impl Into<IpAddr>, len: u8) -> Prefix {
    Prefix::new(addr.into(), len).unwrap()
}

fn only(prefixes: &[Prefix]) -> Policy {
    policy(|p| p.prefixes = Prefixes::new(prefixes))
}

fn run(policy: &Policy, frame: &[u8]) -> Verdict {
    run_holding(policy, frame, &[])
}

fn run_holding(policy: &Policy, frame: &[u8], addresses: &[Ipv6Addr]) -> Verdict {
    let head = &frame[..frame.len().min(HEADER_MAX)];
    policy.check(head, &parse(head, frame.len()).unwrap(), &holding(addresses))
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

/// The first link-local address.
const LINK: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);

/// Returns a datagram from `src` behind extension headers (number and bytes); fills in next-header.
fn v6_of(src: Ipv6Addr, extensions: &[(u8, Vec<u8>)], protocol: u8, upper: &[u8]) -> Vec<u8> {
    let mut f = v6_from(src.octets());
    f.truncate(54);
    f[V6 + 6] = extensions.first().map_or(protocol, |first| first.0);
    for (i, (_, bytes)) in extensions.iter().enumerate() {
        let mut bytes = bytes.clone();
        bytes[0] = extensions.get(i + 1).map_or(protocol, |next| next.0);
        f.extend(bytes);
    }
    f.extend(upper);
    let len = (f.len() - 54) as u16;
    f[V6 + 4..V6 + 6].copy_from_slice(&len.to_be_bytes());
    f
}

fn icmp6(src: Ipv6Addr, message: &[u8]) -> Vec<u8> {
    v6_of(src, &[], PROTO_ICMPV6, message)
}

/// Returns a neighbour discovery message of this type; `rest` follows its first 8 bytes.
fn nd(kind: u8, rest: &[&[u8]]) -> Vec<u8> {
    [&[kind, 0, 0, 0, 0, 0, 0, 0], rest.concat().as_slice()].concat()
}

fn option(kind: u8, mac: Mac) -> Vec<u8> {
    [&[kind, 1], &mac.0[..]].concat()
}

fn fragment(offset: u16, more: bool) -> (u8, Vec<u8>) {
    let [high, low] = (offset << 3 | u16::from(more)).to_be_bytes();
    (44, vec![0, 0, high, low, 1, 2, 3, 4])
}

fn extension(protocol: u8, len: usize) -> (u8, Vec<u8>) {
    let mut bytes = vec![0; len];
    bytes[1] = (len / 8 - 1) as u8;
    (protocol, bytes)
}

fn udp(src: u16, dst: u16) -> Vec<u8> {
    [&src.to_be_bytes()[..], &dst.to_be_bytes(), &[0, 12, 0, 0, 1, 2, 3, 4]].concat()
}

fn v4_of(fragment: u16, protocol: u8, upper: &[u8]) -> Vec<u8> {
    let mut f = Frame::udp4(0).build();
    f.truncate(34);
    f.extend(upper);
    let len = (f.len() - 14) as u16;
    f[16..18].copy_from_slice(&len.to_be_bytes());
    f[20..22].copy_from_slice(&fragment.to_be_bytes());
    f[23] = protocol;
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
    use tidegate_contract::{Attach, Queueing, Rx, Segment, Tx};
    Vnic {
        name: "a".into(),
        attach: Attach::Netdev { name: "a".into() },
        mac: SRC,
        segment: Segment::new(1).unwrap(),
        tx: Tx::default(),
        rx: Rx::default(),
        queueing: Queueing::default(),
        weight: 1,
        deadline: None,
        to: vec![],
        allowed: Allowed {
            macs: vec![OTHER],
            any_mac: false,
            prefixes: vec![prefix(Ipv4Addr::new(10, 0, 0, 0), 8)],
            vlans: vec![1, 63, 64, 4094],
            ..Allowed::default()
        },
        mtu: 1500,
        queues: 1,
        guest: None,
        on_refused: None,
        on_unreachable: None,
        transport: tidegate_contract::Transport::default(),
        zero_copy: false,
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

    // A second tag could carry any VLAN; with priority tags, even to untagged receivers.
    for outer in [0, 42] {
        let mut stacked = tagged(outer);
        stacked.splice(16..16, [0x81, 0, 0, 42]);
        assert_eq!(run(&trunk, &stacked), Drop(Reason::Vlan));
    }
    for service in [[0x88, 0xa8], [0x91, 0x00], [0x92, 0x00], [0x93, 0x00]] {
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
        (&both, v4_from([169, 254, 0, 1]), Drop(Reason::SourcePrefix)),
        (&both, v6_from([0; 16]), Pass),
        (&both, v6_from(SRC6), Pass),
        (&both, v6_from(testing::DST6), Drop(Reason::SourcePrefix)),
        (
            &both,
            v6_from(Ipv6Addr::new(0xfebf, 1, 0, 0, 0, 0, 0, 1).octets()),
            Claim(Ipv6Addr::new(0xfebf, 1, 0, 0, 0, 0, 0, 1)),
        ),
        (&both, v6_from(Ipv6Addr::new(0xfec0, 1, 0, 0, 0, 0, 0, 1).octets()), Drop(Reason::SourcePrefix)),
        // An IPv4-mapped address is not that IPv4 address.
        (&both, v6_from(Ipv4Addr::new(10, 1, 0, 1).to_ipv6_mapped().octets()), Drop(Reason::SourcePrefix)),
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
    let (spoof, foreign) = (Drop(Reason::ArpSpoof), Drop(Reason::NeighbourMac));
    for (policy, mac, ip, verdict) in [
        (&inside, SRC, SRC4, Pass),
        (&inside, SRC, [0; 4], Pass),
        (&inside, SRC, [10, 2, 0, 1], spoof),
        (&inside, OTHER, SRC4, foreign),
        (&own, SRC, [9, 9, 9, 9], Pass),
        (&own, OTHER, SRC4, foreign),
        (&any, OTHER, SRC4, Pass),
        (&any, Mac([0xff; 6]), SRC4, foreign),
    ] {
        let mut f = testing::arp(mac, ip);
        // The requested address is not checked.
        f[38..42].copy_from_slice(&[10, 9, 9, 9]);
        assert_eq!(run(policy, &f), verdict, "{mac:?} {ip:?}");
        f[12..14].copy_from_slice(&[0x80, 0x35]);
        assert_eq!(run(policy, &f), verdict, "RARP {mac:?} {ip:?}");
    }
}

#[test]
fn frames_for_the_link() {
    let (own, control) = (policy(|_| ()), policy(|p| p.control = true));
    let mut f = Frame::udp4(4).build();
    for (last, of_link) in [(0, true), (3, true), (0x0e, true), (0x0f, true), (0x10, false), (0x21, false)] {
        f[..6].copy_from_slice(&[0x01, 0x80, 0xc2, 0, 0, last]);
        let expected = if of_link { Drop(Reason::Control) } else { Pass };
        assert_eq!(run(&own, &f), expected, "{last:x}");
        assert_eq!(run(&control, &f), Pass, "{last:x}");
        assert_eq!(run(&control, &from(f.clone(), OTHER)), Drop(Reason::SourceMac));
    }
    // Also behind a tag, they are for the link.
    f[..6].copy_from_slice(&[0x01, 0x80, 0xc2, 0, 0, 0]);
    f.splice(12..12, [0x81, 0, 0, 0]);
    assert_eq!(run(&own, &f), Drop(Reason::Control));
}

#[test]
fn neighbour_discovery() {
    let inside = only(&[prefix(Ipv6Addr::new(0xfd01, 0, 0, 0, 0, 0, 0, 0), 16)]);
    let own = Ipv6Addr::from(SRC6);
    let second = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 2);
    let (unspecified, theirs) = (Ipv6Addr::UNSPECIFIED, testing::DST6);
    let foreign = Drop(Reason::NeighbourMac);
    let spoof = Drop(Reason::NeighbourSpoof);
    let hidden = Drop(Reason::Hidden);
    let unknown = [14, 1, 0, 0, 0, 0, 0, 0];
    for (what, source, message, verdict) in [
        ("advertisement", own, nd(136, &[&SRC6]), Pass),
        ("of another's address", own, nd(136, &[&theirs]), spoof),
        ("of no address", own, nd(136, &[&[0; 16]]), spoof),
        ("with its MAC", own, nd(136, &[&SRC6, &option(2, SRC)]), Pass),
        ("with another's MAC", own, nd(136, &[&SRC6, &option(2, OTHER)]), foreign),
        ("with another's MAC, second", own, nd(136, &[&SRC6, &unknown, &option(2, DST)]), foreign),
        ("with a broken option", own, nd(136, &[&SRC6, &[2, 0, 0, 0, 0, 0, 0, 0]]), hidden),
        (
            "with an option out of sight",
            own,
            nd(136, &[&SRC6, &[14, 20], &[0; 158], &option(2, SRC)]),
            hidden,
        ),
        ("cut off", own, nd(136, &[&SRC6[..8]]), hidden),
        ("of a link-local address", own, nd(136, &[&LINK.octets()]), Claim(LINK)),
        ("from a link-local address", LINK, nd(136, &[&SRC6]), Claim(LINK)),
        ("from one, of another", LINK, nd(136, &[&second.octets()]), Claim(LINK)),
        ("from one, of another's address", LINK, nd(136, &[&theirs]), spoof),
        // A requested address is not checked.
        ("solicitation", own, nd(135, &[&theirs, &option(1, SRC)]), Pass),
        ("of an address that is to be used", unspecified, nd(135, &[&theirs]), Pass),
        ("of a link-local one that is to be used", unspecified, nd(135, &[&LINK.octets()]), Pass),
        ("from another's address", theirs.into(), nd(135, &[&SRC6]), Drop(Reason::SourcePrefix)),
        ("with another's MAC", own, nd(135, &[&theirs, &option(1, OTHER)]), foreign),
        ("for routers", own, nd(133, &[&option(1, SRC)]), Pass),
        ("for routers, with another's MAC", own, nd(133, &[&option(1, OTHER)]), foreign),
        ("echo", own, nd(128, &[&theirs, &option(2, OTHER)]), Pass),
    ] {
        assert_eq!(run(&inside, &icmp6(source, &message)), verdict, "{what}");
        assert_eq!(run(&policy(|_| ()), &icmp6(source, &message)), Pass, "{what}, without prefixes");
    }
    let of_second = icmp6(LINK, &nd(136, &[&second.octets()]));
    assert_eq!(run_holding(&inside, &of_second, &[LINK]), Claim(second));
    assert_eq!(run_holding(&inside, &of_second, &[LINK, second]), Pass);
}

#[test]
fn routers_and_dhcp_servers() {
    let own = prefix(Ipv6Addr::new(0xfd01, 0, 0, 0, 0, 0, 0, 0), 16);
    let host = only(&[own, prefix(SRC4, 32)]);
    let router = policy(|p| (p.prefixes, p.router) = (host.prefixes.clone(), true));
    let server = policy(|p| (p.prefixes, p.dhcp_server) = (host.prefixes.clone(), true));
    let six = |protocol, upper: &[u8]| v6_of(SRC6.into(), &[], protocol, upper);
    let a_router = Drop(Reason::Router);
    let a_server = Drop(Reason::DhcpServer);
    for (what, frame, verdict) in [
        ("router advertisement", six(PROTO_ICMPV6, &nd(134, &[])), a_router),
        ("redirect", six(PROTO_ICMPV6, &nd(137, &[&SRC6, &SRC6])), a_router),
        ("IPv4 redirect", v4_of(0, PROTO_ICMP, &nd(5, &[])), a_router),
        ("IPv4 router advertisement", v4_of(0, PROTO_ICMP, &nd(9, &[])), a_router),
        ("IPv4 echo", v4_of(0, PROTO_ICMP, &nd(8, &[])), Pass),
        ("from a server", v4_of(0, PROTO_UDP, &udp(67, 68)), a_server),
        ("from a relay to a server", v4_of(0, PROTO_UDP, &udp(67, 67)), a_server),
        ("to a client from any port", v4_of(0, PROTO_UDP, &udp(1067, 68)), a_server),
        ("from a client", v4_of(0, PROTO_UDP, &udp(68, 67)), Pass),
        ("DHCPv6's ports in IPv4", v4_of(0, PROTO_UDP, &udp(547, 546)), Pass),
        ("DHCPv6 from a server", six(PROTO_UDP, &udp(547, 546)), a_server),
        ("DHCPv6 from a relay to a server", six(PROTO_UDP, &udp(547, 547)), a_server),
        ("DHCPv6 to a client from any port", six(PROTO_UDP, &udp(9, 546)), a_server),
        ("DHCPv6 from a client", six(PROTO_UDP, &udp(546, 547)), Pass),
        ("DHCPv4's ports in IPv6", six(PROTO_UDP, &udp(67, 68)), Pass),
        // In fragments: the first one shows the purpose.
        ("the first", v4_of(0x2000, PROTO_UDP, &udp(67, 68)), a_server),
        ("the first, of a client", v4_of(0x2000, PROTO_UDP, &udp(68, 67)), Pass),
        ("a later one", v4_of(0x2001, PROTO_UDP, &udp(67, 68)), Pass),
    ] {
        assert_eq!(run(&host, &frame), verdict, "{what}");
        assert_eq!(run(&router, &frame), if verdict == a_router { Pass } else { verdict }, "{what}");
        assert_eq!(run(&server, &frame), if verdict == a_server { Pass } else { verdict }, "{what}");
        assert_eq!(run(&policy(|_| ()), &frame), Pass, "{what}, without prefixes");
    }
    let mut tagged = v4_of(0, PROTO_UDP, &udp(67, 68));
    tagged.splice(12..12, [0x81, 0, 0, 0]);
    assert_eq!(run(&host, &tagged), a_server);
}

#[test]
fn headers_that_hide_a_message_are_refused() {
    let host = only(&[prefix(Ipv6Addr::new(0xfd01, 0, 0, 0, 0, 0, 0, 0), 16)]);
    let (hidden, a_router) = (Drop(Reason::Hidden), Drop(Reason::Router));
    let (ra, echo, ns) = (nd(134, &[]), nd(128, &[]), nd(135, &[&testing::DST6]));
    let options = |len| extension(60, len);
    let hop = || extension(0, 8);
    let first = || fragment(0, true);
    let mut open_routing = extension(43, 24);
    open_routing.1[3] = 1;
    for (what, chain, protocol, upper, verdict) in [
        ("behind options", vec![hop()], PROTO_ICMPV6, &ra, a_router),
        ("behind many", vec![hop(), options(8), extension(43, 24)], PROTO_ICMPV6, &ra, a_router),
        ("of neighbours, behind options", vec![hop()], PROTO_ICMPV6, &ns, Pass),
        ("last in sight", vec![options(136)], PROTO_ICMPV6, &nd(134, &[])[..2].to_vec(), a_router),
        ("out of sight", vec![options(144)], PROTO_ICMPV6, &echo, hidden),
        ("out of sight, step by step", vec![options(64); 3], PROTO_ICMPV6, &echo, hidden),
        ("on a way that is not told", vec![open_routing], PROTO_ICMPV6, &echo, hidden),
        ("first fragment", vec![first()], PROTO_ICMPV6, &ra, hidden),
        ("the only fragment", vec![fragment(0, false)], PROTO_ICMPV6, &ns, hidden),
        ("first fragment of an echo", vec![first()], PROTO_ICMPV6, &echo, Pass),
        ("a later fragment", vec![fragment(1, false)], PROTO_ICMPV6, &ra, Pass),
        ("header behind the fragment's", vec![first(), options(8)], PROTO_ICMPV6, &echo, hidden),
        ("behind a later fragment's", vec![fragment(1, true), options(8)], PROTO_ICMPV6, &echo, hidden),
        ("fragment of a fragment", vec![first(), first()], PROTO_ICMPV6, &echo, hidden),
        ("options before the fragment's", vec![options(8), first()], PROTO_ICMPV6, &echo, Pass),
        ("encrypted", vec![], 50, &echo, Pass),
        ("nothing", vec![options(8)], 59, &vec![], Pass),
        ("no message", vec![], PROTO_ICMPV6, &vec![], hidden),
        ("half a UDP header", vec![], PROTO_UDP, &vec![0, 1], hidden),
        ("TCP of two bytes", vec![], 6, &vec![0, 1], Pass),
    ] {
        let frame = v6_of(SRC6.into(), &chain, protocol, upper);
        assert_eq!(run(&host, &frame), verdict, "{what}");
        assert_eq!(run(&policy(|_| ()), &frame), Pass, "{what}, without prefixes");
    }
    // Cut off in the fragment header, and a jumbogram (RFC 2675), which says that it is empty.
    let mut cut = v6_of(SRC6.into(), &[first()], PROTO_ICMPV6, &[]);
    cut.truncate(54 + 3);
    cut[V6 + 5] = 3;
    assert_eq!(run(&host, &cut), hidden);
    let mut jumbo = v6_of(SRC6.into(), &[(0, vec![0, 0, 0xc2, 4, 0, 0, 0, 24])], PROTO_ICMPV6, &ra);
    jumbo[V6 + 4..V6 + 6].fill(0);
    assert_eq!(run(&host, &jumbo), hidden);
    // Receivers should ignore it (RFC 6980), so a router may not send it either.
    let router = policy(|p| (p.prefixes, p.router) = (host.prefixes.clone(), true));
    assert_eq!(run(&router, &v6_of(SRC6.into(), &[first()], PROTO_ICMPV6, &ra)), hidden);
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
    f[14] = 0xab;
    assert_eq!(run(&only(&[v4]), &f), hidden, "of a group");
    // Spanning tree is LLC, too, and hides no address.
    f[14..17].copy_from_slice(&[0x42, 0x42, 3]);
    assert_eq!(run(&only(&[v4]), &f), Pass);
}
