//! The work of each half second: observe, report differences, repair them.

pub(super) use super::failure::Failure;
use super::keys::Reading;
use super::plans::{PlacePlan, Plans, plans};
use super::rates::Rates;
use super::{Reconciler, Seen, check::check};
use crate::commands::ApplyError;
use crate::views::PlaceView;
use std::collections::{BTreeSet, HashSet};
use std::time::{Duration, Instant};
use tidegate_evidence::{Evidence, total};
use tidegate_place::installed::{Look, Step};
use tidegate_place::{Action, Adopt, Effect};

/// Longest pause between attempts to bring one contract into force.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Stands for the host-wide settings among the failures; no vNIC may have this name.
const HOST: &str = "[host]";

impl Reconciler {
    pub(super) fn observe(&mut self) {
        (0..self.places.len()).for_each(|place| self.look_at(place));
        self.drift.see(Instant::now(), self.drift_repaired);
        for index in 0..self.places.len() {
            let problem = self.seen[index].as_ref().ok().and_then(|look| look.observed.problem.clone());
            self.problem(self.places[index].name(), problem);
        }
    }

    pub(super) fn look_at(&mut self, index: usize) {
        let (place, seen) = (&mut self.places[index], &mut self.seen[index]);
        let now = place.observe(&[]).map_err(|e| e.to_string());
        match (&now, &*seen) {
            (Err(why), Err(before)) if why == before => {}
            (Err(why), _) => tracing::warn!(place = place.name(), "{why}; its contracts are pending"),
            (Ok(_), _) => {}
        }
        let rates = &mut self.rates[index];
        match &now {
            Ok(Look { observed, .. }) => {
                let Evidence { workers, taken, .. } = &observed.evidence;
                if !workers.is_empty() {
                    self.loops_over_budget[index]
                        .see(*taken, total(workers.iter().map(|w| w.loops_over_budget)));
                }
                rates.sample(&observed.evidence);
                self.windows.sample(place.name(), observed);
            }
            // Old samples give no current rate.
            Err(_) => *rates = Rates::default(),
        }
        *seen = now;
    }

    /// Repairs each contract by itself: one that fails does not stop the others.
    pub(super) fn repair(&mut self) {
        let checked = match check(&self.contracts, &self.soft, &self.places, (&self.keys, Reading::Unknown)) {
            Ok(checked) => checked,
            Err(e) => {
                let text = match e {
                    ApplyError::Refused(why) => why.join("\n"),
                    other => other.to_string(),
                };
                return self
                    .problem("saved contracts", Some(format!("the saved contracts cannot be kept: {text}")));
            }
        };
        self.keep_keys(&checked);
        let named = self.contracts.by_name();
        let is_uplink = |name: &str| checked.network.uplinks.iter().any(|uplink| uplink.name == name);
        self.failures.retain(|name, _| name == HOST || named.contains_key(name.as_str()) || is_uplink(name));
        let looks = self.seen.iter().enumerate();
        let looks = looks.filter_map(|(index, seen)| Some((index, seen.as_ref().ok()?)));
        let Plans { by_place, claims, conflicts } = plans(&self.places, &checked, looks, Adopt::No);
        self.claims = claims;
        let problem = (!conflicts.is_empty())
            .then(|| format!("places need the same resource, and do not act: {}", conflicts.join("; ")));
        self.problem("claims", problem);
        // A place that keeps no uplinks has no step for one that is open elsewhere.
        let open: HashSet<&str> =
            by_place.iter().flat_map(|plan| &plan.steps).filter_map(|step| step.vnic()).collect();
        self.failures.retain(|name, _| !is_uplink(name) || open.contains(name.as_str()));
        for PlacePlan { place: index, steps, refusals, conflicts } in by_place {
            // A vNIC that is as wanted has no failure any more.
            let open: HashSet<&str> = refusals
                .iter()
                .map(|r| r.vnic.as_str())
                .chain(steps.iter().map(|a| a.vnic().unwrap_or(HOST)))
                .collect();
            let names = checked.by_place[index].iter().map(|vnic| &vnic.name);
            for name in names.filter(|name| !open.contains(name.as_str())) {
                self.failures.remove(name);
            }
            for refusal in refusals {
                self.failed(refusal.vnic, &refusal.reason);
            }
            if !conflicts.is_empty() {
                let at_place = |name: &&str| checked.by_place[index].iter().any(|v| v.name == *name);
                let concerned: BTreeSet<&str> = steps.iter().filter_map(|step| step.vnic()).collect();
                for name in concerned.into_iter().filter(|name| at_place(name)) {
                    self.failed(name.to_owned(), &conflicts.join("; "));
                }
                continue;
            }
            let mut touched = false;
            for step in steps {
                touched |= self.try_action(index, &step);
            }
            // Only this place: the others did not change, and one that hangs would delay again.
            if touched {
                self.places[index].accept(&checked.by_place[index]);
                self.look_at(index);
            }
        }
    }

    fn try_action(&mut self, place: usize, action: &Step) -> bool {
        let name = action.vnic().unwrap_or(HOST).to_owned();
        if self.failures.get(&name).is_some_and(|f| Instant::now() < f.retry_at) {
            return false;
        }
        let seen = self.seen[place].as_ref().ok();
        let found = seen.and_then(|look| look.observed.vnics.get(&name)?.broken.clone()).unwrap_or_default();
        let place = &mut self.places[place];
        match action.effect() {
            Effect::Repair => {
                tracing::warn!(
                    vnic = name,
                    "drift: another program changed its settings; repairing: {found}"
                );
            }
            // The place has another contract than the agent gave it: another program changed it.
            Effect::Change => {
                tracing::warn!(vnic = name, ?action, "drift: the contract in force differs; repairing");
            }
            Effect::Remove => tracing::warn!(vnic = name, "left over from an earlier change; removing it"),
            Effect::Create => tracing::info!(vnic = name, place = place.name(), "missing; making it"),
            // For example, dialling a front end that does not listen yet.
            Effect::Upkeep => {}
        }
        match place.apply(action) {
            Ok(()) => {
                if matches!(action.effect(), Effect::Repair | Effect::Change | Effect::Remove) {
                    self.drift_repaired += 1;
                }
                self.failures.remove(&name);
            }
            Err(e) => self.failed(name, &e.to_string()),
        }
        true
    }

    /// Counts a failure and doubles the pause before the next attempt; logs a reason once.
    pub(super) fn failed(&mut self, name: String, why: &str) {
        self.reconcile_errors += 1;
        let before = self.failures.remove(&name);
        if before.as_ref().is_none_or(|b| b.why != why) {
            tracing::error!(vnic = name, "cannot bring its contract into force, trying again: {why}");
        }
        let pause = before.map_or(super::TICK, |b| (b.pause * 2).min(LONGEST_PAUSE));
        self.failures.insert(name, Failure { why: why.into(), pause, retry_at: Instant::now() + pause });
    }
}

pub(super) fn place_view(name: &str, seen: &Seen) -> PlaceView {
    let (program, vnics, reason) = match seen {
        Ok(Look { observed, .. }) => {
            let present = observed.vnics.values().filter(|vnic| vnic.present).count();
            (observed.program.clone(), present, None)
        }
        Err(why) => (Default::default(), 0, Some(why.clone())),
    };
    PlaceView {
        name: name.into(),
        reachable: reason.is_none(),
        reason,
        version: program.version,
        pid: program.pid,
        started: program.started,
        vnics,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::store::Owner;
    use std::collections::BTreeMap;
    use std::path::Path;
    use std::sync::{Arc, Mutex};
    use tidegate_contract::{Attach, Vnic};
    use tidegate_evidence::{Connection, WorkerStats};
    use tidegate_place::difference::{Difference, differences};
    use tidegate_place::host::{Claim, Part, Resource};
    use tidegate_place::{
        Capabilities, ContractChange, Installed, Observed, ObservedVnic, Place, PlaceError, Plan, Refusal,
        Wanted,
    };
    use tidegate_testkit::contract::vnic;

    #[test]
    fn only_a_repair_with_few_failures_is_retried_at_once() {
        let now = Instant::now();
        let tried = |pause: Duration| {
            let mut failure = Failure { why: String::new(), pause, retry_at: now + pause };
            failure.try_at_once();
            failure.retry_at < now + pause
        };
        // Each failure doubles the pause.
        let pauses: Vec<_> = (0..6).map(|n| super::super::TICK * (1 << n)).collect();
        let at_once: Vec<_> = pauses.into_iter().map(tried).collect();
        assert_eq!(at_once, [true, true, true, false, false, false]);
    }

    /// The vNICs of a place, those that it cannot have any more, and its claims on the host.
    #[derive(Default)]
    pub(crate) struct There {
        vnics: BTreeMap<String, Vnic>,
        broken: BTreeSet<String>,
        refused: BTreeSet<String>,
        claims: Vec<Claim>,
        problem: Option<String>,
        loops_over_budget: Option<u64>,
    }

    pub(crate) struct FakePlace(pub &'static str, pub Arc<Mutex<There>>);

    impl Place for FakePlace {
        type Action = ContractChange;
        type Facts = ();

        fn name(&self) -> &'static str {
            self.0
        }

        fn unit(&self) -> &'static str {
            tidegate_place::AGENT
        }

        fn capabilities(&self, _: &Attach) -> Option<Capabilities> {
            Some(Capabilities { deadline: true, min: true, uplink: true, notes: vec![] })
        }

        fn notes(&self, _: &Vnic) -> Vec<String> {
            vec![]
        }

        fn plan(
            &self,
            wanted: &Wanted<'_>,
            observed: &Observed,
            (): &(),
        ) -> Result<Plan<ContractChange>, Vec<Refusal>> {
            let there = self.1.lock().unwrap();
            let is_new = |v: &&Vnic| observed.vnics.get(&v.name).is_none_or(|o| o.vnic != **v);
            let refused = wanted.vnics.iter().filter(|v| there.refused.contains(&v.name) && is_new(v));
            let refused: Vec<Refusal> =
                refused.map(|v| Refusal::new(&v.name, "the link is slower now")).collect();
            if !refused.is_empty() {
                return Err(refused);
            }
            let change = |difference| match difference {
                Difference::Missing(vnic) => Some(ContractChange::Create(vnic.clone())),
                Difference::Unwanted(there) => Some(ContractChange::Remove(there.vnic.clone())),
                Difference::Moved { from, to } | Difference::Changed { from, to } => {
                    Some(ContractChange::Change { from: from.vnic.clone(), to: to.clone() })
                }
                Difference::Same(there) => there
                    .broken
                    .as_ref()
                    .map(|_| ContractChange::Change { from: there.vnic.clone(), to: there.vnic.clone() }),
            };
            let all = differences(wanted.vnics, &observed.vnics, |_, _| true);
            let actions = all.into_iter().filter_map(change).collect();
            Ok(Plan { actions, claims: there.claims.clone() })
        }

        fn prepare(&mut self, _: &[&ContractChange]) -> Result<(), PlaceError> {
            Ok(())
        }

        fn apply(&mut self, action: &ContractChange) -> Result<(), PlaceError> {
            let mut there = self.1.lock().unwrap();
            match action {
                ContractChange::Create(vnic) | ContractChange::Change { to: vnic, .. } => {
                    there.broken.remove(&vnic.name);
                    there.vnics.insert(vnic.name.clone(), vnic.clone());
                }
                ContractChange::Remove(vnic) => drop(there.vnics.remove(&vnic.name)),
            }
            Ok(())
        }

        fn accept(&mut self, _: &[Vnic]) {}

        fn observe(&mut self, _: &[Vnic]) -> Result<(Observed, ()), PlaceError> {
            let there = self.1.lock().unwrap();
            let mut observed = Observed { problem: there.problem.clone(), ..Observed::nothing("a test") };
            let worker = |loops_over_budget| WorkerStats { loops_over_budget, ..WorkerStats::default() };
            observed.evidence.workers = there.loops_over_budget.map(worker).into_iter().collect();
            for (name, vnic) in &there.vnics {
                let broken = there.broken.contains(name).then(|| "another program changed it".to_owned());
                let seen = ObservedVnic { broken, ..ObservedVnic::of(vnic, Connection::Up) };
                observed.vnics.insert(name.clone(), seen);
            }
            Ok((observed, ()))
        }

        fn recorded(&self) -> Vec<Vnic> {
            vec![]
        }
    }

    pub(crate) fn agent(folder: &Path, places: impl IntoIterator<Item = FakePlace>) -> Reconciler {
        let places = places.into_iter().map(|place| Box::new(place) as Box<dyn Installed>).collect();
        let guests = tidegate_paths::Paths::new(&[], &[]).unwrap().guests;
        Reconciler::new(&folder.join("etc"), folder, guests, places).unwrap()
    }

    #[test]
    fn every_place_reports_its_problem_and_its_late_loops() {
        let folder = tempfile::tempdir().unwrap();
        let all = ["first", "second"].map(|name| (name, Arc::new(Mutex::new(There::default()))));
        let mut agent =
            agent(folder.path(), all.iter().map(|(name, there)| FakePlace(name, Arc::clone(there))));
        let look = |agent: &mut Reconciler, loops: [u64; 2]| {
            for ((name, there), loops) in all.iter().zip(loops) {
                let mut there = there.lock().unwrap();
                there.problem = Some(format!("the disk of {name} is full"));
                there.loops_over_budget = Some(loops);
            }
            agent.observe();
            agent.publish();
            agent.board().read()
        };
        let published = look(&mut agent, [100, 7]);
        assert_eq!(published.host.problems, ["the disk of first is full", "the disk of second is full"]);
        assert_eq!([0, 1].map(|place| agent.first_worker(Some(place))), [0, 1]);
        // The other place's lower counter is no new start of this one.
        assert_eq!(published.status.host_latency.recently_over_budget, 0);
        assert_eq!(look(&mut agent, [101, 9]).status.host_latency.recently_over_budget, 3);
    }

    #[test]
    fn places_with_conflicting_claims_repair_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let [first, second, third] =
            ["first", "second", "third"].map(|_| Arc::new(Mutex::new(There::default())));
        let mut agent = agent(
            folder.path(),
            [("first", &first), ("second", &second), ("third", &third)]
                .map(|(name, there)| FakePlace(name, Arc::clone(there))),
        );
        agent.apply(&vnic("a", 1).to_toml(), "test", &Owner::Api, false, Adopt::No, false).unwrap();
        let claim = |cpu, part| {
            vec![Claim { resource: Resource::Cpu(cpu), part, vnic: None, purpose: "its workers".into() }]
        };
        first.lock().unwrap().claims = claim(1, Part::All);
        second.lock().unwrap().claims = claim(1, Part::Shared);
        third.lock().unwrap().claims = claim(2, Part::All);
        first.lock().unwrap().broken.insert("a".into());
        // No contract names this vNIC.
        third.lock().unwrap().vnics.insert("b".into(), vnic("b", 2));
        let repaired = |agent: &mut Reconciler| {
            agent.failures.values_mut().for_each(Failure::try_at_once);
            agent.observe();
            agent.repair();
            first.lock().unwrap().broken.is_empty()
        };
        assert!(!repaired(&mut agent));
        assert_eq!(third.lock().unwrap().vnics.len(), 0, "a place without a conflict acts");
        assert!(agent.failures["a"].why.starts_with("CPU 1 is needed twice"), "{:?}", agent.failures);
        agent.publish();
        let problems = agent.board().read().host.problems.clone();
        assert!(
            problems[0].starts_with("places need the same resource, and do not act: CPU 1"),
            "{problems:?}"
        );
        second.lock().unwrap().claims.clear();
        assert!(repaired(&mut agent));
        assert!(agent.failures.is_empty() && agent.problems.is_empty(), "{:?}", agent.problems);
    }

    #[test]
    fn a_refused_vnic_does_not_stop_the_repair_of_others() {
        let folder = tempfile::tempdir().unwrap();
        let there = Arc::new(Mutex::new(There::default()));
        let mut agent = agent(folder.path(), [FakePlace("fake", there.clone())]);
        let text = [vnic("a", 1), vnic("b", 2), vnic("c", 3)].map(|vnic| vnic.to_toml()).concat();
        agent.apply(&text, "test", &Owner::Api, false, Adopt::No, false).unwrap();
        {
            // `a` differs from its contract, and `c` is gone; the place refuses both.
            let mut there = there.lock().unwrap();
            let other = Vnic { mtu: 9000, ..vnic("a", 1) };
            there.vnics.insert("a".into(), other);
            there.vnics.remove("c");
            there.refused.extend(["a".to_owned(), "c".to_owned()]);
            there.broken.insert("b".into());
        }
        agent.observe();
        agent.repair();
        let there = there.lock().unwrap();
        assert!(there.broken.is_empty(), "b is put right");
        assert_eq!(there.vnics["a"].mtu, 9000, "what is in force stays");
        assert_eq!(agent.failures.keys().collect::<Vec<_>>(), ["a", "c"]);
        assert_eq!(there.vnics.keys().collect::<Vec<_>>(), ["a", "b"]);
    }
}
