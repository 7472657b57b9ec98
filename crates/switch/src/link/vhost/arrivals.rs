//! When the entries of a ring arrived, although only its index is polled.
//!
//! A frame's arrival is the last poll that did not yet show it, so waiting is
//! never counted too short. After sleep it is the wake-up.

const MARKS: usize = 32;

/// Arrival times of the entries a ring holds.
pub struct Arrivals {
    /// (first index not covered, arrival) of the oldest entries first.
    marks: [(u16, u64); MARKS],
    first: usize,
    count: usize,
    seen: u16,
    last_poll: u64,
}

impl Arrivals {
    /// Starts at ring index `base`, at `now`.
    pub fn new(base: u16, now: u64) -> Self {
        Self { marks: [(0, 0); MARKS], first: 0, count: 0, seen: base, last_poll: now }
    }

    /// A poll at `now` showed entries up to, not including, `upto`.
    #[inline]
    pub fn polled(&mut self, upto: u16, now: u64) {
        if upto != self.seen {
            self.seen = upto;
            if self.count == MARKS {
                // Too many to tell apart: the newest join the ones before, and so count as older.
                self.marks[(self.first + MARKS - 1) % MARKS].0 = upto;
            } else {
                self.marks[(self.first + self.count) % MARKS] = (upto, self.last_poll);
                self.count += 1;
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
        self.count = 0;
        self.last_poll = now;
    }

    /// When the entry at ring index `index` arrived; indices are asked for in order.
    #[inline]
    pub fn of(&mut self, index: u16) -> u64 {
        while self.count > 0 {
            let (upto, at) = self.marks[self.first];
            let ahead = upto.wrapping_sub(index);
            if ahead != 0 && ahead < 0x8000 {
                return at;
            }
            self.first = (self.first + 1) % MARKS;
            self.count -= 1;
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
                arrivals.polled(upto, now);
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
        arrivals.polled(0, 10);
        arrivals.woke(1_000);
        arrivals.polled(1, 1_005);
        assert_eq!(arrivals.of(0), 1_000);
    }

    #[test]
    fn a_restart_forgets_older_arrivals() {
        let mut arrivals = Arrivals::new(0, 0);
        arrivals.polled(3, 10);
        arrivals.polled(5, 20);
        arrivals.restart(1_000);
        arrivals.polled(6, 1_005);
        assert_eq!([0, 4, 5].map(|index| arrivals.of(index)), [1_000; 3]);
    }
}
