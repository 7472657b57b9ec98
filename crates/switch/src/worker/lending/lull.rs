//! A sender whose frames wait in its own ring until they can go directly to another worker's port. Pure.
//!
//! ```text
//!  lent, and frames are under way ─┐               ┌ fewer frames ahead ─▶ PATIENCE begins anew
//!  lent, and another has it ───────┼▶ a lull begins ┼ none ahead, and it is there ─▶ directly
//!  lent once its queue is empty ───┘               ├ none ahead, and not lent any more ─▶ crosses
//!                                                  └ PATIENCE or LONGEST is over ─▶ in vain: crosses, no lull for APART
//! ```
//!
//! A sender whose ring is never empty always has frames under way; without a pause its frames would cross
//! for ever. The length of the pause depends on all frames before them in the
//! [ring](super::super::crossing) between the workers, those of other ports included. So a lull waits for
//! progress.

use crate::fdb::PortIndex;
use crate::slots::NEVER;
use crate::worker::crossing::SentCounts;

/// Longest time without progress (ns): some loops of the other worker.
const PATIENCE: u64 = 100_000;
/// Longest lull (ns): a full ring between workers, and 4 MB behind it, are delivered in less.
const LONGEST: u64 = 5_000_000;
/// Time without a lull after one in vain (ns).
const APART: u64 = 1_000_000;
/// Lulls take at most one part in this many of a port's time, since frames to other ports wait behind ...
const SHARE: u64 = 10;
/// ... but two of the longest may follow each other: SHARE times their length (ns).
const BURST: u64 = 2 * LONGEST * SHARE;

/// The lulls of one port.
#[derive(Clone, Copy)]
pub struct Lull {
    /// The receiver, and its worker.
    to: PortIndex,
    worker: u16,
    /// Beginning of the lull, [`NEVER`] without one, and its end without progress (ns).
    since: u64,
    until: u64,
    /// Fewest frames ahead during the lull.
    ahead: u64,
    /// Frames sent to the other worker before the lull.
    sent: SentCounts,
    /// Earliest beginning of the next lull (ns).
    next_allowed: u64,
    /// End of the time over which the past lulls' share is spread (ns).
    spread_until: u64,
}

impl Default for Lull {
    fn default() -> Self {
        let sent = SentCounts::default();
        Self { to: 0, worker: 0, since: NEVER, until: 0, ahead: 0, sent, next_allowed: 0, spread_until: 0 }
    }
}

impl Lull {
    /// Notes that frames go directly.
    #[inline]
    pub fn finish(&mut self, now: u64) {
        if self.since != NEVER {
            self.end(now);
        }
    }

    /// Returns what had been sent to `worker`, where `to` is, before a lull for `to`; `sent` if a lull
    /// begins now.
    ///
    /// A lull ends if `to` has moved: progress of one worker's ring says nothing of another's.
    pub fn sent_before(&mut self, to: PortIndex, worker: u16, sent: SentCounts, now: u64) -> SentCounts {
        if self.since != NEVER && self.to == to && self.worker != worker {
            self.end(now);
        }
        if self.since == NEVER {
            self.worker = worker;
        }
        if self.since == NEVER || self.to != to {
            return sent;
        }
        self.sent
    }

    /// Whether frames to `to`, which cannot go directly now, wait in the sender's ring. `sent` comes from
    /// [`sent_before`](Self::sent_before); `ahead` frames are still to be taken there or to arrive; `is_offered`: the
    /// receiver is lent to a worker, or will be when its queue is empty.
    pub fn waits(&mut self, to: PortIndex, is_offered: bool, sent: SentCounts, ahead: u64, now: u64) -> bool {
        if self.since == NEVER {
            let begins =
                is_offered && now >= self.next_allowed && self.spread_until <= now.saturating_add(BURST);
            if begins {
                (self.to, self.since, self.until) = (to, now, now + PATIENCE);
                (self.ahead, self.sent) = (ahead, sent);
            }
            return begins;
        }
        if to == self.to && ahead == 0 && !is_offered {
            // The owner took it back for another reason than its queue, and may not lend it any more.
            self.end(now);
            return false;
        }
        // Without own frames ahead, other ports' frames are: the owner decides.
        if to == self.to && (ahead < self.ahead || (ahead == 0 && is_offered)) {
            (self.ahead, self.until) = (ahead, now + PATIENCE);
        }
        if now < self.until.min(self.since + LONGEST) {
            return to == self.to;
        }
        self.end(now);
        self.next_allowed = now + APART;
        false
    }

    fn end(&mut self, now: u64) {
        self.spread_until = self.spread_until.max(now) + SHARE * now.saturating_sub(self.since);
        self.since = NEVER;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::crossing::{Crossing, Peer};
    use proptest::prelude::*;

    const STEP: u64 = 10_000;
    const START: u64 = 1_000_000_000;

    fn waits(lull: &mut Lull, ahead: u64, now: u64) -> bool {
        lull.waits(7, true, SentCounts::default(), ahead, now)
    }

    #[test]
    fn a_lull_continues_while_frames_arrive() {
        let (mut lull, mut now) = (Lull::default(), START);
        for ahead in (1..=10).rev() {
            assert!(waits(&mut lull, ahead, now), "{ahead} are ahead");
            now += PATIENCE - 1;
        }
        assert!(waits(&mut lull, 1, now));
        assert!(!waits(&mut lull, 1, now + 1), "in vain");
        assert!(!waits(&mut lull, 1, now + APART), "soon after that there is none");
        assert!(waits(&mut lull, 1, now + APART + 1));
    }

    #[test]
    fn a_lull_ends_at_last() {
        let mut lull = Lull::default();
        let lasted = (0..1_000_000).take_while(|n| waits(&mut lull, 1_000_000 - n, START + n * STEP)).count();
        assert_eq!(lasted as u64 * STEP, LONGEST);
    }

    #[test]
    fn a_lull_begins_only_for_an_offered_receiver() {
        let look =
            |lull: &mut Lull, to, is_offered, now| lull.waits(to, is_offered, SentCounts::default(), 0, now);
        let mut lull = Lull::default();
        assert!(!look(&mut lull, 7, false, START));
        assert!(look(&mut lull, 7, true, START));
        assert!(!look(&mut lull, 8, true, START), "what is for others does not wait for it");
        assert!(look(&mut lull, 7, true, START + PATIENCE - 1), "its owner says that it goes on");
        assert!(!look(&mut lull, 7, false, START + PATIENCE), "it is not to come again");
        assert!(look(&mut lull, 7, true, START + PATIENCE), "until it does");
    }

    #[test]
    fn a_lull_ends_when_its_receiver_moves_to_another_worker() {
        let (mut here, _there) = Peer::pair();
        let none = here.sent();
        assert!(here.send(Crossing::Relieve { egress: 7, source: 1, oldest: true }));
        let some = here.sent();
        let mut lull = Lull::default();
        assert_eq!(lull.sent_before(7, 1, some, START), some);
        assert!(lull.waits(7, true, some, 3, START));
        assert_eq!(lull.sent_before(7, 1, none, START + 1), some, "what had been sent when it began");
        assert_eq!(lull.sent_before(8, 2, none, START + 1), none, "to others, what is sent now");
        assert_eq!(lull.sent_before(7, 1, none, START + 1), some, "others did not end it");
        assert_eq!(lull.sent_before(7, 2, none, START + 2), none, "the other worker was sent less");
        assert!(lull.waits(7, true, none, 3, START + 2), "a lull of its own begins");
        assert_eq!(lull.sent_before(7, 2, some, START + 3), none);
    }

    proptest! {
        /// Whatever frames come and go, frames to other ports wait for a bounded part of the time.
        #[test]
        fn lulls_take_a_part_of_the_time(
            looks in prop::collection::vec((0u8..4, prop::sample::select(vec![7u16, 8]), 0u64..9, 1u64..9), 1..4000),
        ) {
            let (mut lull, mut now, mut lulled) = (Lull::default(), START, 0);
            for (what, to, ahead, steps) in looks {
                if what == 0 {
                    lull.finish(now);
                } else {
                    lull.waits(to, what > 1, SentCounts::default(), ahead, now);
                }
                if lull.since != NEVER {
                    lulled += steps * STEP;
                }
                now += steps * STEP;
            }
            // The last lull may begin at the very end of the share, and a look may be late.
            prop_assert!(lulled <= (now - START + BURST) / SHARE + LONGEST + 9 * STEP, "{} of {}", lulled, now - START);
        }
    }
}
