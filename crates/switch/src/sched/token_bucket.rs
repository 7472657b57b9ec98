//! The token bucket: a rate and a burst, in exact integers.
//!
//! ```text
//!   rate ──▶ ┌──────────┐ burst      a frame goes when the level has reached
//!            │~~~~~~~~~~│ level      min(frame, burst); it takes its own size,
//!            ├──────────┤ 0          so a frame larger than the burst goes when
//!            │   debt   │            the bucket is full, and leaves a debt
//!            └──────────┘
//! ```
//!
//! Tokens are counted in units of 10^-9 bit. At `r` bit/s exactly `r` units fall
//! in every nanosecond and a byte costs 8 * 10^9 of them, so neither refilling nor
//! charging ever rounds and no remainder is left to carry: after months the
//! bucket has given what an ideal one would have given.
//!
//! Only time is whole nanoseconds. A sender that waits for a *full* bucket gets
//! the first whole nanosecond at which it is full; the tokens of that
//! nanosecond's last fraction would spill, up to 50 bytes per frame at 400
//! Gbit/s. Therefore a bucket that became full within the last nanosecond keeps
//! that fraction. Hence the bounds, for frames of at most L bytes:
//!
//! - any interval of t ns carries at most max(burst, L) + rate * (t + 1 ns);
//! - a sender that always has a frame and sends as soon as it may gets `rate`
//!   exactly: since it began it is never behind rate * t.

use tidegate_contract::{Bytes, Rate};

/// Units of 10^-9 bit in a byte.
pub(super) const PER_BYTE: i128 = 8_000_000_000;

/// A token bucket that may run into debt. Starts full.
///
/// `now` is nanoseconds of any monotonic clock; an earlier `now` than one seen
/// before counts as that one. All arithmetic saturates, none panics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenBucket {
    /// Units per nanosecond, which is bit/s.
    rate: u64,
    /// `burst` in units.
    depth: i128,
    /// Units held at `at`; negative is debt.
    level: i128,
    at: u64,
    /// Bytes charged for frames that no observer has seen yet, without those of one waiting frame.
    unseen: Option<u64>,
}

impl TokenBucket {
    /// A full bucket.
    pub fn new(rate: Rate, burst: Bytes) -> Self {
        let depth = units(burst.get());
        Self { rate: rate.bits(), depth, level: depth, at: 0, unseen: None }
    }

    /// Changes rate and burst from `now` on. What was earned until `now` was
    /// earned at the old rate; a debt stays; tokens above a smaller burst are
    /// lost, and a larger one has to be filled first.
    pub fn set(&mut self, now: u64, rate: Rate, burst: Bytes) {
        self.settle(now);
        self.rate = rate.bits();
        self.depth = units(burst.get());
        self.level = self.level.min(self.depth);
        self.unseen = None;
    }

    /// The earliest time, not before `now`, at which a frame of `bytes` may go
    /// if nothing else is charged until then. `u64::MAX` if that is beyond the
    /// clock.
    pub fn conforms_at(&self, now: u64, bytes: u64) -> u64 {
        let missing = units(bytes).min(self.depth).saturating_sub(self.level_at(now));
        if missing <= 0 {
            return now;
        }
        // A division of 64 bits costs a third of one of 128, and this is one per frame.
        let wait = match u64::try_from(missing) {
            Ok(missing) => missing.div_ceil(self.rate),
            Err(_) => {
                let wait = missing.unsigned_abs().div_ceil(u128::from(self.rate));
                u64::try_from(wait).unwrap_or(u64::MAX)
            }
        };
        now.max(self.at).saturating_add(wait)
    }

    /// Takes `bytes` out at `now` for a frame that has waited since `since`. What fell in meanwhile
    /// is kept although the bucket was full, up to the frame's own size: a worker that comes late to
    /// a frame that waits takes no tokens from it, and gives no more than that one frame away.
    pub fn charge_waiting(&mut self, since: u64, now: u64, bytes: u64) {
        self.settle(since);
        let taken = units(bytes);
        let mut level = self.level;
        if now > self.at {
            level = level.saturating_add(i128::from(now - self.at) * i128::from(self.rate));
            self.at = now;
        }
        if level > self.depth {
            level = level.min(self.depth.saturating_add(taken));
        }
        self.level = level.saturating_sub(taken);
        self.unseen = Some(self.unseen.map_or(0, |unseen| unseen.saturating_add(bytes)));
    }

    /// Takes `bytes` out, into debt if need be: asking first whether they
    /// conform is the caller's choice.
    pub fn charge(&mut self, now: u64, bytes: u64) {
        self.settle(now);
        self.level = self.level.saturating_sub(units(bytes));
        self.unseen = Some(self.unseen.unwrap_or(0).saturating_add(bytes));
    }

    /// Observers see the charged frames from `now` on: tokens that the bucket could not have held
    /// beside them are lost, as if the frames were charged now.
    pub fn note_shown(&mut self, now: u64) {
        self.settle(now);
        if let Some(unseen) = self.unseen.take() {
            self.level = self.level.min(self.depth.saturating_sub(units(unseen)));
        }
    }

    /// Lowers the level at `now` to `bytes`, the level of the bucket that this one replaces.
    pub fn lower(&mut self, now: u64, bytes: i64) {
        self.settle(now);
        self.level = self.level.min(i128::from(bytes) * PER_BYTE);
    }

    /// Whole bytes that the bucket holds, rounded down; negative is debt.
    pub fn available(&self, now: u64) -> i64 {
        let level = self.level_at(now);
        if let Ok(level) = i64::try_from(level) {
            // As in `conforms_at`: a gigabyte.
            return level.div_euclid(PER_BYTE as i64);
        }
        level.div_euclid(PER_BYTE).clamp(i64::MIN.into(), i64::MAX.into()) as i64
    }

    /// Whether the bucket holds all it can: the rate holds nothing back, what falls in is lost.
    pub fn is_full(&self, now: u64) -> bool {
        self.level_at(now) >= self.depth
    }

    #[inline]
    fn settle(&mut self, now: u64) {
        if now > self.at {
            self.level = self.level_at(now);
            self.at = now;
        }
    }

    /// The level at `now` (units). No time has passed at `at` itself, when most of a batch's frames ask, and the
    /// level is less than a nanosecond's worth above `depth` then.
    #[inline]
    fn level_at(&self, now: u64) -> i128 {
        if now <= self.at {
            return self.level;
        }
        let earned = i128::from(now - self.at) * i128::from(self.rate);
        let level = self.level.saturating_add(earned);
        let spill = level.saturating_sub(self.depth);
        // Less than one nanosecond's worth: it became full within the last one.
        if spill < i128::from(self.rate) { level } else { self.depth }
    }
}

/// `bytes` in units of 10^-9 bit.
pub(super) fn units(bytes: u64) -> i128 {
    i128::from(bytes) * PER_BYTE
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rate(bits: u64) -> Rate {
        Rate::from_bits(bits).expect("in range")
    }

    fn bucket(bits: u64, burst: u64) -> TokenBucket {
        TokenBucket::new(rate(bits), Bytes::new(burst))
    }

    /// The ideal bucket's level, in units, by the closed form of an arrival
    /// curve: the least, over every charge k, of a full bucket at k, what fell
    /// in since, and what was taken from k on. Exact, and shares no step with
    /// the code under test.
    fn ideal(bits: u64, burst: u64, charges: &[(u64, u64)], now: u64) -> i128 {
        let mut least = units(burst);
        let mut taken = 0;
        for &(at, bytes) in charges.iter().rev() {
            taken += units(bytes);
            least = least.min(units(burst) + i128::from(now - at) * i128::from(bits) - taken);
        }
        least
    }

    #[test]
    fn a_frame_larger_than_the_burst_goes_when_full_and_leaves_a_debt() {
        let mut b = bucket(8_000_000, 1000); // one byte per microsecond
        b.charge(0, 400);
        assert_eq!(b.conforms_at(0, 64_000), 400_000);
        b.charge(400_000, 64_000);
        assert_eq!(b.available(400_000), -63_000);
        assert_eq!(b.conforms_at(400_000, 100), 400_000 + 63_100_000);
    }

    #[test]
    fn a_new_bucket_continues_at_the_level_of_the_old_one() {
        let mut old = bucket(8_000_000, 1000);
        old.charge(0, 2500);
        let mut new = bucket(8_000_000, 1000);
        new.lower(300_000, old.available(300_000));
        assert_eq!(new.available(300_000), -1200);
        assert_eq!(new.conforms_at(300_000, 100), old.conforms_at(300_000, 100));
        // No source gains by it.
        new.lower(300_000, 5000);
        assert_eq!(new.available(300_000), -1200);
    }

    #[test]
    fn an_empty_burst_paces() {
        let mut b = bucket(8_000_000, 0);
        assert_eq!(b.conforms_at(5, 1500), 5);
        b.charge(5, 1500);
        assert_eq!(b.conforms_at(5, 1), 5 + 1_500_000);
    }

    #[test]
    fn extremes_saturate() {
        let mut b = bucket(400_000_000_000, u64::MAX);
        assert_eq!(b.available(u64::MAX), i64::MAX);
        b.charge(u64::MAX, u64::MAX);
        b.charge(u64::MAX, u64::MAX);
        assert_eq!(b.available(u64::MAX), i64::MIN);
        assert_eq!(b.conforms_at(u64::MAX, 1), u64::MAX);
        let mut slow = bucket(1, 1500);
        slow.charge(u64::MAX - 5, 1500);
        assert_eq!(slow.conforms_at(u64::MAX - 5, 1500), u64::MAX);
    }

    #[test]
    fn a_jump_of_hours_fills_the_bucket_once() {
        let mut b = bucket(1_000_000_000, 1500);
        b.charge(10, 1500);
        let later = 10 + 7 * 3_600_000_000_000;
        assert_eq!(b.available(later), 1500);
        b.charge(later, 1500);
        assert_eq!(b.available(later), 0);
    }

    #[test]
    fn time_running_backwards_earns_nothing() {
        let mut b = bucket(8_000_000_000, 1500);
        b.charge(1000, 1500);
        assert_eq!(b.available(0), 0);
        b.charge(0, 1);
        assert_eq!(b.available(1000), -1);
        assert_eq!(b.conforms_at(0, 1499), 2500);
    }

    #[test]
    fn a_change_keeps_debt_and_grants_nothing() {
        let mut b = bucket(8_000_000, 1000);
        b.charge(0, 1500);
        b.set(100_000, rate(16_000_000), Bytes::new(4000)); // earned 100 at the old rate
        assert_eq!(b.available(100_000), -400);
        assert_eq!(b.available(300_000), 0);
        b.set(2_300_000, rate(16_000_000), Bytes::new(300));
        assert_eq!(b.available(2_300_000), 300);
        b.set(2_300_000, rate(16_000_000), Bytes::new(4000));
        assert_eq!(b.available(2_300_000), 300);
    }

    /// Awkward rates, where a frame takes no whole number of nanoseconds.
    fn rates() -> impl Strategy<Value = u64> {
        prop_oneof![
            1..1000u64,
            1_000_000..2_000_000u64,
            Just(333_333_333),
            Just(7_777_777_777),
            Just(400_000_000_000)
        ]
    }

    proptest! {
        /// However late frames are sent that wait: the rate is kept as long as the lateness is
        /// covered, and no interval has more than burst, one frame and what fell in.
        #[test]
        fn lateness_costs_no_rate_and_gives_one_frame_at_most(
            bits in 1_000_000u64..10_000_000_000,
            burst in 1_500u64..200_000,
            steps in prop::collection::vec((64u64..70_000, 0u64..50_000), 1..200),
        ) {
            let mut bucket = bucket(bits, burst);
            let (mut now, mut sent) = (0u64, Vec::new());
            for (bytes, late) in steps {
                let since = now;
                now = bucket.conforms_at(now, bytes) + late;
                bucket.charge_waiting(since, now, bytes);
                sent.push((now, bytes));
                prop_assert!(bucket.available(now) <= burst as i64);
            }
            for from in 0..sent.len() {
                let mut total = 0;
                for &(at, bytes) in &sent[from..] {
                    total += bytes;
                    let fell = u128::from(at - sent[from].0 + 1) * u128::from(bits);
                    let longest = sent[from..].iter().map(|(_, bytes)| *bytes).max().unwrap_or(0);
                    let most = u128::from(burst.max(longest) + longest) * 8_000_000_000 + fell;
                    prop_assert!(u128::from(total) * 8_000_000_000 <= most);
                }
            }
        }
    }

    proptest! {
        /// Batches that are shown late: an observer sees no interval of more than burst, one
        /// frame and what fell in.
        #[test]
        fn frames_shown_later_do_not_exceed_the_burst(
            bits in 1_000_000u64..10_000_000_000,
            burst in 1_500u64..200_000,
            waits in any::<bool>(),
            loops in prop::collection::vec((64u64..70_000, 0u64..2_000_000, 1usize..40), 1..60),
        ) {
            let mut bucket = bucket(bits, burst);
            let (mut now, mut since, mut shown) = (0u64, 0u64, Vec::new());
            for (bytes, late, batch) in loops {
                now = bucket.conforms_at(now, bytes);
                let mut total = 0;
                while total < bytes * batch as u64 && bucket.conforms_at(now, bytes) == now {
                    match waits {
                        true => bucket.charge_waiting(since, now, bytes),
                        false => bucket.charge(now, bytes),
                    }
                    since = now;
                    total += bytes;
                }
                now += late;
                bucket.note_shown(now);
                shown.push((now, total, bytes));
            }
            for first in 0..shown.len() {
                let (mut total, mut longest) = (0, 0);
                for &(at, bytes, frame) in &shown[first..] {
                    total += bytes;
                    longest = longest.max(frame);
                    let fell = u128::from(bits) * u128::from(at - shown[first].0 + 1);
                    let most = u128::from(burst.max(longest) + longest) * 8_000_000_000 + fell;
                    prop_assert!(u128::from(total) * 8_000_000_000 <= most, "{total} bytes");
                }
            }
        }
    }

    proptest! {
        #[test]
        fn never_below_the_ideal_and_less_than_a_nanosecond_above(
            bits in rates(),
            burst in prop_oneof![0..3000u64, 0..1_000_000u64],
            steps in prop::collection::vec((any::<bool>(), 0..100_000_000u64, 1..70_000u64), 1..60),
        ) {
            let mut b = bucket(bits, burst);
            let (mut now, mut charges) = (0, Vec::new());
            for (greedy, pause, bytes) in steps {
                now = if greedy { b.conforms_at(now, bytes) } else { now + pause };
                let exact = ideal(bits, burst, &charges, now);
                let level = b.level_at(now);
                prop_assert!(exact <= level && level < exact + i128::from(bits));
                b.charge(now, bytes);
                charges.push((now, bytes));
            }
        }

        #[test]
        fn conforms_at_is_the_first_such_nanosecond(
            bits in rates(),
            burst in 0..100_000u64,
            before in prop::collection::vec((0..1_000_000u64, 1..70_000u64), 0..10),
            bytes in 1..70_000u64,
        ) {
            let mut b = bucket(bits, burst);
            let mut now = 0;
            for (pause, bytes) in before {
                now += pause;
                b.charge(now, bytes);
            }
            let need = units(bytes.min(burst));
            let t = b.conforms_at(now, bytes);
            prop_assert!(t >= now && b.level_at(t) >= need);
            prop_assert!(t == now || b.level_at(t - 1) < need);
        }

        #[test]
        fn no_interval_carries_more_than_burst_rate_and_the_frame_over(
            bits in rates(),
            burst in 0..100_000u64,
            steps in prop::collection::vec((prop_oneof![Just(0), 0..10_000_000u64], 1..70_000u64), 1..60),
        ) {
            let mut b = bucket(bits, burst);
            let (mut now, mut sent) = (0u64, Vec::new());
            for (pause, bytes) in steps {
                now = b.conforms_at(now.saturating_add(pause), bytes);
                b.charge(now, bytes);
                sent.push((now, bytes));
            }
            let largest = sent.iter().map(|s| s.1).max().unwrap_or(0);
            for i in 0..sent.len() {
                let mut carried = 0;
                for &(t, bytes) in &sent[i..] {
                    carried += units(bytes);
                    let span = i128::from(t - sent[i].0) + 1;
                    prop_assert!(carried <= units(burst.max(largest)) + span * i128::from(bits));
                }
            }
        }

        #[test]
        fn a_greedy_sender_gets_the_rate_to_within_a_frame_at_all_times(
            bits in rates(),
            burst in 0..100_000u64,
            sizes in prop::collection::vec(1..70_000u64, 1..8),
        ) {
            let mut b = bucket(bits, burst);
            let (mut now, mut sent) = (0u64, 0i128);
            for &bytes in sizes.iter().cycle().take(2000) {
                now = b.conforms_at(now, bytes);
                let due = i128::from(now.saturating_sub(1)) * i128::from(bits);
                prop_assert!(sent >= due, "behind the rate by {}", due - sent);
                b.charge(now, bytes);
                sent += units(bytes);
                let most = units(burst.max(70_000)) + i128::from(now + 1) * i128::from(bits);
                prop_assert!(sent <= most, "ahead of the rate by {}", sent - most);
            }
        }
    }
}
