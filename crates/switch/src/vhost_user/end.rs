//! Reasons for the end of a connection.

use super::reply::Rejection;
use std::time::Duration;

/// Pause between looks for the rest of a message.
pub const PARTIAL_POLL: Duration = Duration::from_millis(5);

/// Why a connection ended.
pub enum End {
    /// The owner ends it.
    Stopped,
    /// The front end left.
    Closed,
    /// The front end is disconnected for this.
    ThrownOut(Rejection),
    /// The guest now runs at the front end that waited.
    Migrated,
    /// The process that served it before continues.
    PredecessorContinues,
}
