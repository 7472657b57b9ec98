//! The kernel's threads of CPUs' queues: whether each is still bound to its CPU.
//!
//! When a CPU goes off, the kernel lets its thread run anywhere, also after the CPU is back.

use rustix::thread::{CpuSet, Pid, sched_getaffinity};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use tidegate_cores::cpus::Cpus;

/// Threads that were found.
#[derive(Debug, Default)]
pub(crate) struct Threads {
    /// By CPU; `None` where no thread was found, as in a namespace of processes.
    found: BTreeMap<usize, Option<Pid>>,
    /// Whether the log says that they are hidden.
    is_told: bool,
}

impl Threads {
    /// Returns the CPUs whose threads may run elsewhere, of those that have a queue in the map with this number. Their threads are to be
    /// made anew; until then they are forgotten.
    pub fn strayed(&mut self, cpus: &Cpus, map: u32) -> Cpus {
        self.found.retain(|cpu, _| cpus.contains(cpu));
        if cpus.iter().any(|cpu| !self.found.contains_key(cpu)) {
            self.find(cpus, map);
            if self.found.values().all(Option::is_none) && !std::mem::replace(&mut self.is_told, true) {
                tracing::info!(
                    "the kernel's threads of CPUs' queues are hidden from this process (ProtectProc=invisible without CAP_SYS_PTRACE, or a \
                     namespace of processes): one whose CPU goes off and is back before the next look stays elsewhere"
                );
            }
        }
        let strayed = |(cpu, thread): (&usize, &Option<Pid>)| match thread {
            Some(thread) if sched_getaffinity(Some(*thread)).is_ok_and(|on| !is_only(&on, *cpu)) => {
                Some(*cpu)
            }
            _ => None,
        };
        let strayed: Cpus = self.found.iter().filter_map(strayed).collect();
        self.found.retain(|cpu, _| !strayed.contains(cpu));
        strayed
    }

    /// Looks for the threads of all these CPUs.
    fn find(&mut self, cpus: &Cpus, map: u32) {
        self.found = cpus.iter().map(|cpu| (*cpu, None)).collect();
        for process in fs::read_dir(Path::new("/proc")).into_iter().flatten().flatten() {
            let number = process.file_name().to_str().and_then(|name| name.parse().ok());
            let Some(thread) = number.and_then(Pid::from_raw) else { continue };
            let name = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            let Some(cpu) = cpu_of(name.trim_end(), map) else { continue };
            // Of a former queue that its thread still empties, there is a second one.
            let better = |former: Option<Pid>| {
                former.is_none_or(|former| former.as_raw_nonzero() < thread.as_raw_nonzero())
            };
            if let Some(found) = self.found.get_mut(&cpu).filter(|found| better(**found)) {
                *found = Some(thread);
            }
        }
    }
}

/// Returns the name of the thread of a CPU's queue.
pub(crate) fn name(cpu: usize, map: u32) -> String {
    format!("cpumap/{cpu}/map:{map}")
}

fn cpu_of(thread: &str, map: u32) -> Option<usize> {
    let cpu = thread.strip_prefix("cpumap/")?.split('/').next()?.parse().ok()?;
    (name(cpu, map) == thread).then_some(cpu)
}

fn is_only(set: &CpuSet, cpu: usize) -> bool {
    set.count() == 1 && set.is_set(cpu)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_known_by_their_names() {
        assert_eq!(cpu_of("cpumap/12/map:7", 7), Some(12));
        for other in ["cpumap/12/map:8", "cpumap/12", "cpumap/x/map:7", "kworker/1:0", "cpumap/12/map:77", ""]
        {
            assert_eq!(cpu_of(other, 7), None, "{other}");
        }
    }
}
