//! A sender whose frames wait in its own ring, because they are to go directly to another worker's port and cannot yet.
//! Pure.
//!
//! ```text
//!  lent, and frames are under way ─┐               ┌ fewer frames ahead ─▶ PATIENCE begins anew
//!  lent, and another has it ───────┼▶ a lull begins ┼ none ahead, and it is there ─▶ directly
//!  lent once its queue is empty ───┘               ├ none ahead, and not lent any more ─▶ crosses
//!                                                  └ PATIENCE or LONGEST is over ─▶ in vain: crosses, no lull for APART
//! ```
//!
//! A sender whose ring is never empty has always frames under way, so its frames would cross for ever if it did not stop.
//! How long they need depends on all frames before them in the [ring](super::super::crossing) between the workers: those of
//! other ports, too. So what is waited for is progress.

use crate::fdb::PortIndex;
use crate::slots::NEVER;
use crate::worker::crossing::Sent;

/// Longest without progress, ns: some loops of the other worker.
const PATIENCE: u64 = 100_000;
/// Longest in all, ns: a full ring between workers, and 4 MB behind it, are delivered in less.
const LONGEST: u64 = 5_000_000;
/// After a lull in vain there is none for so long, ns.
const APART: u64 = 1_000_000;
/// Lulls take one part in so many of a port's time, as frames to others wait behind ...
const SHARE: u64 = 10;
/// ... but two of the longest are possible at once: SHARE times their length, ns.
const BURST: u64 = 2 * LONGEST * SHARE;

/// The lulls of one port.
#[derive(Clone, Copy)]
pub struct Lull {
    /// Whose receiver is waited for, and the worker that it is at.
    to: PortIndex,
    worker: u16,
    /// When the lull began, [`NEVER`] while there is none, and when it ends without progress, ns.
    since: u64,
    until: u64,
    /// The fewest frames that were ahead in it.
    ahead: u64,
    /// What had been sent to the other worker when it began.
    sent: Sent,
    /// None begins before this, ns.
    again: u64,
    /// When the share of the time that they took is over, ns.
    paid: u64,
}

impl Default for Lull {
    fn default() -> Self {
        let sent = Sent::default();
        Self { to: 0, worker: 0, since: NEVER, until: 0, ahead: 0, sent, again: 0, paid: 0 }
    }
}

impl Lull {
    /// Frames go directly.
    #[inline]
    pub fn finish(&mut self, now: u64) {
        if self.since != NEVER {
            self.end(now);
        }
    }

    /// What had been sent to `worker`, which `to` is at, before a lull for `to`: before one that begins now, `sent`.
    ///
    /// A lull ends where `to` has moved meanwhile: what was sent to one worker says nothing of another's ring.
    pub fn before(&mut self, to: PortIndex, worker: u16, sent: Sent, now: u64) -> Sent {
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

    /// Whether frames to `to`, which cannot go directly, wait in the sender's ring. `sent` is what had been sent to the other
    /// worker [before](Self::before), `ahead` how many frames are still to be taken there or to arrive, and `is_offered`
    /// whether the receiver is lent, to whomever, or will be when its queue is empty.
    pub fn waits(&mut self, to: PortIndex, is_offered: bool, sent: Sent, ahead: u64, now: u64) -> bool {
        if self.since == NEVER {
            let begins = is_offered && now >= self.again && self.paid <= now.saturating_add(BURST);
            if begins {
                (self.to, self.since, self.until) = (to, now, now + PATIENCE);
                (self.ahead, self.sent) = (ahead, sent);
            }
            return begins;
        }
        if to == self.to && ahead == 0 && !is_offered {
            // It was taken back for more than to serve its queue: nothing says that it is lent again.
            self.end(now);
            return false;
        }
        // Where no own frames are ahead, those of others are: the owner says so.
        if to == self.to && (ahead < self.ahead || (ahead == 0 && is_offered)) {
            (self.ahead, self.until) = (ahead, now + PATIENCE);
        }
        if now < self.until.min(self.since + LONGEST) {
            return to == self.to;
        }
        self.end(now);
        self.again = now + APART;
        false
    }

    fn end(&mut self, now: u64) {
        self.paid = self.paid.max(now) + SHARE * now.saturating_sub(self.since);
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
        lull.waits(7, true, Sent::default(), ahead, now)
    }

    #[test]
    fn it_goes_on_while_frames_arrive() {
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
    fn it_ends_at_last() {
        let mut lull = Lull::default();
        let lasted = (0..1_000_000).take_while(|n| waits(&mut lull, 1_000_000 - n, START + n * STEP)).count();
        assert_eq!(lasted as u64 * STEP, LONGEST);
    }

    #[test]
    fn one_begins_only_for_what_is_offered_and_is_for_that_alone() {
        let look = |lull: &mut Lull, to, is_offered, now| lull.waits(to, is_offered, Sent::default(), 0, now);
        let mut lull = Lull::default();
        assert!(!look(&mut lull, 7, false, START));
        assert!(look(&mut lull, 7, true, START));
        assert!(!look(&mut lull, 8, true, START), "what is for others does not wait for it");
        assert!(look(&mut lull, 7, true, START + PATIENCE - 1), "its owner says that it goes on");
        assert!(!look(&mut lull, 7, false, START + PATIENCE), "it is not to come again");
        assert!(look(&mut lull, 7, true, START + PATIENCE), "until it does");
    }

    #[test]
    fn it_ends_where_its_receiver_moves_to_another_worker() {
        let (mut here, _there) = Peer::pair();
        let none = here.sent();
        assert!(here.send(Crossing::Relieve { egress: 7, source: 1, oldest: true }));
        let some = here.sent();
        let mut lull = Lull::default();
        assert_eq!(lull.before(7, 1, some, START), some);
        assert!(lull.waits(7, true, some, 3, START));
        assert_eq!(lull.before(7, 1, none, START + 1), some, "what had been sent when it began");
        assert_eq!(lull.before(8, 2, none, START + 1), none, "to others, what is sent now");
        assert_eq!(lull.before(7, 1, none, START + 1), some, "others did not end it");
        assert_eq!(lull.before(7, 2, none, START + 2), none, "the other worker was sent less");
        assert!(lull.waits(7, true, none, 3, START + 2), "a lull of its own begins");
        assert_eq!(lull.before(7, 2, some, START + 3), none);
    }

    proptest! {
        /// However frames come and go, what is for others is not kept waiting for more than a part of the time.
        #[test]
        fn lulls_take_a_part_of_the_time(
            looks in prop::collection::vec((0u8..4, prop::sample::select(vec![7u16, 8]), 0u64..9, 1u64..9), 1..4000),
        ) {
            let (mut lull, mut now, mut lulled) = (Lull::default(), START, 0);
            for (what, to, ahead, steps) in looks {
                if what == 0 {
                    lull.finish(now);
                } else {
                    lull.waits(to, what > 1, Sent::default(), ahead, now);
                }
                if lull.since != NEVER {
                    lulled += steps * STEP;
                }
                now += steps * STEP;
            }
            // The last one may begin where nothing is left, and a look may come late.
            prop_assert!(lulled <= (now - START + BURST) / SHARE + LONGEST + 9 * STEP, "{} of {}", lulled, now - START);
        }
    }
}
