//! Delays that a front end's objects cause to threads of the switch.

use serde::{Deserialize, Serialize};

/// Delays that a port's objects caused, and the quarantines for them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldUp {
    /// Number of delays of a thread.
    pub events: u64,
    /// Number of quarantines.
    pub quarantines: u64,
    /// The present quarantine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quarantine: Option<Quarantine>,
}

/// A quarantine of a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quarantine {
    /// The reason.
    pub reason: String,
    /// Total time (s).
    pub seconds: u64,
    /// Remaining time (s).
    #[serde(rename = "left")]
    pub remaining: u64,
}
