//! The counters of a vNIC.

use crate::{Delay, OnWire, Traffic, Work};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::Ipv6Addr;

/// One vNIC's counters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VnicStats {
    /// The vNIC.
    pub name: String,
    /// Its index in the region.
    pub index: usize,
    /// What the VM sent.
    pub tx: Traffic,
    /// What the VM received.
    pub rx: Traffic,
    /// Time with frames that waited for tokens (ns).
    pub throttled_ns: u64,
    /// Whether frames wait for tokens now.
    pub throttled: bool,
    /// Waits of sent frames for the vNIC's own `tx.max`, including waits of 0; absent if no worker of ours limits it, or
    /// nothing was sent under the limit in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_tx: Option<Delay>,
    /// Waits of received frames for the vNIC's own `rx.max`, as above.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_rx: Option<Delay>,
    /// Waits for `tx.max` by flow of sent frames that found no frame of their flow before them, such as a ping beside
    /// uploads, until their first part left; absent if there was none under the limit in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sparse_tx: Option<Delay>,
    /// The same of received frames, and `rx.max`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sparse_rx: Option<Delay>,
    /// Time of its worker; absent if no worker of ours carries its frames.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub work: Option<Work>,
    /// Longest possible Tr - Ts of sent frames, with the worker awake.
    pub delay: Delay,
    /// Shortest possible Tr - Ts of the same frames.
    #[serde(default)]
    pub delay_least: Delay,
    /// Real-time frames delivered.
    pub realtime_delivered: u64,
    /// Worst of the longest possible Tr - Ts under the deadline in force (ns).
    #[serde(default)]
    pub realtime_worst_ns: u64,
    /// Worst of the shortest possible Tr - Ts (ns).
    #[serde(default)]
    pub realtime_worst_least_ns: u64,
    /// Certain deadline misses by [`MissCause::label`](crate::MissCause::label); causes that never occurred are left out.
    pub misses: BTreeMap<String, u64>,
    /// Possible misses: in time by the least delay, late by the most.
    #[serde(default)]
    pub misses_possible: u64,
    /// Frames that were late only if the worker's wake-up, which it cannot measure, took that long.
    #[serde(default)]
    pub misses_asleep: u64,
    /// What went on the wire between hosts; absent unless it is an uplink.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_wire: Option<OnWire>,
    /// The link-local addresses that it holds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub link_local: Vec<Ipv6Addr>,
}
