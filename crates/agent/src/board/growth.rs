//! How much a counter has grown of late: what happened once, long ago, needs no attention today. Pure.

use std::collections::VecDeque;
use std::time::{Duration, Instant};
use tidegate_evidence::total;

/// What counts as of late.
pub const RECENT: Duration = Duration::from_secs(600);
/// Growth is kept by the minute.
const MINUTE: Duration = Duration::from_secs(60);

/// A counter as it was seen, and its growth.
#[derive(Debug, Default)]
pub struct Growth {
    last: Option<u64>,
    /// When each minute began, and by how much the counter grew in it.
    minutes: VecDeque<(Instant, u64)>,
}

impl Growth {
    /// The counter is `total` now. What it counted before the first look is not known to be recent; where it fell it began
    /// anew at 0.
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

    /// By how much it grew within [`RECENT`] before `now`.
    pub fn recent(&self, now: Instant) -> u64 {
        total(self.minutes.iter().filter(|(began, _)| now.duration_since(*began) < RECENT).map(|(_, n)| *n))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_long_ago_is_forgotten() {
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
        // However long it grows, a few minutes are kept.
        (0..100_000).for_each(|n| growth.see(at(700 + n), n));
        assert!(growth.minutes.len() <= 11, "{}", growth.minutes.len());
    }
}
