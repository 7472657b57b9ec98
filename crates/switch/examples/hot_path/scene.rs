//! Workers without threads, the vNICs they own, and what drives those.
//!
//! ```text
//!  drive ─▶ guests, taps ══rings, sockets══ ports of worker 0 ══crossing::Peer══ ports of worker 1
//!    └─ sets the workers' clock, and has each turn once
//! ```
//!
//! [`Scene::new`] is the only place here that makes links, ports and workers.

use crate::cases::{Case, Flow, Links, TSO, Who};
use crate::frames::mac;
use crate::guest::Guest;
use crate::tap::Tap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_contract::{Bytes, Host, Rate, Vnic};
use tidegate_switch::clock::test_clock::set_time;
use tidegate_switch::fdb::{Fdb, SegmentIndex};
use tidegate_switch::link::Link;
use tidegate_switch::port::{Port, PortContract, PortInfo, PortSet};
use tidegate_switch::stats::Region;
use tidegate_switch::worker::crossing::Peer;
use tidegate_switch::worker::events::Events;
use tidegate_switch::worker::lending::Lending;
use tidegate_switch::worker::{Peers, Worker, mailbox};

/// What a loop takes by the workers' clock, ns: no rate limit holds a frame up, and a worker that is idle
/// while the other is not does not fall asleep.
const LOOP: u64 = 10_000;
/// Loops in which a batch is through, unless something is wrong.
const LOOPS: u32 = 10_000;
/// Ring entries of a guest, and of one among many.
const RING: u16 = 1024;
const SHORT_RING: u16 = 64;

/// What drives a vNIC.
enum End {
    Guest(Box<Guest>),
    Tap(Tap),
}

impl End {
    fn send(&mut self, count: u16) {
        match self {
            Self::Guest(guest) => guest.send(count),
            Self::Tap(tap) => tap.send(count),
        }
    }

    fn give_buffers(&mut self, count: usize) {
        if let Self::Guest(guest) = self {
            guest.give_buffers(count);
        }
    }

    fn receive(&mut self) -> usize {
        match self {
            Self::Guest(guest) => guest.receive(),
            Self::Tap(tap) => tap.receive(),
        }
    }

    /// Frames that came back; all of `sent` where it has no ring that they come back to.
    fn take_back(&mut self, sent: u64) -> u64 {
        match self {
            Self::Guest(guest) => guest.take_back(),
            Self::Tap(_) => sent,
        }
    }
}

/// A case, ready to run.
pub struct Scene {
    workers: Vec<Worker>,
    /// The vNICs, by port.
    ends: Vec<End>,
    /// The first of them send; the others receive, or all where each does both.
    senders: usize,
    flow: Flow,
    batch: u16,
    /// Bytes that all receivers of a frame get, virtio headers included.
    delivered: usize,
    /// Buffers that one fills.
    filled: usize,
    /// The workers' time, ns, and what a loop takes of it.
    now: u64,
    a_loop: u64,
    /// Frames sent that are not yet delivered, and not yet given back.
    on_their_way: u64,
    not_back: u64,
    /// Bytes received that are not a whole frame yet.
    received: usize,
}

impl Scene {
    /// Workers, links and ports of `case`.
    pub fn new(case: &Case) -> Self {
        let now = 1_000_000_000;
        set_time(now);
        let layout = Region::create().expect("memory").layout();
        let fdb = Arc::new(Fdb::new());
        let mut workers = workers(if case.who == Who::Crossing { 2 } else { 1 }, &fdb);
        let host = Host {
            flood: Rate::from_bits(100_000_000_000).expect("a rate"),
            flood_burst: Bytes::new(1 << 20),
            ..Host::default()
        };
        let segment = SegmentIndex(0);
        let mut promised = PortSet::EMPTY;
        promised.insert(1);
        let (senders, ports) = match case.who {
            Who::First | Who::Crossing => (1, case.contracts.len() as u16),
            Who::Pairs(ports) => (usize::from(ports), ports),
        };
        let contract = |index: u16| match case.who {
            Who::Pairs(_) => "tx = { max = \"100gbit\" }\nrx = { max = \"100gbit\" }",
            _ => case.contracts[usize::from(index)],
        };
        let mut ends = Vec::new();
        for index in 0..ports {
            let sends = usize::from(index) < senders;
            let owner = if case.who == Who::Crossing && index > 0 { 1 } else { 0 };
            let frames = if sends { case.frames.build(index, index ^ 1) } else { Vec::new() };
            let vnic = vnic(index, contract(index));
            let by_tap = match case.links {
                Links::Guests => false,
                Links::FromTap => index == 0,
                Links::ToTap => index > 0,
                Links::Taps => true,
            };
            let (end, link) = if by_tap {
                let (tap, descriptor) = Tap::new(&frames);
                (End::Tap(tap), Link::tap(vec![descriptor], index, owner, now))
            } else {
                let ring = if senders > 2 { SHORT_RING } else { RING };
                (End::Guest(Box::new(Guest::new(case.features, ring, &frames))), Link::vhost_user())
            };
            let compiled = PortContract::new(&vnic, &host);
            let port = Port::new(index, segment, compiled, &layout.vnics[usize::from(index)], link);
            workers[usize::from(owner)].add_port(Box::new(port));
            let to = if index == 0 { promised.clone() } else { PortSet::EMPTY };
            let info = PortInfo::new(&vnic, owner, segment, to);
            workers.iter_mut().for_each(|worker| worker.set_info(index, Some(info.clone())));
            fdb.pin(segment, vnic.mac, index).expect("room");
            if let End::Guest(guest) = &end {
                connect(&mut workers[usize::from(owner)], index, case.features, guest);
            }
            ends.push(end);
        }
        workers.iter_mut().for_each(|worker| worker.set_members(vec![(0..ports).collect()]));
        let len = case.frames.build(0, 1)[0].len();
        let receivers =
            if matches!(case.frames, crate::frames::Frames::Broadcast(_)) { ports - 1 } else { 1 };
        let cut = case.features & TSO == 0 && case.links == Links::Guests;
        Self {
            workers,
            ends,
            senders,
            flow: case.flow,
            batch: case.batch,
            delivered: case.frames.delivered(len, cut) * usize::from(receivers),
            filled: case.frames.buffers(len, crate::guest::BUFFER as usize, cut),
            now,
            a_loop: match case.flow {
                // What so many frames take at the rate, rounded up.
                Flow::AtRate(frames, rate) => {
                    (u64::from(frames) * (len - crate::frames::HEADER) as u64 * 8_000_000_000).div_ceil(rate)
                }
                _ => LOOP,
            },
            on_their_way: 0,
            not_back: 0,
            received: 0,
        }
    }

    /// Frames of one round.
    pub fn frames(&self) -> u64 {
        self.senders as u64 * u64::from(self.batch)
    }

    /// One batch of each sender through the switch; returns the time the workers took.
    ///
    /// # Panics
    /// If a frame is not delivered.
    pub fn round(&mut self) -> Duration {
        let mut took = Duration::ZERO;
        let (at_a_time, waiting) = match self.flow {
            Flow::Ready => (self.batch, 0),
            Flow::Late(frames) => (frames, 0),
            Flow::AtRate(frames, _) => (self.batch, u64::from(frames)),
        };
        for _ in 0..self.batch / at_a_time {
            let late = matches!(self.flow, Flow::Late(_));
            if !late {
                self.ends.iter_mut().for_each(|end| end.give_buffers(usize::MAX));
            }
            self.send(at_a_time);
            if late {
                took += self.turn();
                let filled = usize::from(at_a_time) * self.filled;
                self.ends.iter_mut().for_each(|end| end.give_buffers(filled));
            }
            let mut loops = 0;
            while self.on_their_way > waiting || self.not_back > waiting {
                took += self.turn();
                self.collect();
                loops += 1;
                assert!(loops < LOOPS, "{} frames were not delivered", self.on_their_way);
            }
        }
        took
    }

    fn send(&mut self, count: u16) {
        self.ends[..self.senders].iter_mut().for_each(|sender| sender.send(count));
        let all = self.senders as u64 * u64::from(count);
        self.on_their_way += all;
        self.not_back += all;
    }

    /// Takes what was delivered and what came back.
    fn collect(&mut self) {
        self.received += self.ends.iter_mut().map(End::receive).sum::<usize>();
        self.on_their_way -= (self.received / self.delivered) as u64;
        self.received %= self.delivered;
        for sender in &mut self.ends[..self.senders] {
            self.not_back -= sender.take_back(self.not_back);
        }
    }

    /// Each worker's loop, once.
    fn turn(&mut self) -> Duration {
        self.now += self.a_loop;
        set_time(self.now);
        let mut took = Duration::ZERO;
        for number in 0..self.workers.len() {
            let left = self.on_their_way + self.not_back;
            let before = Instant::now();
            self.workers[number].turn();
            took += before.elapsed();
            self.collect();
            // The other one has nothing to do with frames that went directly, and would sleep.
            if self.on_their_way + self.not_back < left {
                break;
            }
        }
        took
    }
}

/// Workers that send each other frames.
fn workers(count: usize, fdb: &Arc<Fdb>) -> Vec<Worker> {
    let inboxes: Vec<_> = (0..count).map(|_| mailbox().expect("a mailbox").1).collect();
    let mut peers: Vec<Peers> = (0..count).map(|_| (0..count).map(|_| None).collect()).collect();
    for (a, b) in (0..count).flat_map(|a| (0..a).map(move |b| (a, b))) {
        let (at_a, at_b) = Peer::pair();
        peers[a][b] = Some((at_a, inboxes[b].bell().clone()));
        peers[b][a] = Some((at_b, inboxes[a].bell().clone()));
    }
    let (stats, lending) =
        (&Region::create().expect("memory").layout().workers, Arc::new(Lending::default()));
    let all = (0..).zip(inboxes).zip(peers).zip(stats);
    let made = all.map(|(((id, inbox), peers), stats)| {
        let (faults, _) = std::sync::mpsc::channel();
        let (events, _) = Events::new(Arc::default());
        Worker::new(id, inbox, fdb.clone(), Arc::default(), lending.clone(), peers, stats, faults, events)
            .expect("a worker")
    });
    made.collect()
}

/// Has `guest` drive port `index`.
fn connect(worker: &mut Worker, index: u16, features: u64, guest: &Guest) {
    worker.set_features(index, features);
    worker.set_memory(index, &guest.map()).expect("memory");
    for (queue, ring) in [(0, &guest.rx), (1, &guest.tx)] {
        worker.start_queue(index, queue, guest.setup(queue, ring)).expect("a ring");
        worker.enable_queue(index, queue, true);
    }
}

fn vnic(index: u16, contract: &str) -> Vnic {
    let [a, b, c, d, e, f] = mac(index);
    let text = format!(
        "[vnic.v{index}]\nattach = {{ vhost-user = \"/run/v{index}\" }}\n\
         mac = \"{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}\"\nsegment = 7\n{contract}\n"
    );
    tidegate_contract::parse(&text, "bench").expect("a contract").vnics.remove(0).value
}
