//! Senders behind taps, and receivers whose links complete later, on workers that take turns.

use super::super::WorkerHandle;
use super::super::{Worker, moving, testing};
use crate::fdb::{PortIndex, SegmentIndex};
use crate::link::LONGEST;
use crate::link::deferred::{DEPTH, Script};
use crate::link::{Link, Rx, deferred};
use crate::stats::Region;
use crate::stats::layout::VnicSlot;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard};
use tidegate_contract::{Mac, SUPER_FRAME};

/// Length of a loop (ns).
const LOOP: u64 = 20_000;
/// Ports with a lower index send; the others receive.
pub(super) const SENDERS: PortIndex = 2;
/// The address of all ports.
pub(super) const EVERYONE: [u8; 6] = [0xff; 6];
/// Ethernet, IPv4 and UDP.
const HEADERS: usize = 42;

/// The other end of a port.
struct End {
    /// The port's worker.
    worker: usize,
    /// A sender's end.
    socket: OwnedFd,
    /// How a receiver completes frames.
    script: Arc<Mutex<Script>>,
    stats: &'static VnicSlot,
    /// Td of its frames (ns).
    deadline: Option<u64>,
}

pub(super) struct Scene {
    pub(super) workers: Vec<Worker>,
    handles: Arc<[WorkerHandle]>,
    ends: Vec<Option<End>>,
    pub(super) now: u64,
    /// Sent frames.
    numbers: u32,
    /// Frames of removed ports: sent, delivered by the receivers' count, and dropped.
    before: [u64; 3],
    /// Frames that arrived, by the links.
    arrived: u64,
    /// A frame was sent to all: it has two fates.
    flooded: bool,
}

impl Scene {
    /// Returns two senders and two receivers, each on the next of `workers`; the second sender's frames
    /// have a deadline of `deadline` ns.
    pub(super) fn new(workers: usize, deadline: Option<u64>) -> Self {
        let now = 1_000_000_000;
        testing::set_time(now);
        let (workers, handles): (Vec<_>, Vec<_>) = testing::workers(workers).into_iter().unzip();
        let (handles, ends) = (handles.into(), (0..4).map(|_| None).collect());
        let mut scene =
            Self { workers, handles, ends, now, numbers: 0, before: [0; 3], arrived: 0, flooded: false };
        scene.workers.iter_mut().for_each(|worker| worker.set_members(vec![(SENDERS..4).collect()]));
        for port in 0..4 {
            let worker = usize::from(port) % scene.workers.len();
            scene.add(port, worker, deadline.filter(|_| port == 1));
        }
        scene
    }

    pub(super) fn add(&mut self, port: PortIndex, worker: usize, deadline: Option<u64>) {
        if self.ends[usize::from(port)].is_some() {
            return;
        }
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let (socket, tap) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let stats = &Region::create().unwrap().layout().vnics[usize::from(port)];
        let mut link = Link::tap(vec![tap], port, worker as u16, self.now);
        let (rx, script) = deferred::Rx::new();
        if port >= SENDERS {
            link.rx = Rx::Deferred(rx);
        }
        let mut info = testing::add_link(&mut self.workers[worker], port, "mtu = 9000", link, stats);
        info.deadline = deadline;
        (SENDERS..4).for_each(|receiver| info.to.insert(receiver));
        self.workers.iter_mut().for_each(|worker| worker.set_info(port, Some(info.clone())));
        self.ends[usize::from(port)] = Some(End { worker, socket, script, stats, deadline });
    }

    /// Returns how a receiver completes frames.
    pub(super) fn script(&self, port: PortIndex) -> Option<MutexGuard<'_, Script>> {
        self.ends[usize::from(port)].as_ref().map(|end| end.script.lock().unwrap())
    }

    pub(super) fn stats(&self, port: PortIndex) -> &'static VnicSlot {
        self.ends[usize::from(port)].as_ref().expect("it is there").stats
    }

    /// Returns the worker of a port.
    pub(super) fn at(&mut self, port: PortIndex) -> &mut Worker {
        let end = self.ends[usize::from(port)].as_ref().expect("it is there");
        &mut self.workers[end.worker]
    }

    /// Sends a frame of `bytes`, all of which hold its number.
    pub(super) fn send(&mut self, from: PortIndex, to: [u8; 6], bytes: usize) {
        let Some(end) = &self.ends[usize::from(from)] else { return };
        self.flooded |= to == EVERYONE;
        let ip = (bytes - 14) as u16;
        let mut frame = vec![0; 12];
        frame.extend(to);
        frame.extend([0x52, 0x54, 0, 0, 0, from as u8, 0x08, 0x00, 0x45, 0, (ip >> 8) as u8, ip as u8]);
        frame.extend([0, 1, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        let udp = ip - 20;
        frame.extend([0, 7, 0, 7, (udp >> 8) as u8, udp as u8, 0, 0]);
        frame.extend(self.numbers.to_ne_bytes());
        frame.resize(12 + bytes, self.numbers as u8);
        if rustix::io::write(&end.socket, &frame).is_ok() {
            self.numbers += 1;
        }
        self.at(from).check_kicks();
    }

    /// Runs one loop of each worker.
    pub(super) fn turn(&mut self) {
        for worker in &mut self.workers {
            self.now += LOOP;
            testing::set_time(self.now);
            worker.work();
        }
    }

    pub(super) fn wait(&mut self, ns: u64) {
        self.now += ns;
        testing::set_time(self.now);
    }

    /// Quiets a port within bounded time, as the server does.
    pub(super) fn quiet(&mut self, port: PortIndex) {
        self.at(port).pause(port);
        self.workers.iter_mut().for_each(|worker| worker.drop_source(port));
        let begin = self.now;
        while !self.at(port).is_quiet(port) {
            let loops = self.workers.len() as u64 * LOOP;
            assert!(self.now - begin <= LONGEST + 3 * loops, "after {} ns", self.now - begin);
            self.turn();
        }
    }

    pub(super) fn remove(&mut self, port: PortIndex) {
        if self.ends[usize::from(port)].is_none() {
            return;
        }
        self.quiet(port);
        let mac = Mac([0x52, 0x54, 0, 0, 0, port as u8]);
        self.workers[0].fdb.unpin(SegmentIndex(0), mac, port);
        self.workers.iter_mut().for_each(|worker| worker.set_info(port, None));
        // Its slots report frames that are not back.
        drop(self.at(port).remove_port(port));
        // Other workers' references to its frames come back.
        (0..3).for_each(|_| self.turn());
        self.count(port);
        self.ends[usize::from(port)] = None;
    }

    /// Adds a port's counters to those of removed ports.
    fn count(&mut self, port: PortIndex) {
        let Some(end) = &self.ends[usize::from(port)] else { return };
        let stats = end.stats;
        let dropped: u64 = stats.tx.dropped.iter().map(|counter| counter.get()).sum();
        let fates = stats.delay.read().count() + dropped;
        assert!(self.flooded || stats.tx.frames.get() == fates, "each has one fate");
        for (sum, more) in self.before.iter_mut().zip([stats.tx.frames.get(), stats.rx.frames.get(), dropped])
        {
            *sum += more;
        }
        let script = end.script.lock().unwrap();
        assert!(script.most.0 <= SUPER_FRAME || script.most.1 == 1, "{:?}", script.most);
        assert!(script.most.1 <= DEPTH, "{:?}", script.most);
        let mut last = [None; SENDERS as usize];
        for frame in &script.delivered {
            let number = frame[HEADERS..HEADERS + 4].try_into().map(u32::from_ne_bytes).unwrap();
            assert!(frame[HEADERS + 4..].iter().all(|byte| *byte == number as u8), "its memory was reused");
            let last = &mut last[usize::from(frame[11])];
            assert!(*last < Some(number), "{number} after {last:?}");
            *last = Some(number);
        }
        assert_eq!(stats.rx.frames.get(), script.delivered.len() as u64);
        self.arrived += script.delivered.len() as u64;
    }

    pub(super) fn move_to(&mut self, port: PortIndex, to: usize) {
        let Some(end) = &self.ends[usize::from(port)] else { return };
        let from = end.worker;
        while !self.workers.iter().all(Worker::is_settled) {
            self.turn();
        }
        if from == to {
            return;
        }
        let outcome = moving::begin(&self.handles, port, (from, to), Vec::new(), 10_000_000);
        let outcome = loop {
            self.turn();
            if let Ok(outcome) = outcome.try_recv() {
                break outcome;
            }
        };
        if let (Ok(_), Some(end)) = (outcome, &mut self.ends[usize::from(port)]) {
            end.worker = to;
        }
    }

    /// Retires the switch, which then continues after all. Frames in flight have `patience` ns to arrive;
    /// returns whether some were dropped after that.
    pub(super) fn retire(&mut self, patience: u64) -> bool {
        self.workers.iter_mut().for_each(Worker::pause_all);
        let end = self.now + patience;
        while self.now < end && !self.workers.iter().all(Worker::is_drained) {
            self.turn();
        }
        let is_drained = self.workers.iter().all(Worker::is_drained);
        self.workers.iter_mut().for_each(Worker::put_back_pending);
        if !is_drained {
            self.workers.iter_mut().for_each(Worker::drop_all);
        }
        let begin = self.now;
        while !self.workers.iter_mut().all(Worker::is_all_quiet) {
            assert!(self.now - begin < 10 * LOOP * self.workers.len() as u64, "it does not end");
            self.turn();
        }
        let held =
            |worker: &Worker| worker.ports.iter().flatten().any(|port| !port.egress.outstanding.is_empty());
        assert!(!self.workers.iter().any(held) && self.workers.iter().all(Worker::is_drained));
        self.workers.iter_mut().for_each(Worker::resume_all);
        !is_drained
    }

    /// Ends everything; then each frame has one fate, and no slot or buffer is in use.
    pub(super) fn finish(mut self) {
        for port in SENDERS..4 {
            if let Some(mut script) = self.script(port) {
                (script.polls, script.breaks, script.full) = (0, false, false);
            }
        }
        for _ in 0..100 {
            self.turn();
        }
        assert!(self.workers.iter().all(Worker::is_drained), "something never ends");
        for port in (0..4).rev() {
            self.count(port);
        }
        let [sent, received, dropped] = self.before;
        assert_eq!(received, self.arrived);
        assert!(self.flooded || sent == received + dropped, "{sent} of {received} and {dropped}");
        for worker in &mut self.workers {
            assert_eq!(worker.flood.in_flight(), 0);
        }
        for port in 0..4 {
            self.remove(port);
        }
    }

    /// Returns Td of a present or former port.
    pub(super) fn deadline_of(&self, port: PortIndex) -> Option<u64> {
        self.ends[usize::from(port)].as_ref().and_then(|end| end.deadline)
    }
}
