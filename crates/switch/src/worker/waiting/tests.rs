//! Order, counters and slots after any events, and the waits of a sparse flow.

use super::scene::{Got, HEADERS, Kind, MS, RECEIVER, SEGMENT, Scene, TO_ELSEWHERE, TO_OTHER};
use crate::slots::Slots;
use crate::worker::crossing::Crossing;
use proptest::prelude::*;
use tidegate_evidence::DropReason;

const RING: Kind = Kind::Ring { size: 256, packed: false, in_order: false };
const BULK: u16 = 0;
const SPARSE: u16 = 1;

fn limit(mbit: u32) -> String {
    format!("tx = {{ max = \"{mbit}mbit\" }}")
}

fn kinds() -> Vec<Kind> {
    let rings = [(64, false, false), (1024, true, false), (256, false, true), (128, true, true)];
    let ring = |(size, packed, in_order)| Kind::Ring { size, packed, in_order };
    rings.into_iter().map(ring).chain([Kind::Tap]).collect()
}

/// Returns the time of a segment at a rate (ns).
fn segment_ns(mbit: u32) -> u64 {
    (SEGMENT + HEADERS) as u64 * 8_000 / u64::from(mbit)
}

/// A flow keeps 16 super-frames under way, or sends one a millisecond; another sends a small frame now and
/// then. Returns how long each small frame that arrived within its millisecond waited (ns).
fn flood(scene: &mut Scene, ms: u64, payload: usize) -> Vec<u64> {
    let mut waits = Vec::new();
    for _ in 0..ms {
        while scene.unreturned() < 16 && scene.send(BULK, payload) && scene.unreturned() > 0 {}
        scene.pass(0);
        let (sent, before) = (scene.now, scene.got.len());
        scene.send(SPARSE, 40);
        scene.pass_in_steps(MS, MS / 10);
        let is_sparse = |got: &&Got| got.flow == SPARSE;
        waits.extend(scene.got[before..].iter().find(is_sparse).map(|got| got.at - sent));
    }
    waits
}

#[test]
fn a_small_frame_waits_for_one_part_at_most() {
    for (kind, mbit) in kinds().into_iter().zip([20, 5, 200, 5, 20]) {
        let mut scene = Scene::new(kind, &limit(mbit));
        let waits = flood(&mut scene, 40, 60_000);
        // The burst is gone; a part that is just leaving, its own tokens, and a look.
        let most = segment_ns(mbit).max(MS) + segment_ns(mbit) / 10 + MS / 10;
        // In the millisecond after its sending. In order, they overtake by half a ring while a super-frame
        // is sent.
        let seen = if mbit == 5 { 10 } else { 36 };
        assert!(waits.len() >= seen, "{kind:?}, {mbit} Mbit/s: {} of 40 seen", waits.len());
        let worst = waits.iter().max().copied().unwrap_or(u64::MAX);
        assert!(worst <= most, "{kind:?}, {mbit} Mbit/s: {worst} ns, {most} expected");
        let told = scene.stats.sparse_tx.read();
        assert!(told.count() >= seen as u64, "{kind:?}: {told:?}");
        assert!(told.max() <= most + MS || kind.is_in_order(), "{kind:?}: {told:?}, {most} expected");
        scene.finish();
    }
}

#[test]
fn the_rate_is_the_contracts() {
    for (kind, mbit) in kinds().into_iter().zip([20, 5, 200, 5, 200]) {
        let mut scene = Scene::new(kind, &limit(mbit));
        // The burst is gone by then.
        flood(&mut scene, 120, 40_000);
        let from = scene.now;
        flood(&mut scene, 60, 40_000);
        let share = scene.wire_since(from) as f64 / (f64::from(mbit) * 125.0 * 60.0);
        assert!((0.95..=1.05).contains(&share), "{kind:?}, {mbit} Mbit/s: {share}");
        scene.finish();
    }
}

#[test]
fn flows_that_understand_marks_are_marked_and_others_lose_a_segment_at_a_time() {
    for ecn in [2, 0] {
        let mut scene = Scene::new(RING, &limit(20));
        scene.ecn = ecn;
        flood(&mut scene, 1000, 10_000);
        let marked: Vec<_> = scene.got.iter().filter(|got| got.marked).collect();
        let dropped = scene.dropped(DropReason::Codel);
        assert_eq!(scene.stats.tx.marked.get() as usize, marked.len());
        assert!(marked.iter().all(|got| got.flow == BULK && got.segments() == 1), "{marked:?}");
        let told = if ecn == 0 { dropped } else { marked.len() };
        assert!((5..200).contains(&told), "{told} of {}", scene.got.len());
        assert_eq!(told, dropped + marked.len(), "of one kind alone");
        scene.finish();
        assert_eq!(scene.sent, scene.segments() + scene.all_dropped(), "{:?}", scene.drops());
    }
}

#[test]
fn excess_frames_of_a_tap_are_lost_from_the_longest_flow() {
    let mut scene = Scene::new(Kind::Tap, &limit(20));
    let (mut most, mut sparse) = (0, 0);
    for _ in 0..200 {
        // Ten times the rate, and a tenth of it.
        (0..16).for_each(|_| _ = scene.send(BULK, SEGMENT));
        sparse += usize::from(scene.send(SPARSE, 160));
        scene.pass(MS);
        most = most.max(scene.port().waiting.as_ref().map_or(0, |room| room.backlog().bytes));
    }
    scene.finish();
    // Two super-frames are more than 10 ms of 20 Mbit/s.
    assert!((120_000..=2 * 68_000).contains(&most), "{most} bytes waited");
    assert!(scene.dropped(DropReason::FlowCap) > 1500);
    let got = scene.got.iter().filter(|got| got.flow == SPARSE).count();
    assert_eq!(got, sparse, "a flow below its share loses nothing");
}

#[test]
fn all_of_a_ring_waits_unless_its_driver_relies_on_order_or_it_is_very_long() {
    for (size, in_order, most) in [(256, false, 256), (64, false, 64), (2048, false, 1024), (256, true, 130)]
    {
        let mut scene = Scene::new(Kind::Ring { size, packed: false, in_order }, &limit(20));
        while scene.unreturned() < size {
            assert!(scene.send(BULK, SEGMENT));
            scene.pass(0);
        }
        let waiting = scene.port().waiting.as_ref().unwrap().backlog().frames;
        assert!((most - 10..=most).contains(&waiting), "{waiting} of {size} wait, {most} at most");
        scene.finish();
        assert_eq!(scene.sent, scene.segments() + scene.dropped(DropReason::Codel), "{:?}", scene.drops());
    }
}

/// A flow keeps all of a ring but `spare` entries full of super-frames; another sends a small frame now and
/// then. Returns how long the latter took.
fn flood_all_but(scene: &mut Scene, size: u16, spare: u16, ms: u64, sparse: u16) -> Vec<Option<u64>> {
    let mut took = Vec::new();
    for _ in 0..ms {
        while scene.unreturned() < size - spare {
            assert!(scene.send(BULK, 20_000));
            scene.pass(0);
        }
        let (sent, before) = (scene.now, scene.got.len());
        assert!(scene.send(sparse, 40), "an entry is free");
        scene.pass_in_steps(4 * MS, MS / 10);
        took.push(scene.got[before..].iter().find(|got| got.flow == sparse).map(|got| got.at - sent));
    }
    took
}

#[test]
fn a_small_frame_behind_an_almost_full_ring_waits_for_one_part_at_most() {
    for (size, packed) in [(64, false), (256, true), (1024, false)] {
        let mut scene = Scene::new(Kind::Ring { size, packed, in_order: false }, &limit(20));
        let took = flood_all_but(&mut scene, size, 2, 30, SPARSE);
        let most = segment_ns(20).max(MS) + segment_ns(20) / 10 + MS / 10;
        assert!(took.iter().all(|took| took.is_some_and(|took| took <= most)), "{size}: {took:?}");
        scene.finish();
    }
}

#[test]
fn parts_at_a_slow_receiver_leave_slots_for_other_flows() {
    for kind in kinds() {
        let mut scene = Scene::new(kind, &limit(200));
        scene.change_of(RECEIVER, "rx = { max = \"1mbit\" }");
        let sparse = TO_OTHER + SPARSE;
        let size = match kind {
            Kind::Ring { size, in_order: false, .. } => size,
            Kind::Ring { .. } | Kind::Tap => continue,
        };
        let took = flood_all_but(&mut scene, size, 2, 30, sparse);
        assert!(took.iter().all(|took| took.is_some_and(|took| took <= MS)), "{kind:?}: {took:?}");
        scene.finish();
    }
}

#[test]
fn a_flow_to_a_worker_without_room_holds_up_no_other() {
    let (mut scene, mut behind) = Scene::beside(RING, "tx = { max = \"20mbit\", burst = \"3kB\" }");
    scene.never_done = true;
    let mut slots = Slots::new(2048, 9, 0);
    let peer = &mut scene.worker.peers[1].as_mut().unwrap().0;
    while peer.has_room() {
        peer.send(Crossing::Frame { egress: 4, frame: slots.take().unwrap() });
    }
    for flow in 0..10 {
        (0..3).for_each(|_| assert!(scene.send(TO_ELSEWHERE + flow, 10_000)));
    }
    for _ in 0..40 {
        (0..4).for_each(|_| _ = scene.send(BULK, SEGMENT));
        scene.send(TO_OTHER, 40);
        scene.pass(MS / 5);
    }
    let got = |flow| scene.got.iter().filter(|got| got.flow == flow).count();
    // 20 Mbit/s carry 13 full segments in 8 ms, and the burst.
    assert!(got(TO_OTHER) >= 39 && got(BULK) >= 10, "{} and {}", got(TO_OTHER), got(BULK));
    assert_eq!(scene.all_dropped(), 0, "{:?}", scene.drops());
    // When nothing else is to be sent, frames to a busy worker are dropped.
    scene.finish();
    assert!(scene.dropped(DropReason::WorkerBehind) > 0);
    let peer = &mut behind.peers[0].as_mut().unwrap().0;
    while let Some(Crossing::Frame { frame, .. }) = peer.receive() {
        slots.give(frame);
    }
}

#[test]
fn in_order_parts_at_a_slow_receiver_make_room() {
    for packed in [false, true] {
        let kind = Kind::Ring { size: 64, packed, in_order: true };
        let mut scene = Scene::new(kind, "tx = { max = \"20mbit\", burst = \"3kB\" }");
        scene.change_of(RECEIVER, "rx = { max = \"200kbit\", burst = \"2kB\" }");
        (0..2).for_each(|_| assert!(scene.send(BULK, 15_000)));
        scene.pass_in_steps(20 * MS, MS);
        for _ in 0..300 {
            let before = scene.got.len();
            assert!(scene.send(TO_OTHER, 40), "{packed}: the ring is full");
            scene.pass(MS);
            assert!(scene.got[before..].iter().any(|got| got.flow == TO_OTHER), "{packed}: it did not leave");
        }
        assert!(scene.dropped(DropReason::RingShare) > 0, "{:?}", scene.drops());
        scene.finish();
    }
}

#[test]
fn a_stopped_ring_has_its_frames_back() {
    for (kind, overtaken) in kinds().into_iter().flat_map(|kind| [(kind, false), (kind, true)]) {
        if matches!(kind, Kind::Tap) {
            continue;
        }
        let mut scene = Scene::new(kind, &limit(5));
        for _ in 0..28 {
            assert!(scene.send(BULK, 10_000));
        }
        scene.pass(0);
        if overtaken {
            assert!(scene.send(SPARSE, 40));
            scene.pass(MS);
            assert!(scene.got.iter().any(|got| got.flow == SPARSE));
        }
        let waiting = scene.port().waiting.as_ref().unwrap().backlog().frames as usize;
        assert!(waiting >= 10, "{kind:?}: {waiting}");
        scene.stop_and_start();
        let dropped = scene.dropped(DropReason::SenderReset);
        if overtaken {
            // Frames that the small one passed cannot go back, and 10 ms do not suffice for them.
            assert!((1..=waiting).contains(&dropped), "{kind:?}: {dropped} of {waiting}");
        } else {
            // The frame of which a part was sent.
            assert!(dropped <= 1, "{kind:?}: {dropped} of {waiting}");
        }
        scene.finish();
        assert!(scene.all_dropped() > 0 || scene.sent == scene.segments());
    }
}

#[test]
fn a_frame_that_waited_for_a_whole_round_of_numbers_does_not_go_back() {
    for aged in [0, 1 << 16] {
        let mut scene = Scene::new(RING, &limit(5));
        for _ in 0..28 {
            assert!(scene.send(BULK, 10_000));
        }
        scene.pass(0);
        let waiting = scene.port().waiting.as_ref().unwrap().backlog().frames as usize;
        scene.worker.ports[1].as_mut().unwrap().link.tx.rings().unwrap().age(aged);
        scene.stop_and_start();
        let dropped = scene.dropped(DropReason::SenderReset);
        assert_eq!(dropped > 1, aged > 0, "{dropped} of {waiting}");
        scene.finish();
    }
}

#[test]
fn a_ring_that_is_sent_within_the_target_has_one_frame_that_waits() {
    let most = |mbit, payload| {
        let mut scene = Scene::new(RING, &limit(mbit));
        let mut most = 0;
        for _ in 0..40 {
            while scene.unreturned() < 200 && scene.send(BULK, payload) {}
            scene.pass(MS / 10);
            most = most.max(scene.port().waiting.as_ref().map_or(0, |room| room.backlog().frames));
        }
        assert!(scene.unreturned() > 100, "it sends more than its limit");
        scene.finish();
        assert_eq!(scene.sent, scene.segments() + scene.dropped(DropReason::Codel), "{:?}", scene.drops());
        most
    };
    // 256 of 1502 bytes take 3 ms, and 6 ms.
    assert_eq!(most(1000, SEGMENT), 0);
    assert!(most(500, SEGMENT) > 50);
    assert!(most(1000, 20_000) > 50);
}

#[test]
fn an_upgrade_waits_for_tokens_and_drops_frames_without_tokens() {
    for overtaken in [false, true] {
        let mut scene = Scene::new(RING, &limit(5));
        (0..28).for_each(|_| assert!(scene.send(BULK, 10_000)));
        scene.pass(0);
        if overtaken {
            assert!(scene.send(SPARSE, 40));
            scene.pass(MS);
        }
        scene.worker.pause_all();
        scene.pass_in_steps(10 * MS, MS / 2);
        let had_some = scene.worker.drop_all_waiting();
        let dropped = scene.dropped(DropReason::SenderReset);
        // A frame of which a part was sent cannot go back in any case.
        assert!(had_some && (dropped > 5) == overtaken, "{dropped} dropped");
        scene.pass(MS);
        assert!(scene.worker.is_drained());
        scene.worker.put_back_pending();
        assert!(scene.worker.is_all_quiet());
        let before = scene.segments();
        scene.worker.resume_all();
        scene.finish();
        assert_eq!(scene.segments() > before, !overtaken, "what went back goes on");
    }
}

#[derive(Clone, Debug)]
enum Step {
    Send {
        flow: u16,
        payload: usize,
        count: usize,
    },
    Pass(u64),
    Change(&'static str),
    /// Whether the receiver takes nothing.
    Stall(bool),
    StopAndStart,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let payload = prop_oneof![
        4 => 1..SEGMENT,
        4 => Just(SEGMENT),
        3 => SEGMENT + 1..60_000usize,
        1 => Just(10 * SEGMENT),
    ];
    let contracts = [
        "tx = { max = \"5mbit\" }",
        "tx = { max = \"20mbit\", burst = \"3kB\" }",
        "tx = { max = \"200mbit\" }",
        "tx = { max = \"20mbit\" }\nqueueing = \"fifo\"",
        "tx = { max = \"20mbit\", burst = \"1B\" }",
        "tx = { max = \"20mbit\" }\nqueueing = { per-host = true }",
        "tx = { max = \"20mbit\", burst = \"5kB\" }\ndeadline = \"10ms\"\nto = [\"v2\"]",
        "",
    ];
    let step = prop_oneof![
        8 => (prop_oneof![3 => 0u16..8, 1 => TO_OTHER..TO_OTHER + 2], payload, 1usize..40).prop_map(|(flow, payload, count)| {
            Step::Send { flow, payload, count }
        }),
        6 => (0u64..30 * MS).prop_map(Step::Pass),
        2 => (0u64..400 * MS).prop_map(Step::Pass),
        1 => prop::sample::select(contracts.to_vec()).prop_map(Step::Change),
        1 => any::<bool>().prop_map(Step::Stall),
        1 => Just(Step::StopAndStart),
    ];
    prop::collection::vec(step, 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// The scene checks that each byte arrives at most once, in its flow's order. Here: no loss is
    /// uncounted, and all slots come back.
    #[test]
    fn each_segment_arrives_or_is_counted_and_every_slot_comes_back(
        kind in prop::sample::select(kinds()), ecn in 0u8..3, steps in steps(),
    ) {
        let mut scene = Scene::new(kind, "tx = { max = \"20mbit\" }");
        scene.ecn = ecn;
        let mut had_deadline = false;
        for step in steps {
            match step {
                Step::Send { flow, payload, count } => {
                    for _ in 0..count {
                        scene.send(flow, payload);
                    }
                }
                Step::Pass(ns) => scene.pass(ns),
                Step::Change(keys) => {
                    had_deadline |= keys.contains("deadline");
                    scene.change(keys);
                }
                Step::Stall(stalled) => scene.stalled = stalled,
                Step::StopAndStart => scene.stop_and_start(),
            }
        }
        scene.stalled = false;
        scene.finish();
        let arrived = scene.segments();
        let all = scene.all_dropped();
        let exact = all == scene.dropped(DropReason::Codel);
        prop_assert!(arrived + all <= scene.sent, "{} + {} of {}", arrived, all, scene.sent);
        prop_assert!(!exact || arrived + all == scene.sent, "{} + {} of {}", arrived, all, scene.sent);
        let tx = &scene.stats.tx;
        let (frames, segments) = (tx.frames.get(), tx.wire_frames.get() as usize);
        prop_assert!(frames <= scene.frames, "{} of {} frames", frames, scene.frames);
        prop_assert!((arrived..=scene.sent).contains(&segments), "{} of {} segments", segments, scene.sent);
        if exact && !had_deadline {
            // A frame with a deadline is counted as a whole at its beginning.
            prop_assert_eq!((segments, tx.wire_bytes.get()), (arrived, scene.wire_since(0)));
        }
        if all == 0 {
            prop_assert_eq!((frames, segments), (scene.frames, scene.sent));
        }
    }
}
