//! More than a worker can carry, and receivers that stall: the worker's own backlog drains, and only a
//! receiver that takes nothing loses frames.
//!
//! ```text
//!  senders, rings always full ─▶ workers ─▶ receivers, of which one gives no buffers for a while
//!                                  └ per loop: what waits, what was dropped
//! ```

mod between;
mod division;
mod guests;

use super::budget::{self, QUANTUM};
use super::{Worker, testing};
use crate::port::Port;
use guests::{Guest, Shape};
use proptest::prelude::*;
use tidegate_evidence::DropReason;

const START: u64 = 1_000_000_000_000;
/// Length of a loop (ns): the test's clock advances by this.
const LOOP: u64 = 20_000;
/// Loops of a receiver's stall.
const STALL: usize = 250;

/// Pairs of guests; each sends as fast as it may to the next.
#[derive(Clone, Debug)]
struct Scene {
    pairs: usize,
    shape: Shape,
    /// Number of workers: with two, sender and receiver are on different ones.
    workers: usize,
}

struct Switch {
    workers: Vec<Worker>,
    guests: Vec<Guest>,
    now: u64,
}

impl Switch {
    fn new(scene: &Scene) -> Self {
        testing::set_time(START);
        let mut workers: Vec<Worker> =
            testing::workers(scene.workers).into_iter().map(|(worker, _handle)| worker).collect();
        let mut guests = Vec::new();
        for index in 0..2 * scene.pairs {
            let (port, home) = (index as u16, index % scene.workers);
            let info = testing::add_port_with(&mut workers[home], port, "mtu = 9000");
            workers.iter_mut().for_each(|worker| worker.set_info(port, Some(info.clone())));
            let mut guest = Guest::new(scene.shape, port, port ^ 1);
            guest.connect(&mut workers[home], port);
            guests.push(guest);
        }
        Self { workers, guests, now: START }
    }

    /// Runs one loop of each worker in which all send; `stalled` takes nothing meanwhile.
    fn turn(&mut self, stalled: Option<usize>) {
        self.guests.iter_mut().step_by(2).for_each(Guest::send);
        self.turn_on(stalled);
    }

    fn turn_on(&mut self, stalled: Option<usize>) {
        for (index, guest) in self.guests.iter_mut().enumerate() {
            if index % 2 == 1 && Some(index) != stalled {
                guest.receive();
            }
        }
        self.now += LOOP;
        testing::set_time(self.now);
        for worker in &mut self.workers {
            worker.work();
        }
    }

    /// Runs loops until all sent frames have come back.
    fn end(&mut self) {
        while self.guests.iter_mut().any(Guest::is_sending) {
            self.turn_on(None);
        }
    }

    fn ports(&self) -> impl Iterator<Item = &Port> {
        self.workers.iter().flat_map(|worker| worker.ports.iter().flatten()).map(Box::as_ref)
    }

    /// Returns the cost of all frames that wait in the switch.
    fn waiting(&self) -> i64 {
        self.ports().map(|port| budget::waiting(port.egress.scheduler.backlog_total(), i64::MAX)).sum()
    }

    fn dropped(&self) -> u64 {
        DropReason::ALL.iter().map(|reason| self.dropped_for(*reason)).sum()
    }

    fn dropped_for(&self, reason: DropReason) -> u64 {
        self.ports().map(|port| port.stats.tx.dropped[reason as usize].get()).sum()
    }

    fn received(&self) -> u64 {
        self.guests.iter().map(|guest| guest.received).sum()
    }
}

fn scene() -> impl Strategy<Value = Scene> {
    let size = prop_oneof![Just(64u32), Just(1518), Just(4096), Just(9014), 64u32..9014];
    let ring = prop::sample::select(vec![128u16, 256, 1024]);
    let shape = (size, ring, any::<bool>()).prop_map(|(size, ring, packed)| Shape { size, ring, packed });
    (1usize..=8, shape, 1usize..=2).prop_map(|(pairs, shape, workers)| Scene { pairs, shape, workers })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// The lasting collapse: frames queued by one stall never left, although all receivers had buffers,
    /// since each loop took in more than it sent on.
    #[test]
    fn the_queue_of_a_stall_drains_and_stays_empty(scene in scene()) {
        let mut switch = Switch::new(&scene);
        let result = stall_and_go_on(&mut switch);
        if result.is_err() {
            // Frames in flight do not matter after a failure.
            std::mem::forget(switch);
        } else {
            switch.end();
        }
        result?;
    }
}

fn stall_and_go_on(switch: &mut Switch) -> Result<(), TestCaseError> {
    for _ in 0..20 {
        switch.turn(None);
    }
    prop_assert_eq!((switch.waiting(), switch.dropped()), (0, 0), "before any stall");
    for _ in 0..STALL {
        switch.turn(Some(1));
    }
    // The next loop finds the buffers; each one sends on at least half a quantum of the backlog.
    switch.turn(None);
    let loops = switch.waiting() / (QUANTUM / 2) + 1;
    for _ in 0..loops {
        switch.turn(None);
    }
    for reason in [DropReason::QueueFull, DropReason::WorkerBehind] {
        prop_assert_eq!(
            switch.dropped_for(reason),
            0,
            "{}: nothing has a rate, and no worker is late",
            reason.label()
        );
    }
    let (dropped, received) = (switch.dropped(), switch.received());
    for _ in 0..100 {
        prop_assert_eq!(switch.waiting(), 0, "after {} loops", loops);
        switch.turn(None);
    }
    prop_assert_eq!(switch.dropped(), dropped);
    prop_assert!(switch.received() > received);
    Ok(())
}

fn pair() -> Switch {
    let shape = Shape { size: 64, ring: 1024, packed: false };
    Switch::new(&Scene { pairs: 1, shape, workers: 1 })
}

/// Dropping a frame of 64 descriptors, empty ones too, costs many times that of a single descriptor.
#[test]
fn a_loop_drops_fewer_frames_where_they_are_scattered() {
    let (mut tiny, mut empty) = ([1; 64], [0; 64]);
    (tiny[63], empty[0]) = (13, 76);
    for lengths in [tiny, empty] {
        let mut switch = pair();
        for loops in 1..=2u64 {
            switch.guests[0].send_spoofed(&lengths);
            switch.turn_on(None);
            let each = budget::queued(0) + budget::scattered(64);
            let most = loops * (QUANTUM / each + 1) as u64;
            let dropped = switch.dropped_for(DropReason::SourceMac);
            assert!((1..=most).contains(&dropped), "{dropped} in {loops} loops, {most} are paid for");
        }
        switch.end();
    }
}

/// A contract bounds its sent frames, not the dropped ones.
#[test]
fn a_port_with_a_deadline_has_few_frames_dropped_in_a_loop() {
    let mut switch = pair();
    switch.workers[0].ports[0].as_mut().unwrap().contract.deadline = Some(5_000_000);
    switch.guests[0].send_spoofed(&[76]);
    switch.turn_on(None);
    let dropped = switch.dropped_for(DropReason::SourceMac);
    assert_eq!(dropped, (budget::DROPPED / budget::queued(0)) as u64);
    switch.end();
}
