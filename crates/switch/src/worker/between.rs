//! Real-time frames in the middle of a loop: best effort that takes long is interrupted for them.
//!
//! ```text
//!  egress's turn: best effort ─▶ CHECK cost delivered ─▶ real-time frames last looked for H / SHARE ago?
//!        ▲                                                       │ yes
//!        └── goes on ◀── delivered, shown ◀── real-time ports, other workers' real-time frames
//! ```
//!
//! A write of 64 kB into a tap runs the receiver's network stack and can take a good part of a millisecond, and a loop
//! may have some of them. So the worker looks for real-time frames after each; what is longer cannot be interrupted: one
//! write, one copy.

use super::Worker;
use crate::clock::clock;

/// Cost of best effort after which the clock is read.
pub(super) const CHECK: i64 = super::budget::QUANTUM / 4;
/// Real-time frames are looked for after each such part of H.
const SHARE: u64 = 8;

/// When to look for real-time frames.
#[derive(Default)]
pub(super) struct Between {
    /// Cost of deliveries since the last reading of the clock.
    unchecked: i64,
    /// Last look (ns).
    checked_at: u64,
    /// A look is due before best effort continues.
    due: bool,
}

impl Between {
    /// Begins a loop, which looks for real-time frames first.
    #[inline]
    pub(super) fn begin(&mut self, now: u64) {
        *self = Self { unchecked: 0, checked_at: now, due: false };
    }
}

impl Worker {
    /// Whether real-time frames can come at all.
    #[inline]
    pub(super) fn expects_realtime(&self) -> bool {
        self.realtime > 0 || self.peers.len() > 1
    }

    /// Notes delivered best effort of this cost; `true` if a look for real-time frames is due.
    #[inline]
    pub(super) fn is_interrupted(&mut self, cost: i64) -> bool {
        self.between.unchecked += cost;
        if self.between.unchecked < CHECK || !self.expects_realtime() {
            return false;
        }
        self.between.unchecked = 0;
        self.now = clock();
        self.between.due = self.now.saturating_sub(self.between.checked_at) >= self.host_latency / SHARE;
        self.between.due
    }

    /// Looks for real-time frames if due, and delivers them; `true` if it looked. All ports have to be in
    /// their places.
    pub(super) fn check_realtime(&mut self) -> bool {
        if !self.between.due {
            return false;
        }
        self.look_for_realtime();
        true
    }

    #[inline(never)]
    fn look_for_realtime(&mut self) {
        self.now = clock();
        self.between.begin(self.now);
        self.poll_descriptors();
        let mut came = self.urgent_crossings();
        if came {
            self.turns.leave_out(clock());
        }
        for place in 0..self.realtime {
            came |= self.visit_port(place, &mut 0).worked;
        }
        if !came {
            return;
        }
        for place in 0..self.active.len() {
            let index = self.active[place];
            let Some(mut port) = self.ports[usize::from(index)].take() else { continue };
            if self.take_back_to_serve(&mut port) {
                self.serve(&mut port, &mut 0);
                self.settle_bill(&port);
            }
            self.ports[usize::from(index)] = Some(port);
        }
        self.flush(false);
    }
}

#[cfg(test)]
mod tests {
    use crate::clock::test_clock;
    use crate::fdb::PortIndex;
    use crate::slots::Slots;
    use crate::stats::layout::VnicSlot;
    use crate::worker::{budget, testing};
    use rustix::io::{read, write};
    use std::cell::{Cell, RefCell};
    use std::os::fd::OwnedFd;

    const START: u64 = 1_000_000_000_000;
    /// Waiting frames of 64 kB.
    const BACKLOG: u64 = 12;
    /// Time to deliver each (ns).
    const FRAME: u64 = 100_000;
    /// H (ns): a look is due after each second frame.
    const HOST_LATENCY: u64 = 1_000_000;
    const VOICE: PortIndex = 0;
    const EAR: PortIndex = 1;
    const BULK: PortIndex = 2;
    const SINK: PortIndex = 3;

    /// What the clock counts.
    struct Scene {
        voice: OwnedFd,
        ear: &'static VnicSlot,
        sink: &'static VnicSlot,
        /// The real-time frame comes after this many of the backlog.
        comes_after: u64,
        came: Cell<bool>,
        /// Backlog frames delivered before it.
        heard_after: Cell<Option<u64>>,
    }

    thread_local! {
        static SCENE: RefCell<Option<Scene>> = const { RefCell::new(None) };
    }

    /// Advances with each delivered frame.
    fn time() -> u64 {
        SCENE.with_borrow(|scene| {
            let Some(scene) = scene else { return START };
            let delivered = scene.sink.rx.frames.get();
            if delivered >= scene.comes_after && !scene.came.replace(true) {
                write(&scene.voice, &testing::tap_frame(VOICE, EAR)).unwrap();
            }
            if scene.ear.rx.frames.get() > 0 && scene.heard_after.get().is_none() {
                scene.heard_after.set(Some(delivered));
            }
            START + delivered * FRAME
        })
    }

    /// Result of one turn of best effort.
    struct Outcome {
        heard_after: Option<u64>,
        /// Slots of the backlog's frames, in their order of leaving.
        left: Vec<u16>,
        dropped: usize,
        /// Frames that `SINK` and `EAR` got.
        given: [usize; 2],
    }

    /// Runs best effort's turn in a loop whose budget covers all waiting frames, while a real-time frame
    /// comes.
    fn deliver(comes_after: u64) -> Outcome {
        test_clock::set_time(START);
        let (mut worker, _handle) = testing::worker();
        let realtime = "tx = { max = \"1gbit\", burst = \"2kB\" }\ndeadline = \"10ms\"\nto = [\"v1\"]";
        let voice = testing::add_tap_with(&mut worker, VOICE, realtime);
        let [ear, _bulk, sink] = [EAR, BULK, SINK].map(|index| testing::add_tap(&mut worker, index));
        let mut info = worker.infos[usize::from(VOICE)].clone().unwrap();
        info.to.insert(EAR);
        worker.set_info(VOICE, Some(info));
        worker.set_host_latency(HOST_LATENCY);
        let mut slots = Slots::new(BACKLOG as u16, BULK, 0);
        for _ in 0..BACKLOG {
            let frame = slots.take().unwrap();
            (frame.get_mut().wire_bytes, frame.get_mut().wire_frames) = (64_000, 1);
            worker.enqueue(SINK, &[frame]);
        }
        let port = |index: PortIndex| worker.ports[usize::from(index)].as_ref().unwrap();
        assert_eq!(u64::from(port(SINK).egress.scheduler.backlog_total().frames), BACKLOG);
        let (came, heard_after) = (Cell::new(false), Cell::new(None));
        let (ear_stats, sink_stats) = (port(EAR).stats, port(SINK).stats);
        SCENE.set(Some(Scene { voice, ear: ear_stats, sink: sink_stats, comes_after, came, heard_after }));
        test_clock::set_clock(time);
        worker.between.begin(START);
        worker.egress(2 * BACKLOG as i64 * budget::QUANTUM);
        let heard_after = SCENE.with_borrow(|scene| scene.as_ref().unwrap().heard_after.get());

        let mut outcome = Outcome { heard_after, left: Vec::new(), dropped: 0, given: [0; 2] };
        for fate in worker.fates.drain() {
            outcome.dropped += usize::from(fate.dropped.is_some());
            let frame = fate.frame.get();
            if frame.source == BULK {
                outcome.left.push(frame.slot);
                slots.give(fate.frame);
            } else {
                worker.fates.push(fate);
            }
        }
        worker.settle();
        outcome.given =
            [&sink, &ear].map(|end| std::iter::from_fn(|| read(end, &mut [0; 2048]).ok()).count());
        outcome
    }

    #[test]
    fn a_realtime_frame_does_not_wait_for_the_end_of_best_effort() {
        for comes_after in 1..BACKLOG - 2 {
            let heard_after = deliver(comes_after).heard_after.expect("it is delivered in the same loop");
            assert!((comes_after..=comes_after + 2).contains(&heard_after), "{comes_after}: {heard_after}");
            assert!(heard_after < BACKLOG);
        }
    }

    #[test]
    fn best_effort_continues_after_real_time_frames_and_loses_none() {
        for comes_after in 1..BACKLOG - 2 {
            let outcome = deliver(comes_after);
            assert_eq!(
                outcome.left,
                Vec::from_iter(0..BACKLOG as u16),
                "each once, in order, in the same loop"
            );
            assert_eq!((outcome.dropped, outcome.given), (0, [BACKLOG as usize, 1]));
        }
    }
}
