//! Times of the data plane on the timescale between hosts.
//!
//! ```text
//!  CLOCK_MONOTONIC ─ difference, read again after 100 us ─▶ CLOCK_MONOTONIC_RAW
//! ```

use super::{clock, raw_clock};

/// Time (ns) after which the difference is read again. A time daemon slews CLOCK_MONOTONIC by 0.05 % at most, so the
/// difference is right to within 50 ns.
const FRESH: u64 = 100_000;

/// Maps times of CLOCK_MONOTONIC to CLOCK_MONOTONIC_RAW.
#[derive(Clone, Copy, Debug, Default)]
pub struct RawTime {
    /// CLOCK_MONOTONIC_RAW less CLOCK_MONOTONIC, modulo 2^64 (ns).
    ahead: u64,
    /// When it was read (ns, raw); 0: never.
    read: u64,
}

impl RawTime {
    /// Returns the time now (ns, raw), and reads the difference if it is old.
    #[inline]
    pub fn now(&mut self) -> u64 {
        let now = raw_clock();
        if now.wrapping_sub(self.read) > FRESH || self.read == 0 {
            self.read_difference();
        }
        now
    }

    #[inline(never)]
    fn read_difference(&mut self) {
        let (before, raw, after) = (clock(), raw_clock(), clock());
        self.ahead = raw.wrapping_sub(before + after.saturating_sub(before) / 2);
        self.read = raw.max(1);
    }

    /// Returns a time of CLOCK_MONOTONIC (ns) as raw, by the difference that [`now`](Self::now) read.
    #[inline]
    pub const fn of(&self, monotonic: u64) -> u64 {
        monotonic.wrapping_add(self.ahead)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_mapped_to_within_the_time_of_the_calls() {
        let mut time = RawTime::default();
        for _ in 0..100 {
            time.now();
            let (before, here, after) = (raw_clock(), clock(), raw_clock());
            let mapped = time.of(here);
            assert!(mapped + 1_000_000 > before && mapped < after + 1_000_000, "{before} {mapped} {after}");
        }
    }
}
