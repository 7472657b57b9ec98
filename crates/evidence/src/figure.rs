//! Figures that not every place counts, and where each was read.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A part of `stats` that not every place can count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Quantity {
    /// `tx`: frames, bytes and drops of what the VM sent.
    Tx,
    /// `rx`: frames, bytes and drops of what the VM received.
    Rx,
    /// `frames` of both directions, of which a super-frame is one.
    SuperFrames,
    /// `dropped` of both directions.
    Drops,
    /// `delay`.
    Delay,
    /// `throttled` and `throttled_ns`.
    Throttled,
    /// `realtime_delivered`, `realtime_worst_ns`, `realtime_worst_least_ns`, `misses`, `misses_possible` and
    /// `misses_asleep`.
    Deadline,
}

impl Quantity {
    /// Returns the name in words.
    pub fn label(self) -> &'static str {
        match self {
            Self::Tx => "sent traffic",
            Self::Rx => "received traffic",
            Self::SuperFrames => "super-frames",
            Self::Drops => "dropped frames",
            Self::Delay => "delay of sent frames",
            Self::Throttled => "time throttled",
            Self::Deadline => "deadlines met and missed",
        }
    }
}

/// The quantities of a vNIC that a place does not count, each with the reason.
pub type Unknown = BTreeMap<Quantity, String>;

/// One figure, and where it was read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Figure {
    /// Such as `tx.bytes`.
    pub name: String,
    /// Since the vNIC was there, or the agent was started; absent where it is not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<u64>,
    /// What counted it; where it is not counted, why.
    pub source: String,
}
