//! Stages that could not be put where the plan wanted them: the next plan leaves them where they are.
//!
//! ```text
//!  faults of settings, directions that the switch does not follow ─▶ Immovable ─▶ question: such a stage is pinned
//!                                                  scope, clock ─────────┘
//! ```
//!
//! A stage that is left alone has no setting, and so no fault any more: the fault is remembered, for [`AGAIN`] or until the contracts
//! change. Then the stage is tried again.

use crate::settled::LOOK;
use crate::watched::Scope;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_cores::stage::Handle;

/// Pause before a stage is tried again.
const AGAIN: Duration = Duration::from_secs(300);

/// Stages with lasting faults.
#[derive(Debug, Default)]
pub struct Immovable {
    scope: Option<Arc<Scope>>,
    stages: BTreeMap<Handle, Fault>,
}

/// Why a stage is not where it shall be.
#[derive(Debug)]
struct Fault {
    why: String,
    /// When it was first seen.
    first: Instant,
    /// When it had lasted for [`LOOK`], so that no move under way explains it.
    lasting: Option<Instant>,
}

impl Immovable {
    /// Takes the faults of a look at `now` in.
    pub fn see(&mut self, now: Instant, scope: Option<&Arc<Scope>>, faults: &BTreeMap<Handle, String>) {
        if self.scope.as_ref() != scope {
            (self.scope, self.stages) = (scope.cloned(), BTreeMap::new());
        }
        let since = |at: Instant| now.saturating_duration_since(at);
        self.stages.retain(|handle, fault| match fault.lasting {
            Some(at) => since(at) < AGAIN,
            None => faults.contains_key(handle),
        });
        for (handle, why) in faults {
            let new = || Fault { why: String::new(), first: now, lasting: None };
            let fault = self.stages.entry(handle.clone()).or_insert_with(new);
            fault.why.clone_from(why);
            if since(fault.first) >= LOOK {
                fault.lasting.get_or_insert(now);
            }
        }
    }

    /// Returns the stages to be left where they are, with the reasons.
    pub fn stages(&self) -> BTreeMap<Handle, String> {
        let lasting = self.stages.iter().filter(|(_, fault)| fault.lasting.is_some());
        lasting.map(|(handle, fault)| (handle.clone(), fault.why.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lasting_fault_counts_for_five_minutes_or_until_the_contracts_change() {
        let (mut immovable, begin) = (Immovable::default(), Instant::now());
        let fault = BTreeMap::from([(Handle::Worker(0), "no".to_owned())]);
        let none = BTreeMap::new();
        let scope = Arc::new(Scope::default());
        let mut look = |after: Duration, scope: &Arc<Scope>, faults: &BTreeMap<_, _>| {
            immovable.see(begin + after, Some(scope), faults);
            immovable.stages()
        };
        assert_eq!(look(Duration::ZERO, &scope, &fault), none);
        // A move that was under way.
        assert_eq!(look(LOOK / 2, &scope, &none), none);
        assert_eq!(look(LOOK, &scope, &fault), none);
        assert_eq!(look(LOOK * 2, &scope, &fault), fault);
        // The plan leaves it alone: nothing fails any more.
        assert_eq!(look(LOOK * 2 + AGAIN / 2, &scope, &none), fault);
        assert_eq!(look(LOOK * 2 + AGAIN, &scope, &none), none);
        assert_eq!(look(AGAIN * 2, &scope, &fault), none);
        assert_eq!(look(AGAIN * 2 + LOOK, &scope, &fault), fault);
        let mut host = tidegate_contract::Host::default();
        host.cores.adopt = true;
        let other = Arc::new(Scope { host, ..Scope::default() });
        assert_eq!(look(AGAIN * 2 + LOOK, &other, &none), none);
    }
}
