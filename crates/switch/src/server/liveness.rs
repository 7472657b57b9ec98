//! When the threads of the switch last turned.

use crate::clock::clock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// What the service manager waits for.
#[derive(Debug)]
pub struct Watchdog {
    pub(super) interval: Duration,
    /// When the thread that takes connections last did something, ns of CLOCK_MONOTONIC.
    pub(super) control: AtomicU64,
}

impl Watchdog {
    /// For a service manager that wants to hear of us within each `interval`.
    pub(super) fn new(interval: Duration) -> Self {
        Self { interval, control: AtomicU64::new(clock()) }
    }

    /// The interval, us.
    pub fn micros(&self) -> u64 {
        u64::try_from(self.interval.as_micros()).unwrap_or(u64::MAX)
    }

    /// How long the control thread may wait for connections without saying that it turns.
    pub fn pause(&self) -> Duration {
        self.interval / TIMES
    }

    /// The control thread is not stuck.
    pub fn control_thread_turned(&self) {
        self.control.store(clock(), Ordering::Relaxed);
    }

    pub(super) fn control_thread_turns(&self, now: u64) -> bool {
        let since = now.saturating_sub(self.control.load(Ordering::Relaxed));
        // It is not always on time.
        Duration::from_nanos(since) < 2 * self.pause()
    }
}

/// How often it is told within the time that it waits.
pub(super) const TIMES: u32 = 4;
