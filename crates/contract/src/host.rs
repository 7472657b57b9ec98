//! What the host declares about itself: the `[host]` table.

use crate::{Bytes, Nanos, Rate};
use serde::{Deserialize, Serialize};

/// The `[host]` table; it may stand in one file only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Host {
    /// H of the admission arithmetic: worst worker loop, both workers of a
    /// crossing, the wake-up and one 64 KB copy. 250 us unless said otherwise.
    pub host_latency: Nanos,
    /// Capacity of the uplink; no uplink where absent.
    pub uplink: Option<Rate>,
    /// Broadcast, multicast and unknown-unicast frames a vNIC may send: rate of
    /// *copies made*; 10 Mbit/s unless said otherwise.
    pub flood: Rate,
    /// Burst of `flood`.
    pub flood_burst: Bytes,
}

impl Default for Host {
    fn default() -> Self {
        Self {
            host_latency: Nanos::new(250_000),
            uplink: None,
            flood: Rate::from_bits(10_000_000).expect("within the range of a rate"),
            flood_burst: Bytes::new(100_000),
        }
    }
}
