//! The counters of a vNIC.

use crate::{Delay, Traffic, Work};
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
    /// Time with frames waiting for tokens, ns.
    pub throttled_ns: u64,
    /// Waiting for tokens now.
    pub throttled: bool,
    /// How long the frames that it sent waited for its own `tx.max`, those that did not wait included; absent where no
    /// worker of ours limits it, and as long as nothing was sent under the limit in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_tx: Option<Delay>,
    /// How long the frames to it waited for its own `rx.max`, as above.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_rx: Option<Delay>,
    /// Of what it sent, and what waited for `tx.max` by flow: how long frames waited that found none of their flow before them,
    /// such as a ping beside uploads, until their first part left. Absent as long as there was none under the limit in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sparse_tx: Option<Delay>,
    /// The same of frames to it, and of its `rx.max`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sparse_rx: Option<Delay>,
    /// Time of its worker; absent where no worker of ours carries its frames.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub work: Option<Work>,
    /// Tr - Ts of what it sent: the most that it can have been while the worker was awake.
    pub delay: Delay,
    /// The least that it can have been, of the same frames.
    #[serde(default)]
    pub delay_least: Delay,
    /// Real-time frames delivered.
    pub realtime_delivered: u64,
    /// The worst Tr - Ts of those under the deadline in force, ns: the most that it can have been.
    #[serde(default)]
    pub realtime_worst_ns: u64,
    /// The worst of the least that it can have been, ns.
    #[serde(default)]
    pub realtime_worst_least_ns: u64,
    /// Certain deadline misses by [`MissCause::label`](crate::MissCause::label); causes that never occurred are left out.
    pub misses: BTreeMap<String, u64>,
    /// Possible misses: in time by the least delay, late by the most.
    #[serde(default)]
    pub misses_possible: u64,
    /// Frames that were late only if the worker's wake-up took that long, which it cannot measure.
    #[serde(default)]
    pub misses_asleep: u64,
    /// The link-local addresses that it holds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub link_local: Vec<Ipv6Addr>,
}
