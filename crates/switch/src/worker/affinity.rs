//! Where a worker's thread runs.

use super::Worker;
use rustix::io::Errno;
use rustix::thread::{CpuSet, sched_setaffinity};

impl Worker {
    /// Runs on these CPUs alone; `own` is the only one of them, where it is the worker's own. To be called on the worker's thread,
    /// which may be waited for by its new CPU: some 10 us.
    ///
    /// # Errors
    /// None of them may be used.
    pub fn run_on(&mut self, cpus: &CpuSet, own: Option<usize>) -> Result<(), Errno> {
        self.stats.cpu.set(0);
        sched_setaffinity(None, cpus)?;
        self.stats.cpu.set(own.map_or(0, |cpu| cpu as u64 + 1));
        Ok(())
    }
}
