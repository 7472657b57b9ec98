//! Best effort into taps by a worker's writer, which these tests run at will.

use super::{Worker, budget, testing};
use crate::clock::test_clock;
use crate::fdb::PortIndex;
use crate::link::writer::Writer;
use crate::slots::{NEVER, Slots};
use rustix::io::read;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use tidegate_evidence::DropReason;

const START: u64 = 1_000_000_000_000;
const VOICE: PortIndex = 0;
/// A tap that receives.
const SINK: PortIndex = 1;
/// Another one.
const OTHER: PortIndex = 2;
const BULK: PortIndex = 3;

struct Scene {
    worker: Worker,
    writer: Option<Writer>,
    ends: [OwnedFd; 2],
    slots: Slots,
    realtime: Slots,
    /// Fates: source, number, reason of a drop.
    fates: Vec<(PortIndex, u32, Option<DropReason>)>,
}

impl Scene {
    fn new() -> Self {
        test_clock::set_time(START);
        let (mut worker, _handle) = testing::worker();
        let (writer, hand) = Writer::new();
        worker.set_tap_writer(hand(0, std::thread::current()));
        worker.set_hands_over(true);
        let _senders = [VOICE, BULK].map(|index| testing::add_tap(&mut worker, index));
        let ends = [SINK, OTHER].map(|index| testing::add_tap(&mut worker, index));
        let mut info = worker.infos[usize::from(VOICE)].clone().unwrap();
        info.deadline = Some(NEVER / 4);
        info.to.insert(SINK);
        worker.set_info(VOICE, Some(info));
        let (slots, realtime) = (Slots::new(512, BULK, 0), Slots::new(16, VOICE, 0));
        Self { worker, writer: Some(writer), ends, slots, realtime, fates: Vec::new() }
    }

    /// Queues best effort of `bytes` that begins with its number.
    fn queue(&mut self, egress: PortIndex, number: u32, bytes: u32) {
        let slot = self.slots.take().unwrap();
        let frame = slot.get_mut();
        (frame.len, frame.head_len, frame.wire_bytes, frame.wire_frames) = (60, 60, bytes, 1);
        frame.bytes[..4].copy_from_slice(&number.to_be_bytes());
        self.worker.enqueue(egress, &[slot]);
    }

    fn queue_realtime(&mut self, number: u32) {
        let slot = self.realtime.take().unwrap();
        let frame = slot.get_mut();
        (frame.len, frame.head_len, frame.wire_bytes, frame.wire_frames) = (60, 60, 60, 1);
        frame.deadline = START + NEVER / 4;
        frame.bytes[..4].copy_from_slice(&number.to_be_bytes());
        self.worker.enqueue(SINK, &[slot]);
    }

    /// Runs the egresses' turn.
    fn turn(&mut self) {
        self.worker.now = test_clock::time().unwrap();
        self.worker.egress(64 * budget::QUANTUM);
        for fate in self.worker.fates.drain() {
            let frame = fate.frame.get();
            let number = u32::from_be_bytes(frame.bytes[..4].try_into().unwrap());
            self.fates.push((fate.egress, number, fate.dropped));
            let slots = if frame.source == VOICE { &mut self.realtime } else { &mut self.slots };
            slots.give(fate.frame);
        }
    }

    /// Runs the writer for `frames`.
    fn write(&mut self, frames: usize) {
        let writer = self.writer.as_mut().unwrap();
        assert_eq!((0..frames).take_while(|_| writer.write_one()).count(), frames, "it has so many");
    }

    /// Returns the numbers of frames that came out of a tap.
    fn came(&self, egress: PortIndex) -> Vec<u32> {
        let mut frame = [0; 2048];
        let end = &self.ends[usize::from(egress - SINK)];
        // Nothing is read if the other end is closed.
        let next =
            || read(end, &mut frame).is_ok_and(|len| len > 0).then(|| frame[12..16].try_into().unwrap());
        std::iter::from_fn(next).map(u32::from_be_bytes).collect()
    }
}

impl Drop for Scene {
    /// Gives back frames under way.
    fn drop(&mut self) {
        for index in [SINK, OTHER] {
            self.worker.clear_egress(index);
            self.worker.cancel_at(index, DropReason::ReceiverDown);
        }
        for fate in self.worker.fates.drain() {
            let slots = if fate.frame.get().source == VOICE { &mut self.realtime } else { &mut self.slots };
            slots.give(fate.frame);
        }
    }
}

#[test]
fn best_effort_comes_out_in_order_and_ends_when_it_was_written() {
    let mut scene = Scene::new();
    (0..100).for_each(|number| scene.queue(SINK, number, 1_000));
    let mut came = Vec::new();
    while came.len() < 100 {
        scene.turn();
        assert_eq!(scene.fates.len(), came.len(), "a frame has no fate before it is written");
        scene.write(1);
        came.extend(scene.came(SINK));
    }
    scene.turn();
    assert_eq!(came, Vec::from_iter(0..100));
    assert_eq!(scene.fates, Vec::from_iter((0..100).map(|number| (SINK, number, None))));
    assert_eq!(scene.slots.in_flight(), 0);
}

#[test]
fn a_frame_with_a_deadline_passes_the_writers_frames() {
    let mut scene = Scene::new();
    (0..10).for_each(|number| scene.queue(SINK, number, 64_000));
    scene.turn();
    scene.queue_realtime(1000);
    scene.turn();
    assert_eq!((scene.came(SINK), &scene.fates[..]), (vec![1000], &[(SINK, 1000, None)][..]));
    scene.write(1);
    assert_eq!(scene.came(SINK), [0]);
}

#[test]
fn without_deadlines_the_worker_writes_again_and_nothing_overtakes() {
    let mut scene = Scene::new();
    (0..2).for_each(|number| scene.queue(SINK, number, 1_000));
    scene.turn();
    scene.worker.set_hands_over(false);
    (2..4).for_each(|number| scene.queue(SINK, number, 1_000));
    scene.turn();
    assert!(scene.came(SINK).is_empty(), "the first two come first");
    scene.write(2);
    scene.turn();
    assert_eq!(scene.came(SINK), [0, 1, 2, 3]);
    assert_eq!(scene.fates.len(), 4);
}

#[test]
fn a_frame_that_was_given_up_is_not_written() {
    let mut scene = Scene::new();
    (0..4).for_each(|number| scene.queue(SINK, number, 1_000));
    scene.turn();
    scene.write(1);
    // The writer does not reach the others for as long as a link may hold a frame.
    test_clock::set_time(START + crate::link::LONGEST);
    scene.turn();
    let late = Some(DropReason::HeldTooLong);
    assert_eq!(
        scene.fates,
        [(SINK, 0, None), (SINK, 1, late), (SINK, 2, late), (SINK, 3, late)],
        "each has one fate"
    );
    // The worker does not rely on the writer for a while.
    scene.queue(SINK, 4, 1_000);
    scene.turn();
    assert_eq!(scene.came(SINK), [0, 4]);
    test_clock::set_time(START + 2_000_000_000);
    scene.queue(SINK, 5, 1_000);
    scene.turn();
    assert!(scene.came(SINK).is_empty(), "then it does again");
    scene.write(4);
    assert_eq!(scene.came(SINK), [5]);
    scene.queue(SINK, 6, 1_000);
    scene.turn();
    scene.worker.cancel_at(SINK, DropReason::ReceiverDown);
    drop(scene.worker.take_out(SINK));
    scene.write(1);
    assert!(scene.came(SINK).is_empty(), "the port is gone");
}

/// However much waits for one tap, the other has buffers.
#[test]
fn no_tap_takes_all_buffers() {
    let mut scene = Scene::new();
    (0..100).for_each(|number| scene.queue(SINK, number, 60));
    scene.turn();
    (0..100).for_each(|number| scene.queue(OTHER, number, 60));
    scene.turn();
    let mut jobs = 0;
    while scene.writer.as_mut().unwrap().write_one() {
        jobs += 1;
    }
    let (first, second) = (scene.came(SINK).len(), scene.came(OTHER).len());
    assert_eq!((first, second, jobs), (8, 8, 16));
}

/// A slow stack uses its part of the writer's time, not other taps' or the worker's.
#[test]
fn a_tap_that_takes_long_does_not_keep_the_writer() {
    let mut scene = Scene::new();
    scene.queue(SINK, 0, 60);
    scene.turn();
    scene.writer.as_mut().unwrap().write_one_as_if_it_took(2_000_000);
    (1..4).for_each(|number| scene.queue(SINK, number, 60));
    scene.queue(OTHER, 10, 60);
    scene.turn();
    scene.write(1);
    assert_eq!((scene.came(SINK), scene.came(OTHER)), (vec![0], vec![10]));
    test_clock::set_time(START + 9_000_000);
    scene.turn();
    scene.write(1);
    assert_eq!(scene.came(SINK), [1], "one at a time");
    // Given-up frames say nothing of the length of a write.
    scene.queue(OTHER, 11, 60);
    scene.turn();
    scene.worker.cancel_at(OTHER, DropReason::ReceiverDown);
    scene.writer.as_mut().unwrap().write_one_as_if_it_took(0);
}

#[test]
fn another_workers_writer_goes_on_where_the_first_has_ended() {
    let mut scene = Scene::new();
    scene.queue(SINK, 0, 60);
    scene.turn();
    let (writer, hand) = Writer::new();
    let mut first = scene.writer.replace(writer).unwrap();
    scene.worker.set_tap_writer(hand(1, std::thread::current()));
    scene.queue(SINK, 1, 60);
    scene.turn();
    assert!(!scene.writer.as_mut().unwrap().write_one(), "it would overtake");
    assert!(first.write_one());
    scene.turn();
    scene.write(1);
    scene.turn();
    assert_eq!((scene.came(SINK), scene.fates.len()), (vec![0, 1], 2));
}

#[test]
fn a_writer_writes_all_frames_and_ends_with_its_worker() {
    let mut scene = Scene::new();
    let (writer, hand) = Writer::new();
    static RUNG: AtomicUsize = AtomicUsize::new(0);
    let thread = std::thread::spawn(move || writer.run(|| _ = RUNG.fetch_add(1, Ordering::Relaxed)));
    scene.worker.set_tap_writer(hand(1, thread.thread().clone()));
    (0..200).for_each(|number| scene.queue(SINK, number, 1_000));
    let mut came = Vec::new();
    while scene.fates.len() < 200 {
        scene.turn();
        came.extend(scene.came(SINK));
        std::thread::yield_now();
    }
    came.extend(scene.came(SINK));
    assert_eq!(came, Vec::from_iter(0..200));
    assert_eq!(RUNG.load(Ordering::Relaxed), 200);
    drop(scene);
    thread.join().unwrap();
}
