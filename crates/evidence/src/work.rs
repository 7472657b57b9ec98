//! Time of a worker.

use crate::total;
use serde::{Deserialize, Serialize};

/// Worker time charged to a vNIC since the port was made (ns).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Work {
    /// Taking sent frames, and delivering those that are not queued.
    pub take_ns: u64,
    /// Delivering sent frames that were queued.
    pub deliver_ns: u64,
    /// Number of these queued frames.
    pub delivered: u64,
    /// Extra time of deliveries to it because its buffers are small.
    pub buffers_ns: u64,
    /// Handling the kicks of its driver.
    pub kicks_ns: u64,
}

impl Work {
    /// Returns the sum (ns).
    pub fn total_ns(&self) -> u64 {
        total([self.take_ns, self.deliver_ns, self.buffers_ns, self.kicks_ns])
    }
}
