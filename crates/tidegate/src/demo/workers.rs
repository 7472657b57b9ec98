//! The switch's workers as the kernel sees them: their CPU time and their CPUs.

use std::fs;
use std::path::Path;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Workers {
    /// CPU time of all workers (ns).
    pub used: u64,
    /// CPUs of the workers that are pinned to one CPU.
    pub cpus: Vec<usize>,
}

impl Workers {
    /// Reads the workers of process `id`. Skips what cannot be read: the process may have ended, which
    /// other code detects.
    pub fn of(id: u32) -> Self {
        let mut workers = Self::default();
        let tasks = fs::read_dir(format!("/proc/{id}/task")).into_iter().flatten().flatten();
        for task in tasks.map(|entry| entry.path()) {
            let read = |file: &str| fs::read_to_string(Path::join(&task, file)).unwrap_or_default();
            if read("comm").starts_with("worker-") {
                workers.used += used(&read("schedstat"));
                workers.cpus.extend(only_cpu(&read("status")));
            }
        }
        workers
    }
}

/// Parses the CPU time (ns): the first figure of /proc/PID/schedstat (proc(5)).
fn used(schedstat: &str) -> u64 {
    schedstat.split_ascii_whitespace().next().and_then(|ns| ns.parse().ok()).unwrap_or(0)
}

/// Returns the CPU of a thread that is pinned to one CPU (/proc/PID/status, proc(5)).
fn only_cpu(status: &str) -> Option<usize> {
    status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_on_several_cpus_is_kept_to_none() {
        let status = |list| format!("Name:\tworker-0\nCpus_allowed_list:\t{list}\nMems_allowed:\t1\n");
        assert_eq!(["3", "0-3", "0,2", ""].map(|list| only_cpu(&status(list))), [Some(3), None, None, None]);
        assert_eq!(used("1234567 89 10\n"), 1_234_567);
        assert_eq!(used(""), 0);
    }

    #[test]
    fn threads_of_that_name_are_counted() {
        let (ended, end) = std::sync::mpsc::channel::<()>();
        let (ready, begun) = std::sync::mpsc::channel();
        let worker = std::thread::Builder::new().name("worker-7".into()).spawn(move || {
            crate::demo::placement::keep_to(crate::demo::placement::allowed().first().copied());
            let _ = ready.send(());
            let _ = end.recv();
        });
        begun.recv().unwrap();
        let seen = Workers::of(std::process::id());
        drop(ended);
        worker.unwrap().join().unwrap();
        assert_eq!(seen.cpus, crate::demo::placement::allowed()[..1]);
        assert!(seen.used > 0);
    }
}
