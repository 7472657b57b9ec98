//! Whether workers may wait awake on this machine, and how the kernel bounds it.
//!
//! ```text
//!  CPUs of the process, /proc/sys/kernel/sched_rt_runtime_us, SCHED_FIFO or not
//!                    └─▶ busy-poll of the contracts, or never; throttled or not ─▶ workers
//! ```

use rustix::thread::sched_getaffinity;
use tidegate_contract::Host;

/// Where the kernel says how much of a period all real-time threads of a CPU may run; -1 is without bound (sched(7)).
const RUNTIME: &str = "/proc/sys/kernel/sched_rt_runtime_us";

/// What the machine allows. Read at start: later no file can be opened.
#[derive(Clone, Copy, Debug)]
pub(super) struct Machine {
    /// CPUs that the process may use.
    cpus: u32,
    /// The kernel stops a worker that runs for too much of a second.
    pub(super) throttled: bool,
}

impl Machine {
    /// Reads it; `fifo` where workers run under SCHED_FIFO.
    pub(super) fn read(fifo: bool) -> Self {
        // What cannot be read is taken to be as the kernel sets it.
        let runtime = std::fs::read_to_string(RUNTIME).unwrap_or_default();
        let cpus = sched_getaffinity(None).map_or(1, |set| set.count());
        Self { cpus, throttled: fifo && runtime.trim() != "-1" }
    }

    /// For how long of each second a worker may wait awake, ns. On one CPU never: those whose frames it waits for
    /// need that CPU to send them.
    pub(super) fn share(self, host: &Host) -> u64 {
        if self.cpus < 2 { 0 } else { host.busy_poll.get() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_cpu_is_left_to_the_senders() {
        let host = Host::default();
        let on = |cpus| Machine { cpus, throttled: false };
        assert_eq!((on(1).share(&host), on(2).share(&host)), (0, host.busy_poll.get()));
    }

    #[test]
    fn only_real_time_threads_are_throttled() {
        assert!(!Machine::read(false).throttled);
    }
}
