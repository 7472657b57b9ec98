//! Metrics of the plan of CPUs. Their count is bounded by vNICs, kinds of stages, CPUs and flows.

use super::families::{Families, Kind::Counter, Kind::Gauge, Labels, NANOS};
use std::collections::BTreeMap;
use std::fmt;
use tidegate_evidence::{CoresReport, StageReport, SteeringReport};

/// Millionths.
const MILLIONTH: f64 = 1e-6;

impl Families<'_, '_> {
    /// The CPUs, and the work for frames on them.
    pub(super) fn cores(&mut self, cores: Option<&CoresReport>) -> fmt::Result {
        let Some(cores) = cores else { return Ok(()) };
        let flag = |value: bool| f64::from(u8::from(value));
        self.family("cores_plan_kept", "1 where the plan of CPUs is kept", Gauge, one(flag(cores.kept)))?;
        let cpus: Vec<(String, f64)> = cores
            .cpus
            .iter()
            .filter_map(|cpu| Some((cpu.cpu.to_string(), f64::from(cpu.busy?) * MILLIONTH)))
            .collect();
        self.family("cores_cpu_busy_ratio", "Busy part of the last minute, by CPU", Gauge, {
            cpus.iter().map(|(cpu, busy)| (vec![("cpu", cpu.as_str())], *busy))
        })?;
        let stages = by_vnic(&cores.stages);
        self.family(
            "cores_load_ratio",
            "CPU time that the stages of a kind use which work for the vNIC alone, as a part of one CPU",
            Gauge,
            stages.iter().map(|((vnic, kind), of)| (of_kind(vnic, kind), of.load as f64 * MILLIONTH)),
        )?;
        self.family(
            "cores_planned_cpu",
            "CPU that the plan gives to these stages; of several the lowest",
            Gauge,
            {
                stages.iter().filter_map(|((vnic, kind), of)| Some((of_kind(vnic, kind), of.planned? as f64)))
            },
        )?;
        let misplaced = cores.stages.iter().filter(|stage| stage.is_misplaced()).count();
        let help = "Stages of work that are not on the CPUs of the plan";
        self.family("cores_misplaced_stages", help, Gauge, one(misplaced as f64))?;
        let conflicts = cores.conflicts.iter().filter(|conflict| conflict.needs_a_person()).count();
        let help = "Other programs and settings that contradict the plan of CPUs";
        self.family("cores_conflicts", help, Gauge, one(conflicts as f64))?;
        if let Some(plan) = &cores.plan {
            let help = "CPU time lost a second by the placement, as the cost model has it";
            let costs = [
                ("present", plan.present_cost_ns),
                ("planned", plan.cost_ns),
                ("lower_bound", plan.lower_bound_ns),
            ];
            self.family("cores_cost_ratio", help, Gauge, {
                costs.into_iter().map(|(placement, ns)| (vec![("placement", placement)], ns as f64 * NANOS))
            })?;
            let help = "Deadlines whose needs no plan can meet on this machine";
            self.family("cores_impossible_deadlines", help, Gauge, one(plan.impossible.len() as f64))?;
        }
        self.steering(&cores.steering)
    }

    fn steering(&mut self, nics: &[SteeringReport]) -> fmt::Result {
        let flows = || {
            nics.iter().flat_map(|nic| {
                nic.flows
                    .iter()
                    .map(|flow| (vec![("device", nic.device.as_str()), ("flow", flow.flow.as_str())], flow))
            })
        };
        self.family("cores_flow_frames", "Frames of a steered flow", Counter, {
            flows().map(|(labels, flow)| (labels, flow.frames as f64))
        })?;
        self.family("cores_flow_bytes", "Bytes of these frames", Counter, {
            flows().map(|(labels, flow)| (labels, flow.bytes as f64))
        })?;
        let cpus: Vec<(&str, String, u64)> = nics
            .iter()
            .flat_map(|nic| nic.spread.iter().map(|to| (nic.device.as_str(), to.cpu.to_string(), to.frames)))
            .collect();
        self.family("cores_spread_frames", "Frames of no flow that were spread, by CPU", Counter, {
            cpus.iter().map(|(device, cpu, frames)| {
                (vec![("device", *device), ("cpu", cpu.as_str())], *frames as f64)
            })
        })?;
        let of = |count: fn(&SteeringReport) -> u64| {
            nics.iter().map(move |nic| (vec![("device", nic.device.as_str())], count(nic) as f64))
        };
        let help =
            "Frames that stayed on the CPU of their queue: no IP, fragments, unknown or truncated headers";
        self.family("cores_passed_frames", help, Counter, of(|nic| nic.passed))?;
        let help = "Frames that the queue of a CPU had no room for";
        self.family("cores_steering_dropped_frames", help, Counter, of(|nic| nic.dropped))
    }
}

fn one(value: f64) -> impl Iterator<Item = (Labels<'static>, f64)> {
    std::iter::once((vec![], value))
}

fn of_kind<'a>(vnic: &'a str, kind: &'a str) -> Labels<'a> {
    vec![("vnic", vnic), ("kind", kind)]
}

/// The stages of one kind that work for one vNIC alone.
#[derive(Default)]
struct Stages {
    /// Millionths of a CPU.
    load: u64,
    /// The lowest planned CPU.
    planned: Option<usize>,
}

fn by_vnic(stages: &[StageReport]) -> BTreeMap<(&str, &str), Stages> {
    let mut all = BTreeMap::<_, Stages>::new();
    for stage in stages {
        let [vnic] = stage.vnics.as_slice() else { continue };
        let of = all.entry((vnic.as_str(), stage.kind.as_str())).or_default();
        of.load = of.load.saturating_add(stage.load.into());
        of.planned = of.planned.into_iter().chain(stage.planned.iter().copied()).min();
    }
    all
}

#[cfg(test)]
mod tests {
    use crate::api::metrics::encode;
    use crate::board::Published;
    use std::sync::Arc;
    use tidegate_evidence::{
        CoresReport, CpuReport, FlowReport, PlanReport, SpreadReport, StageReport, SteeringReport,
    };

    #[test]
    fn each_figure_of_the_plan_is_served() {
        let stage = |vnics: &[&str], kind: &str, load, present: &[usize], planned: &[usize]| StageReport {
            vnics: vnics.iter().map(|name| (*name).into()).collect(),
            kind: kind.into(),
            load,
            present: present.into(),
            planned: planned.into(),
            ..StageReport::default()
        };
        let flow =
            FlowReport { flow: "voice".into(), cpu: 2, frames: 7, bytes: 700, ..FlowReport::default() };
        let steering = SteeringReport {
            device: "eth1".into(),
            flows: vec![flow],
            spread: vec![SpreadReport { cpu: 3, frames: 9 }],
            passed: 1,
            ..SteeringReport::default()
        };
        let cores = CoresReport {
            kept: true,
            cpus: vec![
                CpuReport { cpu: 2, busy: Some(250_000), ..CpuReport::default() },
                CpuReport::default(),
            ],
            stages: vec![
                stage(&["plc1"], "vcpu", 100_000, &[0, 1, 2], &[2]),
                stage(&["plc1"], "vcpu", 200_000, &[1], &[1]),
                stage(&["plc1", "cam"], "worker", 900_000, &[3], &[3]),
            ],
            plan: Some(PlanReport {
                cost_ns: 1_000_000,
                present_cost_ns: 2_000_000,
                ..PlanReport::default()
            }),
            steering: vec![steering],
            ..CoresReport::default()
        };
        let text = encode(Arc::new(Published { cores: Some(cores), ..Published::starting() })).unwrap();
        for line in [
            "cores_plan_kept 1.0",
            "cores_cpu_busy_ratio{cpu=\"2\"} 0.25",
            "cores_load_ratio{vnic=\"plc1\",kind=\"vcpu\"} 0.3",
            "cores_planned_cpu{vnic=\"plc1\",kind=\"vcpu\"} 1.0",
            "cores_misplaced_stages 1.0",
            "cores_conflicts 0.0",
            "cores_cost_ratio{placement=\"present\"} 0.002",
            "cores_cost_ratio{placement=\"lower_bound\"} 0.0",
            "cores_impossible_deadlines 0.0",
            "cores_flow_frames_total{device=\"eth1\",flow=\"voice\"} 7.0",
            "cores_flow_bytes_total{device=\"eth1\",flow=\"voice\"} 700.0",
            "cores_spread_frames_total{device=\"eth1\",cpu=\"3\"} 9.0",
            "cores_passed_frames_total{device=\"eth1\"} 1.0",
            "cores_steering_dropped_frames_total{device=\"eth1\"} 0.0",
        ] {
            assert!(text.contains(&format!("\ntidegate_{line}")), "{line}\n{text}");
        }
        assert!(!text.contains("kind=\"worker\""), "a stage of several vNICs is no one's\n{text}");
        assert!(!encode(Arc::new(Published::starting())).unwrap().contains("tidegate_cores_"));
    }
}
