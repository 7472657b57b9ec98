//! Memory of an uplink's queues that other workers give back.
//!
//! ```text
//!  other worker: frames copied ─▶ ring of its own ─▶ bell, after some ─▶ here ─▶ kernel
//!                                                                         └ a call, if its driver waits for memory
//! ```
//!
//! A worker without frames of its own sleeps, and the kernel would run out of memory for those of others: so they ring.

use super::Worker;

impl Worker {
    /// Gives the kernel what came back; in each loop once, and before sleep.
    #[inline(never)]
    pub(super) fn collect_returned(&mut self) {
        for index in &self.collecting {
            if let Some(port) = &mut self.ports[usize::from(*index)] {
                port.link.tx.collect();
            }
        }
    }
}
