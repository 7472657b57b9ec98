//! Errors: of a request, of a queue pair, of a device.

use super::*;
use crate::simulated::Fate;
use std::sync::atomic::Ordering;

/// The memory of a send or a receive is gone (IBV_WC_LOC_PROT_ERR).
const PROTECTION: Status = Status::Failed(4);

#[test]
fn a_send_that_fails_takes_its_queue_pair_along() {
    let (_, a, b) = sides();
    a.post_receive(7).unwrap();
    a.orders.pause();
    assert!(a.orders.fail_next_send(a.pair.number(), Status::Failed(12)));
    assert!(!a.orders.fail_next_send(1, Status::Failed(12)), "no such queue pair");
    for n in 0..3 {
        a.post_send(&b, n, b"x", n == 2).unwrap();
    }
    a.orders.resume();
    // Those that were not to be told are, once there is no success behind them.
    let failed = [(0, Status::Failed(12)), (1, Status::Flushed), (2, Status::Flushed)];
    assert_eq!((done(&a.sends), done(&a.receives)), (failed.to_vec(), vec![(7, Status::Flushed)]));
    a.post_send(&b, 3, b"x", false).unwrap();
    a.post_receive(6).unwrap();
    assert_eq!((done(&a.sends), done(&a.receives)), (vec![(3, Status::Flushed)], vec![(6, Status::Flushed)]));
    assert_eq!(number(a.pair.set_q_key(KEY + 1)), libc::EINVAL);
    assert!(b.payloads().is_empty());
}

#[test]
fn a_failure_gives_the_places_of_earlier_sends_back() {
    let (_, a, b) = sides();
    (0..2).for_each(|n| a.post_send(&b, n, b"x", false).unwrap());
    a.orders.fail_next_send(a.pair.number(), Status::Failed(5));
    a.post_send(&b, 2, b"x", false).unwrap();
    assert_eq!(done(&a.sends), [(2, Status::Failed(5))]);
    (0..4).for_each(|n| a.post_send(&b, n, b"x", false).unwrap());
    assert_eq!(done(&a.sends).len(), 4);
}

#[test]
fn a_queue_pair_that_breaks_is_flushed() {
    let (_, a, b) = sides();
    assert!(b.orders.break_queue_pair(b.pair.number()));
    assert!(!b.orders.break_queue_pair(1));
    assert_eq!(done(&b.receives), (0..4).map(|id| (id, Status::Flushed)).collect::<Vec<_>>());
    a.send(&b, b"x");
    assert_eq!(b.orders.fates().of(Fate::Failed), 1);
    b.pair.fail().unwrap();
    assert!(done(&b.receives).is_empty(), "once");
}

#[test]
fn a_buffer_that_is_too_short_fails_the_receive() {
    let (_, a, b) = sides();
    a.send(&b, &[1; BUFFER as usize - crate::GRH]);
    assert_eq!(b.payloads()[0].len(), BUFFER as usize - crate::GRH);
    a.send(&b, &[1; BUFFER as usize - crate::GRH + 1]);
    let mut expected = vec![(1, Status::Failed(1))];
    expected.extend([2, 3].map(|id| (id, Status::Flushed)));
    assert_eq!(done(&b.receives), expected);
}

#[test]
fn bytes_that_are_not_the_devices_are_refused() {
    let (_, a, b) = sides();
    let elsewhere = Side::new(&Fabric::new(), "192.0.2.1");
    let (to, number) = (a.to(&b), b.pair.number());
    let (one, end, far) = (Piece { region: &a.region, from: 0, len: 1 }, a.region.len(), b.to(&a));
    for (what, bad, to_bad, q_key) in [
        ("beyond the end", Piece { from: end, ..one }, &to, KEY),
        ("overflowing", Piece { from: usize::MAX, ..one }, &to, KEY),
        ("of another device", Piece { region: &b.region, ..one }, &to, KEY),
        ("of another fabric", Piece { region: &elsewhere.region, ..one }, &to, KEY),
        ("without bytes", Piece { len: 0, ..one }, &to, KEY),
        ("an address of another device", one, &far, KEY),
        ("a privileged key", one, &to, 1 << 31),
    ] {
        let (good, bad) = ([one], [one, bad]);
        let send =
            |pieces, to, q_key| Send { id: 9, pieces, is_signalled: true, to, queue_pair: number, q_key };
        let (good, bad) = (send(&good, &to, KEY), send(&bad, to_bad, q_key));
        // SAFETY: the test writes to no memory.
        let (taken, error) = unsafe { a.pair.post_send(&[good, bad, good]) }.unwrap_err();
        assert_eq!((taken, done(&a.sends)), (1, vec![(9, Status::Success)]), "{what}");
        assert!(matches!(error, Error::Call { .. } | Error::QKey(_)), "{what}: {error}");
    }
    for (region, from) in [(&a.region, end - BUFFER as usize + 1), (&b.region, 0), (&elsewhere.region, 0)] {
        let pieces = &[Piece { region, from, len: BUFFER }];
        // SAFETY: the test reads no memory.
        let refused = unsafe { a.pair.post_receive(&[Receive { id: 8, pieces }]) };
        assert_eq!(refused.unwrap_err().0, 0);
    }
}

#[test]
fn memory_that_is_gone_is_neither_read_nor_written() {
    let (_, mut a, mut b) = sides();
    let new = |side: &Side| Region::new(&side.device, 1).unwrap();
    b.region = new(&b);
    a.post_send(&b, 0, b"x", true).unwrap();
    assert_eq!((done(&a.sends), done(&b.receives)[0]), (vec![(0, Status::Success)], (0, PROTECTION)));
    a.orders.pause();
    a.post_send(&b, 0, b"x", false).unwrap();
    a.region = new(&a);
    a.orders.resume();
    assert_eq!(done(&a.sends), [(0, PROTECTION)]);
}

#[test]
fn a_device_that_is_taken_out_answers_no_call() {
    let (fabric, a, b) = sides();
    let to = b.to(&a);
    b.orders.unplug();
    assert_eq!(number(b.device.port()), libc::EIO);
    assert_eq!(number(b.device.gids()), libc::EIO);
    assert_eq!(number(b.receives.poll(&mut [Completion::default()])), libc::EIO);
    assert_eq!(number(b.receives.arm()), libc::EIO);
    assert_eq!(number(b.pair.set_q_key(1)), libc::EIO);
    assert_eq!(number(b.pair.fail()), libc::EIO);
    assert_eq!(number(Region::new(&b.device, 1)), libc::EIO);
    assert_eq!(
        number(b.post_by(&to, a.pair.number(), (0, b"x"), true).map_err(|(_, error)| error)),
        libc::EIO
    );
    assert_eq!(number(b.post_receive(0).map_err(|(_, error)| error)), libc::EIO);
    assert_eq!(number(Address::new(&b.device, 1, a.address, 0)), libc::EIO);
    a.send(&b, b"x");
    assert_eq!(fabric.fates().of(Fate::NoDevice), 1);
}

#[test]
fn the_next_call_of_a_name_is_refused() {
    let (_, a, b) = sides();
    a.orders.refuse("ibv_create_qp", libc::ENOMEM);
    a.orders.refuse("ibv_create_ah", libc::ETIMEDOUT);
    let pair = || QueuePair::new(&a.device, &a.sends, &a.receives, DEPTHS, KEY);
    assert_eq!(number(pair()), libc::ENOMEM);
    assert_eq!(number(Address::new(&a.device, 1, b.address, 0)), libc::ETIMEDOUT);
    pair().unwrap();
    a.to(&b);
}

#[test]
fn a_library_has_the_devices_that_it_was_given() {
    let (_, a, _) = sides();
    let library = crate::Library::simulated(std::slice::from_ref(&a.orders));
    assert_eq!(library.devices().unwrap(), ["rxe0"]);
    assert_eq!(library.open("rxe0").unwrap().gids().unwrap().len(), 2);
    let refused = library.open("mlx5_0").unwrap_err().to_string();
    assert_eq!(refused, "there is no RDMA device mlx5_0; there are: rxe0");
    a.orders.refuse("ibv_open_device", libc::EACCES);
    assert_eq!(number(library.open("rxe0")), libc::EACCES);
}

#[test]
fn a_queue_pair_that_is_not_destroyed_says_so_and_receives_on() {
    let (_, a, b) = sides();
    let (to, number) = (a.to(&b), b.pair.number());
    let [undestroyed, destroyed] = [&b, &a].map(|side| side.pair.undestroyed());
    b.orders.refuse("ibv_destroy_qp", libc::EBUSY);
    let Side { pair, orders, sends, receives, region: _memory, .. } = b;
    drop((pair, sends, receives));
    assert!(undestroyed.load(Ordering::Acquire));
    a.post_by(&to, number, (0, b"x"), true).unwrap();
    assert_eq!((orders.fates().of(Fate::Delivered), orders.posted(number)), (1, Some((0, 3))));
    drop(a.pair);
    assert!(!destroyed.load(Ordering::Acquire));
}
