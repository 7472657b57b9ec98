//! When a frame arrived: the interval between two polls.
//!
//! ```text
//!  poll: nothing      (falls asleep ──── wakes)      poll: a frame
//!        │                  │              │               │
//!        ├──────────────────┴── slept ─────┤               │
//!        └ it came after this              └ earliest      └ latest
//! ```
//!
//! Only a poll tells that a frame was *not* there yet. While the worker sleeps it does not poll: how long the kernel
//! took to wake it, it cannot tell. That part is kept apart, so that time asleep is neither taken for delay nor left out.

/// When a frame arrived, ns of CLOCK_MONOTONIC: between `earliest - slept` and `latest`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arrival {
    /// The last poll that did not show it; where the worker slept since, the wake-up.
    pub earliest: u64,
    /// Right after the first poll that showed it. Not before `earliest`.
    pub latest: u64,
    /// How much before `earliest` it can have come, while the worker slept, ns. 0 where the worker was awake.
    pub slept: u64,
}

impl Arrival {
    /// It counts as arrived at this moment.
    pub fn at(moment: u64) -> Self {
        Self { earliest: moment, latest: moment, slept: 0 }
    }

    /// The latest that its deadline's clock can have started, where the earliest is `started`: the later of
    /// [`earliest`](Self::earliest) and of when it conformed to its envelope.
    #[inline]
    pub fn started_by(&self, started: u64) -> u64 {
        self.latest.max(started)
    }

    /// How long it is known to have waited where it conformed to its envelope at `started`, ns: since a poll showed it.
    /// Before that it waited for the worker.
    #[inline]
    pub fn waited(&self, started: u64) -> u64 {
        started.saturating_sub(self.latest)
    }

    /// How much before `started` that clock can have started while the worker slept, ns: not at all where the frame
    /// waited for tokens until then.
    #[inline]
    pub fn slept_before(&self, started: u64) -> u64 {
        if started > self.earliest { 0 } else { self.slept }
    }
}

/// Since when a link can hold frames that no poll has shown.
#[derive(Clone, Copy, Debug)]
pub struct Unseen {
    /// The last time it was seen to have no other frames than are known.
    since: u64,
    /// The end of the last sleep.
    woke: u64,
}

impl Unseen {
    /// From `now` on.
    pub fn from(now: u64) -> Self {
        Self { since: now, woke: now }
    }

    /// A poll that began at `now`, or later, showed all there was.
    #[inline]
    pub fn polled(&mut self, now: u64) {
        self.since = now;
    }

    /// It was seen empty at `since`, perhaps not for the last time. The worker slept after that, until `woke`; it did
    /// not where the two are the same.
    #[inline]
    pub fn slept(&mut self, since: u64, woke: u64) {
        self.since = self.since.max(since);
        self.woke = self.woke.max(woke);
    }

    /// When frames arrived that a poll, which ended by `seen`, was the first to show.
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
        /// A frame comes so much later.
        Come(u64),
        /// The worker looks; its clock, read before, is so old by then, and is read so much later again.
        Poll(u64, u64),
        /// The worker sees it empty, and sleeps so long.
        Sleep(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0..1_000u64).prop_map(Step::Come),
            (0..500u64, 0..500u64).prop_map(|(old, later)| Step::Poll(old, later)),
            (0..100_000u64).prop_map(Step::Sleep),
        ]
    }

    proptest! {
        /// Whatever the clock does between being read and polling, and however long the worker sleeps.
        #[test]
        fn a_frame_came_in_its_interval(steps in prop::collection::vec(step(), 1..200)) {
            let (mut now, mut unseen) = (1_000_000u64, Unseen::from(1_000_000));
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
                                // While it is awake, sleep explains nothing.
                                prop_assert!(at < awake_since || arrival.earliest <= at);
                            }
                        }
                        unseen.polled(read);
                    }
                    // It does not fall asleep while there is anything.
                    Step::Sleep(_) if !came.is_empty() => {}
                    Step::Sleep(ns) => {
                        let fell_asleep = now;
                        now += ns / 2;
                        came.push(now);
                        now += ns / 2;
                        unseen.slept(fell_asleep, now);
                        awake_since = now;
                    }
                }
            }
        }
    }

    #[test]
    fn sleep_is_not_taken_for_delay_and_not_left_out() {
        let mut unseen = Unseen::from(100);
        unseen.polled(500);
        unseen.slept(600, 9_000);
        assert_eq!(unseen.arrival(9_100), Arrival { earliest: 9_000, latest: 9_100, slept: 8_400 });
        unseen.polled(9_100);
        assert_eq!(unseen.arrival(9_300), Arrival { earliest: 9_100, latest: 9_300, slept: 0 });
    }

    #[test]
    fn what_waited_for_tokens_waited_for_them() {
        let arrival = Arrival { earliest: 100, latest: 120, slept: 40 };
        assert_eq!((arrival.started_by(100), arrival.slept_before(100)), (120, 40));
        assert_eq!((arrival.started_by(110), arrival.slept_before(110)), (120, 0));
        assert_eq!((arrival.started_by(200), arrival.slept_before(200)), (200, 0));
    }
}
