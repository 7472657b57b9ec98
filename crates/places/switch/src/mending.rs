//! When an uplink that broke is made anew: a few times at once, then more and more rarely. Pure: the caller states the time.
//!
//! ```text
//!  broken ─ pause over? ─▶ made anew ─▶ next pause: 1 s, 2 s, ... 60 s; forgotten after two pauses without a break
//! ```

use std::time::{Duration, Instant};

/// The pause after the first repair; each further one doubles it ...
const SHORTEST: Duration = Duration::from_secs(1);
/// ... up to this.
const LONGEST: Duration = Duration::from_secs(60);

/// The repairs of one uplink.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mending {
    pause: Duration,
    last: Option<Instant>,
}

impl Mending {
    /// Whether a repair is due, of an uplink that is broken at `now`.
    pub fn is_due(&self, now: Instant) -> bool {
        self.last.is_none_or(|last| now >= last + self.pause)
    }

    /// Notes a repair at `now`.
    pub fn repaired(&mut self, now: Instant) {
        let held = self.last.is_some_and(|last| now >= last + 2 * self.pause);
        self.pause = if held { SHORTEST } else { (self.pause * 2).clamp(SHORTEST, LONGEST) };
        self.last = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the seconds at which an uplink that breaks at once is made anew.
    fn repairs(mending: &mut Mending, start: Instant, seconds: std::ops::Range<u64>) -> Vec<u64> {
        let at = |second: u64| start + Duration::from_secs(second);
        let due = seconds.filter(|second| {
            let is_due = mending.is_due(at(*second));
            if is_due {
                mending.repaired(at(*second));
            }
            is_due
        });
        due.collect()
    }

    #[test]
    fn repairs_of_an_uplink_that_breaks_at_once_become_rare() {
        let (mut mending, start) = (Mending::default(), Instant::now());
        let at = repairs(&mut mending, start, 0..400);
        assert_eq!(at, [0, 1, 3, 7, 15, 31, 63, 123, 183, 243, 303, 363]);
        // It held for a long time.
        assert_eq!(repairs(&mut mending, start, 1000..1010), [1000, 1001, 1003, 1007]);
    }
}
