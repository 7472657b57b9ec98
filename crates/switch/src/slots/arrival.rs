//! When a frame arrived: the interval between two polls.
//!
//! ```text
//!  poll: nothing      (falls asleep ──── wakes)      poll: a frame
//!        │                  │              │               │
//!        ├──────────────────┴── slept ─────┤               │
//!        └ it came after this              └ earliest      └ latest
//! ```
//!
//! Only a poll shows that a frame was *not* there yet. A sleeping worker does not poll, and cannot tell how
//! long its wake-up took. That part is separate, so that sleep is neither counted as delay nor left out.

/// When a frame arrived, ns of CLOCK_MONOTONIC: between `earliest - slept` and `latest`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arrival {
    /// The last poll without it; after a sleep, the wake-up.
    pub earliest: u64,
    /// Right after the first poll with it. Not before `earliest`.
    pub latest: u64,
    /// Time before `earliest` in which it may have come while the worker slept (ns). 0 if the worker was
    /// awake.
    pub slept: u64,
}

impl Arrival {
    /// Returns an arrival at this moment.
    pub fn at(moment: u64) -> Self {
        Self { earliest: moment, latest: moment, slept: 0 }
    }

    /// Returns the arrival of a frame that the kernel says had waited for `age` ns at `latest`. An age that contradicts the
    /// polls tells nothing: the kernel's clock was set meanwhile.
    #[inline]
    pub fn of_age(self, age: u64) -> Self {
        match self.latest.checked_sub(age) {
            Some(moment) if moment >= self.earliest.saturating_sub(self.slept) => Self::at(moment),
            _ => self,
        }
    }

    /// Returns the latest start of its deadline's clock, if the earliest is `started`: the later of
    /// [`earliest`](Self::earliest) and its conformance.
    #[inline]
    pub fn started_by(&self, started: u64) -> u64 {
        self.latest.max(started)
    }

    /// Returns its known wait until it conformed at `started` (ns): since a poll showed it. Before that it
    /// waited for the worker.
    #[inline]
    pub fn waited(&self, started: u64) -> u64 {
        started.saturating_sub(self.latest)
    }

    /// Returns the time before `started` in which that clock may have started while the worker slept (ns):
    /// 0 if the frame waited for tokens until then.
    #[inline]
    pub fn slept_before(&self, started: u64) -> u64 {
        if started > self.earliest { 0 } else { self.slept }
    }
}

/// Since when a link can hold unseen frames.
#[derive(Clone, Copy, Debug)]
pub struct UnseenSince {
    /// The last time at which it had no unknown frames.
    since: u64,
    /// The end of the last sleep.
    woke: u64,
}

impl UnseenSince {
    /// Starts at `now`.
    pub fn from(now: u64) -> Self {
        Self { since: now, woke: now }
    }

    /// Notes a poll that began at `now`, or later, and showed all frames.
    #[inline]
    pub fn polled(&mut self, now: u64) {
        self.since = now;
    }

    /// Notes that it was empty at `since`, perhaps not for the last time. The worker slept after that until
    /// `woke`, unless the two are equal.
    #[inline]
    pub fn note_sleep(&mut self, since: u64, woke: u64) {
        self.since = self.since.max(since);
        self.woke = self.woke.max(woke);
    }

    /// Returns the arrival of frames that a poll, which ended by `seen`, was the first to show.
    #[inline]
    pub fn arrival(&self, seen: u64) -> Arrival {
        let earliest = self.since.max(self.woke);
        Arrival { earliest, latest: seen.max(earliest), slept: earliest - self.since }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Copy, Debug)]
    enum Step {
        /// A frame comes after this pause.
        Come(u64),
        /// The worker polls; its clock was read this much before, and is read this much later.
        Poll(u64, u64),
        /// The worker finds it empty, and sleeps this long.
        Sleep(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0..1_000u64).prop_map(Step::Come),
            (0..500u64, 0..500u64).prop_map(|(old, later)| Step::Poll(old, later)),
            (0..100_000u64).prop_map(Step::Sleep),
        ]
    }

    #[test]
    fn an_age_that_contradicts_the_polls_tells_nothing() {
        let polled = Arrival { earliest: 700, latest: 900, slept: 300 };
        assert_eq!(polled.of_age(0), Arrival::at(900));
        assert_eq!(polled.of_age(500), Arrival::at(400), "while the worker slept");
        assert_eq!(polled.of_age(501), polled, "before a poll that showed nothing");
        assert_eq!(polled.of_age(u64::MAX), polled);
    }

    proptest! {
        /// Whatever the clock does between reading and polling, and however long the worker sleeps.
        #[test]
        fn a_frame_came_in_its_interval(steps in prop::collection::vec(step(), 1..200)) {
            let (mut now, mut unseen) = (1_000_000u64, UnseenSince::from(1_000_000));
            let (mut came, mut awake_since) = (Vec::new(), now);
            for step in steps {
                match step {
                    Step::Come(after) => {
                        now += after;
                        came.push(now);
                    }
                    Step::Poll(old, later) => {
                        let read = now;
                        now += old;
                        let polled = now;
                        now += later;
                        if !came.is_empty() {
                            let arrival = unseen.arrival(now);
                            prop_assert!(arrival.earliest <= arrival.latest);
                            for at in came.drain(..) {
                                prop_assert!(arrival.earliest - arrival.slept <= at, "{arrival:?} of {at}");
                                prop_assert!(at <= arrival.latest && polled <= arrival.latest);
                                // Sleep explains nothing while it is awake.
                                prop_assert!(at < awake_since || arrival.earliest <= at);
                            }
                        }
                        unseen.polled(read);
                    }
                    // It does not fall asleep while there are frames.
                    Step::Sleep(_) if !came.is_empty() => {}
                    Step::Sleep(ns) => {
                        let fell_asleep = now;
                        now += ns / 2;
                        came.push(now);
                        now += ns / 2;
                        unseen.note_sleep(fell_asleep, now);
                        awake_since = now;
                    }
                }
            }
        }
    }

    #[test]
    fn sleep_is_not_taken_for_delay_and_not_left_out() {
        let mut unseen = UnseenSince::from(100);
        unseen.polled(500);
        unseen.note_sleep(600, 9_000);
        assert_eq!(unseen.arrival(9_100), Arrival { earliest: 9_000, latest: 9_100, slept: 8_400 });
        unseen.polled(9_100);
        assert_eq!(unseen.arrival(9_300), Arrival { earliest: 9_100, latest: 9_300, slept: 0 });
    }

    #[test]
    fn a_wait_for_tokens_is_counted_as_such() {
        let arrival = Arrival { earliest: 100, latest: 120, slept: 40 };
        assert_eq!((arrival.started_by(100), arrival.slept_before(100)), (120, 40));
        assert_eq!((arrival.started_by(110), arrival.slept_before(110)), (120, 0));
        assert_eq!((arrival.started_by(200), arrival.slept_before(200)), (200, 0));
    }
}
