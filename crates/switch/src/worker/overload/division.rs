//! Guests that cost a worker more time than their bytes say, beside a victim that does not: it keeps its
//! share by weight of the frames that it sent alone.
//!
//! ```text
//!  victim ═ 64 B, directly ══════════▶ its peer
//!  hostile: frames of 64 pieces that are dropped │ a receiver of tiny buffers │ floods │ kicks
//!
//!  the clock: so many ns for each frame that a port's counters say was taken, dropped, delivered
//! ```

use super::guests::{Guest, Shape};
use crate::clock::test_clock;
use crate::sched::TokenBucket;
use crate::stats::layout::VnicSlot;
use crate::worker::turns::BATCH;
use crate::worker::{Worker, WorkerHandle, testing};
use std::cell::{Cell, RefCell};
use tidegate_contract::Bytes;

const START: u64 = 1_000_000_000_000;
/// Time of a loop besides its frames (ns).
const LOOP: u64 = 200;
/// Time of the victim's frame (ns).
const FRAME: u64 = 60;
/// Length of a count (ns).
const TIME: u64 = 5_000_000;

/// Time of each frame of a port (ns).
#[derive(Clone, Copy, Default)]
struct Costs {
    sent: u64,
    dropped: u64,
    received: u64,
}

thread_local! {
    static COSTS: RefCell<Vec<(&'static VnicSlot, Costs)>> = const { RefCell::new(Vec::new()) };
    /// Time of loops besides frames (ns).
    static LOOPS: Cell<u64> = const { Cell::new(0) };
}

fn time() -> u64 {
    let port = |(stats, costs): &(&VnicSlot, Costs)| {
        let dropped: u64 = stats.tx.dropped.iter().map(|dropped| dropped.get()).sum();
        stats.tx.frames.get() * costs.sent + dropped * costs.dropped + stats.rx.frames.get() * costs.received
    };
    START + LOOPS.get() + COSTS.with_borrow(|costs| costs.iter().map(port).sum::<u64>())
}

/// A hostile guest's frames.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Deed {
    /// Frames of 64 pieces with another's source address.
    Scattered,
    /// Buffers of 64 bytes for frames of 1518.
    TinyBuffers,
    /// Broadcasts.
    Flood,
}

struct Scene {
    worker: Worker,
    handle: WorkerHandle,
    guests: Vec<Guest>,
    deed: Deed,
}

impl Scene {
    /// The victim, port 0, sends to port 1, and each hostile port to the next one.
    fn new(deed: Deed, weight: u32, pairs: usize) -> Self {
        COSTS.set(Vec::new());
        LOOPS.set(0);
        test_clock::set_clock(time);
        let (mut worker, handle) = testing::worker();
        let mut guests = Vec::new();
        for index in 0..2 + 2 * pairs as u16 {
            let keys = if index == 0 { format!("weight = {weight}") } else { String::new() };
            let info = testing::add_port_with(&mut worker, index, &keys);
            worker.set_info(index, Some(info));
            let is_tiny = deed == Deed::TinyBuffers && index > 1;
            let size = if is_tiny { 1518 } else { 64 };
            let mut guest = Guest::new(Shape { size, ring: 256, packed: false }, index, index ^ 1);
            if is_tiny {
                guest.buffer = 64;
            }
            guest.connect(&mut worker, index);
            guests.push(guest);
            let port = worker.ports[usize::from(index)].as_mut().unwrap();
            // Only time bounds floods here.
            port.flood = TokenBucket::new("100gbit".parse().unwrap(), Bytes::new(1 << 40));
            let costs = match (deed, index) {
                (_, 0) => Costs { sent: FRAME, ..Costs::default() },
                (_, 1) => Costs::default(),
                (Deed::Scattered, _) => Costs { dropped: 3_000, ..Costs::default() },
                (Deed::TinyBuffers, _) => Costs { sent: 100, received: 2_000, ..Costs::default() },
                (Deed::Flood, _) => Costs { sent: 2_000, received: 400, ..Costs::default() },
            };
            COSTS.with_borrow_mut(|all| all.push((port.stats, costs)));
        }
        worker.set_members(vec![(0..guests.len() as u16).collect()]);
        Self { worker, handle, guests, deed }
    }

    fn turn(&mut self) {
        for (index, guest) in self.guests.iter_mut().enumerate() {
            guest.receive();
            match self.deed {
                _ if index == 0 => guest.send(),
                Deed::Scattered if index > 1 && index % 2 == 0 => {
                    let mut pieces = [1; 64];
                    pieces[63] = 13;
                    guest.send_spoofed(&pieces);
                }
                Deed::TinyBuffers if index > 1 && index % 2 == 0 => guest.send(),
                Deed::Flood if index > 1 && index % 2 == 0 => guest.broadcast(),
                _ => {}
            }
        }
        LOOPS.set(LOOPS.get() + LOOP);
        self.worker.work();
    }

    /// Returns the victim's frames in a while.
    fn victim(&mut self) -> u64 {
        let run = |scene: &mut Self, ns: u64| {
            let until = time() + ns;
            while time() < until {
                scene.turn();
            }
            scene.worker.ports[0].as_ref().unwrap().stats.tx.frames.get()
        };
        let before = run(self, TIME / 10);
        run(self, TIME) - before
    }

    /// Ends all frames in flight.
    fn end(mut self) {
        while self.guests.iter_mut().any(Guest::is_sending) || !self.worker.active.is_empty() {
            self.guests.iter_mut().for_each(Guest::receive);
            LOOPS.set(LOOPS.get() + 20_000);
            self.worker.work();
        }
    }
}

/// A victim of weight 1 and of 9, beside one and four hostile ports, keeps 0.9 of its share.
#[test]
fn a_victim_keeps_its_share_of_the_time() {
    let mut all = Vec::new();
    for deed in [Deed::Scattered, Deed::TinyBuffers, Deed::Flood] {
        for (weight, ports) in [(1, 1), (9, 1), (1, 4), (9, 4)] {
            let mut alone = Scene::new(deed, weight, 0);
            let had = alone.victim();
            alone.end();
            let mut scene = Scene::new(deed, weight, ports);
            let has = scene.victim();
            scene.end();
            // Both ports of a pair with tiny buffers cost the worker time.
            let hostile = if deed == Deed::TinyBuffers { 2 * ports } else { ports };
            let share = f64::from(weight) / (f64::from(weight) + hostile as f64);
            let kept = has as f64 / (had as f64 * share);
            all.push((deed, weight, ports, kept));
        }
    }
    assert!(all.iter().all(|(.., kept)| *kept >= 0.9), "{all:?}");
}

/// A front end's request is charged to no port whose frames follow it, and shortens none of its turns.
#[test]
fn a_call_is_no_part_of_a_turn() {
    let mut scene = Scene::new(Deed::Flood, 1, 0);
    let calls = 10;
    for _ in 0..calls {
        scene.handle.call_first(|_| LOOPS.set(LOOPS.get() + 150_000));
        scene.turn();
    }
    let stats = scene.worker.ports[0].as_ref().unwrap().stats;
    let (frames, took) = (stats.tx.frames.get(), stats.work.take.get());
    assert!(frames >= calls, "{frames} frames");
    assert!(took <= frames * FRAME + calls * LOOP, "{took} ns for {frames} frames");
    assert_eq!(scene.worker.turns.batch(0), BATCH);
    scene.end();
}

/// Reading a receiver's descriptors is charged to the receiver, also if one chain has them all, or is
/// refused.
#[test]
fn descriptors_are_charged_to_their_receiver() {
    for (pieces, buffer) in [(30, 1518 + 12), (30, 200)] {
        let mut scene = Scene::new(Deed::TinyBuffers, 1, 1);
        let receiver = &mut scene.guests[3];
        (receiver.pieces, receiver.buffer) = (pieces, buffer);
        for _ in 0..1_000 {
            scene.turn();
        }
        let work = [2, 3].map(|port: usize| &scene.worker.ports[port].as_ref().unwrap().stats.work);
        let (sender, receiver) = (work[0].deliver.get(), work[1].buffers.get());
        assert!(receiver > 3 * sender / 4, "sender {sender} ns, receiver {receiver} ns, {buffer} bytes");
        scene.end();
    }
}

/// A worker with the victim and its peer, and one with hostile ports that send to the first one's, each
/// frame as costly as 30 of the victim's.
struct TwoWorkers {
    workers: Vec<Worker>,
    guests: Vec<Guest>,
}

impl TwoWorkers {
    fn new(weight: u32, pairs: usize) -> Self {
        COSTS.set(Vec::new());
        LOOPS.set(0);
        test_clock::set_clock(time);
        let (mut workers, _handles): (Vec<_>, Vec<_>) = testing::workers(2).into_iter().unzip();
        let mut guests = Vec::new();
        for index in 0..2 + 2 * pairs as u16 {
            let keys = if index == 0 { format!("weight = {weight}") } else { String::new() };
            let at = Self::worker_of(index);
            let info = testing::add_port_with(&mut workers[at], index, &keys);
            workers.iter_mut().for_each(|worker| worker.set_info(index, Some(info.clone())));
            let mut guest = Guest::new(Shape { size: 64, ring: 256, packed: false }, index, index ^ 1);
            guest.connect(&mut workers[at], index);
            guests.push(guest);
            let costs = match index {
                0 => Costs { sent: FRAME, ..Costs::default() },
                _ if index > 1 && index % 2 == 1 => Costs { received: 30 * FRAME, ..Costs::default() },
                _ => Costs::default(),
            };
            let stats = workers[at].ports[usize::from(index)].as_ref().unwrap().stats;
            COSTS.with_borrow_mut(|all| all.push((stats, costs)));
        }
        workers.iter_mut().for_each(|worker| worker.set_members(vec![(0..guests.len() as u16).collect()]));
        // Direct frames would be the other worker's cost.
        workers[1].batch = None;
        Self { workers, guests }
    }

    /// Returns the worker of a port: hostile senders are elsewhere.
    fn worker_of(index: u16) -> usize {
        usize::from(index > 1 && index.is_multiple_of(2))
    }

    fn victim(&mut self) -> u64 {
        let run = |scene: &mut Self, ns: u64| {
            let until = time() + ns;
            while time() < until {
                for (index, guest) in scene.guests.iter_mut().enumerate() {
                    guest.receive();
                    if index % 2 == 0 {
                        guest.send();
                    }
                }
                LOOPS.set(LOOPS.get() + LOOP);
                // The other worker has a CPU of its own.
                for worker in &mut scene.workers {
                    worker.work();
                }
            }
            scene.workers[0].ports[0].as_ref().unwrap().stats.tx.frames.get()
        };
        let before = run(self, TIME / 10);
        run(self, TIME) - before
    }

    fn end(mut self) {
        while self.guests.iter_mut().any(Guest::is_sending)
            || self.workers.iter().any(|worker| !worker.active.is_empty())
        {
            self.guests.iter_mut().for_each(Guest::receive);
            LOOPS.set(LOOPS.get() + 20_000);
            for worker in &mut self.workers {
                worker.work();
            }
        }
    }
}

/// Another worker's frames have the weight of their ports, not half of the time.
#[test]
fn a_victim_keeps_its_share_beside_frames_of_another_worker() {
    let mut all = Vec::new();
    for (weight, ports) in [(1, 1), (9, 1), (1, 4), (9, 4)] {
        let mut alone = TwoWorkers::new(weight, 0);
        let had = alone.victim();
        alone.end();
        let mut scene = TwoWorkers::new(weight, ports);
        let has = scene.victim();
        scene.end();
        let share = f64::from(weight) / (f64::from(weight) + ports as f64);
        all.push((weight, ports, has as f64 / (had as f64 * share)));
    }
    assert!(all.iter().all(|(.., kept)| *kept >= 0.9), "{all:?}");
}
