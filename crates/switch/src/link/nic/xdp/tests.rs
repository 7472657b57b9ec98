//! Several workers that receive from one queue, against an exact model of where each chunk is.

use super::chunks::Chunks;
use super::form::{CHUNK, Form};
use super::ring::{Desc, Frames, Ring, both_sides};
use super::{Incoming, Queue, TAG};
use crate::frame::headers::ETHERTYPE_VLAN;
use proptest::prelude::*;
use std::collections::VecDeque;
use std::os::fd::AsFd;

const VLAN: u16 = 42;
/// Bytes of a frame with its tag: addresses, tag, and the frame's number.
const FRAME: usize = 12 + TAG + 8;

/// A place of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// In the fill ring, or taken out of it by the kernel without a frame.
    Kernel,
    /// In the receive ring of a worker, with a frame.
    Received { worker: usize },
    /// With a worker that copies its frame, until the worker looks again.
    Copied { worker: usize },
    /// On its way back to the owner.
    Returned { worker: usize },
}

fn number_of(chunk: u64) -> usize {
    assert_eq!(chunk % CHUNK as u64, 0);
    chunk as usize / CHUNK
}

/// A queue, and the kernel's side of it.
struct Scene {
    form: Form,
    workers: Vec<Incoming>,
    /// The kernel's sides.
    fill: Ring<u64>,
    receive: Vec<Ring<Desc>>,
    frames: Frames,
    /// Chunks that the kernel took and did not use.
    spare: VecDeque<u64>,
    /// The model: the place of each chunk, and the order in which frames are to come out.
    places: Vec<Place>,
    /// How many of these are the kernel's.
    free: usize,
    /// The chunk that each worker copies, and those on their way back.
    copied: Vec<Option<u64>>,
    returned: Vec<u64>,
    expected: Vec<VecDeque<(u64, u64)>>,
    number: u64,
    /// Chunks given back by each worker since it told the owner.
    untold: Vec<u32>,
}

impl Scene {
    fn new(sockets: usize) -> Self {
        let form = Form::new(sockets).unwrap();
        let memory = rustix::fs::memfd_create("umem", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&memory, form.memory() as u64).unwrap();
        let (ours, fill) = both_sides(form.to_receive());
        let frames = || Frames::map(memory.as_fd(), form).unwrap();
        let (mut workers, mut receive) = (vec![], vec![]);
        for (place, chunks) in Chunks::of_queue(ours, form).into_iter().enumerate() {
            let (ring, theirs) = both_sides(form.entries(place));
            workers.push(Incoming::of(vec![Queue { receive: ring, chunks, frames: frames() }]));
            receive.push(theirs);
        }
        let free = form.to_receive() as usize;
        Self {
            form,
            workers,
            fill,
            receive,
            frames: frames(),
            spare: VecDeque::new(),
            places: vec![Place::Kernel; free],
            free,
            copied: vec![None; sockets],
            returned: vec![],
            expected: vec![VecDeque::new(); sockets],
            number: 0,
            untold: vec![0; sockets],
        }
    }

    /// A frame arrives for a worker; it is lost without a chunk, or without room in that worker's ring.
    fn arrive(&mut self, worker: usize) {
        let chunk = self.spare.pop_front().or_else(|| {
            let chunk = self.fill.pop()?;
            self.fill.release();
            Some(chunk)
        });
        assert_eq!(chunk.is_some(), self.free > 0, "each chunk of the kernel is one that it can use");
        let Some(chunk) = chunk else { return };
        assert_eq!(self.places[number_of(chunk)], Place::Kernel, "{chunk:#x} is elsewhere, too");
        let ring = &mut self.receive[worker];
        if ring.room() == 0 {
            self.spare.push_back(chunk);
            return;
        }
        // The kernel leaves room before a frame.
        let at = chunk + 256;
        let bytes = self.frames.bytes(at, FRAME).unwrap();
        bytes[12..14].copy_from_slice(&ETHERTYPE_VLAN.to_be_bytes());
        bytes[14..16].copy_from_slice(&VLAN.to_be_bytes());
        bytes[16..].copy_from_slice(&self.number.to_ne_bytes());
        ring.push(Desc { at, len: FRAME as u32, options: 0 });
        ring.publish();
        self.places[number_of(chunk)] = Place::Received { worker };
        self.free -= 1;
        self.expected[worker].push_back((chunk, self.number));
        self.number += 1;
    }

    /// The chunk of a worker's last frame goes back; of the owner to the kernel.
    fn give(&mut self, worker: usize) {
        let Some(chunk) = self.copied[worker].take() else { return };
        if worker == 0 {
            return self.is_free(chunk);
        }
        self.places[number_of(chunk)] = Place::Returned { worker };
        self.returned.push(chunk);
        self.untold[worker] += 1;
    }

    fn is_free(&mut self, chunk: u64) {
        self.places[number_of(chunk)] = Place::Kernel;
        self.free += 1;
    }

    fn collected(&mut self) {
        std::mem::take(&mut self.returned).into_iter().for_each(|chunk| self.is_free(chunk));
    }

    /// A worker takes up to `most` frames.
    fn take(&mut self, worker: usize, most: usize) {
        if self.workers[worker].is_empty() {
            self.give(worker);
            let is_empty = self.workers[worker].receive(0).is_err();
            assert_eq!(is_empty, self.expected[worker].is_empty());
            if worker == 0 {
                self.collected();
            }
        }
        for _ in 0..most {
            let taken = self.workers[worker].take_next().map(|frame| {
                let frame = frame.unwrap();
                (frame.vlan, frame.bytes[12..].to_vec())
            });
            self.give(worker);
            let Some((vlan, bytes)) = taken else { break };
            let (chunk, number) = self.expected[worker].pop_front().unwrap();
            assert_eq!((vlan, &bytes[..]), (VLAN, &number.to_ne_bytes()[..]), "in order, and whole");
            self.places[number_of(chunk)] = Place::Copied { worker };
            self.copied[worker] = Some(chunk);
        }
        let due = worker != 0 && self.untold[worker] >= self.form.told();
        assert_eq!(self.workers[worker].is_due(), due);
        if due {
            self.untold[worker] = 0;
        }
    }

    /// The owner was told, or woke by itself.
    fn collect(&mut self) {
        self.workers[0].collect(|_| panic!("the driver asks for no call"));
        self.collected();
    }
}

#[derive(Clone, Debug)]
enum Step {
    Arrive {
        worker: usize,
        frames: usize,
    },
    Take {
        worker: usize,
        most: usize,
    },
    Collect,
    /// A worker takes nothing from now on.
    Stop {
        worker: usize,
    },
}

fn step(sockets: usize) -> impl Strategy<Value = Step> {
    let worker = 0..sockets;
    prop_oneof![
        6 => (worker.clone(), 1..900usize).prop_map(|(worker, frames)| Step::Arrive { worker, frames }),
        6 => (worker.clone(), 1..200usize).prop_map(|(worker, most)| Step::Take { worker, most }),
        3 => Just(Step::Collect),
        1 => worker.prop_map(|worker| Step::Stop { worker }),
    ]
}

fn case() -> impl Strategy<Value = (usize, Vec<Step>)> {
    (1..5usize).prop_flat_map(|sockets| (Just(sockets), prop::collection::vec(step(sockets), 1..60)))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Each chunk is in one place, as the model has it; no frame that a ring took is lost, doubled or out of order.
    #[test]
    fn each_chunk_has_one_place((sockets, steps) in case()) {
        let mut scene = Scene::new(sockets);
        let mut stopped = vec![false; sockets];
        for step in steps {
            match step {
                Step::Arrive { worker, frames } => (0..frames).for_each(|_| scene.arrive(worker)),
                Step::Take { worker, most } if !stopped[worker] => scene.take(worker, most),
                Step::Collect if !stopped[0] => scene.collect(),
                Step::Take { .. } | Step::Collect => {}
                Step::Stop { worker } => stopped[worker] = true,
            }
        }
        // In the end the kernel has every chunk that no stopped worker holds.
        if !stopped[0] {
            for worker in (0..sockets).filter(|worker| !stopped[*worker]) {
                while !scene.expected[worker].is_empty() {
                    scene.take(worker, 1000);
                }
                scene.take(worker, 1);
            }
            scene.collect();
            let held: Vec<_> = scene.places.iter().filter(|place| **place != Place::Kernel).collect();
            for place in &held {
                if let Place::Received { worker } | Place::Copied { worker } | Place::Returned { worker } = place {
                    prop_assert!(stopped[*worker], "not back: {place:?}");
                }
            }
            prop_assert!(scene.form.to_receive() - held.len() as u32 >= super::ENTRIES / 2);
        }
        prop_assert_eq!(scene.fill.filled() as usize + scene.spare.len(), scene.free);
    }
}

/// The link ends instead of a chunk in two places.
#[test]
fn a_chunk_without_a_place_breaks_the_link() {
    let form = Form::new(2).unwrap();
    let (ours, mut fill) = both_sides(form.to_receive());
    let [own, lent] = &mut Chunks::of_queue(ours, form)[..] else { panic!("two workers") };
    let first_to_send = form.sent().next().unwrap();
    lent.give(first_to_send);
    assert!(lent.is_broken() && !own.is_broken(), "no chunk to receive");
    let taken = fill.pop().unwrap();
    fill.release();
    own.give(taken + 256);
    assert!(!own.is_broken());
    own.give(taken);
    assert!(own.is_broken(), "given twice");
    assert_eq!(
        std::iter::from_fn(|| fill.pop()).count() as u32,
        form.to_receive(),
        "no entry is written over"
    );

    let mut scene = Scene::new(1);
    scene.receive[0].push(Desc { at: scene.form.sent().next().unwrap(), len: FRAME as u32, options: 0 });
    scene.receive[0].publish();
    assert!(scene.workers[0].receive(0).is_ok() && scene.workers[0].take_next().is_some());
    assert_eq!(scene.workers[0].receive(0), Err(rustix::io::Errno::FAULT));
}

/// A driver that found no chunk asks for a call, and waits for it.
#[test]
fn the_kernel_is_called_exactly_when_its_driver_waits_for_chunks() {
    let mut scene = Scene::new(2);
    let called = |scene: &mut Scene, worker: usize| {
        let mut calls: Vec<usize> = vec![];
        scene.workers[worker].collect(|queue| calls.push(queue));
        calls
    };
    assert!([0, 1].iter().all(|worker| called(&mut scene, *worker).is_empty()));
    scene.fill.need_wakeup(true);
    assert_eq!([0, 1].map(|worker| called(&mut scene, worker)), [vec![0], vec![]], "by the owner alone");
    while scene.fill.pop().is_some() {}
    scene.fill.release();
    assert!(called(&mut scene, 0).is_empty(), "there are no chunks to tell of");
    scene.receive[1].push(Desc { at: 0, len: FRAME as u32, options: 0 });
    scene.receive[1].publish();
    assert!(scene.workers[1].receive(0).is_ok() && scene.workers[1].take_next().is_some());
    assert!(scene.workers[1].take_next().is_none());
    assert_eq!(called(&mut scene, 0), [0], "the first that comes back");
    scene.fill.need_wakeup(false);
    assert!(called(&mut scene, 0).is_empty());
}

/// A worker that stands still leaves frames to the others.
#[test]
fn a_worker_that_stands_still_takes_no_chunk_from_the_owner() {
    let mut scene = Scene::new(3);
    for _ in 0..5_000 {
        scene.arrive(1);
        scene.arrive(2);
        scene.arrive(0);
        scene.take(0, 10);
    }
    assert!(scene.expected[0].is_empty());
    let held = scene.expected[1].len() + scene.expected[2].len();
    assert_eq!(held as u32, 2 * scene.form.entries(1));
    // Nothing of the owner's was lost.
    assert_eq!(scene.number as usize, 5_000 + held);
}

/// Threads: the owner collects while another worker gives back.
#[test]
fn chunks_come_back_once_from_another_thread() {
    let form = Form::new(2).unwrap();
    let (ours, mut fill) = both_sides(form.to_receive());
    let mut ways = Chunks::of_queue(ours, form).into_iter();
    let (mut own, mut lent) = (ways.next().unwrap(), ways.next().unwrap());
    let rounds = if cfg!(miri) { 100 } else { 100_000 };
    let (mut kernel, mut received) = rtrb::RingBuffer::new(form.entries(1) as usize);
    let other = std::thread::spawn(move || {
        let mut seen = 0;
        while seen < rounds {
            let Ok(chunk) = received.pop() else {
                std::thread::yield_now();
                continue;
            };
            lent.give(chunk + 300);
            seen += 1;
        }
        lent
    });
    let mut sent = 0;
    while sent < rounds {
        own.collect();
        if kernel.is_full() || fill.filled() == 0 {
            std::thread::yield_now();
            continue;
        }
        kernel.push(fill.pop().unwrap()).unwrap();
        fill.release();
        sent += 1;
    }
    let _lent = other.join().unwrap();
    own.collect();
    let mut back: Vec<u64> = std::iter::from_fn(|| fill.pop()).collect();
    back.sort_unstable();
    assert_eq!(back, form.received().collect::<Vec<_>>());
}
