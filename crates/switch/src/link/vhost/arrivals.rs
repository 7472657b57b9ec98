//! When the entries of a ring arrived, although only its index is polled.
//!
//! A frame's arrival is the last poll that did not yet show it, so waiting is
//! never counted too short. After sleep it is the wake-up.

use std::collections::VecDeque;

const MARKS: usize = 32;

/// Entries that came together: the first index behind them, and when they arrived, ns.
type Mark = (u16, u64);

/// Arrival times of the entries a ring holds.
pub struct Arrivals {
    last_poll: u64,
    seen: u16,
    /// Mostly the only one: a turn takes all that the poll before it showed.
    oldest: Option<Mark>,
    /// In order. Of a fixed capacity: one less than [`MARKS`].
    later: VecDeque<Mark>,
}

impl Arrivals {
    /// Starts at ring index `base`, at `now`.
    pub fn new(base: u16, now: u64) -> Self {
        Self { last_poll: now, seen: base, oldest: None, later: VecDeque::with_capacity(MARKS - 1) }
    }

    /// A poll at `now` showed entries from `next`, the next one to be taken, up to, not including, `upto`.
    #[inline]
    pub fn polled(&mut self, next: u16, upto: u16, now: u64) {
        if upto != self.seen {
            let all_taken = next == self.seen;
            self.seen = upto;
            if all_taken || self.oldest.is_none() {
                self.oldest = Some((upto, self.last_poll));
                self.later.clear();
            } else if self.later.len() < MARKS - 1 {
                self.later.push_back((upto, self.last_poll));
            } else if let Some((end, _)) = self.later.back_mut() {
                // Too many to tell apart: the newest join the ones before, and so count as older.
                *end = upto;
            }
        }
        self.last_poll = now;
    }

    /// The worker slept and woke at `now`: what arrived meanwhile arrived now.
    pub fn woke(&mut self, now: u64) {
        self.last_poll = now;
    }

    /// Nothing was taken from the ring until `now`: what it holds counts as arrived now.
    pub fn restart(&mut self, now: u64) {
        self.oldest = None;
        self.later.clear();
        self.last_poll = now;
    }

    /// When the entry at ring index `index` arrived; indices are asked for in order.
    #[inline]
    pub fn of(&mut self, index: u16) -> u64 {
        while let Some((upto, at)) = self.oldest {
            let ahead = upto.wrapping_sub(index);
            if ahead != 0 && ahead < 0x8000 {
                return at;
            }
            self.oldest = self.later.pop_front();
        }
        self.last_poll
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Exact as long as few batches wait; never too late otherwise.
        #[test]
        fn arrival_is_the_last_poll_that_did_not_show_it(
            base in any::<u16>(),
            steps in prop::collection::vec((0u16..5, 0u16..5), 1..200),
        ) {
            let mut arrivals = Arrivals::new(base, 0);
            let (mut upto, mut next, mut now) = (base, base, 0u64);
            let mut exact = std::collections::VecDeque::new();
            for (added, taken) in steps {
                for _ in 0..added {
                    exact.push_back(now);
                }
                now += 10;
                upto = upto.wrapping_add(added);
                arrivals.polled(next, upto, now);
                for _ in 0..taken {
                    let Some(expected) = exact.pop_front() else { break };
                    let got = arrivals.of(next);
                    prop_assert!(got <= expected);
                    if exact.len() < MARKS {
                        prop_assert!(expected - got <= 10 * 6, "{got} for {expected}");
                    }
                    next = next.wrapping_add(1);
                }
            }
        }
    }

    #[test]
    fn sleep_does_not_count_as_waiting() {
        let mut arrivals = Arrivals::new(0, 0);
        arrivals.polled(0, 0, 10);
        arrivals.woke(1_000);
        arrivals.polled(0, 1, 1_005);
        assert_eq!(arrivals.of(0), 1_000);
    }

    #[test]
    fn a_restart_forgets_older_arrivals() {
        let mut arrivals = Arrivals::new(0, 0);
        arrivals.polled(0, 3, 10);
        arrivals.polled(0, 5, 20);
        arrivals.restart(1_000);
        arrivals.polled(0, 6, 1_005);
        assert_eq!([0, 4, 5].map(|index| arrivals.of(index)), [1_000; 3]);
    }
}
