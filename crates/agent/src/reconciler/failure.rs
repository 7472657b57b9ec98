//! A contract that the reconciler could not bring into force, and when it tries again.

use std::time::{Duration, Instant};

/// A contract that failed in so many processes, one after the other, that its pause is longer has to wait.
pub(super) const AT_ONCE: Duration = Duration::from_secs(2);

/// A contract that could not be brought into force.
#[derive(Debug)]
pub(crate) struct Failure {
    /// Why.
    pub why: String,
    pub(super) pause: Duration,
    pub(super) retry_at: Instant,
}

impl Failure {
    /// It failed in a process that is gone: in the one that came after it, it is tried without a pause. Not
    /// for ever, since it may be what ends them.
    pub fn try_at_once(&mut self) {
        if self.pause <= AT_ONCE {
            self.retry_at = Instant::now();
        }
    }
}
