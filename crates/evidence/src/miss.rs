//! A deadline that was missed, and what held the worker up.

use serde::{Deserialize, Serialize};

/// Misses remembered per vNIC.
pub const MISSES: usize = 32;

/// One deadline miss.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Miss {
    /// Which miss of this vNIC, counting from 1.
    pub number: u64,
    /// When it was delivered or dropped, nanoseconds since the epoch by the clock as it is set now.
    pub at: u64,
    /// The vNIC it was sent to.
    pub egress: String,
    /// [`MissCause::label`](crate::MissCause::label).
    pub cause: String,
    /// [`DropReason::label`](crate::DropReason::label) where it was dropped.
    pub dropped: Option<String>,
    /// The vNIC whose frames were ahead of it.
    pub behind: Option<String>,
    /// Tr - Ts, ns: the most that it can have been, but for `slept`.
    pub delay: u64,
    /// The least that it can have been, ns. Beyond `deadline`, or where it was dropped, the miss is certain.
    #[serde(default)]
    pub delay_least: u64,
    /// How much longer it can have been because the worker slept, ns: how long its wake-up took, it does not know.
    #[serde(default)]
    pub slept: u64,
    /// When the worker first saw the frame, in the terms of `at`; absent where no worker of ours carries its frames. It
    /// waited to be looked at from at most `at - delay - slept` until then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seen: Option<u64>,
    /// The worker that owned its sender.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<u64>,
    /// Td, ns.
    pub deadline: u64,
    /// Waited for its own envelope before the clock started, ns.
    pub tokens: u64,
    /// Waited before a worker looked, ns.
    pub worker: u64,
    /// Waited in the queue, ns.
    pub queue: u64,
    /// Waited for receive buffers, ns.
    pub buffers: u64,
    /// What held the worker up. The switch does not know it; the agent enters it where the miss was for the worker and the
    /// agent found out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub culprit: Option<Culprit>,
}

impl Miss {
    /// Whether it was missed for certain: dropped, or late even by the least delay.
    pub fn is_certain(&self) -> bool {
        self.dropped.is_some() || self.delay_least > self.deadline
    }

    /// Whether it was missed only if the worker's wake-up took that long.
    pub fn is_by_sleep(&self) -> bool {
        !self.is_certain() && self.delay <= self.deadline
    }
}

/// What held a worker up while a frame was late.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Culprit {
    /// [`CulpritKind::label`](crate::CulpritKind::label).
    pub kind: String,
    /// What it was, such as `ksoftirqd/2 NET_RX`.
    pub what: String,
    /// How much of the frame's delay it was, ns.
    pub took: u64,
}
