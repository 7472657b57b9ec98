//! Lines that a log omits.

use serde::{Deserialize, Serialize};

/// Lines that a process's log omitted since the process started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogStats {
    /// Lines lost because the program that reads the log was too slow.
    pub lost: u64,
    /// Lines omitted by the limit: enough of their kind were written.
    pub suppressed: u64,
}
