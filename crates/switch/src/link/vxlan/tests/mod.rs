//! Over loopback, with the kernel's own cutting and joining of datagrams.

pub mod by_rdma;
mod hostile;
mod kernel;
pub mod scene;
mod sending;
#[cfg(feature = "measure")]
mod speed;
mod stamps;
pub mod zero_copy;

use super::*;
use crate::fdb::{PeerIndex, SegmentIndex};
use crate::frame::testing::{self, Frame as Spec};
use crate::frame::{flow, set_ecn};
use crate::link::reading::Reads;
use crate::link::{Posted, Taken};
use proptest::prelude::*;
use scene::*;
use std::collections::BTreeMap;
use std::os::fd::AsFd;
use tidegate_evidence::DropReason;

/// Returns frames by flow, each flow in order.
fn by_flow(frames: Vec<Vec<u8>>) -> BTreeMap<u32, Vec<Vec<u8>>> {
    let mut flows: BTreeMap<u32, Vec<Vec<u8>>> = BTreeMap::new();
    for frame in frames {
        flows.entry(flow(&frame, frame.len())).or_default().push(frame);
    }
    flows
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever is posted arrives: of any size, as the segmenter cuts it, each flow in order.
    #[test]
    fn frames_that_are_posted_arrive(
        v6: bool,
        specs in prop::collection::vec((testing::frame_up_to(5000), prop::option::of(60..4000u16), 1..6usize), 1..12),
        sending in 1..4usize,
    ) {
        let (mut a, mut b) = pair(v6, sending);
        for batch in specs.chunks(4) {
            let mut expected = vec![];
            for (spec, size, times) in batch {
                // A super-frame of few segments, and short frames several times.
                let size = size.filter(|size| spec.payload.len() > usize::from(*size));
                let sent = asking(spec, size);
                let times = if spec.payload.len() < 500 { *times } else { 1 };
                for _ in 0..times {
                    prop_assert_eq!(a.rx.post(&sent.frame), Posted::Done);
                    expected.extend(on_the_wire(&sent));
                }
            }
            a.rx.flush();
            prop_assert!(!a.rx.has_unsent());
            let (frames, drops) = b.receive();
            prop_assert_eq!(drops, vec![]);
            prop_assert!(frames.iter().all(|(peer, _)| *peer == 5));
            prop_assert_eq!(by_flow(frames.into_iter().map(|(_, bytes)| bytes).collect()), by_flow(expected));
        }
    }
}

#[test]
fn the_longest_super_frame_arrives_in_segments() {
    for v6 in [false, true] {
        let (mut a, mut b) = pair(v6, 1);
        for (spec, size) in
            [(Spec::tcp4(65_535 - 40), 1448), (Spec::tcp6(65_535 - 20), 1440), (Spec::udp4(60_000), 1400)]
        {
            let sent = asking(&spec, Some(size));
            let expected = on_the_wire(&sent);
            let before = b.joined;
            assert_eq!(a.send(&sent), Posted::Done);
            assert_eq!(b.frames(), expected);
            // In two trains: the longest message is shorter.
            assert_eq!(b.joined - before, if spec.tcp { 2 } else { 0 });
        }
        // Alone in its datagram; loopback's MTU is 65,536.
        let sent = plain(&Spec::udp4(65_000).build());
        assert_eq!(a.send(&sent), Posted::Done);
        assert_eq!(b.frames(), on_the_wire(&sent));
    }
}

#[test]
fn outer_marks_are_the_inner_ones_and_come_back_combined() {
    for v6 in [false, true] {
        let (mut a, mut b) = pair(v6, 1);
        for (dscp, ecn, deadline) in
            [(0, 0, false), (10, 1, false), (46, 2, false), (12, 3, false), (0, 1, true)]
        {
            let spec = Spec { dscp, ecn, ..Spec::tcp4(40) };
            let mut sent = asking(&spec, None);
            sent.frame.deadline = if deadline { 1 } else { crate::slots::NEVER };
            // The guest's DSCP stays its own.
            let expected = if deadline { 46 << 2 | ecn } else { ecn };
            let outer = encapsulate::Outer::of(&sent.frame);
            assert_eq!((outer.traffic_class, outer.is_urgent()), (expected, deadline));
            assert_eq!(a.send(&sent), Posted::Done);
            let mut incoming = sockets::Incoming::default();
            assert_eq!(incoming.receive(b.tx.sockets[0].as_fd(), 9), Ok(1));
            assert_eq!(incoming.message(0).unwrap().traffic_class, expected);
            assert_eq!(a.send(&sent), Posted::Done);
            assert_eq!(b.frames(), on_the_wire(&sent), "equal marks change nothing");
        }
    }
}

#[test]
fn a_mark_of_the_network_reaches_the_frame() {
    let (mut a, mut b) = pair(false, 1);
    for (ecn, drops) in [(0, vec![DropReason::Congested]), (1, vec![]), (2, vec![])] {
        let sent = asking(&Spec { ecn, ..Spec::tcp4(400) }, None);
        let mut expected = on_the_wire(&sent).remove(0);
        let outer =
            encapsulate::Outer { traffic_class: 3, flow: 0, lane: None, deadline: crate::slots::NEVER };
        let peer = a.rx.peers.get(*a.rx.peers.of_segment(SEGMENT.0).first().unwrap()).unwrap().address;
        let mut room = a.rx.lanes.destined(peer, &outer).unwrap();
        assert_eq!(
            encapsulate::encapsulate(&sent.frame, &mut encapsulate::Vxlan::of(SEGMENT.1), &mut room, None),
            encapsulate::Encapsulated::All
        );
        a.rx.flush();
        let headers = sent.frame.headers;
        set_ecn(&mut expected, &headers, 3);
        let frames = if drops.is_empty() { vec![(5, expected)] } else { vec![] };
        assert_eq!(b.receive(), (frames, drops));
    }
}

#[test]
fn frames_wait_in_a_bounded_store() {
    let (mut a, mut b) = pair(false, 1);
    let sent = asking(&Spec::udp4(1000), None);
    let (mut held, mut full) = (vec![], 0);
    for _ in 0..60 {
        (0..50).for_each(|_| assert_eq!(a.rx.post(&sent.frame), Posted::Done));
        a.rx.flush();
        b.tx.readiness.note_readable(0, 0, 0);
        loop {
            match b.tx.take() {
                Taken::New(pending, _) => held.push(pending.frame),
                Taken::Dropped(DropReason::PoolFull, 1) => full += 1,
                Taken::Nothing => break,
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!((held.len() + full, held.len()), (3000, usize::from(FRAMES) - 64));
    assert!(!b.tx.store.has_room());
    held.into_iter().for_each(|frame| b.tx.store.give_back(frame));
    assert_eq!(a.send(&sent), Posted::Done);
    assert_eq!(b.frames().len(), 1);
    // Those that come while an earlier frame waits.
    (0..3).for_each(|_| assert_eq!(a.send(&sent), Posted::Done));
    b.tx.readiness.note_readable(0, 0, 0);
    let absorbed = b.tx.absorb(2);
    assert_eq!((absorbed.frames, absorbed.dropped.iter().sum(), b.tx.store.waiting()), (2, 0u64, 2));
    assert!(!b.tx.can_be_quiet());
    assert_eq!(b.frames().len(), 3);
}

#[test]
fn frames_of_no_peer_of_this_link_are_dropped() {
    let (mut a, mut b) = pair(false, 1);
    let mut sent = asking(&Spec::udp4(100), None);
    let dropped = |reason| Posted::Dropped(reason);
    // Of another host.
    sent.frame.peer = crate::fdb::PeerIndex::new(1);
    assert_eq!(a.send(&sent), dropped(DropReason::NoReceiver));
    sent.frame.peer = None;
    // A segment that no peer carries, and one without VNI.
    sent.frame.segment = OTHER.0;
    assert_eq!(a.send(&sent), dropped(DropReason::NoReceiver));
    sent.frame.segment = SegmentIndex(77);
    assert_eq!(a.send(&sent), dropped(DropReason::UnknownSegment));
    sent.frame.segment = SEGMENT.0;
    // The address is behind a vNIC now.
    a.rx.fdb.pin(SEGMENT.0, testing::DST, 1).unwrap();
    assert_eq!(a.send(&sent), dropped(DropReason::NoReceiver));
    // The peer is gone.
    let to = crate::fdb::Destination::Peer { link: PORT, peer: crate::fdb::PeerIndex::new(99).unwrap() };
    a.rx.fdb.unpin(SEGMENT.0, testing::DST, 1);
    a.rx.fdb.pin(SEGMENT.0, testing::DST, to).unwrap();
    assert_eq!(a.send(&sent), dropped(DropReason::NoReceiver));
    // Unknown: a flood, to the only peer.
    a.rx.fdb.unpin(SEGMENT.0, testing::DST, to);
    assert_eq!(a.send(&sent), Posted::Done);
    assert_eq!(b.frames(), on_the_wire(&sent));
}
