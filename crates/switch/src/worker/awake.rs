//! How much of its time a worker may wait awake. Pure.
//!
//! ```text
//!  busy-poll of the contracts ──▶ waiting: time awake with nothing to do ─┐
//!                                                                         ├─▶ may it wait awake?
//!  SCHED_FIFO under throttling ─▶ running: all time but sleep ────────────┘
//! ```
//!
//! Each is an account of time, as a token bucket is of bytes: it gains a share of the passing time, up to
//! that of [`SPAN`], and pays for used time. In any time T it pays at most `share * (T + SPAN)` and one
//! loop.
//!
//! A used-up account opens again when half full, so that it lasts for whole gaps between frames, not for
//! the beginning of each.

/// Time whose share can be saved up (ns).
const SPAN: u64 = 100_000_000;
/// A second, ns.
const SECOND: u64 = 1_000_000_000;
/// Share of a second for a worker under SCHED_FIFO (ns), if the kernel throttles it: by default at 950 ms,
/// and then for the rest of the second.
const UNTHROTTLED: u64 = 800_000_000;

/// An account of time.
#[derive(Clone, Copy, Debug)]
struct Account {
    /// Gain per second (ns).
    share: u64,
    /// Balance (ns); negative after a loop that took more.
    balance: i64,
    /// Fraction of the gain, in units of 1 ns / [`SECOND`]: a small share gains less than 1 ns in a short
    /// loop.
    rest: u64,
    /// The account was not used up since it was half full.
    open: bool,
}

impl Account {
    fn new(share: u64) -> Self {
        Self { share: share.min(SECOND), balance: 0, rest: 0, open: false }
    }

    /// Returns the largest balance (ns).
    fn most(&self) -> i64 {
        (u128::from(self.share) * u128::from(SPAN) / u128::from(SECOND)) as i64
    }

    /// Adds `elapsed` ns, used or not.
    #[inline]
    fn pass(&mut self, elapsed: u64, used: bool) {
        let elapsed = elapsed.min(SECOND);
        let gained = elapsed * self.share + self.rest;
        let gain = (gained / SECOND) as i64;
        self.rest = gained % SECOND;
        let most = self.most();
        let use_ = if used { elapsed as i64 } else { 0 };
        self.balance = (self.balance + gain - use_).clamp(-(SECOND as i64), most);
        self.open = match self.open {
            true => self.balance > 0,
            false => self.share > 0 && self.balance >= most / 2,
        };
    }
}

/// A worker's budget for waiting awake.
#[derive(Clone, Copy, Debug)]
pub(super) struct Awake {
    /// Time of the balances (ns).
    at: u64,
    waiting: Account,
    /// `None` if the kernel does not limit running time.
    running: Option<Account>,
}

impl Awake {
    /// Returns the budget of a worker that may wait awake for `share` ns of each second; `throttled`: the
    /// kernel stops it after too much running time.
    pub(super) fn new(share: u64, throttled: bool, now: u64) -> Self {
        Self { at: now, waiting: Account::new(share), running: throttled.then(|| Account::new(UNTHROTTLED)) }
    }

    /// Whether it may wait awake now.
    #[inline]
    pub(super) fn may_wait(&self) -> bool {
        self.waiting.open && self.running.is_none_or(|running| running.open)
    }

    /// Notes idle time until `now` (ns), spent waiting for a real-time frame or not. Returns its length
    /// (ns).
    #[inline]
    pub(super) fn note_idle(&mut self, now: u64, waited: bool) -> u64 {
        self.pass(now, waited, true)
    }

    /// Notes work until `now` (ns).
    #[inline]
    pub(super) fn note_work(&mut self, now: u64) {
        self.pass(now, false, true);
    }

    /// Notes sleep until `now` (ns).
    #[inline]
    pub(super) fn note_sleep(&mut self, now: u64) {
        self.pass(now, false, false);
    }

    #[inline]
    fn pass(&mut self, now: u64, waited: bool, ran: bool) -> u64 {
        let elapsed = now.saturating_sub(self.at);
        self.at = self.at.max(now);
        self.waiting.pass(elapsed, waited);
        if let Some(running) = &mut self.running {
            running.pass(elapsed, ran);
        }
        elapsed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// A worker that waits awake whenever it may never exceeds its share, over any time.
        #[test]
        fn a_worker_never_waits_awake_for_more_than_its_share(
            share in 0..=SECOND, throttled in any::<bool>(),
            steps in prop::collection::vec((1u64..5_000_000, 0..3u8), 1..400),
        ) {
            let mut awake = Awake::new(share, throttled, 0);
            let mut now = 0;
            // (from, until, waited, ran)
            let mut past: Vec<(u64, u64, bool, bool)> = Vec::new();
            for (length, what) in steps {
                let from = now;
                now += length;
                let (waits, works) = (what == 0 && awake.may_wait(), what == 1);
                match (waits, works) {
                    (true, _) => _ = awake.note_idle(now, true),
                    (_, true) => awake.note_work(now),
                    _ => awake.note_sleep(now),
                }
                past.push((from, now, waits, waits || works));
            }
            let longest = 5_000_000;
            for begin in (0..past.len()).step_by(7) {
                let mut waited = 0;
                for (from, until, waits, _) in &past[begin..] {
                    waited += if *waits { until - from } else { 0 };
                    let span = u128::from(until - past[begin].0 + SPAN);
                    let most = (span * u128::from(share) / u128::from(SECOND)) as u64 + longest;
                    prop_assert!(waited <= most, "{waited} of {most}");
                    prop_assert!(share > 0 || waited == 0, "0 is never");
                }
            }
        }

        /// A worker that waits awake under throttling gives the kernel no reason to stop it, unless its
        /// work does.
        #[test]
        fn waiting_never_runs_into_throttling(steps in prop::collection::vec((1u64..300_000, any::<bool>()), 1..20_000)) {
            let mut awake = Awake::new(SECOND, true, 0);
            let (mut now, mut ran) = (0u64, 0u64);
            for (length, works) in steps {
                now += length;
                // Work takes at most half of the time.
                let works = works && ran * 2 < now;
                let runs = works || awake.may_wait();
                ran += if runs { length } else { 0 };
                match (works, runs) {
                    (true, _) => awake.note_work(now),
                    (_, true) => _ = awake.note_idle(now, true),
                    _ => awake.note_sleep(now),
                }
                prop_assert!(ran <= UNTHROTTLED * (now + SPAN) / SECOND + 300_000, "{ran} of {now}");
            }
        }
    }

    proptest! {
        /// The gain does not depend on how often it is added.
        #[test]
        fn short_passes_gain_what_a_long_one_does(share in 0..=SECOND, steps in prop::collection::vec(1u64..2_000, 1..5_000)) {
            let (mut often, mut once) = (Account::new(share), Account::new(share));
            steps.iter().for_each(|ns| often.pass(*ns, false));
            once.pass(steps.iter().sum(), false);
            prop_assert_eq!((often.balance, often.rest), (once.balance, once.rest));
        }
    }

    /// A worker without work that does not sleep has loops below a microsecond.
    #[test]
    fn a_small_share_is_gained_while_the_worker_spins() {
        let mut awake = Awake::new(SECOND / 1000, false, 0);
        for step in 1..=200_000 {
            _ = awake.note_idle(step * 300, false);
        }
        assert_eq!(awake.waiting.balance, 60_000, "a thousandth of 60 ms");
        assert!(awake.may_wait());
    }

    #[test]
    fn all_of_a_second_is_without_bound() {
        let mut awake = Awake::new(SECOND, false, 0);
        awake.note_sleep(SECOND);
        for step in 1..100_000 {
            assert!(awake.may_wait(), "{step}");
            awake.note_idle(SECOND + step * 50_000, true);
        }
    }

    #[test]
    fn the_budget_lasts_for_whole_gaps() {
        let mut awake = Awake::new(SECOND / 4, false, 0);
        awake.note_sleep(SECOND);
        let mut now = SECOND;
        let mut stretches = Vec::new();
        for _ in 0..10 {
            let from = now;
            while awake.may_wait() {
                now += 10_000;
                _ = awake.note_idle(now, true);
            }
            stretches.push(now - from);
            while !awake.may_wait() {
                now += 10_000;
                awake.note_sleep(now);
            }
        }
        assert!(stretches.iter().all(|ns| *ns > 10_000_000), "{stretches:?}");
    }
}
