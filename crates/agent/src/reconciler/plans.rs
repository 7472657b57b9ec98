//! The plans of all places, in the order of the places, and whether the places agree. Pure.
//!
//! ```text
//!  place 1: plan ─▶ steps, claims ─▶ place 2: plan beside these claims ─▶ ... ─▶ agree ─▶ Plans: all, before any place acts
//! ```

use super::check::Checked;
use std::collections::HashSet;
use tidegate_contract::Vnic;
use tidegate_place::host::{self, Claim, Conflict};
use tidegate_place::installed::{Look, Step};
use tidegate_place::{Action, Adopt, HostWork, Installed, Plan, Refusal, Wanted};

/// The plan of one place.
#[derive(Debug)]
pub(super) struct PlacePlan {
    /// The index of the place.
    pub place: usize,
    /// The steps for the contracts that the place does not refuse.
    pub steps: Vec<Step>,
    /// The contracts that the place refuses.
    pub refusals: Vec<Refusal>,
    /// Conflicts with the claims of other places, in words. With one, the place must not act.
    pub conflicts: Vec<String>,
}

/// The plans of all places that answer.
#[derive(Debug, Default)]
pub(super) struct Plans {
    /// In the order of the places.
    pub by_place: Vec<PlacePlan>,
    /// Claims on the host, each with the index of its place.
    pub claims: Vec<(usize, Claim)>,
    /// Conflicts between the claims, in words.
    pub conflicts: Vec<String>,
}

/// Plans each place of `looks` in turn, beside the claims of the places before it, and compares the claims of all.
pub(super) fn plans<'a>(
    places: &[Box<dyn Installed>],
    checked: &'a Checked,
    looks: impl IntoIterator<Item = (usize, &'a Look)>,
    adopt: Adopt,
) -> Plans {
    let mut plans = Plans::default();
    let looks: Vec<_> = looks.into_iter().collect();
    let work = host_work(checked, looks.iter().map(|(_, look)| *look));
    for (index, look) in looks {
        let (place, vnics) = (&*places[index], &checked.by_place[index]);
        let taken = before(&plans.claims, index);
        let (host, network, claims) = (&checked.host, &checked.network, taken.as_slice());
        let wanted = Wanted { host, network, vnics, adopt, claims, work: &work };
        let (Plan { actions, claims }, refusals) = match place.plan(&wanted, look) {
            Ok(plan) => (plan, vec![]),
            Err(refusals) => (plan_without_refused(place, wanted, look, &refusals), refusals),
        };
        plans.claims.extend(claims.into_iter().map(|claim| (index, claim)));
        plans.by_place.push(PlacePlan { place: index, steps: actions, refusals, conflicts: vec![] });
    }
    for conflict in conflicts(places, &plans.claims) {
        let concerned =
            plans.by_place.iter_mut().filter(|p| conflict.places.contains(places[p.place].name()));
        concerned.for_each(|plan| plan.conflicts.push(conflict.reason.clone()));
        plans.conflicts.push(conflict.reason);
    }
    plans
}

/// Returns the work of all places: what they saw at one look.
fn host_work<'a>(checked: &'a Checked, looks: impl Iterator<Item = &'a Look>) -> HostWork<'a> {
    let mut work = HostWork {
        contracts: checked.by_place.iter().flatten().collect(),
        written: checked.written.iter().collect(),
        ..HostWork::default()
    };
    for Look { observed, .. } in looks {
        work.stages.extend(&observed.stages);
        work.links.extend(&observed.links);
        work.not_followed.extend(observed.not_followed.iter().map(|(handle, why)| (handle, why.as_str())));
        work.evidence.push(&observed.evidence);
        // The host switch alone counts pairs.
        if !observed.evidence.pairs.is_empty() {
            work.switch_started = Some(observed.program.started);
        }
        if let Some(directions) = &observed.directions {
            let all = work.directions.get_or_insert_default();
            all.workers.extend(&directions.workers);
            all.vnics.extend(directions.vnics.clone());
        }
    }
    work
}

/// Returns the claims of the places before the place with this index.
pub(super) fn before(claims: &[(usize, Claim)], place: usize) -> Vec<Claim> {
    claims.iter().filter(|(index, _)| *index < place).map(|(_, claim)| claim.clone()).collect()
}

/// Returns the conflicts between these claims, each with the index of its place.
pub(super) fn conflicts<'a>(
    places: &'a [Box<dyn Installed>],
    claims: &'a [(usize, Claim)],
) -> Vec<Conflict<'a>> {
    host::conflicts(claims.iter().map(|(index, claim)| (places[*index].name(), claim)))
}

/// Returns the plan for the contracts that a place does not refuse; the refused ones stay as they are in force.
fn plan_without_refused(
    place: &dyn Installed,
    wanted: Wanted<'_>,
    look: &Look,
    refusals: &[Refusal],
) -> Plan<Step> {
    let names: HashSet<&str> = refusals.iter().map(|r| r.vnic.as_str()).collect();
    let refused = |name: &str| names.contains(name);
    let in_force = |vnic: &Vnic| look.observed.vnics.get(&vnic.name).map(|there| there.vnic.clone());
    let instead = |vnic: &Vnic| if refused(&vnic.name) { in_force(vnic) } else { Some(vnic.clone()) };
    let vnics: Vec<Vnic> = wanted.vnics.iter().filter_map(instead).collect();
    let work = HostWork { refused: names.iter().copied().collect(), ..wanted.work.clone() };
    let planned = place.plan(&Wanted { vnics: &vnics, work: &work, ..wanted }, look);
    let mut plan = planned.unwrap_or_else(|_| vec![].into());
    plan.actions.retain(|action| !action.vnic().is_some_and(refused));
    plan
}
