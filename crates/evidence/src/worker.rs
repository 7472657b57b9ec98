//! The counters of a worker.

use crate::Delay;
use serde::{Deserialize, Serialize};

/// One worker's counters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerStats {
    /// Loops that found work.
    pub loops: u64,
    /// Loops longer than the host budget.
    pub loops_over_budget: u64,
    /// The longest loop, ns.
    pub longest_loop_ns: u64,
    /// Number of sleeps.
    pub sleeps: u64,
    /// Time asleep, ns.
    pub asleep_ns: u64,
    /// Time awake without work (ns): the worker polled, for real-time frames or for a moment after work.
    #[serde(default)]
    pub awake_ns: u64,
    /// Events that the log omitted because there were too many.
    #[serde(default)]
    pub events_lost: u64,
    /// The worker's own CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<u64>,
    /// Durations of loops that found work.
    #[serde(default)]
    pub loop_time: Delay,
}
