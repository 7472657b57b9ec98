//! Rates of contracts, measured between synthetic guests.
//!
//! The host may be busy. Rings hold enough frames for the time in which a guest's thread does not run, no
//! test checks absolute time, and a rate too low is measured again; a rate above the limit always fails.
//! The scheduler's own tests check exact rates.

mod harness;

use harness::frames::*;
use harness::rate::{Limit, keeps_rate};
use harness::*;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};
use tidegate_frontend::front_end::Options;

const WHILE: Duration = Duration::from_millis(1200);

#[test]
fn a_vms_traffic_is_shaped_and_not_dropped() {
    let host = TestSwitch::new(1);
    let limit = "tx = { max = \"50mbit\", burst = \"150kB\" }\nqueueing = \"fifo\"";
    let mut a = host.guest_with(&vnic("a", 1, limit), ring(1024));
    let mut b = host.guest_with(&vnic("b", 2, ""), ring(1024));
    let frame = udp(b.mac(), a.mac(), &[7; 1400]);
    let (mut got, mut all) = (0, Duration::ZERO);
    let limit = Limit { rate: 50_000_000, burst: 150_000, frame: frame.len() as u64 };
    keeps_rate("tx.max", limit, |arrivals| {
        let (received, time) = pump_seen(WHILE, &mut [(&mut a, frame.clone())], &mut b, arrivals);
        got += received[0] / frame.len() as u64;
        all += time;
    });
    let stats = host.stats("a");
    assert!(stats.tx.dropped.is_empty(), "{:?}", stats.tx.dropped);
    assert!(stats.throttled_ns as f64 > 0.3 * all.as_nanos() as f64, "throttled {} ns", stats.throttled_ns);

    a.fill(&frame);
    let waiting = a.front.in_flight(0);
    host.until(|| host.stats("a").throttled);
    assert!(waiting > 100, "{waiting} frames in the ring");
    host.until(|| {
        got += b.drain() as u64;
        a.front.in_flight(0) == 0
    });
    host.until(|| {
        got += b.drain() as u64;
        host.stats("a").delay.count == host.stats("b").rx.frames && !host.stats("a").throttled
    });
    assert_eq!(host.stats("a").tx.frames, got);
    assert!(host.stats("a").tx.dropped.is_empty());
}

#[test]
fn a_queue_that_was_disabled_saved_up_no_burst() {
    let host = TestSwitch::new(1);
    let mut a = host.guest_with(&vnic("a", 1, "tx = { max = \"1mbit\", burst = \"2kB\" }"), ring(256));
    let mut b = host.guest_with(&vnic("b", 2, ""), ring(256));
    let frame = udp(b.mac(), a.mac(), &[1; 1000]);
    for seen_before in [false, true] {
        if seen_before {
            a.fill(&frame);
            host.until(|| host.stats("a").throttled);
        }
        a.front.enable_queue(1, false).unwrap();
        a.fill(&frame);
        std::thread::sleep(WHILE);
        b.drain();
        let start = Instant::now();
        a.front.enable_queue(1, true).unwrap();
        let (mut bytes, mut most) = (0.0, 0.0f64);
        while start.elapsed() < WHILE / 4 || bytes == 0.0 {
            b.each(|frame| bytes += frame.len() as f64);
            most = most.max(bytes - bytes_in(1_000_000, start.elapsed()));
        }
        let allowed = 2_000.0 + 2.0 * frame.len() as f64;
        assert!(most <= allowed, "{most} bytes beyond its rate, allowed {allowed}");
        host.until(|| {
            b.drain();
            a.front.in_flight(0) < 50
        });
    }
}

#[test]
fn super_frames_are_counted_as_they_look_on_the_wire() {
    let host = TestSwitch::new(1);
    let options = |features| Options {
        features: Options::default().features | features,
        queue_size: 64,
        buffer_size: 70_000,
        ..Options::default()
    };
    // With `queueing = "flows"` a super-frame would leave in parts.
    let limit = "tx = { max = \"100mbit\", burst = \"300kB\" }\nqueueing = \"fifo\"";
    let mut a = host.guest_with(&vnic("a", 1, limit), options(SENDER));
    let mut b = host.guest_with(&vnic("b", 2, ""), options(GUEST_CSUM | GUEST_TSO4));
    let tcp = Kind { v6: false, tcp: true };
    // With small segments, headers are a fifth of the bytes on the wire.
    let (header, frame) = tcp.frame(b.mac(), a.mac(), &pattern(20_000), 200);
    let on_wire = 20_000 + 100 * 54;
    keeps_rate("tx.max", Limit { rate: 100_000_000, burst: 300_000, frame: on_wire }, |arrivals| {
        let start = Instant::now();
        while start.elapsed() < WHILE {
            a.fill_with(header.bytes(54), || frame.clone());
            arrivals.look(|| b.drain() as u64 * on_wire);
            std::thread::sleep(Duration::from_micros(500));
        }
    });
    b.drain();
    let stats = host.stats("b").rx;
    assert_eq!((stats.wire_bytes, stats.wire_frames), (stats.frames * on_wire, stats.frames * 100));
    assert!(host.stats("a").tx.dropped.is_empty());
}

#[test]
fn super_frames_wait_in_the_ring_for_a_worker_that_is_behind() {
    let host = TestSwitch::new(1);
    let options = |features| Options {
        features: Options::default().features | features,
        queue_size: 128,
        buffer_size: 70_000,
        ..Options::default()
    };
    // The limits let all frames go at once: eight times as much as an egress holds of one sender.
    let mut a =
        host.guest_with(&vnic("a", 1, "tx = { max = \"100gbit\", burst = \"10MB\" }"), options(SENDER));
    let mut b = host.guest_with(&vnic("b", 2, ""), options(GUEST_CSUM | GUEST_TSO4));
    let (header, frame) = Kind { v6: false, tcp: true }.frame(b.mac(), a.mac(), &pattern(60_000), 1448);
    let sent = a.fill_with(header.bytes(54), || frame.clone());
    let mut got = 0;
    host.until(|| {
        got += b.drain();
        a.front.in_flight(0) == 0
    });
    got += b.drain();
    assert_eq!((sent, got), (128, 128), "{:?}", host.stats("a").tx.dropped);
}

#[test]
fn a_super_frame_that_fits_nowhere_is_dropped_and_stops_nothing() {
    let host = TestSwitch::new(1);
    let options = |features| Options {
        features: Options::default().features | features,
        buffer_size: 70_000,
        ..Options::default()
    };
    let mut a = host.guest_with(&vnic("a", 1, ""), options(SENDER));
    let b = host.guest_with(&vnic("b", 2, "rx = { queue = \"32kB\" }"), options(GUEST_CSUM | GUEST_TSO4));
    let mut c = host.guest(&vnic("c", 3, ""));
    let (header, frame) = Kind { v6: false, tcp: true }.frame(b.mac(), a.mac(), &pattern(60_000), 1448);
    for _ in 0..10 {
        a.send_with(header.bytes(54), &frame);
    }
    a.send(&udp(c.mac(), a.mac(), b"not held up"));
    c.receive();
    host.until(|| host.stats("a").tx.dropped.get("queue_full") == Some(&10));
}

#[test]
fn traffic_to_a_vm_stays_within_its_limit() {
    let host = TestSwitch::new(1);
    let mut a = host.guest_with(&vnic("a", 1, "tx = { max = \"30mbit\" }"), ring(1024));
    let mut b = host.guest_with(&vnic("b", 2, "tx = { max = \"30mbit\" }"), ring(1024));
    let limit = "rx = { max = \"40mbit\", burst = \"120kB\" }";
    let mut c = host.guest_with(&vnic("c", 3, limit), ring(1024));
    let frame = |from: &Guest| udp([0x52, 0x54, 0, 0, 0, 3], from.mac(), &[7; 1400]);
    let (fa, fb) = (frame(&a), frame(&b));
    let limit = Limit { rate: 40_000_000, burst: 120_000, frame: fa.len() as u64 };
    let mut senders = [(&mut a, fa), (&mut b, fb)];
    keeps_rate("rx.max", limit, |arrivals| drop(pump_seen(WHILE, &mut senders, &mut c, arrivals)));
    for name in ["a", "b"] {
        let stats = host.stats(name);
        let dropped: u64 = stats.tx.dropped.values().sum();
        assert!(dropped > 0, "{name} sent 30 of 40 Mbit/s together with another");
    }
}

/// Runs two senders of 40 Mbit/s to one receiver of 40 Mbit/s; checks that `value` of each one's bytes is
/// in `range`.
#[track_caller]
fn contend(
    a: &str,
    b: &str,
    what: &str,
    range: RangeInclusive<f64>,
    value: impl Fn(&[u64], Duration) -> f64,
) {
    let host = TestSwitch::new(1);
    let mut c = host.guest_with(&vnic("c", 3, "rx = { max = \"40mbit\" }"), ring(1024));
    let mut a = host.guest_with(&vnic("a", 1, a), ring(1024));
    let mut b = host.guest_with(&vnic("b", 2, b), ring(1024));
    let (fa, fb) = (udp(c.mac(), a.mac(), &[1; 1000]), udp(c.mac(), b.mac(), &[2; 1000]));
    let mut senders = [(&mut a, fa), (&mut b, fb)];
    // The sender that came first gets the first burst.
    pump(Duration::from_millis(200), &mut senders, &mut c);
    measured(what, range, || {
        let (got, time) = pump(WHILE, &mut senders, &mut c);
        value(&got, time)
    });
}

#[test]
fn the_remaining_rate_is_shared_by_weight() {
    let limit = "tx = { max = \"40mbit\" }\nweight = ";
    let ratio = |got: &[u64], _| got[1] as f64 / got[0] as f64;
    contend(&format!("{limit}1"), &format!("{limit}3"), "shares of weight 3 and 1", 2.4..=3.6, ratio);
}

#[test]
fn a_minimum_is_kept_under_overload() {
    let promised = "tx = { max = \"40mbit\", min = \"15mbit\" }\nto = [\"c\"]";
    let other = "tx = { max = \"40mbit\" }\nweight = 100";
    // Without the minimum, `a` would get a hundredth of the rate.
    contend(promised, other, "rate to minimum", 0.8..=1.2, |got, time| {
        got[0] as f64 / bytes_in(15_000_000, time)
    });
}

#[test]
fn a_limit_changes_live_without_losing_a_frame() {
    let host = TestSwitch::new(1);
    let limit = |mbit: u32| {
        let burst = 3 * mbit;
        let keys = format!("tx = {{ max = \"{mbit}mbit\", burst = \"{burst}kB\" }}\nqueueing = \"fifo\"");
        vnic("a", 1, &keys)
    };
    let mut a = host.guest_with(&limit(10), ring(1024));
    let mut b = host.guest_with(&vnic("b", 2, ""), ring(1024));
    let mut stream = Stream::new(&a, &b);
    for mbit in [10, 40, 5, 80] {
        host.change(&limit(mbit));
        b.each(|frame| stream.check(frame));
        let (rate, burst) = (u64::from(mbit) * 1_000_000, u64::from(mbit) * 3_000);
        keeps_rate(&format!("{mbit} Mbit/s"), Limit { rate, burst, frame: 542 }, |arrivals| {
            let start = Instant::now();
            while start.elapsed() < WHILE / 2 {
                stream.send(&mut a);
                arrivals.look(|| {
                    let mut bytes = 0;
                    b.each(|frame| {
                        stream.check(frame);
                        bytes += frame.len() as u64;
                    });
                    bytes
                });
                std::thread::sleep(Duration::from_micros(500));
            }
        });
    }
    host.change(&vnic("a", 1, ""));
    host.until(|| {
        b.each(|frame| stream.check(frame));
        stream.is_complete()
    });
    assert!(host.stats("a").tx.dropped.is_empty());
}

#[test]
fn frames_for_a_slow_receiver_arrive_when_its_limit_is_raised() {
    let host = TestSwitch::new(1);
    let mut a = host.guest(&vnic("a", 1, ""));
    let mut b = host.guest(&vnic("b", 2, "rx = { max = \"500kbit\", burst = \"1500B\" }"));
    // 40 frames of 1042 bytes take 670 ms, far longer than frames wait for a fast receiver.
    for n in 0..40u8 {
        a.send(&udp(b.mac(), a.mac(), &[n; 1000]));
    }
    host.until(|| host.stats("b").rx.frames >= 3);
    host.change(&vnic("b", 2, ""));
    let received: Vec<u8> = (0..40).map(|_| b.receive()[42]).collect();
    assert_eq!(received, (0..40).collect::<Vec<u8>>());
    assert!(host.stats("a").tx.dropped.is_empty());
}
