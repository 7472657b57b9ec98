//! Whether a peer hears this host. Pure: the caller states the time.
//!
//! ```text
//!  answers ─▶ hears ── none for 35 s ─▶ deaf ── an answer ─▶ told all anew ── 15 s ─▶ hears
//! ```
//!
//! Nothing acknowledges an announcement. An answer to a request of ours proves that the peer gets this host's notices, and so
//! the announcements among them; earlier releases answer as well. A peer that was deaf may have forgotten this host's queue pairs.

use super::members::FRESH_FOR;

/// How long a peer that was deaf is told of queue pairs before it counts as one that knows them (ns): longer than a round.
const SETTLED_AFTER: u64 = 15_000_000_000;

/// What a peer's answers say.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hearing {
    /// When the last one came (ns).
    answered_at: u64,
    /// From when on it knows what it was told (ns).
    from: u64,
}

impl Hearing {
    /// Returns that of a peer that is one since `now` (ns).
    pub(super) const fn new(now: u64) -> Self {
        Self { answered_at: now, from: now }
    }

    /// Notes an answer that came at `now` (ns); whether the peer is to be told all anew, since it was deaf.
    pub(super) fn answered(&mut self, now: u64) -> bool {
        let was_deaf = self.is_silent(now);
        self.answered_at = now;
        if was_deaf {
            self.from = now + SETTLED_AFTER;
        }
        was_deaf
    }

    /// Whether the peer hears this host, and knows what it was told.
    pub(super) fn is_sure(&self, now: u64) -> bool {
        !self.is_silent(now) && now >= self.from
    }

    fn is_silent(&self, now: u64) -> bool {
        now.saturating_sub(self.answered_at) >= FRESH_FOR
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn a_peer_without_answers_is_deaf_until_it_was_told_anew() {
        let mut hearing = Hearing::new(5 * SECOND);
        assert!(
            hearing.is_sure(5 * SECOND) && !hearing.answered(39 * SECOND),
            "answers may be lost for a while"
        );
        assert!(hearing.is_sure(73 * SECOND) && !hearing.is_sure(74 * SECOND));
        assert!(hearing.answered(100 * SECOND) && !hearing.answered(101 * SECOND));
        assert!(!hearing.is_sure(114 * SECOND) && hearing.is_sure(115 * SECOND));
    }
}
