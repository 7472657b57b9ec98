//! Every frame at an egress has one fate, whatever its receiver answers, and whatever changes while it
//! waits.
//!
//! ```text
//!  tap 0: best effort ─┐           ┌ contract: flows, fifo, another rate, none
//!                      ├▶ egress 1 ┤ segment, another port in its place           ─▶ Done, Later, Part, NoBuffers, ...
//!  tap 2: deadline ────┘           └ senders with a deadline, without, gone
//! ```

use super::tests::{MS, RATE, SIZE, START, contract, sent};
use crate::fdb::{PortIndex, SegmentIndex};
use crate::frame::testing::Frame;
use crate::link::deferred::{Answer, Script};
use crate::link::{Link, Rx, deferred};
use crate::stats::Region;
use crate::worker::{Worker, WorkerHandle, testing};
use proptest::prelude::*;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use tidegate_contract::Mac;

/// The receiver.
const TO: PortIndex = 1;
const PORTS: PortIndex = 3;
const EVERYONE: [u8; 6] = [0xff; 6];
/// The receiver's contracts.
const CONTRACTS: [&str; 6] = [
    RATE,
    "queueing = \"fifo\"\nrx = { max = \"20mbit\", burst = \"3kB\" }",
    "queueing = { target = \"1ms\", per-host = true }\nrx = { max = \"200mbit\", burst = \"64kB\" }",
    "rx = { max = \"20mbit\", burst = \"3kB\", discipline = \"fifo\" }",
    "rx = { max = \"50gbit\" }",
    "",
];

#[derive(Clone, Debug)]
enum Step {
    /// This many frames of a flow with this many segments, to all or to the receiver.
    Send {
        from: PortIndex,
        flow: u16,
        segments: usize,
        frames: usize,
        ect: bool,
        to_all: bool,
    },
    /// The receiver's next answers.
    Answers(Vec<Answer>),
    Contract(usize),
    /// A sender gets a deadline, or loses it.
    Deadline(PortIndex, bool),
    /// Another port takes a port's place.
    Replace(PortIndex),
    /// The receiver moves to another segment, or back.
    Segment(u16),
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let answer = prop_oneof![
        8 => Just(Answer::Done),
        4 => Just(Answer::Later),
        4 => (1..4u32).prop_map(Answer::Part),
        4 => Just(Answer::NoBuffers),
        2 => Just(Answer::Dropped),
        1 => Just(Answer::Broken),
    ];
    let sender = || prop_oneof![Just(0), Just(2)];
    let send = (sender(), 1..5u16, 0..20usize, 1..6usize, any::<bool>(), any::<bool>());
    prop_oneof![
        12 => send.prop_map(|(from, flow, segments, frames, ect, to_all)| {
            Step::Send { from, flow, segments, frames, ect, to_all: to_all && from == 2 }
        }),
        10 => prop::collection::vec(answer, 1..30).prop_map(Step::Answers),
        3 => (0..CONTRACTS.len()).prop_map(Step::Contract),
        3 => (sender(), any::<bool>()).prop_map(|(port, has)| Step::Deadline(port, has)),
        1 => (0..PORTS).prop_map(Step::Replace),
        1 => prop_oneof![Just(0), Just(1)].prop_map(Step::Segment),
        8 => prop_oneof![0..MS, MS..30 * MS].prop_map(Step::Wait),
    ]
}

struct Rig {
    worker: Worker,
    _handle: WorkerHandle,
    taps: [Option<OwnedFd>; PORTS as usize],
    script: Arc<Mutex<Script>>,
    segment: SegmentIndex,
    now: u64,
    /// Frames have several addressees: an arrival at one of these is not counted at the sender.
    flooded: bool,
}

thread_local! {
    /// Regions are never unmapped, so cases share one.
    static REGION: Region = Region::create().unwrap();
}

impl Rig {
    fn new() -> Self {
        testing::set_time(START);
        let (mut worker, _handle) = testing::worker();
        worker.set_members(vec![vec![TO]]);
        let (taps, segment) = (Default::default(), SegmentIndex(0));
        let mut rig =
            Self { worker, _handle, taps, script: Arc::default(), segment, now: START, flooded: false };
        (0..PORTS).for_each(|port| rig.add(port));
        rig
    }

    fn add(&mut self, port: PortIndex) {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let (theirs, ours) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let stats = REGION.with(|region| region.claim(usize::from(port), &format!("v{port}")));
        let mut link = Link::tap(vec![ours], port, 0, self.now);
        if port == TO {
            let (rx, script) = deferred::Rx::new();
            script.lock().unwrap().copies = true;
            (link.rx, self.script, self.segment) = (Rx::Deferred(rx), script, SegmentIndex(0));
        }
        let keys = if port == TO { RATE } else { "" };
        let mut info = testing::add_link(&mut self.worker, port, keys, link, stats);
        info.deadline = (port == 2).then_some(50 * MS);
        info.to.insert(TO);
        self.worker.set_info(port, Some(info));
        self.taps[usize::from(port)] = Some(theirs);
    }

    fn turn(&mut self) {
        self.now += 20_000;
        testing::set_time(self.now);
        self.worker.work();
    }

    fn wait(&mut self, ns: u64) {
        let end = self.now + ns;
        while self.now < end {
            self.turn();
        }
    }

    fn quiet(&mut self, port: PortIndex) {
        self.worker.pause(port);
        self.worker.drop_source(port);
        for _ in 0..100_000 {
            if self.worker.is_quiet(port) {
                return;
            }
            self.turn();
        }
        panic!("a frame of port {port} never comes back");
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Send { from, flow, segments, frames, ect, to_all } => {
                self.flooded |= to_all;
                let to = if to_all { EVERYONE } else { [0x52, 0x54, 0, 0, 0, TO as u8] };
                let payload = vec![7; segments * SIZE + 1];
                let spec = Frame { ports: [flow, 80], payload, ecn: u8::from(ect) * 2, ..Frame::tcp4(0) };
                for _ in 0..frames {
                    let tap = self.taps[usize::from(from)].as_ref().unwrap();
                    let _ = rustix::io::write(tap, &sent(&spec, from as u8, to));
                }
                self.worker.check_kicks();
            }
            Step::Answers(ref answers) => self.script.lock().unwrap().answers.extend(answers),
            Step::Contract(number) => self.worker.set_contract(TO, contract(CONTRACTS[number])),
            Step::Deadline(port, has) => {
                let mut info = self.worker.infos[usize::from(port)].clone().unwrap();
                info.deadline = has.then_some(50 * MS);
                self.worker.set_info(port, Some(info));
            }
            Step::Replace(port) => {
                self.remove(port);
                self.add(port);
            }
            Step::Segment(segment) => {
                self.quiet(TO);
                self.worker.set_segment(TO, SegmentIndex(segment));
                self.worker.resume(TO);
            }
            Step::Wait(ns) => self.wait(ns),
        }
        self.turn();
    }

    fn remove(&mut self, port: PortIndex) {
        self.quiet(port);
        self.worker.fdb.unpin(SegmentIndex(0), Mac([0x52, 0x54, 0, 0, 0, port as u8]), port);
        self.worker.set_info(port, None);
        self.check(port);
        // Its slots report a frame that is not back, or back twice.
        drop(self.worker.remove_port(port));
        self.taps[usize::from(port)] = None;
    }

    /// Checks a port without frames in flight.
    fn check(&self, port: PortIndex) {
        let port = self.worker.ports[usize::from(port)].as_ref().unwrap();
        assert_eq!(port.link.tx.in_flight(), 0);
        let dropped: u64 = port.stats.tx.dropped.iter().map(|counter| counter.get()).sum();
        if !self.flooded || port.index == 0 {
            assert_eq!(
                port.stats.tx.frames.get(),
                port.stats.delay.read().count() + dropped,
                "one fate each"
            );
        }
    }

    fn finish(mut self) {
        self.script.lock().unwrap().answers.clear();
        self.wait(400 * MS);
        let egress = &self.worker.ports[usize::from(TO)].as_ref().unwrap().egress;
        assert_eq!((egress.scheduler.backlog_total().frames, egress.scheduler.active_flows()), (0, 0));
        assert!(egress.outstanding.is_empty() && self.worker.is_drained());
        assert_eq!(self.worker.flood.in_flight(), 0);
        (0..PORTS).for_each(|port| self.check(port));
        (0..PORTS).for_each(|port| self.remove(port));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, max_shrink_iters: 400, ..ProptestConfig::default() })]

    #[test]
    fn every_frame_has_one_fate_by_flow(steps in prop::collection::vec(step(), 1..40)) {
        let mut rig = Rig::new();
        steps.iter().for_each(|step| rig.step(step));
        rig.finish();
    }
}

/// Frames that waited with a deadline wait by flow once their vNIC has none.
#[test]
fn a_deadline_that_goes_while_frames_wait_for_buffers() {
    for answer in [Answer::Done, Answer::Later, Answer::Dropped] {
        let mut rig = Rig::new();
        let send = Step::Send { from: 2, flow: 1, segments: 0, frames: 3, ect: false, to_all: false };
        let answers = [vec![Answer::NoBuffers; 2], vec![answer; 40]].concat();
        for step in [Step::Answers(answers), send, Step::Deadline(2, false), Step::Wait(MS)] {
            rig.step(&step);
        }
        rig.finish();
    }
}
