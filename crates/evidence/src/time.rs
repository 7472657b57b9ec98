//! Moments of CLOCK_MONOTONIC as times of day.

use rustix::time::{ClockId, clock_gettime};

/// Converts a moment of CLOCK_MONOTONIC to ns since the epoch, by the clock's present setting: a displayed
/// age stays right after the clock is set.
pub fn time_of_day(moment: u64) -> u64 {
    let now = |clock| {
        let time = clock_gettime(clock);
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    };
    now(ClockId::Realtime).saturating_sub(now(ClockId::Monotonic).saturating_sub(moment))
}
