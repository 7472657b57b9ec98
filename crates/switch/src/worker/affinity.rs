//! CPUs of a worker's thread.

use super::Worker;
use rustix::io::Errno;
use rustix::thread::{CpuSet, sched_setaffinity};

impl Worker {
    /// Restricts the thread to these CPUs; `own` is the single one if it is the worker's own. Called on the
    /// worker's thread, which may wait some 10 us for its new CPU.
    ///
    /// # Errors
    /// The thread may use none of them.
    pub fn run_on(&mut self, cpus: &CpuSet, own: Option<usize>) -> Result<(), Errno> {
        self.stats.cpu.set(0);
        sched_setaffinity(None, cpus)?;
        self.stats.cpu.set(own.map_or(0, |cpu| cpu as u64 + 1));
        Ok(())
    }
}
