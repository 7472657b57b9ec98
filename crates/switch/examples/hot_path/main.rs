//! The hot path on one thread, with fixed input: what a frame costs where no other core touches
//! the rings. The worker's loop is the only thing measured.
//!
//! ```text
//!  driver (not counted): fills tx ring, gives rx buffers ─▶ Worker::turn ─▶ driver takes all back
//! ```
//!
//! `cargo run --release -p tidegate-switch --example hot_path` prints nanoseconds a frame. With `--frames N`
//! it carries N frames of each case and prints nothing: for instruction counts. `--case NAME`
//! takes one case; `--list` names them.

mod cases;
mod guest;

use cases::{CASES, Case, mac};
use guest::Guest;
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_contract::{Host, Vnic};
use tidegate_switch::fdb::{Fdb, SegmentIndex};
use tidegate_switch::port::vhost::VhostPort;
use tidegate_switch::port::{Link, Port, PortContract, PortInfo, PortSet};
use tidegate_switch::stats::Region;
use tidegate_switch::worker::events::Events;
use tidegate_switch::worker::{Worker, mailbox};

/// Frames given to the worker at a time.
const BATCH: u16 = 256;
/// The same where they wait for buffers: what it takes in one loop, so that none waits too long.
const WAITING: u16 = 32;

fn vnic(index: u16, contract: &str) -> Vnic {
    let [a, b, c, d, e, f] = mac(index);
    let text = format!(
        "[vnic.v{index}]\nattach = {{ vhost-user = \"/run/v{index}\" }}\n\
         mac = \"{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}\"\nsegment = 7\n{contract}\n"
    );
    tidegate_contract::parse(&text, "bench").expect("a contract").vnics.remove(0).value
}

/// Guests and the worker between them.
struct Scene {
    worker: Worker,
    sender: Guest,
    receivers: Vec<Guest>,
    /// Of a received frame, with its header.
    len: usize,
    late_buffers: bool,
}

impl Scene {
    fn new(case: &Case) -> Self {
        let (_, inbox) = mailbox().expect("a mailbox");
        let layout = Region::create().expect("memory").layout();
        let fdb = Arc::new(Fdb::new());
        let (faults, _) = std::sync::mpsc::channel();
        let (events, _) = Events::new(Arc::default());
        let stats = &layout.workers[0];
        let mut worker =
            Worker::new(0, inbox, fdb.clone(), Arc::default(), vec![None], stats, faults, events)
                .expect("a worker");
        let segment = SegmentIndex(0);
        let mut promised = PortSet::EMPTY;
        promised.insert(1);
        let frames = case.frames.build();
        let mut guests = Vec::new();
        for (index, contract) in (0..).zip(case.contracts) {
            let vnic = vnic(index, contract);
            let guest = Guest::new(case.features, if index == 0 { &frames } else { &[] });
            let compiled = PortContract::new(&vnic, &Host::default());
            let stats = &layout.vnics[usize::from(index)];
            let link = Link::Vhost(VhostPort::default());
            worker.add_port(Box::new(Port::new(index, segment, compiled, stats, link)));
            let to = if index == 0 { promised.clone() } else { PortSet::EMPTY };
            worker.set_info(index, Some(PortInfo::new(&vnic, 0, segment, to)));
            fdb.pin(segment, vnic.mac, index).expect("room");
            worker.set_features(index, case.features);
            worker.set_memory(index, &guest.map()).expect("memory");
            for (queue, ring) in [(0, &guest.rx), (1, &guest.tx)] {
                worker.start_queue(index, queue, guest.setup(queue, ring)).expect("a ring");
                worker.enable_queue(index, queue, true);
            }
            guests.push(guest);
        }
        worker.set_members(vec![(0..guests.len() as u16).collect()]);
        let receivers = guests.split_off(1);
        let sender = guests.remove(0);
        Self { worker, sender, receivers, len: frames[0].len(), late_buffers: case.late_buffers }
    }

    /// One batch through the switch; returns the time the worker took.
    fn round(&mut self) -> Duration {
        let mut took = Duration::ZERO;
        let (batches, size) = if self.late_buffers { (BATCH / WAITING, WAITING) } else { (1, BATCH) };
        for _ in 0..batches {
            if self.late_buffers {
                self.sender.send(size);
                took += self.turn();
                self.receivers.iter_mut().for_each(|guest| guest.give_buffers(size));
            } else {
                self.receivers.iter_mut().for_each(|guest| guest.give_buffers(u16::MAX));
                self.sender.send(size);
            }
            // What came back already: a worker without work would sleep.
            let mut sent = self.sender.take_back();
            while sent < size {
                took += self.turn();
                sent += self.sender.take_back();
                self.receivers.iter_mut().for_each(|guest| guest.receive(self.len));
            }
        }
        took
    }

    fn turn(&mut self) -> Duration {
        let before = Instant::now();
        self.worker.turn();
        before.elapsed()
    }
}

fn measure(case: &Case) -> f64 {
    let mut scene = Scene::new(case);
    let mut rounds = Vec::new();
    for _ in 0..4_000 {
        rounds.push(scene.round().as_nanos() as f64 / f64::from(BATCH));
    }
    rounds.sort_by(f64::total_cmp);
    rounds[rounds.len() / 2]
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let value = |name: &str| args.iter().position(|arg| arg == name).and_then(|at| args.get(at + 1));
    let named = value("--case");
    let cases = CASES.iter().filter(|case| named.is_none_or(|name| name == case.name));
    if args.iter().any(|arg| arg == "--list") {
        return cases.for_each(|case| println!("{}", case.name));
    }
    match value("--frames").and_then(|n| n.parse::<u32>().ok()) {
        Some(frames) => cases.for_each(|case| {
            let mut scene = Scene::new(case);
            (0..frames.div_ceil(u32::from(BATCH))).for_each(|_| _ = black_box(scene.round()));
        }),
        None => cases.for_each(|case| println!("{:<14} {:6.1} ns a frame", case.name, measure(case))),
    }
}
