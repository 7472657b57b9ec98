//! Frames and bytes of one direction.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Frames and bytes of one direction, since the port was made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// Frames as the guest hands them over: a super-frame is one.
    pub frames: u64,
    /// Frames on the wire: a super-frame counts its segments.
    pub wire_frames: u64,
    /// Bytes on the wire, headers of every segment included.
    pub wire_bytes: u64,
    /// Frames dropped, by [`DropReason::label`](crate::DropReason::label); reasons that never occurred are left out.
    pub dropped: BTreeMap<String, u64>,
    /// Frames marked "congestion experienced" (ECN) instead of dropped.
    #[serde(default)]
    pub marked: u64,
    /// Flows with frames that wait now for the rate of this direction.
    #[serde(default)]
    pub flows_now: u64,
    /// Most flows that waited at a time.
    #[serde(default)]
    pub flows_most: u64,
}
