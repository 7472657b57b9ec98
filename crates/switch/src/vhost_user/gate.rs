//! Holds a restored connection back until its queues may start.

use std::sync::mpsc::{Receiver, Sender};

/// Holds a restored connection's queues back until the old process has let go of them.
#[derive(Debug)]
pub struct Gate {
    /// Dropped when memory is mapped, or cannot be.
    pub mapping: Busy,
    /// Opened by a message, which is dropped when the queues have started. If this hangs up instead, the
    /// process that served the connection before continues.
    pub opened: Receiver<Busy>,
}

/// Held during a task: a thread that waits for the task's end waits until every clone is dropped.
pub type Busy = Sender<()>;
