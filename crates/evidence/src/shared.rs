//! Addresses that several vNICs may have.

use serde::{Deserialize, Serialize};
use tidegate_contract::SharedAddress;

/// An address that several vNICs of a segment may have, one at a time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedStatus {
    /// It.
    pub address: SharedAddress,
    /// The vNIC that has it; none until one uses it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<String>,
    /// How often it went from one vNIC to another.
    pub moves: u64,
    /// Announcements by which it did not, since it moved too often.
    pub refused: u64,
}
