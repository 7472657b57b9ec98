//! Frames that a guest can and cannot send: checks each row of `docs/reference/frames.md` through a switch.
//!
//! ```text
//!  row of the table ─▶ contract: without prefixes, with them, with the key ─┐
//!      └▶ its frames ──────────────────────────▶ sender ─▶ switch ─▶ b      ├▶ received, or counted by its reason
//!                                                                           ┘
//! ```

mod harness;

use harness::netns::{in_namespace, packet_socket, tap, tap_vnic};
use harness::*;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::net::{Ipv4Addr, Ipv6Addr};
use tidegate_switch::control::PortStatus;

const TABLE: &str = include_str!("../../../docs/reference/frames.md");
/// Prefixes of the contract where a row's key names none.
const PREFIXES: [&str; 2] = ["192.0.2.0/24", "2001:db8::/48"];

const SENDER: &str = "sender";
const A: [u8; 6] = [0x52, 0x54, 0, 0, 0, 1];
const B: [u8; 6] = [0x52, 0x54, 0, 0, 0, 2];
const ANOTHER: [u8; 6] = [2, 0, 0, 0, 0, 0xaa];
const OWN4: [u8; 4] = [192, 0, 2, 7];
const OTHER4: [u8; 4] = [198, 51, 100, 7];
const OWN6: &str = "2001:db8::7";
const SHARED: &str = "shared = [\"192.0.2.99\", \"00:00:5e:00:01:33\"]";
const VIRTUAL: [u8; 6] = [0, 0, 0x5e, 0, 1, 0x33];
const OTHER6: &str = "2001:db8:ffff::7";

#[derive(Debug)]
struct Row {
    frame: String,
    /// Whether the frame passes, without prefixes and with them.
    passes: [bool; 2],
    key: String,
    reason: String,
}

fn rows() -> Vec<Row> {
    let row = |line: &str| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [frame, without, with, key, reason] = cells[..] else { panic!("five cells: {line}") };
        let passes = |cell: &str| match cell {
            "passes" => true,
            "dropped" => false,
            _ => panic!("passes or dropped: {line}"),
        };
        let code = |cell: &str| cell.trim_matches('`').to_owned();
        let passes = [passes(without), passes(with)];
        Row { frame: frame.into(), passes, key: code(key), reason: code(reason) }
    };
    let table = TABLE.lines().skip_while(|line| !line.starts_with("| frame |")).skip(2);
    let lines = table.take_while(|line| line.starts_with('|')).filter(|line| !line.starts_with("| **"));
    lines.map(row).collect()
}

fn frames_of(row: &str) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let own6 = || ip(OWN6);
    let tagged = |tag: u16, tci: u16| tag_with(udp4(OWN4, 1, 2), tag, tci);
    let first_fragment = |protocol: u8, upper: &[u8]| v6(own6(), &[fragment(0)], protocol, upper);
    let frames = match row {
        "from its own MAC" => vec![udp4(OWN4, 1, 2), tcp6(own6())],
        "from another MAC" => vec![from(ANOTHER, udp4(OWN4, 1, 2))],
        "from a MAC that other contracts share" => {
            vec![from(VIRTUAL, udp4(OWN4, 1, 2)), from(VIRTUAL, arp(A, OWN4))]
        }
        "from a group MAC" => {
            vec![from([0x53, 0x54, 0, 0, 0, 1], udp4(OWN4, 1, 2)), from([0xff; 6], arp(A, OWN4))]
        }
        "to 01:80:c2:00:00:00 to 0f: STP, PAUSE, LACP, EAPOL, LLDP" => {
            let spanning_tree = [0, 38, 0x42, 0x42, 3];
            let to =
                |last: u8, what: &[u8]| [&[0x01, 0x80, 0xc2, 0, 0, last], &A[..], what, &[0; 46]].concat();
            vec![
                to(0, &spanning_tree),
                to(1, &[0x88, 0x08]),
                to(2, &[0x88, 0x09]),
                to(3, &[0x88, 0x8e]),
                to(0x0e, &[0x88, 0xcc]),
                to_link(0x0f, udp4(OWN4, 1, 2)),
            ]
        }
        "with a priority tag (VID 0)" => vec![tagged(0x8100, 0xe000)],
        "with a VLAN tag" => vec![tagged(0x8100, 10)],
        "with two tags, or a service tag: EtherType 0x88a8, 0x9100, 0x9200, 0x9300" => {
            let services = [0x88a8, 0x9100, 0x9200, 0x9300];
            let mut frames: Vec<_> = services.iter().map(|service| tagged(*service, 0)).collect();
            frames.extend(services.iter().map(|service| tag_with(tagged(*service, 0), 0x8100, 0)));
            frames.push(tag_with(tagged(0x8100, 0), 0x8100, 0));
            frames
        }
        "LLC/SNAP" => {
            let packet = &udp4(OWN4, 1, 2)[14..];
            vec![ethernet(B, (packet.len() + 8) as u16, &[&[0xaa, 0xaa, 3, 0, 0, 0, 8, 0], packet].concat())]
        }
        "other LLC, other EtherTypes" => {
            vec![ethernet(B, 46, &[&[0xfe, 0xfe, 3][..], &[0; 43]].concat()), ethernet(B, 0x88b5, &[0; 46])]
        }
        "header that contradicts itself or the frame's length" => {
            let broken = |at: usize, byte: u8, mut frame: Vec<u8>| {
                frame[at] = byte;
                frame
            };
            vec![
                broken(14, 0x65, udp4(OWN4, 1, 2)),
                broken(17, 255, udp4(OWN4, 1, 2)),
                broken(14, 0x40, tcp6(own6())),
                broken(18, 7, arp(A, OWN4)),
            ]
        }

        "sender: its own MAC, an address in `prefixes` or 0.0.0.0; target: any address" => {
            vec![arp(A, OWN4), arp(A, [0; 4]), rarp(arp(A, OWN4))]
        }
        "sender: another MAC" => vec![arp(ANOTHER, OWN4), rarp(arp(ANOTHER, OWN4))],
        "sender: another IPv4 address" => vec![arp(A, OTHER4), rarp(arp(A, OTHER4))],

        "from an address in `prefixes`, or 0.0.0.0" => vec![udp4(OWN4, 1, 2), udp4([0; 4], 1, 2)],
        "from another IPv4 address" => vec![udp4(OTHER4, 1, 2), v4(OTHER4, 0x2000, 47, &[0; 8])],
        "from an address in `prefixes` that other contracts share" => {
            vec![udp4([192, 0, 2, 99], 1, 2), arp(A, [192, 0, 2, 99])]
        }
        "from a link-local address (169.254.0.0/16)" => vec![udp4([169, 254, 1, 2], 1, 2)],
        "DHCP, of a client: UDP from port 68 to port 67" => vec![udp4([0; 4], 68, 67)],
        "DHCP, of a server or relay: UDP from port 67, or to port 68" => {
            let reply = |fragment| v4(OWN4, fragment, 17, &udp_header(67, 68));
            vec![
                udp4(OWN4, 67, 68),
                udp4(OWN4, 67, 67),
                udp4(OWN4, 1067, 68),
                tag_with(udp4(OWN4, 67, 68), 0x8100, 0),
                reply(0x2000),
            ]
        }
        "ICMP router advertisement (type 9), redirect (type 5)" => {
            [9, 5].map(|kind| v4(OWN4, 0, 1, &[kind, 0, 0, 0, 0, 0, 0, 0])).into()
        }
        "fragments of other datagrams" => {
            vec![v4(OWN4, 0x2000, 17, &udp_header(1, 2)), v4(OWN4, 1, 17, &udp_header(67, 68))]
        }

        "from an address in `prefixes`, or `::`" => vec![tcp6(own6()), udp6(Ipv6Addr::UNSPECIFIED, 1, 2)],
        "from another IPv6 address" => vec![udp6(ip(OTHER6), 1, 2), nd(ip(OTHER6), 135, Some(OWN6), None)],
        "from up to four link-local addresses (fe80::/10)" => link_locals(4),
        "from a fifth link-local address" => {
            return (
                link_locals(4),
                vec![udp6(ip("fe80::5"), 1, 2), nd(ip("fe80::5"), 135, Some(OTHER6), None)],
            );
        }
        "from a link-local address that another vNIC with `prefixes` used first" => {
            vec![udp6(ip("fe80::c"), 1, 2), nd(ip("fe80::c"), 133, None, None)]
        }
        "from a link-local address that another contract names" => vec![udp6(ip("fe80::d"), 1, 2)],
        "from the link-local address of another contract's MAC" => {
            vec![udp6(ip("fe80::5054:ff:fe00:2"), 1, 2)]
        }
        "neighbour solicitation, of any target; router solicitation" => vec![
            nd(own6(), 135, Some(OTHER6), Some((1, A))),
            nd(own6(), 135, Some("fe80::c"), None),
            // Duplicate address detection, also of an address of another vNIC.
            nd(Ipv6Addr::UNSPECIFIED, 135, Some("fe80::c"), None),
            nd(own6(), 133, None, Some((1, A))),
        ],
        "neighbour advertisement, of an own address" => vec![
            nd(own6(), 136, Some(OWN6), Some((2, A))),
            nd(ip("fe80::1"), 136, Some("fe80::1"), Some((2, A))),
        ],
        "neighbour advertisement, of another's address" => {
            vec![nd(own6(), 136, Some(OTHER6), Some((2, A))), nd(own6(), 136, Some(OTHER6), None)]
        }
        "neighbour or router solicitation, or neighbour advertisement, that names another MAC" => vec![
            nd(own6(), 135, Some(OTHER6), Some((1, ANOTHER))),
            nd(own6(), 133, None, Some((1, ANOTHER))),
            nd(own6(), 136, Some(OWN6), Some((2, ANOTHER))),
        ],
        "router advertisement (ICMPv6 134), redirect (137)" => vec![
            nd(ip("fe80::1"), 134, None, Some((1, A))),
            nd(ip("fe80::1"), 137, None, None),
            v6(own6(), &[options(0, 1)], 58, &icmp6(134)),
        ],
        "DHCPv6, of a client: UDP from port 546 to port 547" => vec![udp6(ip("fe80::1"), 546, 547)],
        "DHCPv6, of a server or relay: UDP from port 547, or to port 546" => {
            let reply = udp_header(547, 546);
            vec![
                udp6(own6(), 547, 546),
                udp6(own6(), 547, 547),
                udp6(own6(), 9, 546),
                v6(own6(), &[options(60, 2)], 17, &reply),
                first_fragment(17, &reply),
            ]
        }
        "extension headers that end within the first 192 bytes" => vec![
            v6(own6(), &[options(0, 1), options(60, 2)], 17, &udp_header(1, 2)),
            // The message's type is the last byte that the switch reads.
            v6(own6(), &[options(60, 17)], 58, &[&[128; 1][..], &[0; 15]].concat()),
        ],
        "extension headers that lead further, or a routing header in use" => {
            let in_use = (43, vec![0, 2, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
            vec![
                v6(own6(), &[options(60, 18)], 58, &icmp6(134)),
                v6(own6(), &[options(60, 9), options(60, 9)], 58, &icmp6(134)),
                v6(own6(), &[in_use], 58, &icmp6(128)),
            ]
        }
        "fragments of other datagrams, over IPv6" => vec![
            first_fragment(17, &udp_header(1, 2)),
            first_fragment(58, &icmp6(128)),
            v6(own6(), &[fragment(1)], 58, &icmp6(134)),
        ],
        "fragments of neighbour discovery and router advertisements" => [133, 134, 135, 136, 137]
            .map(|kind| first_fragment(58, &[icmp6(kind), vec![0; 16]].concat()))
            .into(),
        "fragments with an extension header behind the fragment header" => {
            [0, 1].map(|offset| v6(own6(), &[fragment(offset), options(60, 1)], 17, &udp_header(1, 2))).into()
        }
        _ => panic!("the table has a row without frames: {row}"),
    };
    (vec![], frames)
}

fn ip(text: &str) -> Ipv6Addr {
    text.parse().unwrap()
}

fn ethernet(to: [u8; 6], ethertype: u16, payload: &[u8]) -> Vec<u8> {
    [&to[..], &A, &ethertype.to_be_bytes(), payload].concat()
}

fn from(mac: [u8; 6], mut frame: Vec<u8>) -> Vec<u8> {
    frame[6..12].copy_from_slice(&mac);
    frame
}

fn to_link(last: u8, mut frame: Vec<u8>) -> Vec<u8> {
    frame[..6].copy_from_slice(&[0x01, 0x80, 0xc2, 0, 0, last]);
    frame
}

fn tag_with(mut frame: Vec<u8>, tag: u16, tci: u16) -> Vec<u8> {
    frame.splice(12..12, [tag.to_be_bytes(), tci.to_be_bytes()].concat());
    frame
}

fn arp(sender: [u8; 6], address: [u8; 4]) -> Vec<u8> {
    let asked = Ipv4Addr::new(203, 0, 113, 9).octets();
    let packet = [&[0, 1, 8, 0, 6, 4, 0, 1][..], &sender, &address, &[0; 6], &asked].concat();
    ethernet(BROADCAST, 0x0806, &packet)
}

fn rarp(mut frame: Vec<u8>) -> Vec<u8> {
    frame[12..14].copy_from_slice(&[0x80, 0x35]);
    frame
}

fn v4(source: [u8; 4], fragment: u16, protocol: u8, upper: &[u8]) -> Vec<u8> {
    let len = (20 + upper.len()) as u16;
    let mut header = [&[0x45, 0][..], &len.to_be_bytes(), &[0, 1], &fragment.to_be_bytes()].concat();
    header.extend([64, protocol, 0, 0]);
    header.extend(source);
    header.extend([192, 0, 2, 9]);
    let sum = checksum(&header);
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    ethernet(B, 0x0800, &[&header, upper].concat())
}

fn udp_header(from: u16, to: u16) -> Vec<u8> {
    [&from.to_be_bytes()[..], &to.to_be_bytes(), &[0, 16, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]].concat()
}

fn udp4(source: [u8; 4], from: u16, to: u16) -> Vec<u8> {
    v4(source, 0, 17, &udp_header(from, to))
}

/// Returns a datagram behind extension headers (number, bytes), with next-header fields filled in.
fn v6(source: Ipv6Addr, chain: &[(u8, Vec<u8>)], protocol: u8, upper: &[u8]) -> Vec<u8> {
    let next = |at: usize| chain.get(at).map_or(protocol, |header| header.0);
    let mut payload = Vec::new();
    for (at, (_, bytes)) in chain.iter().enumerate() {
        payload.push(next(at + 1));
        payload.extend(&bytes[1..]);
    }
    payload.extend(upper);
    let mut packet = vec![0x60, 0, 0, 0];
    packet.extend((payload.len() as u16).to_be_bytes());
    packet.extend([next(0), 255]);
    packet.extend(source.octets());
    packet.extend(ip("2001:db8::9").octets());
    packet.extend(payload);
    ethernet(B, 0x86dd, &packet)
}

fn udp6(source: Ipv6Addr, from: u16, to: u16) -> Vec<u8> {
    v6(source, &[], 17, &udp_header(from, to))
}

fn tcp6(source: Ipv6Addr) -> Vec<u8> {
    v6(source, &[], 6, &[&[0; 12][..], &[0x50, 0x10], &[0; 6]].concat())
}

fn options(number: u8, units: usize) -> (u8, Vec<u8>) {
    let mut bytes = vec![0; units * 8];
    bytes[1] = (units - 1) as u8;
    (number, bytes)
}

fn fragment(offset: u8) -> (u8, Vec<u8>) {
    (44, vec![0, 0, 0, offset << 3 | 1, 0, 0, 0, 1])
}

fn icmp6(kind: u8) -> Vec<u8> {
    vec![kind, 0, 0, 0, 0, 0, 0, 0]
}

fn nd(source: Ipv6Addr, kind: u8, target: Option<&str>, option: Option<(u8, [u8; 6])>) -> Vec<u8> {
    let mut message = icmp6(kind);
    match (kind, target) {
        (134, _) => message.extend([0; 8]),
        (137, _) => message.extend([0; 32]),
        (_, Some(target)) => message.extend(ip(target).octets()),
        (_, None) => {}
    }
    if let Some((kind, mac)) = option {
        message.extend([kind, 1]);
        message.extend(mac);
    }
    v6(source, &[], 58, &message)
}

fn link_locals(count: u16) -> Vec<Vec<u8>> {
    // Frames that can take the direct way alternate with frames that cannot.
    let frame = |n: u16| {
        let source = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, n);
        if n % 2 == 1 { udp6(source, 1, 2) } else { nd(source, 135, Some(OTHER6), Some((1, A))) }
    };
    (1..=count).map(frame).collect()
}

fn allowed(prefixes: bool, key: &str) -> String {
    let mut list: Vec<String> = PREFIXES.iter().map(|prefix| format!("\"{prefix}\"")).collect();
    let mut keys = Vec::new();
    match key.strip_prefix("prefixes = [") {
        Some(more) => list.push(more.trim_end_matches(']').into()),
        None if !key.is_empty() => keys.push(key.to_owned()),
        None => {}
    }
    if prefixes {
        keys.push(format!("prefixes = [{}]", list.join(", ")));
    }
    format!("allowed = {{ {} }}", keys.join(", "))
}

enum Sender {
    Guest(Box<Guest>),
    Tap(File),
}

impl Sender {
    fn send(&mut self, frame: &[u8]) {
        match self {
            Self::Guest(guest) => guest.send(frame),
            Self::Tap(socket) => socket.write_all(&[&[0; 10][..], frame].concat()).unwrap(),
        }
    }
}

struct Scene {
    host: TestSwitch,
    b: Guest,
    _others: [Guest; 2],
}

impl Scene {
    fn new(workers: usize) -> Self {
        let host = TestSwitch::new(workers);
        let mut b = host.guest(&vnic("b", 2, "allowed = { vlans = [10], control = true }"));
        let mut c = host.guest(&vnic("c", 3, &allowed(true, SHARED)));
        let d = host.guest(&vnic("d", 4, "allowed = { prefixes = [\"fe80::d/128\"] }"));
        c.send(&from(c.mac(), udp6(ip("fe80::c"), 1, 2)));
        b.receive();
        Self { host, b, _others: [c, d] }
    }

    /// Sends the frames of a row under one contract. Returns what differs from the table.
    fn try_row(&mut self, row: &Row, allowed: &str, passes: bool, on_tap: bool) -> Vec<String> {
        let (before, frames) = frames_of(&row.frame);
        let mut sender = match on_tap {
            true => {
                tap(&self.host, &tap_vnic(SENDER, 1, allowed));
                Sender::Tap(packet_socket(SENDER))
            }
            false => Sender::Guest(Box::new(self.host.guest(&vnic(SENDER, 1, allowed)))),
        };
        // Drops the announcements.
        self.b.drain();
        for frame in &before {
            sender.send(frame);
            self.b.receive();
        }
        let mut wrong = Vec::new();
        for (number, frame) in frames.iter().enumerate() {
            let dropped = |host: &TestSwitch| host.stats(SENDER).tx.dropped;
            let (sent, drops) = (self.host.stats(SENDER).tx.frames, dropped(&self.host));
            sender.send(frame);
            self.host.until(|| self.host.stats(SENDER).tx.frames > sent || dropped(&self.host) != drops);
            let seen = match self.host.stats(SENDER).tx.frames > sent {
                true => {
                    assert_eq!(self.b.receive(), *frame, "{}", row.frame);
                    "passes".to_owned()
                }
                false => new(&drops, &dropped(&self.host)),
            };
            let expected = if passes { "passes" } else { &row.reason };
            if seen != expected {
                wrong.push(format!(
                    "{}, frame {number}, {allowed}: {seen}, the table says {expected}",
                    row.frame
                ));
            }
        }
        assert_eq!(self.b.drain(), 0, "{}", row.frame);
        drop(sender);
        self.host.switch.remove_port(SENDER).unwrap();
        wrong
    }

    fn try_table(&mut self, on_tap: bool) -> Vec<String> {
        let mut wrong = Vec::new();
        for row in rows() {
            for prefixes in [false, true] {
                let passes = row.passes[usize::from(prefixes)];
                wrong.extend(self.try_row(&row, &allowed(prefixes, ""), passes, on_tap));
                if !passes && !row.key.is_empty() {
                    wrong.extend(self.try_row(&row, &allowed(prefixes, &row.key), true, on_tap));
                }
            }
        }
        wrong
    }
}

fn new(before: &BTreeMap<String, u64>, after: &BTreeMap<String, u64>) -> String {
    let counted = after.iter().find(|(reason, count)| before.get(*reason) != Some(count));
    counted.map(|(reason, _)| reason.clone()).unwrap_or_default()
}

#[test]
fn a_guest_can_send_what_the_table_says() {
    assert!(rows().len() > 35, "{:#?}", rows());
    // With one worker many frames take the direct way, with two none does.
    for workers in [1, 2] {
        assert_eq!(Scene::new(workers).try_table(false), Vec::<String>::new(), "{workers} workers");
    }
}

#[test]
fn a_tap_can_send_what_the_table_says() {
    in_namespace("a_tap_can_send_what_the_table_says", || {
        assert_eq!(Scene::new(1).try_table(true), Vec::<String>::new());
    });
}

#[test]
fn every_row_is_consistent() {
    for row in rows() {
        let dropped = row.passes.contains(&false);
        assert_eq!(dropped, !row.reason.is_empty(), "{row:?}");
        assert!(dropped || row.key.is_empty(), "{row:?}");
        assert!(row.passes != [false, true], "prefixes forbid, they do not allow: {row:?}");
    }
}

#[test]
fn frames_for_the_link_reach_those_who_asked_for_them() {
    let host = TestSwitch::new(2);
    let control = "allowed = { control = true }";
    let mut a = host.guest(&vnic("a", 1, control));
    let mut plain = host.guest(&vnic("plain", 2, ""));
    let frame = to_link(0x0e, from(a.mac(), udp4(OWN4, 1, 2)));
    a.send(&frame);
    host.until(|| host.stats("a").tx.dropped.contains_key("no_receiver"));
    let mut asked = host.guest(&vnic("asked", 3, control));
    a.send(&frame);
    assert_eq!(asked.receive(), frame);
    host.change(&vnic("asked", 3, ""));
    a.send(&frame);
    host.until(|| host.stats("a").tx.dropped["no_receiver"] == 2);
    assert_eq!((plain.drain(), asked.drain()), (0, 0));
    assert_eq!(host.stats("a").tx.dropped.len(), 1);
}

fn claimant(name: &str, n: u8) -> String {
    vnic(name, n, &allowed(true, ""))
}

fn uses(host: &TestSwitch, guest: &mut Guest, address: &str) -> bool {
    let name = guest.vnic.name.clone();
    let counts = || {
        let stats = host.stats(&name).tx;
        (stats.frames, stats.dropped.get("link_local").copied().unwrap_or(0))
    };
    let before = counts();
    guest.send(&from(guest.mac(), udp6(ip(address), 1, 2)));
    host.until(|| counts() != before);
    counts().0 > before.0
}

fn held(host: &TestSwitch, name: &str) -> Vec<String> {
    host.stats(name).link_local.iter().map(ToString::to_string).collect()
}

#[test]
fn a_link_local_address_is_that_of_the_vnic_that_used_it_first() {
    let host = TestSwitch::new(2);
    let mut peer = host.guest(&vnic("b", 2, ""));
    let mut a = host.guest(&claimant("a", 1));
    let mut c = host.guest(&claimant("c", 3));
    let elsewhere = claimant("elsewhere", 4).replace("segment = 7", "segment = 8");
    let other_host = claimant("d", 5).replace("segment = 7", "segment = 8");
    let mut elsewhere = host.guest(&elsewhere);
    let _d = host
        .guest(&other_host.replace("mac = \"52:54:00:00:00:05\"", &format!("mac = \"{}\"", peer.vnic.mac)));

    assert!(uses(&host, &mut a, "fe80::1") && !uses(&host, &mut c, "fe80::1"));
    assert!(uses(&host, &mut c, "fe80::2") && !uses(&host, &mut a, "fe80::2"));
    assert!(uses(&host, &mut elsewhere, "fe80::1"), "a segment is a world of its own");
    // A vNIC that holds its maximum keeps no further address from others.
    for n in 3..=5 {
        assert!(uses(&host, &mut a, &format!("fe80::{n}")));
    }
    assert!(!uses(&host, &mut a, "fe80::6") && uses(&host, &mut c, "fe80::6"));
    assert_eq!(held(&host, "a"), ["fe80::1", "fe80::3", "fe80::4", "fe80::5"]);
    // A request for an address claims nothing.
    c.send(&from(c.mac(), nd(Ipv6Addr::UNSPECIFIED, 135, Some("fe80::7"), None)));
    host.until(|| host.stats("c").tx.frames == 3);
    assert_eq!(held(&host, "c"), ["fe80::2", "fe80::6"]);

    // A contract takes an address from its holder if it names the address, or if its MAC makes the address.
    assert!(uses(&host, &mut c, "fe80::5054:ff:fe00:9"));
    let mut named =
        host.guest(&vnic("named", 9, "allowed = { prefixes = [\"fe80::1/128\", \"192.0.2.0/24\"] }"));
    assert!(uses(&host, &mut named, "fe80::1") && !uses(&host, &mut a, "fe80::1"));
    assert!(!uses(&host, &mut c, "fe80::5054:ff:fe00:9") && uses(&host, &mut named, "fe80::5054:ff:fe00:9"));
    assert_eq!(held(&host, "named"), ["fe80::5054:ff:fe00:9"], "what its contract names it need not hold");
    assert_eq!(held(&host, "a"), ["fe80::3", "fe80::4", "fe80::5"]);

    // A claim ends when the vNIC has no prefixes, changes its segment, or is removed.
    host.change(&vnic("a", 1, ""));
    assert!(held(&host, "a").is_empty() && uses(&host, &mut c, "fe80::3"));
    assert!(uses(&host, &mut a, "fe80::3"), "without prefixes any address may be used");
    host.change(&claimant("c", 3).replace("segment = 7", "segment = 9"));
    assert!(held(&host, "c").is_empty());
    host.change(&claimant("a", 1));
    assert!(uses(&host, &mut a, "fe80::2") && uses(&host, &mut a, "fe80::6"));
    host.switch.remove_port("a").unwrap();
    drop(a);
    host.change(&claimant("c", 3));
    assert!(uses(&host, &mut c, "fe80::2"));

    // A claim outlasts a connection.
    drop(c);
    host.until(|| host.port("c").connection == tidegate_evidence::Connection::Waiting);
    assert_eq!(held(&host, "c"), ["fe80::2"]);
    peer.drain();
}

#[test]
fn no_vnic_uses_up_the_addresses_of_others() {
    let host = TestSwitch::new(2);
    let _peer = host.guest(&vnic("b", 2, ""));
    let mut greedy: Vec<Guest> =
        (10..16).map(|n| host.guest_with(&claimant(&format!("g{n}"), n), ring(256))).collect();
    let frame =
        |guest: &Guest, n: u16| from(guest.mac(), udp6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 1, n), 1, 2));
    for round in 0..20 {
        for guest in &mut greedy {
            for n in 0..100 {
                let frame = frame(guest, round * 100 + n);
                guest.send_or_drop(&frame);
            }
        }
        host.until(|| greedy.iter_mut().all(|guest| guest.front.in_flight(0) == 0));
    }
    let statuses: Vec<PortStatus> = host.switch.ports();
    assert_eq!(statuses.len(), 7);
    let mut all: Vec<String> = greedy.iter().flat_map(|guest| held(&host, &guest.vnic.name)).collect();
    assert_eq!(all.len(), 4 * greedy.len());
    all.sort();
    all.dedup();
    assert_eq!(all.len(), 4 * greedy.len(), "one address, one holder");
    let mut late = host.guest(&claimant("late", 20));
    assert!((1..=4).all(|n| uses(&host, &mut late, &format!("fe80::2:{n}"))));
}
