//! The offset between the clocks of two hosts, with an error that is a bound and not an estimate.
//!
//! ```text
//!  here   ── t1 ───────────────── t4 ──▶          offset of the peer lies between t3 - t4 and t2 - t1,
//!             ╲                   ╱               whatever the two ways took
//!  peer   ──── t2 ──────────── t3 ─────▶
//! ```
//!
//! One exchange gives an interval as wide as its round trip (RFC 5905, section 8). Several exchanges give several
//! intervals at different times; between them the clocks drift apart. [`Offset`] takes every offset and drift that agrees
//! with all of the last exchanges, and reports the middle and half the width of those offsets at a given time.
//! Neither clock may step (both are CLOCK_MONOTONIC_RAW), and their drift is steady and at most [`DRIFT_MAX`] over one
//! window.

use std::collections::VecDeque;

/// Largest drift between two clocks: 200 ppm. A mainboard's crystal is specified for at most half of that.
pub const DRIFT_MAX: f64 = 200e-6;
/// Exchanges in the window.
pub const WINDOW: usize = 32;

/// The four times of an exchange (ns): two of this host's clock, two of the peer's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// The request left this host.
    pub t1: u64,
    /// The request arrived at the peer.
    pub t2: u64,
    /// The reply left the peer.
    pub t3: u64,
    /// The reply arrived at this host.
    pub t4: u64,
}

/// Why an exchange is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExchangeError {
    /// A clock ran backwards within the exchange, or the peer took longer than the whole exchange.
    #[error("the times of the exchange contradict each other")]
    Contradiction,
    /// The exchange does not come after the last one.
    #[error("the exchange is older than the last one")]
    TooOld,
}

/// The peer's clock less this host's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Estimate {
    /// Offset (ns): add it to a time of this host to have the peer's.
    pub offset_ns: i64,
    /// The true offset differs by at most this (ns).
    pub error_ns: u64,
}

/// The offset during some time: two estimates, between which it may be interpolated.
///
/// The exchanges allow a convex set of offsets and drifts. So the highest offset is a convex function of time, the lowest
/// a concave one, and both lie within the straight lines from the first estimate to the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outlook {
    /// When the first estimate holds, this host's clock (ns).
    pub at: u64,
    /// The estimate at `at`.
    pub now: Estimate,
    /// The estimate [`AHEAD`] later.
    pub later: Estimate,
}

/// Time between the two estimates of an [`Outlook`] (ns).
pub const AHEAD: u64 = 1_000_000_000;

impl Outlook {
    /// Returns the estimate at `now`, this host's clock (ns). Before the first estimate and after the second one, the
    /// error grows by [`DRIFT_MAX`].
    #[inline]
    pub fn estimate(&self, now: u64) -> Estimate {
        let age = now.saturating_sub(self.at);
        let within = age.min(AHEAD);
        let outside = self.at.saturating_sub(now) + (age - within);
        let share = within as f64 / AHEAD as f64;
        let drifted = self.later.offset_ns.wrapping_sub(self.now.offset_ns) as f64 * share;
        let grown = (i128::from(self.later.error_ns) - i128::from(self.now.error_ns)) as f64 * share;
        let error = self.now.error_ns as f64 + grown + outside as f64 * DRIFT_MAX;
        Estimate {
            offset_ns: self.now.offset_ns.wrapping_add(drifted.round() as i64),
            // One more for the rounding of the offset.
            error_ns: error.ceil() as u64 + u64::from(within > 0),
        }
    }
}

/// The offset to one peer, from the last exchanges.
#[derive(Clone, Debug, Default)]
pub struct Offset {
    /// The oldest first.
    intervals: VecDeque<Interval>,
}

/// Offsets that agree with one exchange.
#[derive(Clone, Copy, Debug)]
struct Interval {
    /// Middle of the exchange, this host's clock (ns).
    at: u64,
    low: i64,
    high: i64,
}

impl Offset {
    /// Takes an exchange into account.
    ///
    /// Forgets the oldest exchanges while the exchanges contradict each other (a clock stepped, or its frequency
    /// changed).
    ///
    /// # Errors
    /// The exchange contradicts itself, or is older than the last one.
    pub fn exchanged(&mut self, exchange: Exchange) -> Result<(), ExchangeError> {
        let Exchange { t1, t2, t3, t4 } = exchange;
        let round =
            t4.checked_sub(t1).zip(t3.checked_sub(t2)).and_then(|(here, there)| here.checked_sub(there));
        if round.is_none() {
            return Err(ExchangeError::Contradiction);
        }
        let at = t1 + (t4 - t1) / 2;
        if self.intervals.back().is_some_and(|last| at <= last.at) {
            return Err(ExchangeError::TooOld);
        }
        if self.intervals.len() == WINDOW {
            self.intervals.pop_front();
        }
        let (low, high) = (t3.wrapping_sub(t4) as i64, t2.wrapping_sub(t1) as i64);
        // A drift during the exchange itself moves each end by at most this.
        let slack = ((t4 - t1) as f64 * DRIFT_MAX) as i64 + 1;
        self.intervals.push_back(Interval {
            at,
            low: low.saturating_sub(slack),
            high: high.saturating_add(slack),
        });
        while self.intervals.len() > 1 && self.estimate(at).is_none() {
            self.intervals.pop_front();
        }
        Ok(())
    }

    /// Estimates the offset from `at` on, this host's clock (ns). Returns `None` before the first exchange.
    pub fn outlook(&self, at: u64) -> Option<Outlook> {
        Some(Outlook { at, now: self.estimate(at)?, later: self.estimate(at.saturating_add(AHEAD))? })
    }

    /// Estimates the offset at `now`, this host's clock (ns). Returns `None` before the first exchange.
    pub fn estimate(&self, now: u64) -> Option<Estimate> {
        let last = self.intervals.back()?;
        // Offsets relative to the last interval keep f64 exact to the nanosecond for a century of difference.
        let base = last.low;
        let points: Vec<(f64, f64, f64)> = (self.intervals.iter())
            .map(|i| {
                let x = i.at.wrapping_sub(now) as i64 as f64;
                let from_base = |end: i64| (i128::from(end) - i128::from(base)) as f64;
                (x, from_base(i.low), from_base(i.high))
            })
            .collect();
        // The offset at `now` with drift s lies between `low(s)` and `high(s)`; the difference is concave in s.
        let high = |s: f64| points.iter().map(|(x, _, high)| high - s * x).fold(f64::INFINITY, f64::min);
        let low = |s: f64| points.iter().map(|(x, low, _)| low - s * x).fold(f64::NEG_INFINITY, f64::max);
        let width = |s: f64| high(s) - low(s);
        let widest = peak(-DRIFT_MAX, DRIFT_MAX, width);
        if width(widest) < -ROUNDING {
            return None;
        }
        let first = edge(widest, -DRIFT_MAX, |s| width(s) >= -ROUNDING);
        let end = edge(widest, DRIFT_MAX, |s| width(s) >= -ROUNDING);
        let highest = high(peak(first, end, high));
        let lowest = low(peak(first, end, |s| -low(s)));
        let middle = (highest + lowest) / 2.0;
        Some(Estimate {
            offset_ns: base.wrapping_add(middle.round() as i64),
            error_ns: ((highest - lowest) / 2.0 + ROUNDING).ceil().max(1.0) as u64,
        })
    }
}

/// Steps of a search for a drift: they leave 1e-14, a thousandth of a nanosecond in a minute.
const STEPS: usize = 50;
/// Error of the arithmetic (ns).
const ROUNDING: f64 = 1.0;

/// Finds the argument at which a concave function is largest, by golden sections: each step computes one value.
fn peak(mut from: f64, mut to: f64, f: impl Fn(f64) -> f64) -> f64 {
    const PART: f64 = 0.618_033_988_749_894_8;
    let (mut a, mut b) = (to - (to - from) * PART, from + (to - from) * PART);
    let (mut at_a, mut at_b) = (f(a), f(b));
    for _ in 0..STEPS {
        if at_a < at_b {
            (from, a, at_a) = (a, b, at_b);
            b = from + (to - from) * PART;
            at_b = f(b);
        } else {
            (to, b, at_b) = (b, a, at_a);
            a = to - (to - from) * PART;
            at_a = f(a);
        }
    }
    (from + to) / 2.0
}

/// Finds the furthest point from `inside` towards `to` at which `holds` still holds. `holds` is true on one interval.
fn edge(inside: f64, to: f64, holds: impl Fn(f64) -> bool) -> f64 {
    if holds(to) {
        return to;
    }
    let (mut yes, mut no) = (inside, to);
    for _ in 0..STEPS {
        let middle = (yes + no) / 2.0;
        if holds(middle) { yes = middle } else { no = middle }
    }
    // The outer end: the bound may only become wider by the search.
    no
}

/// Whether a frame met its deadline, by the time between its stamp and its arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// In time: Tr - Ts is at most Td.
    Met,
    /// Late by so much (ns), which is more than the clocks' error.
    Missed(u64),
    /// Late by so much (ns), which is at most the clocks' error: perhaps in time.
    Uncertain(u64),
}

/// Judges a frame that arrived at `received_ns` of this host's clock, sent at `sent_ns` of the peer's.
#[inline]
pub fn judge(sent_ns: u64, deadline_us: u32, received_ns: u64, peer: Estimate) -> Verdict {
    let received_there = i128::from(received_ns) + i128::from(peer.offset_ns);
    let late = received_there - i128::from(sent_ns) - i128::from(deadline_us) * 1000;
    match u64::try_from(late) {
        Err(_) | Ok(0) => Verdict::Met,
        Ok(late) if late <= peer.error_ns => Verdict::Uncertain(late),
        Ok(late) => Verdict::Missed(late),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Two clocks: the peer's is `offset` ahead at 0 and runs faster by `drift`.
    #[derive(Clone, Copy, Debug)]
    struct Clocks {
        offset: i64,
        drift: f64,
    }

    impl Clocks {
        /// The peer's clock when this host's shows `here`.
        fn there(self, here: u64) -> u64 {
            (here as i64 + self.offset + (here as f64 * self.drift) as i64) as u64
        }

        fn exchange(self, t1: u64, to: u64, stay: u64, back: u64) -> Exchange {
            Exchange {
                t1,
                t2: self.there(t1 + to),
                t3: self.there(t1 + to + stay),
                t4: t1 + to + stay + back,
            }
        }
    }

    fn clocks() -> impl Strategy<Value = Clocks> {
        (0i64..1 << 50, -100e-6..100e-6).prop_map(|(offset, drift)| Clocks { offset, drift })
    }

    proptest! {
        /// However unlike the two ways are, the true offset lies within the error.
        #[test]
        fn the_error_is_a_bound(
            clocks in clocks(),
            ways in prop::collection::vec((1_000u64..5_000_000, 0u64..100_000, 1_000u64..5_000_000), 1..60),
            pause in 1_000_000u64..2_000_000_000,
            after in 0u64..1_000_000_000,
        ) {
            let (mut offset, mut now) = (Offset::default(), 1_000_000_000);
            for (to, stay, back) in ways {
                offset.exchanged(clocks.exchange(now, to, stay, back)).unwrap();
                now += to + stay + back + pause;
            }
            now += after;
            let estimate = offset.estimate(now).unwrap();
            let truth = clocks.there(now) as i64 - now as i64;
            let wrong = truth.abs_diff(estimate.offset_ns);
            prop_assert!(wrong <= estimate.error_ns, "{:?}, off by {} ns", estimate, wrong);
        }

        /// The error is at most half the least round trip, and the drift since then.
        #[test]
        fn the_error_is_at_most_half_the_least_round_trip(
            clocks in clocks(),
            ways in prop::collection::vec((1_000u64..1_000_000, 1_000u64..1_000_000), 1..WINDOW),
        ) {
            let (mut offset, mut now, mut best) = (Offset::default(), 1_000_000_000, f64::INFINITY);
            let mut times = Vec::new();
            for (to, back) in ways {
                offset.exchanged(clocks.exchange(now, to, 0, back)).unwrap();
                times.push((now + (to + back) / 2, (to + back) as f64 / 2.0));
                now += 10_000_000;
            }
            for (at, half) in times {
                best = best.min(half + (now - at) as f64 * DRIFT_MAX + half * 4.0 * DRIFT_MAX + 4.0);
            }
            let error = offset.estimate(now).unwrap().error_ns as f64;
            prop_assert!(error <= best, "{} > {}", error, best);
        }

        #[test]
        fn any_exchange_is_taken_without_panic(times: [u64; 8], now: u64) {
            let mut offset = Offset::default();
            for t in times.chunks(4) {
                let _ = offset.exchanged(Exchange { t1: t[0], t2: t[1], t3: t[2], t4: t[3] });
            }
            let _ = offset.estimate(now);
        }
    }

    #[test]
    fn a_step_is_forgotten_with_the_exchanges_before_it() {
        let mut offset = Offset::default();
        let before = Clocks { offset: 5_000_000_000, drift: 0.0 };
        let after = Clocks { offset: 9_000_000_000, drift: 0.0 };
        for n in 0..20 {
            let clocks = if n < 10 { before } else { after };
            offset.exchanged(clocks.exchange(n * 100_000_000, 20_000, 1_000, 30_000)).unwrap();
        }
        let estimate = offset.estimate(2_000_000_000).unwrap();
        assert!(estimate.offset_ns.abs_diff(9_000_000_000) <= estimate.error_ns, "{estimate:?}");
        assert!(estimate.error_ns < 40_000, "{estimate:?}");
    }

    proptest! {
        /// At any time between the two estimates of an outlook, and beyond them, the truth lies within the error.
        #[test]
        fn an_outlook_holds_the_truth(
            offset in 0i64..1 << 50,
            ppm in -90.0..90.0f64,
            ways in prop::collection::vec((0u64..200_000, 0u64..200_000), 1..40),
            after in 0u64..5_000_000_000,
        ) {
            let clocks = Clocks { offset, drift: ppm * 1e-6 };
            let mut known = Offset::default();
            let mut last = 0;
            for (n, (there, back)) in ways.into_iter().enumerate() {
                let exchange = clocks.exchange(1_000_000_000 + n as u64 * 250_000_000, there, 5_000, back);
                known.exchanged(exchange).unwrap();
                last = exchange.t4;
            }
            let outlook = known.outlook(last).unwrap();
            prop_assert_eq!(outlook.estimate(last), outlook.now);
            let now = last + after;
            let estimate = outlook.estimate(now);
            let off = estimate.offset_ns.abs_diff((clocks.there(now) as i64).wrapping_sub(now as i64));
            prop_assert!(off <= estimate.error_ns, "{} of {:?}", off, estimate);
            // No worse than the growth of an unknown drift.
            prop_assert!(estimate.error_ns <= outlook.now.error_ns + (after as f64 * 2.0 * DRIFT_MAX) as u64 + 4);
        }
    }

    #[test]
    fn impossible_exchanges_are_refused() {
        let mut offset = Offset::default();
        let good = Exchange { t1: 100, t2: 1_150, t3: 1_160, t4: 210 };
        for bad in
            [Exchange { t4: 99, ..good }, Exchange { t3: 1_149, ..good }, Exchange { t3: 1_300, ..good }]
        {
            assert_eq!(offset.exchanged(bad), Err(ExchangeError::Contradiction));
        }
        assert_eq!(offset.exchanged(good), Ok(()));
        assert_eq!(offset.exchanged(good), Err(ExchangeError::TooOld));
        assert!(Offset::default().estimate(5).is_none());
    }

    #[test]
    fn a_miss_below_the_error_is_uncertain() {
        let peer = Estimate { offset_ns: -1_000_000, error_ns: 2_000 };
        let judge = |received| judge(5_000_000, 500, received, peer);
        assert_eq!(judge(6_500_000), Verdict::Met);
        assert_eq!(judge(6_500_001), Verdict::Uncertain(1));
        assert_eq!(judge(6_502_000), Verdict::Uncertain(2_000));
        assert_eq!(judge(6_502_001), Verdict::Missed(2_001));
        assert_eq!(super::judge(u64::MAX, u32::MAX, 0, peer), Verdict::Met);
    }
}
