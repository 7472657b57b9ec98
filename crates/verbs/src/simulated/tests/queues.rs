//! Places in queues: what a user that does not take completions runs into.

use super::*;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::AsFd;

fn is_readable(queue: &CompletionQueue) -> bool {
    let mut polled = [PollFd::from_borrowed_fd(queue.as_fd(), PollFlags::IN)];
    poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() > 0
}

#[test]
fn sends_that_are_not_told_keep_their_places_until_a_later_one_is_taken() {
    let (_, a, b) = sides();
    for n in 0..3 {
        a.post_send(&b, n, b"x", false).unwrap();
    }
    assert_eq!(done(&a.sends), []);
    a.post_send(&b, 3, b"x", true).unwrap();
    let (taken, error) = a.post_send(&b, 4, b"x", true).unwrap_err();
    assert_eq!((taken, number::<()>(Err(error))), (0, libc::ENOMEM), "the completion is not taken yet");
    assert_eq!(done(&a.sends), [(3, Status::Success)]);
    for n in 0..4 {
        a.post_send(&b, n, b"x", false).unwrap();
    }
    assert!(a.post_send(&b, 4, b"x", true).is_err(), "a queue of sends that are not told is full for good");
}

#[test]
fn a_list_that_does_not_fit_is_posted_in_part() {
    let (_, a, b) = sides();
    let to = a.to(&b);
    let pieces = [Piece { region: &a.region, from: 0, len: 1 }];
    let send = |id| Send {
        id,
        pieces: &pieces,
        is_signalled: true,
        to: &to,
        queue_pair: b.pair.number(),
        q_key: KEY,
    };
    let sends: Vec<_> = (0..6).map(send).collect();
    // SAFETY: the test does not touch these bytes.
    assert_eq!(unsafe { a.pair.post_send(&sends) }.unwrap_err().0, 4);
    assert_eq!(done(&a.sends).len(), 4);
    assert_eq!((a.orders.counters().doorbells, a.orders.counters().datagrams), (1, 4));
    assert_eq!(b.post_receive(4).unwrap_err().0, 0, "four receives wait for their owner");
    assert_eq!(b.payloads().len(), 4);
    b.post_receive(4).unwrap();
}

#[test]
fn a_completion_queue_that_is_full_breaks_with_its_queue_pairs() {
    let fabric = Fabric::new();
    let (a, b) = (Side::new(&fabric, "192.0.2.1"), Side::with(&fabric, "192.0.2.2", [64, 2]));
    (0..4).for_each(|n| b.post_receive(n).unwrap());
    b.post_send(&a, 0, b"x", true).unwrap();
    (0..2).for_each(|_| a.send(&b, b"x"));
    assert_eq!(done(&b.receives).len(), 2);
    b.post_receive(4).unwrap();
    (0..2).for_each(|_| a.send(&b, b"x"));
    assert_eq!(b.orders.posted(b.pair.number()), Some((0, 1)), "two places, two completions");
    a.send(&b, b"one too many");
    assert_eq!(number(b.receives.poll(&mut [Completion::default()])), libc::EOVERFLOW);
    assert_eq!(number(b.receives.arm()), libc::EOVERFLOW);
    assert_eq!(number(b.receives.poll(&mut [])), libc::EOVERFLOW, "for good");
    // The other completion queue is of use: what its queue pair sends is flushed.
    b.post_send(&a, 1, b"x", false).unwrap();
    assert_eq!(done(&b.sends), [(0, Status::Success), (1, Status::Flushed)]);
    a.send(&b, b"to a queue pair that failed");
    assert_eq!(b.orders.fates().of(simulated::Fate::Failed), 1);
}

#[test]
fn a_completion_that_waited_is_no_event() {
    let (_, a, b) = sides();
    a.send(&b, b"x");
    b.receives.arm().unwrap();
    assert!(!is_readable(&b.receives), "it came before");
    a.send(&b, b"y");
    a.send(&b, b"z");
    assert!(is_readable(&b.receives));
    b.receives.take_event();
    assert!(!is_readable(&b.receives), "armed once, one event");
    assert_eq!(b.payloads().len(), 3);
    b.receives.arm().unwrap();
    b.pair.fail().unwrap();
    assert!(is_readable(&b.receives), "what is flushed completes, too");
}

#[test]
fn sizes_that_no_device_has_are_refused() {
    let (_, a, _) = sides();
    for entries in [0, u32::MAX] {
        assert_eq!(number(CompletionQueue::new(&a.device, entries)), libc::EINVAL);
        let depths = Depths { send: entries, ..DEPTHS };
        assert_eq!(number(QueuePair::new(&a.device, &a.sends, &a.receives, depths, KEY)), libc::EINVAL);
    }
    assert_eq!(number(Region::new(&a.device, usize::MAX)), libc::ENOMEM);
}

#[test]
fn parts_of_two_devices_do_not_fit_together() {
    let (_, a, b) = sides();
    assert_eq!(number(QueuePair::new(&a.device, &a.sends, &b.receives, DEPTHS, KEY)), libc::EINVAL);
    let (_, elsewhere, _) = sides();
    let mixed = QueuePair::new(&a.device, &elsewhere.sends, &elsewhere.receives, DEPTHS, KEY);
    assert_eq!(number(mixed), libc::EINVAL, "a device of the same place in another fabric");
}

#[test]
fn parts_may_be_dropped_in_any_order() {
    let (fabric, a, b) = sides();
    let number = b.pair.number();
    let Side { orders, device, region, sends, receives, pair, .. } = b;
    drop((device, sends, receives, region));
    drop(orders);
    let forged = simulated::Datagram {
        from: a.address,
        source: 1,
        to: "192.0.2.2".parse().unwrap(),
        queue_pair: number,
        q_key: KEY,
        traffic_class: 0,
        bytes: vec![1],
    };
    assert_eq!(fabric.forge(forged.clone()), simulated::Fate::BadBuffer, "its memory is gone");
    drop(pair);
    assert_eq!(fabric.forge(forged), simulated::Fate::UnknownQueuePair);
}

#[test]
fn completions_of_a_queue_pair_that_is_gone_stay() {
    let (_, a, b) = sides();
    a.send(&b, b"x");
    let old = b.pair.number();
    drop(b.pair);
    let next = QueuePair::new(&b.device, &b.sends, &b.receives, DEPTHS, KEY).unwrap();
    assert_ne!(next.number(), old);
    assert_eq!(taken(&b.receives)[0].queue_pair, old);
}
