//! Threads of one window: begun and ended together, each on its CPU.

use rustix::thread::{CpuSet, sched_setaffinity};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

/// Begins and ends a window.
#[derive(Debug, Default)]
pub struct Gate(AtomicU8);

// 0: nothing has begun.
const WARM: u8 = 1;
const OPEN: u8 = 2;
const CLOSED: u8 = 3;

impl Gate {
    /// Lets work begin that is not measured yet.
    pub fn warm(&self) {
        self.0.store(WARM, Ordering::Release);
    }

    /// Begins the measured time.
    pub fn open(&self) {
        self.0.store(OPEN, Ordering::Release);
    }

    /// Ends it, and all work.
    pub fn close(&self) {
        self.0.store(CLOSED, Ordering::Release);
    }

    /// Whether work goes on, measured or not.
    pub fn works(&self) -> bool {
        self.0.load(Ordering::Relaxed) < CLOSED
    }

    /// Whether it is measured time.
    pub fn is_open(&self) -> bool {
        self.0.load(Ordering::Relaxed) == OPEN
    }

    /// Waits until work may begin.
    pub fn wait_warm(&self) {
        self.wait(WARM);
    }

    /// Waits for the measured time.
    pub fn wait_open(&self) {
        self.wait(OPEN);
    }

    fn wait(&self, state: u8) {
        while self.0.load(Ordering::Acquire) < state {
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}

/// Closes a gate however its owner ends.
pub struct Closes<'a>(pub &'a Gate);

impl Drop for Closes<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Binds the calling thread to one CPU.
///
/// # Errors
/// It may not run there; the reason.
pub fn pin(cpu: usize) -> Result<(), String> {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).map_err(|e| format!("cannot run on CPU {cpu}: {e}"))
}
