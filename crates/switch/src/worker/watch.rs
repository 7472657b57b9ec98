//! Finds the port whose memory holds the worker up: a front end that punches a hole into a file delays a
//! thread that touches a page there until it is done, for seconds if the hole is large.
//!
//! ```text
//!  a long loop ─▶ did this thread sleep in a page fault? ─ no: the host, or another thread, had the CPU
//!                      │ yes
//!                      ▼
//!  Trouble::DelayedByUnknown ─▶ warden: whose memory has holes? ─▶ all workers watch these ports for a while, and all ports
//!                                                         where a worker is held up by none of these:
//!
//!      ring, headers of A │ payload of A ─▶ our memory │ our memory ─▶ buffers of B │ ring of B
//!      └──── timed: A ────┘└─────── timed: A ─────────┘└──────── timed: B ─────────┘
//!                 └─ it slept there ─▶ the port's account of time ─ used up ─▶ Trouble::Delayed
//! ```
//!
//! An ordinary loop pays one comparison for this, and a worker that goes to sleep one question to the
//! kernel. A watched port's frames go the queued way and are copied twice, so that each part touches memory
//! of one port; other ports are not affected. Guests whose memory is complete are not watched, unless a
//! file is made to look so.

use super::Worker;
use super::trouble::{Trouble, Troubles};
use crate::clock::clock;
use crate::fdb::PortIndex;
use crate::port::PortSet;
use crate::vhost_user::conduct::{Event, LONG, Object};

/// Loops longer than this are examined (ns): a question to the kernel is negligible then.
const LOOK: u64 = 200_000;
/// Timed parts of a loop longer than this are examined (ns).
const PART: u64 = 50_000;
/// Lost time of loops, and pause, before the warden is asked (ns).
const ASK: u64 = 1_000_000;
const ASK_AGAIN: u64 = 100_000_000;
/// Duration of a watch (ns): as long as events of one count together.
const WATCHED: u64 = 10_000_000_000;
/// Time that a port's memory may take (ns); using it up is an event ...
const HELD: u64 = 2 * LONG;
/// ... and one part in this many of the passing time comes back.
const SHARE: u64 = 50;
/// Longest payload (bytes): a super-frame's, and some.
const PAYLOAD: usize = 128 << 10;

/// The kernel's counters of this thread (getrusage(2)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Usage {
    /// Page faults, of either kind.
    faults: i64,
    /// Voluntary context switches: it slept.
    sleeps: i64,
    /// Blocks read from a disk for it.
    blocks: i64,
}

impl Usage {
    fn now() -> Self {
        // SAFETY: all zeros is a valid value; the call writes one.
        let usage = unsafe {
            let mut usage: libc::rusage = std::mem::zeroed();
            libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage);
            usage
        };
        Self { faults: usage.ru_minflt + usage.ru_majflt, sleeps: usage.ru_nvcsw, blocks: usage.ru_inblock }
    }
}

/// A sleep in a page fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FaultSleep {
    /// Something was read from a disk: the host had swapped out memory that is on none.
    disk: bool,
}

/// The time that one port's memory took.
#[derive(Clone, Copy, Debug)]
struct Account {
    port: PortIndex,
    used: u64,
    at: u64,
}

/// A worker's watch over ports' memory.
pub(super) struct Watch {
    /// Counters at the last look.
    base: Usage,
    /// The worker has slept voluntarily since.
    slept: bool,
    /// A sleep of this loop outside its timed parts.
    untimed_sleep: Option<FaultSleep>,
    /// Time of loops in page faults of unknown memory (ns).
    unexplained: u64,
    /// Some of it while ports were watched.
    by_another: bool,
    /// Last question to the warden (ns).
    asked: u64,
    on: bool,
    ports: PortSet,
    /// Watched ports whose memory is on a disk.
    disks: PortSet,
    until: u64,
    accounts: Vec<Account>,
    /// Own memory for copying payload.
    buffer: Box<[u8]>,
    troubles: Troubles,
}

impl Watch {
    pub fn new(troubles: Troubles) -> Self {
        Self {
            base: Usage::default(),
            slept: false,
            untimed_sleep: None,
            unexplained: 0,
            by_another: false,
            asked: 0,
            on: false,
            ports: PortSet::EMPTY,
            disks: PortSet::EMPTY,
            until: 0,
            accounts: Vec::new(),
            buffer: Box::default(),
            troubles,
        }
    }

    /// Begins a part of the loop that touches this port's memory; returns its time if the part is to be
    /// timed.
    #[inline]
    pub fn begin(&mut self, port: PortIndex) -> Option<u64> {
        self.covers(port).then(|| self.start_part())
    }

    /// The thread's earlier sleep does not count for this part's port.
    #[cold]
    fn start_part(&mut self) -> u64 {
        self.untimed_sleep = self.check_sleep().or(self.untimed_sleep);
        clock()
    }

    /// Whether a port is watched.
    #[inline]
    pub fn covers(&self, port: PortIndex) -> bool {
        self.on && self.ports.contains(port)
    }

    /// Ends such a part.
    #[inline]
    pub fn end(&mut self, port: PortIndex, began: Option<u64>) {
        if let Some(began) = began {
            let now = clock();
            if now.saturating_sub(began) >= PART {
                self.charge(port, began, now);
            }
        }
    }

    /// Announces a voluntary sleep.
    #[inline]
    pub fn about_to_sleep(&mut self) {
        self.base = Usage::now();
        self.slept = true;
    }

    /// Whether the thread slept in a page fault since the last look.
    fn check_sleep(&mut self) -> Option<FaultSleep> {
        let now = Usage::now();
        let wait = fault_sleep(self.base, now, self.slept);
        (self.base, self.slept) = (now, false);
        wait
    }

    #[cold]
    fn charge(&mut self, port: PortIndex, began: u64, now: u64) {
        let Some(wait) = self.check_sleep() else { return };
        if wait.disk && !self.disks.contains(port) {
            return;
        }
        let took = now.saturating_sub(began);
        let number = self.accounts.iter().position(|account| account.port == port);
        let number = number.unwrap_or_else(|| {
            self.accounts.push(Account { port, used: 0, at: began });
            self.accounts.len() - 1
        });
        if let Some(took) = self.accounts[number].take(took, now) {
            let event = Event { object: Object::Memory, took };
            let _ = self.troubles.send((port, Trouble::Delayed { event, began }));
        }
    }

    /// Examines a loop of `took` ns without timed parts.
    #[cold]
    fn examine_loop(&mut self, took: u64) {
        let untimed = self.untimed_sleep.take();
        let Some(wait) = self.check_sleep().or(untimed) else { return };
        let now = clock();
        // Swapped-out memory is no overlooked hole. Perhaps no port is watched: no file had a hole.
        self.by_another |= now <= self.until && !wait.disk;
        self.unexplained += took;
        if self.unexplained >= ASK && now.saturating_sub(self.asked) >= ASK_AGAIN {
            (self.unexplained, self.asked) = (0, now);
            let by_another = std::mem::take(&mut self.by_another);
            let _ = self.troubles.send((0, Trouble::DelayedByUnknown { by_another }));
        }
    }

    fn start(&mut self, ports: PortSet, disks: PortSet) {
        if !self.on {
            (self.ports, self.disks) = (PortSet::EMPTY, PortSet::EMPTY);
        }
        ports.iter().for_each(|port| self.ports.insert(port));
        disks.iter().for_each(|port| self.disks.insert(port));
        if self.buffer.is_empty() {
            self.buffer = vec![0; PAYLOAD].into_boxed_slice();
        }
        self.on = !self.ports.is_empty();
        self.until = clock() + WATCHED;
    }

    /// Begins a loop: ends an expired watch.
    #[inline]
    pub fn expire(&mut self, now: u64) {
        if self.on {
            self.untimed_sleep = None;
            self.on = now <= self.until;
        }
    }

    /// Forgets a removed port: the next one of its index owes nothing.
    pub fn forget(&mut self, port: PortIndex) {
        self.accounts.retain(|account| account.port != port);
        self.ports.remove(port);
        self.disks.remove(port);
    }

    /// Returns own memory for payload.
    pub fn buffer(&mut self) -> &mut [u8] {
        &mut self.buffer
    }
}

impl Account {
    /// Takes `took` ns at `now`; returns the used time if that is an event.
    fn take(&mut self, took: u64, now: u64) -> Option<u64> {
        let earned = now.saturating_sub(self.at) / SHARE;
        self.used = self.used.saturating_sub(earned) + took;
        self.at = now;
        (self.used >= HELD).then(|| std::mem::take(&mut self.used))
    }
}

/// Whether a thread slept in a page fault between both counts, if it `slept` voluntarily once.
fn fault_sleep(before: Usage, after: Usage, slept: bool) -> Option<FaultSleep> {
    let sleeps = after.sleeps - before.sleeps - i64::from(slept);
    let faults = after.faults - before.faults;
    (sleeps > 0 && faults > 0).then_some(FaultSleep { disk: after.blocks > before.blocks })
}

impl Worker {
    /// Watches these ports for a while; `disks` have their memory on a disk.
    pub fn watch(&mut self, ports: PortSet, disks: PortSet) {
        self.watch.start(ports, disks);
    }

    /// Makes a front end's change: holdups by its memory count for that port.
    pub fn on_behalf<T>(&mut self, port: PortIndex, change: impl FnOnce(&mut Self) -> T) -> T {
        self.watch.check_sleep();
        let began = clock();
        let result = change(self);
        self.watch.end(port, Some(began));
        result
    }

    /// Notes that something took from `began` to `now`.
    #[inline]
    pub(super) fn note_duration(&mut self, began: u64, now: u64) {
        let took = now.saturating_sub(began);
        if took > LOOK {
            self.watch.examine_loop(took);
        }
    }
}

#[cfg(test)]
impl Watch {
    /// Watches a port that has used so much time (ns).
    pub fn owe(&mut self, port: PortIndex, used: u64) {
        self.on = true;
        self.ports.insert(port);
        self.disks.insert(port);
        self.accounts.push(Account { port, used, at: 0 });
    }

    /// Returns the used time that a port still owes (ns).
    pub fn owed(&self, port: PortIndex) -> u64 {
        self.accounts.iter().filter(|account| account.port == port).map(|account| account.used).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slots::Slots;
    use crate::worker::testing;
    use rustix::fs::{FallocateFlags, fallocate};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc::{Receiver, channel};
    use std::time::{Duration, Instant};
    use tidegate_frontend::memory::SharedMemory;

    fn watch() -> (Watch, Receiver<(PortIndex, Trouble)>) {
        let (troubles, troubled) = channel();
        (Watch::new(troubles), troubled)
    }

    fn usage(faults: i64, sleeps: i64, blocks: i64) -> Usage {
        Usage { faults, sleeps, blocks }
    }

    #[test]
    fn a_sleep_in_a_fault_is_distinguished_from_others() {
        let before = usage(10, 10, 10);
        let waited = |after, slept| fault_sleep(before, after, slept);
        assert_eq!(waited(usage(11, 11, 10), false), Some(FaultSleep { disk: false }));
        assert_eq!(waited(usage(11, 11, 18), false), Some(FaultSleep { disk: true }));
        assert_eq!(waited(usage(11, 10, 10), false), None, "a fault without a sleep");
        assert_eq!(waited(usage(10, 11, 10), false), None, "a sleep without a fault");
        assert_eq!(waited(usage(11, 11, 10), true), None, "a sleep of its own will");
        assert_eq!(waited(usage(11, 12, 10), true), Some(FaultSleep { disk: false }));
    }

    #[test]
    fn time_is_used_up_at_once_or_in_pieces_and_comes_back() {
        let mut account = Account { port: 0, used: 0, at: 0 };
        assert_eq!(account.take(312_000_000, 1), Some(312_000_000));
        assert_eq!(account.take(6_000_000, 2), None);
        assert_eq!(account.take(6_000_000, 3), Some(12_000_000));
        // A fiftieth of the time.
        assert!((1..1000).all(|n| account.take(1_000_000, n * 50_000_000).is_none()));
    }

    /// A thread that lost its CPU, or touches new pages, is not held up.
    #[test]
    fn neither_a_busy_cpu_nor_new_pages_hold_anybody_up() {
        let (mut watch, troubled) = watch();
        watch.on = true;
        watch.ports.insert(3);
        watch.check_sleep();
        let memory = SharedMemory::new(0, 64 << 20).unwrap();
        let start = Instant::now();
        let mut page = 0;
        while start.elapsed() < Duration::from_millis(200) {
            let began = clock();
            memory.write(page * 4096, &[1]);
            page = (page + 1) % (16 << 10);
            let until = Instant::now() + Duration::from_micros(100);
            while Instant::now() < until {}
            watch.end(3, Some(began));
        }
        assert!(troubled.try_recv().is_err());
        assert!(watch.accounts.is_empty(), "{:?}", watch.accounts);
    }

    /// Returns a watch of port 3 whose thread slept in a page fault a moment ago.
    fn after_a_sleep() -> (Watch, Receiver<(PortIndex, Trouble)>) {
        let (mut watch, troubled) = watch();
        watch.on = true;
        watch.ports.insert(3);
        watch.until = u64::MAX;
        let now = Usage::now();
        watch.base = Usage { faults: now.faults - 1, sleeps: now.sleeps - 1, ..now };
        (watch, troubled)
    }

    fn spin() {
        let until = Instant::now() + Duration::from_millis(1);
        while Instant::now() < until {}
    }

    #[test]
    fn a_sleep_before_a_part_is_not_of_the_port_of_the_part() {
        let (mut watch, troubled) = after_a_sleep();
        let began = watch.begin(3);
        spin();
        watch.end(3, began);
        assert!(watch.accounts.is_empty(), "{:?}", watch.accounts);
        // The page is of a port that is not watched.
        watch.examine_loop(2 * ASK);
        assert!(matches!(troubled.try_recv(), Ok((_, Trouble::DelayedByUnknown { by_another: true }))));
        watch.asked = 0;
        watch.examine_loop(2 * ASK);
        assert!(troubled.try_recv().is_err(), "told once");
    }

    #[test]
    fn a_look_for_buffers_is_a_part() {
        let (mut worker, _handle) = testing::worker();
        testing::add_port(&mut worker, 3);
        worker.watch.owe(3, 0);
        let mut slots = Slots::new(2, 0, 0);
        let frame = slots.take().unwrap();
        let mut port = worker.ports[3].take().unwrap();
        assert_eq!(worker.watch.base, Usage::default());
        worker.chains_waiting(frame.get(), &mut port);
        slots.give(frame);
        assert_ne!(worker.watch.base, Usage::default());
    }

    #[test]
    fn a_worker_that_waits_for_a_hole_reports_the_port() {
        let (mut watch, troubled) = watch();
        let size = 256 << 20;
        let memory = SharedMemory::new(0, size as usize).unwrap();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    memory.preallocate().unwrap();
                    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                    fallocate(memory.fd(), flags, 0, size).unwrap();
                }
            });
            let start = Instant::now();
            let (mut suspected, mut asked) = (false, false);
            let mut byte = [0];
            let event = loop {
                assert!(start.elapsed() < Duration::from_secs(60), "{:?}", watch.accounts);
                let began = clock();
                (0..64).for_each(|n| memory.read(size / 64 * n, &mut byte));
                if asked {
                    watch.end(7, Some(began));
                } else if clock() - began > LOOK {
                    watch.examine_loop(clock() - began);
                }
                match troubled.try_recv() {
                    // At first no port is watched: no file seems to have a hole.
                    Ok((_, Trouble::DelayedByUnknown { by_another })) => {
                        assert!(by_another || !suspected);
                        suspected = true;
                        asked = by_another;
                        let mut ports = PortSet::EMPTY;
                        if asked {
                            ports.insert(7);
                        }
                        watch.start(ports, PortSet::EMPTY);
                    }
                    Ok((7, Trouble::Delayed { event, began })) => {
                        assert!(began < clock());
                        break event;
                    }
                    Ok(other) => panic!("{other:?}"),
                    Err(_) => {}
                }
            };
            over.store(true, Ordering::Relaxed);
            assert!(asked && event.object == Object::Memory && event.took >= HELD);
        });
    }
}
