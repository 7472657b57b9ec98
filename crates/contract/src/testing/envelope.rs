//! The excess of traffic over its envelope: the largest, over all intervals, of bytes - rate * length of the
//! interval. Exact, and one step per observation.
//!
//! ```text
//!  seen(time, bytes) ─▶ excess = max(0, excess - rate * since the last) + bytes ─▶ the largest
//! ```
//!
//! A sink that polls only knows that a frame came between two polls. Two figures bound the truth:
//! - **seen** assumes that every frame came when it was seen. A late look sees two frames closer together than they
//!   were, so this may be too high, by at most rate * the longest pause.
//! - **certain** assumes that the first frame of an interval came right after the poll before, so no interval
//!   counts as shorter than it was. This is a lower bound.

/// Units of 10^-9 bit in a byte: at r bit/s, every nanosecond has r units.
const PER_BYTE: i128 = 8_000_000_000;

/// The largest excess over a rate so far.
#[derive(Clone, Debug)]
pub struct Envelope {
    /// bit/s, which is units per nanosecond.
    rate: i128,
    last: u64,
    seen: i128,
    certain: Option<i128>,
    most_seen: i128,
    most_certain: i128,
}

impl Envelope {
    /// Starts at `rate` bit/s, with nothing seen.
    pub fn new(rate: u64) -> Self {
        Self { rate: rate.into(), last: 0, seen: 0, certain: None, most_seen: 0, most_certain: 0 }
    }

    /// Records that `bytes` were seen at `now` and not yet at `before` (ns of one clock). `before` may be earlier than
    /// the last `now`, because looking takes time.
    pub fn observe(&mut self, before: u64, now: u64, bytes: u64) {
        let bytes = i128::from(bytes) * PER_BYTE;
        let earned = |ns: u64| i128::from(ns) * self.rate;
        let pause = earned(now - self.last);
        self.seen = (self.seen - pause).max(0) + bytes;
        let alone = -earned(now - before);
        self.certain = Some(self.certain.map_or(alone, |before| (before - pause).max(alone)) + bytes);
        self.last = now;
        self.most_seen = self.most_seen.max(self.seen);
        self.most_certain = self.most_certain.max(self.certain.unwrap_or(0));
    }

    /// Returns the largest excess (bytes): as seen, and certain.
    pub fn excess(&self) -> (f64, f64) {
        let bytes = |units: i128| units as f64 / PER_BYTE as f64;
        (bytes(self.most_seen), bytes(self.most_certain))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Computes both figures interval by interval.
    fn model(rate: u64, polls: &[(u64, u64, u64)]) -> (i128, i128) {
        let (mut seen, mut certain) = (0, 0);
        for first in 0..polls.len() {
            let mut bytes = 0;
            for poll in &polls[first..] {
                bytes += i128::from(poll.2) * PER_BYTE;
                let over = |start: u64| bytes - i128::from(poll.1 - start) * i128::from(rate);
                seen = seen.max(over(polls[first].1));
                certain = certain.max(over(polls[first].0));
            }
        }
        (seen, certain)
    }

    #[test]
    fn a_burst_then_the_rate_is_the_burst_beyond_it() {
        let mut envelope = Envelope::new(8_000_000_000); // one byte a nanosecond
        envelope.observe(90, 100, 5000);
        for step in 1..100 {
            envelope.observe(100 + (step - 1) * 1000, 100 + step * 1000, 1000);
        }
        assert_eq!(envelope.excess(), (5000.0, 4990.0));
    }

    #[test]
    fn a_late_poll_gives_no_certain_excess() {
        let mut envelope = Envelope::new(8_000_000_000);
        envelope.observe(0, 100, 100);
        // No look for 1000 ns, in which 1000 bytes conformed.
        envelope.observe(100, 1100, 1000);
        assert_eq!(envelope.excess(), (1000.0, 0.0));
    }

    proptest! {
        #[test]
        fn equals_the_largest_of_all_intervals(
            rate in 1..20_000_000_000u64,
            steps in prop::collection::vec((0..5000u64, 0..5000u64, 0..100_000u64), 1..40),
        ) {
            let mut now = 0;
            let mut polls = Vec::new();
            for (began, gap, bytes) in steps {
                let before = (now + began).saturating_sub(2500);
                now = now.max(before) + gap;
                polls.push((before, now, bytes));
            }
            let mut envelope = Envelope::new(rate);
            for &(before, at, bytes) in &polls {
                envelope.observe(before, at, bytes);
            }
            prop_assert_eq!((envelope.most_seen, envelope.most_certain), model(rate, &polls));
        }
    }
}
