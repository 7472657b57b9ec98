//! A worker writes into another worker's receiver, whose front end, contract and guest change meanwhile.

mod harness;

use harness::dirty::{Log, changed, migrating, snapshot};
use harness::rate::{Limit, keeps_rate};
use harness::*;
use std::time::{Duration, Instant};
use tidegate_evidence::Connection;
use tidegate_frontend::front_end::Options;

fn apart(host: &TestSwitch, options: Options) -> (Guest, Guest) {
    let a = host.guest_with(&vnic("a", 1, ""), ring(1024));
    let b = host.guest_with(&vnic("b", 2, ""), options);
    assert_ne!(host.port("a").worker, host.port("b").worker);
    (a, b)
}

#[test]
fn frames_keep_their_order_while_the_receiver_changes() {
    let host = TestSwitch::new(2);
    let (mut a, mut b) = apart(&host, ring(1024));
    b.drain();
    let mut stream = Stream::new(&a, &b);
    let limit = "tx = { max = \"10gbit\", burst = \"1MB\" }";
    let _c = host.guest(&vnic("c", 3, limit));
    for round in 0..200 {
        for _ in 0..20 {
            stream.send(&mut a);
            b.each(|frame| stream.check(frame));
        }
        // For each change, the owning worker takes the whole port back.
        match round % 5 {
            0 => b.front.share_memory().unwrap(),
            1 => host.change(&vnic("b", 2, "rx = { max = \"100gbit\" }")),
            2 => host.change(&vnic("c", 3, &format!("{limit}\ndeadline = \"5ms\"\nto = [\"b\"]"))),
            3 => host.change(&vnic("c", 3, limit)),
            _ => host.change(&vnic("b", 2, "")),
        }
    }
    host.until(|| {
        b.each(|frame| stream.check(frame));
        stream.is_complete()
    });
    assert!(stream.received > 10_000, "{}", stream.received);
    let (sent, received) = (host.stats("a").tx, host.stats("b").rx);
    assert!(sent.dropped.is_empty(), "{:?}", sent.dropped);
    assert!(received.frames >= u64::from(stream.received));
}

#[test]
fn every_frame_is_counted_while_the_receiver_leaves_and_comes_back() {
    let host = TestSwitch::new(2);
    let (mut a, mut b) = apart(&host, ring(256));
    let frame = udp(b.mac(), a.mac(), &[5; 900]);
    let before = host.stats("a").tx.frames;
    for _ in 0..50 {
        let until = Instant::now() + Duration::from_millis(10);
        while Instant::now() < until {
            a.fill(&frame);
            b.drain();
        }
        b.front.disconnect();
        host.until(|| host.port("b").connection == Connection::Waiting);
        b.front.reconnect().unwrap();
        host.until(|| host.port("b").connection == Connection::Up);
    }
    host.until(|| {
        b.drain();
        a.front.in_flight(0) == 0
    });
    let (a, b) = (host.stats("a").tx, host.stats("b").rx);
    let dropped: u64 = a.dropped.values().sum();
    // b also received a's announcements.
    assert!(b.frames + dropped >= a.frames - before, "{} + {dropped} of {}", b.frames, a.frames - before);
    assert!(b.frames > 1_000, "{}", b.frames);
}

#[test]
fn a_receivers_limit_holds_towards_another_worker() {
    let host = TestSwitch::new(2);
    let mut a = host.guest_with(&vnic("a", 1, ""), ring(1024));
    let mut b = host.guest_with(&vnic("b", 2, "rx = { max = \"50mbit\", burst = \"150kB\" }"), ring(1024));
    assert_ne!(host.port("a").worker, host.port("b").worker);
    let frame = udp(b.mac(), a.mac(), &[7; 1400]);
    let limit = Limit { rate: 50_000_000, burst: 150_000, frame: frame.len() as u64 };
    keeps_rate("rx.max", limit, |arrivals| {
        pump_seen(Duration::from_secs(1), &mut [(&mut a, frame.clone())], &mut b, arrivals);
    });
}

/// A guest begins to migrate while another worker delivers its frames directly.
#[test]
fn every_page_is_in_the_log_from_its_begin_on() {
    let host = TestSwitch::new(2);
    let (mut a, mut b) = apart(&host, migrating(ring(256)));
    b.drain();
    let send = |a: &mut Guest, number: u32, to: [u8; 6]| {
        let from = a.mac();
        a.send(&udp(to, from, &number.to_be_bytes()));
    };
    for round in 0..20u32 {
        let log = Log::new(&b.front, 0);
        // Enough frames to lend b's port.
        for number in 0..50 {
            send(&mut a, number, b.mac());
        }
        host.until(|| a.front.in_flight(0) == 0);
        log.start(&mut b.front).unwrap();
        log.take();
        let before = snapshot(&b.front);
        for number in 0..50 {
            send(&mut a, 1000 * round + number, b.mac());
        }
        host.until(|| a.front.in_flight(0) == 0);
        for queue in 0..2 {
            b.front.stop_queue(queue).unwrap();
        }
        let written = changed(&before, &b.front);
        let marked = log.take();
        assert!(!written.is_empty() && written.is_subset(&marked), "{written:?}, in the log {marked:?}");
        Log::stop(&mut b.front);
        for queue in 0..2 {
            b.front.start_queue(queue).unwrap();
            b.front.enable_queue(queue, true).unwrap();
        }
        b.drain();
    }
}
