//! CPUs that a place's workers have for themselves.

use serde::{Deserialize, Serialize};

/// Work that is kept off the CPUs to which the switch's workers are pinned, while a deadline is in force.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct OwnCpus {
    /// Those CPUs; empty if no worker is pinned, no deadline is in force, or there is no other CPU for the other work.
    pub cpus: Vec<usize>,
    /// Queues of taps whose network stack is to run on other CPUs.
    pub queues: usize,
    /// Of these queues, those whose stack does.
    pub steered: usize,
    /// Of `cpus`, those that do not halt while real-time frames flow: their idle time counts as used.
    pub awake: Vec<usize>,
    /// Work that is not kept off, the reason, and the consequence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing: Option<String>,
}
