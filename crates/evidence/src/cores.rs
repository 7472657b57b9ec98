//! Which CPU does which part of the work for frames.

use serde::{Deserialize, Serialize};

/// The CPUs of the host, the stages of work on them, and the plan for them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct CoresReport {
    /// Whether the plan is kept: `[host.cores] placement` is `plan`.
    pub kept: bool,
    /// The online CPUs.
    pub cpus: Vec<CpuReport>,
    /// The stages of work.
    pub stages: Vec<StageReport>,
    /// The last plan; absent before the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<PlanReport>,
    /// The cost model's source, in words.
    pub costs: String,
    /// Other software that places the same work, or settings that contradict the plan.
    pub conflicts: Vec<ConflictReport>,
    /// Why nothing can be planned, such as a single CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub impossible: Option<String>,
    /// NICs whose frames are steered to CPUs by flow.
    pub steering: Vec<SteeringReport>,
}

/// One online CPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct CpuReport {
    /// The kernel's number.
    pub cpu: usize,
    /// The core; SMT siblings have equal numbers.
    pub core: u32,
    /// The group of CPUs that share the last level of cache.
    pub cache: u32,
    /// The NUMA node.
    pub node: u32,
    /// Set apart at boot (`isolcpus=`, `nohz_full=`).
    pub isolated: bool,
    /// The plan gives it to other work than that of vNICs.
    pub housekeeping: bool,
    /// One real-time stage has it for itself.
    pub own: bool,
    /// Busy time over the last minute, millionths; absent while unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub busy: Option<u32>,
}

/// One stage of work.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct StageReport {
    /// In words, such as `vCPU thread 4711 (CPU 0/KVM)`.
    pub stage: String,
    /// Such as `soft-irq`.
    pub kind: String,
    /// The vNICs for which it works.
    pub vnics: Vec<String>,
    /// CPU time that it uses, millionths of one CPU.
    pub load: u32,
    /// Whether the load was measured; from contracts if not.
    pub measured: bool,
    /// CPUs where it may run.
    pub present: Vec<usize>,
    /// CPUs that the plan gives it; empty if the plan leaves it alone.
    pub planned: Vec<usize>,
    /// Why there, or why it is left alone.
    pub reason: String,
    /// The fault that keeps it from its planned CPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing: Option<String>,
}

impl StageReport {
    /// Whether the plan gives it other CPUs than those where it may run.
    pub fn is_misplaced(&self) -> bool {
        !self.planned.is_empty() && self.planned != self.present
    }
}

/// A plan's figures.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PlanReport {
    /// Cost of the plan, ns of CPU time lost a second.
    pub cost_ns: u64,
    /// Cost of the present placement by the same model, ns a second.
    pub present_cost_ns: u64,
    /// No plan costs less than this, ns a second.
    pub lower_bound_ns: u64,
    /// Whether no plan is better.
    pub exact: bool,
    /// Time that planning took, us.
    pub took_us: u64,
    /// Deadlines whose needs cannot be met on this machine.
    pub impossible: Vec<ImpossibleReport>,
}

/// A vNIC whose deadline's needs cannot be met.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ImpossibleReport {
    /// The vNIC.
    pub vnic: String,
    /// The missing thing, and the consequence.
    pub reason: String,
}

/// Other software, or a setting, that contradicts the plan.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ConflictReport {
    /// The program or setting, such as `irqbalance`.
    pub with: String,
    /// The contradiction, and its consequence.
    pub what: String,
    /// What a person can do; empty if nothing needs to be done.
    pub remedy: String,
}

impl ConflictReport {
    /// Whether a person has to do something.
    pub fn needs_a_person(&self) -> bool {
        !self.remedy.is_empty()
    }
}

/// The steering of one NIC's frames.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SteeringReport {
    /// The interface.
    pub device: String,
    /// `native` or `generic` XDP; absent while not attached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// Whether the program is in libxdp's dispatcher, beside others.
    #[serde(default)]
    pub chained: bool,
    /// Why its frames are not steered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing: Option<String>,
    /// The flows.
    pub flows: Vec<FlowReport>,
    /// Frames of no flow, by the CPU that they were spread to.
    pub spread: Vec<SpreadReport>,
    /// Frames that stayed on the CPU of their queue: no IP, fragments, unknown or truncated headers.
    pub passed: u64,
    /// Frames that a CPU's queue (cpumap) had no room for.
    pub dropped: u64,
}

/// One steered flow.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct FlowReport {
    /// Its name.
    pub flow: String,
    /// Its fields, in words.
    pub matches: String,
    /// Its CPU.
    pub cpu: usize,
    /// Frames so far.
    pub frames: u64,
    /// Bytes so far.
    pub bytes: u64,
}

/// Frames of no flow that were spread to one CPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SpreadReport {
    /// The CPU.
    pub cpu: usize,
    /// Frames so far.
    pub frames: u64,
}
