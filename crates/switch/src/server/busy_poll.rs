//! Whether workers may wait awake on this machine, and how the kernel bounds it.
//!
//! ```text
//!  CPUs of the process, /proc/sys/kernel/sched_rt_runtime_us, SCHED_FIFO or not
//!    ▲               └─▶ busy-poll of the contracts, or never; throttled or not ─▶ workers
//!    └─ counted again by the keeper of CPUs while a deadline is in force
//! ```

use super::Switch;
use rustix::thread::sched_getaffinity;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use tidegate_contract::Host;

/// Where the kernel says how much of a period all real-time threads of a CPU may run; -1 is without bound (sched(7)).
const RUNTIME: &str = "/proc/sys/kernel/sched_rt_runtime_us";

/// What the machine allows. Files are read at start: later none can be opened.
#[derive(Debug)]
pub(super) struct Machine {
    /// The process may use one CPU alone.
    has_one_cpu: AtomicBool,
    /// The kernel stops a worker that runs for too much of a second.
    pub(super) throttled: bool,
}

impl Machine {
    /// Reads it; `fifo` where workers run under SCHED_FIFO.
    pub(super) fn read(fifo: bool) -> Self {
        // What cannot be read is taken to be as the kernel sets it.
        let runtime = std::fs::read_to_string(RUNTIME).unwrap_or_default();
        let cpus = sched_getaffinity(None).map_or(1, |set| set.count());
        Self { has_one_cpu: AtomicBool::new(cpus < 2), throttled: fifo && runtime.trim() != "-1" }
    }

    /// For how long of each second a worker may wait awake, ns. On one CPU never: those whose frames it waits for
    /// need that CPU to send them.
    pub(super) fn share(&self, host: &Host) -> u64 {
        if self.has_one_cpu.load(Relaxed) { 0 } else { host.busy_poll.get() }
    }

    /// The process may use so many CPUs now; `true` where that changes the share.
    fn counted(&self, cpus: usize) -> bool {
        self.has_one_cpu.swap(cpus < 2, Relaxed) != (cpus < 2)
    }
}

impl Switch {
    /// The process may use so many CPUs now: a cpuset changed, or a CPU went offline or came back.
    pub(super) fn cpus_counted(&self, cpus: usize) {
        if self.machine.counted(cpus) {
            // Locked: who changes the host's settings meanwhile tells the workers before or after this.
            let table = self.lock();
            self.set_busy_poll(&table.host);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_cpu_is_left_to_the_senders() {
        let host = Host::default();
        let machine = Machine { has_one_cpu: AtomicBool::new(false), throttled: false };
        let all = host.busy_poll.get();
        for (cpus, changes, share) in [(2, false, all), (1, true, 0), (1, false, 0), (4, true, all)] {
            assert_eq!((machine.counted(cpus), machine.share(&host)), (changes, share), "{cpus} CPUs");
        }
    }

    #[test]
    fn only_real_time_threads_are_throttled() {
        assert!(!Machine::read(false).throttled);
    }
}
