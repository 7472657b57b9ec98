//! A frame stays in its sender's ring until it is delivered: the effect of a receiver that takes nothing.

mod harness;

use harness::rate::{Limit, keeps_rate};
use harness::*;
use std::time::{Duration, Instant};
use tidegate_evidence::Connection;
use tidegate_frontend::front_end::{IN_ORDER, Options};

#[test]
fn a_receiver_that_takes_nothing_harms_only_traffic_to_itself() {
    for workers in [1, 2] {
        let host = TestSwitch::new(workers);
        let mut filler = host.guest(&vnic("filler", 1, ""));
        let c = without_buffers(&host, &mut filler);
        let keys = "tx = { max = \"40mbit\", burst = \"120kB\" }\nqueueing = \"fifo\"";
        let mut a = host.guest_with(&vnic("a", 2, keys), ring(1024));
        let mut live = host.guest_with(&vnic("live", 3, ""), ring(1024));
        let mut to_c = false;
        let what = format!("what a sends, {workers} workers");
        // By the switch's count: between two workers frames wait while one of them stands still.
        let mut counted = 0;
        let limit = Limit { rate: 40_000_000, burst: 120_000, frame: 1042 };
        keeps_rate(&what, limit, |sent| {
            let start = Instant::now();
            while start.elapsed() < Duration::from_millis(1200) {
                let (dead, there, from) = (c.mac(), live.mac(), a.mac());
                a.fill_with([0; 12], || {
                    to_c = !to_c;
                    udp(if to_c { dead } else { there }, from, &[5; 1000])
                });
                live.drain();
                sent.look(|| {
                    let before = std::mem::replace(&mut counted, host.stats("a").tx.wire_bytes);
                    counted - before
                });
                std::thread::sleep(Duration::from_micros(500));
            }
        });
        assert_eq!(host.stats("live").rx.dropped.len(), 0);
        host.until(|| {
            live.drain();
            a.front.in_flight(0) == 0
        });
        let stats = host.stats("a");
        let lost: u64 = stats.tx.dropped.values().sum();
        assert_eq!(
            lost,
            stats.tx.frames.div_ceil(2),
            "every frame to c, and no other: {:?}",
            stats.tx.dropped
        );
    }
}

#[test]
fn a_frame_is_held_for_a_while_and_dropped_then() {
    let host = TestSwitch::new(1);
    let mut filler = host.guest(&vnic("filler", 1, ""));
    let mut c = without_buffers(&host, &mut filler);
    let mut a = host.guest(&vnic("a", 2, ""));
    // The wait counts from the worker's last look at the ring, which may be well before the frame was sent.
    let held = (0..5).map(|_| {
        let start = Instant::now();
        a.send(&udp(c.mac(), a.mac(), b"nobody takes me"));
        host.until(|| a.front.in_flight(0) == 0);
        start.elapsed()
    });
    let longest = held.max();
    assert!(longest >= Some(Duration::from_millis(10)), "held for {longest:?}");
    let (a, after) = (host.stats("a"), host.stats("c"));
    assert_eq!(a.tx.dropped.get("held_too_long"), Some(&5), "{:?}", a.tx.dropped);
    assert_eq!(after.rx.dropped.get("held_too_long"), Some(&5));
    assert_eq!(c.drain(), 16, "only what it had taken before");
}

#[test]
fn at_most_half_a_ring_is_in_flight() {
    for workers in [1, 2] {
        let host = TestSwitch::new(workers);
        let mut filler = host.guest(&vnic("filler", 1, ""));
        let mut c = without_buffers(&host, &mut filler);
        let limit = "tx = { max = \"1gbit\", burst = \"200kB\" }\ndeadline = \"9s\"\nto = [\"c\"]";
        let mut a = host.guest_with(&vnic("a", 2, limit), ring(64));
        assert_ne!(workers == 2, host.port("a").worker == host.port("c").worker);
        let frame = udp(c.mac(), a.mac(), b"waits for c");
        assert_eq!(a.fill(&frame), 64);
        let dropped = || host.stats("a").tx.dropped.get("ring_share").copied().unwrap_or(0);
        host.until(|| host.stats("a").tx.frames == 64 && dropped() >= 32);
        std::thread::sleep(Duration::from_millis(20));
        let (lost, waiting) = (dropped() as usize, a.front.in_flight(0));
        // A late worker gets another call.
        assert!(
            lost + waiting == 64 && lost <= 32 + 2 * (workers - 1),
            "{lost} dropped, {waiting} in flight"
        );
        let mut got = 0;
        host.until(|| {
            got += c.drain();
            got == 16 + waiting && a.front.in_flight(0) == 0
        });
        assert_eq!(host.stats("a").tx.dropped.len(), 1, "{:?}", host.stats("a").tx.dropped);
    }
}

/// a has no limit, so its frames leave at once; c's limit lets the switch hold a frame to c for seconds.
fn in_order(host: &TestSwitch) -> (Guest, Guest, Guest) {
    let mut filler = host.guest(&vnic("filler", 1, ""));
    let c = without_buffers(host, &mut filler);
    host.change(&vnic("c", 9, "rx = { max = \"100kbit\" }"));
    let options = ring(64);
    let a = host.guest_with(&vnic("a", 2, ""), Options { features: options.features | IN_ORDER, ..options });
    assert_ne!(a.front.features() & IN_ORDER, 0);
    let live = host.guest_with(&vnic("live", 3, ""), ring(128));
    (a, live, c)
}

#[test]
fn buffers_used_in_order_come_back_in_order() {
    for workers in [1, 2] {
        let host = TestSwitch::new(workers);
        let (mut a, mut live, mut c) = in_order(&host);
        a.send(&udp(c.mac(), a.mac(), b"held"));
        for n in 0..20u8 {
            a.send(&udp(live.mac(), a.mac(), &[n; 30]));
        }
        let got: Vec<u8> = (0..20).map(|_| live.receive()[42]).collect();
        assert_eq!(got, (0..20).collect::<Vec<u8>>(), "sent, whatever waits");
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(a.front.in_flight(0), 21, "and given back after it");
        host.until(|| {
            c.drain();
            a.front.in_flight(0) == 0
        });
        assert_eq!(host.stats("a").tx.dropped.len(), 0, "{:?}", host.stats("a").tx.dropped);
    }
}

#[test]
fn a_frame_that_holds_half_a_ring_back_makes_room() {
    for workers in [1, 2] {
        let host = TestSwitch::new(workers);
        let (mut a, mut live, c) = in_order(&host);
        a.send(&udp(c.mac(), a.mac(), b"held"));
        host.until(|| host.stats("a").tx.frames == 1);
        for n in 0..63u8 {
            a.send(&udp(live.mac(), a.mac(), &[n; 30]));
        }
        host.until(|| a.front.in_flight(0) == 0);
        let got: Vec<u8> = (0..63).map(|_| live.receive()[42]).collect();
        assert_eq!(got, (0..63).collect::<Vec<u8>>());
        let dropped = host.stats("a").tx.dropped;
        assert_eq!((dropped.len(), dropped.get("ring_share")), (1, Some(&1)), "{dropped:?}");
    }
}

#[test]
fn order_is_not_offered_where_a_deadline_could_wait_for_it() {
    let host = TestSwitch::new(1);
    let with_order = || Options { features: Options::default().features | IN_ORDER, ..Options::default() };
    let deadline = "tx = { max = \"1mbit\", burst = \"4kB\" }\ndeadline = \"1ms\"\nto = [\"b\"]";
    let b = host.guest_with(&vnic("b", 1, ""), with_order());
    assert_ne!(b.front.features() & IN_ORDER, 0);
    let a = host.guest_with(&vnic("a", 2, deadline), with_order());
    assert_eq!(a.front.features() & IN_ORDER, 0);
    // A connection keeps the feature; a new connection gets what the contract then allows.
    host.change(&vnic("b", 1, "tx = { max = \"1mbit\", burst = \"4kB\" }\ndeadline = \"1ms\"\nto = [\"a\"]"));
    host.change(&vnic("a", 2, ""));
    let (vnic_a, vnic_b) = (a.vnic.clone(), b.vnic.clone());
    drop((a, b));
    host.until(|| ["a", "b"].iter().all(|name| host.port(name).connection == Connection::Waiting));
    assert_ne!(host.connect(vnic_a, with_order()).front.features() & IN_ORDER, 0);
    assert_eq!(host.connect(vnic_b, with_order()).front.features() & IN_ORDER, 0);
}

#[test]
fn frames_that_wait_for_buffers_go_when_there_are_some() {
    let host = TestSwitch::new(1);
    let mut filler = host.guest(&vnic("filler", 1, ""));
    let mut c = without_buffers(&host, &mut filler);
    let limit = "tx = { max = \"1gbit\", burst = \"200kB\" }\ndeadline = \"9s\"\nto = [\"c\"]";
    let mut a = host.guest(&vnic("a", 2, limit));
    for n in 0..50u8 {
        a.send(&udp(c.mac(), a.mac(), &[n; 30]));
        // The worker sleeps without buffers; the driver's kick or a periodic look wakes it.
        std::thread::sleep(Duration::from_millis(1));
        c.receive();
    }
    let last: Vec<u8> = (0..16).map(|_| c.receive()[42]).collect();
    assert_eq!(last, (34..50).collect::<Vec<u8>>());
}
