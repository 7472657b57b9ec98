//! A vNIC of this host and one of another host: frames with a deadline between them, and how they arrived.

use serde::{Deserialize, Serialize};

/// Frames between a vNIC of this host and one of another host that carry stamps.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PairStatus {
    /// The vNIC of this host.
    pub vnic: String,
    /// The other one.
    pub remote: String,
    /// Outer UDP source port of frames to it, of this pair alone; absent if it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// Frames that left with a stamp.
    pub sent: u64,
    /// Frames that arrived with a valid stamp.
    pub arrived: u64,
    /// Frames that were sent and can no longer arrive.
    pub lost: u64,
    /// Arrived frames that later ones had overtaken.
    pub reordered: u64,
    /// Times that the sender began to count anew.
    pub restarted: u64,
    /// Frames that had arrived before, or too old to tell; dropped.
    pub replayed: u64,
    /// Frames with a trailer like a stamp that none of the segment's keys made; delivered unchanged.
    pub forged: u64,
    /// Arrived frames beyond the declared envelope of their vNIC: best effort here.
    pub excess: u64,
    /// Arrived frames that this host dropped.
    pub dropped: u64,
    /// Frames in time.
    pub met: u64,
    /// Frames late by more than the clocks' error.
    pub late: LateCounts,
    /// Frames late by less.
    pub uncertain: LateCounts,
    /// Frames that arrived while the clock of the sender's host was not known.
    pub unjudged: u64,
    /// Most by which a frame was certainly late (ns).
    pub worst_ns: u64,
}

/// Late frames, by the part of their way that took too long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct LateCounts {
    /// The host that sent them.
    pub sender: u64,
    /// The network between the hosts.
    pub network: u64,
    /// The host that received them.
    pub receiver: u64,
}

impl LateCounts {
    /// Returns the frames of all parts.
    pub fn total(&self) -> u64 {
        self.sender.saturating_add(self.network).saturating_add(self.receiver)
    }
}
