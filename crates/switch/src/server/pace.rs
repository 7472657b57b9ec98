//! How much of the workers' time a front end's messages may take. Pure.
//!
//! ```text
//!  a message ─▶ workers change the port: so long ─▶ owed ─▶ the port's thread waits before the next message
//!                                                    └ one part in SHARE of the time that passes is repaid
//! ```
//!
//! A ring that is started anew costs its worker some hundred microseconds: slots are made and places cleared. A front
//! end that does so again and again would take them from the other ports of that worker. All that an ordinary front end says
//! when it connects is [free](FREE).

use crate::clock::clock;

/// One part in so many of the workers' time, for ever.
const SHARE: u64 = 16;
/// What may be owed without a pause, ns: 64 queue pairs are started in less.
const FREE: u64 = 100_000_000;
/// The longest pause, ns: a port's thread is to be stopped and moved, too.
const LONGEST: u64 = 100_000_000;

/// What one port's messages have taken.
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
    /// A message took `took` ns of workers' time and ended at `now`; how long the next one is to wait, ns.
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

    /// What a front end gets that sends messages without end, each of which takes so long, ns, in ten seconds.
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
    fn one_part_in_sixteen_for_ever() {
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
        // 64 queue pairs, at once, and again a minute later.
        for minute in 0..10 {
            let pauses: u64 = (0..128).map(|_| pace.take(700_000, minute * 60_000_000_000)).sum();
            assert_eq!(pauses, 0);
        }
    }
}
