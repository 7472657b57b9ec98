//! Calls drivers: the worker itself while that is cheap, else a thread of the port.
//!
//! ```text
//!  worker ─ Call::signal ─┬─ direct ──▶ eventfd ─▶ driver            about 1 us
//!                         │    └─ its time is used up ─▶ by the thread from now on
//!                         └─ by the thread ─▶ one bit a queue ─▶ notifier ─▶ eventfd ─▶ driver
//!                                                        └─ slow, twice in a row: an event
//! ```
//!
//! An eventfd belongs to the front end, and so does the list of its waiters: each signal walks over all of
//! them, holding a spin lock with interrupts off. No check before a signal tells how long it will take,
//! since waiters can come in between, or one can hide all others. A thread for each signal avoids that
//! risk, and costs each interrupt of each guest the wake-up of an idle CPU; docs/decisions/driver-calls.md
//! has figures of both.
//!
//! So a port has a small account of time for slow direct signals. One slow signal can overdraw it, once:
//! from then on the port's thread signals, and measures its own CPU time, which contains no other thread's
//! work. A port whose counters turn out cheap returns to direct signals, after a time that doubles.

use super::conduct::{Event, LONG, Object};
use super::saved::Numbered;
use crate::clock::clock;
use crate::eventfd;
use rustix::time::{ClockId, clock_gettime};
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::Thread;
use tidegate_service::housekeeping;

/// Longer than an ordinary signal with the wake-up of an idle CPU (ns).
const USUAL: u64 = 50_000;
/// Excess time of direct signals (ns) ...
const BURST: u64 = 5_000_000;
/// ... which returns at a 50th of the time, so that a CPU that is taken away now and then, during a signal,
/// does not use it up.
const SHARE: u64 = 50;
/// Pause before direct signals are tried for the first time (ns).
const AGAIN: u64 = 10_000_000_000;
/// CPU time from which on a signal of the thread, twice in a row, is slow (ns).
pub const SLOW: u64 = 1_000_000;
/// No time.
const NEVER: u64 = u64::MAX;
/// Queues of a port, at most.
const QUEUES: usize = 256;

/// Called with each event.
pub type Report = Arc<dyn Fn(Event) + Send + Sync>;

/// One queue's driver, as its worker calls it.
#[derive(Clone, Debug)]
pub struct Call {
    event: Numbered,
    queue: u8,
    line: Arc<Line>,
}

impl Call {
    /// Returns the driver's call eventfd.
    pub fn event(&self) -> &Numbered {
        &self.event
    }

    /// Calls the driver. If a call is slow because of the eventfd's waiters, the port's thread makes the
    /// later ones.
    #[inline]
    pub fn signal(&self) {
        if self.line.direct_from.load(Ordering::Relaxed) != 0 {
            return self.line.want(self.queue);
        }
        let before = clock();
        // It is a counter: checked before.
        let _ = eventfd::signal(&self.event);
        let took = clock().saturating_sub(before);
        if took > USUAL {
            self.line.note_slow(self.queue, before, took);
        }
    }
}

/// The thread of a port that calls its drivers instead of workers.
pub struct Notifier {
    name: String,
    line: Arc<Line>,
}

/// Shared by workers and the thread.
struct Line {
    /// Time from which on workers call (ns); 0: now. Until then the thread does: for good ([`NEVER`]) after
    /// a slow call. One word, so that neither overwrites the other's finding.
    direct_from: AtomicU64,
    /// A bit for each queue whose driver is to be called.
    wanted: [AtomicU64; QUEUES / 64],
    /// Excess time of direct signals (ns), and its date.
    used: AtomicU64,
    used_at: AtomicU64,
    /// How often direct signals were too slow.
    relapses: AtomicU64,
    over: AtomicBool,
    thread: OnceLock<Thread>,
    /// By queue.
    events: Mutex<Vec<Option<Numbered>>>,
    report: Report,
}

impl std::fmt::Debug for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Line").field("direct_from", &self.direct_from).finish_non_exhaustive()
    }
}

impl Notifier {
    /// Returns the notifier of port `name`. Without asynchronous I/O a signal may wait, and the thread
    /// gives all of them.
    pub fn new(name: &str, report: Report) -> Self {
        let line = Line {
            direct_from: AtomicU64::new(if eventfd::never_waits() { 0 } else { NEVER }),
            wanted: Default::default(),
            used: AtomicU64::new(0),
            used_at: AtomicU64::new(clock()),
            relapses: AtomicU64::new(0),
            over: AtomicBool::new(false),
            thread: OnceLock::new(),
            events: Mutex::default(),
            report,
        };
        Self { name: name.to_owned(), line: Arc::new(line) }
    }

    /// Returns how to call the driver of queue `queue`, from now on by `event`.
    ///
    /// # Errors
    /// No thread available.
    pub fn call(&self, queue: u8, event: Numbered) -> io::Result<Call> {
        self.start()?;
        let mut events = self.line.events();
        let index = usize::from(queue);
        if events.len() <= index {
            events.resize_with(index + 1, || None);
        }
        events[index] = Some(event.clone());
        Ok(Call { event, queue, line: self.line.clone() })
    }

    /// Calls no driver any more; returns the drivers' eventfds, to be given up.
    #[must_use = "closing the last descriptor may take long"]
    pub fn forget(&self) -> Vec<Option<Numbered>> {
        std::mem::take(&mut *self.line.events())
    }

    /// Leaves all calls to the thread, for good.
    #[cfg(test)]
    fn leave_to_thread(&self) {
        self.line.direct_from.store(NEVER, Ordering::Relaxed);
    }

    /// Whether the thread makes the calls.
    #[cfg(test)]
    fn is_by_thread(&self) -> bool {
        self.line.direct_from.load(Ordering::Relaxed) != 0
    }

    fn start(&self) -> io::Result<()> {
        if self.line.thread.get().is_some() {
            return Ok(());
        }
        let line = self.line.clone();
        let thread =
            std::thread::Builder::new().name(format!("call {}", self.name)).spawn(move || line.run())?;
        let _ = self.line.thread.set(thread.thread().clone());
        Ok(())
    }
}

impl Drop for Notifier {
    fn drop(&mut self) {
        // Not waited for: it may be in a signal.
        self.line.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.line.thread.get() {
            thread.unpark();
        }
    }
}

impl Line {
    fn events(&self) -> MutexGuard<'_, Vec<Option<Numbered>>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leaves a call to the thread.
    fn want(&self, queue: u8) {
        let (word, bit) = (usize::from(queue / 64), 1 << (queue % 64));
        if self.wanted[word].fetch_or(bit, Ordering::Release) & bit == 0
            && let Some(thread) = self.thread.get()
        {
            thread.unpark();
        }
    }

    /// Notes that a worker's direct signal took so long. Only the port's worker calls this.
    #[cold]
    fn note_slow(&self, queue: u8, at: u64, took: u64) {
        let earned = at.saturating_sub(self.used_at.load(Ordering::Relaxed)) / SHARE;
        let used = self.used.load(Ordering::Relaxed).saturating_sub(earned) + took;
        self.used_at.store(at, Ordering::Relaxed);
        self.used.store(used, Ordering::Relaxed);
        if used < BURST {
            return;
        }
        self.used.store(0, Ordering::Relaxed);
        let relapses = self.relapses.fetch_add(1, Ordering::Relaxed).min(20);
        let next_try = clock() + (AGAIN << relapses);
        // A slow call found by the thread meanwhile stays noted.
        let later = |from| (from != NEVER).then_some(next_try);
        let _ = self.direct_from.fetch_update(Ordering::Relaxed, Ordering::Relaxed, later);
        // Called once too often, so that the thread notices.
        self.want(queue);
    }

    fn run(&self) {
        while !self.over.load(Ordering::Relaxed) {
            housekeeping::follow();
            let mut called = false;
            for (word, wanted) in self.wanted.iter().enumerate() {
                let mut bits = wanted.swap(0, Ordering::Acquire);
                while bits != 0 {
                    let queue = word * 64 + bits.trailing_zeros() as usize;
                    bits &= bits - 1;
                    // Cloned, so that the list is not locked during a signal. Closing the last clone delays
                    // only this thread.
                    let event = self.events().get(queue).cloned().flatten();
                    if let Some(event) = event {
                        self.call(&event);
                    }
                    called = true;
                }
            }
            if !called {
                std::thread::park();
            }
        }
    }

    /// Calls a driver, and judges the time.
    fn call(&self, event: &Numbered) {
        let from = self.direct_from.load(Ordering::Relaxed);
        if let Some(took) = slow(event) {
            // Slow: direct signals are not tried any more.
            self.direct_from.store(NEVER, Ordering::Relaxed);
            if took >= LONG {
                (self.report)(Event { object: Object::Call, took });
            }
        } else if clock() >= from {
            // Unless a worker was slow meanwhile.
            let _ = self.direct_from.compare_exchange(from, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

/// Signals `event`, and once more if that was slow: returns the CPU time of the faster one (ns) if both
/// were slow.
pub fn slow(event: impl AsFd) -> Option<u64> {
    let once = || {
        let before = cpu_time();
        let _ = eventfd::signal(&event);
        cpu_time().saturating_sub(before)
    };
    let first = once();
    (first > SLOW).then(|| first.min(once())).filter(|took| *took > SLOW)
}

/// Returns the CPU time of this thread (ns). It includes stolen time unless the host reports that.
pub fn cpu_time() -> u64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};
    use std::time::{Duration, Instant};
    use tidegate_frontend::attack::counters::Waiters;

    const PATIENCE: Duration = Duration::from_secs(20);

    fn counter() -> Numbered {
        Numbered::free(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap())
    }

    fn count(event: &Numbered) -> u64 {
        let mut bytes = [0; 8];
        rustix::io::read(event, &mut bytes).map_or(0, |_| u64::from_ne_bytes(bytes))
    }

    fn notifier() -> (Notifier, Arc<Mutex<Vec<Event>>>) {
        eventfd::prepare();
        let events = Arc::new(Mutex::new(Vec::new()));
        let seen = events.clone();
        (Notifier::new("test", Arc::new(move |event| seen.lock().unwrap().push(event))), events)
    }

    fn until(done: impl Fn() -> bool) {
        let start = Instant::now();
        while !done() {
            assert!(start.elapsed() < PATIENCE);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_cheap_counter_is_signalled_at_once() {
        let (notifier, _) = notifier();
        let (a, b) = (counter(), counter());
        let calls = [notifier.call(0, a.clone()).unwrap(), notifier.call(255, b.clone()).unwrap()];
        calls.iter().for_each(Call::signal);
        assert_eq!((count(&a), count(&b), notifier.is_by_thread()), (1, 1, false));
    }

    #[test]
    fn the_thread_signals_only_the_counters_that_are_wanted_now() {
        let (notifier, _) = notifier();
        let (a, b, c) = (counter(), counter(), counter());
        let calls = [notifier.call(0, a.clone()).unwrap(), notifier.call(200, b.clone()).unwrap()];
        notifier.leave_to_thread();
        calls.iter().for_each(Call::signal);
        until(|| count(&a) > 0);
        until(|| count(&b) > 0);
        let _ = notifier.call(0, c.clone()).unwrap();
        calls[0].signal();
        until(|| count(&c) > 0);
        assert_eq!(notifier.forget().len(), 201);
        calls[0].signal();
    }

    #[test]
    fn time_is_used_up_and_comes_back() {
        let (notifier, _) = notifier();
        let line = &notifier.line;
        let _ = notifier.call(0, counter()).unwrap();
        let start = clock();
        // A fiftieth of the time, in pieces, as a noisy host takes it.
        for n in 0..100 {
            line.note_slow(0, start + n * 50_000_000, 1_000_000);
        }
        assert!(!notifier.is_by_thread());
        for n in 0..6 {
            line.note_slow(0, start + 5_000_000_000 + n * 1_000_000, 1_000_000);
        }
        assert!(notifier.is_by_thread());
        // Cheap for the thread; so direct ones are tried, later each time.
        let first = line.direct_from.load(Ordering::Relaxed) - clock();
        assert!((AGAIN / 2..=AGAIN).contains(&first));
        line.note_slow(0, clock(), BURST);
        assert!(line.direct_from.load(Ordering::Relaxed) - clock() > AGAIN);
        line.direct_from.store(clock(), Ordering::Relaxed);
        line.want(0);
        until(|| !notifier.is_by_thread());
    }

    /// The thread's finding stays, whatever the worker notes at the same time.
    #[test]
    fn a_slow_counter_stays_with_the_thread() {
        let (notifier, _) = notifier();
        let event = counter();
        let _ = notifier.call(0, event.clone()).unwrap();
        notifier.leave_to_thread();
        notifier.line.note_slow(0, clock(), BURST);
        assert!(line_is_slow(&notifier), "the worker overwrote it");
    }

    #[test]
    fn a_counter_with_many_waiters_is_found_out_once() {
        let (notifier, events) = notifier();
        let event = counter();
        let call = notifier.call(3, event.clone()).unwrap();
        let waiters = Waiters::on(&event, 50_000).unwrap();
        let took = slow(&event).expect("slow");
        assert!(took > 2_000_000, "{took} ns for 50,000 waiters");
        until(|| {
            call.signal();
            notifier.is_by_thread()
        });
        until(|| line_is_slow(&notifier));
        // The thread that signals now does not wait for them.
        let before = cpu_time();
        (0..1000).for_each(|_| call.signal());
        assert!(cpu_time() - before < took, "a thousand took less than one");
        if took > 2 * LONG {
            until(|| !events.lock().unwrap().is_empty());
        }
        drop(waiters);
        until(|| slow(&event).is_none());
        call.signal();
        std::thread::sleep(Duration::from_millis(20));
        assert!(notifier.is_by_thread(), "for good");
    }

    /// Each call arrives in both ways. Their costs are printed for docs/decisions/driver-calls.md.
    #[test]
    fn each_call_arrives_and_reports_its_cost() {
        let (notifier, _) = notifier();
        let event = counter();
        let call = notifier.call(0, event.clone()).unwrap();
        let once = || {
            // As long as a thread without work needs to fall asleep.
            std::thread::sleep(Duration::from_micros(200));
            let before = clock();
            call.signal();
            let took = clock() - before;
            let start = Instant::now();
            while count(&event) == 0 {
                assert!(start.elapsed() < PATIENCE);
                std::hint::spin_loop();
            }
            (took, clock() - before)
        };
        for way in ["directly", "by the thread"] {
            let (mut took, mut arrived): (Vec<_>, Vec<_>) = (0..501).map(|_| once()).unzip();
            took.sort_unstable();
            arrived.sort_unstable();
            println!(
                "a call {way}: its caller is busy for {} ns, it is there after {} ns",
                took[250], arrived[250]
            );
            notifier.leave_to_thread();
        }
    }

    fn line_is_slow(notifier: &Notifier) -> bool {
        notifier.line.direct_from.load(Ordering::Relaxed) == NEVER
    }
}
