//! A clock that stands still until it is set, or that a function drives: for tests, and for counting
//! instructions. And another host's clock, which two hosts on one machine do not have.

use std::cell::Cell;
use std::sync::OnceLock;

/// Environment variable: how the timescale between hosts differs from the machine's, as `OFFSET,DRIFT` (ns, ppm).
const SKEW: &str = "TIDEGATE_TEST_CLOCK";

#[derive(Clone, Copy)]
enum Clock {
    /// The machine's.
    Machine,
    /// It stands still.
    Still(u64),
    /// Returned by this function.
    Function(fn() -> u64),
}

thread_local! {
    static CLOCK: Cell<Clock> = const { Cell::new(Clock::Machine) };
}

/// Returns the time of this thread's workers (ns); `None` while they read the machine's clock.
#[inline]
pub fn time() -> Option<u64> {
    match CLOCK.get() {
        Clock::Machine => None,
        Clock::Still(now) => Some(now),
        Clock::Function(time_fn) => Some(time_fn()),
    }
}

/// Sets the time of this thread's workers (ns); it stands still until the next call.
pub fn set_time(now: u64) {
    CLOCK.set(Clock::Still(now));
}

/// Lets this function return the time of this thread's workers (ns).
pub fn set_clock(time_fn: fn() -> u64) {
    CLOCK.set(Clock::Function(time_fn));
}

/// Returns a time of CLOCK_MONOTONIC_RAW (ns) as the clock of this process shows it, by `TIDEGATE_TEST_CLOCK`.
#[inline]
pub fn skewed(raw: u64) -> u64 {
    static SET: OnceLock<Option<Skew>> = OnceLock::new();
    SET.get_or_init(|| std::env::var(SKEW).ok().map(|text| Skew::parse(&text).expect(SKEW)))
        .map_or(raw, |skew| skew.apply(raw))
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Skew {
    /// At time 0 (ns).
    offset: i64,
    drift_ppm: f64,
}

impl Skew {
    fn parse(text: &str) -> Option<Self> {
        let (offset, drift) = text.split_once(',')?;
        Some(Self { offset: offset.parse().ok()?, drift_ppm: drift.parse().ok()? })
    }

    fn apply(self, raw: u64) -> u64 {
        raw.saturating_add_signed(self.offset)
            .saturating_add_signed((raw as f64 * self.drift_ppm / 1e6) as i64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_skew_is_an_offset_and_a_drift() {
        let skew = Skew::parse("-5000,40").unwrap();
        assert_eq!(skew.apply(1_000_000_000), 1_000_000_000 - 5_000 + 40_000);
        assert_eq!(Skew::parse("5"), None);
        assert_eq!(skewed(7), 7, "not set");
    }
}
