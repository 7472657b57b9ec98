//! The switch does the offloads of a sender for receivers that do not. Payload and checksums are checked
//! independently.

mod harness;

use harness::frames::*;
use harness::*;
use tidegate_frontend::driver::Buffer;
use tidegate_frontend::front_end::{INDIRECT_DESC, MRG_RXBUF, Options, VERSION_1};

const GSO: u16 = 1400;

fn options(features: u64) -> Options {
    Options {
        features: Options::default().features | features,
        queue_size: 64,
        buffer_size: 70_000,
        ..Options::default()
    }
}

fn plain(features: u64, merge: bool) -> Options {
    let mut options = Options { queue_size: 256, buffer_size: 2048, ..options(features) };
    if !merge {
        options.features &= !MRG_RXBUF;
    }
    options
}

#[track_caller]
fn receive_segments(b: &mut Guest, kind: Kind, payload: &[u8], whole: &[u8], csum_done: bool) {
    let first = u32::from_be_bytes(whole[kind.l4() + 4..][..4].try_into().unwrap());
    let mut got = Vec::new();
    while got.len() < payload.len() {
        let (bytes, frame) = b.receive_with_header();
        let header = Header::read(&bytes[..b.front.header_len()]);
        assert_eq!((header.gso_type, header.gso_size), (0, 0));
        let (seq, part) = if csum_done {
            assert_eq!(header.flags & NEEDS_CSUM, 0);
            kind.complete(&frame)
        } else {
            assert_eq!((header.flags, header.csum_start), (NEEDS_CSUM, kind.l4() as u16));
            kind.lengths(&frame)
        };
        if kind.tcp {
            assert_eq!(seq, first.wrapping_add(got.len() as u32), "sequence number");
            let last = got.len() + part.len() == payload.len();
            assert_eq!(frame[kind.l4() + 13] & 8 != 0, last, "PSH on the last segment only");
        }
        assert!(part.len() == usize::from(GSO) || got.len() + part.len() == payload.len());
        got.extend(part);
    }
    assert_eq!(got, payload);
}

#[test]
fn a_checksum_left_to_us_is_finished_or_passed_on() {
    let host = TestSwitch::new(1);
    let mut a = host.guest_with(&vnic("a", 1, ""), options(SENDER));
    let mut plain = host.guest_with(&vnic("plain", 2, ""), plain(0, true));
    let mut able = host.guest_with(&vnic("able", 3, ""), options(GUEST_CSUM));
    for kind in Kind::ALL {
        for len in [1, 100, 101, 137, 138, 139, 1001, 1400] {
            let payload = pattern(len);
            let (header, frame) = kind.frame(plain.mac(), a.mac(), &payload, GSO);
            a.send_with(header.bytes(0), &frame);
            let (bytes, got) = plain.receive_with_header();
            assert_eq!(Header::read(&bytes[..12]), Header { num_buffers: 1, ..Header::default() });
            assert_eq!(kind.complete(&got).1, payload, "{kind:?}");

            let (header, frame) = kind.frame(able.mac(), a.mac(), &payload, GSO);
            a.send_with(header.bytes(0), &frame);
            let (bytes, got) = able.receive_with_header();
            assert_eq!(Header::read(&bytes[..12]), Header { num_buffers: 1, ..header });
            assert_eq!(got, frame, "{kind:?}");
        }
    }
}

#[test]
fn a_super_frame_goes_whole_or_in_segments() {
    for kind in Kind::ALL {
        let host = TestSwitch::new(1);
        let mut a = host.guest_with(&vnic("a", 1, ""), options(SENDER));
        let receivers = [
            ("whole", options(kind.guest_features()), None),
            ("merged", plain(kind.guest_features(), true), None),
            ("csum", plain(GUEST_CSUM, true), Some(false)),
            ("nothing", plain(0, true), Some(true)),
            ("unmerged", plain(0, false), Some(true)),
        ];
        for (n, (name, options, segments)) in receivers.into_iter().enumerate() {
            let mut b = host.guest_with(&vnic(name, n as u8 + 2, ""), options);
            for len in [1401, 2800, 10_000, 60_000] {
                let payload = pattern(len);
                let (header, frame) = kind.frame(b.mac(), a.mac(), &payload, GSO);
                let before = host.stats(name).rx.wire_frames;
                a.send_with(header.bytes(kind.headers() as u16), &frame);
                match segments {
                    None => {
                        let (bytes, got) = b.receive_with_header();
                        let buffers = if name == "whole" { 1 } else { (bytes.len()).div_ceil(2048) };
                        let expected = Header { num_buffers: buffers as u16, ..header };
                        assert_eq!(Header::read(&bytes[..12]), expected, "{kind:?} to {name}");
                        assert!(got == frame, "{kind:?} to {name}: {len} bytes differ");
                    }
                    Some(done) => receive_segments(&mut b, kind, &payload, &frame, done),
                }
                let count = len.div_ceil(usize::from(GSO)) as u64;
                host.until(|| host.stats(name).rx.wire_frames - before == count);
            }
        }
    }
}

#[test]
fn congestion_marks_need_a_receiver_that_knows_them() {
    let host = TestSwitch::new(1);
    let kind = Kind { v6: false, tcp: true };
    let mut a = host.guest_with(&vnic("a", 1, ""), options(SENDER));
    let mut knows = host.guest_with(&vnic("knows", 2, ""), options(GUEST_CSUM | GUEST_TSO4 | GUEST_ECN));
    let mut other = host.guest_with(&vnic("other", 3, ""), options(GUEST_CSUM | GUEST_TSO4));
    let payload = pattern(5000);
    for b in [&mut knows, &mut other] {
        let (mut header, mut frame) = kind.frame(b.mac(), a.mac(), &payload, GSO);
        header.gso_type |= ECN;
        // CWR, which belongs in the first segment only (RFC 3168, 6.1.2).
        frame[kind.l4() + 13] |= 0x80;
        a.send_with(header.bytes(0), &frame);
    }
    let (bytes, _) = knows.receive_with_header();
    assert_eq!(Header::read(&bytes[..12]).gso_type, TCPV4 | ECN);
    let mut got = 0;
    while got < payload.len() {
        let frame = other.receive();
        assert_eq!(frame[kind.l4() + 13] & 0x80 != 0, got == 0, "CWR at {got}");
        got += frame.len() - kind.headers();
    }
}

#[test]
fn the_header_is_as_long_as_negotiated() {
    let host = TestSwitch::new(1);
    let mut modern = host.guest_with(&vnic("modern", 1, ""), Options::default());
    let mut legacy = Options::default();
    legacy.features &= !(VERSION_1 | MRG_RXBUF);
    let mut legacy = host.guest_with(&vnic("legacy", 2, ""), legacy);
    assert_eq!((modern.front.header_len(), legacy.front.header_len()), (12, 10));
    let there = udp(legacy.mac(), modern.mac(), &pattern(500));
    let back = udp(modern.mac(), legacy.mac(), &pattern(700));
    modern.send(&there);
    assert_eq!(legacy.receive(), there);
    legacy.send(&back);
    assert_eq!(modern.receive(), back);
}

#[test]
fn frames_that_a_receiver_cannot_take_are_dropped_and_counted() {
    let host = TestSwitch::new(1);
    let mut a = host.guest_with(&vnic("a", 1, "mtu = 9000"), options(SENDER));
    let mut b = host.guest_with(&vnic("b", 2, "mtu = 9000"), plain(0, false));
    a.send(&udp(b.mac(), a.mac(), &pattern(2100)));
    host.until(|| host.stats("b").rx.dropped.get("unacceptable") == Some(&1));
    host.until(|| host.stats("a").tx.dropped.get("unacceptable") == Some(&1));
    // The buffer that was too small serves the next frame, which fits.
    let fits = udp(b.mac(), a.mac(), &pattern(1900));
    a.send(&fits);
    assert_eq!(b.receive(), fits);
    host.until(|| a.front.in_flight(0) == 0);
}

#[test]
fn a_frame_longer_than_the_mtu_is_not_sent() {
    let host = TestSwitch::new(1);
    let mut a = host.guest_with(&vnic("a", 1, ""), options(SENDER));
    let mut b = host.guest_with(&vnic("b", 2, ""), options(0));
    a.send(&udp(b.mac(), a.mac(), &pattern(1600)));
    let kind = Kind { v6: false, tcp: true };
    let (header, frame) = kind.frame(b.mac(), a.mac(), &pattern(9000), 3000);
    a.send_with(header.bytes(0), &frame);
    host.until(|| host.stats("a").tx.dropped.get("too_long") == Some(&2));
    assert_eq!(b.drain(), 0);
}

#[test]
fn scattered_frames_arrive_whole_and_the_senders_memory_is_never_written() {
    let host = TestSwitch::new(1);
    let mut sender = options(SENDER);
    sender.features |= INDIRECT_DESC;
    sender.memory_size = 16 << 20;
    let mut a = host.guest_with(&vnic("a", 1, ""), sender);
    let mut b = host.guest_with(&vnic("b", 2, ""), plain(0, true));
    let kind = Kind { v6: true, tcp: true };
    let payload = pattern(6000);
    let (header, frame) = kind.frame(b.mac(), a.mac(), &payload, GSO);
    let bytes = [&header.bytes(0)[..], &frame].concat();
    let memory = a.front.memory().clone();
    let at = memory.alloc(bytes.len() as u64, 16);
    for piece in [1, 7, 12, 13, 100, 333, 6000] {
        for indirect in [false, true] {
            memory.write(at, &bytes);
            let before = memory.bytes(at, bytes.len());
            let starts: Vec<usize> = (0..60).map(|i| i * piece).take_while(|s| *s < bytes.len()).collect();
            let ends = starts.iter().skip(1).copied().chain([bytes.len()]);
            let chain: Vec<_> = starts
                .iter()
                .zip(ends)
                .map(|(s, e)| Buffer::readable(at + *s as u64, (e - s) as u32))
                .collect();
            let ring = a.front.ring(1);
            let added = if indirect { ring.add_indirect(&chain) } else { ring.add(&chain) };
            let head = added.expect("room for the chain");
            let _ = ring.publish();
            a.front.kick(1).unwrap();
            receive_segments(&mut b, kind, &payload, &frame, true);
            let mut used = None;
            host.until(|| {
                used = a.front.ring(1).reap();
                used.is_some()
            });
            let used = used.unwrap();
            assert_eq!((used.head, used.len), (head, 0));
            assert!(memory.bytes(at, bytes.len()) == before, "the sender's buffers were written");
        }
    }
}

#[test]
fn offload_requests_that_make_no_sense_cost_the_frame() {
    let host = TestSwitch::new(1);
    let mut a = host.guest_with(&vnic("a", 1, ""), options(SENDER));
    let mut b = host.guest_with(&vnic("b", 2, ""), options(0));
    let kind = Kind { v6: false, tcp: true };
    let (good, frame) = kind.frame(b.mac(), a.mac(), &pattern(5000), GSO);
    let bad = [
        Header { csum_offset: 6, ..good },
        Header { csum_start: 0, ..good },
        Header { csum_start: 5030, ..good },
        Header { gso_size: 0, ..good },
        Header { gso_size: 1, ..good },
        Header { gso_type: TCPV6, ..good },
        Header { gso_type: UDP_L4, ..good },
        Header { gso_type: 3, ..good },
        Header { gso_type: 77, ..good },
        Header { flags: 0, ..good },
    ];
    for (n, header) in (1..).zip(bad) {
        a.send_with(header.bytes(0), &frame);
        host.until(|| host.stats("a").tx.dropped.get("malformed") == Some(&n));
    }
    assert_eq!(b.drain(), 0);
    a.send_with(good.bytes(0), &frame);
    receive_segments(&mut b, kind, &pattern(5000), &frame, true);
}
