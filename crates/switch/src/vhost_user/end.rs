//! How a connection ends.

use super::connection::Rejection;
use std::time::Duration;

/// How often a message that has begun is looked for again.
pub const PARTIAL_POLL: Duration = Duration::from_millis(5);

/// Why a connection ended.
pub enum End {
    /// The owner wants no more.
    Stopped,
    /// The front end left, as it may.
    Closed,
    /// The front end is thrown out for this.
    Wrong(Rejection),
    /// Its guest runs on at the front end that waited.
    Migrated,
    /// The process that served it before goes on.
    NotOurs,
}
