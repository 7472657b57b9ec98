//! What an uplink puts on the wire.

use serde::{Deserialize, Serialize};

/// What an uplink put on the wire between hosts, since its port was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OnWire {
    /// Outer frames: each segment of a super-frame is one, each copy of a flood another.
    pub frames: u64,
    /// Their bytes, with outer headers, without FCS.
    pub bytes: u64,
    /// Copies of floods among these frames, beyond the first of each.
    pub copies: u64,
}
