//! Limits events per second.

use std::time::Duration;

/// Lets some events pass at once, then one per interval. Time counts from any moment, and does not go back.
#[derive(Clone, Debug)]
pub struct Pace {
    interval: Duration,
    at_once: u32,
    /// When all of `at_once` may pass.
    full: Duration,
}

impl Pace {
    /// Returns a limit of `per_second` (at least 1), with as many at once.
    pub fn new(per_second: u32) -> Self {
        Self { interval: Duration::from_secs(1) / per_second, at_once: per_second, full: Duration::ZERO }
    }

    /// Lets one event pass.
    ///
    /// # Errors
    /// How long to wait, more than 0.
    pub fn pass(&mut self, now: Duration) -> Result<(), Duration> {
        let full = self.full.max(now) + self.interval;
        let early = full.saturating_sub(now + self.interval * self.at_once);
        if early.is_zero() {
            self.full = full;
            return Ok(());
        }
        Err(early)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// A guest that waits as requested passes, and in no second pass more than twice `rate`: those at
        /// once, and those of that second.
        #[test]
        fn a_pace_is_never_exceeded_and_never_stuck(rate in 1u32..50, pauses in prop::collection::vec(0u64..200, 1..200)) {
            let mut pace = Pace::new(rate);
            let (mut now, mut passed) = (Duration::ZERO, Vec::new());
            for pause in pauses {
                now += Duration::from_millis(pause);
                if let Err(wait) = pace.pass(now) {
                    prop_assert!(!wait.is_zero() && wait <= Duration::from_secs(1));
                    now += wait;
                    prop_assert_eq!(pace.pass(now), Ok(()));
                }
                passed.push(now);
            }
            for (i, first) in passed.iter().enumerate() {
                let within = passed[i..].iter().filter(|t| **t < *first + Duration::from_secs(1)).count();
                prop_assert!(within <= 2 * rate as usize, "{} of {}", within, rate);
            }
        }
    }
}
