//! The agent's own threads, kept off workers' CPUs.

use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};
use std::io;
use tidegate_cores::cpus::Cpus;

/// CPUs of this process's threads.
#[derive(Debug, Default)]
pub struct Threads {
    /// The CPUs before the first change.
    before: Option<CpuSet>,
}

impl Threads {
    /// Moves all threads off these CPUs, or back if `cpus` is empty. Later threads inherit that.
    ///
    /// # Errors
    /// The operating system refused. Without another CPU all stay.
    pub fn keep_off(&mut self, cpus: &Cpus) -> io::Result<()> {
        let before = match self.before {
            None if cpus.is_empty() => return Ok(()),
            None => *self.before.insert(sched_getaffinity(None)?),
            Some(before) => before,
        };
        let mut to = before;
        cpus.iter().filter(|cpu| **cpu < CpuSet::MAX_CPU).for_each(|cpu| to.unset(*cpu));
        if to.count() == 0 {
            to = before;
        }
        for thread in std::fs::read_dir("/proc/self/task")? {
            let number =
                thread?.file_name().to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw);
            match sched_setaffinity(number, &to) {
                // It ended meanwhile.
                Err(rustix::io::Errno::SRCH) => {}
                other => other?,
            }
        }
        if cpus.is_empty() {
            self.before = None;
        }
        Ok(())
    }
}
