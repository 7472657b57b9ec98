//! How much of the workers' time a front end's messages may take. Pure.
//!
//! ```text
//!  a message ─▶ workers change the port: so long ─▶ owed ─▶ the port's thread waits before the next message
//!                                                    └ one part in SHARE of the time that passes is repaid
//! ```
//!
//! A ring that starts costs its worker some hundred microseconds: it allocates slots and clears places. A
//! front end that restarts rings endlessly would take that time from other ports. All messages of an ordinary
//! front end at connection are [free](FREE).

use crate::clock::clock;

/// The available part of the workers' time: one in this many.
const SHARE: u64 = 16;
/// Largest debt without a pause (ns): the start of 64 queue pairs takes less.
const FREE: u64 = 100_000_000;
/// Longest pause (ns): a port's thread must also react to stops and moves.
const LONGEST: u64 = 100_000_000;

/// The debt of one port's messages.
#[derive(Debug)]
pub struct Pace {
    owed: u64,
    at: u64,
}

impl Default for Pace {
    fn default() -> Self {
        Self { owed: 0, at: clock() }
    }
}

impl Pace {
    /// Charges a message that took `took` ns and ended at `now`; returns the pause before the next one (ns).
    pub fn take(&mut self, took: u64, now: u64) -> u64 {
        let repaid = now.saturating_sub(self.at) / SHARE;
        self.at = self.at.max(now);
        self.owed = self.owed.saturating_sub(repaid) + took;
        (self.owed.saturating_sub(FREE) * SHARE).min(LONGEST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the used time and the longest pause in ten seconds of messages that take `took` ns each.
    fn greedy(took: u64) -> (u64, u64) {
        let (mut pace, mut now, mut used, mut longest) = (Pace { owed: 0, at: 0 }, 0, 0, 0);
        while now < 10_000_000_000 {
            now += took;
            used += took;
            let pause = pace.take(took, now);
            longest = longest.max(pause);
            now += pause;
        }
        (used, longest)
    }

    #[test]
    fn a_front_end_gets_one_part_in_sixteen_for_ever() {
        for took in [1_000, 300_000, 5_000_000] {
            let (used, longest) = greedy(took);
            let most = 10_000_000_000 / SHARE + FREE + took;
            assert!(used <= most && longest <= LONGEST, "{used} of {most} ns, {longest} ns");
            assert!(used >= most * 9 / 10, "{used} of {most} ns");
        }
    }

    #[test]
    fn an_ordinary_front_end_never_waits() {
        let mut pace = Pace { owed: 0, at: 0 };
        // 64 queue pairs, at once, each minute.
        for minute in 0..10 {
            let pauses: u64 = (0..128).map(|_| pace.take(700_000, minute * 60_000_000_000)).sum();
            assert_eq!(pauses, 0);
        }
    }
}
