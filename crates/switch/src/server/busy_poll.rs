//! Whether workers may wait awake (busy-poll) and spin on this machine, and the kernel's limit on it.
//!
//! ```text
//!  CPUs of the process, /proc/sys/kernel/sched_rt_runtime_us, SCHED_FIFO or not
//!    ▲               └─▶ busy-poll of the contracts, or never; throttled or not ─▶ workers
//!    └─ counted again by the CPU assigner while a deadline is in force
//! ```

use super::Switch;
use rustix::thread::sched_getaffinity;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use tidegate_contract::Host;

/// The kernel's limit on real-time threads of a CPU in each period; -1: no limit (sched(7)).
const RUNTIME: &str = "/proc/sys/kernel/sched_rt_runtime_us";

/// What the machine allows. The files are read at start, because later none can be opened.
#[derive(Debug)]
pub(super) struct Machine {
    has_one_cpu: AtomicBool,
    /// The kernel stops a worker that runs for too much of a second.
    pub(super) throttled: bool,
}

impl Machine {
    /// Reads the machine's settings; `fifo`: workers run under SCHED_FIFO.
    pub(super) fn read(fifo: bool) -> Self {
        // An unreadable setting counts as the kernel's default.
        let runtime = std::fs::read_to_string(RUNTIME).unwrap_or_default();
        let cpus = sched_getaffinity(None).map_or(1, |set| set.count());
        Self { has_one_cpu: AtomicBool::new(cpus < 2), throttled: fifo && runtime.trim() != "-1" }
    }

    /// Whether the process has one CPU.
    pub(super) fn has_one_cpu(&self) -> bool {
        self.has_one_cpu.load(Relaxed)
    }

    /// Returns how long of each second (ns) a worker may wait awake: 0 on one CPU, which the senders need.
    pub(super) fn share(&self, host: &Host) -> u64 {
        if self.has_one_cpu() { 0 } else { host.busy_poll.get() }
    }

    /// Records the number of the process's CPUs; `true` if it [has one](Self::has_one_cpu) now and had more, or the reverse.
    fn set_cpu_count(&self, cpus: usize) -> bool {
        self.has_one_cpu.swap(cpus < 2, Relaxed) != (cpus < 2)
    }
}

impl Switch {
    /// Records the number of the process's CPUs, after a cpuset or an online CPU changed.
    pub(super) fn set_cpu_count(&self, cpus: usize) {
        if self.machine.set_cpu_count(cpus) {
            // Locked, so that workers get a concurrent change of the host's settings before or after this one.
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
            assert_eq!((machine.set_cpu_count(cpus), machine.share(&host)), (changes, share), "{cpus} CPUs");
        }
    }

    #[test]
    fn only_real_time_threads_are_throttled() {
        assert!(!Machine::read(false).throttled);
    }
}
