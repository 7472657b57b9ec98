//! The front ends that came to a vNIC's socket.

use crate::HeldUp;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Events of a port's front ends, since the port was made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrontEnds {
    /// Why the last front end was disconnected.
    pub last_error: Option<String>,
    /// Front ends turned away because one was connected and another one waited.
    pub refused_connections: u64,
    /// Whether a front end waits for the connected one to leave.
    pub heir: bool,
    /// Front ends disconnected for what they did, by reason.
    pub thrown_out: BTreeMap<String, u64>,
    /// Delays that front ends' objects caused to threads of the switch.
    pub held: HeldUp,
}
