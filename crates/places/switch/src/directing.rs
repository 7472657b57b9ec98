//! Whether directions are to be passed to the switch, and its report on them. Pure.
//!
//! ```text
//!  wanted directions, those that the switch reports ─▶ due: they differ, and it is time ─▶ SwitchAction::Direct
//!  the switch's report, refusals ─▶ not_followed
//! ```
//!
//! A switch that reports other directions than it was given is given them again each [`AGAIN`]: it cannot make the agent busy.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tidegate_cores::directions::Directions;
use tidegate_cores::stage::Handle;
use tidegate_switch::control::WorkStatus;

/// Shortest pause between directions.
const PAUSE: Duration = Duration::from_secs(2);
/// Pause before the same directions are passed again: the switch refused or lost them.
const AGAIN: Duration = Duration::from_secs(10);
/// A refusal is told for this long: as long as the same directions are wanted, they are passed again before.
const REFUSED: Duration = Duration::from_secs(20);
/// Interval of questions for the switch's report.
const LOOK: Duration = Duration::from_secs(2);

/// Why a worker's CPU is not the plan's.
const CPUS_PINNED: &str = "the option --cpus of tidegate switch";
/// Why a vNIC's worker is not the plan's.
const WORKERS_PINNED: &str = "the option --placement of tidegate switch";
/// Why neither is.
const EARLIER_RELEASE: &str =
    "the switch, of an earlier release that takes no directions (upgrade it: tidegate switch --replace)";

/// The state of the conversation about directions.
#[derive(Debug, Default)]
pub struct Directing {
    /// Start of the switch process.
    process: u64,
    /// Whether it takes directions; `None` before the first look.
    takes: Option<bool>,
    /// Its last report, and when it came.
    status: Option<(Instant, WorkStatus)>,
    /// The last directions passed, when, and its refusal.
    sent: Option<(Directions, Instant, Option<String>)>,
}

/// The facts of one look.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// The directions that the switch reports; `None` if it takes none.
    pub reported: Option<Directions>,
    /// The last directions passed to it, and how long ago.
    pub sent: Option<(Directions, Duration)>,
}

impl Facts {
    /// Returns the wanted directions if they are to be passed now; without wanted ones the switch keeps those that it has.
    pub fn due(&self, wanted: Option<&Directions>) -> Option<Directions> {
        let (reported, wanted) = (self.reported.as_ref()?, wanted?);
        let is_early =
            self.sent.as_ref().is_some_and(|(sent, ago)| *ago < if sent == wanted { AGAIN } else { PAUSE });
        (reported != wanted && !is_early).then(|| wanted.clone())
    }
}

impl Directing {
    /// Notes the switch process that answers, and whether it takes directions; returns whether to ask for its report.
    pub fn see(&mut self, now: Instant, process: u64, takes: bool) -> bool {
        if std::mem::replace(&mut self.process, process) != process {
            *self = Self { process, ..Self::default() };
        }
        self.takes = Some(takes);
        takes && self.status.as_ref().is_none_or(|(at, _)| now.saturating_duration_since(*at) >= LOOK)
    }

    /// Notes the switch's report.
    pub fn reported(&mut self, now: Instant, status: WorkStatus) {
        self.status = Some((now, status));
    }

    /// Notes directions that were passed, and why the switch refused them.
    pub fn sent(&mut self, now: Instant, directions: &Directions, refusal: Option<String>) {
        if refusal.is_none()
            && let Some((_, status)) = &mut self.status
        {
            // The next report says whether it is so.
            status.directions = directions.clone();
        }
        self.sent = Some((directions.clone(), now, refusal));
    }

    /// Returns the facts for the next plan.
    pub fn facts(&self, now: Instant) -> Facts {
        let ago = |at: &Instant| now.saturating_duration_since(*at);
        Facts {
            reported: self.status().map(|status| status.directions.clone()),
            sent: self.sent.as_ref().map(|(directions, at, _)| (directions.clone(), ago(at))),
        }
    }

    /// Returns the switch's last report.
    pub fn status(&self) -> Option<&WorkStatus> {
        self.status.as_ref().map(|(_, status)| status)
    }

    /// Returns the option that binds workers to CPUs, or another reason for which no direction reaches them.
    pub fn cpus_pinned(&self) -> Option<&'static str> {
        self.pinned(|status| status.chooses_cpus, CPUS_PINNED)
    }

    /// Returns the option that keeps vNICs at their workers, or another reason for which no direction reaches them.
    pub fn workers_pinned(&self) -> Option<&'static str> {
        self.pinned(|status| status.chooses_workers, WORKERS_PINNED)
    }

    fn pinned(&self, chooses: impl Fn(&WorkStatus) -> bool, option: &'static str) -> Option<&'static str> {
        match (self.takes, self.status()) {
            (Some(false), _) => Some(EARLIER_RELEASE),
            (_, Some(status)) if !chooses(status) => Some(option),
            _ => None,
        }
    }

    /// Returns the directions that the switch refused, if they are wanted still, and its reason.
    fn refused(&self, now: Instant) -> Option<(&Directions, &str)> {
        let (directions, at, refusal) = self.sent.as_ref()?;
        let is_wanted = now.saturating_duration_since(*at) < REFUSED;
        Some((directions, refusal.as_deref().filter(|_| is_wanted)?))
    }

    /// Returns why a vNIC is not at the worker directed.
    pub fn not_followed_by(&self, now: Instant, vnic: &str) -> Option<&str> {
        let refused = self.refused(now).filter(|(directions, _)| directions.vnics.contains_key(vnic));
        refused
            .map(|(_, why)| why)
            .or_else(|| self.status()?.not_followed.vnics.get(vnic).map(String::as_str))
    }

    /// Returns the directions that the switch does not follow, with the reasons.
    pub fn not_followed(&self, now: Instant) -> BTreeMap<Handle, String> {
        let mut all = BTreeMap::new();
        if let Some(status) = self.status() {
            let not_followed = &status.not_followed;
            all.extend(
                not_followed.workers.iter().map(|(worker, why)| (Handle::Worker(*worker), why.clone())),
            );
            all.extend(
                not_followed.vnics.iter().map(|(vnic, why)| (Handle::Port(vnic.clone()), why.clone())),
            );
        }
        if let Some((directions, refusal)) = self.refused(now) {
            let workers = directions.workers.keys().map(|worker| Handle::Worker(*worker));
            let all_of_it = workers.chain(directions.vnics.keys().cloned().map(Handle::Port));
            all.extend(all_of_it.map(|handle| (handle, refusal.to_owned())));
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_switch::control::message::NotFollowed;

    fn directions(cpu: usize) -> Directions {
        Directions { workers: [(0, cpu)].into(), vnics: [("a".to_owned(), 0)].into() }
    }

    fn report(directions: Directions) -> WorkStatus {
        WorkStatus { directions, chooses_cpus: true, chooses_workers: true, ..WorkStatus::default() }
    }

    #[test]
    fn directions_are_passed_until_the_switch_reports_them() {
        let (mut directing, begin) = (Directing::default(), Instant::now());
        assert_eq!(directing.facts(begin).due(Some(&directions(1))), None, "before the first look");
        assert!(directing.see(begin, 1, true));
        directing.reported(begin, report(Directions::default()));
        assert!(!directing.see(begin, 1, true), "not at each look");
        assert_eq!(directing.facts(begin).due(Some(&Directions::default())), None);
        assert_eq!(directing.facts(begin).due(Some(&directions(1))), Some(directions(1)));
        directing.sent(begin, &directions(1), None);
        assert_eq!(directing.facts(begin).due(Some(&directions(1))), None);
        assert_eq!(directing.facts(begin).due(Some(&directions(2))), None, "too early");
        assert_eq!(directing.facts(begin + PAUSE).due(Some(&directions(2))), Some(directions(2)));
        assert_eq!(
            directing.facts(begin + PAUSE).due(Some(&Directions::default())),
            Some(Directions::default())
        );
        assert_eq!(directing.facts(begin + PAUSE).due(None), None);
        // Another process, after a restart, has none.
        assert!(directing.see(begin, 2, true));
        directing.reported(begin, report(Directions::default()));
        assert_eq!(directing.facts(begin).due(Some(&directions(1))), Some(directions(1)));
    }

    #[test]
    fn a_switch_that_always_reports_others_is_given_them_seldom() {
        let (mut directing, begin) = (Directing::default(), Instant::now());
        let mut passed = 0;
        for look in 0..200_u64 {
            let now = begin + Duration::from_millis(500) * look as u32;
            if directing.see(now, 1, true) {
                directing.reported(now, report(directions(look as usize + 7)));
            }
            if let Some(due) = directing.facts(now).due(Some(&directions(1))) {
                directing.sent(now, &due, (look % 2 == 0).then(|| "no".into()));
                passed += 1;
            }
        }
        assert_eq!(passed, 10, "in 100 s");
    }

    #[test]
    fn reasons_are_those_of_the_switch_and_of_its_release() {
        let (mut directing, now) = (Directing::default(), Instant::now());
        assert_eq!(directing.cpus_pinned(), None);
        assert!(!directing.see(now, 1, false), "it would not understand the question");
        assert_eq!(
            (directing.cpus_pinned(), directing.workers_pinned()),
            (Some(EARLIER_RELEASE), Some(EARLIER_RELEASE))
        );
        assert_eq!(directing.facts(now).due(Some(&directions(1))), None);
        directing.see(now, 2, true);
        let not_followed = NotFollowed { workers: [(0, "offline".into())].into(), ..NotFollowed::default() };
        directing.reported(now, WorkStatus { not_followed, chooses_cpus: true, ..WorkStatus::default() });
        assert_eq!((directing.cpus_pinned(), directing.workers_pinned()), (None, Some(WORKERS_PINNED)));
        assert_eq!(directing.not_followed(now), BTreeMap::from([(Handle::Worker(0), "offline".into())]));
        directing.sent(now, &directions(1), Some("there is no worker 0".into()));
        let all = directing.not_followed(now);
        assert_eq!((all.len(), all[&Handle::Port("a".into())].as_str()), (2, "there is no worker 0"));
        assert_eq!(
            (directing.not_followed_by(now, "a"), directing.not_followed_by(now, "b")),
            (Some("there is no worker 0"), None)
        );
        // They were not passed again: others are wanted by now.
        let later = now + REFUSED;
        assert_eq!((directing.not_followed(later).len(), directing.not_followed_by(later, "a")), (1, None));
        directing.sent(now, &directions(1), None);
        assert_eq!(directing.not_followed(now).len(), 1);
    }
}
