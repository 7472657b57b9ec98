//! When the eBPF programs are loaded and removed. Pure. A switch may report another process at each look,
//! and a user of the API may set and remove a deadline, without end: loading takes the kernel tens of
//! milliseconds.

use std::time::{Duration, Instant};

/// Least pause between loads.
const RELOAD_PAUSE: Duration = Duration::from_secs(10);
/// How long they stay after the last deadline.
const LINGER: Duration = Duration::from_secs(60);

/// The next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Leaves them, if loaded.
    Keep,
    /// Removes them: no deadline is in force.
    Rest,
    /// Removes them, to load them for another process at a later look.
    Wait,
    /// Loads them anew.
    Load,
}

/// The earlier steps.
#[derive(Debug, Default)]
pub struct Pace {
    /// The observed process.
    process: Option<u32>,
    /// When they were last loaded.
    loaded: Option<Instant>,
    /// When a deadline was last in force.
    deadline: Option<Instant>,
}

impl Pace {
    /// Returns the step at `now`, for this process.
    pub fn step(&mut self, now: Instant, process: u32, has_deadline: bool) -> Step {
        let within = |then: Option<Instant>, span: Duration| {
            then.is_some_and(|then| now.saturating_duration_since(then) < span)
        };
        if has_deadline {
            self.deadline = Some(now);
        } else if !within(self.deadline, LINGER) {
            self.process = None;
            return Step::Rest;
        }
        if self.process == Some(process) {
            return Step::Keep;
        }
        if within(self.loaded, RELOAD_PAUSE) {
            self.process = None;
            return Step::Wait;
        }
        (self.process, self.loaded) = (Some(process), Some(now));
        Step::Load
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn programs_are_unloaded_a_minute_after_the_last_deadline() {
        let (mut pace, begin) = (Pace::default(), Instant::now());
        assert_eq!(pace.step(begin, 1, false), Step::Rest, "there never was one");
        assert_eq!(pace.step(begin, 1, true), Step::Load);
        assert_eq!(pace.step(begin + seconds(100), 1, true), Step::Keep);
        assert_eq!(pace.step(begin + seconds(159), 1, false), Step::Keep);
        assert_eq!(pace.step(begin + seconds(160), 1, false), Step::Rest);
        assert_eq!(pace.step(begin + seconds(161), 1, true), Step::Load);
    }

    #[test]
    fn programs_for_another_switch_process_load_after_a_pause() {
        let (mut pace, begin) = (Pace::default(), Instant::now());
        assert_eq!(pace.step(begin, 1, true), Step::Load);
        assert_eq!(pace.step(begin + seconds(1), 2, true), Step::Wait);
        assert_eq!(pace.step(begin + seconds(9), 1, true), Step::Wait, "its programs have gone");
        assert_eq!(pace.step(begin + seconds(10), 2, true), Step::Load);
        assert_eq!(pace.step(begin + seconds(11), 2, true), Step::Keep);
    }

    proptest! {
        /// For any statistics and deadlines.
        #[test]
        fn loads_of_programs_have_pauses_between_them(looks in prop::collection::vec((0_u64..5_000, 0_u32..3, any::<bool>()), 0..200)) {
            let (mut pace, begin) = (Pace::default(), Instant::now());
            let (mut now, mut observed, mut loaded) = (Duration::ZERO, None, None);
            for (later, process, has_deadline) in looks {
                now += Duration::from_millis(later);
                match pace.step(begin + now, process, has_deadline) {
                    Step::Keep => prop_assert_eq!(observed, Some(process)),
                    Step::Rest => {
                        prop_assert!(!has_deadline);
                        observed = None;
                    }
                    Step::Wait => observed = None,
                    Step::Load => {
                        prop_assert!(observed != Some(process));
                        prop_assert!(loaded.is_none_or(|loaded| now - loaded >= RELOAD_PAUSE));
                        (observed, loaded) = (Some(process), Some(now));
                    }
                }
            }
        }
    }
}
