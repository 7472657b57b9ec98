//! What to do when a domain changes and no hook is called: interfaces that come and go while it runs, a `virsh
//! domiftune`, metadata that change, an agent that was away.
//!
//! ```text
//!  states of the running domains ─┐
//!  owners at the agent ───────────┴─▶ Follower::look ─▶ put NAME, remove NAME ─▶ (the caller) ─▶ done, failed
//! ```
//!
//! The hook is faster in all that it is called for, and both may do the same: it comes out the same. What must not
//! happen is that a domain which has just been started, and has no state on disk yet, loses what its hook put. So
//! contracts go only after [`GRACE`] without a state.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// How long an owner may be without a running domain before its contracts are removed. Between the hook and the state
/// there is the start of a process.
pub const GRACE: Duration = Duration::from_secs(10);
/// How soon what failed is tried again.
pub const AGAIN: Duration = Duration::from_secs(5);

/// What is to be done for a domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Todo {
    /// Have the agent keep what its state says.
    Put(String),
    /// Have the agent forget it.
    Remove(String),
}

/// Knows what was done. `S` tells one version of a state from another.
#[derive(Debug)]
pub struct Follower<S> {
    running: BTreeMap<String, Known<S>>,
    /// Since when an owner is without a domain.
    orphans: BTreeMap<String, Instant>,
}

#[derive(Debug)]
struct Known<S> {
    done: Option<S>,
    /// When a version was tried in vain.
    failed: Option<(S, Instant)>,
}

impl<S> Default for Follower<S> {
    fn default() -> Self {
        Self { running: BTreeMap::new(), orphans: BTreeMap::new() }
    }
}

impl<S: Clone + Eq> Follower<S> {
    /// What there is to do. `states` are those of the running domains, `owners` the domains for which the agent keeps
    /// contracts.
    pub fn look(
        &mut self,
        now: Instant,
        states: &BTreeMap<String, S>,
        owners: &BTreeSet<String>,
    ) -> Vec<Todo> {
        self.running.retain(|name, _| states.contains_key(name));
        let mut todo = Vec::new();
        for (name, state) in states {
            let known = self.running.entry(name.clone()).or_insert(Known { done: None, failed: None });
            let waits = known.failed.as_ref().is_some_and(|(s, at)| s == state && now < *at + AGAIN);
            if known.done.as_ref() != Some(state) && !waits {
                todo.push(Todo::Put(name.clone()));
            }
        }
        self.orphans.retain(|name, _| owners.contains(name) && !states.contains_key(name));
        for name in owners.iter().filter(|name| !states.contains_key(*name)) {
            let since = *self.orphans.entry(name.clone()).or_insert(now);
            if now >= since + GRACE {
                todo.push(Todo::Remove(name.clone()));
            }
        }
        todo
    }

    /// A version of a state is in force.
    pub fn done(&mut self, name: &str, state: S) {
        self.running.insert(name.to_owned(), Known { done: Some(state), failed: None });
    }

    /// A version could not be had. Whether that is news.
    pub fn failed(&mut self, now: Instant, name: &str, state: S) -> bool {
        let known = self.running.entry(name.to_owned()).or_insert(Known { done: None, failed: None });
        let news = known.failed.as_ref().is_none_or(|(before, _)| *before != state);
        known.failed = Some((state, now));
        news
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
    fn each_version_is_put_once_and_what_failed_again() {
        let mut follower = Follower::default();
        let start = Instant::now();
        let put = || vec![Todo::Put("a".into())];
        assert_eq!(follower.look(start, &states(&[("a", 1)]), &set(&[])), put());
        assert!(follower.failed(start, "a", 1));
        assert_eq!(follower.look(start, &states(&[("a", 1)]), &set(&[])), []);
        assert_eq!(
            follower.look(start, &states(&[("a", 2)]), &set(&[])),
            put(),
            "another version is another try"
        );
        assert_eq!(follower.look(start + AGAIN, &states(&[("a", 1)]), &set(&[])), put());
        assert!(!follower.failed(start + AGAIN, "a", 1), "said already");
        follower.done("a", 1);
        assert_eq!(follower.look(start + 2 * AGAIN, &states(&[("a", 1)]), &set(&["a"])), []);
        // Stopped, and started again before anybody looked for long.
        assert_eq!(follower.look(start + 2 * AGAIN, &states(&[]), &set(&["a"])), []);
        assert_eq!(follower.look(start + 2 * AGAIN, &states(&[("a", 1)]), &set(&["a"])), put());
    }

    #[test]
    fn contracts_go_when_their_domain_has_been_gone_for_a_while() {
        let mut follower = Follower::default();
        let start = Instant::now();
        let remove = || vec![Todo::Remove("a".into())];
        assert_eq!(follower.look(start, &states(&[]), &set(&["a"])), []);
        assert_eq!(follower.look(start + GRACE, &states(&[]), &set(&["a"])), remove());
        assert_eq!(follower.look(start + GRACE, &states(&[]), &set(&["a"])), remove(), "until it is gone");
        assert_eq!(follower.look(start + GRACE, &states(&[]), &set(&[])), []);
        assert_eq!(follower.look(start + GRACE, &states(&[]), &set(&["a"])), [], "another of its name");
    }

    proptest! {
        /// No domain that runs, or ran less than the grace ago, loses its contracts.
        #[test]
        fn who_runs_keeps_its_contracts(steps in prop::collection::vec((any::<bool>(), 0_u64..12), 1..40)) {
            let mut follower = Follower::default();
            let mut now = Instant::now();
            let mut absent_since = None;
            for (runs, seconds) in steps {
                now += Duration::from_secs(seconds);
                let running = if runs { states(&[("a", 1)]) } else { states(&[]) };
                let removes = follower.look(now, &running, &set(&["a"])).contains(&Todo::Remove("a".into()));
                absent_since = if runs { None } else { absent_since.or(Some(now)) };
                prop_assert_eq!(removes, absent_since.is_some_and(|since| now >= since + GRACE));
            }
        }
    }
}
