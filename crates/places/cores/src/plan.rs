//! From the work of the whole host to the next actions of the place. Pure.
//!
//! ```text
//!  Wanted: contracts, stages, evidence ─┬▶ See, Watch: what the next look has to know
//!                                       ├▶ question ─▶ Consider, if due ─▶ planner
//!  Facts: machine, last plan, sights ───┼▶ workers: CPUs of real-time workers ─┬▶ Target ─▶ Keep, if due
//!                                       └▶ placed: the plan, if it is kept ────┘
//!                                                        └▶ claims: CPUs that have one use
//! ```

use crate::action::CoresAction;
use crate::keep_off::KeepOff;
use crate::planner::Planned;
use crate::question::{self, Considered};
use crate::settled::{LOOK, Settled};
use crate::sight::Sight;
use crate::target::Target;
use crate::watched::Watched;
use crate::{placed, workers};
use std::sync::Arc;
use std::time::Duration;
use tidegate_contract::{Placement, Vnic};
use tidegate_cores::costs::{Costs, Source};
use tidegate_cores::cpus::Cpus;
use tidegate_cores::machine::Machine;
use tidegate_cores::stage::Handle;
use tidegate_place::host::{Claim, Part, Resource};
use tidegate_place::{Plan, Wanted};

/// The facts of one look.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The work to keep off workers' CPUs without a plan; `None` leaves them alone.
    pub off: Option<KeepOff>,
    /// The CPUs.
    pub machine: Machine,
    /// The cost model's numbers.
    pub costs: Costs,
    /// The last look at the switch.
    pub seen: Option<Sight>,
    /// Whether real-time frames flow.
    pub flows: bool,
    /// How long the switch has not answered.
    pub silent: Option<Duration>,
    /// The last settling.
    pub settled: Settled,
    /// The contracts that this look knew of.
    pub watched: Arc<Watched>,
    /// The last question to the planner.
    pub considered: Option<Considered>,
    /// Its last answer.
    pub planned: Option<Arc<Planned>>,
}

impl Default for Facts {
    fn default() -> Self {
        Self {
            off: None,
            machine: Machine::default(),
            costs: Costs { pairs: vec![], sibling: 0, source: Source::Priors },
            seen: None,
            flows: false,
            silent: None,
            settled: Settled::default(),
            watched: Arc::default(),
            considered: None,
            planned: None,
        }
    }
}

/// See [`tidegate_place::Place::plan`].
pub fn plan(wanted: &Wanted<'_>, facts: &Facts) -> Plan<CoresAction> {
    let mut actions = Vec::new();
    let sight = Sight::of(wanted.work, facts.off.is_some_and(|off| off.halts));
    if facts.seen != Some(sight) {
        actions.push(CoresAction::See(sight));
    }
    let watched = Watched::of(wanted);
    if *facts.watched != watched {
        actions.push(CoresAction::Watch(Arc::new(watched)));
    }
    // A switch that is started anew goes on with its CPUs.
    let waits = sight == Sight::Silence && needs_switch(wanted, facts) && facts.silent.is_none_or(|time| time < LOOK);
    if !waits {
        let keeps = wanted.host.cores.placement == Placement::Plan;
        let question = question::question(wanted, &facts.machine, &facts.costs, facts.planned.as_deref());
        let due = question.filter(|problem| question::is_due(problem, facts.considered.as_ref(), keeps));
        actions.extend(due.map(|problem| CoresAction::Consider(Arc::new(problem))));
        actions.extend(facts.settled.due(target(wanted, facts)).map(CoresAction::Keep));
    }
    Plan { actions, claims: claims(wanted, facts) }
}

/// Whether what is kept now depends on the switch.
fn needs_switch(wanted: &Wanted<'_>, facts: &Facts) -> bool {
    let has_deadline = |vnic: &&Vnic| vnic.deadline.is_some() && workers::is_of_the_switch(vnic);
    facts.settled.target.directions != Default::default() || wanted.work.contracts.iter().any(has_deadline)
}

/// Returns the plan that is kept.
fn kept<'a>(wanted: &Wanted<'_>, facts: &'a Facts) -> Option<&'a Planned> {
    facts.planned.as_deref().filter(|_| wanted.host.cores.placement == Placement::Plan)
}

/// Returns the target: the plan, if it is kept; and the CPUs of real-time workers free of other work, plan or not.
fn target(wanted: &Wanted<'_>, facts: &Facts) -> Target {
    let stages = wanted.work.stages.iter().copied();
    let works = stages.filter(|stage| question::works(stage, wanted));
    let plan = kept(wanted, facts);
    let placed = plan.map(|planned| placed::target(&planned.plan, works, &facts.machine)).unwrap_or_default();
    let Some(off) = facts.off else { return placed };
    // Taps that are still to come have no settings.
    let is_here = |vnic: &&Vnic| {
        wanted.work.stages.iter().any(|s| matches!(&s.handle, Handle::Port(name) if *name == vnic.name))
    };
    let here = wanted.work.contracts.iter().copied().filter(is_here);
    let situation = workers::situation(here, &wanted.work.stages, &facts.machine, &placed.own, facts.flows);
    let mut target = workers::target(&situation, off);
    target.settings.extend(placed.settings);
    target.own.extend(placed.own);
    Target { directions: placed.directions, ..target }
}

/// Returns the claims on CPUs that have one use.
fn claims(wanted: &Wanted<'_>, facts: &Facts) -> Vec<Claim> {
    let plan = kept(wanted, facts).map(|planned| planned.plan.own.clone()).unwrap_or_default();
    let contracts = wanted.work.contracts.iter().copied();
    let situation = workers::situation(contracts, &wanted.work.stages, &facts.machine, &Cpus::new(), facts.flows);
    let workers = facts.off.map(|off| workers::own(&situation, off)).unwrap_or_default();
    let claim = |(cpu, purpose): (usize, &str)| Claim {
        resource: Resource::Cpu(cpu),
        part: Part::All,
        vnic: None,
        purpose: purpose.into(),
    };
    let of_plan = plan.difference(&workers).map(|cpu| (*cpu, "a real-time stage of the plan of CPUs"));
    let of_workers = workers.iter().map(|cpu| (*cpu, "a worker of the switch that has real-time vNICs"));
    of_workers.chain(of_plan).map(claim).collect()
}
