//! The `[host]` table: what the host declares about itself.

use crate::{Bytes, Nanos, Rate, Segment};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The `[host]` table; only one file may have it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Host {
    /// H of the admission arithmetic: worst worker loop, both workers of a crossing, the wake-up and one 64
    /// KB copy. Default 250 us.
    pub host_latency: Nanos,
    /// Time in each second for which a worker may poll for real-time frames, 0 (never) to 1 s; polling
    /// counts as CPU used. Default 250 ms.
    pub busy_poll: Nanos,
    /// Capacity of the uplink; `None` without an uplink.
    pub uplink: Option<Rate>,
    /// Rate of *copies made* of a vNIC's broadcast, multicast and unknown-unicast frames. Default 10
    /// Mbit/s.
    pub flood: Rate,
    /// Burst of `flood`.
    pub flood_burst: Bytes,
    /// NICs with virtual functions, by the physical function's interface name: `[host.nic.NAME]`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub nic: BTreeMap<String, Nic>,
}

/// The `[host.nic.NAME]` table of one NIC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Nic {
    /// Rate that its functions may send together, if lower than its link's speed.
    pub capacity: Option<Rate>,
    /// Whether the traffic-engineering loop runs.
    pub control: Control,
    /// Shortest period of the loop, 10 ms to 1 s; longer if the NIC is too slow. Default 100 ms.
    pub period: Nanos,
    /// Rates that the functions of a segment may send together.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub segment: BTreeMap<Segment, Aggregate>,
}

/// Whether the traffic-engineering loop of a NIC runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Control {
    /// Where a contract needs it: a minimum that the NIC cannot keep by itself, a weight, a segment's aggregate.
    #[default]
    Auto,
    /// Always: functions share the link fairly.
    On,
    /// Never: contracts that need it are refused.
    Off,
}

/// Rates of the functions of one segment on one NIC together: `[host.nic.NAME.segment.ID]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Aggregate {
    /// Limit.
    pub max: Option<Rate>,
    /// Guarantee, as far as they want it.
    pub min: Option<Rate>,
}

impl Default for Nic {
    fn default() -> Self {
        Self {
            capacity: None,
            control: Control::default(),
            period: Nanos::new(100_000_000),
            segment: BTreeMap::new(),
        }
    }
}

impl Default for Host {
    fn default() -> Self {
        Self {
            host_latency: Nanos::new(250_000),
            busy_poll: Nanos::new(250_000_000),
            uplink: None,
            flood: Rate::from_bits(10_000_000).expect("within the range of a rate"),
            flood_burst: Bytes::new(100_000),
            nic: BTreeMap::new(),
        }
    }
}
