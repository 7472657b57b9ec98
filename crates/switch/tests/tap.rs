//! Taps: the kernel's network stack on one side, synthetic guests on the other, in a network namespace per
//! test.

mod harness;

use harness::frames::*;
use harness::netns::*;
use harness::rate::{Limit, keeps_rate};
use harness::*;
use std::io::{Read, Write};
use std::net::UdpSocket;
use std::time::Duration;
use tidegate_evidence::Connection;
use tidegate_frontend::front_end::Options;

const UDP4: Kind = Kind { v6: false, tcp: false };
const TCP4: Kind = Kind { v6: false, tcp: true };

fn big(features: u64) -> Options {
    Options { features: Options::default().features | features, buffer_size: 70_000, ..ring(64) }
}

fn socket(host: &str) -> UdpSocket {
    let socket = UdpSocket::bind((host, 0x2000)).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

#[test]
fn a_guest_and_the_kernel_talk_over_a_tap() {
    in_namespace("a_guest_and_the_kernel_talk_over_a_tap", || {
        for workers in [1, 2] {
            let host = TestSwitch::new(workers);
            let name = format!("tg{workers}");
            let tap = tap(&host, &tap_vnic(&name, 1, ""));
            let mut plain = host.guest(&vnic("plain", 2, ""));
            let mut able = host.guest_with(&vnic("able", 3, ""), big(GUEST_CSUM | SENDER));
            neighbour(&name, &plain);
            neighbour(&name, &able);
            let socket = socket("10.0.0.1");
            for len in [1, 18, 151, 152, 1000, 1472] {
                let payload = pattern(len);
                socket.send_to(&payload, "10.0.0.2:9").unwrap();
                assert_eq!(UDP4.complete(&plain.receive()).1, payload, "from the kernel, complete");
                socket.send_to(&payload, "10.0.0.3:9").unwrap();
                let (bytes, mut frame) = able.receive_with_header();
                let header = Header::read(&bytes[..12]);
                if header.flags & NEEDS_CSUM != 0 {
                    finish(header, &mut frame);
                }
                assert_eq!(UDP4.complete(&frame).1, payload, "from the kernel, left to the guest");

                plain.send(&udp(tap.mac.0, plain.mac(), &payload));
                let (header, frame) = UDP4.frame(tap.mac.0, able.mac(), &payload, 0);
                able.send_with(header.bytes(0), &frame);
                for _ in 0..2 {
                    let mut got = [0; 2000];
                    let n = socket.recv(&mut got).unwrap();
                    assert_eq!(got[..n], payload, "to the kernel");
                }
            }
            host.until(|| host.stats(&name).delay.count == 12 && host.stats(&name).rx.frames == 12);
            let stats = host.stats(&name);
            assert_eq!(stats.tx.frames, 12);
            assert!(stats.tx.dropped.is_empty() && stats.rx.dropped.is_empty(), "{stats:?}");
            assert_eq!(host.port(&name).connection, Connection::Up);
            ip(&format!("link del {name}"));
        }
    });
}

#[test]
fn super_frames_pass_a_tap_whole() {
    in_namespace("super_frames_pass_a_tap_whole", || {
        let host = TestSwitch::new(1);
        let tap = tap(&host, &tap_vnic("tg0", 1, ""));
        let mut whole = host.guest_with(&vnic("whole", 2, ""), big(SENDER | GUEST_CSUM | GUEST_TSO4));
        let mut plain = host.guest(&vnic("plain", 3, ""));
        let mut packets = packet_socket("tg0");
        // Keeps the kernel from answering.
        ip("addr flush dev tg0");
        for len in [3_000, 20_000, 60_000] {
            let payload = pattern(len);
            let (header, frame) = TCP4.frame(whole.mac(), tap.mac.0, &payload, 1000);
            let bytes = [&header.bytes(54)[..10], &frame].concat();
            assert_eq!(packets.write(&bytes).unwrap(), bytes.len());
            let (bytes, got) = whole.receive_with_header();
            assert_eq!(Header::read(&bytes[..12]), Header { num_buffers: 1, ..header });
            assert!(got == frame, "{len} bytes from the kernel, whole");

            let (header, frame) = TCP4.frame(plain.mac(), tap.mac.0, &payload, 1000);
            packets.write_all(&[&header.bytes(54)[..10], &frame].concat()).unwrap();
            let mut got = Vec::new();
            while got.len() < len {
                got.extend(TCP4.complete(&plain.receive()).1);
            }
            assert!(got == payload, "{len} bytes from the kernel, in segments");

            let (header, frame) = TCP4.frame(tap.mac.0, whole.mac(), &payload, 1000);
            whole.send_with(header.bytes(54), &frame);
            let mut got = vec![0; 70_000];
            let n = loop {
                let n = packets.read(&mut got).unwrap();
                // The packet socket also sees the frames that it sent.
                if got[10..16] == tap.mac.0 {
                    break n;
                }
            };
            let seen = Header::read(&got[..10]);
            assert_eq!((seen.gso_type, seen.gso_size), (header.gso_type, header.gso_size));
            assert!(got[10..n] == frame, "{len} bytes to the kernel, whole");
        }
    });
}

#[test]
fn udp_super_frames_become_datagrams_at_a_tap() {
    in_namespace("udp_super_frames_become_datagrams_at_a_tap", || {
        let host = TestSwitch::new(1);
        let tap = tap(&host, &tap_vnic("tg0", 1, ""));
        let mut a = host.guest_with(&vnic("a", 2, ""), big(SENDER));
        let socket = socket("10.0.0.1");
        let payload = pattern(30_500);
        let (header, frame) = UDP4.frame(tap.mac.0, a.mac(), &payload, 1000);
        a.send_with(header.bytes(0), &frame);
        for expected in payload.chunks(1000) {
            let mut got = [0; 2000];
            let n = socket.recv(&mut got).unwrap();
            assert_eq!(&got[..n], expected);
        }
    });
}

#[test]
fn over_its_limit_a_tap_waits_in_a_bounded_pool() {
    in_namespace("over_its_limit_a_tap_waits_in_a_bounded_pool", || {
        let host = TestSwitch::new(1);
        let limit = "tx = { max = \"1mbit\", burst = \"4kB\" }\nqueueing = \"fifo\"";
        tap(&host, &tap_vnic("tg0", 1, limit));
        let mut b = host.guest_with(&vnic("b", 2, ""), ring(1024));
        neighbour("tg0", &b);
        let socket = socket("10.0.0.1");
        let mut sent = 0u32;
        let dropped = || host.stats("tg0").tx.dropped.get("pool_full").copied().unwrap_or(0);
        host.until(|| {
            for _ in 0..100 {
                let numbered = [&sent.to_be_bytes()[..], &[0; 1396]].concat();
                sent += u32::from(socket.send_to(&numbered, "10.0.0.2:9").is_ok());
            }
            dropped() >= 100
        });
        assert!(host.stats("tg0").throttled);
        assert!(sent >= 2000, "4 MB hold more than {sent} frames of 1442 bytes");
        let (mut received, mut last) = (0, None);
        let mut receive = |b: &mut Guest| {
            received += b.each(|frame| {
                let number = Some(u32::from_be_bytes(frame[42..46].try_into().unwrap()));
                assert!(number > last, "out of order");
                last = number;
            });
            received as u64
        };
        receive(&mut b);
        host.change(&tap_vnic("tg0", 1, "tx = { max = \"100mbit\" }\nqueueing = \"fifo\""));
        // The waiting room counts pieces of 2 KiB, and the kernel's queue holds up to 500 frames more.
        let waited = 1900..=2700;
        // A late worker has tokens while frames still wait.
        host.until(|| {
            let delivered = receive(&mut b);
            delivered >= *waited.start()
                && delivered == host.stats("tg0").tx.frames
                && !host.stats("tg0").throttled
        });
        std::thread::sleep(Duration::from_millis(5));
        let delivered = receive(&mut b);
        assert!(waited.contains(&delivered), "{delivered} frames waited in 4 MB");
        assert!(delivered + dropped() <= u64::from(sent));
        assert_eq!(host.stats("tg0").tx.dropped.len(), 1, "{:?}", host.stats("tg0").tx.dropped);
    });
}

#[test]
fn a_tap_is_shaped() {
    in_namespace("a_tap_is_shaped", || {
        let host = TestSwitch::new(1);
        tap(&host, &tap_vnic("tg0", 1, "tx = { max = \"20mbit\", burst = \"60kB\" }"));
        let mut b = host.guest_with(&vnic("b", 2, ""), ring(1024));
        neighbour("tg0", &b);
        let socket = socket("10.0.0.1");
        keeps_rate("tx.max", Limit { rate: 20_000_000, burst: 60_000, frame: 1442 }, |arrivals| {
            let start = std::time::Instant::now();
            while start.elapsed() < Duration::from_millis(1200) {
                for _ in 0..40 {
                    let _ = socket.send_to(&[0; 1400], "10.0.0.2:9");
                }
                arrivals.look(|| b.drain_bytes());
                std::thread::sleep(Duration::from_millis(1));
            }
        });
    });
}

#[test]
fn a_tap_that_is_down_is_distinguished_from_one_that_is_gone() {
    in_namespace("a_tap_that_is_down_is_distinguished_from_one_that_is_gone", || {
        let host = TestSwitch::new(1);
        let toml = tap_vnic("tg0", 1, "");
        let vnic_of_tap = tap(&host, &toml);
        let mut b = host.guest(&vnic("b", 2, ""));
        let mut c = host.guest(&vnic("c", 3, ""));
        ip("link set tg0 down");
        b.send(&udp(vnic_of_tap.mac.0, b.mac(), b"into a cable that is not plugged in"));
        host.until(|| host.stats("tg0").rx.dropped.get("receiver_down") == Some(&1));
        assert_eq!(host.port("tg0").connection, Connection::Up);
        ip("link set tg0 up");
        let socket = socket("10.0.0.1");
        b.send(&udp(vnic_of_tap.mac.0, b.mac(), b"up again"));
        let mut got = [0; 100];
        assert_eq!(socket.recv(&mut got).unwrap(), 8);

        ip("link del tg0");
        host.until(|| host.port("tg0").connection == Connection::Disconnected);
        let why = host.port("tg0").last_error.unwrap();
        assert!(why.contains("tap"), "{why}");
        let frame = udp(c.mac(), b.mac(), b"others go on");
        b.send(&frame);
        assert_eq!(c.receive(), frame);
        drop(socket);
        let vnic_of_tap = tap(&host, &toml);
        let socket = self::socket("10.0.0.1");
        b.send(&udp(vnic_of_tap.mac.0, b.mac(), b"and again"));
        assert_eq!(socket.recv(&mut got).unwrap(), 9);
        assert_eq!(host.port("tg0").connection, Connection::Up);
    });
}
