//! How soon the agent reconnects to a switch whose conversation broke off.
//!
//! ```text
//!  broke off, had answered a question ──▶ at once          ┐ but no more than 10 of them are saved up,
//!  broke off, had answered none ──▶ 1 ms, 2 ms, ... 1 s ◀──┘ and one more each 100 ms
//! ```
//!
//! A switch that is killed and restarted is back within milliseconds, and must not wait for this. One that
//! breaks off each conversation would otherwise be connected to by every query of the API. Pure: the caller
//! states the time.

use std::time::{Duration, Instant};

/// The pause after the first conversation that broke off without an answer. Each further one doubles it ...
const SHORTEST: Duration = Duration::from_millis(1);
/// ... up to this.
const LONGEST: Duration = Duration::from_secs(1);
/// Long-run pause per conversation that breaks off.
const EACH: Duration = Duration::from_millis(100);
/// Largest saved pause: ten conversations.
const SAVED: Duration = Duration::from_secs(1);

/// When the next conversation may begin.
#[derive(Debug, Default)]
pub struct Backoff {
    pause: Duration,
    /// End of the pause.
    retry_at: Option<Instant>,
    /// When all broken conversations are paid for, at [`EACH`] per conversation.
    paid: Option<Instant>,
}

impl Backoff {
    /// Whether a conversation that began at `now` would begin too soon.
    pub fn is_too_soon(&self, now: Instant) -> bool {
        self.retry_at.is_some_and(|retry_at| now < retry_at)
            || self.paid.is_some_and(|paid| paid > now + SAVED)
    }

    /// Notes that a conversation broke off at `now`; `had_answered`: the switch had answered a whole
    /// question in it.
    pub fn broke(&mut self, now: Instant, had_answered: bool) {
        self.pause = if had_answered { Duration::ZERO } else { (self.pause * 2).clamp(SHORTEST, LONGEST) };
        self.retry_at = Some(now + self.pause);
        self.paid = Some(self.paid.map_or(now, |paid| paid.max(now)) + EACH);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns how often a conversation that breaks off at once begins within a minute.
    fn begun(had_answered: impl Fn(u32) -> bool) -> u32 {
        let start = Instant::now();
        let (mut backoff, mut now, mut begun) = (Backoff::default(), start, 0);
        while now < start + Duration::from_secs(60) {
            if !backoff.is_too_soon(now) {
                backoff.broke(now, had_answered(begun));
                begun += 1;
            }
            now += Duration::from_millis(1);
        }
        begun
    }

    #[test]
    fn a_switch_that_answers_no_question_is_connected_to_once_a_second() {
        let begun = begun(|_| false);
        assert!((60..75).contains(&begun), "{begun} times in a minute");
    }

    #[test]
    fn a_switch_that_answers_the_first_question_is_connected_to_ten_times_a_second() {
        for answers in [|_| true, |n: u32| n.is_multiple_of(2), |n: u32| n % 8 != 7] {
            let begun = begun(answers);
            assert!(begun <= 600 + 12, "{begun} times in a minute");
        }
    }

    #[test]
    fn a_switch_that_is_killed_five_times_a_second_is_always_connected_to_at_once() {
        let mut now = Instant::now();
        let mut backoff = Backoff::default();
        for kill in 0..100 {
            backoff.broke(now, true);
            assert!(!backoff.is_too_soon(now), "after {kill} kills");
            // They were killed before they had answered.
            now += Duration::from_millis(20);
            backoff.broke(now, false);
            assert!(!backoff.is_too_soon(now + Duration::from_millis(2)), "after {kill} kills");
            now += Duration::from_millis(180);
        }
    }

    proptest! {
        #[test]
        fn no_period_has_more_connections_than_the_backoff_allows(
            breaks in prop::collection::vec((0u64..400, any::<bool>()), 1..200),
        ) {
            let mut now = Instant::now();
            let (mut backoff, mut times) = (Backoff::default(), Vec::new());
            for (later, had_answered) in breaks {
                now += Duration::from_millis(later);
                if !backoff.is_too_soon(now) {
                    backoff.broke(now, had_answered);
                    times.push(now);
                }
            }
            for (first, from) in times.iter().enumerate() {
                for (last, to) in times.iter().enumerate().skip(first) {
                    let most = 12 + to.duration_since(*from).as_millis() / EACH.as_millis();
                    prop_assert!((last - first) as u128 <= most);
                }
            }
        }
    }
}
