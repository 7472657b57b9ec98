//! One event of `GET /v1/events`.

use serde::{Deserialize, Serialize};
use tidegate_evidence::Miss;
use utoipa::ToSchema;

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EventView {
    /// When, ns since the epoch: of a miss the delivery or drop, of all else when the agent saw it.
    pub at: u64,
    /// What kind.
    pub kind: EventKind,
    /// The vNIC, uplink or place; empty where it is the host as a whole.
    pub about: String,
    /// What happened, in words.
    pub what: String,
    /// The miss.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub miss: Option<Miss>,
    /// Events that this client lost before this one, because it read too slowly.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub lost: u64,
}

/// A kind of event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum EventKind {
    /// A frame missed its deadline, certainly or possibly.
    Miss,
    /// A front end connected or left.
    Connection,
    /// A contract came into force, fails, waits, or is gone.
    Contract,
    /// An uplink came into force, fails, waits, or is gone.
    Uplink,
    /// A place answers again, or answers no longer.
    Place,
    /// The agent repaired what another program changed.
    Drift,
}

impl EventKind {
    /// Returns the name in JSON and in the stream.
    pub fn label(self) -> &'static str {
        match self {
            Self::Miss => "miss",
            Self::Connection => "connection",
            Self::Contract => "contract",
            Self::Uplink => "uplink",
            Self::Place => "place",
            Self::Drift => "drift",
        }
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks for it")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}
