//! What the host declares about itself: the `[host]` table.

use crate::{Bytes, Nanos, Rate, Segment};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The `[host]` table; it may stand in one file only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Host {
    /// H of the admission arithmetic: worst worker loop, both workers of a
    /// crossing, the wake-up and one 64 KB copy. 250 us unless said otherwise.
    pub host_latency: Nanos,
    /// For how long of each second a worker may wait awake for real-time frames, 0 to 1 s: it polls, which counts as CPU
    /// used. 250 ms unless said otherwise; 0 is never.
    pub busy_poll: Nanos,
    /// Capacity of the uplink; no uplink where absent.
    pub uplink: Option<Rate>,
    /// Broadcast, multicast and unknown-unicast frames a vNIC may send: rate of
    /// *copies made*; 10 Mbit/s unless said otherwise.
    pub flood: Rate,
    /// Burst of `flood`.
    pub flood_burst: Bytes,
    /// NICs with virtual functions, by the physical function's interface name: `[host.nic.NAME]`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub nic: BTreeMap<String, Nic>,
}

/// What is declared about one NIC: the `[host.nic.NAME]` table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Nic {
    /// What its functions may send together, where that is less than its link's speed.
    pub capacity: Option<Rate>,
    /// Whether the traffic-engineering loop runs.
    pub control: Control,
    /// How often the loop looks and sets, at most: 10 ms to 1 s; 100 ms unless said otherwise. Where the NIC bears
    /// less, it is less often.
    pub period: Nanos,
    /// What the functions of one segment may send together.
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
    /// Always: what functions send is shared out fairly.
    On,
    /// Never: what needs it is refused.
    Off,
}

/// What the functions of one segment on one NIC may send together: `[host.nic.NAME.segment.ID]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Aggregate {
    /// At most.
    pub max: Option<Rate>,
    /// At least, where they want it.
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
