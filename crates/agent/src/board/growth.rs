//! The recent growth of a counter: old events need no attention today. Pure.

use std::collections::VecDeque;
use std::time::{Duration, Instant};
use tidegate_evidence::total;

/// The time that counts as recent.
pub const RECENT: Duration = Duration::from_secs(600);
/// The resolution of stored growth.
const MINUTE: Duration = Duration::from_secs(60);

/// A counter's last value, and its growth by minute.
#[derive(Debug, Default)]
pub struct Growth {
    last: Option<u64>,
    /// The start of each minute, and the growth in it.
    minutes: VecDeque<(Instant, u64)>,
}

impl Growth {
    /// Records that the counter is `total` now. The first value is no growth, as its age is unknown. A counter that
    /// fell began anew at 0.
    pub fn see(&mut self, now: Instant, total: u64) {
        let before = self.last.replace(total).unwrap_or(total);
        let grown = total.checked_sub(before).unwrap_or(total);
        self.minutes.retain(|(began, _)| now.duration_since(*began) < RECENT);
        match self.minutes.back_mut() {
            Some((began, sum)) if now.duration_since(*began) < MINUTE => *sum = sum.saturating_add(grown),
            _ if grown > 0 => self.minutes.push_back((now, grown)),
            _ => {}
        }
    }

    /// Returns the growth within [`RECENT`] before `now`.
    pub fn recent(&self, now: Instant) -> u64 {
        total(self.minutes.iter().filter(|(began, _)| now.duration_since(*began) < RECENT).map(|(_, n)| *n))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_of_more_than_ten_minutes_ago_does_not_count() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut growth = Growth::default();
        growth.see(at(0), 100);
        assert_eq!(growth.recent(at(0)), 0, "it is not known when that was");
        growth.see(at(1), 103);
        growth.see(at(30), 105);
        growth.see(at(90), 105);
        growth.see(at(300), 106);
        assert_eq!(growth.recent(at(300)), 6);
        assert_eq!((growth.recent(at(600)), growth.recent(at(601))), (6, 1));
        growth.see(at(700), 2);
        assert_eq!(growth.recent(at(700)), 3, "another process counts from 0");
        (0..100_000).for_each(|n| growth.see(at(700 + n), n));
        assert!(growth.minutes.len() <= 11, "{}", growth.minutes.len());
    }
}
