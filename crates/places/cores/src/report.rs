//! The machine, the stages and the plan, for readers. Pure.

use crate::choice::Choices;
use crate::conflicts::pins;
use crate::placed;
use crate::planner::Planned;
use crate::settings::setting::Setting;
use crate::settings::step::SavedSetting;
use crate::steered::flows::{self, NamedFlow};
use crate::steered::tables::{self, Room};
use crate::watched::Surveyed;
use std::collections::BTreeMap;
use tidegate_contract::Vnic;
use tidegate_cores::costs::Source;
use tidegate_cores::machine::Machine;
use tidegate_cores::stage::{Handle, Kind, Stage};
use tidegate_evidence::{
    ConflictReport, CoresReport, CpuReport, ImpossibleReport, PlanReport, StageReport, SteeringReport,
};

/// What a report is made from.
#[derive(Clone, Debug)]
pub struct Report<'a> {
    /// Whether the plan is kept.
    pub kept: bool,
    /// The CPUs.
    pub machine: &'a Machine,
    /// The last look at the host.
    pub surveyed: Option<&'a Surveyed>,
    /// The last plan.
    pub planned: Option<&'a Planned>,
    /// Faults of the settings of stages.
    pub faults: &'a BTreeMap<Setting, String>,
    /// The settings on record.
    pub held: &'a BTreeMap<Setting, SavedSetting>,
    /// Stages that could not be moved.
    pub immovable: &'a BTreeMap<Handle, String>,
    /// Steered NICs.
    pub steering: Vec<SteeringReport>,
}

/// Makes it.
pub fn report(of: Report<'_>) -> CoresReport {
    let flows = of.surveyed.map(flows).unwrap_or_default();
    let found = of.surveyed.map(|surveyed| found(surveyed, &of)).unwrap_or_default();
    let adopt = of.surveyed.is_some_and(|surveyed| surveyed.scope.host.cores.adopt);
    let pins = pins::find(&found, adopt);
    let stages: Vec<Stage> = found.into_iter().chain(flows.iter().map(NamedFlow::stage)).collect();
    CoresReport {
        kept: of.kept,
        cpus: cpus(&of),
        stages: stages.iter().map(|stage| self::stage(stage, &of)).collect(),
        plan: of.planned.map(plan),
        costs: of.planned.map(|planned| costs(&planned.problem.costs.source)).unwrap_or_default(),
        conflicts: of
            .surveyed
            .map(|surveyed| conflicts(surveyed, of.planned, &flows, pins))
            .unwrap_or_default(),
        impossible: (of.machine.cpus.len() < 2)
            .then(|| "this machine has one CPU: all work shares it, and there is nothing to choose".into()),
        steering: of.steering,
    }
}

/// Returns the stages, with the programs that chose their CPUs.
fn found(surveyed: &Surveyed, of: &Report<'_>) -> Vec<Stage> {
    let choices = Choices::new(&surveyed.scope.host, of.machine, of.held);
    surveyed.found.stages.iter().map(|stage| choices.with_other(stage)).collect()
}

fn cpus(of: &Report<'_>) -> Vec<CpuReport> {
    let report = |(number, cpu): (&usize, &tidegate_cores::machine::Cpu)| CpuReport {
        cpu: *number,
        core: cpu.core,
        cache: cpu.cache,
        node: cpu.node,
        isolated: cpu.isolated,
        housekeeping: of.planned.is_some_and(|planned| planned.plan.housekeeping.contains(number)),
        own: of.planned.is_some_and(|planned| planned.plan.own.contains(number)),
        busy: of.surveyed.and_then(|surveyed| surveyed.found.cpu_busy.get(number).copied()),
    };
    of.machine.cpus.iter().map(report).collect()
}

fn stage(stage: &Stage, of: &Report<'_>) -> StageReport {
    let plan = of.planned.map(|planned| &planned.plan);
    let planned = plan.and_then(|plan| plan.assignment.cpus.get(&stage.handle).copied());
    let reason = plan.and_then(|plan| plan.reasons.get(&stage.handle).cloned());
    let not_followed = of.surveyed.and_then(|surveyed| surveyed.not_followed.get(&stage.handle).cloned());
    let nice = match &stage.handle {
        Handle::Thread { thread, .. } => Some(Setting::Nice(*thread)),
        _ => None,
    };
    let settings = placed::setting(&stage.handle).into_iter().chain(nice);
    let fault = settings.filter_map(|setting| of.faults.get(&setting)).next().cloned();
    let present = match &stage.handle {
        Handle::Flow { device, name } => steered(device, name, &of.steering).into_iter().collect(),
        _ => stage.present.iter().copied().collect(),
    };
    StageReport {
        stage: stage.handle.to_string(),
        kind: kind(stage.handle.kind()).into(),
        vnics: stage.vnics.clone(),
        load: stage.load,
        measured: stage.measured,
        present,
        planned: planned.into_iter().collect(),
        reason: reason.or_else(|| stage.pinned_by.clone()).unwrap_or_else(|| "not planned yet".into()),
        missing: not_followed.or(fault).or_else(|| of.immovable.get(&stage.handle).cloned()),
    }
}

/// Returns the CPU to which the frames of a flow go; `None` while its NIC is not steered.
fn steered(device: &str, name: &str, nics: &[SteeringReport]) -> Option<usize> {
    let nic = nics.iter().find(|nic| nic.device == device && nic.mode.is_some())?;
    nic.flows.iter().find(|flow| flow.flow == name).map(|flow| flow.cpu)
}

fn plan(planned: &Planned) -> PlanReport {
    let plan = &planned.plan;
    let impossible = plan.impossible.iter();
    PlanReport {
        cost_ns: plan.cost,
        present_cost_ns: plan.present_cost,
        lower_bound_ns: plan.lower_bound,
        exact: plan.exact,
        took_us: u64::try_from(planned.took.as_micros()).unwrap_or(u64::MAX),
        impossible: impossible
            .map(|it| ImpossibleReport { vnic: it.vnic.clone(), reason: it.reason.clone() })
            .collect(),
    }
}

/// Returns the flows of steered NICs.
fn flows(surveyed: &Surveyed) -> Vec<NamedFlow> {
    let contracts: Vec<&Vnic> = surveyed.scope.contracts.iter().collect();
    flows::flows(&contracts, &surveyed.scope.host, &surveyed.scope.network)
}

fn conflicts(
    surveyed: &Surveyed,
    planned: Option<&Planned>,
    flows: &[NamedFlow],
    pins: Vec<ConflictReport>,
) -> Vec<ConflictReport> {
    let own = planned.map(|planned| planned.plan.own.clone()).unwrap_or_default();
    let usable = surveyed.scope.host.cores.cpus.as_ref().unwrap_or(&surveyed.found.usable);
    let crowded =
        tables::crowded(flows, Room { usable, own: &own, realtime: &own }).map(|what| ConflictReport {
            with: "steering".into(),
            what,
            remedy: "give the plan more CPUs, or promise fewer vNICs a deadline or a minimum".into(),
        });
    let note = |note: &String| ConflictReport {
        with: "not found".into(),
        what: note.clone(),
        remedy: String::new(),
    };
    let found = &surveyed.found;
    found.conflicts.iter().cloned().chain(pins).chain(crowded).chain(found.notes.iter().map(note)).collect()
}

fn costs(source: &Source) -> String {
    match source {
        Source::Priors => {
            "the findings of the paper on VSE: relations, not this machine's times (`tidegate cores calibrate`)".into()
        }
        Source::Measured { machine, kernel, at } => {
            format!("measured on this machine ({machine}, Linux {kernel}), {at} s after 1970")
        }
    }
}

const fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::HardIrq => "hard-irq",
        Kind::SoftIrq => "soft-irq",
        Kind::Vhost => "vhost",
        Kind::Vcpu => "vcpu",
        Kind::Emulator => "emulator",
        Kind::Worker => "worker",
        Kind::Transmit => "transmit",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_evidence::FlowReport;

    #[test]
    fn a_flow_is_where_its_nic_is_steered_to() {
        let flow = FlowReport { flow: "voice".into(), matches: "".into(), cpu: 5, frames: 0, bytes: 0 };
        let nic = SteeringReport {
            device: "eth1".into(),
            mode: Some("native".into()),
            chained: false,
            missing: None,
            flows: vec![flow],
            spread: vec![],
            passed: 0,
            dropped: 0,
        };
        let not_steered = SteeringReport { mode: None, ..nic.clone() };
        assert_eq!(steered("eth1", "voice", std::slice::from_ref(&nic)), Some(5));
        for (device, name, nic) in
            [("eth1", "data", &nic), ("eth0", "voice", &nic), ("eth1", "voice", &not_steered)]
        {
            assert_eq!(steered(device, name, std::slice::from_ref(nic)), None);
        }
    }
}
