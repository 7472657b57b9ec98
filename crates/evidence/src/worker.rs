//! A worker's account of itself.

use crate::Delay;
use serde::{Deserialize, Serialize};

/// One worker's account of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerStats {
    /// Loops that found work.
    pub loops: u64,
    /// Loops longer than the host budget.
    pub loops_over_budget: u64,
    /// The longest loop, ns.
    pub longest_loop_ns: u64,
    /// Times it slept.
    pub sleeps: u64,
    /// Time asleep, ns.
    pub asleep_ns: u64,
    /// Time awake with nothing to do, ns: it polled, for real-time frames or for a moment after work.
    #[serde(default)]
    pub awake_ns: u64,
    /// Events of it that the log does not tell of, since there were too many.
    #[serde(default)]
    pub events_lost: u64,
    /// The CPU that it has for itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<u64>,
    /// How long the loops that found work took.
    #[serde(default)]
    pub loop_time: Delay,
}
