//! Two links that have a lane by RDMA, over a fabric in memory, beside VXLAN over loopback.

use super::*;
use crate::fdb::Destination;
use crate::frame::VnetHdr;
use crate::link::rdma::testing::{Side, sides, tables};
use crate::link::rdma::{MemberEntry, Tables, longest_frame};
use crate::link::vxlan::pair_counts::PairCounts;
use crate::link::vxlan::pairs::*;
use crate::slots::NEVER;
use tidegate_contract::Mac;
use tidegate_uplink::rdma::{Checksum, Header};
use tidegate_uplink::stamp::{self, Key, KeyNumber, Keys};
use tidegate_verbs::simulated::{Datagram, Fabric, Fate};

/// Two links with the sender's and the receiver's vNIC as members.
pub struct Scene {
    pub fabric: Fabric,
    pub sides: [Side; 2],
    pub tables: [Arc<Tables>; 2],
    pub a: Host,
    pub b: Host,
}

/// The devices of a scene, with their tables.
pub struct Devices {
    pub sides: [Side; 2],
    pub tables: [Arc<Tables>; 2],
}

pub fn scene() -> Scene {
    let fabric = Fabric::new();
    let sides = sides(&fabric, false);
    let setups = [&sides[0], &sides[1]].map(|side| Some(side.setup.clone()));
    let (mut a, mut b) = pair_of([sides[0].address, sides[1].address], 1, setups);
    let peers = [5, 6].map(|peer| PeerIndex::new(peer).unwrap());
    let tables = tables(&sides, SEGMENT, [testing::SRC, testing::DST], peers);
    for (host, tables) in [&mut a, &mut b].into_iter().zip(&tables) {
        host.tx.set_rdma(tables.clone());
        assert!(host.rx.set_rdma(tables.clone()).is_some());
    }
    Scene { fabric, sides, tables, a, b }
}

impl Scene {
    /// Returns the devices with the tables, and both links, for a worker that has one of them.
    pub fn apart(self) -> (Devices, Host, Host) {
        let Self { sides, tables, a, b, .. } = self;
        (Devices { sides, tables }, a, b)
    }

    /// Returns how many datagrams left by RDMA.
    pub fn by_rdma(&self) -> u64 {
        self.sides[0].device.counters().datagrams
    }

    /// Returns the datagram of a frame, as the sender's queue pair sends it.
    fn datagram(&self, frame: &[u8]) -> Datagram {
        let [from, to] = [&self.tables[0], &self.tables[1]].map(|tables| tables.pairs()[0].number());
        let header = Header { sequence: 0, checksum: Checksum::Complete }.write();
        Datagram {
            from: self.sides[0].address,
            source: from,
            to: self.sides[1].address,
            queue_pair: to,
            q_key: SEGMENT.0.0.into(),
            traffic_class: 0,
            bytes: [&header[..], frame].concat(),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// A guest gets the same frames by either lane: of any size, as the segmenter cuts it. Those that do not fit into a
    /// datagram leave by VXLAN.
    #[test]
    fn frames_are_the_same_by_either_lane(
        specs in prop::collection::vec((testing::frame_up_to(5000), prop::option::of(60..4000u16)), 1..8),
        finished: bool,
    ) {
        let (mut scene, (mut c, mut d)) = (scene(), pair(false, 1));
        let mut fit = 0;
        for (spec, size) in specs {
            let size = size.filter(|size| spec.payload.len() > usize::from(*size));
            let whole = asking(&spec, size);
            let sent = if finished && size.is_none() { plain(&on_the_wire(&whole)[0]) } else { whole };
            let longest = sent.frame.offload.gso_size().map_or(sent.frame.len.into(), |size| {
                u64::from(sent.frame.headers.len) + u64::from(size)
            });
            if longest <= longest_frame(4096, false).into() {
                fit += on_the_wire(&sent).len() as u64;
            }
            prop_assert_eq!(scene.a.rx.post(&sent.frame), Posted::Done);
            prop_assert_eq!(c.rx.post(&sent.frame), Posted::Done);
        }
        scene.a.rx.flush();
        c.rx.flush();
        let ((by_rdma, drops), (by_vxlan, _)) = (scene.b.receive(), d.receive());
        prop_assert_eq!(drops, vec![]);
        prop_assert!(by_rdma.iter().all(|(peer, _)| *peer == 5));
        let frames = |all: Vec<(u16, Vec<u8>)>| by_flow(all.into_iter().map(|(_, bytes)| bytes).collect());
        let sorted = |mut flows: BTreeMap<u32, Vec<Vec<u8>>>| {
            // Frames of one flow that are longer than a datagram overtake, or are overtaken.
            flows.values_mut().for_each(|frames| frames.sort());
            flows
        };
        prop_assert_eq!(sorted(frames(by_rdma)), sorted(frames(by_vxlan)));
        prop_assert_eq!(scene.by_rdma(), fit);
        prop_assert!(scene.a.rx.take_on_wire().bytes >= fit * 60);
    }
}

#[test]
fn an_unfinished_checksum_stays_so_and_each_byte_is_copied_once() {
    let mut scene = scene();
    let sent = asking(&Spec::tcp4(1000), None);
    assert_eq!(scene.a.send(&sent), Posted::Done);
    (0..2).for_each(|queue| scene.b.tx.readiness.note_readable(queue, 0, 0));
    let Taken::New(pending, 1) = scene.b.tx.take() else { panic!("one arrived") };
    assert_eq!(pending.frame.get().vnet, VnetHdr { hdr_len: 0, ..sent.frame.vnet });
    scene.b.tx.give_back(pending.frame);
    let len = u64::from(sent.frame.len);
    let counters = [0, 1].map(|side| &scene.sides[side].setup.counters);
    assert_eq!((counters[0].copied_out.get(), counters[1].copied_in.get()), (len + 32, len));
    assert_eq!((scene.a.rx.counters().frames, scene.a.rx.counters().bytes), (1, len));
    // Ethernet 14, IPv4 20, UDP 8, BTH 12, DETH 8, the header 32, ICRC 4; padded to 4 bytes.
    assert_eq!(scene.a.rx.take_on_wire().all_bytes(50), len.next_multiple_of(4) + 98);
}

#[test]
fn frames_without_two_queue_pairs_leave_by_vxlan() {
    let mut scene = scene();
    let frame = Spec::udp4(100).build();
    let with = |at: usize, bytes: &[u8]| {
        let mut frame = frame.clone();
        frame[at..at + bytes.len()].copy_from_slice(bytes);
        plain(&frame)
    };
    // A member whose peer the FDB does not know: its announcement alone moves no frame.
    let member = scene.tables[0].member(SEGMENT.0, testing::DST).unwrap().clone();
    let other = MemberEntry { mac: Mac([0x52, 0x54, 0, 0, 0, 9]), queue_pair: 999, ..member.clone() };
    scene.a.rx.set_rdma(Arc::new(Tables::new(scene.tables[0].pairs().to_vec(), vec![member, other])));
    let by_vxlan =
        [with(0, &[0xff; 6]), with(0, &[0x52, 0x54, 0, 0, 0, 9]), with(6, &[0x52, 0x54, 0, 0, 0, 9]), {
            let mut sent = plain(&frame);
            sent.frame.source = 7;
            sent
        }];
    for (n, sent) in by_vxlan.iter().enumerate() {
        assert_eq!(scene.a.send(sent), Posted::Done, "{n}");
        assert_eq!(scene.b.frames(), on_the_wire(sent), "{n}");
        assert_eq!(scene.by_rdma(), 0, "{n}");
    }
    let sent = plain(&frame);
    assert_eq!(scene.a.send(&sent), Posted::Done);
    assert_eq!((scene.b.frames(), scene.by_rdma()), (on_the_wire(&sent), 1));
    // The FDB has it behind another peer, or behind another link.
    let other = Destination::Peer { link: PORT, peer: PeerIndex::new(9).unwrap() };
    scene.a.rx.fdb.pin(SEGMENT.0, testing::DST, other).unwrap();
    assert_eq!(scene.a.send(&sent), Posted::Dropped(DropReason::NoReceiver));
    let to = Destination::Peer { link: PORT, peer: PeerIndex::new(6).unwrap() };
    scene.a.rx.fdb.pin(SEGMENT.0, testing::DST, to).unwrap();
    // It has failed.
    assert!(scene.sides[0].device.break_queue_pair(scene.tables[0].pairs()[0].number()));
    scene.a.send(&sent);
    assert!(scene.tables[0].pairs()[0].is_failed());
    assert_eq!(scene.a.rx.take_dropped().collect::<Vec<_>>(), [(DropReason::UplinkRefused, 1)]);
    assert_eq!(scene.a.send(&sent), Posted::Done);
    assert_eq!((scene.b.frames(), scene.by_rdma()), (on_the_wire(&sent), 1));
}

#[test]
fn while_the_device_stalls_frames_leave_by_vxlan() {
    crate::clock::test_clock::set_time(1_000_000);
    let mut scene = scene();
    scene.sides[0].device.pause();
    let sent = plain(&Spec::udp4(1000).build());
    while scene.a.send(&sent) == Posted::Done {}
    let by_rdma = scene.sides[0].setup.counters.sent.get();
    crate::clock::test_clock::set_time(2_000_000 + crate::link::rdma::outgoing::STALL);
    assert_eq!(scene.a.send(&sent), Posted::Done);
    assert_eq!(scene.b.frames(), on_the_wire(&sent));
    // It goes on.
    scene.sides[0].device.resume();
    scene.a.rx.flush();
    assert_eq!(scene.b.frames().len() as u64, by_rdma);
    assert_eq!(scene.a.send(&sent), Posted::Done);
    assert_eq!(scene.by_rdma(), by_rdma + 1);
}

#[test]
fn a_mark_of_the_network_reaches_a_members_frame() {
    let mut scene = scene();
    for (ecn, expected) in [(0, Err(DropReason::Congested)), (1, Ok(3)), (2, Ok(3)), (3, Ok(3))] {
        let frame = Spec { ecn, ..Spec::tcp4(400) }.build();
        let datagram = Datagram { traffic_class: 3, ..scene.datagram(&frame) };
        assert_eq!(scene.fabric.forge(datagram), Fate::Delivered);
        let (frames, drops) = scene.b.receive();
        match expected {
            Err(reason) => assert_eq!((frames.len(), drops), (0, vec![reason])),
            Ok(mark) => assert_eq!(frames[0].1, Spec { ecn: mark, ..Spec::tcp4(400) }.build()),
        }
    }
    // And the frame's own leaves in the outer header.
    for (ecn, deadline) in [(0, NEVER), (1, NEVER), (2, 1), (3, 1)] {
        scene.fabric.hold(true);
        let mut sent = plain(&Spec { ecn, ..Spec::tcp4(40) }.build());
        sent.frame.deadline = deadline;
        assert_eq!(scene.a.send(&sent), Posted::Done);
        scene.fabric.release(1);
        assert_eq!(scene.b.frames(), on_the_wire(&sent));
    }
}

#[test]
fn what_no_member_sent_is_counted_and_reaches_no_store() {
    let mut scene = scene();
    let frame = Spec::udp4(100).build();
    let spoofed = [&frame[..6], &Mac([0x52, 0x54, 0, 0, 0, 9]).0, &frame[12..]].concat();
    let good = scene.datagram(&frame);
    let other_segment = {
        let pair = scene.sides[1].pair(1, OTHER, Mac([9; 6]));
        let pairs = [scene.tables[1].pairs(), std::slice::from_ref(&pair)].concat();
        scene.b.tx.set_rdma(Arc::new(Tables::new(pairs, scene.tables[1].members().cloned().collect())));
        Datagram { queue_pair: pair.number(), q_key: OTHER.0.0.into(), ..good.clone() }
    };
    let cut = |len: usize| Datagram { bytes: good.bytes[..len].to_vec(), ..good.clone() };
    let changed = |at: usize| {
        let mut bytes = good.bytes.clone();
        bytes[at] ^= 0x40;
        Datagram { bytes, ..good.clone() }
    };
    let cases = [
        (Datagram { source: good.source + 1, ..good.clone() }, DropReason::UnknownPeer),
        (Datagram { from: [127, 0, 0, 9].into(), ..good.clone() }, DropReason::UnknownPeer),
        (other_segment, DropReason::UnknownPeer),
        (scene.datagram(&spoofed), DropReason::SourceMac),
        (cut(0), DropReason::Malformed),
        (cut(31), DropReason::Malformed),
        (cut(32 + 13), DropReason::Malformed),
        (changed(0), DropReason::Malformed),
        (changed(31), DropReason::Malformed),
    ];
    for (n, (datagram, reason)) in cases.iter().enumerate() {
        assert_eq!(scene.fabric.forge(datagram.clone()), Fate::Delivered, "{n}");
        assert_eq!(scene.b.receive(), (vec![], vec![*reason]), "{n}");
    }
    assert_eq!(scene.fabric.forge(Datagram { q_key: 1, ..good.clone() }), Fate::WrongKey);
    // More than there are buffers: each comes back.
    for n in 0..2000 {
        let (datagram, _) = &cases[n % cases.len()];
        assert_eq!(scene.fabric.forge(datagram.clone()), Fate::Delivered, "{n}");
        if n % 200 == 199 {
            assert_eq!(scene.b.receive().0, vec![]);
        }
    }
    let counters = &scene.sides[1].setup.counters;
    let refused =
        [&counters.unknown_member, &counters.spoofed, &counters.malformed].map(|counter| counter.get());
    assert_eq!(refused.iter().sum::<u64>(), 2009);
    assert_eq!((counters.received.get(), counters.copied_in.get()), (0, 0));
    assert_eq!(scene.fabric.forge(good), Fate::Delivered);
    assert_eq!(scene.b.frames(), [frame]);
}

/// A segment's index is another one's as soon as it is gone; the tables of queue pairs come later.
#[test]
fn the_queue_pairs_of_a_former_segment_serve_no_other() {
    let mut scene = scene();
    let frame = Spec::tcp4(100).build();
    let datagram = scene.datagram(&frame);
    let former = (SEGMENT.0, SEGMENT.1 + 1);
    let tables = |n: usize, of_pair, of_member| {
        let [here, there] = [&scene.tables[n].pairs()[0], &scene.tables[1 - n].pairs()[0]];
        let pair = scene.sides[n].setup.pair(0, (SEGMENT.0, of_pair), here.mac, 3).unwrap();
        let peer = scene.tables[n].members().next().unwrap().peer;
        let member = scene.sides[n].member(&scene.sides[1 - n], there, peer);
        Arc::new(Tables::new(vec![pair], vec![MemberEntry { vni: of_member, ..member }]))
    };
    for (of_pair, of_member, goes) in [
        (former.1, former.1, false),
        (former.1, SEGMENT.1, false),
        (SEGMENT.1, former.1, false),
        (SEGMENT.1, SEGMENT.1, true),
    ] {
        let there = tables(1, of_pair, of_member);
        let to = there.pairs()[0].number();
        scene.b.tx.set_rdma(there);
        assert_eq!(scene.fabric.forge(Datagram { queue_pair: to, ..datagram.clone() }), Fate::Delivered);
        assert_eq!(scene.b.receive().0.len(), usize::from(goes));
        let before = scene.by_rdma();
        scene.a.rx.set_rdma(tables(0, of_pair, of_member));
        assert_eq!(scene.a.send(&plain(&frame)), Posted::Done);
        assert_eq!(scene.by_rdma() - before, u64::from(goes));
        scene.b.receive();
    }
}

/// Who has another segment's key announces a queue pair of this one as its own, there.
#[test]
fn an_announcement_in_another_segment_silences_no_member() {
    let mut scene = scene();
    let frame = Spec::tcp4(100).build();
    let datagram = scene.datagram(&frame);
    let member = scene.tables[1].members().next().unwrap().clone();
    for segment in [SEGMENT.0.0 - 1, SEGMENT.0.0 + 1].map(SegmentIndex) {
        let other = MemberEntry { segment, mac: Mac([2, 9, 9, 9, 9, 9]), ..member.clone() };
        let members = vec![other, member.clone()];
        scene.b.tx.set_rdma(Arc::new(Tables::new(scene.tables[1].pairs().to_vec(), members)));
        assert_eq!(scene.fabric.forge(datagram.clone()), Fate::Delivered);
        assert_eq!(scene.b.frames(), [&frame[..]]);
    }
}

#[test]
fn a_stamped_frame_is_complete_whatever_its_header_says() {
    let mut scene = scene();
    let (key, counts) = (Key::new([7; 16]), Arc::<PairCounts>::default());
    for host in [&mut scene.a, &mut scene.b] {
        stamps::take_stamps(host);
    }
    let pair = PairKey::new(SEGMENT.0, testing::SRC, testing::DST);
    scene.a.rx.set_pairs(OutgoingPairs::new(vec![Outgoing::new(
        pair,
        500,
        (KeyNumber::Even, key),
        counts.clone(),
    )]));
    let (peer, pair) = (PeerIndex::new(5).unwrap(), PairKey::new(SEGMENT.0, testing::DST, testing::SRC));
    let keys = Keys { even: Some(key), odd: None };
    let registered =
        Registered { address: AddressKey::new(SEGMENT.0, testing::SRC), peer, keys, envelope: None };
    let pairs = vec![Incoming::new(pair, peer, TimeShares::default(), counts.clone())];
    scene.b.tx.set_pairs(IncomingPairs::new(vec![registered], pairs, Arc::default()));
    for changes in [false, true] {
        let mut sent = asking(&Spec::udp4(300), None);
        sent.frame.started = crate::clock::clock();
        sent.frame.deadline = sent.frame.started + 1_000_000_000;
        scene.fabric.hold(true);
        assert_eq!(scene.a.send(&sent), Posted::Done);
        if changes {
            // Another hand has the frame's checksum computed anew, elsewhere.
            let wire = on_the_wire(&sent).remove(0);
            let stamp = stamp::Stamp {
                key: KeyNumber::Even,
                deadline_us: 500,
                sent_ns: sent.frame.started + 1,
                hold_ns: 0,
                sequence: 9,
            };
            let stamped = [&wire[..], &stamp.trailer(&key, &wire, wire.len() as u32)].concat();
            let checksum = Checksum::Partial { start: 60, offset: 6 };
            let mut datagram = scene.datagram(&stamped);
            datagram.bytes[..32].copy_from_slice(&Header { sequence: 1, checksum }.write());
            assert_eq!(scene.fabric.forge(datagram), Fate::Delivered);
        } else {
            assert_eq!(scene.fabric.release(1), [Fate::Delivered]);
        }
        (0..2).for_each(|queue| scene.b.tx.readiness.note_readable(queue, 0, 0));
        let Taken::New(pending, 1) = scene.b.tx.take() else { panic!("one arrived") };
        let frame = pending.frame.get();
        assert!(frame.stamp.is_some());
        assert_eq!(
            (frame.vnet, bytes(frame.head(), frame.payload())),
            (VnetHdr::default(), on_the_wire(&sent).remove(0))
        );
        scene.b.tx.give_back(pending.frame);
    }
    assert_eq!(counts.arrived.get(), 2);
}

#[test]
fn a_worker_that_sleeps_is_woken_by_the_first_frame() {
    use rustix::event::{PollFd, PollFlags, poll};
    let mut scene = scene();
    let readable = |host: &Host| {
        let descriptor = host.tx.rdma_descriptor().unwrap();
        let mut fds = [PollFd::new(&descriptor, PollFlags::IN)];
        poll(&mut fds, Some(&rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() > 0
    };
    assert_eq!(scene.b.frames(), Vec::<Vec<u8>>::new());
    assert!(scene.b.tx.can_be_quiet() && !readable(&scene.b));
    for _ in 0..3 {
        let sent = plain(&Spec::udp4(100).build());
        assert_eq!(scene.a.send(&sent), Posted::Done);
        assert!(readable(&scene.b));
        assert_eq!(scene.b.frames(), on_the_wire(&sent));
        assert!(!readable(&scene.b));
    }
}
