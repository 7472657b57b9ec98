//! The clocks of other hosts.

use serde::{Deserialize, Serialize};
use tidegate_evidence::PeerStatus;
use utoipa::ToSchema;

/// The clocks of other hosts, and what is exchanged with them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClockView {
    /// The peers of all uplinks, by uplink.
    pub peers: Vec<PeerStatus>,
}
