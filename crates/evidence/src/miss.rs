//! Deadline misses, and the culprits that delayed the worker.

use serde::{Deserialize, Serialize};

/// Misses remembered per vNIC.
pub const MISSES: usize = 32;

/// One deadline miss.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Miss {
    /// Number of the miss among those of this vNIC, from 1.
    pub number: u64,
    /// Time of the delivery or drop (ns since the epoch, by the clock's present setting).
    pub at: u64,
    /// The receiver.
    pub egress: String,
    /// [`MissCause::label`](crate::MissCause::label).
    pub cause: String,
    /// [`DropReason::label`](crate::DropReason::label) if the frame was dropped.
    pub dropped: Option<String>,
    /// The vNIC whose frames were ahead.
    pub behind: Option<String>,
    /// Longest possible Tr - Ts without `slept` (ns).
    pub delay: u64,
    /// Shortest possible Tr - Ts (ns). If it exceeds `deadline`, or the frame was dropped, the miss is certain.
    #[serde(default)]
    pub delay_least: u64,
    /// Possible further delay because the worker slept (ns): the worker cannot measure its wake-up.
    #[serde(default)]
    pub slept: u64,
    /// Time at which the worker first saw the frame, as `at`; absent if no worker of ours carries the frames. The frame
    /// waited for that from `at - delay - slept` at the earliest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seen: Option<u64>,
    /// The sender's worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<u64>,
    /// Td, ns.
    pub deadline: u64,
    /// Wait for its own envelope, before Ts (ns).
    pub tokens: u64,
    /// Wait before a worker looked (ns).
    pub worker: u64,
    /// Wait in the queue (ns).
    pub queue: u64,
    /// Wait for receive buffers (ns).
    pub buffers: u64,
    /// The culprit that delayed the worker. The switch does not know it; the agent adds it if it finds one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub culprit: Option<Culprit>,
}

impl Miss {
    /// Returns whether the miss is certain: the frame was dropped, or late even by the least delay.
    pub fn is_certain(&self) -> bool {
        self.dropped.is_some() || self.delay_least > self.deadline
    }

    /// Returns whether the frame was late only if the worker's wake-up took that long.
    pub fn is_by_sleep(&self) -> bool {
        !self.is_certain() && self.delay <= self.deadline
    }
}

/// The cause that delayed a worker while a frame was late.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Culprit {
    /// [`CulpritKind::label`](crate::CulpritKind::label).
    pub kind: String,
    /// The description, such as `ksoftirqd/2 NET_RX`.
    pub what: String,
    /// Its part of the frame's delay (ns).
    pub took: u64,
}
