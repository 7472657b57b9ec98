//! How much work a guest can cause at once, in steps.

use super::super::budget::{QUANTUM, queued};
use super::scene::{Kind, MS, SEGMENT, SENDER, Scene};
use crate::link::vhost::take::UNTAKEN;
use crate::link::{Tx, tap};
use tidegate_evidence::DropReason;

const BULK: u16 = 0;
const SPARSE: u16 = 1;
const LIMIT: &str = "tx = { max = \"20mbit\" }";

fn waiting(scene: &Scene) -> usize {
    scene.port().waiting.as_ref().map_or(0, |room| room.backlog().frames as usize)
}

#[test]
fn frames_of_many_rings_go_back_in_one_pass() {
    for (size, rings, most) in [(256, 2, 512), (1024, 8, 4096)] {
        let mut scene = Scene::with_rings(size, LIMIT, rings);
        for ring in 0..rings {
            while scene.send_by(ring.into(), ring, SEGMENT) {}
        }
        scene.pass(0);
        let frames = waiting(&scene);
        assert!((most - 300..=most).contains(&frames), "{frames} of {rings} rings wait, {most} at most");
        scene.worker.pause(SENDER);
        UNTAKEN.set(0);
        assert!(!scene.worker.drain(SENDER), "all went back");
        assert_eq!((UNTAKEN.get(), scene.in_flight()), (frames, 0));
        scene.worker.resume(SENDER);
        scene.finish();
    }
}

#[test]
fn rings_that_are_stopped_one_after_the_other_wait_for_tokens_once() {
    let mut scene = Scene::with_rings(64, "tx = { max = \"5mbit\" }", 8);
    for ring in 0..8 {
        (0..20).for_each(|_| assert!(scene.send_by(ring.into(), ring, 10_000)));
    }
    scene.pass(MS);
    assert!(scene.port().waits());
    let waited = (0..8).filter(|ring| {
        // As long as a front end takes between two messages, and longer than a segment.
        scene.pass(3 * MS);
        scene.stop(*ring)
    });
    assert_eq!(waited.count(), 1);
}

/// Fills most of a tap's room with a flow of 60-byte frames.
fn fill(scene: &mut Scene) {
    for _ in 0..6 {
        assert!(scene.send(BULK, 60_000));
        scene.pass(0);
    }
    for _ in 0..1000 {
        if !scene.port().waits() {
            break;
        }
        scene.pass(MS);
    }
    for _ in 0..20 {
        while waiting(scene) < 1500 && scene.send(SPARSE, 6) {}
        scene.pass(0);
    }
    assert!(waiting(scene) >= 1500, "{} wait", waiting(scene));
}

#[test]
fn an_arrival_that_takes_the_room_of_many_drops_no_more_than_a_loop_may() {
    let mut scene = Scene::new(Kind::Tap, LIMIT);
    fill(&mut scene);
    let drops = |scene: &Scene| scene.dropped(DropReason::FlowCap);
    let (before, mut most) = (drops(&scene), 0);
    assert!(scene.send(7, 62_000));
    scene.worker.check_kicks();
    for _ in 0..100 {
        let before = drops(&scene);
        scene.worker.work();
        most = most.max(drops(&scene) - before);
    }
    assert!(most as i64 <= QUANTUM / queued(0), "{most} in one loop");
    assert!(drops(&scene) - before > 2 * most, "{} for one arrival", drops(&scene) - before);
    scene.finish();
    assert!(scene.got.iter().any(|got| got.flow == 7), "it was not dropped itself");
}

#[test]
fn small_frames_of_a_flood_leave_room_for_a_flow_of_long_ones() {
    let mut scene = Scene::new(Kind::Tap, LIMIT);
    fill(&mut scene);
    for step in 0..80 {
        // Many times the rate.
        while scene.send(SPARSE, 6) {}
        scene.pass(MS / 2);
        if step % 4 == 0 {
            assert!(scene.send(7, SEGMENT));
        }
        scene.pass(MS / 2);
    }
    scene.finish();
    let got: usize = scene.got.iter().filter(|got| got.flow == 7).map(|got| got.segments()).sum();
    assert_eq!(got, 20, "below its share it loses nothing");
}

fn tap(scene: &mut Scene) -> &mut tap::Tx {
    match &mut scene.worker.ports[usize::from(SENDER)].as_mut().unwrap().link.tx {
        Tx::Tap(tx) => tx,
        _ => unreachable!("it is a tap"),
    }
}

#[test]
fn frames_that_a_tap_cannot_take_without_slots_are_counted() {
    let mut scene = Scene::new(Kind::Tap, LIMIT);
    (0..6).for_each(|_| assert!(scene.send(BULK, 20_000)));
    scene.pass(0);
    assert!(scene.port().waits());
    let free = 2048 - scene.in_flight();
    let held = tap(&mut scene).hold(free - 64);
    let before = scene.frames;
    while scene.send(SPARSE, 6) {}
    scene.pass(0);
    let lost = scene.frames - before;
    assert_eq!((lost > 100, scene.dropped(DropReason::PoolFull) as u64), (true, lost));
    tap(&mut scene).free(held);
    scene.finish();
    assert_eq!(scene.sent, scene.segments() + scene.all_dropped(), "{:?}", scene.drops());
}

#[test]
fn a_frame_that_was_begun_under_a_deadline_is_counted_once() {
    let ring = Kind::Ring { size: 256, packed: false, in_order: false };
    for kind in [ring, Kind::Tap] {
        let deadline = "tx = { max = \"20mbit\", burst = \"5kB\" }\ndeadline = \"10ms\"\nto = [\"v2\"]";
        let mut scene = Scene::new(kind, deadline);
        assert!(scene.send(BULK, 40_000));
        scene.pass(0);
        assert!(scene.segments() > 0 && scene.segments() < scene.sent, "{kind:?}");
        scene.change(LIMIT);
        scene.finish();
        assert_eq!(scene.segments(), scene.sent, "{kind:?}");
        let tx = &scene.stats.tx;
        assert_eq!((tx.frames.get(), tx.wire_frames.get() as usize), (1, scene.sent), "{kind:?}");
        assert_eq!(tx.wire_bytes.get(), scene.wire_since(0), "{kind:?}");
    }
}
