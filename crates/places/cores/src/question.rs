//! From the work of the whole host to the planner's question, and when it is asked. Pure.

use crate::facts::{Asked, Facts};
use crate::placed;
use crate::settled::{LOOK, SHORTEST_PAUSE};
use crate::steered::flows::{self, NamedFlow};
use std::collections::BTreeSet;
use std::time::Duration;
use tidegate_contract::Placement;
use tidegate_cores::cpus::Cpus;
use tidegate_cores::problem::Problem;
use tidegate_cores::stage::{Handle, Link, Stage};
use tidegate_place::Wanted;
use tidegate_place::host::{Part, Resource};

/// Interval of plans that nothing is set by: for readers.
const IDLE: Duration = Duration::from_secs(60);

/// Returns the question for the planner; `None` if there is nothing to choose, or the host was not looked at yet.
pub fn question(wanted: &Wanted<'_>, facts: &Facts) -> Option<Problem> {
    let online = facts.machine.online();
    let found = &facts.surveyed.as_ref()?.found;
    if online.len() < 2 {
        return None;
    }
    let cores = &wanted.host.cores;
    let taken = |cpu: &usize| {
        let by = |resource: &Resource| *resource == Resource::Cpu(*cpu);
        wanted.claims.iter().any(|claim| by(&claim.resource) && claim.part == Part::All)
    };
    let among = |cpus: &Cpus| online.intersection(cpus).copied().collect::<Cpus>();
    let usable = usable(wanted, facts);
    let keeps = cores.placement == Placement::Plan;
    let in_force = facts.planned.as_ref().filter(|_| keeps).map(|planned| planned.plan.assignment.clone());
    // Whatever the agent set is no other program's choice.
    let is_held = |stage: &Stage| placed::setting(&stage.handle).is_some_and(|s| facts.held.contains(&s));
    let own = |stage: &Stage| Stage {
        pinned_by: stage.pinned_by.clone().filter(|_| !is_held(stage)),
        ..stage.clone()
    };
    let flows = flows::flows(&wanted.work.contracts, wanted.host, wanted.network);
    let stages = found.stages.iter().filter(|stage| works(stage, wanted)).map(own);
    let stages: Vec<Stage> = stages.chain(flows.iter().map(NamedFlow::stage)).collect();
    let of_flows: Vec<Link> = flows.iter().filter_map(NamedFlow::link).collect();
    let links = found.links.iter().chain(wanted.work.links.iter().copied()).chain(&of_flows);
    let handles: BTreeSet<&Handle> = stages.iter().map(|stage| &stage.handle).collect();
    let between = |link: &&Link| handles.contains(&link.from) && handles.contains(&link.to);
    Some(Problem {
        machine: facts.machine.clone(),
        links: links.filter(between).cloned().collect(),
        stages,
        costs: facts.costs.clone(),
        usable: usable.into_iter().filter(|cpu| !taken(cpu)).collect(),
        housekeeping: cores.housekeeping.as_ref().map(among).unwrap_or_default(),
        adopt: cores.adopt,
        in_force: in_force.unwrap_or_default(),
    })
}

/// Returns the CPUs that the plan may use and that are online.
pub fn usable(wanted: &Wanted<'_>, facts: &Facts) -> Cpus {
    let online = facts.machine.online();
    let found = facts.surveyed.as_ref().map(|surveyed| &surveyed.found.usable);
    match wanted.host.cores.cpus.as_ref().or(found) {
        Some(cpus) => online.intersection(cpus).copied().collect(),
        None => online,
    }
}

/// Whether a stage works for a wanted contract, or for all.
pub fn works(stage: &Stage, wanted: &Wanted<'_>) -> bool {
    let is_wanted = |name: &String| {
        wanted.work.contracts.iter().any(|vnic| vnic.name == *name)
            || wanted.network.uplinks.iter().any(|uplink| uplink.name == *name)
    };
    stage.vnics.is_empty() || stage.vnics.iter().any(is_wanted)
}

/// Whether a question is to be asked now: the work is another one, or only its load and enough time has passed.
pub fn is_due(problem: &Problem, last: Option<&Asked<Problem>>, keeps: bool) -> bool {
    let Some(last) = last else { return true };
    if last.open {
        return false;
    }
    if !is_same_work(problem, &last.question) {
        return last.ago >= SHORTEST_PAUSE;
    }
    last.ago >= if keeps { LOOK } else { IDLE } && *problem != *last.question
}

/// Whether two questions differ at most in loads, in the plan in force, and in where stages are at present.
fn is_same_work(one: &Problem, other: &Problem) -> bool {
    let stage = |a: &Stage, b: &Stage| {
        (&a.handle, &a.vnics, a.realtime, &a.pinned_by) == (&b.handle, &b.vnics, b.realtime, &b.pinned_by)
    };
    let facts = |p: &Problem| (p.machine.clone(), p.usable.clone(), p.housekeeping.clone(), p.adopt);
    facts(one) == facts(other)
        && one.costs == other.costs
        && one.stages.len() == other.stages.len()
        && one.stages.iter().zip(&other.stages).all(|(a, b)| stage(a, b))
}
