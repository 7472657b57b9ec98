//! What a test has the fabric do: lose, delay, hold, forge; pause, bring down, take out.

use super::*;
use crate::Link;
use crate::simulated::{Datagram, Fate};

fn forged(to: &Side, from: &str, source: u32, bytes: &[u8]) -> Datagram {
    Datagram {
        from: from.parse().unwrap(),
        source,
        to: to.address,
        queue_pair: to.pair.number(),
        q_key: KEY,
        traffic_class: 0xb8,
        bytes: bytes.to_vec(),
    }
}

#[test]
fn the_named_datagram_is_lost() {
    let (fabric, a, b) = sides();
    fabric.lose(1);
    fabric.lose(2);
    for bytes in [b"0", b"1", b"2", b"3"] {
        a.send(&b, bytes);
    }
    assert_eq!(b.payloads(), [b"0", b"3"]);
    assert_eq!((fabric.fates().of(Fate::Lost), fabric.fates().of(Fate::Delivered)), (2, 2));
}

#[test]
fn a_delayed_datagram_comes_after_later_ones() {
    let (fabric, a, b) = sides();
    fabric.delay(0);
    a.send(&b, b"0");
    a.send(&b, b"1");
    assert_eq!((b.payloads(), fabric.held()), (vec![b"1".to_vec()], 1));
    assert_eq!(fabric.release(5), [Fate::Delivered]);
    assert_eq!(b.payloads(), [b"0"]);
}

#[test]
fn held_datagrams_come_as_they_are_released() {
    let (fabric, a, b) = sides();
    fabric.hold(true);
    for bytes in [b"0", b"1", b"2"] {
        a.send(&b, bytes);
    }
    assert!(b.payloads().is_empty());
    assert_eq!(fabric.release(2), [Fate::Delivered; 2]);
    assert_eq!(b.payloads(), [b"0", b"1"]);
    fabric.hold(false);
    a.send(&b, b"3");
    drop(b.pair);
    assert_eq!(fabric.release(1), [Fate::UnknownQueuePair], "a queue pair may go meanwhile");
}

#[test]
fn a_paused_device_reads_the_memory_when_it_goes_on() {
    let (_, a, b) = sides();
    a.orders.pause();
    a.post_send(&b, 0, b"before", true).unwrap();
    assert_eq!((done(&a.sends), a.orders.posted(a.pair.number())), (vec![], Some((1, 0))));
    // SAFETY: within the region. A user of a device may not do this: the test shows that it would be seen.
    unsafe { a.region.start().copy_from_nonoverlapping(b"behind".as_ptr(), 6) };
    a.orders.resume();
    assert_eq!((done(&a.sends), b.payloads()), (vec![(0, Status::Success)], vec![b"behind".to_vec()]));
    a.send(&b, b"at once");
}

#[test]
fn queue_pairs_of_a_paused_device_take_turns() {
    let (_, a, b) = sides();
    a.orders.pause();
    let other = QueuePair::new(&a.device, &a.sends, &a.receives, DEPTHS, KEY).unwrap();
    let to = a.to(&b);
    for id in 0..2 {
        a.post_send(&b, id, b"a", true).unwrap();
        let send = Send {
            id: 10 + id as u64,
            pieces: &[Piece { region: &a.region, from: 0, len: 1 }],
            is_signalled: true,
            to: &to,
            queue_pair: b.pair.number(),
            q_key: KEY,
        };
        // SAFETY: the test does not write there meanwhile.
        unsafe { other.post_send(&[send]) }.unwrap();
    }
    assert_eq!(a.orders.run(3), 3);
    let ids: Vec<u64> = taken(&a.sends).iter().map(|completion| completion.id).collect();
    assert_eq!(ids, [0, 10, 1]);
    assert_eq!(a.orders.run(3), 1);
}

#[test]
fn a_forged_datagram_has_the_sender_that_the_test_names() {
    let (fabric, a, b) = sides();
    let sent = a.orders.counters();
    assert_eq!(fabric.forge(forged(&b, "198.51.100.9", 0xab_cdef, b"forged")), Fate::Delivered);
    let completion = taken(&b.receives)[0];
    assert_eq!((completion.source, completion.bytes), (0xab_cdef, 46));
    let wrong_key = Datagram { q_key: KEY + 1, ..forged(&b, "192.0.2.1", 17, b"") };
    let unknown = Datagram { queue_pair: 0xff_ffff, ..forged(&b, "192.0.2.1", 17, b"") };
    let nowhere = Datagram { to: "203.0.113.1".parse().unwrap(), ..forged(&b, "192.0.2.1", 17, b"") };
    let all = [wrong_key, unknown, nowhere].map(|datagram| fabric.forge(datagram));
    assert_eq!(all, [Fate::WrongKey, Fate::UnknownQueuePair, Fate::NoDevice]);
    assert_eq!(b.orders.fates().of(Fate::NoDevice), 0, "counted at the device where it arrived");
    assert!(taken(&b.receives).is_empty());
    assert_eq!(a.orders.counters(), sent);
}

#[test]
fn a_port_that_is_down_loses_datagrams_of_both_directions() {
    let (fabric, a, b) = sides();
    a.post_receive(0).unwrap();
    b.orders.set_active(false);
    assert!(!b.device.port().unwrap().is_active && a.device.port().unwrap().is_active);
    a.send(&b, b"in");
    b.send(&a, b"out");
    assert_eq!((fabric.fates().of(Fate::Down), b.orders.fates().of(Fate::Down)), (2, 1));
    b.orders.set_active(true);
    a.send(&b, b"up");
    assert_eq!((b.payloads(), a.payloads()), (vec![b"up".to_vec()], vec![]));
}

#[test]
fn the_port_is_as_the_test_says() {
    let (fabric, a, b) = sides();
    a.orders.set_mtu(1024);
    a.orders.set_link(Link::InfiniBand);
    let port = a.device.port().unwrap();
    assert_eq!((port.mtu, port.link, a.device.name()), (1024, Link::InfiniBand, "rxe0"));
    a.orders.set_mtu(4);
    a.send(&b, b"12345");
    a.send(&b, b"1234");
    assert_eq!((fabric.fates().of(Fate::TooLong), b.payloads()), (1, vec![b"1234".to_vec()]));
    // A receiver does not compare: it has to have room.
    a.orders.set_mtu(4096);
    b.orders.set_mtu(4);
    a.send(&b, b"12345");
    assert_eq!(b.payloads(), [b"12345"]);
}

#[test]
fn each_address_has_a_gid_of_both_versions() {
    let (_, a, b) = sides();
    let gids = a.device.gids().unwrap();
    let facts: Vec<_> = gids.iter().map(|gid| (gid.index, gid.address, gid.is_roce_v2)).collect();
    assert_eq!(facts, [(0, a.address, false), (1, a.address, true)]);
    for wrong in [0, 2, 255] {
        assert_eq!(number(Address::new(&a.device, wrong, b.address, 0)), libc::EINVAL, "GID {wrong}");
    }
    assert_eq!(number(Address::new(&a.device, 1, "fd00::1".parse().unwrap(), 0)), libc::EINVAL);
    assert_eq!(number(Address::new(&a.device, 1, "203.0.113.1".parse().unwrap(), 0)), libc::EHOSTUNREACH);
    a.orders.set_addresses(&["198.51.100.1".parse().unwrap()]);
    assert_eq!(a.device.gids().unwrap()[1].address, "198.51.100.1".parse::<IpAddr>().unwrap());
    // An IPv6 or a mapped table never overflows its 8-bit indices.
    a.orders.set_addresses(&[a.address; 300]);
    assert_eq!(a.device.gids().unwrap().len(), 256);
}

#[test]
fn threads_share_a_fabric() {
    let fabric = Fabric::new();
    let sides = ["192.0.2.1", "192.0.2.2"].map(|address| Side::new(&fabric, address));
    let all = 2_000_u32;
    std::thread::scope(|scope| {
        for (me, other) in [(&sides[0], &sides[1]), (&sides[1], &sides[0])] {
            scope.spawn(move || {
                (0..4).for_each(|n| me.post_receive(n).unwrap());
                let mut last = None;
                for n in 0..all {
                    me.send(other, &n.to_be_bytes());
                    for completion in taken(&me.receives) {
                        let from = (BUFFERS + completion.id as usize) * BUFFER as usize + crate::GRH;
                        // SAFETY: the completion gave the buffer back.
                        let number = unsafe { me.region.start().add(from).cast::<[u8; 4]>().read() };
                        let number = Some(u32::from_be_bytes(number));
                        assert!(last < number, "{number:?} after {last:?}");
                        last = number;
                        me.post_receive(completion.id as usize).unwrap();
                    }
                }
            });
        }
    });
    let fates = fabric.fates();
    assert_eq!(fates.of(Fate::Delivered) + fates.of(Fate::NoBuffer), 2 * u64::from(all));
}
