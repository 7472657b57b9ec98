//! Ports move from worker to worker while they run.

mod harness;

use harness::dirty::{Log, changed, migrating, snapshot};
use harness::netns::*;
use harness::rate::{Limit, keeps_rate};
use harness::*;
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tidegate_contract::{Host, Nanos};
use tidegate_evidence::Connection;
use tidegate_switch::control::Client;
use tidegate_switch::server::placement::Placer;
use tidegate_switch::server::{Switch, replace};
use tidegate_switch::stats::Reader;

const MOVES: usize = 200;

/// Moves these ports in turn to each worker, until `moves` of the moves succeeded or `over` is set.
///
/// # Panics
/// No move succeeds for a minute.
fn move_about(switch: &Switch, names: &[&str], moves: usize, over: &AtomicBool) -> Vec<u64> {
    let (workers, mut pauses) = (switch.workers.len(), Vec::new());
    let mut last = Instant::now();
    for step in 0.. {
        if pauses.len() == moves || over.load(Ordering::Relaxed) {
            break;
        }
        let name = names[step % names.len()];
        let Some(port) = switch.ports().into_iter().find(|port| port.vnic.name == name) else { continue };
        let to = (port.worker + 1 + step / names.len() % (workers - 1)) % workers;
        match switch.move_port(name, to) {
            Ok(moved) => {
                pauses.push(moved.sending.max(moved.receiving));
                last = Instant::now();
            }
            Err(reason) => assert!(last.elapsed() < Duration::from_secs(60), "no port moves: {reason}"),
        }
    }
    pauses.sort_unstable();
    pauses
}

#[test]
fn every_frame_arrives_once_and_in_order_while_ports_move() {
    for workers in [2, 3] {
        let host = TestSwitch::new(workers);
        let mut guests: Vec<Guest> =
            (1..=3).map(|n| host.guest_with(&vnic(&format!("g{n}"), n, ""), ring(1024))).collect();
        for guest in &mut guests {
            guest.drain();
        }
        let ways = [(0, 1), (1, 2), (2, 0), (0, 2)];
        let mut streams: Vec<Stream> =
            ways.iter().map(|(from, to)| Stream::new(&guests[*from], &guests[*to])).collect();
        let over = AtomicBool::new(false);
        let before: Vec<_> = ["g1", "g2", "g3"].map(|name| host.stats(name)).into();
        std::thread::scope(|scope| {
            let mover = scope.spawn(|| move_about(&host.switch, &["g1", "g2", "g3"], MOVES, &over));
            let mut seen = [0; 3];
            let mut last = Instant::now();
            loop {
                let done = mover.is_finished();
                if !done {
                    last = Instant::now();
                }
                for (stream, (from, _)) in streams.iter_mut().zip(ways) {
                    if !done {
                        stream.send(&mut guests[from]);
                    }
                }
                for (to, guest) in guests.iter_mut().enumerate() {
                    guest.each(|frame| {
                        let of = streams.iter_mut().zip(ways).filter(|(_, way)| way.1 == to);
                        of.for_each(|(stream, _)| stream.check(frame));
                    });
                }
                for (seen, name) in seen.iter_mut().zip(["g1", "g2", "g3"]) {
                    let now = host.stats(name).rx.frames;
                    assert!(now >= *seen, "statistics of {name} went back");
                    *seen = now;
                }
                if done && streams.iter().all(Stream::is_complete) {
                    break;
                }
                assert!(last.elapsed() < Duration::from_secs(60), "frames did not arrive");
            }
            let pauses = mover.join().unwrap();
            println!(
                "{workers} workers: {} moves, paused {} us in the median, {} us at most",
                pauses.len(),
                pauses[pauses.len() / 2] / 1000,
                pauses[pauses.len() - 1] / 1000
            );
        });
        let total: u32 = streams.iter().map(|stream| stream.received).sum();
        assert!(total > 1_000, "{total}");
        let (mut sent, mut received) = (0, 0);
        for (name, before) in ["g1", "g2", "g3"].into_iter().zip(&before) {
            let now = host.stats(name);
            assert_eq!(
                (&now.tx.dropped, &now.rx.dropped),
                (&before.tx.dropped, &before.rx.dropped),
                "{name}"
            );
            sent += now.tx.frames - before.tx.frames;
            received += now.rx.frames - before.rx.frames;
        }
        assert_eq!((sent, received), (total.into(), total.into()));
        for guest in &mut guests {
            host.until(|| guest.front.in_flight(0) == 0);
        }
    }
}

/// Runs `body` until `moves` moves succeeded.
fn while_moving(host: &TestSwitch, names: &[&str], moves: usize, mut body: impl FnMut()) {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let mover = scope.spawn(|| move_about(&host.switch, names, moves, &over));
        while !mover.is_finished() {
            body();
        }
    });
}

#[test]
fn limits_hold_while_a_port_moves() {
    let host = TestSwitch::new(2);
    let mut a = host.guest_with(&vnic("a", 1, "tx = { max = \"50mbit\", burst = \"150kB\" }"), ring(1024));
    let mut b = host.guest_with(&vnic("b", 2, ""), ring(1024));
    let frame = udp(b.mac(), a.mac(), &[7; 1400]);
    let limit = Limit { rate: 50_000_000, burst: 150_000, frame: frame.len() as u64 };
    keeps_rate("tx.max", limit, |arrivals| {
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let mover = scope.spawn(|| move_about(&host.switch, &["a", "b"], usize::MAX, &over));
            pump_seen(Duration::from_secs(1), &mut [(&mut a, frame.clone())], &mut b, arrivals);
            over.store(true, Ordering::Relaxed);
            assert!(!mover.join().unwrap().is_empty());
        });
    });
    let stats = host.stats("a");
    // `a` exceeds its limit, and does not react to losses.
    assert!(stats.tx.dropped.keys().all(|reason| reason == "codel"), "{:?}", stats.tx.dropped);
}

#[test]
fn a_port_that_moved_is_heard_when_it_kicks() {
    let host = TestSwitch::new(2);
    let mut a = host.guest(&vnic("a", 1, ""));
    let mut b = host.guest(&vnic("b", 2, ""));
    for round in 0..20 {
        std::thread::sleep(Duration::from_millis(20));
        let from = host.port("a").worker;
        host.switch.move_port("a", 1 - from).unwrap();
        assert_eq!(host.port("a").worker, 1 - from);
        std::thread::sleep(Duration::from_millis(if round % 2 == 0 { 20 } else { 0 }));
        let frame = udp(b.mac(), a.mac(), &[round; 60]);
        a.send(&frame);
        assert_eq!(b.receive(), frame);
        let frame = udp(a.mac(), b.mac(), &[round; 60]);
        b.send(&frame);
        assert_eq!(a.receive(), frame);
    }
    a.front.stop_queue(1).unwrap();
    a.front.start_queue(1).unwrap();
    a.front.enable_queue(1, true).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    let frame = udp(b.mac(), a.mac(), b"once more");
    a.send(&frame);
    assert_eq!(b.receive(), frame);
}

#[test]
fn floods_and_their_drops_are_counted_once_while_the_sender_moves() {
    let host = TestSwitch::new(2);
    host.switch.set_host(Host { flood: "10gbit".parse().unwrap(), ..Host::default() }).unwrap();
    let mut a = host.guest_with(&vnic("a", 1, ""), ring(1024));
    let mut b = host.guest_with(&vnic("b", 2, ""), ring(1024));
    // c takes nothing, so its frames are dropped in the end.
    let c = host.guest_with(&vnic("c", 3, ""), ring(16));
    b.drain();
    let before = (host.stats("a"), host.stats("c").rx);
    let frame = udp(BROADCAST, a.mac(), &[1; 200]);
    let mut received = 0;
    while_moving(&host, &["a", "b", "c"], MOVES, || {
        if a.front.in_flight(0) < 200 {
            a.send_or_drop(&frame);
        }
        received += b.drain() as u64;
        std::thread::sleep(Duration::from_micros(100));
    });
    // A frame beyond the cap counts once, but was meant for two receivers.
    let dropped = |now: &std::collections::BTreeMap<String, u64>| {
        now.values().sum::<u64>() + now.get("flood_cap").copied().unwrap_or(0)
    };
    host.until(|| {
        received += b.drain() as u64;
        let (a, c) = (host.stats("a"), host.stats("c").rx);
        let lost = dropped(&a.tx.dropped) - dropped(&before.0.tx.dropped);
        let sent = a.tx.frames - before.0.tx.frames;
        // b and c each receive or drop a copy.
        received + (c.frames - before.1.frames) + lost == 2 * sent
    });
    drop(c);
}

#[test]
fn a_tap_moves_and_loses_nothing() {
    in_namespace("a_tap_moves_and_loses_nothing", || {
        let host = TestSwitch::new(3);
        let tap = tap(&host, &tap_vnic("tg0", 1, ""));
        let mut a = host.guest_with(&vnic("a", 2, ""), ring(1024));
        neighbour("tg0", &a);
        let socket = UdpSocket::bind(("10.0.0.1", 0x2000)).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let (mut to_guest, mut to_kernel) = (0u32, 0u32);
        let mut round = 0;
        while_moving(&host, &["tg0", "a"], MOVES, || {
            for _ in 0..20 {
                socket.send_to(&to_guest.to_be_bytes(), "10.0.0.2:9").unwrap();
                a.send(&udp(tap.mac.0, a.mac(), &to_kernel.to_be_bytes()));
                let mut got = [0; 100];
                let n = socket.recv(&mut got).unwrap();
                assert_eq!(got[..n], to_kernel.to_be_bytes(), "lost or out of order");
                assert_eq!(a.receive()[42..46], to_guest.to_be_bytes(), "lost or out of order");
                to_guest += 1;
                to_kernel += 1;
            }
            round += 1;
            if round % 10 == 0 {
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        assert!(to_guest > 100);
        ip("link del tg0");
    });
}

/// The guest may migrate meanwhile.
#[test]
fn every_page_that_any_worker_writes_is_in_the_log() {
    let host = TestSwitch::new(2);
    let mut a = host.guest_with(&vnic("a", 1, ""), ring(256));
    let mut b = host.guest_with(&vnic("b", 2, ""), migrating(ring(256)));
    let log = Log::new(&b.front, 0);
    log.start(&mut b.front).unwrap();
    log.take();
    let before = snapshot(&b.front);
    let mut marked = log.take();
    let mut left = 200u32;
    while_moving(&host, &["b"], 20, || {
        if left > 0 {
            left -= 1;
            a.send(&udp(b.mac(), a.mac(), &left.to_be_bytes()));
        }
        marked.extend(log.take());
        std::thread::sleep(Duration::from_micros(200));
    });
    host.until(|| a.front.in_flight(0) == 0);
    b.front.stop_queue(0).unwrap();
    b.front.stop_queue(1).unwrap();
    let written = changed(&before, &b.front);
    marked.extend(log.take());
    assert!(!written.is_empty() && written.is_subset(&marked), "{written:?}, in the log {marked:?}");
}

#[test]
fn front_ends_come_and_go_while_their_port_moves() {
    let host = TestSwitch::new(3);
    let mut a = host.guest_with(&vnic("a", 1, ""), ring(256));
    let mut b = host.guest_with(&vnic("b", 2, ""), ring(256));
    let mut rounds = 0;
    // A front end is accepted every 25 ms, and a move takes less than one.
    while_moving(&host, &["a", "b"], 5 * MOVES, || {
        for _ in 0..50 {
            a.send_or_drop(&udp(b.mac(), a.mac(), &[3; 900]));
            b.send_or_drop(&udp(a.mac(), b.mac(), &[4; 900]));
        }
        a.drain();
        b.front.disconnect();
        host.until(|| host.port("b").connection == Connection::Waiting);
        b.front.reconnect().unwrap();
        host.until(|| host.port("b").connection == Connection::Up);
        rounds += 1;
    });
    assert!(rounds > 3, "{rounds}");
    host.until(|| {
        a.drain();
        b.drain();
        a.front.in_flight(0) == 0 && b.front.in_flight(0) == 0
    });
    let frame = udp(b.mac(), a.mac(), b"after all that");
    a.send(&frame);
    while b.receive() != frame {}
}

#[test]
fn ports_are_removed_and_made_while_others_and_they_move() {
    let host = TestSwitch::new(3);
    let mut a = host.guest_with(&vnic("a", 1, ""), ring(256));
    while_moving(&host, &["a", "b"], MOVES, || {
        let mut b = host.guest_with(&vnic("b", 2, ""), ring(256));
        for _ in 0..50 {
            a.send_or_drop(&udp(b.mac(), a.mac(), &[3; 900]));
            b.send_or_drop(&udp(a.mac(), b.mac(), &[4; 900]));
        }
        host.switch.remove_port("b").unwrap();
        a.drain();
    });
    host.until(|| {
        a.drain();
        a.front.in_flight(0) == 0
    });
    assert_eq!(host.switch.ports().len(), 1);
}

#[test]
fn ports_that_came_together_stay_so_in_the_next_process() {
    let host = TestSwitch::new(2);
    let path = host.control();
    let guests: Vec<Guest> =
        (1..=4).map(|n| host.guest_with(&vnic(&format!("g{n}"), n, ""), ring(256))).collect();
    for (name, worker) in [("g2", 0), ("g3", 1)] {
        host.switch.move_port(name, worker).unwrap();
    }
    let next = Switch::start(2, &[], None).unwrap();
    let taken = replace::prepare(&next, Client::connect(&path).unwrap(), None).unwrap();
    std::mem::forget(taken.start_traffic().unwrap());
    let places: Vec<_> = next.ports().iter().map(|port| port.worker).collect();
    assert_eq!((guests.len(), places), (4, vec![0, 0, 1, 1]));
}

#[test]
fn another_process_takes_over_in_the_middle_of_moves() {
    let host = TestSwitch::new(2);
    let path = host.control();
    let mut a = host.guest_with(&vnic("a", 1, ""), ring(1024));
    let mut b = host.guest_with(&vnic("b", 2, ""), ring(1024));
    b.drain();
    let mut stream = Stream::new(&a, &b);
    let next = Switch::start(2, &[], None).unwrap();
    let old = host.switch.clone();
    // Not in the scope: the old switch stops answering when it has retired.
    std::thread::spawn(move || move_about(&old, &["a", "b"], usize::MAX, &AtomicBool::new(false)));
    std::thread::scope(|scope| {
        let upgrade = scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(50));
            let taken = replace::prepare(&next, Client::connect(&path).unwrap(), None).unwrap();
            std::mem::forget(taken.start_traffic().unwrap());
        });
        while !upgrade.is_finished() {
            stream.send(&mut a);
            b.each(|frame| stream.check(frame));
        }
        upgrade.join().unwrap();
    });
    let stats = Reader::open(next.region.file()).unwrap();
    for _ in 0..20 {
        for name in ["a", "b"] {
            let at = next.ports().into_iter().find(|port| port.vnic.name == name).unwrap().worker;
            next.move_port(name, 1 - at).unwrap();
            stream.send(&mut a);
            host.until(|| {
                b.each(|frame| stream.check(frame));
                stream.is_complete()
            });
        }
    }
    assert!(stats.vnic("b").unwrap().rx.frames >= u64::from(stream.received));
}

#[test]
fn a_vnic_with_a_deadline_does_not_move_if_the_move_takes_too_long() {
    let host = TestSwitch::new(2);
    let deadline = "tx = { max = \"100mbit\", burst = \"4kB\" }\ndeadline = \"5ms\"\nto = [\"b\"]";
    let mut b = host.guest_with(&vnic("b", 2, ""), ring(1024));
    let mut a = host.guest_with(&vnic("a", 1, deadline), ring(1024));
    b.drain();
    let latency = |us: u64| Host { host_latency: Nanos::new(us * 1000), ..Host::default() };
    // No worker answers a call in no time.
    host.switch.set_host(latency(0)).unwrap();
    for name in ["a", "b"] {
        let at = host.port(name).worker;
        let error = host.switch.move_port(name, 1 - at).unwrap_err();
        assert!(error.contains("host-latency"), "{error}");
        assert_eq!(host.port(name).worker, at);
    }
    host.switch.set_host(latency(100_000)).unwrap();
    let (mut sent, mut received) = (0u32, 0u32);
    while_moving(&host, &["a", "b"], MOVES, || {
        a.send(&udp(b.mac(), a.mac(), &[&sent.to_be_bytes()[..], &[0; 100]].concat()));
        sent += 1;
        let check = |frame: &[u8]| {
            assert_eq!(frame[42..46], received.to_be_bytes(), "lost or out of order");
            received += 1;
        };
        b.each(check);
        std::thread::sleep(Duration::from_micros(100));
    });
    host.until(|| {
        b.each(|_| received += 1);
        received == sent
    });
    let stats = host.stats("a");
    println!("the worst delay of {sent} frames: {} us", stats.realtime_worst_ns / 1000);
}

#[test]
fn pairs_that_talk_come_together_and_stay() {
    let host = TestSwitch::new(2);
    // Ports go to the workers in turn, so the two of each pair are apart.
    let mut senders: Vec<Guest> =
        (1..=2).map(|n| host.guest_with(&vnic(&format!("s{n}"), n, ""), ring(256))).collect();
    let mut receivers: Vec<Guest> =
        [4, 3].map(|n| host.guest_with(&vnic(&format!("r{}", n - 2), n, ""), ring(256))).into();
    receivers.reverse();
    let at = |name: &str| host.port(name).worker;
    for n in [1, 2] {
        assert_ne!(at(&format!("s{n}")), at(&format!("r{n}")));
    }
    let (mut placer, mut looked) = (Placer::default(), 0);
    let mut look = |looks: usize| {
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let looking = scope.spawn(|| {
                for _ in 0..looks {
                    std::thread::sleep(Duration::from_millis(50));
                    host.switch.place(&mut placer, &mut looked);
                }
                over.store(true, Ordering::Relaxed);
            });
            while !over.load(Ordering::Relaxed) {
                for (sender, receiver) in senders.iter_mut().zip(&mut receivers) {
                    let frame = udp(receiver.mac(), sender.mac(), &[0; 1400]);
                    sender.fill(&frame);
                    receiver.drain();
                }
            }
            looking.join().unwrap();
        });
        ["s1", "r1", "s2", "r2"].map(at)
    };
    let mut places = look(8);
    for _ in 0..10 {
        if places[0] == places[1] && places[2] == places[3] {
            break;
        }
        places = look(8);
    }
    assert!(places[0] == places[1] && places[2] == places[3], "{places:?}");
    let pair = |places: [usize; 4]| (places[0] == places[1], places[2] == places[3]);
    assert_eq!(pair(look(15)), (true, true), "they were torn apart");
}

#[test]
fn a_new_deadline_separates_real_time_traffic_from_taps() {
    in_namespace("a_new_deadline_separates_real_time_traffic_from_taps", || {
        let host = TestSwitch::new(2);
        // With so large an H, even a loaded machine refuses no move.
        host.switch.set_host(Host { host_latency: Nanos::new(100_000_000), ..Host::default() }).unwrap();
        let tap = tap(&host, &tap_vnic("tg0", 1, ""));
        let mut a = host.guest_with(&vnic("a", 2, ""), ring(1024));
        let mut b = host.guest_with(&vnic("b", 3, ""), ring(1024));
        neighbour("tg0", &a);
        let socket = UdpSocket::bind(("10.0.0.1", 0x2000)).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let given_up = || host.stats("a").tx.dropped.get("held_too_long").copied().unwrap_or(0);
        let mut held = 0;
        a.drain();
        b.drain();
        let places = || ["tg0", "a", "b"].map(|name| host.port(name).worker);
        let (mut placer, mut looked) = (Placer::default(), 0);
        let mut sent = 0u32;
        // The tap and `a`, which will get a deadline, send to each other; `a` also sends to `b`.
        let mut looks = |count: usize| {
            let over = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    for _ in 0..count {
                        std::thread::sleep(Duration::from_millis(50));
                        host.switch.place(&mut placer, &mut looked);
                    }
                    over.store(true, Ordering::Relaxed);
                });
                while !over.load(Ordering::Relaxed) {
                    let payload = sent.to_be_bytes();
                    socket.send_to(&payload, "10.0.0.2:9").unwrap();
                    a.send(&udp(tap.mac.0, a.mac(), &payload));
                    a.send(&udp(b.mac(), a.mac(), &payload));
                    let mut got = [0; 100];
                    let start = Instant::now();
                    // The switch counts a frame that waits too long because the tap's writer gets no CPU.
                    while !socket.recv(&mut got).is_ok_and(|n| got[..n] == payload) {
                        if given_up() > held {
                            held += 1;
                            break;
                        }
                        assert!(start.elapsed() < PATIENCE, "lost or out of order: {:#?}", host.stats("a"));
                    }
                    assert_eq!(a.receive()[42..46], payload, "lost or out of order");
                    assert_eq!(b.receive()[42..46], payload, "lost or out of order");
                    sent += 1;
                }
            });
            places()
        };
        looks(4);
        for name in ["tg0", "a", "b"] {
            host.switch.move_port(name, 0).unwrap();
        }
        assert_eq!(looks(4), [0; 3], "nothing is promised");
        host.change(&vnic(
            "a",
            2,
            "tx = { max = \"100mbit\", burst = \"4kB\" }\ndeadline = \"50ms\"\nto = [\"b\"]",
        ));
        // The rest period after the earlier moves is over.
        assert_eq!(looks(20), [1, 0, 0], "the tap leaves");
        assert_eq!(looks(20), [1, 0, 0], "and stays away");
        assert!(sent > 100 && held < 10, "{held} of {sent} had to wait for too long");
        ip("link del tg0");
    });
}
