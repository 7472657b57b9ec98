//! Which of many numbered things one peer has still to be told, round after round.
//!
//! ```text
//!  things by number, the later ones higher ─▶ Rounds: the last number told in each ─▶ the next thing that is due
//! ```

use super::bucket::Bucket;
use std::collections::BTreeMap;
use tidegate_contract::Segment;

/// What peers are told.
pub(super) trait Thing: Copy {
    /// Its segment: it concerns only peers that have a key of that.
    fn segment(&self) -> Segment;
    /// Since when it is so (ns); not less than that of a thing with a lower number.
    fn since(&self) -> u64;
}

/// What one peer was told in each of N rounds.
#[derive(Debug)]
pub(super) struct Rounds<const N: usize> {
    /// When a thing is told, after it came (ns).
    after: [u64; N],
    /// The last number told.
    last: [u64; N],
    /// When the peer became one, or restarted (ns).
    since: u64,
}

impl<const N: usize> Rounds<N> {
    /// Nothing was told to a peer that is one since `now` (ns).
    pub(super) const fn new(after: [u64; N], now: u64) -> Self {
        Self { after, last: [0; N], since: now }
    }

    /// Returns when the first round began (ns).
    pub(super) const fn since(&self) -> u64 {
        self.since
    }

    /// Returns when the next thing is to be told (ns), a bucket apart; `None` if all is told.
    pub(super) fn due<T: Thing>(&self, all: &BTreeMap<u64, T>) -> Option<u64> {
        self.next_round(all).map(|(_, at)| at)
    }

    /// Takes the next thing that `concerns` the peer and that it is to be told of at `now` (ns), with a token.
    pub(super) fn next<T: Thing>(
        &mut self,
        all: &BTreeMap<u64, T>,
        now: u64,
        bucket: &mut Bucket,
        concerns: &impl Fn(Segment) -> bool,
    ) -> Option<T> {
        loop {
            let (round, at) = self.next_round(all)?;
            if at > now {
                return None;
            }
            let (number, thing) = all.range(self.last[round] + 1..).next()?;
            let is_told = concerns(thing.segment());
            if is_told && !bucket.take(now) {
                return None;
            }
            self.last[round] = *number;
            if is_told {
                return Some(*thing);
            }
        }
    }

    /// Returns the round whose next thing is due first, and when (ns).
    fn next_round<T: Thing>(&self, all: &BTreeMap<u64, T>) -> Option<(usize, u64)> {
        let due = |round: usize| {
            let (_, thing) = all.range(self.last[round] + 1..).next()?;
            Some((round, thing.since().max(self.since) + self.after[round]))
        };
        (0..N).filter_map(due).min_by_key(|(_, at)| *at)
    }
}
