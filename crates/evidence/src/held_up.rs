//! Threads of the switch that a front end's objects held up.

use serde::{Deserialize, Serialize};

/// What a port's objects did, and what came of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldUp {
    /// Times that they held a thread of the switch up.
    pub events: u64,
    /// Quarantines for it.
    pub quarantines: u64,
    /// The one that lasts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quarantine: Option<Quarantine>,
}

/// A port that is kept apart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quarantine {
    /// Why.
    pub reason: String,
    /// How long it lasts in all, s.
    pub seconds: u64,
    /// How much of it is left, s.
    pub left: u64,
}
