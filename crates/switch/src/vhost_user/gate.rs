//! What a front end that waits is let in by.

use std::sync::mpsc::{Receiver, Sender};

/// Between a connection that is restored, and who says when its queues start.
#[derive(Debug)]
pub struct Gate {
    /// Dropped when memory is mapped, or cannot be.
    pub mapping: Busy,
    /// Opened by a message, which is dropped when the queues have started. Where this hangs up instead, the
    /// process that served the connection before goes on.
    pub opened: Receiver<Busy>,
}

/// Held while something goes on: a thread that waits for its end waits until every clone is dropped.
pub type Busy = Sender<()>;
