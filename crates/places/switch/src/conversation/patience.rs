//! How long the switch may keep the reconciler waiting: six seconds at once, a quarter of the time in the
//! long run.
//!
//! A switch that hangs, or answers each question at the last moment, would otherwise delay every change of
//! every place, one question after the other. Pure: the caller states the time.

use std::time::{Duration, Instant};
use tidegate_switch::control::client::PATIENCE;

/// Largest saved time.
const MOST: Duration = Duration::from_secs(6);
/// A question answered within this is free.
const FREE: Duration = Duration::from_millis(100);
/// With less than this left no question is asked; each question that used all of its time doubles it, up to
/// [`PATIENCE`]: an honest switch on a busy machine gets the time that it needs.
const LEAST: Duration = Duration::from_secs(1);
/// One second is saved in this many.
const SHARE: u32 = 4;

/// The spent patience.
#[derive(Debug)]
pub struct Patience {
    /// Spent and not yet saved; more than [`MOST`] after a question that took too long.
    spent: Duration,
    at: Instant,
    /// With less than this left the next question is not asked.
    least: Duration,
    /// Time of the last question.
    granted: Duration,
}

impl Patience {
    /// Returns full patience.
    pub fn new(now: Instant) -> Self {
        Self { spent: Duration::ZERO, at: now, least: LEAST, granted: PATIENCE }
    }

    /// Returns how long a question at `now` may take; `None` if it is too early.
    pub fn for_question(&mut self, now: Instant) -> Option<Duration> {
        self.spent = self.spent.saturating_sub(now.saturating_duration_since(self.at) / SHARE);
        self.at = now;
        let remaining = MOST.saturating_sub(self.spent);
        (remaining >= self.least).then(|| {
            self.granted = remaining.min(PATIENCE);
            self.granted
        })
    }

    /// Notes the time of a question.
    pub fn spent(&mut self, took: Duration) {
        self.spent += took.saturating_sub(FREE);
        self.least = if took < self.granted { LEAST } else { (self.least * 2).min(PATIENCE) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Asks repeatedly for a minute; returns the time waited. The switch answers after `answers`, or never.
    fn waited(answers: Duration) -> (Duration, u32) {
        let start = Instant::now();
        let (mut patience, mut now) = (Patience::new(start), start);
        let (mut waited, mut asked) = (Duration::ZERO, 0);
        while now < start + Duration::from_secs(60) {
            match patience.for_question(now) {
                Some(most) => {
                    let took = answers.min(most);
                    patience.spent(took);
                    (waited, asked, now) = (waited + took, asked + 1, now + took);
                }
                None => now += Duration::from_millis(50),
            }
        }
        (waited, asked)
    }

    #[test]
    fn a_switch_that_answers_is_always_asked() {
        let (took, asked) = waited(Duration::from_millis(100));
        assert_eq!((took, asked), (Duration::from_secs(60), 600));
    }

    #[test]
    fn waits_for_a_silent_switch_take_only_their_share_of_time() {
        for answers in [300, 1000, 2900, 60_000].map(Duration::from_millis) {
            let (took, asked) = waited(answers);
            // The charged part of questions, and the last question.
            let most = MOST + Duration::from_secs(60) / SHARE + FREE * asked + PATIENCE;
            assert!(took <= most, "{answers:?}: {took:?} of a minute, in {asked} questions");
            assert!(asked > 5, "{answers:?}: it is asked again");
        }
    }

    #[test]
    fn a_switch_that_answers_again_is_soon_asked() {
        let start = Instant::now();
        let mut patience = Patience::new(start);
        for _ in 0..2 {
            patience.spent(PATIENCE - FREE);
        }
        patience.spent(4 * FREE + FREE);
        assert_eq!(patience.for_question(start), None);
        assert_eq!(patience.for_question(start + Duration::from_secs(3)), None);
        assert_eq!(patience.for_question(start + Duration::from_secs(4)), Some(LEAST));
    }

    #[test]
    fn a_slow_switch_gets_enough_time_for_its_answer() {
        let (start, needed) = (Instant::now(), PATIENCE - FREE);
        let (mut patience, mut now) = (Patience::new(start), start);
        patience.spent(MOST + FREE);
        let answered = (0..10).any(|_| {
            let granted = loop {
                match patience.for_question(now) {
                    Some(granted) => break granted,
                    None => now += Duration::from_millis(50),
                }
            };
            patience.spent(needed.min(granted));
            now += needed.min(granted);
            needed < granted
        });
        assert!(answered && now < start + Duration::from_secs(60), "{:?}", now.duration_since(start));
    }

    #[test]
    fn an_overlong_question_delays_the_next_one() {
        let start = Instant::now();
        let mut patience = Patience::new(start);
        patience.spent(MOST + FREE + Duration::from_secs(10));
        assert_eq!(patience.for_question(start + Duration::from_secs(47)), None);
        assert_eq!(patience.for_question(start + Duration::from_secs(48)), Some(2 * LEAST));
    }
}
