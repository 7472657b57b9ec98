//! A contract that the reconciler could not bring into force, and when it tries again.

use std::time::{Duration, Instant};

/// Longest pause that a new process cuts short. A longer one means failures in several processes in a row.
pub(super) const AT_ONCE: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(crate) struct Failure {
    pub why: String,
    pub(super) pause: Duration,
    pub(super) retry_at: Instant,
}

impl Failure {
    /// Ends a short pause, because a new process replaced the one in which the contract failed. A long pause stays: the
    /// contract may be what ends these processes.
    pub fn try_at_once(&mut self) {
        if self.pause <= AT_ONCE {
            self.retry_at = Instant::now();
        }
    }
}
