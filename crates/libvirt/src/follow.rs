//! Reacts to changes of domains without a hook: interfaces that come and go at run time, a `virsh
//! domiftune`, changed metadata, an agent that was away.
//!
//! ```text
//!  states of the running domains ─┐
//!  owners at the agent ───────────┴─▶ Follower::look ─▶ put NAME, remove NAME ─▶ (the caller) ─▶ done, failed
//! ```
//!
//! Where the hook is called it is faster, and both may do the same, with the same result. A domain that has
//! just started, and has no state on disk yet, must not lose its hook's contracts. So contracts are removed
//! only after [`GRACE`] without a state.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// How long an owner may lack a running domain before its contracts are removed. A process starts between
/// the hook and the state.
pub const GRACE: Duration = Duration::from_secs(10);
/// Pause before a failed step is retried.
pub const RETRY_PAUSE: Duration = Duration::from_secs(5);

/// A step for a domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Gives the contracts of its state to the agent.
    Put(String),
    /// Removes its contracts from the agent.
    Remove(String),
}

/// Remembers the done steps. `S` identifies a version of a state.
#[derive(Debug)]
pub struct Follower<S> {
    running: BTreeMap<String, DomainState<S>>,
    /// The time since which each owner has no running domain.
    orphans: BTreeMap<String, Instant>,
}

#[derive(Debug)]
struct DomainState<S> {
    in_force: Option<S>,
    /// The version that failed, and the time.
    failed: Option<(S, Instant)>,
}

impl<S> Default for Follower<S> {
    fn default() -> Self {
        Self { running: BTreeMap::new(), orphans: BTreeMap::new() }
    }
}

impl<S: Clone + Eq> Follower<S> {
    /// Returns the due steps. `states` are those of the running domains, `owners` the domains with
    /// contracts at the agent.
    pub fn due_actions(
        &mut self,
        now: Instant,
        states: &BTreeMap<String, S>,
        owners: &BTreeSet<String>,
    ) -> Vec<Action> {
        self.running.retain(|name, _| states.contains_key(name));
        let mut due = Vec::new();
        for (name, state) in states {
            let known =
                self.running.entry(name.clone()).or_insert(DomainState { in_force: None, failed: None });
            let waits_for_retry =
                known.failed.as_ref().is_some_and(|(s, at)| s == state && now < *at + RETRY_PAUSE);
            if known.in_force.as_ref() != Some(state) && !waits_for_retry {
                due.push(Action::Put(name.clone()));
            }
        }
        self.orphans.retain(|name, _| owners.contains(name) && !states.contains_key(name));
        for name in owners.iter().filter(|name| !states.contains_key(*name)) {
            let since = *self.orphans.entry(name.clone()).or_insert(now);
            if now >= since + GRACE {
                due.push(Action::Remove(name.clone()));
            }
        }
        due
    }

    /// Notes that a version of a state is in force.
    pub fn note_in_force(&mut self, name: &str, state: S) {
        self.running.insert(name.to_owned(), DomainState { in_force: Some(state), failed: None });
    }

    /// Notes that a version failed; returns whether this is new.
    pub fn note_failure(&mut self, now: Instant, name: &str, state: S) -> bool {
        let known =
            self.running.entry(name.to_owned()).or_insert(DomainState { in_force: None, failed: None });
        let is_new = known.failed.as_ref().is_none_or(|(before, _)| *before != state);
        known.failed = Some((state, now));
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|n| (*n).to_owned()).collect()
    }

    fn states(states: &[(&str, u32)]) -> BTreeMap<String, u32> {
        states.iter().map(|(n, s)| ((*n).to_owned(), *s)).collect()
    }

    #[test]
    fn each_version_is_put_once_and_a_failed_one_again() {
        let mut follower = Follower::default();
        let start = Instant::now();
        let put = || vec![Action::Put("a".into())];
        assert_eq!(follower.due_actions(start, &states(&[("a", 1)]), &set(&[])), put());
        assert!(follower.note_failure(start, "a", 1));
        assert_eq!(follower.due_actions(start, &states(&[("a", 1)]), &set(&[])), []);
        assert_eq!(
            follower.due_actions(start, &states(&[("a", 2)]), &set(&[])),
            put(),
            "another version is another try"
        );
        assert_eq!(follower.due_actions(start + RETRY_PAUSE, &states(&[("a", 1)]), &set(&[])), put());
        assert!(!follower.note_failure(start + RETRY_PAUSE, "a", 1), "said already");
        follower.note_in_force("a", 1);
        assert_eq!(follower.due_actions(start + 2 * RETRY_PAUSE, &states(&[("a", 1)]), &set(&["a"])), []);
        // Stopped and restarted before anyone noticed.
        assert_eq!(follower.due_actions(start + 2 * RETRY_PAUSE, &states(&[]), &set(&["a"])), []);
        assert_eq!(follower.due_actions(start + 2 * RETRY_PAUSE, &states(&[("a", 1)]), &set(&["a"])), put());
    }

    #[test]
    fn contracts_go_when_their_domain_has_been_gone_for_a_while() {
        let mut follower = Follower::default();
        let start = Instant::now();
        let remove = || vec![Action::Remove("a".into())];
        assert_eq!(follower.due_actions(start, &states(&[]), &set(&["a"])), []);
        assert_eq!(follower.due_actions(start + GRACE, &states(&[]), &set(&["a"])), remove());
        assert_eq!(
            follower.due_actions(start + GRACE, &states(&[]), &set(&["a"])),
            remove(),
            "until it is gone"
        );
        assert_eq!(follower.due_actions(start + GRACE, &states(&[]), &set(&[])), []);
        assert_eq!(
            follower.due_actions(start + GRACE, &states(&[]), &set(&["a"])),
            [],
            "another of its name"
        );
    }

    proptest! {
        /// No domain that runs, or ran within the grace, loses its contracts.
        #[test]
        fn a_running_domain_keeps_its_contracts(steps in prop::collection::vec((any::<bool>(), 0_u64..12), 1..40)) {
            let mut follower = Follower::default();
            let mut now = Instant::now();
            let mut absent_since = None;
            for (runs, seconds) in steps {
                now += Duration::from_secs(seconds);
                let running = if runs { states(&[("a", 1)]) } else { states(&[]) };
                let removes = follower.due_actions(now, &running, &set(&["a"])).contains(&Action::Remove("a".into()));
                absent_since = if runs { None } else { absent_since.or(Some(now)) };
                prop_assert_eq!(removes, absent_since.is_some_and(|since| now >= since + GRACE));
            }
        }
    }
}
