use super::scene::{EVERYONE, SENDERS, Scene};
use crate::fdb::PortIndex;
use crate::link::LONGEST;
use crate::link::deferred::DEPTH;
use crate::port::PortSet;
use crate::sched::EgressConfig;
use proptest::prelude::*;
use tidegate_contract::Rate;
use tidegate_evidence::DropReason;

/// Returns the address of a port.
fn to(port: PortIndex) -> [u8; 6] {
    [0x52, 0x54, 0, 0, 0, port as u8]
}

fn dropped(scene: &Scene, port: PortIndex, reason: DropReason) -> (u64, u64) {
    let stats = scene.stats(port);
    (stats.tx.dropped[reason as usize].get(), stats.rx.dropped[reason as usize].get())
}

#[test]
fn a_frame_is_its_links_until_it_is_completed() {
    let mut scene = Scene::new(2, None);
    scene.script(2).unwrap().polls = 50;
    scene.send(0, to(2), 1000);
    let begin = scene.now;
    while scene.stats(2).rx.frames.get() == 0 {
        scene.turn();
        assert!(scene.now < begin + LONGEST, "it is completed, not given up");
    }
    let delay = scene.stats(0).delay.read();
    assert_eq!(delay.count(), 1);
    assert!((50 * 40_000..60 * 40_000).contains(&delay.max()), "{} ns", delay.max());
    scene.finish();
}

/// With more bytes, a frame with a deadline would stand behind more than a loop delivers.
#[test]
fn a_link_holds_as_many_bytes_as_a_loop_delivers() {
    for (bytes, frames, most) in [(9000, 30, 7), (100, 60, DEPTH)] {
        let mut scene = Scene::new(1, None);
        scene.script(2).unwrap().polls = usize::MAX;
        (0..frames).for_each(|_| scene.send(0, to(2), bytes));
        (0..20).for_each(|_| scene.turn());
        assert_eq!(scene.script(2).unwrap().most.1, most);
        scene.finish();
    }
}

#[test]
fn a_wires_link_holds_its_burst() {
    let rate = Rate::from_bits(1_000_000_000).unwrap();
    let wire = EgressConfig::physical(rate, 1518, 20_000, u64::MAX);
    assert_eq!(wire.most_outstanding(), 1518 + 2500);
}

#[test]
fn a_frame_that_a_link_never_completes_is_cancelled_in_time() {
    let mut scene = Scene::new(2, None);
    scene.script(2).unwrap().polls = usize::MAX;
    for _ in 0..5 {
        scene.send(0, to(2), 200);
    }
    (0..10).for_each(|_| scene.turn());
    assert_eq!(dropped(&scene, 0, DropReason::HeldTooLong), (0, 0));
    scene.wait(LONGEST);
    (0..3).for_each(|_| scene.turn());
    assert_eq!(dropped(&scene, 0, DropReason::HeldTooLong), (5, 0));
    assert_eq!(dropped(&scene, 2, DropReason::HeldTooLong), (0, 5));
    assert_eq!(scene.script(2).unwrap().cancelled, 5);
    // The link takes frames again.
    scene.script(2).unwrap().polls = 0;
    scene.send(0, to(2), 200);
    (0..5).for_each(|_| scene.turn());
    assert_eq!(scene.stats(2).rx.frames.get(), 1);
    scene.finish();
}

#[test]
fn a_broken_link_gives_up_what_it_holds() {
    let mut scene = Scene::new(1, None);
    scene.script(2).unwrap().polls = usize::MAX;
    for _ in 0..5 {
        scene.send(0, to(2), 200);
    }
    (0..3).for_each(|_| scene.turn());
    scene.script(2).unwrap().breaks = true;
    (0..2).for_each(|_| scene.turn());
    assert_eq!(dropped(&scene, 0, DropReason::ReceiverDown), (5, 0));
    assert!(scene.at(2).is_broken(2) && scene.at(0).is_drained());
    scene.finish();
}

/// A copy is in the worker's memory, not its source's: no port has it in flight.
#[test]
fn a_worker_is_drained_when_links_hold_no_copies() {
    let mut scene = Scene::new(1, None);
    for port in SENDERS..4 {
        scene.script(port).unwrap().polls = usize::MAX;
    }
    scene.send(0, EVERYONE, 200);
    (0..3).for_each(|_| scene.turn());
    assert_eq!(scene.at(0).flood.in_flight(), 1);
    assert!(!scene.at(0).is_drained());
    scene.quiet(0);
    assert!(!scene.at(0).is_drained());
    assert!(scene.retire(LONGEST / 2));
    assert_eq!(scene.at(0).flood.in_flight(), 0);
    assert_eq!(dropped(&scene, 3, DropReason::SenderReset), (0, 1));
}

/// The worker's own memory would hold the next frame before the first is completed.
#[test]
fn a_held_frame_of_a_watched_port_lies_in_the_ports_memory() {
    let mut scene = Scene::new(1, None);
    scene.script(2).unwrap().polls = 20;
    let mut watched = PortSet::EMPTY;
    watched.insert(0);
    scene.at(0).watch(watched, PortSet::EMPTY);
    for _ in 0..5 {
        scene.send(0, to(2), 1000);
    }
    (0..3).for_each(|_| scene.turn());
    scene.finish();
}

/// Dropping another frame of that source would make no room.
#[test]
fn relief_does_not_drop_behind_a_frame_that_a_link_holds() {
    let mut scene = Scene::new(1, None);
    scene.script(2).unwrap().polls = usize::MAX;
    (0..DEPTH + 5).for_each(|_| scene.send(0, to(2), 100));
    (0..5).for_each(|_| scene.turn());
    let worker = scene.at(2);
    for (oldest, drops) in [(true, 0), (false, 1)] {
        worker.relief.push((2, 0, oldest));
        worker.relieve();
        assert_eq!(worker.fates.len(), drops);
    }
    worker.settle();
    scene.finish();
}

#[derive(Clone, Debug)]
enum Op {
    Send {
        from: PortIndex,
        to: PortIndex,
        frames: usize,
        bytes: usize,
    },
    /// The first sender sends to all.
    Flood,
    Turn(usize),
    Wait(u64),
    /// Polls of a receiver's link per frame.
    Pace(PortIndex, usize),
    Fail(PortIndex),
    Break(PortIndex),
    /// A receiver loses or gets buffers.
    Fill(PortIndex, bool),
    Move(PortIndex, usize),
    /// A port goes, and another comes at this worker.
    Replace(PortIndex, usize),
    Segment(PortIndex),
    Retire,
}

fn op() -> impl Strategy<Value = Op> {
    let (sender, receiver) = (0..SENDERS, SENDERS..4);
    let bytes = prop_oneof![Just(60usize), 60..1518usize, Just(9014)];
    prop_oneof![
        6 => (sender, receiver.clone(), 1..40usize, bytes)
            .prop_map(|(from, to, frames, bytes)| Op::Send { from, to, frames, bytes }),
        1 => Just(Op::Flood),
        6 => (1..6usize).prop_map(Op::Turn),
        1 => prop_oneof![1_000..3_000_000u64, Just(LONGEST)].prop_map(Op::Wait),
        3 => (receiver.clone(), prop_oneof![Just(0), 1..9usize, Just(usize::MAX)])
            .prop_map(|(port, polls)| Op::Pace(port, polls)),
        1 => receiver.clone().prop_map(Op::Fail),
        1 => receiver.clone().prop_map(Op::Break),
        1 => (receiver.clone(), any::<bool>()).prop_map(|(port, full)| Op::Fill(port, full)),
        3 => (0..4u16, 0..3usize).prop_map(|(port, worker)| Op::Move(port, worker)),
        2 => (0..4u16, 0..3usize).prop_map(|(port, worker)| Op::Replace(port, worker)),
        1 => receiver.prop_map(Op::Segment),
        1 => Just(Op::Retire),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// For any events of links, receivers and sources: each frame is delivered once, in order and from its
    /// own memory, or dropped once, and every slot comes back; all in bounded time.
    #[test]
    fn every_frame_has_one_fate(
        workers in 1usize..4,
        floods in any::<bool>(),
        deadline in prop::option::of(100_000u64..20_000_000),
        ops in prop::collection::vec(op(), 1..60),
    ) {
        let mut scene = Scene::new(workers, deadline);
        for op in ops {
            match op {
                Op::Send { from, to: port, frames, bytes } => {
                    (0..frames).for_each(|_| scene.send(from, to(port), bytes));
                }
                Op::Flood if floods => scene.send(0, EVERYONE, 300),
                Op::Flood => {}
                Op::Turn(loops) => (0..loops).for_each(|_| scene.turn()),
                Op::Wait(ns) => scene.wait(ns),
                Op::Pace(port, polls) => scene.script(port).unwrap().polls = polls,
                Op::Fail(port) => scene.script(port).unwrap().failure = Some(DropReason::TapRefused),
                Op::Break(port) => scene.script(port).unwrap().breaks = true,
                Op::Fill(port, full) => scene.script(port).unwrap().full = full,
                Op::Move(port, worker) => scene.move_to(port, worker % workers),
                Op::Replace(port, worker) => {
                    let deadline = scene.deadline_of(port);
                    scene.remove(port);
                    scene.add(port, worker % workers, deadline);
                }
                Op::Segment(port) => {
                    scene.quiet(port);
                    let worker = scene.at(port);
                    worker.set_segment(port, crate::fdb::SegmentIndex(0));
                    worker.resume(port);
                }
                Op::Retire => drop(scene.retire(LONGEST / 2)),
            }
        }
        scene.finish();
    }
}
