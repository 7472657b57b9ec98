//! When the threads of the switch last made progress.

use crate::clock::clock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The liveness that the service manager waits for.
#[derive(Debug)]
pub struct Watchdog {
    pub(super) interval: Duration,
    /// When the control thread last made progress (ns, CLOCK_MONOTONIC).
    pub(super) control: AtomicU64,
}

impl Watchdog {
    /// For a service manager that expects a message within each `interval`.
    pub(super) fn new(interval: Duration) -> Self {
        Self { interval, control: AtomicU64::new(clock()) }
    }

    /// Returns the interval (us).
    pub fn micros(&self) -> u64 {
        u64::try_from(self.interval.as_micros()).unwrap_or(u64::MAX)
    }

    /// Returns how long the control thread may wait for connections without a sign of life.
    pub fn pause(&self) -> Duration {
        self.interval / TIMES
    }

    /// Records a sign of life of the control thread.
    pub fn control_thread_turned(&self) {
        self.control.store(clock(), Ordering::Relaxed);
    }

    pub(super) fn control_thread_turns(&self, now: u64) -> bool {
        let since = now.saturating_sub(self.control.load(Ordering::Relaxed));
        // Twice the pause: the thread is not always on time.
        Duration::from_nanos(since) < 2 * self.pause()
    }
}

/// Messages to the service manager per interval.
pub(super) const TIMES: u32 = 4;
