//! The clock of the data plane.

#[cfg(any(test, feature = "test-clock"))]
pub mod test_clock;

pub mod raw;

pub use raw::RawTime;

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds of CLOCK_MONOTONIC.
#[inline]
pub fn clock() -> u64 {
    #[cfg(any(test, feature = "test-clock"))]
    if let Some(now) = test_clock::time() {
        return now;
    }
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Nanoseconds of CLOCK_MONOTONIC_RAW, which no time daemon slews: the timescale between hosts.
#[inline]
pub fn raw_clock() -> u64 {
    #[cfg(any(test, feature = "test-clock"))]
    if let Some(now) = test_clock::time() {
        return now;
    }
    let now = clock_gettime(ClockId::MonotonicRaw);
    let now = now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64;
    #[cfg(any(test, feature = "test-clock"))]
    let now = test_clock::skewed(now);
    now
}

/// Nanoseconds of CLOCK_REALTIME, as the kernel's receive times are. It can step: only for ages, which are checked.
#[inline]
pub fn wall_clock() -> u64 {
    let now = clock_gettime(ClockId::Realtime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
