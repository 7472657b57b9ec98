//! What `GET /v1/status` answers. The command line reads the same types.

use super::host::PlaceView;
use serde::{Deserialize, Serialize};
use tidegate_evidence::OwnCpus;
use utoipa::ToSchema;

/// How the host is: what needs a person, and the figures beside it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StatusView {
    /// Release of the agent.
    pub version: String,
    /// What needs a person, most urgent first; empty where nothing does.
    pub attention: Vec<Attention>,
    /// The places where contracts are kept.
    pub places: Vec<PlaceView>,
    /// Files of contracts.
    pub files: FileCounts,
    /// vNICs, by state.
    pub vnics: VnicCounts,
    /// vNICs with a deadline.
    pub deadlines: DeadlineCounts,
    /// Whether the host kept its budget H.
    pub host_latency: HostLatency,
    /// CPUs of the switch's workers, and what is steered off them.
    #[serde(default)]
    pub own_cpus: OwnCpus,
    /// Whether work is where the plan of CPUs has it.
    #[serde(default)]
    pub cores: PlacedCounts,
    /// Differences between contract and place that the agent found and set right.
    pub drift: Repaired,
    /// System calls denied to the switch since it was started.
    pub denied_calls: u64,
    /// What "recently" means in this answer, seconds.
    pub recent_s: u64,
}

impl StatusView {
    /// Adds what else needs a person.
    pub fn add(&mut self, more: impl IntoIterator<Item = Attention>) {
        self.attention.extend(more);
        self.attention.sort_by_key(|attention| attention.kind);
    }
}

/// Something that needs a person.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Attention {
    /// What kind of trouble.
    pub kind: AttentionKind,
    /// Whom it concerns: vNICs, a place, or `FILE:LINE`; empty where it is the host as a whole.
    pub about: Vec<String>,
    /// What is wrong; may have several lines.
    pub what: String,
    /// The command to run next.
    pub next: String,
}

/// A kind of trouble, most urgent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum AttentionKind {
    /// A place does not answer, and contracts are to be kept there.
    PlaceAway,
    /// The switch made a system call that it does not need.
    DeniedCall,
    /// Something is wrong on the host as a whole, such as a state folder that cannot be written.
    Problem,
    /// A contract could not be brought into force; the agent tries again.
    FailedVnic,
    /// An uplink could not be made, or broke; the agent tries again.
    FailedUplink,
    /// Another host does not answer: no frame from there is judged by its deadline.
    SilentPeer,
    /// The present contents of a contract file are not in force.
    RefusedFile,
    /// A contract waits for something that is not there, such as a link.
    PendingVnic,
    /// A port takes no front end for a while, for what the last one's objects did to the switch.
    Quarantine,
    /// A deadline is not promised although its contract is in force.
    SuspendedDeadline,
    /// The machine has no CPU for what a deadline needs.
    ImpossibleDeadline,
    /// Worker loops took longer than `host-latency` recently, while delay bounds were promised.
    HostLatency,
    /// A device for RDMA is of no use, or a vNIC has no queue pair: frames go as VXLAN.
    NoRdma,
    /// A vNIC that asks for zero copy has none, for a reason that stays: its frames are copied.
    NoZeroCopy,
    /// Work is not on the CPU that the plan gives it, or frames of a NIC are not steered.
    UnplacedWork,
    /// Another program or a setting contradicts the plan of CPUs.
    CpuConflict,
    /// Another program keeps changing what a place has set.
    Drift,
}

impl AttentionKind {
    /// All kinds.
    pub const ALL: [Self; 17] = [
        Self::PlaceAway,
        Self::DeniedCall,
        Self::Problem,
        Self::FailedVnic,
        Self::FailedUplink,
        Self::SilentPeer,
        Self::RefusedFile,
        Self::PendingVnic,
        Self::Quarantine,
        Self::SuspendedDeadline,
        Self::ImpossibleDeadline,
        Self::HostLatency,
        Self::NoRdma,
        Self::NoZeroCopy,
        Self::UnplacedWork,
        Self::CpuConflict,
        Self::Drift,
    ];

    /// Returns the name in JSON and in metrics.
    pub fn label(self) -> &'static str {
        match self {
            Self::PlaceAway => "place-away",
            Self::DeniedCall => "denied-call",
            Self::Problem => "problem",
            Self::FailedVnic => "failed-vnic",
            Self::FailedUplink => "failed-uplink",
            Self::SilentPeer => "silent-peer",
            Self::RefusedFile => "refused-file",
            Self::PendingVnic => "pending-vnic",
            Self::Quarantine => "quarantine",
            Self::SuspendedDeadline => "suspended-deadline",
            Self::ImpossibleDeadline => "impossible-deadline",
            Self::HostLatency => "host-latency",
            Self::NoRdma => "no-rdma",
            Self::NoZeroCopy => "no-zero-copy",
            Self::UnplacedWork => "unplaced-work",
            Self::CpuConflict => "cpu-conflict",
            Self::Drift => "drift",
        }
    }
}

/// How many contract files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FileCounts {
    /// Those whose present contents are accepted.
    pub accepted: usize,
    /// Those whose present contents are not.
    pub refused: usize,
}

/// How many vNICs, by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VnicCounts {
    /// Contract in force.
    pub in_force: usize,
    /// Their place is away, or what they need is not there.
    pub pending: usize,
    /// Tried in vain.
    pub failed: usize,
    /// Named by a refused file only.
    pub refused: usize,
}

/// How many vNICs with a deadline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DeadlineCounts {
    /// Promised right now.
    pub promised: usize,
    /// Not promised right now, for whatever reason.
    pub suspended: usize,
}

/// How many stages of work are where the plan of CPUs has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PlacedCounts {
    /// Whether the plan is kept.
    pub kept: bool,
    /// Stages to which the plan gives CPUs.
    pub planned: usize,
    /// Planned stages on other CPUs.
    pub elsewhere: usize,
}

/// The workers' loops against H.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HostLatency {
    /// H, `host-latency` of the `[host]` table, ns.
    pub budget_ns: u64,
    /// Loops that found work, since the switch was started; 0 while it is away.
    pub loops: u64,
    /// Those longer than H.
    pub loops_over_budget: u64,
    /// How many of these loops were recent.
    pub recently_over_budget: u64,
    /// The longest since the switch was started, ns.
    pub longest_loop_ns: u64,
}

/// How often something was set right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Repaired {
    /// Since the agent was started.
    pub since_start: u64,
    /// Recently.
    pub recently: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_has_one_name() {
        for kind in AttentionKind::ALL {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.label());
        }
        assert!(AttentionKind::ALL.is_sorted(), "in the order of their urgency");
    }
}
