//! Faults of a frame: in its own headers, and in the virtio header.

use crate::harness::frames::{Header, Kind, NEEDS_CSUM, SENDER, TCPV4};
use crate::harness::{udp_dscp, vnic, with_header};
use crate::scene::{
    Case,
    Costs::{Frame, Nothing},
    Kept,
    Layout::Both,
    Scene, case,
};
use std::net::Ipv6Addr;
use std::sync::Arc;
use tidegate_contract::Vnic;
use tidegate_frontend::front_end::Options;
use tidegate_switch::server::Switch;
use tidegate_switch::server::ports::Connect;

const TCP: Kind = Kind { v6: false, tcp: true };

fn send(scene: &mut Scene, header: [u8; 12], frame: &[u8]) -> Kept {
    let features = Options::default().features | SENDER;
    let mut front =
        scene.connect_with(Options { features, buffer_size: 70_000, queue_size: 32, ..Options::default() });
    assert!(front.send(0, &with_header(12, header, frame)));
    Box::new(front)
}

fn super_frame(scene: &mut Scene, lie: impl FnOnce(&mut Header)) -> Kept {
    let (mut header, frame) = TCP.frame(scene.peer.mac(), scene.vnic.mac.0, &[1; 20_000], 1000);
    lie(&mut header);
    send(scene, header.bytes(0), &frame)
}

fn changed(scene: &mut Scene, change: impl FnOnce(&mut Vec<u8>)) -> Kept {
    let mut frame = scene.frame(&[1; 100]);
    change(&mut frame);
    send(scene, [0; 12], &frame)
}

struct Restricted(Arc<Switch>, Vnic);

impl Drop for Restricted {
    fn drop(&mut self) {
        self.0.set_port(self.1.clone(), Connect::Unchanged).expect("as it was");
    }
}

fn restricted(scene: &mut Scene, frames: &[Vec<u8>]) -> Kept {
    scene.host.change(&vnic("liar", 3, "allowed = { prefixes = [\"10.0.0.0/24\", \"2001:db8::/32\"] }"));
    let mut front = scene.connect_with(Options { queue_size: 256, ..Options::default() });
    for frame in frames {
        assert!(front.send(0, &with_header(12, [0; 12], frame)));
    }
    Box::new((front, Restricted(scene.host.switch.clone(), scene.vnic.clone())))
}

fn ports(scene: &Scene, from: u16, to: u16) -> Vec<u8> {
    let mut frame = scene.frame(&[1; 100]);
    frame[34..36].copy_from_slice(&from.to_be_bytes());
    frame[36..38].copy_from_slice(&to.to_be_bytes());
    frame
}

fn six(scene: &Scene, source: &str, next: u8, payload: &[u8]) -> Vec<u8> {
    let address = |text: &str| text.parse::<Ipv6Addr>().unwrap().octets();
    let mut frame = [&scene.peer.mac()[..], &scene.vnic.mac.0, &[0x86, 0xdd, 0x60, 0, 0, 0]].concat();
    frame.extend((payload.len() as u16).to_be_bytes());
    frame.extend([next, 255]);
    frame.extend(address(source));
    frame.extend(address("ff02::1"));
    frame.extend(payload);
    frame
}

const OWN: &str = "2001:db8::3";
const ADVERTISEMENT: [u8; 16] = [134, 0, 0, 0, 64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0];

pub fn cases() -> Vec<Case> {
    let bad = Frame("malformed");
    let hidden = Frame("encapsulation");
    vec![
        case("gso_size of 65535", Both, Frame("too_long"), |s| super_frame(s, |h| h.gso_size = 65_535)),
        case("gso_size of 0", Both, bad, |s| super_frame(s, |h| h.gso_size = 0)),
        case("gso_size of 1: twenty thousand segments", Both, bad, |s| super_frame(s, |h| h.gso_size = 1)),
        case("gso_type that does not exist", Both, bad, |s| super_frame(s, |h| h.gso_type = 99)),
        case("gso_type of another protocol", Both, bad, |s| super_frame(s, |h| h.gso_type = 5)),
        case("super-frame without its checksum left to us", Both, bad, |s| super_frame(s, |h| h.flags = 0)),
        case("csum_start past the frame", Both, bad, |s| super_frame(s, |h| h.csum_start = 60_000)),
        case("csum_offset past the frame", Both, bad, |s| super_frame(s, |h| h.csum_offset = 60_000)),
        case("csum_start and csum_offset that wrap", Both, bad, |s| {
            super_frame(s, |h| (h.csum_start, h.csum_offset) = (65_535, 65_535))
        }),
        case("hdr_len of 65535", Both, Nothing, |s| {
            let (header, frame) = TCP.frame(s.peer.mac(), s.vnic.mac.0, &[1; 20_000], 1000);
            send(s, header.bytes(65_535), &frame)
        }),
        case("segmentation of a frame that is not IP", Both, bad, |s| {
            let mut frame = s.frame(&[1; 2000]);
            frame[12..14].copy_from_slice(&[0x12, 0x34]);
            let lie = Header {
                flags: NEEDS_CSUM,
                gso_type: TCPV4,
                gso_size: 1000,
                csum_start: 34,
                csum_offset: 16,
                ..Header::default()
            };
            send(s, lie.bytes(0), &frame)
        }),
        case("virtio header of all ones", Both, bad, |s| {
            let frame = s.frame(&[1; 100]);
            send(s, [0xff; 12], &frame)
        }),
        case("frame of one byte", Both, bad, |s| send(s, [0; 12], &[1])),
        case("frame without an EtherType", Both, bad, |s| changed(s, |frame| frame.truncate(13))),
        case("IP header cut off", Both, bad, |s| changed(s, |frame| frame.truncate(30))),
        case("IP header length of 60 in a frame of 44", Both, bad, |s| {
            changed(s, |frame| {
                frame.truncate(44);
                frame[14] = 0x4f;
            })
        }),
        case("IP header length of 4", Both, bad, |s| changed(s, |frame| frame[14] = 0x41)),
        case("IP length past the frame", Both, bad, |s| changed(s, |frame| frame[16..18].fill(0xff))),
        case("TCP header length past the frame", Both, Nothing, |s| {
            let (_, mut frame) = TCP.frame(s.peer.mac(), s.vnic.mac.0, &[], 1000);
            frame[14 + 20 + 12] = 0xf0;
            send(s, [0; 12], &frame)
        }),
        case("frame longer than the MTU", Both, Frame("too_long"), |s| {
            let frame = s.frame(&[1; 9000]);
            send(s, [0; 12], &frame)
        }),
        case("source MAC of a neighbour", Both, Frame("source_mac"), |s| changed(s, |frame| frame[11] = 1)),
        case("source MAC of a group", Both, Frame("source_mac"), |s| changed(s, |frame| frame[6] |= 1)),
        case("VLAN tag of another's network", Both, Frame("vlan"), |s| {
            changed(s, |frame| drop(frame.splice(12..12, [0x81, 0x00, 0x00, 0x05])))
        }),
        case("service tags of old", Both, Frame("vlan"), |s| {
            changed(s, |frame| drop(frame.splice(12..12, [0x92, 0x00, 0, 0, 0x93, 0x00, 0, 0])))
        }),
        case("spanning tree of its own", Both, Frame("control"), |s| {
            changed(s, |frame| frame[..6].copy_from_slice(&[0x01, 0x80, 0xc2, 0, 0, 0]))
        }),
        case("PAUSE for everybody", Both, Frame("control"), |s| {
            changed(s, |frame| {
                frame[..6].copy_from_slice(&[0x01, 0x80, 0xc2, 0, 0, 1]);
                frame[12..14].copy_from_slice(&[0x88, 0x08]);
            })
        }),
        case("DHCP offer", Both, Frame("dhcp_server"), |s| restricted(s, &[ports(s, 67, 68)])),
        case("DHCP offer from any port", Both, Frame("dhcp_server"), |s| restricted(s, &[ports(s, 9, 68)])),
        case("DHCP offer, its first fragment", Both, Frame("dhcp_server"), |s| {
            let mut frame = ports(s, 67, 68);
            frame[20] = 0x20;
            restricted(s, &[frame])
        }),
        case("DHCPv6 reply behind options", Both, Frame("dhcp_server"), |s| {
            let reply = [&[17, 0, 1, 4, 0, 0, 0, 0, 2, 35, 2, 34, 0, 8, 0, 0][..], &[0; 20]].concat();
            restricted(s, &[six(s, OWN, 60, &reply)])
        }),
        case("router of its own", Both, Frame("router"), |s| {
            restricted(s, &[six(s, OWN, 58, &ADVERTISEMENT)])
        }),
        case("router behind options", Both, Frame("router"), |s| {
            let hop = [58, 0, 5, 2, 0, 0, 1, 0];
            restricted(s, &[six(s, OWN, 0, &[&hop[..], &ADVERTISEMENT].concat())])
        }),
        case("router behind more options than are looked at", Both, hidden, |s| {
            let options = [&[58, 17][..], &[0; 142]].concat();
            restricted(s, &[six(s, OWN, 60, &[&options[..], &ADVERTISEMENT].concat())])
        }),
        case("router in one fragment", Both, hidden, |s| {
            let fragment = [58, 0, 0, 0, 1, 2, 3, 4];
            restricted(s, &[six(s, OWN, 44, &[&fragment[..], &ADVERTISEMENT].concat())])
        }),
        case("router behind options in a fragment", Both, hidden, |s| {
            let fragment = [60, 0, 0, 1, 1, 2, 3, 4];
            let options = [58, 0, 1, 4, 0, 0, 0, 0];
            restricted(s, &[six(s, OWN, 44, &[&fragment[..], &options, &ADVERTISEMENT].concat())])
        }),
        case("neighbour's address, advertised", Both, Frame("source_prefix"), |s| {
            let target = "2001:db9::4".parse::<Ipv6Addr>().unwrap().octets();
            restricted(s, &[six(s, OWN, 58, &[&[136, 0, 0, 0, 0x20, 0, 0, 0][..], &target].concat())])
        }),
        case("neighbour's MAC, for its own address", Both, Frame("source_mac"), |s| {
            let option = [&[1, 1][..], &s.peer.mac()].concat();
            restricted(s, &[six(s, OWN, 58, &[&[133, 0, 0, 0, 0, 0, 0, 0][..], &option].concat())])
        }),
        case("link-local address of a neighbour's MAC", Both, Frame("link_local"), |s| {
            restricted(s, &[six(s, "fe80::5054:ff:fe00:4", 59, &[])])
        }),
        case("hundred link-local addresses", Both, Frame("link_local"), |s| {
            let frames: Vec<_> = (0..100).map(|n| six(s, &format!("fe80::{n:x}"), 59, &[])).collect();
            restricted(s, &frames)
        }),
        case("priority of a neighbour's deadline, without a contract", Both, Nothing, |s| {
            let frame = udp_dscp(s.peer.mac(), s.vnic.mac.0, &[1; 100], 46);
            send(s, [0; 12], &frame)
        }),
    ]
}
