//! What of the plan of CPUs needs a person. Pure.
//!
//! ```text
//!  CoresReport ──▶ deadlines without a CPU, work elsewhere than planned, other programs that place the same work
//! ```
//!
//! Nothing, while the plan is not kept: then it is only a proposal.

use crate::views::{Attention, AttentionKind, PlacedCounts};
use std::collections::{BTreeMap, BTreeSet};
use tidegate_evidence::CoresReport;

/// The command that shows all of it.
const SHOW: &str = "tidegate cores show";

/// Returns what needs a person.
pub fn attention(cores: &CoresReport) -> Vec<Attention> {
    if !cores.kept {
        return vec![];
    }
    let of = |kind, about: Vec<String>, what| Attention { kind, about, what, next: SHOW.into() };
    [
        impossible(cores)
            .map(|(what, about)| of(AttentionKind::ImpossibleDeadline, about, what))
            .collect::<Vec<_>>(),
        unplaced(cores).map(|(what, about)| of(AttentionKind::UnplacedWork, about, what)).collect(),
        unsteered(cores).map(|(what, about)| of(AttentionKind::UnplacedWork, about, what)).collect(),
        conflicts(cores).map(|(what, about)| of(AttentionKind::CpuConflict, about, what)).collect(),
    ]
    .concat()
}

/// Counts the stages that are where the plan has them.
pub fn placed(cores: &CoresReport) -> PlacedCounts {
    PlacedCounts {
        kept: cores.kept,
        planned: cores.stages.iter().filter(|stage| !stage.planned.is_empty()).count(),
        elsewhere: cores.stages.iter().filter(|stage| stage.is_misplaced()).count(),
    }
}

/// Groups vNICs with the same reason.
fn impossible(cores: &CoresReport) -> impl Iterator<Item = (String, Vec<String>)> {
    let mut reasons: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for deadline in cores.plan.iter().flat_map(|plan| &plan.impossible) {
        reasons.entry(&deadline.reason).or_default().push(deadline.vnic.clone());
    }
    reasons.into_iter().map(|(reason, vnics)| (reason.to_owned(), vnics))
}

/// Groups stages with the same fault; the text names the first.
fn unplaced(cores: &CoresReport) -> impl Iterator<Item = (String, Vec<String>)> {
    let mut faults: BTreeMap<&str, (&str, usize, BTreeSet<&str>)> = BTreeMap::new();
    for stage in &cores.stages {
        let Some(fault) = &stage.missing else { continue };
        let (_, count, vnics) = faults.entry(fault).or_insert((&stage.stage, 0, BTreeSet::new()));
        *count += 1;
        vnics.extend(stage.vnics.iter().map(String::as_str));
    }
    faults.into_iter().map(|(fault, (first, count, vnics))| {
        let more = if count == 1 { String::new() } else { format!(" and {} more", count - 1) };
        (format!("{first}{more}: {fault}"), vnics.into_iter().map(str::to_owned).collect())
    })
}

fn unsteered(cores: &CoresReport) -> impl Iterator<Item = (String, Vec<String>)> {
    cores.steering.iter().filter_map(|nic| {
        let why = nic.missing.as_ref()?;
        Some((
            format!("frames that {} receives are not steered: {why}", nic.device),
            vec![nic.device.clone()],
        ))
    })
}

fn conflicts(cores: &CoresReport) -> impl Iterator<Item = (String, Vec<String>)> {
    let found = cores.conflicts.iter().filter(|conflict| conflict.needs_a_person());
    found.map(|conflict| (format!("{}; {}", conflict.what, conflict.remedy), vec![conflict.with.clone()]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_evidence::{ConflictReport, ImpossibleReport, PlanReport, StageReport, SteeringReport};

    #[test]
    fn a_plan_that_is_kept_says_what_stands_in_its_way() {
        let stage = |name: &str, vnic: &str, missing: Option<&str>| StageReport {
            stage: name.into(),
            vnics: vec![vnic.into()],
            missing: missing.map(Into::into),
            ..StageReport::default()
        };
        let impossible =
            |vnic: &str| ImpossibleReport { vnic: vnic.into(), reason: "2 CPUs are too few".into() };
        let mut cores = CoresReport {
            kept: true,
            plan: Some(PlanReport {
                impossible: vec![impossible("plc1"), impossible("plc2")],
                ..PlanReport::default()
            }),
            stages: vec![
                stage("worker 0", "a", None),
                stage("vCPU thread 7 (x)", "b", Some("denied")),
                stage("vCPU thread 8 (x)", "b", Some("denied")),
                stage("vCPU thread 9 (x)", "a", Some("denied")),
                stage("interrupt 9 (eth1-0)", "", Some("managed by the driver")),
            ],
            conflicts: vec![
                ConflictReport {
                    with: "irqbalance".into(),
                    what: "it moves interrupts back".into(),
                    remedy: "systemctl disable --now irqbalance".into(),
                },
                ConflictReport {
                    with: "libvirt".into(),
                    what: "it does not run".into(),
                    remedy: String::new(),
                },
            ],
            steering: vec![SteeringReport {
                device: "eth1".into(),
                missing: Some("no XDP".into()),
                ..SteeringReport::default()
            }],
            ..CoresReport::default()
        };
        let found: Vec<_> =
            attention(&cores).into_iter().map(|a| (a.kind, a.about.join(" "), a.what)).collect();
        let expected = [
            (AttentionKind::ImpossibleDeadline, "plc1 plc2", "2 CPUs are too few"),
            (AttentionKind::UnplacedWork, "a b", "vCPU thread 7 (x) and 2 more: denied"),
            (AttentionKind::UnplacedWork, "", "interrupt 9 (eth1-0): managed by the driver"),
            (AttentionKind::UnplacedWork, "eth1", "frames that eth1 receives are not steered: no XDP"),
            (
                AttentionKind::CpuConflict,
                "irqbalance",
                "it moves interrupts back; systemctl disable --now irqbalance",
            ),
        ];
        assert_eq!(found, expected.map(|(kind, about, what)| (kind, about.to_owned(), what.to_owned())));
        cores.stages[0].planned = vec![1];
        cores.stages[1].planned = vec![2];
        cores.stages[1].present = vec![2];
        assert_eq!(placed(&cores), PlacedCounts { kept: true, planned: 2, elsewhere: 1 });
        cores.kept = false;
        assert_eq!(attention(&cores), []);
    }
}
