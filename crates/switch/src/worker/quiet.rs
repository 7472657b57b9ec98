//! Ports that have nothing to send cost nothing: they are not polled, and their drivers are asked
//! for kicks.
//!
//! ```text
//!         rings: nothing for IDLE_LOOPS loops, kicks asked for
//!         taps: read until they would block
//!  polled ports ─────────────────────────────────────────────▶ quiet ports
//!        ▲                                                          │
//!        └── a kick, or a descriptor readable: seen asleep, ◀───────┘
//!            or while there is work by a look now and then
//! ```
//!
//! Nor do they cost the frame that wakes the worker anything: it visits only ports with frames. Real-time
//! ports and rings without a kick are always polled.

use super::Worker;
use crate::clock::clock;
use crate::fdb::PortIndex;
use crate::port::Port;
use crate::slots::NEVER;

/// Loops without a frame before a port is quiet: longer than the pauses of a busy sender.
const IDLE_LOOPS: u16 = 1024;
/// Pause of a busy worker between looks for kicks (ns). A look is a system call of some 300 ns, and as much
/// for each driver that kicked.
const LOOK: u64 = 50_000;
/// Looks take at most one part in this many of the worker's time.
const LOOKS: u64 = 16;

impl Worker {
    /// Notes whether a polled port had anything to send; `true` if it became quiet.
    pub(super) fn note_idle(&self, port: &mut Port, active: bool) -> bool {
        if active {
            port.idle_loops = 0;
            return false;
        }
        port.idle_loops += 1;
        if port.idle_loops < IDLE_LOOPS && !port.link.tx.has_descriptors() {
            return false;
        }
        port.idle_loops = 0;
        let realtime = port.contract.deadline.is_some();
        let busy = realtime || port.throttled_since != NEVER || port.waits() || port.pauses > 0;
        let tx = &mut port.link.tx;
        if busy || !tx.can_be_quiet() {
            return false;
        }
        if tx.request_kicks(false) {
            tx.suppress_kicks();
            return false;
        }
        port.quiet = true;
        true
    }

    /// Polls a quiet port again. Its frames arrived at `since` or later; the worker slept after that until
    /// `woke`, if that is later.
    pub(super) fn wake_port(&mut self, index: PortIndex, since: u64, woke: u64) {
        let Some(port) = &mut self.ports[index as usize] else { return };
        if !std::mem::take(&mut port.quiet) {
            return;
        }
        port.idle_loops = 0;
        port.link.tx.suppress_kicks();
        port.link.tx.note_sleep(since, woke);
        self.polled.push(index);
    }

    /// Looks for kicks now and then while there is work.
    pub(super) fn look_for_kicks(&mut self) {
        let quiet = self.polled.len() < self.owned.len();
        if quiet && self.now.saturating_sub(self.last_kick_check) >= LOOK.max(self.pause) {
            self.check_kicks();
        }
    }

    /// Looks for kicks and for taps' frames, without waiting.
    pub(super) fn check_kicks(&mut self) {
        self.last_kick_check = clock();
        self.wait(Some(0), self.last_kick_check);
    }

    /// Charges a look to the drivers whose kicks were heard; after a long look the next one comes later.
    pub(super) fn charge_kicks(&mut self, kickers: &[PortIndex]) {
        self.pause = 0;
        if kickers.is_empty() {
            return;
        }
        self.turns.pass(self.last_kick_check);
        let took = self.turns.lap(clock());
        self.pause = took as u64 * LOOKS;
        let each = took / kickers.len() as i64;
        for index in kickers {
            if let Some(port) = &self.ports[usize::from(*index)] {
                self.turns.charge(*index, each);
                port.stats.work.kicks.add(each as u64);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::test_clock;
    use crate::link::{Link, Scratch, Taken};
    use crate::slots::Arrival;
    use crate::vhost_user::kick::Kick;
    use crate::vhost_user::saved::Numbered;
    use crate::worker::testing;
    use rustix::event::{EventfdFlags, eventfd};
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use std::cell::Cell;

    #[test]
    fn only_a_port_that_kicks_becomes_quiet() {
        let (mut worker, _handle) = testing::worker();
        testing::add_port(&mut worker, 0);
        let mut port = worker.ports[0].take().unwrap();
        let quiet = |worker: &Worker, port: &mut Port, active| {
            (0..IDLE_LOOPS).any(|_| worker.note_idle(port, active))
        };
        assert!(!quiet(&worker, &mut port, true));
        port.pauses = 1;
        assert!(!quiet(&worker, &mut port, false));
        port.pauses = 0;
        assert!(quiet(&worker, &mut port, false) && port.quiet);
        worker.polled.clear();
        worker.ports[0] = Some(port);
        worker.wake_port(0, 7, 7);
        worker.wake_port(0, 7, 7);
        assert_eq!(worker.polled, [0]);
        assert!(!worker.ports[0].as_ref().unwrap().quiet);
    }

    #[test]
    fn a_tap_is_polled_from_when_its_descriptor_tells_until_it_is_read_empty() {
        test_clock::set_time(1_000);
        let (mut worker, _handle) = testing::worker();
        let ends: Vec<_> = (0..8).map(|index| testing::add_tap(&mut worker, index)).collect();
        (0..2).for_each(|_| _ = worker.work());
        assert!(worker.polled.is_empty(), "{:?}", worker.polled);
        test_clock::set_time(2_000);
        worker.check_kicks();
        rustix::io::write(&ends[3], &testing::tap_frame(3, 5)).unwrap();
        test_clock::set_time(3_000);
        worker.check_kicks();
        assert_eq!(worker.polled, [3]);
        // The frame came after the look that did not show it.
        let tx = &mut worker.ports[3].as_mut().unwrap().link.tx;
        assert!(tx.poll(0, 3_000).unwrap());
        let Taken::New(pending, 1) = tx.take(0, &mut worker.scratch, false) else { panic!("no frame") };
        assert_eq!(pending.arrival, Arrival { earliest: 2_000, latest: 3_000, slept: 0 });
        tx.give_back(pending.frame);
        rustix::io::write(&ends[3], &testing::tap_frame(3, 5)).unwrap();
        assert!(worker.work());
        assert!(rustix::io::read(&ends[5], &mut [0; 2048]).is_ok());
        while worker.work() {}
        assert!(worker.polled.is_empty(), "{:?}", worker.polled);
    }

    /// An empty queue of a tap says nothing of another one; the end of a sleep does not tell when its frame
    /// came.
    #[test]
    fn a_frame_of_a_tap_came_since_its_own_queue_was_seen_empty() {
        let pair = || {
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
        };
        let ((a, first), (b, second)) = (pair(), pair());
        test_clock::set_time(1_000);
        let mut link = Link::tap(vec![first, second], 0, 0, 1_000);
        (0..2).for_each(|_| _ = rustix::io::write(&a, &testing::tap_frame(0, 1)).unwrap());
        let came = |link: &mut Link, now| {
            test_clock::set_time(now);
            link.tx.poll(0, now).unwrap();
            let mut scratch = Scratch::default();
            let Taken::New(pending, 1) = link.tx.take(0, &mut scratch, false) else { return None };
            link.tx.give_back(pending.frame);
            Some(pending.arrival)
        };
        // The second queue is read in between, and found empty.
        for _ in 0..2 {
            let arrival = Arrival { earliest: 1_000, latest: 2_000, slept: 0 };
            assert_eq!(came(&mut link, 2_000), Some(arrival));
        }
        assert_eq!(came(&mut link, 3_000), None);
        rustix::io::write(&b, &testing::tap_frame(0, 1)).unwrap();
        link.tx.note_readable(1, 4_000, 9_000);
        let arrival = Arrival { earliest: 9_000, latest: 9_500, slept: 5_000 };
        assert_eq!(came(&mut link, 9_500), Some(arrival));
    }

    /// Kicks of a guest delay the next look for kicks, not that for taps' frames.
    #[test]
    fn kicks_do_not_put_off_taps() {
        let (mut worker, _handle) = testing::worker();
        let end = testing::add_tap(&mut worker, 0);
        while worker.work() {}
        worker.poll_descriptors();
        (worker.now, worker.last_kick_check, worker.pause) = (clock(), clock(), u64::MAX);
        rustix::io::write(&end, &testing::tap_frame(0, 0)).unwrap();
        worker.poll_descriptors();
        worker.look_for_kicks();
        assert_eq!(worker.polled, [0]);
    }

    thread_local! {
        static READ: Cell<u64> = const { Cell::new(0) };
    }

    /// Each reading takes 10 us.
    fn clock_of_readings() -> u64 {
        READ.set(READ.get() + 10_000);
        READ.get()
    }

    #[test]
    fn a_driver_that_kicks_without_end_is_charged_and_heard_less_often() {
        test_clock::set_clock(clock_of_readings);
        let (mut worker, handle) = testing::worker();
        (0..2).for_each(|index| testing::add_port(&mut worker, index));
        let event = Numbered::free(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap());
        let kick = Kick::new(event.clone()).unwrap();
        handle.listen(0, &kick).unwrap();
        kick.listen_to_driver().unwrap();
        let (start, mut looks) = (clock(), 0);
        for _ in 0..10_000 {
            worker.polled.clear();
            rustix::io::write(&event, &1u64.to_ne_bytes()).unwrap();
            let before = worker.last_kick_check;
            worker.now = clock();
            worker.turns.begin(worker.now);
            worker.look_for_kicks();
            looks += u64::from(worker.last_kick_check != before);
        }
        let charged = [0, 1].map(|port: usize| worker.ports[port].as_ref().unwrap().stats.work.kicks.get());
        assert!(charged[0] >= 10_000 * looks && charged[1] == 0, "{charged:?} in {looks} looks");
        let most = (clock() - start) / LOOKS;
        assert!(charged[0] <= most, "{} of {most} ns", charged[0]);
    }
}
