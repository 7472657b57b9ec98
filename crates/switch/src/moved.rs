//! The outcome of a move of a port to another worker.

/// For how long a port was not served, ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// For how long nothing was taken from it.
    pub sending: u64,
    /// For how long nothing was delivered to it but what its old worker had.
    pub receiving: u64,
}

/// How a move went; or why the port is where it was.
pub type Outcome = Result<Moved, String>;
