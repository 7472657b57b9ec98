//! Tier 2: guaranteed rates, by credit and by due time.
//!
//! ```text
//!              eligible                 due
//!  sent ahead ──┬──────────┬─────────────┬──▶ time
//!               │          start         │
//!               └─ min_burst at `min` ───┘ head at `min`
//! ```
//!
//! An ideal line of rate `min`, the source's own, would begin with the head
//! frame at its *start*: when it is through with the frames before, or when the
//! source has a frame again after idling, whichever is later. It would be through
//! with the head at its *due* time, `bytes / min` later. All of tier 2 follows:
//!
//! - **Credit** is `min_burst` less what the source has been sent ahead of that
//!   line. The head is *eligible* once credit has reached min(bytes, `min_burst`).
//!   While a source idles its credit therefore grows to `min_burst` and no further.
//! - Of the eligible heads **the one due first is served**. Were it the one
//!   eligible first, a source guaranteed half of the egress would wait behind
//!   one frame of each of a thousand slow ones and be owed hundreds by then.
//!   In due order, and with the sum of `min` within the capacity, every frame is
//!   through no later than it is due plus the time of one blocking frame
//!   (Zhang, *Virtual Clock*, SIGCOMM 1990; eligibility as in Bennett and Zhang,
//!   *WF2Q+*, 1997). So since a source became busy it was never behind `min` by
//!   more than a frame of its own, and `min` times that blocking time.
//! - A source that waits although it is eligible loses nothing: while it has
//!   frames, what it is **owed** is not cut at `min_burst`. It is cut at what
//!   `min` brings in the time frames are held at most. If the receiver took nothing
//!   for a minute, tier 2 does not then shut tier 3 out for a minute.
//!
//! Only service in tier 2 moves the start. What a source gets in tier 3, its
//! share of what is left over, comes on top.
//!
//! A head becomes eligible as time passes. One heap holds the heads that are not
//! yet, by eligible time; another those that are, by due time; asking for the
//! next moves from one to the other what has come of age.

use super::heap::SourceHeap;
use super::source::SourceIndex;
use super::token_bucket::units;
use tidegate_contract::Rate;

/// How far a source is ahead of its `min`, or behind. Exact, in the units of the token bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Credit {
    /// Units per nanosecond.
    rate: u64,
    burst: u64,
    /// Units sent ahead of the ideal line at `at`; negative if owed.
    ahead: i128,
    at: u64,
}

impl Credit {
    /// Returns full credit: `min_burst`.
    pub(super) fn new(now: u64, min: Rate, min_burst: u64) -> Self {
        Self { rate: min.bits(), burst: min_burst, ahead: 0, at: now }
    }

    /// Activates the source, which has a frame after idling. Its credit grew to `min_burst` at most;
    /// earlier debts to it are forgone.
    pub(super) fn activate(&mut self, now: u64) {
        self.settle(now);
        self.ahead = self.ahead.max(0);
    }

    /// Changes rate and burst from `now` on. Units sent ahead at the old rate stay sent; owed ones stay
    /// owed, but for at most `patience` ns at the new rate. `busy`: the source has frames.
    pub(super) fn set(&mut self, now: u64, min: Rate, min_burst: u64, busy: bool, patience: u64) {
        if busy {
            self.settle(now);
        } else {
            self.activate(now);
        }
        self.rate = min.bits();
        self.burst = min_burst;
        self.cap_debt(patience);
    }

    /// Returns when a head of `bytes` is eligible; in the past for one that is.
    pub(super) fn eligible_at(&self, bytes: u32) -> u64 {
        let spare = self.burst.saturating_sub(u64::from(bytes));
        self.line_at(self.ahead.saturating_sub(units(spare)))
    }

    /// Returns when a head of `bytes` is due.
    pub(super) fn due_at(&self, bytes: u32) -> u64 {
        self.line_at(self.ahead.saturating_add(units(bytes.into())))
    }

    /// Charges a frame of `bytes` served in tier 2. Units owed for longer than `patience` (ns) are forgone.
    pub(super) fn charge(&mut self, now: u64, bytes: u64, patience: u64) {
        self.settle(now);
        self.ahead = self.ahead.saturating_add(units(bytes));
        self.cap_debt(patience);
    }

    fn cap_debt(&mut self, patience: u64) {
        let most = i128::from(patience) * i128::from(self.rate);
        self.ahead = self.ahead.max(-most);
    }

    fn settle(&mut self, now: u64) {
        let passed = i128::from(now.saturating_sub(self.at));
        self.ahead = self.ahead.saturating_sub(passed * i128::from(self.rate));
        self.at = self.at.max(now);
    }

    /// Returns the first nanosecond by which the line brings `units` after `at`.
    fn line_at(&self, units: i128) -> u64 {
        let rate = u128::from(self.rate);
        let time = |units: u128| u64::try_from(units / rate).unwrap_or(u64::MAX);
        if units > 0 {
            self.at.saturating_add(time(units.unsigned_abs() + rate - 1))
        } else {
            self.at.saturating_sub(time(units.unsigned_abs()))
        }
    }
}

/// The sources with frames and a `min`.
#[derive(Debug, Default)]
pub(super) struct Minima {
    /// By the time they become eligible.
    waiting: SourceHeap,
    /// By their due time.
    eligible: SourceHeap,
    /// Due times of the waiting ones.
    due: Vec<u64>,
    /// All that are eligible by then are in `eligible`.
    seen: u64,
}

impl Minima {
    pub(super) fn reserve(&mut self, source: SourceIndex) {
        self.waiting.reserve(source);
        self.eligible.reserve(source);
        let sources = usize::from(source) + 1;
        if self.due.len() < sources {
            self.due.resize(sources, 0);
        }
    }

    /// Returns the eligible source that is due first.
    #[inline]
    pub(super) fn first(&mut self, now: u64) -> Option<SourceIndex> {
        self.seen = self.seen.max(now);
        while let Some(source) = self.waiting.first()
            && self.next_eligible() <= Some(self.seen)
        {
            self.waiting.remove(source);
            let due = self.due[usize::from(source)];
            self.eligible.set(source, due.into());
        }
        self.eligible.first()
    }

    /// Returns when the next source becomes eligible.
    #[inline]
    pub(super) fn next_eligible(&self) -> Option<u64> {
        self.waiting.first_key()
    }

    /// Sets the head of `source` to one of `bytes`.
    pub(super) fn set(&mut self, source: SourceIndex, credit: &Credit, bytes: u32) {
        let due = credit.due_at(bytes);
        let at = credit.eligible_at(bytes);
        if at <= self.seen {
            self.waiting.remove(source);
            self.eligible.set(source, due.into());
        } else {
            self.eligible.remove(source);
            self.due[usize::from(source)] = due;
            self.waiting.set(source, at.into());
        }
    }

    pub(super) fn remove(&mut self, source: SourceIndex) {
        self.waiting.remove(source);
        self.eligible.remove(source);
    }

    pub(super) fn clear(&mut self) {
        self.waiting.clear();
        self.eligible.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One byte per microsecond.
    fn min() -> Rate {
        Rate::from_bits(8_000_000).expect("in range")
    }

    #[test]
    fn idle_credit_stops_at_the_burst() {
        let mut c = Credit::new(0, min(), 1000);
        c.activate(5_000_000);
        assert_eq!(c.eligible_at(1000), 5_000_000);
        c.charge(5_000_000, 1000, 0);
        assert_eq!(c.eligible_at(1), 5_001_000);
        assert_eq!(c.eligible_at(400), 5_400_000);
        assert_eq!(c.due_at(400), 6_400_000);
        c.activate(5_300_000); // 300 of 1000 have come back
        assert_eq!(c.eligible_at(400), 5_400_000);
        c.activate(60_000_000);
        c.charge(60_000_000, 1000, 0);
        assert_eq!(c.eligible_at(1000), 61_000_000);
    }

    #[test]
    fn a_frame_above_the_burst_needs_all_of_it_and_leaves_a_debt() {
        let mut c = Credit::new(0, min(), 1000);
        assert_eq!(c.eligible_at(64_000), 0);
        c.charge(0, 64_000, 0);
        assert_eq!(c.eligible_at(64_000), 64_000_000);
        assert_eq!(c.eligible_at(100), 63_100_000);
    }

    #[test]
    fn owed_units_stay_up_to_patience() {
        let mut c = Credit::new(0, min(), 1000);
        c.charge(9_000_000, 1000, 10_000_000); // 9000 came in, 1000 served
        assert_eq!(c.due_at(1000), 2_000_000);
        c.charge(9_000_000, 1000, 4_000_000);
        assert_eq!(c.due_at(1000), 6_000_000);
    }

    #[test]
    fn a_change_keeps_what_was_sent_ahead() {
        let mut c = Credit::new(0, min(), 1000);
        c.charge(0, 3000, 0);
        let double = Rate::from_bits(16_000_000).expect("in range");
        c.set(1_000_000, double, 500, true, 0); // 2000 ahead
        assert_eq!(c.eligible_at(500), 2_000_000);
        assert_eq!(c.due_at(500), 2_250_000);
        // By then 2000 are owed, 2 ms at the new rate; 1 ms remains.
        c.set(3_000_000, min(), 500, true, 1_000_000);
        assert_eq!(c.due_at(500), 2_500_000);
    }

    #[test]
    fn the_first_due_of_the_eligible_sources_is_served() {
        let mut minima = Minima::default();
        minima.reserve(3);
        let slow = Credit::new(0, min(), 1500);
        let fast = Credit::new(10, Rate::from_bits(80_000_000).expect("in range"), 1500);
        let mut later = Credit::new(0, min(), 100);
        later.charge(0, 100, 0);
        minima.set(1, &slow, 1500);
        minima.set(2, &fast, 1500);
        minima.set(3, &later, 100);
        assert_eq!(minima.first(10), Some(2));
        minima.remove(2);
        assert_eq!(minima.first(10), Some(1));
        assert_eq!(minima.next_eligible(), Some(100_000));
        assert_eq!(minima.first(100_000), Some(3));
        assert_eq!(minima.next_eligible(), None);
    }
}
