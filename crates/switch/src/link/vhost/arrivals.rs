//! Arrival times of a ring's entries, although only its index is polled.
//!
//! A frame arrived between the last poll without it and the first with it
//! ([`arrival`](crate::slots::arrival)). After too many separate polls the intervals become longer.

use crate::slots::arrival::{Arrival, UnseenSince};
use std::collections::VecDeque;

const MARKS: usize = 32;

/// Entries that came together: the index behind the last, and their arrival.
type Mark = (u16, Arrival);

/// Arrival times of a ring's entries.
pub struct Arrivals {
    unseen: UnseenSince,
    seen: u16,
    /// Mostly the only one: a turn takes all entries of the poll before it.
    oldest: Option<Mark>,
    /// In order. Fixed capacity: one less than [`MARKS`].
    later: VecDeque<Mark>,
}

impl Arrivals {
    /// Starts at ring index `base` at `now`.
    pub fn new(base: u16, now: u64) -> Self {
        Self {
            unseen: UnseenSince::from(now),
            seen: base,
            oldest: None,
            later: VecDeque::with_capacity(MARKS - 1),
        }
    }

    /// Notes a poll at `now`, or later, that showed entries from `next`, the next to take, up to `upto`,
    /// exclusive. Reads `clock` for new ones: they came before.
    #[inline]
    pub fn polled(&mut self, next: u16, upto: u16, now: u64, clock: impl FnOnce() -> u64) {
        if upto != self.seen {
            let all_taken = next == self.seen;
            self.seen = upto;
            let arrival = self.unseen.arrival(clock());
            if all_taken || self.oldest.is_none() {
                self.oldest = Some((upto, arrival));
                self.later.clear();
            } else if self.later.len() < MARKS - 1 {
                self.later.push_back((upto, arrival));
            } else if let Some((end, before)) = self.later.back_mut() {
                // Too many marks: the newest entries join the ones before.
                *end = upto;
                before.latest = arrival.latest;
            }
        }
        self.unseen.polled(now);
    }

    /// Notes that all entries were seen at `since`; the worker slept after that until `woke`.
    pub fn note_sleep(&mut self, since: u64, woke: u64) {
        self.unseen.note_sleep(since, woke);
    }

    /// Counts the ring's entries as arrived at `now`: nothing was taken until then.
    pub fn restart(&mut self, now: u64) {
        self.oldest = Some((self.seen, Arrival::at(now)));
        self.later.clear();
        self.unseen = UnseenSince::from(now);
    }

    /// Returns the arrival of the entry at ring index `index`; indices are asked in order. Reads `clock` if
    /// no poll showed it.
    #[inline]
    pub fn of(&mut self, index: u16, clock: impl FnOnce() -> u64) -> Arrival {
        while let Some((upto, arrival)) = self.oldest {
            if is_before(index, upto) {
                return arrival;
            }
            self.oldest = self.later.pop_front();
        }
        self.unseen.arrival(clock())
    }

    /// Whether one poll was the first to show `count` entries from ring index `index` on, the next to take.
    #[inline]
    pub fn arrived_together(&self, index: u16, count: usize) -> bool {
        let last = index.wrapping_add((count as u16).saturating_sub(1));
        self.oldest.is_some_and(|(upto, _)| is_before(last, upto))
    }

    /// Writes when each entry from ring index `index` on was first seen, the next to take first.
    #[inline(never)]
    pub fn write_latest(&self, index: u16, latest: &mut [u64]) {
        let mut marks = self.oldest.iter().chain(&self.later).peekable();
        let mut known = self.unseen.arrival(0).latest;
        for (index, latest) in (0..).map(|i| index.wrapping_add(i)).zip(latest) {
            while marks.next_if(|(upto, _)| !is_before(index, *upto)).is_some() {}
            known = marks.peek().map_or(known, |(_, arrival)| arrival.latest);
            *latest = known;
        }
    }
}

/// Whether a ring index precedes another.
#[inline]
fn is_before(index: u16, other: u16) -> bool {
    (1..0x8000).contains(&other.wrapping_sub(index))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Each entry came in its interval, which is exact while few batches wait.
        #[test]
        fn an_entry_came_between_the_last_poll_without_it_and_the_first_with_it(
            base in any::<u16>(),
            steps in prop::collection::vec((0u16..5, 0u16..5, 0u64..10, prop::option::of(0u64..1_000)), 1..200),
        ) {
            let mut arrivals = Arrivals::new(base, 0);
            let (mut upto, mut next, mut now) = (base, base, 0u64);
            let mut came = std::collections::VecDeque::new();
            let (mut shown, mut slept) = (base, false);
            for (added, taken, late, sleep) in steps {
                if let Some(ns) = sleep.filter(|_| shown == upto) {
                    let fell_asleep = now;
                    now += ns;
                    arrivals.note_sleep(fell_asleep, now);
                    slept = true;
                }
                for _ in 0..added {
                    now += 1;
                    came.push_back(now);
                }
                let read = now;
                now += late;
                upto = upto.wrapping_add(added);
                arrivals.polled(next, upto, read, || now);
                shown = upto;
                let run = came.len().min(taken.into());
                if run > 0 {
                    let first = arrivals.of(next, || unreachable!());
                    let mut latest = vec![0; run];
                    arrivals.write_latest(next, &mut latest);
                    let together = arrivals.arrived_together(next, run);
                    for (at, latest) in came.iter().zip(latest) {
                        prop_assert!(first.earliest - first.slept <= *at && *at <= latest);
                        prop_assert!(!together || latest == first.latest);
                    }
                }
                for _ in 0..run {
                    let Some(at) = came.pop_front() else { break };
                    let got = arrivals.of(next, || unreachable!());
                    prop_assert!(got.earliest - got.slept <= at && at <= got.latest, "{got:?} for {at}");
                    prop_assert!(slept || got.slept == 0);
                    if came.len() < MARKS && !slept {
                        prop_assert!(got.latest - got.earliest <= 14 * 6, "{got:?} for {at}");
                    }
                    next = next.wrapping_add(1);
                }
                now += 1;
            }
        }
    }

    #[test]
    fn sleep_does_not_count_as_waiting() {
        let mut arrivals = Arrivals::new(0, 0);
        arrivals.polled(0, 0, 10, || unreachable!());
        arrivals.note_sleep(20, 1_000);
        arrivals.polled(0, 1, 1_005, || 1_006);
        let arrival = Arrival { earliest: 1_000, latest: 1_006, slept: 980 };
        assert_eq!(arrivals.of(0, || unreachable!()), arrival);
    }

    #[test]
    fn a_restart_forgets_older_arrivals() {
        let mut arrivals = Arrivals::new(0, 0);
        arrivals.polled(0, 3, 10, || 11);
        arrivals.polled(0, 5, 20, || 21);
        arrivals.restart(1_000);
        arrivals.polled(0, 5, 1_005, || unreachable!());
        arrivals.polled(0, 6, 1_010, || 1_011);
        let at = [0, 4].map(|index| arrivals.of(index, || unreachable!()));
        assert_eq!(at, [Arrival::at(1_000); 2]);
        let last = Arrival { earliest: 1_005, latest: 1_011, slept: 0 };
        assert_eq!(arrivals.of(5, || unreachable!()), last);
    }

    #[test]
    fn each_of_a_batch_was_seen_by_its_poll() {
        let mut arrivals = Arrivals::new(0, 0);
        arrivals.polled(0, 3, 10, || 11);
        arrivals.polled(0, 5, 20, || 21);
        arrivals.of(1, || unreachable!());
        assert_eq!([1, 2, 3].map(|count| arrivals.arrived_together(1, count)), [true, true, false]);
        let mut latest = [0; 4];
        arrivals.write_latest(1, &mut latest);
        assert_eq!(latest, [11, 11, 21, 21]);
    }
}
