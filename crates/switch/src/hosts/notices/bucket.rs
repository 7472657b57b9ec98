//! A limit on how many messages a second pass.
//!
//! ```text
//!  time ─▶ tokens, at most a burst of them ─▶ take: yes or no
//! ```

/// A token bucket: so many messages a second, and as many at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bucket {
    /// Time of one message (ns).
    each_ns: u64,
    /// The time from which on it is full (ns).
    full_at: u64,
}

/// Time in which an empty bucket fills (ns).
const FILLS_IN: u64 = 1_000_000_000;

impl Bucket {
    /// Returns a full bucket of `rate` messages a second, at least 1.
    pub(super) const fn new(rate: u64) -> Self {
        Self { each_ns: FILLS_IN / rate, full_at: 0 }
    }

    /// Takes a token at `now` (ns); `false` if there is none.
    pub(super) fn take(&mut self, now: u64) -> bool {
        let from = self.full_at.max(now);
        let is_left = from - now <= FILLS_IN - self.each_ns;
        if is_left {
            self.full_at = from + self.each_ns;
        }
        is_left
    }

    /// Returns when the next token comes (ns); `now` if there is one.
    pub(super) fn next(&self, now: u64) -> u64 {
        now.max(self.full_at.saturating_sub(FILLS_IN - self.each_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Any window of time carries at most the burst and the rate.
        #[test]
        fn no_window_carries_more(rate in 1u64..500, pauses in prop::collection::vec(0u64..20_000_000, 1..800)) {
            let mut bucket = Bucket::new(rate);
            let (mut now, mut taken) = (5, Vec::new());
            for pause in pauses {
                now += pause;
                let next = bucket.next(now);
                let is_taken = bucket.take(now);
                prop_assert_eq!(is_taken, next == now);
                if is_taken {
                    taken.push(now);
                }
            }
            for (first, from) in taken.iter().enumerate() {
                for (last, to) in taken.iter().enumerate().skip(first) {
                    let most = rate + (to - from) / (FILLS_IN / rate) + 1;
                    prop_assert!((last - first) as u64 <= most);
                }
            }
        }
    }

    #[test]
    fn a_second_brings_as_many_as_the_rate() {
        let mut bucket = Bucket::new(200);
        let mut taken = |now| (0..1000).filter(|_| bucket.take(now)).count();
        assert_eq!(taken(7), 200);
        assert_eq!(taken(7 + FILLS_IN / 2), 100);
        assert_eq!(taken(7 + 10 * FILLS_IN), 200);
    }
}
