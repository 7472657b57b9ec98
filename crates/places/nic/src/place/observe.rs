//! What is in force: what the NICs say, beside what this place was told.

use super::NicPlace;
use super::engine::{Loops, Task};
use super::function::{address, function};
pub(super) use super::seen::Seen;
use super::shared_link::{SharedLink, SharedLinks};
use super::statistics;
use super::terms::{by_nic, groups, terms};
use crate::counters::Counted;
use crate::device::group::PREFIX;
use crate::device::{Ability, Function, Pf, Plan, Set, Step, VfRefusal, plan, plan_groups};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use tidegate_contract::{Host, Nic as Settings, Rate, Vnic};
use tidegate_evidence::Connection;
use tidegate_place::{Observed, ObservedVnic, PlaceError};

impl NicPlace {
    /// [`tidegate_place::Place::observe`].
    pub(super) fn look(&mut self, coming: &[Vnic]) -> Result<(Observed, SharedLinks), PlaceError> {
        let (mut observed, mut links) = (Observed::nothing("the NIC"), SharedLinks::new());
        // A limit that a loop sets during the look would be taken for drift.
        let shared = self.engine.shared();
        let mut loops = shared.lock();
        self.coming.clear();
        self.seen.clear();
        observed.problem = self.record.save().err().map(record_problem);
        observed.host = self.settings.clone().map(|nic| Host { nic, ..Host::default() });
        observed.evidence.taken = Instant::now();
        let in_force: Vec<Vnic> = self.contracts();
        let (in_force, new) = (by_nic(&in_force), by_nic(coming));
        for name in in_force.keys().chain(new.keys()).collect::<BTreeSet<_>>() {
            let [in_force, new] =
                [&in_force, &new].map(|by| by.get(name).map(Vec::as_slice).unwrap_or_default());
            let seen = self.see(name)?;
            if let Some(seen) = &seen {
                links.insert((*name).to_owned(), seen.link.clone());
                self.set_loop(in_force, seen, &mut loops);
            }
            self.observe_in_force(name, in_force, seen.as_ref(), &loops, &mut observed)?;
            for vnic in new {
                let obstacle = self.obstacle(vnic, name, seen.as_ref());
                observed.obstacles.extend(obstacle.map(|why| (vnic.name.clone(), why)));
            }
            self.seen.extend(seen.map(|seen| ((*name).to_owned(), seen)));
        }
        loops.retain(|pf| in_force.contains_key(pf));
        drop(loops);
        self.engine.start();
        Ok((observed, links))
    }

    /// The present state of a NIC, its abilities, and its link; `None` if no such NIC exists.
    pub(super) fn see(&mut self, name: &str) -> Result<Option<Seen>, PlaceError> {
        let Some(pf) = self.conversation.ask(|nic| nic.observe(name))? else { return Ok(None) };
        let (abilities, speed) = self.known(&pf)?;
        let lacks_min = match &abilities.min_rate {
            Ability::Has => None,
            Ability::Lacks(why) | Ability::Unknown(why) => Some(why.clone()),
        };
        let groups = abilities.node == Ability::Has;
        let link = SharedLink { speed, lacks_min, groups };
        Ok(Some(Seen { pf, abilities, link, at: Instant::now() }))
    }

    /// Starts, changes or ends the NIC's loop for these contracts. No loop runs before the settings are known.
    pub(super) fn set_loop(&mut self, vnics: &[&Vnic], seen: &Seen, loops: &mut Loops) {
        let name = &seen.pf.name;
        let settings = self.settings_of(name);
        let terms = self.settings.as_ref().and_then(|_| terms(vnics, &settings, &seen.link));
        let task = terms.map(|terms| Task {
            terms,
            period: Duration::from_nanos(settings.period.get()),
            pf: seen.pf.clone(),
            abilities: seen.abilities.clone(),
            keeps_min: seen.link.lacks_min.is_none(),
        });
        match loops.set(name, task) {
            Ok(()) => drop(self.refused_loops.remove(name)),
            Err(why) => drop(self.refused_loops.insert(name.clone(), why)),
        }
    }

    /// The steps that a NIC needs, with the limits of the loop where one runs. Keys that no NIC can enforce
    /// were refused before.
    pub(super) fn wanted_plan(settings: &Settings, vnics: &[&Vnic], seen: &Seen, loops: &Loops) -> Plan {
        let pf = &seen.pf;
        let runs = loops.runs(&pf.name);
        let wish = |vnic: &&Vnic| {
            let mut wanted = function(vnic).ok().flatten()?;
            if seen.link.lacks_min.is_some() {
                wanted.tx_min = None;
            }
            if runs {
                let present = pf.vfs.get(&wanted.index).and_then(|vf| vf.limit());
                let last =
                    loops.limit(&pf.name, wanted.index).unwrap_or_else(|| initial_limit(vnic, present));
                // A contract, or the link, that is less now is so at once.
                let limit = [vnic.tx.max, pf.speed].into_iter().flatten().fold(last, Rate::min);
                wanted.tx_max = Some(limit);
                // What is lent of a minimum is lent by its limit.
                wanted.tx_min = wanted.tx_min.map(|min| min.min(limit));
            }
            Some(wanted)
        };
        let functions: Vec<Function> = vnics.iter().filter_map(wish).collect();
        let mut plan = plan(&functions, pf, &seen.abilities);
        if seen.link.groups {
            let groups = groups(vnics, settings, &seen.link);
            let of_groups = plan_groups(&groups, pf, &seen.abilities);
            plan.steps.extend(of_groups.steps);
            for (name, reason) in of_groups.refusals {
                let vfs = groups.iter().find(|g| g.name == name).map(|g| g.vfs.clone()).unwrap_or_default();
                let reason =
                    |vf| VfRefusal { vf, reason: format!("the aggregate of segment {name}: {reason}") };
                plan.refusals.extend(vfs.into_iter().map(reason));
            }
        }
        plan
    }

    fn observe_in_force(
        &mut self,
        name: &str,
        vnics: &[&Vnic],
        seen: Option<&Seen>,
        loops: &Loops,
        observed: &mut Observed,
    ) -> Result<(), PlaceError> {
        let Some(seen) = seen else {
            for vnic in vnics {
                let mut state = ObservedVnic::of(vnic, Connection::Up);
                state.connection = Connection::Disconnected;
                state.pending = Some(no_nic(name));
                observed.vnics.insert(vnic.name.clone(), state);
            }
            return Ok(());
        };
        if vnics.is_empty() {
            return Ok(());
        }
        let counted = self.conversation.counters(&seen.pf)?;
        let plan = Self::wanted_plan(&self.settings_of(name), vnics, seen, loops);
        let unlimited = unlimited_functions(&seen.pf, vnics);
        for vnic in vnics {
            let Some((_, index)) = address(vnic) else { continue };
            let mut state = ObservedVnic::of(vnic, Connection::Up);
            let refused = plan.refusals.iter().filter(|r| r.vf == index).map(|r| &r.reason);
            let pending = plan.pending.iter().filter(|p| p.vf == index).map(|p| &p.reason);
            let waits: Vec<String> = refused.chain(pending).cloned().collect();
            state.pending = (!waits.is_empty()).then(|| waits.join("; "));
            match seen.pf.vfs.get(&index) {
                None => state.connection = Connection::Disconnected,
                Some(_) if !seen.pf.carrier => state.connection = Connection::Connected,
                Some(_) => {}
            }
            let first = vnics.first().is_some_and(|first| first.name == vnic.name);
            let mut steps = plan.steps.iter();
            let step = steps.find(|step| concerns(step, vnic) || (first && concerns_none(step, vnics)));
            // Before the settings are known, it is not known what its loop would have set.
            let step = step.filter(|_| self.settings.is_some());
            state.broken =
                step.map(|step| format!("its function differs from its contract; the next step: {step}"));
            state.notes.extend(plan.notes.iter().filter(|n| n.vf == index).map(|n| n.text.clone()));
            state.notes.extend(self.notes_of_loop(vnic, name, loops, unlimited.as_deref()));
            state.notes.extend(state.broken.clone());
            if let Some(counted) = counted.get(&index) {
                enter(vnic, counted, observed, &mut state);
            }
            observed.vnics.insert(vnic.name.clone(), state);
        }
        Ok(())
    }

    /// Notes about the loop that sets a function's limit.
    fn notes_of_loop(&self, vnic: &Vnic, name: &str, loops: &Loops, unlimited: Option<&str>) -> Vec<String> {
        if let Some(why) = self.refused_loops.get(name) {
            return vec![format!("the loop of {name} does not run: {why}")];
        }
        let Some((_, index)) = address(vnic) else { return vec![] };
        let (Some((period, trouble)), Some(standing)) = (loops.pace(name), loops.standing(name, index))
        else {
            return vec![];
        };
        let set = standing.limit.map_or_else(|| "no limit yet".into(), |limit| format!("{limit}"));
        let mut notes =
            vec![format!("the loop of {name}, every {period:.0?}, has set {set}: {}", standing.reason)];
        notes.extend(trouble.map(|why| format!("the loop of {name} has a problem: {why}")));
        notes.extend(unlimited.filter(|_| vnic.tx.min.is_some()).map(str::to_owned));
        notes
    }

    /// The obstacle to a contract that is coming; notes the present settings of its function.
    fn obstacle(&mut self, vnic: &Vnic, name: &str, seen: Option<&Seen>) -> Option<String> {
        let Some(seen) = seen else { return Some(no_nic(name)) };
        // What is wrong with the contract itself, the plan says.
        let mut wanted = function(vnic).ok().flatten()?;
        if seen.link.lacks_min.is_some() {
            wanted.tx_min = None;
        }
        if let Some(vf) = seen.pf.vfs.get(&wanted.index) {
            self.coming.insert(vnic.name.clone(), wanted.before(vf));
        }
        plan(&[wanted], &seen.pf, &seen.abilities).refusals.into_iter().map(|r| r.reason).next()
    }
}

/// Whether the vNIC has wrong limits until the step is done.
fn concerns(step: &Step, vnic: &Vnic) -> bool {
    match &step.set {
        Set::NewNode { node }
        | Set::Node { node, .. }
        | Set::NodeParent { node, .. }
        | Set::DeleteNode { node } => {
            node.strip_prefix(PREFIX).is_some_and(|name| name == vnic.segment.to_string())
        }
        _ => address(vnic).is_some_and(|(_, index)| step.vf() == Some(index)),
    }
}

/// Whether the step concerns no vNIC: it removes a leftover of a contract that ended.
fn concerns_none(step: &Step, vnics: &[&Vnic]) -> bool {
    !vnics.iter().any(|vnic| concerns(step, vnic))
}

/// The limit of a function before its loop sets one: its present limit if that is low enough, else its promise.
fn initial_limit(vnic: &Vnic, present: Option<Rate>) -> Rate {
    let least = Rate::from_bits(1_000_000).unwrap_or(Rate::MAX);
    let most = vnic.tx.max.unwrap_or(Rate::MAX);
    present.filter(|limit| *limit <= most).unwrap_or(vnic.tx.min.unwrap_or(least).max(least).min(most))
}

/// Functions that no contract limits, in words.
fn unlimited_functions(pf: &Pf, vnics: &[&Vnic]) -> Option<String> {
    let is_known = |index: u16| vnics.iter().any(|v| address(v).is_some_and(|(_, i)| i == index));
    let free = pf.vfs.iter().filter(|(index, vf)| !is_known(**index) && vf.limit().is_none());
    let free: Vec<String> = free.map(|(index, _)| index.to_string()).collect();
    (!free.is_empty()).then(|| {
        format!(
            "functions of {} without a contract are not limited, and the traffic that they send is missing for this \
             vNIC: VF {}",
            pf.name,
            free.join(", ")
        )
    })
}

fn no_nic(name: &str) -> String {
    format!(
        "{name} is no NIC with virtual functions: there is no such interface, or its driver has none; see ip link"
    )
}

/// Enters the counters of a function, with notes about doubts.
fn enter(vnic: &Vnic, counted: &Counted, observed: &mut Observed, state: &mut ObservedVnic) {
    let (stats, figures) = statistics::of(vnic, counted);
    if let Some((stats, unknown)) = stats {
        observed.evidence.vnics.insert(vnic.name.clone(), stats);
        observed.evidence.unknown.insert(vnic.name.clone(), unknown);
    }
    observed.evidence.figures.insert(vnic.name.clone(), figures);
    state.notes.extend(statistics::doubts(counted));
}

/// The problem that the record cannot be written.
fn record_problem(error: tidegate_durable::DurableError) -> String {
    format!("no change can be made: {error}")
}
