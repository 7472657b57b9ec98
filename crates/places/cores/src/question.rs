//! From the work of the whole host to the planner's question, and when it is asked. Pure.

use crate::facts::{Asked, Facts};
use crate::placed;
use crate::settings::record::inherited;
use crate::settings::setting::Setting;
use crate::settled::{LOOK, SHORTEST_PAUSE};
use crate::steered::flows::{self, NamedFlow};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tidegate_contract::Placement;
use tidegate_cores::cpus::{self, Cpus};
use tidegate_cores::problem::Problem;
use tidegate_cores::stage::{Handle, Link, Stage};
use tidegate_place::Wanted;
use tidegate_place::host::{Part, Resource};

/// Interval of plans that nothing is set by: for readers. Each is made from nothing, for seconds on a large host.
const IDLE: Duration = Duration::from_secs(300);

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
    let own = |stage: &Stage| {
        let pinned_by = stage.pinned_by.clone().filter(|_| !is_ours(stage, facts, cores.adopt));
        Stage { pinned_by, ..stage.clone() }
    };
    let flows = flows::flows(&wanted.work.contracts, wanted.host, wanted.network);
    let stages = found.stages.iter().filter(|stage| works(stage, wanted)).map(own);
    let mut stages: Vec<Stage> = stages.chain(flows.iter().map(NamedFlow::stage)).collect();
    take_ports_from_workers(&mut stages);
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

/// Leaves workers the load beside that of their ports: a worker reports both.
fn take_ports_from_workers(stages: &mut [Stage]) {
    let port = |stage: &Stage| match &stage.handle {
        Handle::Port(vnic) => Some((vnic.clone(), stage.load)),
        _ => None,
    };
    let ports: BTreeMap<String, u32> = stages.iter().filter_map(port).collect();
    for worker in stages.iter_mut().filter(|stage| matches!(stage.handle, Handle::Worker(_))) {
        let of_ports = worker.vnics.iter().filter_map(|vnic| ports.get(vnic));
        worker.load = of_ports.fold(worker.load, |load, of_port| load.saturating_sub(*of_port));
    }
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

/// Whether the agent gave a stage its CPUs, or the thread that started it. Those that another program had given it before are still that
/// one's choice, unless the plan may adopt them.
fn is_ours(stage: &Stage, facts: &Facts, adopt: bool) -> bool {
    let Some(setting) = placed::setting(&stage.handle) else { return false };
    let present = cpus::list(&stage.present);
    let saved = facts.held.get(&setting).or_else(|| inherited(&facts.held, &setting, &present));
    let isolated = facts.machine.isolated();
    let was_free = |before: &str| {
        let before = cpus::from_list(before).unwrap_or_default();
        facts.machine.online().iter().all(|cpu| before.contains(cpu) || isolated.contains(cpu))
    };
    saved.is_some_and(|saved| adopt || !matches!(setting, Setting::Affinity(_)) || was_free(&saved.before))
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
