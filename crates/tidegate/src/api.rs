//! What the agent's API answers, as far as this program reads it.

use serde::Deserialize;
use tidegate_contract::{Bytes, Nanos, Rate, Vnic};
use tidegate_switch::control::Connection;
use tidegate_switch::stats::{Miss, VnicStats, WorkerStats};

/// One vNIC: its contract, its state and what was counted.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct VnicState {
    /// The contract in force.
    pub contract: Vnic,
    /// Where the contract comes from: a file's path, or `api`.
    pub origin: String,
    /// How it is connected; absent where the port is not there.
    #[serde(default)]
    pub connection: Option<Connection>,
    /// What a person would want to know.
    #[serde(default)]
    pub notes: Vec<String>,
    /// What was counted.
    #[serde(default)]
    pub stats: VnicStats,
    /// For each place its deadline leads to.
    #[serde(default)]
    pub bounds: Vec<Bound>,
}

/// A computed delay bound and how it came about.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Bound {
    /// Where the frames go.
    pub egress: String,
    /// d, as promised.
    pub deadline: Nanos,
    /// B, the bound.
    pub bound: Nanos,
    /// The interval in which it is tightest.
    pub critical_t: Nanos,
    /// Real-time traffic due within that interval.
    pub demand: Bytes,
    /// C.
    pub capacity: Rate,
    /// L.
    pub blocking: Bytes,
    /// H.
    pub host_latency: Nanos,
}

/// Why a vNIC waits, drops and misses.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Why {
    /// The vNIC.
    #[serde(flatten)]
    pub vnic: VnicState,
    /// The latest misses, oldest first.
    #[serde(default)]
    pub misses: Vec<Miss>,
}

/// What applying contracts would change, or has changed. What is not
/// admissible is an error answer instead.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Plan {
    /// In the order in which they are done; empty where all is as wanted.
    pub changes: Vec<Change>,
    /// The delay bounds that then hold.
    #[serde(default)]
    pub bounds: Vec<PlannedBound>,
    /// What a place lets a reader know about an attachment.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Change {
    /// What is done, such as `create`.
    pub action: String,
    /// The vNIC; absent for host-wide settings.
    #[serde(default)]
    pub vnic: Option<String>,
    /// What becomes different, such as `tx.max: 50mbit -> 100mbit`.
    #[serde(default)]
    pub details: Vec<String>,
}

/// A delay bound of one vNIC.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct PlannedBound {
    /// The sender.
    pub vnic: String,
    /// The bound.
    #[serde(flatten)]
    pub bound: Bound,
}

/// The host and its switch.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct HostState {
    /// The switch's workers.
    #[serde(default)]
    pub workers: Vec<WorkerStats>,
}

impl HostState {
    /// Worker loops that were longer than the host budget H.
    pub fn violations(&self) -> u64 {
        self.workers.iter().map(|w| w.loops_over_budget).sum()
    }
}
