//! What a driver is shown of frames that land, and of those for which it has no buffers.

use super::*;
use crate::link::rdma::landing::{LONGEST, SLOTS};
use crate::link::rdma::pair::TOGETHER;
use tidegate_verbs::simulated::{Datagram, Fate};

#[test]
fn a_frame_that_lands_is_not_copied() {
    for packed in [false, true] {
        let mut landed = Landed::setup(packed, 256, (256, 1536));
        landed.guest.reap();
        let before = [&landed.counters().copied_in, &landed.counters().zero_copied_in_bytes].map(|c| c.get());
        // Over one buffer, over three, and within the head.
        for size in [1000, 3900, 40] {
            let sent = plain(&Spec::udp4(size).build());
            assert_eq!(landed.scene.a.send(&sent), Posted::Done);
            assert_eq!(
                landed.turn(|frame| {
                    assert!(matches!(frame.get().owner, Owner::Landed { .. }));
                    End::Posted
                }),
                []
            );
            let frames = landed.guest.reap();
            assert_eq!(frames.len(), 1);
            assert_eq!(frames[0].1, on_the_wire(&sent)[0], "{size} packed {packed}");
            let buffers = (frames[0].1.len() + VnetHdr::LEN).div_ceil(1536);
            assert_eq!(usize::from(frames[0].0.num_buffers), buffers);
        }
        let after = [&landed.counters().copied_in, &landed.counters().zero_copied_in_bytes].map(|c| c.get());
        let lens = [1000, 3900, 40].map(|size| Spec::udp4(size).build().len() as u64);
        let heads: u64 = lens.iter().map(|len| *len.min(&(HEADER_MAX as u64))).sum();
        assert_eq!(after[0] - before[0], heads);
        assert_eq!(after[1] - before[1], lens.iter().sum::<u64>() - heads);
        assert_eq!(landed.counters().zero_copied_in.get(), 3);
        let mut guest = landed.end();
        guest.reap();
        assert!(guest.empty > 0);
    }
}

#[test]
fn half_of_the_ring_is_left_to_local_senders() {
    let landed = Landed::setup(false, 256, (256, 1536));
    assert!(landed.guest.chains_in_use() <= 128);
    assert!(landed.landing.posted() >= 40, "{}", landed.landing.posted());
    let mut few = Landed::setup(true, 256, (24, 4096));
    assert!((8..=12).contains(&few.guest.chains_in_use()), "{}", few.guest.chains_in_use());
    // Local senders get theirs.
    let local = plain(&Spec::udp4(900).build());
    for _ in 0..100 {
        assert_eq!(few.guest.post(&local.frame), Posted::Done);
        few.guest.flush();
        assert_eq!(few.guest.reap().len(), 1);
        few.guest.give(24);
    }
    let many = Landed::setup(false, 1024, (1024, 4096));
    assert_eq!(many.landing.posted(), u32::from(SLOTS));
}

#[test]
fn an_unfinished_checksum_is_finished_and_a_mark_is_written() {
    for csum in [0, NET_F_GUEST_CSUM] {
        let mut landed = land(scene(), Guest::new(false, 256, (256, 1536), csum));
        landed.drain_pool();
        let sent = asking(&Spec::tcp4(1000), None);
        assert_eq!(landed.scene.a.send(&sent), Posted::Done);
        landed.turn(|_| End::Posted);
        let (header, frame) = landed.guest.reap().remove(0);
        assert_eq!(header.needs_csum(), csum != 0);
        if csum == 0 {
            assert_eq!(frame, on_the_wire(&sent)[0]);
        }
        let marked = Datagram {
            traffic_class: 3,
            ..landed.scene.datagram(&Spec { ecn: 1, ..Spec::tcp4(400) }.build())
        };
        assert_eq!(landed.scene.fabric.forge(marked), Fate::Delivered);
        landed.turn(|_| End::Posted);
        assert_eq!(landed.guest.reap()[0].1, Spec { ecn: 3, ..Spec::tcp4(400) }.build());
        landed.end();
    }
}

/// Buffers that are too few or too small: the switch's own are used.
#[test]
fn without_fitting_buffers_frames_are_copied() {
    for (count, len) in [(256, 100), (256, 12), (2, 4096), (256, 500)] {
        let mut landed = land(scene(), Guest::new(false, 256, (count, len), 0));
        let sent = plain(&Spec::udp4(60).build());
        for n in 0..700 {
            assert_eq!(landed.scene.a.send(&sent), Posted::Done);
            landed.turn(|frame| {
                assert!(matches!(frame.get().owner, Owner::Pool { .. }), "{n}: {count} of {len}");
                End::Posted
            });
            if len > 12 {
                assert_eq!(landed.guest.reap().len(), 1, "{n}: {count} of {len}");
            }
            landed.guest.give(256);
        }
        assert_eq!((landed.landing.posted(), landed.guest.empty), (0, 0));
        landed.end();
    }
}

/// More than there are buffers: the others are lost, and counted; then all goes on.
#[test]
fn a_burst_beyond_the_posted_buffers_is_counted() {
    let mut landed = Landed::setup(false, 256, (256, 1536));
    let sent = plain(&Spec::udp4(1000).build());
    let before = landed.counters().gaps.get();
    let mut got = 0;
    for _ in 0..3 {
        for _ in 0..200 {
            assert_eq!(landed.scene.a.send(&sent), Posted::Done);
        }
        landed.turn(|_| {
            got += 1;
            End::Posted
        });
        landed.guest.reap();
        landed.guest.give(256);
        landed.guest.flush();
    }
    assert_eq!(landed.scene.a.send(&sent), Posted::Done);
    landed.turn(|_| End::Posted);
    assert!(got > 100 && got < 600, "{got}");
    assert_eq!(landed.counters().gaps.get() - before, 600 - got);
    landed.end();
}

#[test]
fn the_longest_datagram_finds_room() {
    let mut landed = Landed::setup(false, 256, (256, 1536));
    let frame = Spec::udp4(LONGEST - 42).build();
    assert_eq!(frame.len(), LONGEST);
    assert_eq!(landed.scene.fabric.forge(landed.scene.datagram(&frame)), Fate::Delivered);
    landed.turn(|_| End::Posted);
    assert_eq!(landed.guest.reap()[0].1, frame);
    // Of one that is longer, no byte beyond the frame's room reaches the guest: the rest goes where the switch's own buffers have it.
    let longer = [&frame[..], &[0]].concat();
    landed.scene.fabric.forge(landed.scene.datagram(&longer));
    assert_eq!(landed.turn(|_| End::Posted), [DropReason::Malformed]);
    assert!(!landed.scene.tables[1].pairs()[0].is_failed());
    assert_eq!(landed.guest.reap(), []);
    assert_eq!(landed.scene.fabric.forge(landed.scene.datagram(&frame)), Fate::Delivered);
    landed.turn(|_| End::Posted);
    assert_eq!(landed.guest.reap()[0].1, frame);
    landed.end();
}

/// Frames that landed and wait for their receiver's rate hold slots: as many buffers are posted for others as without zero copy, or nearly.
#[test]
fn while_frames_wait_others_find_buffers() {
    let mut landed = Landed::setup(false, 256, (256, 1536));
    let posted = |landed: &Landed| {
        let pair = landed.scene.tables[1].pairs()[0].number();
        landed.scene.sides[1].device.posted(pair).unwrap().1
    };
    let sent = plain(&Spec::udp4(1000).build());
    let before = posted(&landed);
    let mut waiting = vec![];
    while waiting.len() < before {
        for _ in 0..TOGETHER {
            assert_eq!(landed.scene.a.send(&sent), Posted::Done);
        }
        waiting.extend(landed.take());
    }
    assert!(posted(&landed) >= 3 * before.min(64), "{} of {before}", posted(&landed));
    // A burst finds them: none is lost.
    let gaps = landed.counters().gaps.get();
    (0..100).for_each(|_| assert_eq!(landed.scene.a.send(&sent), Posted::Done));
    landed.turn(|_| End::Dropped);
    assert_eq!(landed.counters().gaps.get(), gaps);
    waiting.into_iter().for_each(|frame| landed.scene.b.tx.give_back(frame));
    landed.guest.flush();
    // Once none waits, all land again.
    landed.drain_pool();
    (0..50).for_each(|n| assert!(landed.zero_copied(&sent), "{n}"));
    landed.end();
}
