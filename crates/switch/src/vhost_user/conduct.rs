//! How a port's objects delayed threads of the switch, and the quarantine that follows.
//!
//! ```text
//!  worker, notifier, port's thread ─ Event ─▶ record ─┬▶ one of 1 s        ─┐
//!                                                     ├▶ three within 10 s ─┼▶ quarantine: its connection ends;
//!                                                     └▶ 500 ms in all     ─┘  none is taken until it is over
//! ```
//!
//! An event is a time that one of our threads spent in the kernel for an object of this port: waiting for a
//! page of its memory, or walking over waiters of its counters. A long loop alone is no event: the host
//! takes the CPU away too.
//!
//! A count alone ignores length: events of five seconds in a row end less than three times within 10 s. An
//! account of time alone is slow for many short ones. So both are used, and the account is repaid at a
//! thousandth of the time: a port that takes more loses its connection.
//!
//! A balloon stays far below all three. It punches its guest's pages one by one, or up to 4 MiB at once
//! (free page reporting). A thread that touches such a hole waits some 0.6 ms (312 ms for 2 GiB), and a
//! guest does not send from a page that it gave up. Such short waits are an event only if they exceed a
//! fiftieth of the time (`worker/watch.rs`). Taking gigabytes at once from a guest whose driver uses them
//! is an event.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tidegate_evidence::{HeldUp, Quarantine};

/// This many events ...
const EVENTS: usize = 3;
/// ... within this time.
const WITHIN: Duration = Duration::from_secs(10);
/// One event this long suffices (ns).
const AT_ONCE: u64 = 1_000_000_000;
/// So does this much time of all events (ns) ...
const IN_ALL: u64 = 500_000_000;
/// ... of which one part in this many of the passing time is forgiven.
const SHARE: u64 = 1000;
/// The first quarantine of a port; each further one lasts twice as long ...
const FIRST: Duration = Duration::from_secs(60);
/// ... up to this. A port that is quiet for as long afterwards starts over.
pub const LONGEST: Duration = Duration::from_secs(3600);

/// Time for an object of a port from which on it is an event (ns).
pub const LONG: u64 = 5_000_000;

/// The object that held a thread up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Object {
    /// The guest's memory: the thread waited for a page.
    Memory,
    /// The driver's call eventfd: the thread signalled it.
    Call,
    /// The driver's kick eventfd: the thread began or stopped listening.
    Kick,
    /// The front end's error eventfd: the thread signalled it.
    Error,
}

/// One holdup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// What it was spent for.
    pub object: Object,
    /// Its length (ns).
    pub took: u64,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = self.took as f64 / 1e6;
        match self.object {
            Object::Memory => write!(
                f,
                "waited {ms:.0} ms for a page of the guest's memory (punched out of its file, or on a slow disk)"
            ),
            Object::Call => {
                write!(
                    f,
                    "took {ms:.0} ms to signal the driver's call eventfd (thousands of threads or epolls may wait for it)"
                )
            }
            Object::Error => {
                write!(
                    f,
                    "took {ms:.0} ms to signal the front end's error eventfd (thousands of threads or epolls may wait for it)"
                )
            }
            Object::Kick => {
                write!(
                    f,
                    "took {ms:.0} ms to listen to the driver's kick eventfd (thousands of threads or epolls may wait for it)"
                )
            }
        }
    }
}

/// The record of one port.
#[derive(Debug, Default)]
pub struct Conduct(Mutex<Record>);

#[derive(Debug, Default)]
struct Record {
    recent: VecDeque<Instant>,
    /// Unforgiven time of all events (ns), and its date.
    used: u64,
    used_at: Option<Instant>,
    events: u64,
    quarantines: u64,
    /// The last quarantine: its end, its length, and its reason.
    last: Option<(Instant, Duration, String)>,
}

impl Conduct {
    /// Notes an event at `now`; returns the reason if a quarantine begins.
    pub fn record(&self, event: Event, now: Instant) -> Option<String> {
        let mut record = self.lock();
        record.events += 1;
        record.recent.retain(|at| now.saturating_duration_since(*at) <= WITHIN);
        record.recent.push_back(now);
        record.charge(event.took, now);
        if record.last.as_ref().is_some_and(|(end, ..)| now < *end) {
            return None;
        }
        let fault = if event.took >= AT_ONCE {
            format!("once for {} s or longer", AT_ONCE / 1_000_000_000)
        } else if record.recent.len() >= EVENTS {
            format!("{EVENTS} times within {} s", WITHIN.as_secs())
        } else if record.used >= IN_ALL {
            format!("for {} ms in all", record.used / 1_000_000)
        } else {
            return None;
        };
        record.recent.clear();
        record.used = 0;
        let quiet = |(end, ..): &(Instant, Duration, String)| now.saturating_duration_since(*end) >= LONGEST;
        let time = match &record.last {
            Some(last) if !quiet(last) => (last.1 * 2).min(LONGEST),
            _ => FIRST,
        };
        let reason = format!(
            "quarantined for {} s: {fault} the front end's objects delayed a thread of the switch; the last \
             time, the thread {event}",
            time.as_secs()
        );
        record.quarantines += 1;
        record.last = Some((now + time, time, reason.clone()));
        Some(reason)
    }

    /// Continues a quarantine of another process.
    pub fn resume(&self, quarantine: &Quarantine, now: Instant) {
        let (left, all) =
            (Duration::from_secs(quarantine.remaining), Duration::from_secs(quarantine.seconds));
        self.lock().last = Some((now + left.min(LONGEST), all.min(LONGEST), quarantine.reason.clone()));
    }

    /// Returns the rest of the quarantine at `now`, if any.
    pub fn quarantine_remaining(&self, now: Instant) -> Option<Duration> {
        let record = self.lock();
        record
            .last
            .as_ref()
            .map(|(end, ..)| end.saturating_duration_since(now))
            .filter(|left| !left.is_zero())
    }

    /// Returns the quarantine at `now`, if any.
    pub fn quarantine(&self, now: Instant) -> Option<Quarantine> {
        let left = self.quarantine_remaining(now)?;
        let record = self.lock();
        let (_, time, reason) = record.last.as_ref()?;
        let remaining = left.as_secs_f64().ceil() as u64;
        Some(Quarantine { reason: reason.clone(), seconds: time.as_secs(), remaining })
    }

    /// Returns the whole record at `now`.
    pub fn delays(&self, now: Instant) -> HeldUp {
        let quarantine = self.quarantine(now);
        let record = self.lock();
        HeldUp { events: record.events, quarantines: record.quarantines, quarantine }
    }

    fn lock(&self) -> MutexGuard<'_, Record> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Record {
    /// Adds the time of an event that ended at `now`.
    fn charge(&mut self, took: u64, now: Instant) {
        let since = self.used_at.replace(now).map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
        let forgiven = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX) / SHARE;
        self.used = self.used.saturating_sub(forgiven).saturating_add(took);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const PUNCHED: Event = Event { object: Object::Memory, took: 12 * MS };

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn waited(took: u64) -> Event {
        Event { object: Object::Memory, took }
    }

    #[test]
    fn three_events_within_ten_seconds_and_not_two() {
        let (conduct, start) = (Conduct::default(), Instant::now());
        for at in [0, 9, 20, 29, 40] {
            assert_eq!(conduct.record(PUNCHED, start + s(at)), None, "at {at} s");
        }
        assert_eq!(conduct.record(PUNCHED, start + s(41)), None);
        assert_eq!(conduct.quarantine_remaining(start + s(41)), None);
        let reason = conduct.record(PUNCHED, start + s(42)).unwrap();
        assert!(
            reason.contains("for 60 s: 3 times within 10 s") && reason.contains("waited 12 ms"),
            "{reason}"
        );
        let held = conduct.delays(start + s(50));
        assert_eq!((held.events, held.quarantines), (7, 1));
        let now = held.quarantine.unwrap();
        assert_eq!((now.seconds, now.remaining, now.reason), (60, 52, reason));
        assert_eq!(conduct.quarantine(start + s(102)), None);
    }

    /// Three events of five seconds end more than ten seconds apart.
    #[test]
    fn one_event_of_a_second_is_enough() {
        let (conduct, now) = (Conduct::default(), Instant::now());
        let reason = conduct.record(waited(5_100 * MS), now).expect("quarantine");
        assert!(reason.contains("for 60 s: once for 1 s or longer"), "{reason}");
        assert!(reason.contains("waited 5100 ms"), "{reason}");
        assert!(Conduct::default().record(waited(1000 * MS), now).is_some());
        assert_eq!(Conduct::default().record(waited(499 * MS), now), None);
    }

    #[test]
    fn two_events_in_any_ten_seconds_are_found_by_their_time() {
        // Length of each, and their largest number.
        for (took, most) in [(312, 2), (100, 6), (20, 50)] {
            let (conduct, start) = (Conduct::default(), Instant::now());
            let quarantined =
                (1..1000).find(|n| conduct.record(waited(took * MS), start + s(n * 6)).is_some());
            let number = quarantined.unwrap_or_else(|| panic!("{took} ms each 6 s, for ever"));
            assert!(number <= most, "{took} ms: {number}");
            let reason = conduct.quarantine(start + s(number * 6)).unwrap().reason;
            assert!(reason.contains("ms in all"), "{reason}");
            // It begins anew afterwards.
            assert_eq!(conduct.record(waited(20 * MS), start + s(number * 6 + 60)), None);
        }
    }

    /// A thousandth of the time is harmless.
    #[test]
    fn rare_and_short_events_are_forgiven() {
        let (conduct, start) = (Conduct::default(), Instant::now());
        assert!((0..10_000).all(|n| conduct.record(waited(10 * MS), start + s(n * 10)).is_none()));
        assert!(conduct.record(waited(499 * MS), start + s(100_600)).is_none(), "forgotten by then");
    }

    #[test]
    fn each_quarantine_is_longer_until_the_port_was_quiet() {
        let (conduct, start) = (Conduct::default(), Instant::now());
        let mut now = start;
        let again = |now: &mut Instant| {
            (0..2).for_each(|_| assert_eq!(conduct.record(PUNCHED, *now), None));
            conduct.record(PUNCHED, *now).unwrap();
            // A late event from before is counted only.
            assert_eq!(conduct.record(PUNCHED, *now), None);
            let time = conduct.quarantine(*now).unwrap().seconds;
            *now += s(time + 11);
            time
        };
        let times: Vec<_> = (0..9).map(|_| again(&mut now)).collect();
        assert_eq!(times, [60, 120, 240, 480, 960, 1920, 3600, 3600, 3600]);
        now += LONGEST;
        assert_eq!(again(&mut now), 60);
    }

    #[test]
    fn another_process_continues_a_quarantine() {
        let (conduct, now) = (Conduct::default(), Instant::now());
        let was = Quarantine { reason: "punched".into(), seconds: 120, remaining: 40 };
        conduct.resume(&was, now);
        assert_eq!(conduct.quarantine(now), Some(was));
        assert_eq!(conduct.quarantine_remaining(now + s(41)), None);
    }
}
