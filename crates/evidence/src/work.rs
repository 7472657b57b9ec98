//! Time of a worker.

use crate::total;
use serde::{Deserialize, Serialize};

/// Time of its worker that a vNIC is charged, ns, since the port was made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Work {
    /// To take what it sends, and to deliver of it what is not queued.
    pub take_ns: u64,
    /// To deliver its frames that were queued.
    pub deliver_ns: u64,
    /// Those frames.
    pub delivered: u64,
    /// What deliveries to it took longer because its buffers are small.
    pub buffers_ns: u64,
    /// To hear the kicks of its driver.
    pub kicks_ns: u64,
}

impl Work {
    /// All of it, ns.
    pub fn total_ns(&self) -> u64 {
        total([self.take_ns, self.deliver_ns, self.buffers_ns, self.kicks_ns])
    }
}
