//! Frames between synthetic guests: which guests receive them.

mod harness;

use harness::*;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

#[test]
fn a_frame_reaches_its_receiver_unchanged_and_is_counted() {
    let host = TestSwitch::new(1);
    let mut a = host.guest(&vnic("a", 1, ""));
    let mut b = host.guest(&vnic("b", 2, ""));
    for len in [18, 100, 150, 151, 1000, 1472] {
        let frame = udp(b.mac(), a.mac(), &vec![len as u8; len]);
        a.send(&frame);
        assert_eq!(b.receive(), frame, "{len} bytes of payload");
    }
    host.until(|| host.stats("a").delay.count == 6);
    let (a, b) = (host.stats("a"), host.stats("b"));
    assert_eq!((a.tx.frames, b.rx.frames, a.rx.frames, b.tx.frames), (6, 6, 0, 0));
    assert_eq!(a.tx.wire_bytes, b.rx.wire_bytes);
    assert!(a.tx.dropped.is_empty() && b.rx.dropped.is_empty());
}

#[test]
fn thousands_of_frames_arrive_in_order() {
    let host = TestSwitch::new(1);
    let mut a = host.guest(&vnic("a", 1, ""));
    let mut b = host.guest(&vnic("b", 2, ""));
    let mut expected = 0u32;
    let mut sent = 0u32;
    while expected < 20_000 {
        while sent < 20_000 && sent - expected < 64 {
            let frame = udp(b.mac(), a.mac(), &[&sent.to_be_bytes()[..], &[0; 60]].concat());
            let frame = with_header(a.front.header_len(), [0; 12], &frame);
            if !a.front.push(0, &frame) {
                break;
            }
            sent += 1;
        }
        a.front.flush(0);
        while let Some(bytes) = b.try_receive() {
            let at = b.front.header_len() + 42;
            assert_eq!(bytes[at..at + 4], expected.to_be_bytes());
            expected += 1;
        }
    }
}

#[test]
fn a_segment_is_a_world_of_its_own() {
    let host = TestSwitch::new(1);
    let mut a = host.guest(&vnic("a", 1, ""));
    let mut same = host.guest(&vnic("same", 2, ""));
    let mut other = host.guest(&vnic("other", 3, "").replace("segment = 7", "segment = 8"));
    a.send(&udp(BROADCAST, a.mac(), b"to everybody here"));
    a.send(&udp(other.mac(), a.mac(), b"to somebody elsewhere"));
    let frame = same.receive();
    assert_eq!(&frame[42..59], b"to everybody here");
    host.until(|| host.stats("a").tx.dropped.contains_key("no_receiver"));
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(other.drain(), 0);
    assert_eq!(same.drain(), 0);
}

#[test]
fn a_guest_cannot_send_as_another_guest() {
    let host = TestSwitch::new(1);
    let mut a = host.guest(&vnic(
        "a",
        1,
        "allowed = { prefixes = [\"10.0.0.1/32\"], macs = [\"52:54:00:00:01:01\"] }",
    ));
    let mut b = host.guest(&vnic("b", 2, ""));
    a.send(&udp(b.mac(), b.mac(), b"forged MAC"));
    let mut forged = udp(b.mac(), a.mac(), b"forged IP");
    forged[26..30].copy_from_slice(&[10, 0, 0, 9]);
    forged[24..26].copy_from_slice(&[0, 0]);
    let sum = checksum(&forged[14..34]);
    forged[24..26].copy_from_slice(&sum.to_be_bytes());
    a.send(&forged);
    let tagged =
        [&udp(b.mac(), a.mac(), b"")[..12], &[0x81, 0, 0, 5], &udp(b.mac(), a.mac(), b"tag")[12..]].concat();
    a.send(&tagged);
    let honest = udp(b.mac(), [0x52, 0x54, 0, 0, 1, 1], b"allowed MAC");
    a.send(&honest);
    assert_eq!(b.receive(), honest);
    let dropped = host.stats("a").tx.dropped;
    for reason in ["source_mac", "source_prefix", "vlan"] {
        assert_eq!(dropped.get(reason), Some(&1), "{dropped:?}");
    }
}

#[test]
fn marks_of_real_time_are_cleared_where_there_is_no_deadline() {
    let host = TestSwitch::new(1);
    let mut a = host.guest(&vnic("a", 1, ""));
    let mut b = host.guest(&vnic("b", 2, ""));
    a.send(&udp_dscp(b.mac(), a.mac(), b"I am important", 46));
    let frame = b.receive();
    assert_eq!(frame[15] >> 2, 0);
    assert_eq!(checksum(&frame[14..34]), 0, "header checksum is right again");
    a.send(&udp_dscp(b.mac(), a.mac(), b"I am not", 10));
    assert_eq!(b.receive()[15] >> 2, 10);
}

#[test]
fn broadcast_reaches_all_others_and_is_capped() {
    let host = TestSwitch::new(1);
    let mut a = host.guest(&vnic("a", 1, ""));
    let mut others: Vec<_> = (2..6).map(|n| host.guest(&vnic(&format!("o{n}"), n, ""))).collect();
    let frame = udp(BROADCAST, a.mac(), &[7; 500]);
    a.send(&frame);
    for other in &mut others {
        assert_eq!(other.receive(), frame);
    }
    assert_eq!(a.drain(), 0, "not to the sender");
    for _ in 0..20 {
        for _ in 0..50 {
            a.send(&udp(BROADCAST, a.mac(), &[7; 500]));
        }
        host.until(|| a.front.in_flight(0) == 0);
        for other in &mut others {
            other.drain();
        }
    }
    assert!(host.stats("a").tx.dropped["flood_cap"] > 100);
}

#[test]
fn a_tagged_broadcast_goes_to_its_vlan_and_nothing_is_lost_elsewhere() {
    let host = TestSwitch::new(1);
    let tagged = "allowed = { vlans = [10] }";
    let mut a = host.guest(&vnic("a", 1, tagged));
    let mut b = host.guest(&vnic("b", 2, tagged));
    let mut c = host.guest(&vnic("c", 3, ""));
    let mut frame = udp(BROADCAST, a.mac(), &[7; 100]);
    frame.splice(12..12, [0x81, 0x00, 0, 10]);
    a.send(&frame);
    assert_eq!(b.receive(), frame);
    // A tagged frame to one receiver outside the VLAN counts as dropped.
    let mut direct = frame.clone();
    direct[..6].copy_from_slice(&c.mac());
    a.send(&direct);
    host.until(|| a.front.in_flight(0) == 0 && !host.stats("a").tx.dropped.is_empty());
    assert_eq!(c.drain(), 0);
    assert_eq!(host.stats("a").tx.dropped.into_iter().collect::<Vec<_>>(), [("vlan".to_owned(), 1)]);
}

#[test]
fn addresses_behind_a_bridge_are_learned() {
    let host = TestSwitch::new(1);
    let mut bridge = host.guest(&vnic("bridge", 1, "allowed = { macs = \"any\" }"));
    let mut b = host.guest(&vnic("b", 2, ""));
    let mut c = host.guest(&vnic("c", 3, ""));
    assert_eq!((bridge.receive().len(), bridge.receive().len()), (60, 60));
    let behind = [2, 0, 0, 0, 0, 9];
    b.send(&udp(behind, b.mac(), b"who is there"));
    assert_eq!(&bridge.receive()[..6], &behind, "unknown: only where addresses are learned");
    bridge.send(&udp(b.mac(), behind, b"me"));
    assert_eq!(&b.receive()[6..12], &behind);
    b.send(&udp(behind, b.mac(), b"hello"));
    assert_eq!(&bridge.receive()[..6], &behind);
    assert_eq!(c.drain(), 0);
    // A guest behind the bridge cannot take b's address.
    bridge.send(&udp(c.mac(), b.mac(), b"stolen"));
    host.until(|| host.stats("bridge").tx.dropped.contains_key("source_mac"));
    c.send(&udp(b.mac(), c.mac(), b"still here"));
    assert_eq!(&b.receive()[6..12], &c.mac());
}

#[test]
fn workers_pass_frames_to_each_other() {
    let host = TestSwitch::new(2);
    let mut guests: Vec<_> = (1..5).map(|n| host.guest(&vnic(&format!("g{n}"), n, ""))).collect();
    assert!(
        host.switch.ports().iter().any(|p| p.worker == 0)
            && host.switch.ports().iter().any(|p| p.worker == 1)
    );
    for round in 0..200u8 {
        for from in 0..4 {
            for to in (0..4).filter(|to| *to != from) {
                let frame = udp(guests[to].mac(), guests[from].mac(), &[round; 900]);
                guests[from].send(&frame);
                assert_eq!(guests[to].receive(), frame);
            }
        }
    }
    let all = host.stats.vnics();
    assert!(all.iter().all(|v| v.tx.dropped.is_empty() && v.rx.dropped.is_empty()));
    host.until(|| host.stats.vnics().iter().all(|v| v.delay.count == 600));
}

#[test]
fn the_port_announces_its_addresses_to_bridges() {
    let host = TestSwitch::new(1);
    let mut bridge = host.guest(&vnic("bridge", 1, "allowed = { macs = \"any\" }"));
    let b = host.guest(&vnic("b", 2, ""));
    let frame = bridge.receive();
    assert_eq!((&frame[6..12], &frame[12..14]), (&b.mac()[..], &[0x80, 0x35][..]));
}

/// The next port gets the index, so the learned addresses must disappear with the port.
#[test]
fn nothing_that_a_removed_port_learned_stays() {
    let host = TestSwitch::new(1);
    for round in 0..20u8 {
        let mut bridge = host.guest_with(&vnic("bridge", 1, "allowed = { macs = \"any\" }"), ring(1024));
        let index = host.port("bridge").index as u16;
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let removal = scope.spawn(|| {
                host.until(|| host.switch.fdb.learned(index) > 100);
                host.switch.remove_port("bridge").unwrap();
                over.store(true, Ordering::Relaxed);
            });
            let mut number = 0u32;
            while !over.load(Ordering::Relaxed) {
                bridge.fill_with([0; 12], || {
                    number += 1;
                    let [_, b, c, d] = number.to_be_bytes();
                    udp([0x52, 0x54, 0, 0, 0, 9], [0x02, round, 0, b, c, d], &[0; 60])
                });
            }
            removal.join().unwrap();
        });
        assert_eq!(host.switch.fdb.learned(index), 0, "in round {round}");
    }
}
