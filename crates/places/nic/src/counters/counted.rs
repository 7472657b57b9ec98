//! What was counted for one VF: totals, their sources, and doubts about them.

use crate::device::Source;

/// One figure, since the VF was first counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Figure {
    /// How many.
    pub total: u64,
    /// Where it is from.
    pub source: Source,
}

/// One direction of a VF; `None` is unknown, not zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Traffic {
    /// Ethernet frames.
    pub frames: Option<Figure>,
    /// Bytes of those, without FCS.
    pub bytes: Option<Figure>,
    /// Multicast frames among them.
    pub multicast: Option<Figure>,
    /// Frames that the NIC dropped.
    pub dropped: Option<Figure>,
}

/// Doubts about totals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Doubts {
    /// Intervals so long that a counter may have wrapped unseen: totals may be too low by multiples of its range.
    pub missed_wraps: u64,
    /// Times that counters began anew, since the NIC was reset, the VF made again, or the source changed: what was counted
    /// between the last look and that is missing.
    pub resets: u64,
}

/// Totals of one VF.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Counted {
    /// Sent by the VM.
    pub tx: Traffic,
    /// Received by the VM.
    pub rx: Traffic,
    /// Doubts about both.
    pub doubts: Doubts,
    /// The reason, if nothing is known.
    pub unknown: Option<String>,
}
