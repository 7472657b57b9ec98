//! Both halves over a fabric in memory.

use super::outgoing::{Fate, STALL};
use super::testing::{Side, sides, tables};
use super::*;
use crate::clock::test_clock;
use crate::fdb::{PeerIndex, SegmentIndex};
use proptest::prelude::*;
use std::sync::Arc;
use tidegate_contract::Mac;
use tidegate_evidence::DropReason;
use tidegate_uplink::rdma::{Checksum, Header, header};
use tidegate_verbs::Status;
use tidegate_verbs::simulated::{Datagram, Fabric, Fate as Arrival};

const SEGMENT: SegmentIndex = SegmentIndex(3);
const VNI: u32 = 4242;
const A: Mac = Mac([2, 0, 0, 0, 0, 1]);
const B: Mac = Mac([2, 0, 0, 0, 0, 2]);

/// A lane from one host to another, whose vNICs are the other's members.
struct Scene {
    sides: [Side; 2],
    tables: [Arc<Tables>; 2],
    out: Outgoing,
    incoming: Incoming,
}

fn scene(v6: bool) -> Scene {
    // On a slow machine a paused device stalls no sooner.
    test_clock::set_time(1_000_000);
    let sides = sides(&Fabric::new(), v6);
    let peers = [5, 6].map(|peer| PeerIndex::new(peer).unwrap());
    let tables = tables(&sides, (SEGMENT, VNI), [A, B], peers);
    let (mut out, mut incoming) = (Outgoing::new(&sides[0].setup), Incoming::new(&sides[1].setup));
    out.set_tables(tables[0].clone());
    incoming.set_tables(tables[1].clone());
    Scene { sides, tables, out, incoming }
}

impl Scene {
    /// Gives a frame of `len` bytes, which end with its number, a send buffer, and returns whether there was one.
    fn post(&mut self, number: u16, len: usize, is_urgent: bool) -> bool {
        self.post_from(0, number, len, is_urgent)
    }

    /// The same, from the vNIC of a port.
    fn post_from(&mut self, port: u16, number: u16, len: usize, is_urgent: bool) -> bool {
        let way = self.out.way(port, SEGMENT, A, B).unwrap();
        let (mut destined, next) =
            self.out.destined(port, way, if is_urgent { 46 << 2 } else { 0 }, is_urgent);
        let Some(room) = destined.room(header::LEN + len) else { return false };
        let (before, frame) = room.split_at_mut(header::LEN);
        before.copy_from_slice(&Header { sequence: *next, checksum: Checksum::Complete }.write());
        *next += 1;
        frame.fill(0);
        frame[..6].copy_from_slice(&B.0);
        frame[6..12].copy_from_slice(&A.0);
        frame[len - 2..].copy_from_slice(&number.to_be_bytes());
        true
    }

    /// Takes the numbers of all frames that arrived, and the reasons of refusals.
    fn arrived(&mut self) -> Vec<u16> {
        let mut numbers = vec![];
        while self.incoming.look() {
            while let Some(arrived) = self.incoming.take_next() {
                let arrived = arrived.unwrap();
                assert_eq!((arrived.peer.get(), arrived.segment), (5, SEGMENT));
                numbers.push(u16::from_be_bytes(*arrived.bytes.head().last_chunk().unwrap()));
            }
        }
        numbers
    }

    /// Returns a datagram of so many bytes from the first host to a queue pair of the second.
    fn datagram(&self, queue_pair: u32, len: usize) -> Datagram {
        let [from, to] = [0, 1].map(|at| self.sides[at].address);
        let source = self.tables[0].pairs()[0].number();
        let q_key = SEGMENT.0.into();
        Datagram { from, source, to, queue_pair, q_key, traffic_class: 0, bytes: vec![0; len] }
    }

    fn counters(&self, side: usize) -> &Counters {
        &self.sides[side].setup.counters
    }
}

#[test]
fn frames_leave_by_one_write_and_arrive_in_order() {
    for v6 in [false, true] {
        let mut scene = scene(v6);
        for round in 0..20 {
            let numbers: Vec<u16> = (0..50).map(|n| round * 50 + n).collect();
            assert!(numbers.iter().all(|number| scene.post(*number, 60, false)));
            scene.out.flush();
            assert_eq!(scene.sides[0].device.counters().doorbells, u64::from(round) + 1);
            assert_eq!(scene.arrived(), numbers);
        }
        assert_eq!(scene.out.take_fate(), Fate { sent: 1000, bytes: 60_000, unsent: 0 });
        let (out, incoming) = (scene.counters(0), scene.counters(1));
        assert_eq!((out.sent.get(), out.copied_out.get()), (1000, 92_000));
        assert_eq!(
            (incoming.received.get(), incoming.received_bytes.get(), incoming.gaps.get()),
            (1000, 60_000, 0)
        );
    }
}

#[test]
fn frames_with_deadlines_leave_first() {
    let mut scene = scene(false);
    for number in 0..6 {
        assert!(scene.post(number, 60, number % 2 == 1));
    }
    scene.out.flush();
    assert_eq!(scene.arrived(), [1, 3, 5, 0, 2, 4]);
}

#[test]
fn best_effort_fills_a_part_of_the_device_and_a_device_that_stalls_is_no_way() {
    let mut scene = scene(false);
    scene.sides[0].device.pause();
    let len = 4000;
    let others = (0..).take_while(|number| scene.post(*number, len, false)).count();
    assert_eq!(others, pool::OTHERS / (len + header::LEN));
    assert!(scene.out.has_unsent() && !scene.out.is_stalled());
    assert!(scene.post(1000, len, true), "one with a deadline finds room");
    scene.out.flush();
    assert_eq!(scene.counters(0).no_buffers.get(), 1);
    test_clock::set_time(1_000_001 + STALL);
    assert!(scene.out.is_stalled() && scene.out.has_unsent());
    assert_eq!(scene.out.way(0, SEGMENT, A, B), None);
    // The device goes on: a quarter of the room has to be free.
    scene.sides[0].device.run(others / 2 + 2);
    scene.out.flush();
    assert!(scene.post(1002, len, false) && !scene.out.is_stalled());
    scene.sides[0].device.resume();
    scene.out.flush();
    scene.out.flush();
    assert!(!scene.out.has_unsent());
    assert_eq!(scene.arrived().len(), others + 2);
}

/// As long as frames come faster than the device sends, each write to it has 16 of them.
#[test]
fn at_saturation_a_write_has_many_frames() {
    let mut scene = scene(false);
    scene.sides[0].device.pause();
    let (mut sent, mut received) = (0, 0);
    for len in [100, 1400, 4000] {
        let before = scene.sides[0].device.counters().doorbells;
        let began = sent;
        for _ in 0..2000 {
            while sent < u16::MAX && scene.post(sent, len, false) {
                sent += 1;
            }
            scene.out.flush();
            scene.sides[0].device.run(3);
            received += scene.arrived().len();
        }
        let writes = scene.sides[0].device.counters().doorbells - before;
        assert!(u64::from(sent - began) >= 16 * writes, "{} frames by {writes} writes", sent - began);
        while scene.sides[0].device.run(100) > 0 {
            received += scene.arrived().len();
        }
        scene.out.flush();
    }
    assert_eq!(received, usize::from(sent));
}

/// With several queue pairs that send, the 16 frames are of all of them together: each has a write of its own.
#[test]
fn at_saturation_a_turn_has_many_frames_of_all_queue_pairs() {
    for (count, len) in [2, 4, 8, 16].into_iter().flat_map(|count| [100, 1400, 4000].map(|len| (count, len)))
    {
        let mut scene = scene(false);
        scene.sides[0].device.pause();
        let pairs = (0..count).map(|port| scene.sides[0].pair(port, (SEGMENT, VNI), A)).collect();
        let members = scene.tables[0].members().cloned().collect();
        scene.tables[0] = Arc::new(Tables::new(pairs, members));
        scene.out.set_tables(scene.tables[0].clone());
        let (mut sent, mut turns) = (0, 0);
        for _ in 0..2000 {
            let before = sent;
            while scene.post_from(sent % count, sent, len, false) {
                sent += 1;
            }
            turns += u64::from(sent > before);
            scene.out.flush();
            scene.sides[0].device.run(3);
        }
        assert!(u64::from(sent) >= 16 * turns, "{sent} frames in {turns} turns");
        let writes = scene.sides[0].device.counters().doorbells;
        let per_write = f64::from(sent) / writes as f64;
        println!("{count} queue pairs, {len} B: {per_write:.1} frames a write");
    }
}

#[test]
fn a_queue_pair_that_fails_is_no_way_until_it_is_replaced() {
    let mut scene = scene(false);
    let number = scene.tables[0].pairs()[0].number();
    assert!(scene.sides[0].device.fail_next_send(number, Status::Failed(2)));
    assert!((0..40).all(|number| scene.post(number, 60, false)));
    scene.out.flush();
    scene.out.flush();
    assert_eq!(scene.out.take_fate(), Fate { sent: 40, bytes: 2400, unsent: 40 });
    assert!(scene.tables[0].pairs()[0].is_failed());
    assert_eq!(scene.counters(0).failed_pairs.get(), 1);
    assert_eq!(scene.out.way(0, SEGMENT, A, B), None);
    // Anew.
    let pair = scene.sides[0].pair(0, (SEGMENT, VNI), A);
    let member = scene.tables[0].member(SEGMENT, B).unwrap().clone();
    let new = Arc::new(Tables::new(vec![pair.clone()], vec![member]));
    let old = scene.out.set_tables(new.clone());
    scene.tables[0] = new.clone();
    assert_eq!(Retiring::begin(old, &new, &scene.sides[0].setup.counters, 0).look(0), Retired::Yes);
    let peer = PeerIndex::new(5).unwrap();
    let member = scene.sides[1].member(&scene.sides[0], &pair, peer);
    let pairs = scene.tables[1].pairs().to_vec();
    scene.incoming.set_tables(Arc::new(Tables::new(pairs, vec![member])));
    assert!(scene.post(7, 60, false));
    scene.out.flush();
    assert_eq!(scene.arrived(), [7]);
}

#[test]
fn a_receiving_queue_pair_that_fails_is_told() {
    let mut scene = scene(false);
    let number = scene.tables[1].pairs()[0].number();
    scene.sides[1].device.break_queue_pair(number);
    assert!(scene.arrived().is_empty());
    assert!(scene.tables[1].pairs()[0].is_failed());
    assert_eq!((scene.counters(1).failed_pairs.get(), scene.counters(1).malformed.get()), (1, 0));
}

/// The sender's port may have a larger MTU, and a stranger heeds none.
#[test]
fn a_datagram_up_to_the_largest_mtu_has_room_whatever_the_ports_mtu_is() {
    let mut scene = scene(false);
    scene.sides[1].device.set_mtu(1024);
    let setup = Setup::new(&scene.sides[1].setup.device, scene.sides[1].setup.gid).unwrap();
    let pair = setup.pair(0, (SEGMENT, VNI), B, SEGMENT.0.into()).unwrap();
    scene.incoming = Incoming::new(&setup);
    scene.incoming.set_tables(Arc::new(Tables::new(vec![pair.clone()], vec![])));
    let datagram = scene.datagram(pair.number(), 4096);
    assert_eq!(scene.sides[1].fabric.forge(datagram), Arrival::Delivered);
    assert!(scene.incoming.look() && !pair.is_failed());
}

/// Up to the longest that an IP packet holds: with BTH, DETH and ICRC behind its UDP header.
#[test]
fn a_datagram_that_is_longer_than_its_buffer_is_refused_and_costs_nothing() {
    let mut scene = scene(false);
    let number = scene.tables[1].pairs()[0].number();
    for (n, len) in [4121, 5000, 9000, 65_507 - 12 - 8 - 4].into_iter().enumerate() {
        assert_eq!(scene.sides[1].fabric.forge(scene.datagram(number, len)), Arrival::Delivered);
        assert!(scene.incoming.look());
        let refused = scene.incoming.take_next().unwrap();
        assert_eq!(refused.err(), Some(DropReason::Malformed), "{len} bytes");
        assert!(scene.incoming.take_next().is_none());
        assert_eq!(scene.counters(1).malformed.get(), n as u64 + 1);
    }
    assert!(!scene.tables[1].pairs()[0].is_failed());
    assert_eq!(scene.sides[1].device.posted(number).unwrap().1, setup::RECEIVES as usize);
    assert!(scene.post(1, 4000, false));
    scene.out.flush();
    assert_eq!(scene.arrived(), [1]);
}

/// The device says of a receive that failed which one it was, and no more.
#[test]
fn a_datagram_that_is_longer_than_its_buffer_fails_the_queue_pair_of_a_device_without_pieces() {
    let mut scene = scene(false);
    scene.sides[1].device.set_pieces(1);
    let setup = Setup::new(&scene.sides[1].setup.device, scene.sides[1].setup.gid).unwrap();
    let pair = setup.pair(0, (SEGMENT, VNI), B, SEGMENT.0.into()).unwrap();
    scene.incoming = Incoming::new(&setup);
    scene.sides[1].setup = setup;
    scene.tables[1] = Arc::new(Tables::new(vec![pair], vec![]));
    scene.incoming.set_tables(scene.tables[1].clone());
    let datagram = scene.datagram(scene.tables[1].pairs()[0].number(), 5000);
    assert_eq!(scene.sides[1].fabric.forge(datagram), Arrival::BadBuffer);
    assert!(scene.arrived().is_empty());
    assert!(scene.tables[1].pairs()[0].is_failed());
    assert_eq!((scene.counters(1).failed_pairs.get(), scene.counters(1).malformed.get()), (1, 0));
}

/// Datagrams may come to a new queue pair, from a peer or a stranger, before its tables are in force.
#[test]
fn a_new_queue_pair_loses_no_buffer_before_its_tables_are_in_force() {
    let mut scene = scene(false);
    let pair = scene.sides[1].pair(0, (SEGMENT, VNI), B);
    let datagram = scene.datagram(pair.number(), 100);
    for _ in 0..2 * setup::RECEIVES {
        scene.sides[1].fabric.forge(datagram.clone());
    }
    assert!(scene.arrived().is_empty());
    let members = scene.tables[1].members().cloned().collect();
    scene.incoming.set_tables(Arc::new(Tables::new(vec![pair.clone()], members)));
    let posted = |scene: &Scene| scene.sides[1].device.posted(pair.number()).unwrap().1;
    assert_eq!(posted(&scene), setup::RECEIVES as usize);
    assert_eq!(scene.sides[1].fabric.forge(datagram), Arrival::Delivered);
    while scene.incoming.look() {
        while scene.incoming.take_next().is_some() {}
    }
    assert_eq!(posted(&scene), setup::RECEIVES as usize);
}

#[test]
fn a_device_that_is_gone_fails_all_and_is_told() {
    let mut scene = scene(false);
    assert!(scene.post(1, 60, false));
    scene.sides[0].device.unplug();
    scene.out.flush();
    scene.sides[1].device.unplug();
    assert!(!scene.incoming.look() && scene.incoming.take_next().is_none());
    assert!(scene.tables.iter().all(|tables| tables.pairs()[0].is_failed()));
    assert_eq!((scene.counters(0).unsent.get(), scene.counters(1).broken.get()), (1, 1));
}

#[test]
fn replaced_tables_wait_for_what_was_sent_by_them() {
    let mut scene = scene(false);
    scene.sides[0].device.pause();
    assert!((0..3).all(|number| scene.post(number, 60, false)));
    let old = scene.out.set_tables(Arc::default());
    assert_eq!((scene.counters(0).replaced.get(), scene.out.has_unsent()), (3, true));
    let held = Arc::downgrade(&old);
    drop(std::mem::take(&mut scene.tables[0]));
    let counters = &scene.sides[0].setup.counters;
    let mut retiring = Retiring::begin(old, &Tables::default(), counters, 5);
    assert_eq!(retiring.look(6), Retired::NotYet);
    assert_eq!(retiring.look(2_000_000_006), Retired::Stuck);
    assert!(held.upgrade().is_some(), "the device may read them");
    // The queue pair was brought to fail.
    scene.out.flush();
    assert_eq!((scene.counters(0).replaced.get(), scene.out.has_unsent()), (0, false));
    assert_eq!((retiring.look(2_000_000_007), held.upgrade().is_some()), (Retired::Yes, false));
    assert_eq!(scene.out.way(0, SEGMENT, A, B), None);
}

#[test]
fn losses_are_counted() {
    let mut scene = scene(false);
    for number in 0..10 {
        if number % 4 == 1 {
            scene.sides[0].fabric.lose(0);
        }
        assert!(scene.post(number, 60, false));
        scene.out.flush();
    }
    assert_eq!(scene.arrived(), [0, 2, 3, 4, 6, 7, 8]);
    assert_eq!(scene.counters(1).gaps.get(), 2, "a loss at the end does not show yet");
}

#[test]
fn a_lane_has_a_bounded_number_of_queue_pairs() {
    let side = testing::side(&Fabric::new(), "10.0.0.1".parse().unwrap());
    let mut pairs: Vec<_> = (0..setup::PAIRS as u16).map(|port| side.pair(port, (SEGMENT, VNI), A)).collect();
    let error = side.setup.pair(99, (SEGMENT, VNI), A, 1).unwrap_err();
    assert!(error.to_string().contains("63 vNICs of sim0 have queue pairs"), "{error}");
    // One may be replaced before it is destroyed.
    let number = pairs[5].number();
    let new = side.pair(5, (SEGMENT, VNI), A);
    assert!(side.setup.pair(6, (SEGMENT, VNI), A, 1).is_err(), "one at a time");
    assert!(side.setup.pair(99, (SEGMENT, VNI), A, 1).is_err());
    assert_eq!(std::mem::replace(&mut pairs[5], new).number(), number);
    pairs[6] = side.pair(6, (SEGMENT, VNI), A);
    pairs.pop();
    side.pair(99, (SEGMENT, VNI), A);
}

#[test]
fn of_several_entries_one_counts() {
    let sides = sides(&Fabric::new(), false);
    let peer = PeerIndex::new(5).unwrap();
    let pairs: Vec<_> = [0, 0, 1].map(|port| sides[0].pair(port, (SEGMENT, VNI), A)).into();
    let there = [A, B].map(|mac| sides[1].pair(0, (SEGMENT, VNI), mac));
    let members = [0, 1, 0, 0].map(|at| sides[0].member(&sides[1], &there[at], peer));
    let twice = MemberEntry { mac: Mac([9; 6]), ..members[0].clone() };
    let tables = Tables::new(pairs.clone(), members.into_iter().chain([twice]).collect());
    assert_eq!((tables.pairs().len(), tables.members().len()), (2, 3));
    assert_eq!(tables.pair(0).unwrap().number(), pairs[1].number(), "the last one");
    assert!(tables.by_number(pairs[0].number()).is_none() && tables.by_number(pairs[2].number()).is_some());
    for (mac, pair) in [(A, &there[0]), (B, &there[1])] {
        assert_eq!(tables.member(SEGMENT, mac).unwrap().queue_pair, pair.number());
        assert_eq!(tables.sender(sides[1].address, pair.number(), SEGMENT).unwrap().mac, mac);
    }
    assert!(tables.member(SegmentIndex(4), A).is_none());
    assert!(tables.sender(sides[0].address, there[0].number(), SEGMENT).is_none());
    assert!(tables.sender(sides[1].address, there[0].number(), SegmentIndex(4)).is_none());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Whatever happens to datagrams, sends and queue pairs, each frame that got a buffer has a fate, and all buffers come
    /// back.
    #[test]
    fn buffers_come_back(steps in prop::collection::vec((0..8u8, 14..2000usize, any::<bool>()), 1..120)) {
        let mut scene = scene(false);
        let (mut posted, mut fate) = (0u64, Fate::default());
        let mut add = |more: Fate| (fate.sent, fate.unsent) = (fate.sent + more.sent, fate.unsent + more.unsent);
        let number = scene.tables[0].pairs()[0].number();
        for (step, len, is_urgent) in steps {
            match step {
                0..4 if !scene.tables[0].pairs()[0].is_failed() => posted += u64::from(scene.post(1, len, is_urgent)),
                4 => scene.sides[0].device.pause(),
                5 => scene.sides[0].device.resume(),
                6 if is_urgent => _ = scene.sides[0].device.fail_next_send(number, Status::Failed(2)),
                7 => _ = scene.arrived(),
                _ => scene.out.flush(),
            }
            add(scene.out.take_fate());
        }
        scene.sides[0].device.resume();
        (0..2).for_each(|_| scene.out.flush());
        add(scene.out.take_fate());
        prop_assert!(!scene.out.has_unsent());
        let unposted = posted - fate.sent;
        prop_assert!(unposted <= fate.unsent && fate.unsent <= posted);
        scene.out.set_tables(Arc::default());
        prop_assert_eq!(scene.counters(0).replaced.get(), 0, "none is in flight");
    }
}

/// The way to its host may be unknown, or its announcements may be lost on the way here: it sends all the same.
#[test]
fn a_member_without_address_handles_may_send_and_is_not_sent_to() {
    let mut scene = scene(false);
    let without = |tables: &Tables| {
        let members = tables.members().map(|member| MemberEntry { handles: None, ..member.clone() });
        Arc::new(Tables::new(tables.pairs().to_vec(), members.collect()))
    };
    scene.incoming.set_tables(without(&scene.tables[1]));
    assert!(scene.post(7, 60, false));
    scene.out.flush();
    assert_eq!(scene.arrived(), [7]);
    scene.out.set_tables(without(&scene.tables[0]));
    assert_eq!(scene.out.way(0, SEGMENT, A, B), None);
}
