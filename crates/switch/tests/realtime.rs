//! Frames with a deadline: their order, the limits of their envelope, and the report of a miss.

mod harness;

use harness::frames::*;
use harness::*;
use std::time::Duration;
use tidegate_frontend::front_end::Options;

fn realtime(name: &str, n: u8, deadline: &str) -> String {
    let envelope = "tx = { max = \"10mbit\", burst = \"20kB\" }";
    vnic(name, n, &format!("{envelope}\ndeadline = \"{deadline}\"\nto = [\"c\"]"))
}

#[test]
fn a_real_time_frame_overtakes_a_backlog() {
    let host = TestSwitch::new(1);
    let mut c = host.guest_with(&vnic("c", 9, "rx = { max = \"20mbit\", burst = \"4kB\" }"), ring(1024));
    let mut bulk = host.guest_with(&vnic("bulk", 1, "tx = { max = \"40mbit\" }"), ring(1024));
    let mut voice = host.guest(&realtime("voice", 2, "100ms"));
    let (c_mac, voice_mac) = (c.mac(), voice.mac());
    let bulk_frame = udp(c.mac(), bulk.mac(), &[1; 1400]);
    let voice_frame = |n: u32| udp(c_mac, voice_mac, &[&n.to_be_bytes()[..], &[2; 196]].concat());
    let start = std::time::Instant::now();
    let (mut bytes, mut bulk_frames, mut heard, mut most_before) = (0, 0u32, 0, 0);
    // Bulk frames at `c` when each voice frame had been sent.
    let mut sent: Vec<u32> = Vec::new();
    let mut look = |sent: &[u32]| {
        c.each(|frame| {
            bytes += frame.len();
            if frame[6..12] != voice_mac {
                bulk_frames += 1;
                return;
            }
            heard += 1;
            let number = u32::from_be_bytes(frame[42..46].try_into().unwrap());
            let then = sent.get(number as usize).unwrap_or(&bulk_frames);
            most_before = most_before.max(bulk_frames - then);
        });
        (bytes, bulk_frames, heard, most_before)
    };
    for n in 0..400 {
        bulk.fill(&bulk_frame);
        voice.send(&voice_frame(n));
        sent.push(look(&sent).1);
        std::thread::sleep(Duration::from_millis(2));
    }
    let (bytes, ..) = look(&sent);
    let allowed = bytes_in(20_000_000, start.elapsed());
    assert!(bytes as f64 <= allowed + 4_000.0 + 2.0 * 1442.0, "{bytes} bytes, allowed {allowed}");

    host.until(|| host.stats("voice").realtime_delivered == 400);
    let (.., heard, most_before) = look(&sent);
    let (voice, bulk) = (host.stats("voice"), host.stats("bulk"));
    assert!(heard == 400 && voice.tx.dropped.is_empty(), "{heard}, {:?}", voice.tx.dropped);
    // A burst may be on its way already. Frames, not time: a host that takes the worker's CPU delays voice,
    // but lets no frame overtake it.
    assert!(most_before <= 8, "{most_before} bulk frames went before one of voice");
    assert!(voice.delay.p50 * 3 < bulk.delay.p50, "{} ns, bulk {} ns", voice.delay.p50, bulk.delay.p50);
}

#[test]
fn the_earlier_deadline_goes_first() {
    let host = TestSwitch::new(1);
    let mut filler = host.guest(&vnic("filler", 1, ""));
    let mut c = without_buffers(&host, &mut filler);
    let mut patient = host.guest(&realtime("patient", 2, "9s"));
    let mut urgent = host.guest(&realtime("urgent", 3, "5s"));
    for n in 0..3u8 {
        patient.send(&udp(c.mac(), patient.mac(), &[n]));
    }
    host.until(|| host.stats("patient").tx.frames == 3);
    for n in 0..3u8 {
        urgent.send(&udp(c.mac(), urgent.mac(), &[n]));
    }
    host.until(|| host.stats("urgent").tx.frames == 3);
    (0..16).for_each(|_| drop(c.receive()));
    let order: Vec<_> = (0..6)
        .map(|_| {
            let frame = c.receive();
            (frame[11], frame[42])
        })
        .collect();
    assert_eq!(order, [(3, 0), (3, 1), (3, 2), (2, 0), (2, 1), (2, 2)], "(sender, number)");
}

#[test]
fn a_sender_beyond_its_envelope_waits_and_its_clock_starts_when_it_conforms() {
    let host = TestSwitch::new(1);
    let contract = "tx = { max = \"1mbit\", burst = \"2kB\" }\ndeadline = \"250ms\"\nto = [\"c\"]";
    let mut c = host.guest(&vnic("c", 9, ""));
    let mut a = host.guest(&vnic("a", 1, contract));
    // 40 times 1042 bytes take 333 ms at 1 Mbit/s, more than the deadline.
    let frame = udp(c.mac(), a.mac(), &[1; 1000]);
    let start = std::time::Instant::now();
    (0..40).for_each(|_| a.send(&frame));
    host.until(|| {
        c.drain();
        host.stats("a").realtime_delivered == 40
    });
    let needed = Duration::from_secs_f64((40.0 * 1042.0 - 2000.0 - 1042.0) * 8.0 / 1e6);
    assert!(start.elapsed() >= needed, "{:?}, its envelope allows {needed:?}", start.elapsed());
    let stats = host.stats("a");
    assert!(stats.misses.is_empty(), "{:?}", host.stats.misses("a"));
    assert!(stats.throttled_ns >= needed.as_nanos() as u64 / 2);
    assert!(stats.delay.p50 < needed.as_nanos() as u64 / 10, "the wait for tokens is not its delay");
}

#[test]
fn super_frames_are_cut_to_the_burst() {
    let host = TestSwitch::new(1);
    let big = |features| Options {
        features: Options::default().features | features,
        buffer_size: 70_000,
        ..ring(64)
    };
    let contract = "tx = { max = \"100mbit\", burst = \"4kB\" }\ndeadline = \"1s\"\nto = [\"c\", \"d\"]";
    let mut a = host.guest_with(&vnic("a", 1, contract), big(SENDER));
    let able = GUEST_CSUM | GUEST_TSO4 | GUEST_TSO6 | GUEST_USO4 | GUEST_USO6;
    let mut c = host.guest_with(&vnic("c", 9, ""), big(able));
    let mut d = host.guest_with(&vnic("d", 10, ""), Options::default());
    for kind in Kind::ALL {
        for len in [4_500, 20_000, 50_000] {
            let payload = pattern(len);
            let (header, frame) = kind.frame(c.mac(), a.mac(), &payload, 1000);
            a.send_with(header.bytes(0), &frame);
            let (mut got, mut pieces) = (Vec::new(), 0);
            while got.len() < len {
                let (bytes, mut piece) = c.receive_with_header();
                let header = Header::read(&bytes[..12]);
                let segments = (piece.len() - kind.headers()).div_ceil(1000);
                assert!(segments * kind.headers() + piece.len() - kind.headers() <= 4_000);
                assert_eq!(header.gso_type, if segments > 1 { kind.gso_type() } else { 0 });
                finish(header, &mut piece);
                got.extend(kind.complete(&piece).1);
                pieces += 1;
            }
            assert!(got == payload && pieces == len.div_ceil(3000), "{pieces} pieces of {len} bytes");

            let (header, frame) = kind.frame(d.mac(), a.mac(), &payload, 1000);
            a.send_with(header.bytes(0), &frame);
            let mut got = Vec::new();
            while got.len() < len {
                got.extend(kind.complete(&d.receive()).1);
            }
            assert!(got == payload, "{kind:?} in segments");
        }
    }
    host.until(|| a.front.in_flight(0) == 0);
    let stats = host.stats("a");
    assert!(stats.tx.dropped.is_empty() && stats.misses.is_empty(), "{stats:?}");
    assert_eq!(stats.tx.wire_bytes, host.stats("c").rx.wire_bytes + host.stats("d").rx.wire_bytes);
}

#[test]
fn a_super_frame_half_sent_survives_the_loss_of_its_deadline() {
    let host = TestSwitch::new(1);
    let big = Options { features: Options::default().features | SENDER, buffer_size: 70_000, ..ring(64) };
    let contract = "tx = { max = \"1mbit\", burst = \"4kB\" }\ndeadline = \"9s\"\nto = [\"c\"]";
    let mut a = host.guest_with(&vnic("a", 1, contract), big);
    let mut c = host.guest(&vnic("c", 9, ""));
    let kind = Kind { v6: false, tcp: true };
    let payload = pattern(50_000);
    let (header, frame) = kind.frame(c.mac(), a.mac(), &payload, 1000);
    a.send_with(header.bytes(0), &frame);
    let mut got = Vec::new();
    while got.len() < payload.len() {
        got.extend(kind.complete(&c.receive()).1);
        if got.len() == 5_000 {
            host.change(&vnic("a", 1, "tx = { max = \"100mbit\" }"));
        }
    }
    assert!(got == payload);
    host.until(|| a.front.in_flight(0) == 0);
    assert!(host.stats("a").tx.dropped.is_empty());
}

#[test]
fn a_deadline_holds_only_where_it_was_promised() {
    let host = TestSwitch::new(1);
    let mut a = host.guest(&realtime("a", 1, "100ms"));
    let mut c = host.guest(&vnic("c", 9, ""));
    let mut d = host.guest(&vnic("d", 10, ""));
    a.send(&udp(d.mac(), a.mac(), b"best effort"));
    d.receive();
    host.until(|| host.stats("a").delay.count == 1);
    assert_eq!(host.stats("a").realtime_delivered, 0);
    a.send(&udp_dscp(c.mac(), a.mac(), b"on time", 46));
    assert_eq!(c.receive()[15] >> 2, 46, "its own marks are kept");
    host.until(|| host.stats("a").realtime_delivered == 1);
}

#[test]
fn a_frame_that_can_no_longer_arrive_in_time_is_a_miss_with_its_cause() {
    let host = TestSwitch::new(1);
    let mut filler = host.guest(&vnic("filler", 1, ""));
    let mut c = without_buffers(&host, &mut filler);
    let mut a = host.guest(&realtime("a", 2, "80ms"));
    a.send(&udp(c.mac(), a.mac(), b"too late"));
    host.until(|| !host.stats.misses("a").is_empty());
    let misses = host.stats.misses("a");
    let [miss] = &misses[..] else { panic!("{misses:#?}") };
    assert_eq!((miss.egress.as_str(), miss.cause.as_str()), ("c", "buffers"), "{miss:#?}");
    assert_eq!((miss.dropped.as_deref(), miss.deadline), (Some("late"), 80_000_000));
    assert!(miss.delay >= miss.deadline && miss.buffers > miss.delay / 2, "{miss:#?}");
    assert!(miss.worker + miss.queue + miss.buffers <= miss.delay, "{miss:#?}");
    assert_eq!(host.stats("a").misses.get("buffers"), Some(&1));
    assert_eq!(host.stats("c").rx.dropped.get("late"), Some(&1));
    host.until(|| a.front.in_flight(0) == 0);
    c.drain();
    a.send(&udp(c.mac(), a.mac(), b"in time"));
    assert_eq!(&c.receive()[42..49], b"in time", "what was dropped is never delivered");
    assert_eq!(host.stats("a").misses.values().sum::<u64>(), 1);
}

#[test]
fn a_miss_says_who_was_ahead() {
    let host = TestSwitch::new(1);
    let mut filler = host.guest(&vnic("filler", 1, ""));
    let mut c = without_buffers(&host, &mut filler);
    let mut ahead = host.guest(&realtime("ahead", 2, "1s"));
    let mut a = host.guest(&realtime("a", 3, "1s"));
    ahead.send(&udp(c.mac(), ahead.mac(), b"first"));
    host.until(|| host.stats("ahead").tx.frames == 1);
    a.send(&udp(c.mac(), a.mac(), b"second"));
    host.until(|| host.stats("a").tx.frames == 1);
    c.receive();
    host.until(|| !host.stats.misses("a").is_empty());
    assert!(host.stats.misses("ahead").is_empty());
    let miss = &host.stats.misses("a")[0];
    assert_eq!(miss.behind.as_deref(), Some("ahead"), "{miss:#?}");
}

#[test]
fn a_deadline_is_suspended_where_guest_memory_may_fault() {
    let host = TestSwitch::new(1);
    let lazy = || Options { preallocate: false, ..Options::default() };
    let mut c = host.guest(&vnic("c", 9, ""));
    let mut a = host.guest_with(&realtime("a", 1, "100ms"), lazy());
    let why = host.port("a").deadline_suspended.expect("suspended");
    assert!(why.contains("prealloc=on"), "{why}");
    a.send(&udp(c.mac(), a.mac(), b"best effort"));
    c.receive();
    host.until(|| host.stats("a").delay.count == 1);
    assert_eq!(host.stats("a").realtime_delivered, 0);

    // The deadline may also come after the memory.
    let _b = host.guest_with(&vnic("b", 2, ""), lazy());
    assert_eq!(host.port("b").deadline_suspended, None);
    host.change(&realtime("b", 2, "100ms"));
    assert!(host.port("b").deadline_suspended.is_some());
    host.change(&vnic("b", 2, ""));
    assert_eq!(host.port("b").deadline_suspended, None);

    drop(a);
    host.until(|| host.port("a").connection == tidegate_evidence::Connection::Waiting);
    let mut a = host.connect(contract(&realtime("a", 1, "100ms")), Options::default());
    assert_eq!(host.port("a").deadline_suspended, None);
    a.send(&udp(c.mac(), a.mac(), b"on time"));
    c.receive();
    host.until(|| host.stats("a").realtime_delivered == 1);
}

#[test]
fn a_deadline_changes_live_under_load() {
    for workers in [1, 2] {
        let host = TestSwitch::new(workers);
        let mut c = host.guest_with(&vnic("c", 9, "rx = { max = \"8mbit\" }"), ring(1024));
        let mut a = host.guest(&realtime("a", 1, "5s"));
        let mut b = host.guest(&vnic("b", 2, ""));
        let (fa, fb) = (udp(c.mac(), a.mac(), &[1; 500]), udp(c.mac(), b.mac(), &[2; 500]));
        for n in 0..60 {
            match n % 3 {
                0 => host.change(&realtime("a", 1, "5s")),
                1 => host.change(&realtime("a", 1, "50ms")),
                _ => host.change(&vnic("a", 1, "")),
            }
            a.fill(&fa);
            b.fill(&fb);
            std::thread::sleep(Duration::from_millis(3));
            c.drain();
        }
        host.until(|| {
            c.drain();
            a.front.in_flight(0) == 0 && b.front.in_flight(0) == 0
        });
    }
}

#[test]
fn a_fifo_keeps_the_order_of_arrival_and_drops_at_its_tail() {
    let host = TestSwitch::new(1);
    let fifo = "rx = { max = \"1mbit\", burst = \"2kB\", discipline = \"fifo\", queue = \"30kB\" }";
    let mut c = host.guest(&vnic("c", 9, fifo));
    let mut a = host.guest(&vnic("a", 1, ""));
    let mut b = host.guest(&realtime("b", 2, "2s"));
    for n in 0..60u8 {
        let from = if n % 2 == 0 { &mut a } else { &mut b };
        from.send(&udp(c.mac(), from.mac(), &[n; 1000]));
        let (even, odd) = (u64::from(n / 2) + 1, u64::from(n.div_ceil(2)));
        host.until(|| host.stats("a").tx.frames == even && host.stats("b").tx.frames == odd);
    }
    host.until(|| a.front.in_flight(0) + b.front.in_flight(0) == 0);
    let received: Vec<u8> = std::iter::from_fn(|| c.try_receive()).map(|bytes| bytes[12 + 42]).collect();
    assert!(received.is_sorted(), "{received:?}");
    let full = |name| host.stats(name).tx.dropped.get("queue_full").copied().unwrap_or(0);
    let dropped = |name| host.stats(name).tx.dropped.values().sum::<u64>();
    assert_eq!(received.len() as u64 + dropped("a") + dropped("b"), 60);
    // 30 frames fit, and more left meanwhile.
    assert!(received.len() >= 28 && received[..28].iter().enumerate().all(|(i, n)| i == usize::from(*n)));
    assert!(full("a") + full("b") > 0, "60 kB into 30");
}
