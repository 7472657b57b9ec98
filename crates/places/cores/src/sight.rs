//! What a look sees of the host switch: whether it answers, and whether real-time frames flow.

use std::time::{Duration, Instant};
use tidegate_cores::stage::Handle;
use tidegate_evidence::total;
use tidegate_place::HostWork;

/// Real-time traffic counts as present for this long: a guest with pauses must not make the agent write to
/// disk each time.
const TRAFFIC_LASTS: Duration = Duration::from_secs(10);

/// What one look saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sight {
    /// The switch reports no worker: it does not answer.
    Silence,
    /// Real-time frames that it delivered so far.
    Delivered(u64),
}

impl Sight {
    /// Returns what this look sees; the count of frames is 0 if nothing depends on it.
    pub fn of(work: &HostWork<'_>, counts: bool) -> Self {
        if !work.stages.iter().any(|stage| matches!(stage.handle, Handle::Worker(_))) {
            return Self::Silence;
        }
        let vnics = work.evidence.iter().flat_map(|evidence| evidence.vnics.values());
        Self::Delivered(total(vnics.filter(|_| counts).map(|stats| stats.realtime_delivered)))
    }
}

/// The looks so far.
#[derive(Debug)]
pub struct Sights {
    last: Option<Sight>,
    /// `None` before the first look, which cannot date its frames.
    delivered: Option<u64>,
    /// When frames last flowed.
    grew: Option<Instant>,
    /// Since when the switch does not answer.
    silent: Option<Instant>,
}

impl Sights {
    /// Returns the state before the first look; frames flowed `at` that time, if known.
    pub fn new(at: Option<Instant>) -> Self {
        Self { last: None, delivered: None, grew: at, silent: None }
    }

    /// Takes a look at `now` in.
    pub fn see(&mut self, now: Instant, sight: Sight) {
        self.last = Some(sight);
        match sight {
            Sight::Silence => self.silent = self.silent.or(Some(now)),
            Sight::Delivered(delivered) => {
                self.silent = None;
                if self.delivered.replace(delivered).is_some_and(|before| delivered > before) {
                    self.grew = Some(now);
                }
            }
        }
    }

    /// The last look.
    pub fn last(&self) -> Option<Sight> {
        self.last
    }

    /// Whether real-time frames flow, at `now`.
    pub fn flows(&self, now: Instant) -> bool {
        self.grew.is_some_and(|grew| now.saturating_duration_since(grew) < TRAFFIC_LASTS)
    }

    /// How long the switch has not answered, at `now`; `None` if it did at the last look.
    pub fn silent(&self, now: Instant) -> Option<Duration> {
        self.silent.map(|since| now.saturating_duration_since(since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sight(delivered: u64) -> Sight {
        Sight::Delivered(delivered)
    }

    #[test]
    fn traffic_counts_for_some_seconds_after_its_last_frame() {
        let (mut sights, begin) = (Sights::new(None), Instant::now());
        let mut flows = |now, delivered| {
            sights.see(now, sight(delivered));
            sights.flows(now)
        };
        assert!(!flows(begin, 4), "they may have been long ago");
        assert!(flows(begin, 5));
        assert!(flows(begin + TRAFFIC_LASTS / 2, 5));
        assert!(!flows(begin + TRAFFIC_LASTS, 5));
        // A restarted switch counts from 0.
        assert!(!flows(begin + TRAFFIC_LASTS, 0));
        assert!(flows(begin + TRAFFIC_LASTS, 1));
        // The earlier agent saw them.
        let mut sights = Sights::new(Some(begin));
        sights.see(begin, sight(5));
        assert!(sights.flows(begin) && !sights.flows(begin + TRAFFIC_LASTS));
    }

    #[test]
    fn silence_begins_at_the_first_look_without_an_answer() {
        let (mut sights, begin, second) = (Sights::new(None), Instant::now(), Duration::from_secs(1));
        let silent = Sight::Silence;
        sights.see(begin, silent);
        sights.see(begin + second, silent);
        assert_eq!(sights.silent(begin + second * 2), Some(second * 2));
        sights.see(begin + second * 2, sight(0));
        assert_eq!(sights.silent(begin + second * 3), None);
    }
}
