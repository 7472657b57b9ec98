//! Datagrams of one piece: who gets them, what comes with them, and what becomes of those without a taker.

use super::end::{BUFFERS, End, KEY, OTHER_KEY, PATIENCE, Side, sides, take};
use crate::{Completion, CompletionQueue, Depths, Error, LARGEST_Q_KEY, QueuePair, Status};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::time::Duration;

pub fn arrives(a: &End, b: &End) {
    let (a, b, to) = sides(a, b);
    b.post(4);
    a.send(&to, b.pair.number(), KEY, &[b"first", b"the second", &[7; 1000]]);
    let received = b.receive(3);
    let expected: [&[u8]; 3] = [b"first", b"the second", &[7; 1000]];
    for (n, (done, _, bytes)) in received.iter().enumerate() {
        assert_eq!((done.id, done.source, &bytes[..]), (n as u64, a.pair.number(), expected[n]));
    }
    // Back, to the queue pair that the completion named.
    a.post(1);
    b.send(&b.address(&a.end, 0), received[0].0.source, KEY, &[b"back"]);
    assert_eq!(a.payloads(1), [b"back"]);
}

pub fn grh(a: &End, b: &End) {
    let (a, b, _) = sides(a, b);
    for traffic_class in [0, 0xb8, 0xb9, 0xbb, 3] {
        b.post(1);
        a.send(&a.address(&b.end, traffic_class), b.pair.number(), KEY, &[b"x"]);
        let grh = b.receive(1).remove(0).1;
        match (a.end.address, b.end.address) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                let ip = &grh[20..];
                assert_eq!((ip[0], ip[1]), (0x45, traffic_class), "{ip:?}");
                assert_eq!((&ip[12..16], &ip[16..20]), (&from.octets()[..], &to.octets()[..]), "{ip:?}");
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                assert_eq!(grh[0] >> 4, 6);
                assert_eq!(grh[0] << 4 | grh[1] >> 4, traffic_class, "{grh:?}");
                assert_eq!((&grh[8..24], &grh[24..]), (&from.octets()[..], &to.octets()[..]), "{grh:?}");
            }
            mixed => panic!("two families: {mixed:?}"),
        }
    }
}

pub fn longest(a: &End, b: &End) {
    let mtu = a.device.port().unwrap().mtu.min(b.device.port().unwrap().mtu) as usize;
    let (a, b, to) = sides(a, b);
    b.post(1);
    let bytes: Vec<u8> = (0..mtu).map(|n| n as u8).collect();
    a.send(&to, b.pair.number(), KEY, &[&bytes]);
    assert_eq!(b.payloads(1), [bytes]);
}

pub fn keys(a: &End, b: &End) {
    let (a, b, to) = sides(a, b);
    b.post(4);
    for wrong in [OTHER_KEY, 0, LARGEST_Q_KEY] {
        a.send(&to, b.pair.number(), wrong, &[b"wrong"]);
    }
    a.send(&to, b.pair.number(), KEY, &[b"right"]);
    assert_eq!(b.payloads(1), [b"right"]);
    b.pair.set_q_key(OTHER_KEY).unwrap();
    a.send(&to, b.pair.number(), KEY, &[b"the old key"]);
    a.send(&to, b.pair.number(), OTHER_KEY, &[b"the new key"]);
    assert_eq!(b.payloads(1), [b"the new key"]);
    assert!(!b.has_received());
}

pub fn unknown(a: &End, b: &End) {
    let (a, b, to) = sides(a, b);
    b.post(1);
    let gone = {
        let gone = Side::new(&b.end);
        gone.post(1);
        gone.pair.number()
    };
    for number in [gone, 0x00ff_fff0] {
        a.send(&to, number, KEY, &[b"nowhere"]);
    }
    a.send(&to, b.pair.number(), KEY, &[b"here"]);
    assert_eq!(b.payloads(1), [b"here"]);
}

pub fn unbuffered(a: &End, b: &End) {
    let (a, b, to) = sides(a, b);
    let witness = Side::new(&b.end);
    witness.post(1);
    a.send(&to, b.pair.number(), KEY, &[b"lost"]);
    // The devices keep the order of one sender's datagrams, so the lost one came before this.
    a.send(&to, witness.pair.number(), KEY, &[b"came"]);
    assert_eq!(witness.payloads(1), [b"came"]);
    b.post(1);
    a.send(&to, b.pair.number(), KEY, &[b"found"]);
    assert_eq!(b.payloads(1), [b"found"]);
}

pub fn told(a: &End, b: &End) {
    let (a, b, to) = sides(a, b);
    b.post(BUFFERS);
    // Three times the queue's depth: the places of sends that are not told come back.
    for _ in 0..3 {
        a.send(&to, b.pair.number(), KEY, &[b"x".as_slice(); BUFFERS]);
        b.receive(BUFFERS);
        b.post(BUFFERS);
    }
    assert_eq!(a.sends.poll(&mut [Completion::default(); 4]).unwrap(), 0);
}

pub fn shared(a: &End, b: &End) {
    let queue = CompletionQueue::new(&b.device, 4 * BUFFERS as u32).unwrap();
    let sender = Side::new(a);
    let pairs = [(); 3].map(|()| Side::with(b, queue.clone(), queue.clone()));
    let to = sender.address(b, 0);
    for side in &pairs {
        side.post(1);
    }
    for side in pairs.iter().rev() {
        sender.send(&to, side.pair.number(), KEY, &[b"x"]);
    }
    let numbers: Vec<u32> = take(&queue, 3).iter().map(|done| done.queue_pair).collect();
    assert_eq!(numbers, [2, 1, 0].map(|n: usize| pairs[n].pair.number()));
}

pub fn wakes(a: &End, b: &End) {
    let (a, b, to) = sides(a, b);
    b.post(4);
    assert!(!is_readable(&b.receives, Duration::ZERO));
    b.receives.arm().unwrap();
    assert!(!b.has_received() && !is_readable(&b.receives, Duration::from_millis(1)));
    a.send(&to, b.pair.number(), KEY, &[b"one"]);
    assert!(is_readable(&b.receives, PATIENCE), "an armed queue with a completion");
    b.receives.take_event();
    assert!(!is_readable(&b.receives, Duration::ZERO), "its events were taken");
    // Not armed any more: the next is no event.
    a.send(&to, b.pair.number(), KEY, &[b"two"]);
    assert_eq!(b.payloads(2), [b"one", b"two"]);
    assert!(!is_readable(&b.receives, Duration::ZERO), "it was not armed");
    b.receives.arm().unwrap();
    a.send(&to, b.pair.number(), KEY, &[b"three"]);
    assert!(is_readable(&b.receives, PATIENCE));
    b.receives.take_event();
    b.receives.take_event();
    assert_eq!(b.payloads(1), [b"three"]);
}

fn is_readable(queue: &CompletionQueue, patience: Duration) -> bool {
    let mut polled = [PollFd::from_borrowed_fd(queue.as_fd(), PollFlags::IN)];
    let patience =
        Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: i64::from(patience.subsec_nanos()) };
    poll(&mut polled, Some(&patience)).unwrap() > 0
}

pub fn flushed(a: &End, b: &End) {
    let (a, b, to) = sides(a, b);
    b.post(3);
    a.send(&to, b.pair.number(), KEY, &[b"before"]);
    assert_eq!(b.payloads(1), [b"before"]);
    b.pair.fail().unwrap();
    let flushed =
        |id| Completion { id, status: Status::Flushed, queue_pair: b.pair.number(), ..Completion::default() };
    assert_eq!(take(&b.receives, 2), [flushed(1), flushed(2)]);
    a.send(&to, b.pair.number(), KEY, &[b"after"]);
    let next = Side::new(&b.end);
    next.post(1);
    a.send(&to, next.pair.number(), KEY, &[b"next"]);
    assert_eq!(next.payloads(1), [b"next"]);
    assert!(!b.has_received());
    assert!(b.pair.set_q_key(OTHER_KEY).is_err(), "a key for a queue pair that failed");
}

pub fn privileged(a: &End, _: &End) {
    let side = Side::new(a);
    for key in [LARGEST_Q_KEY + 1, u32::MAX] {
        let depths = Depths { send: 1, receive: 1, pieces: 1 };
        let refused = QueuePair::new(&a.device, &side.sends, &side.receives, depths, key).unwrap_err();
        assert!(matches!(refused, Error::QKey(named) if named == key), "{refused}");
        assert!(matches!(side.pair.set_q_key(key), Err(Error::QKey(named)) if named == key));
    }
}
