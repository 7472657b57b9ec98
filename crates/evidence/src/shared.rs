//! Addresses that several vNICs may have.

use serde::{Deserialize, Serialize};
use tidegate_contract::SharedAddress;

/// An address that several vNICs of a segment may have, one at a time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedStatus {
    /// The address.
    pub address: SharedAddress,
    /// The vNIC that has it; `None` until one uses it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<String>,
    /// Moves from one vNIC to another.
    pub moves: u64,
    /// Announcements without a move, because the address moved too often.
    pub refused: u64,
}
