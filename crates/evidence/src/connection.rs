//! The connection of a vNIC.

use serde::{Deserialize, Serialize};

/// The state of a port's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Connection {
    /// No front end has connected (vhost-user server).
    Waiting,
    /// The stream ended; the agent should dial again (vhost-user client).
    Disconnected,
    /// A front end is connected and has not enabled its queues.
    Connected,
    /// Frames can flow.
    Up,
}
