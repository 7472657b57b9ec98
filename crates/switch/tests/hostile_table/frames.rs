//! What can be wrong with a frame: its own headers, and the one that virtio puts in front.

use crate::harness::frames::{Header, Kind, NEEDS_CSUM, SENDER, TCPV4};
use crate::harness::{udp_dscp, with_header};
use crate::scene::{
    Case,
    Costs::{Frame, Nothing},
    Kept,
    Layout::Both,
    Scene, case,
};
use tidegate_frontend::front_end::Options;

const TCP: Kind = Kind { v6: false, tcp: true };

fn send(scene: &mut Scene, header: [u8; 12], frame: &[u8]) -> Kept {
    let features = Options::default().features | SENDER;
    let mut front =
        scene.connect_with(Options { features, buffer_size: 70_000, queue_size: 32, ..Options::default() });
    assert!(front.send(0, &with_header(12, header, frame)));
    Box::new(front)
}

/// A super-frame whose virtio header says something else.
fn super_frame(scene: &mut Scene, lie: impl FnOnce(&mut Header)) -> Kept {
    let (mut header, frame) = TCP.frame(scene.peer.mac(), scene.vnic.mac.0, &[1; 20_000], 1000);
    lie(&mut header);
    send(scene, header.bytes(0), &frame)
}

/// An honest UDP frame with bytes changed.
fn changed(scene: &mut Scene, change: impl FnOnce(&mut Vec<u8>)) -> Kept {
    let mut frame = scene.frame(&[1; 100]);
    change(&mut frame);
    send(scene, [0; 12], &frame)
}

pub fn cases() -> Vec<Case> {
    let bad = Frame("malformed");
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
        case("priority of a neighbour's deadline, without a contract", Both, Nothing, |s| {
            let frame = udp_dscp(s.peer.mac(), s.vnic.mac.0, &[1; 100], 46);
            send(s, [0; 12], &frame)
        }),
    ]
}
