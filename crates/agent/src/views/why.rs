//! Why frames of a vNIC were late, throttled or dropped.

use super::window::WindowView;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use tidegate_evidence::{Delay, FarMiss, Miss};
use utoipa::ToSchema;

/// Why frames of a vNIC were late, throttled or dropped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WhyView {
    /// The vNIC.
    pub vnic: String,
    /// In plain words, most important first.
    pub findings: Vec<String>,
    /// The window that all this is of, but for what says otherwise; absent where it is since the port was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<WindowView>,
    /// How frames that the VM sent waited for its own limit; absent where it has none, or nothing was sent under it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tx_wait: Option<OwnWait>,
    /// How frames to the VM waited for its own limit; absent as above.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rx_wait: Option<OwnWait>,
    /// Certain deadline misses by cause.
    pub misses: BTreeMap<String, u64>,
    /// Possible misses: in time by the least that the delay can have been, late by the most.
    #[serde(default)]
    pub misses_possible: u64,
    /// Frames that were late only if the worker's wake-up took that long, which it cannot measure.
    #[serde(default)]
    pub misses_asleep: u64,
    /// The latest of all these, oldest first; of the last kind only the longest of a second.
    #[schema(value_type = Vec<Object>)]
    pub latest_misses: Vec<Miss>,
    /// The latest of its frames that other hosts reported as late there, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub far_misses: Vec<FarMiss>,
    /// What held the worker up: how often, by kind, since the agent was started. Not with a window.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub culprits: BTreeMap<String, u64>,
    /// Why what keeps the worker from its CPU is not observed, where it is not, and a frame was late for the worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unobserved: Option<String>,
    /// Dropped of what the VM sent, by reason.
    pub tx_dropped: BTreeMap<String, u64>,
    /// Dropped of what the VM should have received, by reason.
    pub rx_dropped: BTreeMap<String, u64>,
    /// Time with frames waiting for tokens, ns.
    pub throttled_ns: u64,
}

/// How frames waited for a limit of their vNIC's own contract.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OwnWait {
    /// The limit, such as `tx.max = 20mbit`.
    pub limit: String,
    /// How long frames waited for it, ns; those that did not wait count as 0.
    #[schema(value_type = Object)]
    pub waited: Delay,
    /// The same of frames that waited by flow and found none of their flow before them, such as a ping beside uploads, until
    /// their first part left; absent where there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub sparse: Option<Delay>,
    /// Frames marked "congestion experienced" (ECN) in place of being dropped.
    pub marked: u64,
    /// Flows of which frames wait now; absent where frames never waited by flow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flows_now: Option<u64>,
    /// The most flows that waited at a time, since the port was made; absent as above.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flows_most: Option<u64>,
}
