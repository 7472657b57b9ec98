//! From the work of the whole host to the next actions of the place. Pure.
//!
//! ```text
//!  Wanted: contracts, stages, evidence ─┬▶ See; Look, if due ─▶ discovery
//!                                       ├▶ question ─▶ Consider, if due ─▶ planner
//!  Facts: machine, stages, last plan ───┼▶ workers: CPUs of real-time workers ─┬▶ Target ─▶ Keep, if due
//!                                       └▶ placed: the plan, if it is kept ────┘
//!                                                        └▶ claims: CPUs that have one use
//! ```

use crate::action::CoresAction;
use crate::choice::Choices;
use crate::facts::{Asked, Facts};
use crate::planner::Planned;
use crate::question;
use crate::settings::setting::Setting;
use crate::settled::LOOK;
use crate::sight::Sight;
use crate::steered::flows::{self, NamedFlow};
use crate::steered::tables::{self, Room};
use crate::target::Target;
use crate::watched::{Scope, Watched, may_be_reported};
use crate::{placed, workers};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tidegate_contract::{Placement, Vnic};
use tidegate_cores::cpus::{self, Cpus};
use tidegate_cores::problem::{Assignment, Problem};
use tidegate_cores::stage::{Handle, Stage};
use tidegate_place::host::{Claim, Part, Resource};
use tidegate_place::{Plan, Wanted};

/// Interval of looks at the host while a plan is kept: work that comes and goes.
const LIVELY: Duration = Duration::from_secs(2);

/// An agent that keeps a plan and has none yet leaves all as its predecessor did, but for no longer than this.
const FIRST_PLAN: Duration = Duration::from_secs(60);

/// See [`tidegate_place::Place::plan`].
pub fn plan(wanted: &Wanted<'_>, facts: &Facts) -> Plan<CoresAction> {
    let flows = flows::flows(&wanted.work.contracts, wanted.host, wanted.network);
    let placed = placed(wanted, facts, &flows);
    let claims = claims(wanted, facts, &placed.own);
    let mut actions = Vec::new();
    let sight = Sight::of(wanted.work, facts.off.is_some_and(|off| off.halts));
    if facts.seen != Some(sight) {
        actions.push(CoresAction::See(sight));
    }
    let keeps = wanted.host.cores.placement == Placement::Plan;
    let scope = Scope::of(wanted);
    if is_look_due(&scope, facts.looked.as_ref(), keeps) {
        actions.push(CoresAction::Look(Box::new(Watched::new(scope, wanted.work))));
    }
    // A switch that is started anew goes on with its CPUs.
    let waits =
        sight == Sight::Silence && needs_switch(wanted, facts) && facts.silent.is_none_or(|time| time < LOOK);
    let is_first = keeps && facts.planned.is_none() && facts.age < FIRST_PLAN;
    let is_known = !is_first || is_surveyed(wanted, facts);
    if !waits && is_known {
        // Loads of the first look are estimates, by which work would move, and back once they are measured.
        let is_measured =
            |problem: &Problem| !is_first || problem.in_force == Assignment::default() || facts.age >= LOOK;
        let due = question::question(wanted, facts, &flows)
            .filter(|problem| question::is_due(problem, facts.considered.as_ref(), keeps));
        let due = due.filter(is_measured);
        actions.extend(due.map(|problem| CoresAction::Consider(Arc::new(problem))));
        let target = (!is_first).then(|| target(wanted, facts, placed));
        actions.extend(target.and_then(|target| facts.settled.due(target)).map(CoresAction::Keep));
    }
    Plan { actions, claims }
}

/// Whether the host is to be looked at now.
fn is_look_due(scope: &Scope, last: Option<&Asked<Scope>>, keeps: bool) -> bool {
    let Some(last) = last else { return true };
    let pause = if keeps { LIVELY } else { LOOK };
    !last.open && (last.ago >= pause || *last.question != *scope)
}

/// Whether the last look at the host knew of all the work that places report now.
fn is_surveyed(wanted: &Wanted<'_>, facts: &Facts) -> bool {
    let found = facts.surveyed.iter().flat_map(|surveyed| &surveyed.found.stages);
    let found: BTreeSet<&Handle> = found.map(|stage| &stage.handle).collect();
    let mut reported = wanted.work.stages.iter().filter(|stage| may_be_reported(stage));
    reported.all(|stage| found.contains(&stage.handle))
}

/// Whether what is kept now depends on the switch.
fn needs_switch(wanted: &Wanted<'_>, facts: &Facts) -> bool {
    // What an earlier agent directed is not known yet.
    if facts.settled.ago.is_none() && wanted.host.cores.placement == Placement::Plan {
        return wanted.work.contracts.iter().any(|vnic| workers::is_of_the_switch(vnic));
    }
    let has_deadline = |vnic: &&Vnic| vnic.deadline.is_some() && workers::is_of_the_switch(vnic);
    facts.settled.target.directions != Default::default() || wanted.work.contracts.iter().any(has_deadline)
}

/// Returns the target: the plan, if it is kept, as `placed`; and the CPUs of real-time workers free of other work, plan or not.
fn target(wanted: &Wanted<'_>, facts: &Facts, placed: Target) -> Target {
    let placed = Target { before: chosen_since(facts), ..placed };
    let Some(off) = facts.off else { return placed };
    // Taps that are still to come have no settings.
    let is_here = |vnic: &&Vnic| {
        wanted.work.stages.iter().any(|s| matches!(&s.handle, Handle::Port(name) if *name == vnic.name))
    };
    let here = wanted.work.contracts.iter().copied().filter(is_here);
    let with_deadline = wanted.work.stages.iter().copied().filter(|stage| stage.realtime);
    let situation =
        workers::situation(here, with_deadline, &facts.machine, &placed.own, &placed.own, facts.flows);
    let mut target = workers::target(&situation, off);
    target.settings.extend(placed.settings);
    target.own.extend(placed.own);
    Target { directions: placed.directions, nics: placed.nics, before: placed.before, ..target }
}

/// Returns the CPUs of placed threads that libvirt gave them since: they get these when the plan leaves them.
fn chosen_since(facts: &Facts) -> BTreeMap<Setting, String> {
    let chosen = facts.surveyed.iter().flat_map(|surveyed| &surveyed.found.of_libvirt);
    let chosen = chosen.map(|(thread, cpus)| (Setting::Affinity(*thread), cpus::list(cpus)));
    let is_news = |(setting, cpus): &(Setting, String)| {
        facts.held.get(setting).is_some_and(|saved| saved.before != *cpus)
    };
    chosen.filter(is_news).collect()
}

/// Returns the target of the plan, if it is kept, with these flows of NICs.
fn placed(wanted: &Wanted<'_>, facts: &Facts, flows: &[NamedFlow]) -> Target {
    // The switch's stages as of this look, all others as of the last look at the host.
    let found = facts.surveyed.iter().flat_map(|surveyed| &surveyed.found.stages);
    let reported = wanted.work.stages.iter().copied().filter(|stage| may_be_reported(stage));
    let of_switch = |stage: &&Stage| matches!(stage.handle, Handle::Worker(_) | Handle::Port(_));
    let stages = found.filter(|stage| !of_switch(stage)).chain(reported);
    let choices = Choices::new(wanted.host, &facts.machine, &facts.held);
    // Another program may have moved a stage since the plan was made.
    let is_ours = |stage: &&Stage| placed::setting(&stage.handle).is_none() || choices.holds(stage).is_none();
    let works = stages.filter(|stage| question::is_wanted(stage, wanted)).filter(is_ours);
    let plan = facts.planned.as_ref().filter(|_| wanted.host.cores.placement == Placement::Plan);
    let Some(Planned { plan, problem, .. }) = plan.map(|planned| &**planned) else {
        return Target::default();
    };
    let target = placed::target(plan, works, &facts.machine);
    let usable = question::usable(wanted, facts);
    let online = facts.machine.online();
    let cpus = plan.assignment.cpus.iter().filter(|(_, cpu)| online.contains(cpu));
    let cpus = cpus.map(|(handle, cpu)| (handle.clone(), *cpu)).collect();
    // A worker is real-time by its ports, which are on its CPU.
    let realtime = problem.stages.iter().filter(|stage| stage.realtime);
    let realtime = realtime.filter(|stage| !matches!(stage.handle, Handle::Worker(_)));
    let realtime = realtime.filter_map(|stage| plan.assignment.cpus.get(&stage.handle).copied()).collect();
    let room = Room { usable: &usable, own: &target.own, realtime: &realtime };
    let steer = &wanted.host.cores.steer;
    let nics = tables::tables(steer, flows, &cpus, room, wanted.network);
    Target { nics, ..target }
}

/// Returns the claims on CPUs that have one use; the `plan` has some of its own.
fn claims(wanted: &Wanted<'_>, facts: &Facts, plan: &Cpus) -> Vec<Claim> {
    let own = |only_realtime: bool| {
        let contracts = wanted.work.contracts.iter().copied();
        let stages = wanted.work.stages.iter().copied().filter(|stage| stage.realtime || !only_realtime);
        let situation =
            workers::situation(contracts, stages, &facts.machine, &Cpus::new(), plan, facts.flows);
        facts.off.map(|off| workers::own(&situation, off)).unwrap_or_default()
    };
    // The switch may give any of its workers the first deadline; those that have one count also where all together are too many.
    let workers: Cpus = own(true).union(&own(false)).copied().collect();
    let claim = |(cpu, purpose): (usize, &str)| Claim {
        resource: Resource::Cpu(cpu),
        part: Part::All,
        vnic: None,
        purpose: purpose.into(),
    };
    let of_plan = plan.difference(&workers).map(|cpu| (*cpu, "a real-time stage of the plan of CPUs"));
    let of_workers = workers.iter().map(|cpu| (*cpu, "a worker of the switch, for real-time vNICs"));
    of_workers.chain(of_plan).map(claim).collect()
}

#[cfg(test)]
mod tests;
