//! When settings are set, and checked again. Pure.

use crate::target::Target;
use std::time::Duration;

/// Interval of rechecks: changes by other programs are found, failed writes are tried again.
pub const LOOK: Duration = Duration::from_secs(10);
/// Least pause between changes, however often the switch's answers change: each costs system calls for each
/// setting, and a write to disk.
pub const SHORTEST_PAUSE: Duration = Duration::from_secs(2);

/// The last settling.
#[derive(Clone, Debug, Default)]
pub struct Settled {
    /// Its target.
    pub target: Target,
    /// The time since; `None` before the first.
    pub ago: Option<Duration>,
    /// Whether it left nothing: no setting is on record, and none failed.
    pub is_clean: bool,
}

impl Settled {
    /// Returns the target if it is to be settled now. The first one is, also if it is empty: the switch is told so.
    pub fn due(&self, target: Target) -> Option<Target> {
        if self.is_clean && self.ago.is_some() && target == Target::default() && target == self.target {
            return None;
        }
        let pause = if target == self.target { LOOK } else { SHORTEST_PAUSE };
        self.ago.is_none_or(|ago| ago >= pause).then_some(target)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changing_reports_of_a_switch_are_followed_at_a_limited_pace() {
        let target = |cpu| Target { own: [cpu].into(), ..Target::default() };
        let is_due = |ago: Option<Duration>, to| {
            let settled = Settled { target: target(1), ago, is_clean: false };
            settled.due(to).is_some()
        };
        let moment = Duration::from_millis(1);
        assert!(is_due(None, target(1)) && is_due(None, target(2)));
        assert!(is_due(Some(SHORTEST_PAUSE), target(2)) && !is_due(Some(SHORTEST_PAUSE - moment), target(2)));
        assert!(is_due(Some(LOOK), target(1)) && !is_due(Some(LOOK - moment), target(1)));
        assert!(is_due(Some(SHORTEST_PAUSE), Target::default()));
    }

    #[test]
    fn nothing_is_due_where_nothing_is_set_and_nothing_is_wanted() {
        let clean = Settled { is_clean: true, ago: Some(LOOK), ..Settled::default() };
        assert_eq!(clean.due(Target::default()), None);
        // An earlier agent may have directed the switch.
        assert!(Settled { ago: None, ..clean.clone() }.due(Target::default()).is_some());
        // The record of an earlier agent, or a setting that could not be put back.
        assert!(Settled { is_clean: false, ..clean }.due(Target::default()).is_some());
    }
}
