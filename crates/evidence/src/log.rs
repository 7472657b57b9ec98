//! What a log does not tell.

use serde::{Deserialize, Serialize};

/// What a process's log does not tell, since the process started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogStats {
    /// Lines that were not written: the program that reads the log is too slow.
    pub lost: u64,
    /// Lines that the limit left out: enough of their kind were written.
    pub suppressed: u64,
}
