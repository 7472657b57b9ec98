//! What the kernel refuses, floods, and frames that go first.

use super::*;
use crate::clock::test_clock::set_time;
use crate::slots::NEVER;
use sockets::NotSent;

/// Returns a numbered frame of `len` bytes of payload.
fn numbered(number: u32, len: usize) -> Sent {
    let mut spec = Spec::udp4(len.max(4));
    spec.payload[..4].copy_from_slice(&number.to_be_bytes());
    asking(&spec, None)
}

fn number_of(frame: &[u8]) -> u32 {
    u32::from_be_bytes(*frame[42..].first_chunk().unwrap())
}

/// So the other lane's best effort goes before no urgent frame of this one.
#[test]
fn urgent_frames_may_leave_without_the_others() {
    let (mut a, mut b) = pair(false, 2);
    for number in 0..8 {
        let mut sent = numbered(number, 60);
        sent.frame.deadline = if number % 2 == 1 { NEVER - 1 } else { NEVER };
        assert_eq!(a.rx.post(&sent.frame), Posted::Done);
    }
    a.rx.lanes.flush_urgent();
    assert!(a.rx.has_unsent());
    let numbers = |b: &mut Host| b.frames().iter().map(|frame| number_of(frame)).collect::<Vec<_>>();
    assert_eq!(numbers(&mut b), [1, 3, 5, 7]);
    a.rx.flush();
    assert_eq!(numbers(&mut b), [0, 2, 4, 6]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever the kernel answers: each frame is sent once and in order, or counted, or refused when it was
    /// posted.
    #[test]
    fn nothing_is_lost_silently(
        rounds in prop::collection::vec((
            prop::collection::vec(4..1400usize, 0..40),
            prop::collection::vec(prop_oneof![
                4 => (1..4usize).prop_map(Ok),
                4 => Just(Err(NotSent::Full)),
                1 => Just(Err(NotSent::TooLong)),
                1 => Just(Err(NotSent::NoRoute)),
                1 => Just(Err(NotSent::Earlier)),
                1 => Just(Err(NotSent::Filter)),
                1 => Just(Err(NotSent::Uncut)),
            ], 0..4),
        ), 1..20),
    ) {
        let (mut a, mut b) = pair(false, 1);
        let (mut number, mut posted, mut got) = (0, 0u64, vec![]);
        for (lens, script) in rounds {
            // Not too much at once: the kernel drops what exceeds the receiver's buffer.
            a.rx.lanes.outgoing.script.extend(script.into_iter().chain([Err(NotSent::Full); 200]));
            for len in lens {
                match a.rx.post(&numbered(number, len).frame) {
                    Posted::Done => posted += 1,
                    Posted::NoBuffers => {}
                    other => panic!("{other:?}"),
                }
                number += 1;
            }
            a.rx.flush();
            a.rx.lanes.outgoing.script.clear();
            got.extend(b.frames().iter().map(|frame| number_of(frame)));
        }
        while a.rx.has_unsent() {
            a.rx.lanes.outgoing.script.extend([Ok(8), Err(NotSent::Full)]);
            a.rx.flush();
            got.extend(b.frames().iter().map(|frame| number_of(frame)));
        }
        prop_assert!(got.is_sorted_by(|a, b| a < b), "in order, once: {:?}", got);
        let counters = *a.rx.counters();
        prop_assert_eq!(counters.frames, got.len() as u64);
        prop_assert_eq!(counters.frames + counters.dropped.iter().sum::<u64>(), posted);
    }
}

#[test]
fn a_full_socket_holds_a_bounded_number_and_then_refuses() {
    set_time(1);
    let (mut a, mut b) = pair(false, 1);
    let full = |rx: &mut Rx| rx.lanes.outgoing.script.extend([Err(NotSent::Full); 2]);
    let mut posted = 0;
    loop {
        full(&mut a.rx);
        match a.rx.post(&numbered(posted, 1400).frame) {
            Posted::Done => posted += 1,
            Posted::NoBuffers => break,
            other => panic!("{other:?}"),
        }
    }
    assert!((150..200).contains(&posted), "a quarter of a megabyte: {posted}");
    full(&mut a.rx);
    a.rx.flush();
    assert!(a.rx.has_unsent());
    assert!(b.frames().is_empty());
    // A super-frame is posted up to where there is room.
    a.rx.lanes.outgoing.script.clear();
    a.rx.lanes.outgoing.script.extend([Ok(1), Err(NotSent::Full), Err(NotSent::Full)]);
    let sent = asking(&Spec::tcp4(65_000), Some(1400));
    let Posted::Part(went) = a.rx.post(&sent.frame) else { panic!("there was room for a part") };
    assert_eq!(went % 1400, 0);
    a.rx.lanes.outgoing.script.clear();
    let mut got = vec![];
    while a.rx.has_unsent() {
        a.rx.lanes.outgoing.script.extend([Ok(1), Err(NotSent::Full)]);
        a.rx.flush();
        got.extend(b.frames());
    }
    let numbers: Vec<_> = got[..posted as usize].iter().map(|frame| number_of(frame)).collect();
    assert!(numbers.into_iter().eq(0..posted));
    assert_eq!(got[posted as usize..], on_the_wire(&sent)[..(went / 1400) as usize]);
}

#[test]
fn frames_without_a_deadline_gather_for_a_short_time() {
    let (mut a, mut b) = pair(false, 1);
    assert!(!a.rx.gathers(1), "there is none");
    let post = |rx: &mut Rx, number| assert_eq!(rx.post(&numbered(number, 100).frame), Posted::Done);
    post(&mut a.rx, 0);
    assert!(a.rx.gathers(1000));
    post(&mut a.rx, 1);
    assert!(a.rx.gathers(30_999) && !a.rx.gathers(31_000));
    a.rx.flush();
    assert!(!a.rx.gathers(40_000));
    post(&mut a.rx, 2);
    assert!(a.rx.gathers(40_000), "the time begins anew");
    let mut urgent = numbered(3, 100);
    urgent.frame.deadline = 1;
    assert_eq!(a.rx.post(&urgent.frame), Posted::Done);
    assert!(!a.rx.gathers(40_000), "one is urgent");
    a.rx.flush();
    // A full socket.
    set_time(1);
    for number in 4.. {
        a.rx.lanes.outgoing.script.extend([Err(NotSent::Full); 2]);
        if a.rx.post(&numbered(number, 1400).frame) == Posted::NoBuffers {
            break;
        }
    }
    assert!(!a.rx.gathers(50_000));
    a.rx.lanes.outgoing.script.clear();
    a.rx.flush();
    assert_eq!(b.frames().iter().map(|frame| number_of(frame)).take(4).collect::<Vec<_>>(), [0, 1, 3, 2]);
}

#[test]
fn frames_with_a_deadline_go_first() {
    let (mut a, mut b) = pair(false, 1);
    (0..3).for_each(|number| assert_eq!(a.rx.post(&numbered(number, 100).frame), Posted::Done));
    let mut urgent = numbered(3, 100);
    urgent.frame.deadline = 1;
    assert_eq!(a.rx.post(&urgent.frame), Posted::Done);
    a.rx.flush();
    let numbers: Vec<_> = b.frames().iter().map(|frame| number_of(frame)).collect();
    assert_eq!(numbers, [3, 0, 1, 2]);
}

#[test]
fn a_datagram_beyond_the_path_mtu_is_counted_and_its_shorter_neighbour_sent() {
    for v6 in [false, true] {
        let (mut a, mut b) = pair(v6, 1);
        // The MTU of loopback is 65,536: only a script can exceed it here.
        (0..3).for_each(|number| assert_eq!(a.rx.post(&numbered(number, 1400).frame), Posted::Done));
        assert_eq!(a.rx.post(&numbered(3, 100).frame), Posted::Done);
        a.rx.lanes.outgoing.script.push_back(Err(NotSent::TooLong));
        a.rx.flush();
        let numbers: Vec<_> = b.frames().iter().map(|frame| number_of(frame)).collect();
        assert_eq!((numbers, a.rx.counters().dropped(DropReason::PathMtu)), (vec![3], 3));
        assert_eq!((a.rx.counters().frames, a.rx.counters().bytes), (1, 142));
    }
    let (mut a, _) = pair(false, 1);
    let longest = plain(&Spec { vlan: Some(5), ..Spec::udp6(65_535 - 8) }.build());
    assert_eq!(a.rx.post(&longest.frame), Posted::Dropped(DropReason::PathMtu));
}

#[test]
fn a_port_that_nobody_has_costs_nothing_else() {
    let (mut a, mut b) = pair(false, 1);
    let gone = socket("127.0.0.2".parse().unwrap());
    let (there, nowhere) = (b.address, gone.local_addr().unwrap());
    drop(gone);
    for number in 0..10 {
        for address in [nowhere, there] {
            drop(a.rx.set_peers(Arc::new(Peers::new(vec![peer(6, address)], &[SEGMENT]).unwrap())));
            assert_eq!(a.send(&numbered(number, 100)), Posted::Done);
        }
    }
    assert_eq!(b.frames().len(), 10);
    assert_eq!(a.rx.counters().frames, 20);
}

/// Returns a link with so many peers; all are one socket, at addresses of their own.
fn flooding(peers: u16) -> (Host, std::net::UdpSocket) {
    let sink = socket("0.0.0.0".parse().unwrap());
    let port = sink.local_addr().unwrap().port();
    let address = |n: u16| ([127, 1, (n >> 8) as u8, n as u8], port).into();
    (host("127.0.0.1".parse().unwrap(), 1, (1..=peers).map(|n| peer(n, address(n))).collect()), sink)
}

#[test]
fn a_flood_reaches_every_peer_in_bounded_steps() {
    let (mut a, sink) = flooding(500);
    // Short ones, since the sink's kernel drops what exceeds its buffer.
    let mut sent = asking(&Spec::udp4(250), Some(100));
    sent.frame.headers.dst = tidegate_contract::Mac([0xff; 6]);
    let expected = on_the_wire(&sent);
    let (mut copies, mut calls, mut floods, mut dropped) = (vec![], 0, 1, false);
    let mut incoming = sockets::Incoming::default();
    assert_eq!(a.rx.post(&sent.frame), Posted::Done);
    loop {
        // Another flood is dropped; a frame to one peer is not.
        let other = numbered(0, 100);
        assert_eq!(a.rx.post(&other.frame), Posted::Done);
        if !dropped {
            dropped = a.rx.post(&sent.frame) == Posted::Dropped(DropReason::FloodCap);
            floods += usize::from(!dropped);
        }
        let before = a.rx.counters().frames;
        a.rx.flush();
        calls += 1;
        assert!(a.rx.counters().frames - before <= 3 * 128 + 1, "a bounded step");
        while incoming.receive(sink.as_fd(), 32).is_ok() {
            for at in 0..incoming.count() {
                let message = incoming.message(at).unwrap();
                copies.extend(message.bytes.chunks(message.size).map(<[u8]>::to_vec));
            }
        }
        if !a.rx.has_unsent() {
            break;
        }
    }
    assert!(dropped && calls > 3, "{calls} calls");
    for frame in &expected {
        let these = copies.iter().filter(|copy| copy[8..] == frame[..]).count();
        assert_eq!(these, 500 * floods);
    }
    assert_eq!(copies.len(), 500 * floods * expected.len() + calls);
    let on_wire = a.rx.take_on_wire();
    assert_eq!(on_wire.frames, copies.len() as u64);
    assert_eq!(on_wire.bytes, copies.iter().map(|copy| copy.len() as u64 - 8).sum::<u64>());
    assert_eq!(on_wire.copies.frames as usize, 499 * floods * expected.len());
}

#[test]
fn a_flood_that_is_too_long_is_refused() {
    let (mut a, _sink) = flooding(2);
    let mut sent = asking(&Spec::tcp4(60_000), Some(10));
    sent.frame.headers.dst = tidegate_contract::Mac([0xff; 6]);
    assert_eq!(a.rx.post(&sent.frame), Posted::Dropped(DropReason::Unacceptable));
    assert!(!a.rx.has_unsent());
}

#[test]
fn a_full_lane_holds_up_others_for_one_loop() {
    set_time(1);
    for sockets in [1, 2] {
        let (mut a, _b) = pair(false, sockets);
        let of = |port| asking(&Spec { ports: [port, 7], ..Spec::udp4(1400) }, None);
        let place = |sent: &Sent| encapsulate::Outer::of(&sent.frame).flow as usize % sockets;
        let full = of(1);
        let other = (2..100).map(of).find(|sent| sockets == 1 || place(sent) != place(&full)).unwrap();
        a.rx.lanes.outgoing.script.extend([Err(NotSent::Full); 1000]);
        while a.rx.post(&full.frame) == Posted::Done {}
        a.rx.flush();
        let results = [a.rx.post(&full.frame), a.rx.post(&other.frame)];
        match sockets {
            1 => assert_eq!(results, [Posted::NoBuffers, Posted::NoBuffers], "all wait"),
            _ => assert_eq!(results, [Posted::Dropped(DropReason::NoBuffers), Posted::Done]),
        }
        a.rx.lanes.outgoing.script.clear();
        a.rx.flush();
        assert_eq!(a.rx.post(&full.frame), Posted::Done, "the kernel made room");
    }
}

#[test]
fn a_flood_without_room_ends_with_the_second_loop() {
    set_time(1);
    let (mut a, _sink) = flooding(400);
    let mut sent = asking(&Spec::udp4(1400), None);
    sent.frame.headers.dst = tidegate_contract::Mac([0xff; 6]);
    a.rx.lanes.outgoing.script.extend([Err(NotSent::Full); 1000]);
    assert_eq!(a.rx.post(&sent.frame), Posted::Done);
    (0..3).for_each(|_| a.rx.flush());
    assert!(!a.rx.flood.is_under_way());
    let posted = a.rx.take_on_wire().frames;
    assert_eq!(posted + a.rx.counters().dropped(DropReason::NoBuffers), 400);
}

#[test]
fn unsent_frames_do_not_grow_old() {
    const BEGIN: u64 = 1_000_000_000;
    set_time(BEGIN);
    let (mut a, _b) = pair(false, 1);
    let mut urgent = numbered(1, 100);
    urgent.frame.deadline = BEGIN + 5000;
    a.rx.lanes.outgoing.script.extend([Err(NotSent::Full); 1000]);
    assert_eq!([numbered(0, 100), urgent].map(|sent| a.send(&sent)), [Posted::Done, Posted::Done]);
    let mut drops = |after| {
        set_time(BEGIN + after);
        a.rx.flush();
        (a.rx.take_dropped().collect::<Vec<_>>(), a.rx.has_unsent())
    };
    assert_eq!(drops(5000), (vec![], true), "in time");
    assert_eq!(drops(5001), (vec![(DropReason::Late, 1)], true));
    assert_eq!(drops(9_999_999), (vec![], true));
    assert_eq!(drops(10_000_000), (vec![(DropReason::HeldTooLong, 1)], false));
}
