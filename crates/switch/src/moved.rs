//! The outcome of a move of a port to another worker.

/// How long a port was not served (ns).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// Time in which no worker took frames from the port.
    pub sending: u64,
    /// Time in which only its old worker's frames were delivered to the port.
    pub receiving: u64,
}

/// The duration of a move; or the reason why the port did not move.
pub type Outcome = Result<Moved, String>;
