//! From the work of the whole host to the planner's question, and when it is asked. Pure.

use crate::choice::Choices;
use crate::facts::{Asked, Facts};
use crate::in_force;
use crate::load::prior;
use crate::settled::{LOOK, SHORTEST_PAUSE};
use crate::steered::flows::NamedFlow;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tidegate_contract::Placement;
use tidegate_cores::cpus::Cpus;
use tidegate_cores::problem::{Assignment, Problem};
use tidegate_cores::stage::{Handle, Link, Stage};
use tidegate_place::Wanted;
use tidegate_place::host::{Part, Resource};

/// Interval of plans that nothing is set by: for readers. Each is made from nothing, for seconds on a large host.
const IDLE: Duration = Duration::from_secs(300);

/// Returns the question for the planner, about these flows of NICs, too; `None` if there is nothing to choose, or the host was not looked at
/// yet.
pub fn question(wanted: &Wanted<'_>, facts: &Facts, flows: &[NamedFlow]) -> Option<Problem> {
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
    let choices = Choices::new(wanted.host, &facts.machine, &facts.held);
    let immovable = |stage: &Stage| facts.immovable.get(&stage.handle).map(|why| format!("a fault: {why}"));
    let own = |stage: &Stage| {
        let pinned_by = immovable(stage).or_else(|| choices.holds(stage).map(str::to_owned));
        Stage { pinned_by, ..stage.clone() }
    };
    let stages = found.stages.iter().filter(|stage| is_wanted(stage, wanted)).map(own);
    let mut stages: Vec<Stage> = stages.chain(flows.iter().map(NamedFlow::stage)).collect();
    take_ports_from_workers(&mut stages);
    for stage in &mut stages {
        stage.load = stage.load.max(prior::load(stage.handle.kind(), prior::IDLE));
    }
    let mut in_force = match &facts.planned {
        Some(planned) if keeps => planned.plan.assignment.clone(),
        None if keeps => in_force::left(&stages, &facts.held, &facts.steered),
        _ => Assignment::default(),
    };
    leave(&mut in_force, &stages, &facts.immovable);
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
        // The stages say which choices of others stay.
        adopt: false,
        in_force,
    })
}

/// Makes the present places of these stages those in force.
fn leave(in_force: &mut Assignment, stages: &[Stage], immovable: &BTreeMap<Handle, String>) {
    in_force.cpus.retain(|handle, _| !immovable.contains_key(handle));
    in_force.workers.retain(|vnic, _| !immovable.contains_key(&Handle::Port(vnic.clone())));
    for stage in stages {
        let Handle::Worker(worker) = stage.handle else { continue };
        let left = stage.vnics.iter().filter(|vnic| immovable.contains_key(&Handle::Port((*vnic).clone())));
        in_force.workers.extend(left.map(|vnic| (vnic.clone(), worker)));
    }
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

/// Whether a stage works for a wanted contract, or for all.
pub fn is_wanted(stage: &Stage, wanted: &Wanted<'_>) -> bool {
    let is_name_wanted = |name: &String| {
        wanted.work.contracts.iter().any(|vnic| vnic.name == *name)
            || wanted.network.uplinks.iter().any(|uplink| uplink.name == *name)
    };
    stage.vnics.is_empty() || stage.vnics.iter().any(is_name_wanted)
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
pub fn is_same_work(one: &Problem, other: &Problem) -> bool {
    let stage = |a: &Stage, b: &Stage| {
        (&a.handle, &a.vnics, a.realtime, &a.pinned_by) == (&b.handle, &b.vnics, b.realtime, &b.pinned_by)
    };
    let facts = |p: &Problem| (p.machine.clone(), p.usable.clone(), p.housekeeping.clone(), p.adopt);
    facts(one) == facts(other)
        && one.costs == other.costs
        && one.stages.len() == other.stages.len()
        && one.stages.iter().zip(&other.stages).all(|(a, b)| stage(a, b))
}
