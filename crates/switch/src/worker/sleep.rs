//! Notifications and sleep: a worker spins while there is work, and uses no
//! CPU when there is none.
//!
//! ```text
//!  work ─▶ spin SPIN ns ─▶ ask drivers for kicks ─▶ nothing arrived meanwhile? ─▶ epoll until
//!   ▲        ▲                                          kick, tap, bell, due, or just before ─┐
//!   │        └── a real-time frame is expected, and the budget lasts: awake until it comes ◀──┘
//!   └─ it came
//! ```

use super::awake::Awake;
use super::handle::Bell;
use super::{Worker, precise};
use crate::clock::clock;
use crate::fdb::PortIndex;
use crate::link::writer::TapWriter;
use crate::port::Port;
use crate::port::gaps;
use crate::slots::NEVER;
use crate::virtio::sigbus;
use rustix::event::epoll::{self, Event, EventData, EventFlags};
use std::mem::MaybeUninit;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// Time without work before a worker stops spinning (ns): as long as waking costs.
const SPIN: u64 = 30_000;
/// A shorter sleep is not worth the system call (ns).
const NAP: u64 = 15_000;
/// Largest lateness of a timer (ns): beyond that the worker had lost its CPU.
const LATEST: u64 = 1_000_000;
/// A worker is awake this long before a real-time frame is expected (ns). At least the time of a wake-up: a
/// frame that woke the worker was seen that much late, and so the next one is expected too late.
const LEAD: RangeInclusive<u64> = 60_000..=250_000;
/// Pause before a late timer is tried again (ns).
const TRIAL: u64 = 4_000_000_000;
/// Pause between looks at a receiver without buffers that does not kick (ns).
pub(super) const BLOCKED_POLL: u64 = 200_000;

/// Events per look.
const EVENTS: usize = 64;
const BELL: u64 = u64::MAX;
const LINKS: u64 = u64::MAX - 1;

/// A worker's epoll.
pub struct Sleeper {
    epoll: Arc<OwnedFd>,
    bell: Arc<Bell>,
    last_work: u64,
    /// Lateness of timers (ns), the worst of the recent ones. A halted CPU may take half a millisecond, in
    /// which a rate with a smaller burst is lost.
    late: u64,
    /// Last use of a timer (ns).
    timed: u64,
    /// The epoll of links' descriptors, within the other one: drivers' kicks do not delay them.
    links: OwnedFd,
    /// Number of links' descriptors: they need a system call even while there is work.
    descriptors: usize,
    /// Last look at them (ns): those that were not readable had no frames then.
    links_checked_at: u64,
    /// All kicks before this time were heard (ns).
    kicks_checked_at: u64,
    /// The end of the last sleep.
    woke: u64,
    /// The budget for waiting awake.
    awake: Awake,
    /// The last loop had no work, and no sleep followed it.
    idles: bool,
    /// The worker waits for a real-time frame.
    waits: bool,
    /// Others run only while it sleeps.
    has_one_cpu: bool,
}

impl Sleeper {
    /// Listens for the bell. Other threads add kicks to the same epoll
    /// ([`WorkerHandle::listen`](super::WorkerHandle::listen)).
    pub fn new(bell: &Arc<Bell>, epoll: &Arc<OwnedFd>) -> std::io::Result<Self> {
        epoll::add(epoll, bell.event(), EventData::new_u64(BELL), EventFlags::IN)?;
        let links = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(epoll, &links, EventData::new_u64(LINKS), EventFlags::IN)?;
        Ok(Self {
            epoll: epoll.clone(),
            bell: bell.clone(),
            last_work: clock(),
            late: 0,
            timed: 0,
            links,
            descriptors: 0,
            links_checked_at: 0,
            kicks_checked_at: 0,
            woke: 0,
            awake: Awake::new(0, false, clock()),
            idles: false,
            waits: false,
            has_one_cpu: false,
        })
    }

    /// Watches a link's descriptor for frames.
    ///
    /// # Errors
    /// The kernel does not allow it.
    pub fn add_descriptor(
        &mut self,
        port: PortIndex,
        queue: usize,
        file: impl AsFd,
    ) -> rustix::io::Result<()> {
        let data = EventData::new_u64(u64::from(port) << 8 | queue as u64);
        self.descriptors += 1;
        epoll::add(&self.links, file, data, EventFlags::IN | EventFlags::ET)
    }

    /// Stops watching a descriptor.
    pub fn remove_descriptor(&mut self, file: impl AsFd) {
        let _ = epoll::delete(&self.links, file);
        self.descriptors -= 1;
    }

    /// Returns how long before a due time a timer must end (ns).
    fn margin(&self, now: u64) -> u64 {
        if now.saturating_sub(self.timed) < TRIAL { self.late } else { 0 }
    }

    /// Learns from a timer that ended at `now`, `late` ns too late.
    fn timer_was_late(&mut self, late: u64, now: u64) {
        self.late = late.max(self.margin(now) * 63 / 64).min(LATEST);
        self.timed = now;
    }
}

impl Worker {
    /// Sets how much of each second the worker may wait awake for real-time frames (ns); `throttled`: the
    /// kernel stops it after too much running time.
    pub fn set_busy_poll(&mut self, ns: u64, throttled: bool) {
        self.sleeper.awake = Awake::new(ns, throttled, clock());
    }

    /// Sets whether the process has one CPU: guests on it make work only while the worker sleeps.
    pub fn set_has_one_cpu(&mut self, has_one_cpu: bool) {
        self.sleeper.has_one_cpu = has_one_cpu;
    }

    /// Sets the thread that writes best effort into taps.
    pub fn set_tap_writer(&mut self, hand: TapWriter) {
        self.scratch.writer = Some(hand);
    }

    /// Sets whether that thread writes, or the worker itself.
    pub fn set_hands_over(&mut self, hands_over: bool) {
        self.scratch.hands_over = hands_over && self.scratch.writer.is_some();
    }

    /// Accounts for idle time awake, which ends now or continues.
    #[inline]
    pub(super) fn note_idle_time(&mut self, now: u64) {
        if self.sleeper.idles {
            self.stats.awake.add(self.sleeper.awake.note_idle(now, self.sleeper.waits));
        }
    }

    /// Returns when to be awake for the next real-time frame: `now`, later, or [`NEVER`] (ns).
    fn next_realtime_wake(&self, now: u64) -> u64 {
        if !self.sleeper.awake.may_wait() {
            return NEVER;
        }
        let port = |index: &PortIndex| self.ports[usize::from(*index)].as_deref();
        let own = self.polled[..self.realtime].iter().filter_map(port).map(|port| &port.gaps);
        let all = own.chain([&self.crossing_gaps]);
        gaps::next_wake(all, now, self.sleeper.margin(now).clamp(*LEAD.start(), *LEAD.end())).unwrap_or(NEVER)
    }

    /// After a loop: keeps spinning, or sleeps until work is due or arrives.
    pub(super) fn spin_or_sleep(&mut self, worked: bool) {
        if worked {
            self.sleeper.idles = false;
            self.sleeper.last_work = self.now;
            self.poll_descriptors();
            self.look_for_kicks();
            return;
        }
        let now = clock();
        self.note_duration(self.now, now);
        if !std::mem::replace(&mut self.sleeper.idles, true) {
            self.sleeper.awake.note_work(self.now);
            self.sleeper.waits = false;
        }
        self.note_idle_time(now);
        let awaited = self.next_realtime_wake(now);
        self.sleeper.waits = awaited == now;
        // A link with a descriptor wakes the worker with its first frame, and polling it takes a system
        // call: with such links only, spinning would take CPU time from their senders.
        let may_spin = self.sleeper.descriptors < self.owned.len();
        let quiet =
            !may_spin || self.sleeper.has_one_cpu || now.saturating_sub(self.sleeper.last_work) >= SPIN;
        // Sleep ends before the due time; the worker spins for the rest.
        let margin = if may_spin { self.sleeper.margin(now) } else { 0 };
        let due = if self.wake == NEVER { NEVER } else { self.wake.saturating_sub(margin) };
        let timer = due.min(self.poll).min(awaited);
        if !quiet || timer.saturating_sub(now) < NAP {
            self.poll_descriptors();
            self.look_for_kicks();
            std::hint::spin_loop();
            return;
        }
        self.sleeper.bell.clone().about_to_sleep();
        if !self.collecting.is_empty() {
            // What comes after this look rings.
            self.collect_returned();
        }
        let crossing = |(peer, _): &(super::crossing::Peer, _)| !peer.is_idle();
        if self.arm()
            || !self.inbox.is_idle()
            || self.peers.iter().flatten().any(crossing)
            || self.seen_losses != sigbus::losses()
        {
            self.sleeper.bell.awake();
            self.disarm();
            self.sleeper.last_work = now;
            self.note_duration(now, clock());
            return;
        }
        self.note_duration(now, clock());
        self.watch.about_to_sleep();
        let timeout = (timer != NEVER).then(|| timer - now);
        let timed_out = self.wait(timeout, now) == 0;
        self.sleeper.bell.awake();
        let woke = self.sleeper.woke;
        if let Some(timeout) = timeout
            && timed_out
        {
            self.sleeper.timer_was_late(woke.saturating_sub(now + timeout), woke);
        }
        (self.sleeper.idles, self.sleeper.waits) = (false, false);
        self.sleeper.awake.note_sleep(woke);
        self.stats.sleeps.add(1);
        self.stats.asleep.add(woke.saturating_sub(now));
        self.now = woke;
        // Arming showed that no frame had come.
        for_each_port(&mut self.ports, &self.polled, |port| port.link.tx.note_sleep(now, woke));
        self.disarm();
        self.note_duration(woke, clock());
    }

    /// Finds without waiting which links with descriptors have frames. The others were empty now.
    pub(super) fn poll_descriptors(&mut self) {
        if self.sleeper.descriptors == 0 {
            return;
        }
        let now = clock();
        if self.hear_links(now) {
            for_each_port(&mut self.ports, &self.polled, |port| port.link.tx.note_empty(now));
        }
    }

    /// Waits up to `timeout` ns, for ever with `None`, from `now` on. Returns the number of events.
    pub(super) fn wait(&mut self, timeout: Option<u64>, now: u64) -> usize {
        let mut events = [MaybeUninit::<Event>::uninit(); EVENTS];
        let (mut kickers, mut kicks) = ([0; EVENTS], 0);
        let looks = timeout == Some(0);
        let timeout = timeout.map(|ns| rustix::time::Timespec {
            tv_sec: (ns / 1_000_000_000) as i64,
            tv_nsec: (ns % 1_000_000_000) as _,
        });
        let epoll = &self.sleeper.epoll;
        let result = match timeout {
            Some(timeout) if !looks => precise::wait(epoll, &mut events, &timeout),
            _ => epoll::wait(epoll, &mut events, timeout.as_ref()).map(|(events, _)| events),
        };
        if !looks {
            self.sleeper.woke = clock();
        }
        // Otherwise a signal.
        let Ok(events) = result else { return 1 };
        let count = events.len();
        let (since, woke) = (self.sleeper.kicks_checked_at, self.sleeper.woke);
        if count < EVENTS {
            self.sleeper.kicks_checked_at = now;
            if !events.iter().any(|event| event.data.u64() == LINKS) {
                self.sleeper.links_checked_at = now;
            }
        }
        for event in events {
            let data = event.data.u64();
            if data == BELL {
                self.sleeper.bell.clear();
                continue;
            }
            if data == LINKS {
                self.hear_links(now);
                continue;
            }
            kickers[kicks] = data as PortIndex;
            kicks += 1;
            self.wake_port(data as PortIndex, since, woke);
        }
        if looks {
            self.charge_kicks(&kickers[..kicks]);
        }
        count
    }

    /// Finds at `now`, or later, which links have frames: these came since the last complete look. Whether
    /// this look was complete.
    fn hear_links(&mut self, now: u64) -> bool {
        let mut events = [MaybeUninit::<Event>::uninit(); EVENTS];
        let at_once = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        // After a signal the next loop hears them.
        let Ok((events, _)) = epoll::wait(&self.sleeper.links, &mut events, Some(&at_once)) else {
            return false;
        };
        let all = events.len() < EVENTS;
        let (since, woke) = (self.sleeper.links_checked_at, self.sleeper.woke);
        if all {
            self.sleeper.links_checked_at = now;
        }
        for event in events {
            let data = event.data.u64();
            let (index, queue) = ((data >> 8) as PortIndex, (data & 0xff) as usize);
            if let Some(port) = &mut self.ports[usize::from(index)] {
                port.link.tx.note_readable(queue, since, woke);
                self.wake_port(index, since, woke);
            }
        }
        all
    }

    /// Asks all drivers for kicks; `true` if there is work after all.
    fn arm(&mut self) -> bool {
        let mut work = false;
        for index in &self.polled {
            let Some(port) = &mut self.ports[*index as usize] else { continue };
            let throttled = port.throttled_since != NEVER;
            let began = self.watch.begin(*index);
            work |= port.link.tx.request_kicks(throttled);
            self.watch.end(*index, began);
        }
        for index in &self.active {
            let Some(port) = &mut self.ports[*index as usize] else { continue };
            if port.egress.blocked_since != NEVER || !port.egress.outstanding.is_empty() {
                let began = self.watch.begin(*index);
                work |= port.link.rx.request_kicks();
                self.watch.end(*index, began);
            }
        }
        work
    }

    /// Tells all drivers not to kick.
    fn disarm(&mut self) {
        let watch = &mut self.watch;
        for_each_port(&mut self.ports, &self.polled, |port| {
            let began = watch.begin(port.index);
            port.link.tx.suppress_kicks();
            watch.end(port.index, began);
        });
        for_each_port(&mut self.ports, &self.active, |port| {
            let began = watch.begin(port.index);
            port.link.rx.suppress_kicks();
            watch.end(port.index, began);
        });
    }

    /// Returns when all kicks were last heard: quiet ports' frames came after that (ns).
    pub(super) fn kicks_checked_at(&self) -> u64 {
        self.sleeper.kicks_checked_at
    }

    /// Returns the end of the last sleep (ns).
    pub(super) fn last_woke(&self) -> u64 {
        self.sleeper.woke
    }
}

fn for_each_port(ports: &mut [Option<Box<Port>>], indices: &[PortIndex], mut visit: impl FnMut(&mut Port)) {
    for index in indices {
        if let Some(port) = &mut ports[*index as usize] {
            visit(port);
        }
    }
}

/// Lets timers of this thread end when due, not up to 50 us later.
pub(super) fn sharpen_timers() {
    // SAFETY: PR_SET_TIMERSLACK takes one number and changes this thread only.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1u64) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::test_clock;
    use crate::worker::{WorkerHandle, testing};
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::{Duration, Instant};

    /// Takes the next frame; whether it comes within 5 s.
    fn arrives(end: &OwnedFd) -> bool {
        let patience = Timespec { tv_sec: 5, tv_nsec: 0 };
        poll(&mut [PollFd::new(end, PollFlags::IN)], Some(&patience)) == Ok(1)
            && rustix::io::read(end, &mut [0; 2048]).is_ok()
    }

    /// A frame finds the worker at work, on its way to sleep, or asleep: pauses of all lengths between two
    /// frames.
    fn no_frame_is_slept_over(spins: bool, keys: &str) {
        let (mut worker, handle) = testing::worker();
        worker.set_busy_poll(500_000_000, false);
        let ends: Vec<_> = (0..4).map(|index| testing::add_tap_with(&mut worker, index, keys)).collect();
        if spins {
            testing::add_port(&mut worker, 9);
        }
        let ended = Arc::new(AtomicBool::new(false));
        let seen = ended.clone();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                while !seen.load(Ordering::Relaxed) {
                    worker.turn();
                }
            });
            let lost = (0..4_000u32).find(|number| {
                let (from, to) = (number % 4, (number + 1 + number % 3) % 4);
                let sent = testing::tap_frame(from as PortIndex, to as PortIndex);
                rustix::io::write(&ends[from as usize], &sent).unwrap();
                let arrived = arrives(&ends[to as usize]);
                let pause = Duration::from_nanos(u64::from(number * 7_919 % 1_000) * 100);
                let begin = Instant::now();
                while begin.elapsed() < pause {
                    std::hint::spin_loop();
                }
                !arrived
            });
            handle.call(move |_| ended.store(true, Ordering::Relaxed));
            assert_eq!(lost, None, "this frame did not wake the worker");
        });
    }

    #[test]
    fn no_frame_of_a_tap_is_slept_over() {
        no_frame_is_slept_over(false, "");
    }

    #[test]
    fn no_frame_of_a_tap_is_slept_over_after_spinning() {
        no_frame_is_slept_over(true, "");
    }

    const REALTIME: &str = "tx = { max = \"1gbit\", burst = \"2kB\" }\ndeadline = \"1ms\"\nto = [\"peer\"]";

    #[test]
    fn no_frame_of_a_tap_is_slept_over_after_waiting_awake() {
        no_frame_is_slept_over(false, REALTIME);
    }

    /// Returns a worker whose only source sent a frame each millisecond, the last one at 100 ms.
    fn after_a_stream(budget: u64) -> (Worker, WorkerHandle, OwnedFd) {
        test_clock::set_time(0);
        let (mut worker, handle) = testing::worker();
        let end = testing::add_tap_with(&mut worker, 0, REALTIME);
        worker.set_busy_poll(budget, false);
        let port = worker.ports[0].as_mut().unwrap();
        (1..=100).for_each(|n| port.gaps.arrived(n * 1_000_000));
        (worker, handle, end)
    }

    /// Whether it sleeps without work at `now` (ns); then for 50 us.
    fn sleeps(worker: &mut Worker, now: u64) -> bool {
        test_clock::set_time(now);
        let before = worker.stats.sleeps.get();
        (worker.now, worker.wake, worker.poll) = (now, NEVER, now + 50_000);
        worker.spin_or_sleep(false);
        worker.stats.sleeps.get() > before
    }

    #[test]
    fn a_worker_that_waits_for_a_frame_does_not_sleep() {
        let (mut worker, _handle, _end) = after_a_stream(250_000_000);
        assert!(sleeps(&mut worker, 100_300_000), "the next frame is far away");
        assert_eq!(worker.stats.awake.get(), 0);
        for now in [101_000_000, 101_010_000, 101_020_000] {
            assert!(!sleeps(&mut worker, now), "it is to come now");
        }
        assert!(sleeps(&mut worker, 101_500_000), "it did not come");
        assert!(worker.stats.awake.get() >= 20_000, "{}", worker.stats.awake.get());
        let (mut asleep, _handle, _end) = after_a_stream(0);
        assert!(sleeps(&mut asleep, 101_000_000), "there is no budget");
    }

    /// Guests on the same CPU make work only while it sleeps.
    #[test]
    fn on_one_cpu_a_worker_does_not_spin_before_it_sleeps() {
        test_clock::set_time(0);
        let (mut worker, _handle) = testing::worker();
        testing::add_port(&mut worker, 0);
        worker.sleeper.last_work = 1_000_000;
        assert!(!sleeps(&mut worker, 1_000_000 + SPIN - 1));
        worker.set_has_one_cpu(true);
        assert!(sleeps(&mut worker, 1_000_000 + SPIN - 1));
    }

    #[test]
    fn the_timer_ends_before_the_frame_is_to_come() {
        let (mut worker, _handle, _end) = after_a_stream(250_000_000);
        test_clock::set_time(100_800_000);
        (worker.now, worker.wake, worker.poll) = (100_800_000, NEVER, NEVER);
        // Without a timer it would sleep for ever: no frame comes.
        worker.spin_or_sleep(false);
        assert_eq!(worker.stats.sleeps.get(), 1);
    }

    #[test]
    fn due_work_does_not_depend_on_a_late_timer() {
        let bell = Arc::new(Bell::new().unwrap());
        let epoll = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC).unwrap());
        let mut sleeper = Sleeper::new(&bell, &epoll).unwrap();
        assert_eq!(sleeper.margin(10), 0, "nothing is known yet");
        sleeper.timer_was_late(500_000, 20);
        assert_eq!(sleeper.margin(30), 500_000);
        // One timer in time says little of the next.
        sleeper.timer_was_late(50_000, 40);
        assert!((480_000..500_000).contains(&sleeper.margin(50)));
        for at in 0..300 {
            sleeper.timer_was_late(50_000, 60 + at);
        }
        assert_eq!(sleeper.margin(400), 50_000, "forgotten");
        // The timer did not cause this.
        sleeper.timer_was_late(80_000_000, 500);
        assert_eq!(sleeper.margin(600), LATEST);
        // If all work is due before that, the timer is tried again at some time.
        assert_eq!(sleeper.margin(500 + TRIAL), 0);
    }
}
