//! The host's declarations: the `[host]` table.

use crate::{Bytes, Cores, Flow, Nanos, Rate, Segment};
use serde::de::{Deserializer, IgnoredAny};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The `[host]` table; it may stand in one file only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Host {
    /// H of the admission arithmetic: the worst worker loop, both workers of a crossing, the wake-up and one 64 KB
    /// copy. Default 250 us.
    pub host_latency: Nanos,
    /// Time of each second for which a worker may poll for real-time frames, which counts as CPU used: 0 (never) to
    /// 1 s, default 250 ms.
    pub busy_poll: Nanos,
    /// Nothing: [`crate::Uplink::rate`] has the capacity that older releases wrote here. Any value is read, and `null`
    /// written, which they read.
    #[doc(hidden)]
    #[serde(deserialize_with = "ignored")]
    pub uplink: (),
    /// Limit on a vNIC's broadcast, multicast and unknown-unicast frames: the rate of *copies made*, default
    /// 10 Mbit/s.
    pub flood: Rate,
    /// Burst of `flood`.
    pub flood_burst: Bytes,
    /// NICs with virtual functions, by the physical function's interface name: `[host.nic.NAME]`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub nic: BTreeMap<String, Nic>,
    /// CPUs for the work of frames: `[host.cores]`.
    #[serde(skip_serializing_if = "is_default")]
    pub cores: Cores,
    /// Flows for CPUs, by name: `[host.flow.NAME]`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub flow: BTreeMap<String, Flow>,
}

/// The declarations about one NIC: the `[host.nic.NAME]` table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Nic {
    /// Rate that its functions may send together, if that is less than its link's speed.
    pub capacity: Option<Rate>,
    /// Whether the traffic-engineering loop runs.
    pub control: Control,
    /// Shortest period of the loop: 10 ms to 1 s, default 100 ms. Longer if the NIC requires it.
    pub period: Nanos,
    /// Limits of the functions of each segment together.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub segment: BTreeMap<Segment, Aggregate>,
}

/// Whether the traffic-engineering loop of a NIC runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Control {
    /// If a contract needs it: for a minimum that the NIC cannot keep by itself, a weight, a segment's aggregate.
    #[default]
    Auto,
    /// Always: functions share the link fairly.
    On,
    /// Never: contracts that need it are refused.
    Off,
}

/// The rates that the functions of one segment on one NIC send together: `[host.nic.NAME.segment.ID]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Aggregate {
    /// The most.
    pub max: Option<Rate>,
    /// The least, if they have enough to send.
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
            uplink: (),
            flood: Rate::from_bits(10_000_000).expect("within the range of a rate"),
            flood_burst: Bytes::new(100_000),
            nic: BTreeMap::new(),
            cores: Cores::default(),
            flow: BTreeMap::new(),
        }
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

fn ignored<'de, D: Deserializer<'de>>(deserializer: D) -> Result<(), D::Error> {
    IgnoredAny::deserialize(deserializer).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_uplink_of_an_older_release_is_read_and_dropped() {
        for uplink in ["null", "\"10gbit\""] {
            let text = format!(r#"{{"host_latency":"100us","uplink":{uplink},"flood":"10mbit"}}"#);
            let host: Host = serde_json::from_str(&text).expect("an older release's");
            assert_eq!(host, Host { host_latency: Nanos::new(100_000), ..Host::default() });
            let written = serde_json::to_string(&host).expect("serialises");
            assert!(written.contains(r#""uplink":null"#), "older releases read ours: {written}");
        }
    }
}
