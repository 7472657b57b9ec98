//! From the work of the whole host to the planner's question, and when it is asked. Pure.

use crate::planner::Planned;
use crate::settled::{LOOK, SHORTEST_PAUSE};
use std::sync::Arc;
use std::time::Duration;
use tidegate_contract::Placement;
use tidegate_cores::costs::Costs;
use tidegate_cores::cpus::Cpus;
use tidegate_cores::machine::Machine;
use tidegate_cores::problem::Problem;
use tidegate_cores::stage::Stage;
use tidegate_place::Wanted;
use tidegate_place::host::{Part, Resource};

/// Interval of plans that nothing is set by: for readers.
const IDLE: Duration = Duration::from_secs(60);

/// The last question.
#[derive(Clone, Debug)]
pub struct Considered {
    /// The question.
    pub problem: Arc<Problem>,
    /// The time since.
    pub ago: Duration,
    /// Whether its answer is still to come.
    pub open: bool,
}

/// Returns the question for the planner; `None` if there is nothing to choose.
pub fn question(
    wanted: &Wanted<'_>,
    machine: &Machine,
    costs: &Costs,
    planned: Option<&Planned>,
) -> Option<Problem> {
    let online = machine.online();
    if online.len() < 2 {
        return None;
    }
    let cores = &wanted.host.cores;
    let taken = |cpu: &usize| {
        let by = |resource: &Resource| *resource == Resource::Cpu(*cpu);
        wanted.claims.iter().any(|claim| by(&claim.resource) && claim.part == Part::All)
    };
    let among = |cpus: &Option<Cpus>| cpus.as_ref().map(|cpus| online.intersection(cpus).copied().collect());
    let usable: Cpus = among(&cores.cpus).unwrap_or_else(|| online.clone());
    let keeps = cores.placement == Placement::Plan;
    let in_force = planned.filter(|_| keeps).map(|planned| planned.plan.assignment.clone());
    let stages = wanted.work.stages.iter().filter(|stage| works(stage, wanted));
    Some(Problem {
        machine: machine.clone(),
        stages: stages.map(|stage| (*stage).clone()).collect(),
        links: vec![],
        costs: costs.clone(),
        usable: usable.into_iter().filter(|cpu| !taken(cpu)).collect(),
        housekeeping: among(&cores.housekeeping).unwrap_or_default(),
        adopt: cores.adopt,
        in_force: in_force.unwrap_or_default(),
    })
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
pub fn is_due(problem: &Problem, last: Option<&Considered>, keeps: bool) -> bool {
    let Some(last) = last else { return true };
    if last.open {
        return false;
    }
    if !is_same_work(problem, &last.problem) {
        return last.ago >= SHORTEST_PAUSE;
    }
    last.ago >= if keeps { LOOK } else { IDLE } && *problem != *last.problem
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

