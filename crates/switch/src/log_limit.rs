//! How often a port is written about: a front end that connects and lies without end fills no log.

use std::time::{Duration, Instant};

/// Lines at once.
const BURST: u32 = 5;
/// After those, one line in this time.
const PAUSE: Duration = Duration::from_secs(10);

/// The lines about one port. Those at debug level are not counted.
#[derive(Debug)]
pub struct LogLimit {
    /// What a burst of lines is paid from, at most `BURST` times `PAUSE`.
    saved: Duration,
    since: Instant,
    suppressed: u64,
}

impl LogLimit {
    /// Nothing was written yet.
    pub fn new(now: Instant) -> Self {
        Self { saved: BURST * PAUSE, since: now, suppressed: 0 }
    }

    /// Whether a line may be written at `now`; if so, how many were not since the last one.
    pub fn line(&mut self, now: Instant) -> Option<u64> {
        self.saved = (self.saved + now.saturating_duration_since(self.since)).min(BURST * PAUSE);
        self.since = now;
        match self.saved.checked_sub(PAUSE) {
            Some(rest) => {
                self.saved = rest;
                Some(std::mem::take(&mut self.suppressed))
            }
            None => {
                self.suppressed += 1;
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_lines_then_one_in_ten_seconds() {
        let start = Instant::now();
        let mut limit = LogLimit::new(start);
        // A line every 100 ms for a minute.
        let lines: Vec<_> = (0..600u32)
            .filter_map(|n| limit.line(start + n * Duration::from_millis(100)).map(|s| (n, s)))
            .collect();
        let late = [(100, 95), (200, 99), (300, 99), (400, 99), (500, 99)];
        assert_eq!(lines, [&[(0, 0), (1, 0), (2, 0), (3, 0), (4, 0)][..], &late].concat());
        let later = start + Duration::from_secs(3600);
        assert_eq!(
            [0, 0, 0, 0, 0, 0].map(|_| limit.line(later)),
            [Some(99), Some(0), Some(0), Some(0), Some(0), None]
        );
    }
}
