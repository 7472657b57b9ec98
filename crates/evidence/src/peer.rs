//! Other hosts: their clocks, what they told this one, and frames of ours that were late there.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::IpAddr;
use tidegate_contract::Mac;

/// Late frames remembered for each uplink.
pub const FAR_MISSES: usize = 256;

/// What this host knows of another one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PeerStatus {
    /// The peer.
    pub name: String,
    /// The uplink that leads to it.
    pub uplink: String,
    /// Its address.
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub address: IpAddr,
    /// Why its clock is not asked; absent if it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unasked: Option<String>,
    /// Whether it has answered lately.
    pub reachable: bool,
    /// Its clock; absent if it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock: Option<PeerClock>,
    /// Round trips of exchanges; absent before the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub round_trip: Option<RoundTrip>,
    /// Counters since the switch knows the peer.
    pub counts: PeerCounts,
}

/// The offset between two hosts' clocks, CLOCK_MONOTONIC_RAW.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PeerClock {
    /// The peer's clock less this host's (ns).
    pub offset_ns: i64,
    /// The true offset differs by at most this (ns), now.
    pub error_ns: u64,
    /// Time since the exchange that it is from (ns).
    pub age_ns: u64,
}

/// Round trips without the time in the peer (ns).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct RoundTrip {
    /// The least of the last 32 (ns).
    pub least_ns: u64,
    /// The last one (ns).
    pub last_ns: u64,
}

/// Counters of one peer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PeerCounts {
    /// Exchanges done.
    pub exchanges: u64,
    /// Requests without an answer.
    pub missing: u64,
    /// Exchanges whose times contradict each other.
    pub contradictions: u64,
    /// Starts of another switch process at the peer.
    pub restarts: u64,
    /// Times that the offset was given up, since the peer had been silent for too long.
    pub withdrawn: u64,
    /// Notices that this host's kernel did not send.
    pub unsent: u64,
    /// Refused notices by reason; reasons that never occurred are left out.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub refused: BTreeMap<String, u64>,
    /// Reports of late frames sent to it.
    pub reports_sent: u64,
    /// Reports of late frames that came from it.
    pub reports_received: u64,
    /// Late frames that it reported, one by one or as a number.
    pub late_frames: u64,
    /// vNICs of this host that were announced to it.
    pub announcements_sent: u64,
    /// vNICs that it announced.
    pub announcements_received: u64,
    /// Queue pairs of this host's vNICs that were announced to it, each time counted.
    #[serde(default)]
    pub members_sent: u64,
    /// Queue pairs of its vNICs that it announced, each time counted.
    #[serde(default)]
    pub members_received: u64,
}

/// A frame of this host that was late at another one, as that one reports it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct FarMiss {
    /// Number of the report among those of its uplink, from 1.
    pub number: u64,
    /// When the report came (ns since the epoch, by the clock's present setting).
    pub at: u64,
    /// The sending vNIC.
    pub vnic: String,
    /// The host that reports it.
    pub peer: String,
    /// Destination address.
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub dst: Mac,
    /// Number in the frame's stamp.
    pub sequence: u32,
    /// [`MissCause::label`](crate::MissCause::label): `sender`, `network`, or a cause in the receiving host.
    pub cause: String,
    /// The receiving host dropped it.
    pub dropped: bool,
    /// Td (ns).
    pub deadline_ns: u64,
    /// Tr - Ts - Td (ns); 0 if it was dropped in time.
    pub late_ns: u64,
    /// The error of `late_ns` (ns).
    pub error_ns: u64,
    /// Time in this host (ns).
    pub hold_ns: u64,
    /// Time in the network (ns).
    pub network_ns: u64,
    /// Time in the receiving host (ns).
    pub there_ns: u64,
    /// Further late frames of the vNIC that the report counts and does not tell.
    pub others: u32,
}

impl FarMiss {
    /// Returns whether the miss is certain: the frame was dropped, or later than the clocks' error.
    pub fn is_certain(&self) -> bool {
        self.dropped || self.late_ns > self.error_ns
    }
}
