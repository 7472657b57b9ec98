//! Captures of one vNIC's frames, parsed by an independent library.

mod harness;

use harness::frames::pattern;
use harness::*;
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption;
use pcap_file::pcapng::{Block, PcapNgReader};
use rustix::pipe::pipe;
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;

/// (direction flag, frame as captured, length of the original)
type Packet = (u32, Vec<u8>, u32);

fn packets(bytes: &[u8]) -> Vec<Packet> {
    let mut reader = PcapNgReader::new(bytes).unwrap();
    let mut packets = Vec::new();
    let mut before = std::time::Duration::ZERO;
    while let Some(block) = reader.next_block() {
        if let Block::EnhancedPacket(packet) = block.unwrap() {
            let flags = packet.options.iter().find_map(|option| match option {
                EnhancedPacketOption::Flags(flags) => Some(*flags),
                _ => None,
            });
            assert!(packet.timestamp >= before, "time runs backwards");
            before = packet.timestamp;
            packets.push((flags.unwrap() & 3, packet.data.into_owned(), packet.original_len));
        }
    }
    packets
}

#[test]
fn a_capture_shows_both_directions_and_ends_when_its_reader_does() {
    let host = TestSwitch::new(1);
    let mut a = host.guest(&vnic("a", 1, ""));
    let mut b = host.guest(&vnic("b", 2, ""));
    let mut c = host.guest(&vnic("c", 3, ""));
    let (out, into): (OwnedFd, OwnedFd) = pipe().unwrap();
    host.switch.capture("a", 400, into).unwrap();
    let (_unused, second) = pipe().unwrap();
    let refused = host.switch.capture("a", 400, second).unwrap_err();
    assert!(refused.contains("already"), "{refused}");

    let mut expected = Vec::new();
    for len in [20, 150, 151, 1000] {
        let (there, back) = (udp(b.mac(), a.mac(), &pattern(len)), udp(a.mac(), b.mac(), &pattern(len)));
        a.send(&there);
        b.receive();
        b.send(&back);
        a.receive();
        b.send(&udp(c.mac(), b.mac(), b"not of a"));
        c.receive();
        // pcapng's flags: 1 inbound, 2 outbound.
        for (direction, frame) in [(2, there), (1, back)] {
            let seen = frame[..frame.len().min(400)].to_vec();
            expected.push((direction, seen, frame.len() as u32));
        }
    }
    let mut out = File::from(out);
    let mut bytes = Vec::new();
    while packets_so_far(&bytes) < expected.len() {
        let mut more = [0; 4096];
        let n = out.read(&mut more).unwrap();
        assert!(n > 0, "the capture ended");
        bytes.extend(&more[..n]);
    }
    assert_eq!(packets(&bytes), expected);

    drop(out);
    host.until(|| {
        let (_out, into) = pipe().unwrap();
        host.switch.capture("a", 400, into).is_ok()
    });
    let frame = udp(b.mac(), a.mac(), b"undisturbed");
    a.send(&frame);
    assert_eq!(b.receive(), frame);
}

fn packets_so_far(bytes: &[u8]) -> usize {
    let (mut count, mut at) = (0, 0);
    while let Some(head) = bytes.get(at..at + 8) {
        let word = |i: usize| u32::from_ne_bytes(head[i..i + 4].try_into().unwrap());
        at += word(4) as usize;
        count += usize::from(word(0) == 6 && at <= bytes.len());
    }
    count
}

#[test]
fn a_capture_ends_with_its_port() {
    let host = TestSwitch::new(1);
    let mut a = host.guest(&vnic("a", 1, ""));
    let mut b = host.guest(&vnic("b", 2, ""));
    let (out, into) = pipe().unwrap();
    host.switch.capture("a", 65_536, into).unwrap();
    let frame = udp(b.mac(), a.mac(), b"the last one");
    a.send(&frame);
    b.receive();
    host.switch.remove_port("a").unwrap();
    let mut bytes = Vec::new();
    File::from(out).read_to_end(&mut bytes).unwrap();
    assert_eq!(packets(&bytes), [(2, frame.clone(), frame.len() as u32)]);
    assert!(host.switch.capture("a", 400, pipe().unwrap().1).is_err());
}
