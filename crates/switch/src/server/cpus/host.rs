//! The CPUs that this process may use, and which of them are threads of one core.

use super::choice::Cores;
use super::list;
use rustix::io::Errno;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::fs::File;
use std::path::Path;

/// The CPUs at the start of the process.
#[derive(Debug)]
pub struct Host {
    /// CPUs of threads without a CPU of their own. The kernel removes those it does not allow.
    base: CpuSet,
    /// Empty if the kernel does not report them.
    cores: Cores,
    stat: Option<File>,
}

impl Host {
    /// Reads the CPUs, while files can be opened and the process has one thread.
    ///
    /// # Errors
    /// The kernel knows more CPUs than this program (1,024), or refuses.
    pub fn read() -> Result<Self, Errno> {
        let first = sched_getaffinity(None)?;
        let cores = cores(Path::new("/sys/devices/system/cpu"), &numbers(&first));
        // CPUs of the cpuset that our parent excluded stay excluded. If it excluded none, later CPUs are ours, too.
        let all = everything();
        let whole = sched_setaffinity(None, &all)
            .and_then(|()| sched_getaffinity(None))
            .is_ok_and(|now| now == first);
        if !whole {
            sched_setaffinity(None, &first)?;
        }
        // A container may hide the file.
        let stat = File::open("/proc/stat").ok();
        Ok(Self { base: if whole { all } else { first }, cores, stat })
    }

    /// Returns the CPUs of a thread without a CPU of its own.
    pub fn base(&self) -> &CpuSet {
        &self.base
    }

    /// Returns which CPUs are threads of one core.
    pub fn cores(&self) -> &Cores {
        &self.cores
    }

    /// Returns `/proc/stat` at the first call.
    pub fn take_stat(&mut self) -> Option<File> {
        self.stat.take()
    }

    /// Whether affinity `is` can result from setting `wanted`, of which the kernel removes CPUs it does not allow.
    pub fn matches(&self, is: &CpuSet, wanted: &CpuSet) -> bool {
        is == wanted || *wanted == self.base
    }

    /// Returns the present CPUs of the process, in ascending order. Only setting the calling thread to them shows them.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn allowed(&self) -> Result<Vec<usize>, Errno> {
        match sched_setaffinity(None, &self.base) {
            // The cpuset has none of them any more: take all its CPUs.
            Err(Errno::INVAL) => sched_setaffinity(None, &everything())?,
            other => other?,
        }
        Ok(numbers(&sched_getaffinity(None)?))
    }
}

/// Returns the set of `cpus`.
pub fn set(cpus: impl IntoIterator<Item = usize>) -> CpuSet {
    let mut set = CpuSet::new();
    cpus.into_iter().filter(|cpu| *cpu < CpuSet::MAX_CPU).for_each(|cpu| set.set(cpu));
    set
}

fn everything() -> CpuSet {
    set(0..CpuSet::MAX_CPU)
}

/// Returns the CPUs of a set, in ascending order.
pub fn numbers(set: &CpuSet) -> Vec<usize> {
    (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()
}

/// Returns the first thread of each CPU's core, read from `folder` (sysfs).
fn cores(folder: &Path, cpus: &[usize]) -> Cores {
    let core = |cpu: &usize| {
        let file = folder.join(format!("cpu{cpu}/topology/thread_siblings_list"));
        let threads = list::parse(std::fs::read_to_string(file).ok()?.trim()).ok()?;
        Some((*cpu, threads.into_iter().min()?))
    };
    cpus.iter().filter_map(core).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_are_read_if_the_kernel_reports_them() {
        let dir = tempfile::tempdir().unwrap();
        for (cpu, threads) in [(0, "0,2\n"), (1, "1,3\n"), (2, "0,2\n"), (3, "nonsense"), (5, "5-2")] {
            let folder = dir.path().join(format!("cpu{cpu}/topology"));
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("thread_siblings_list"), threads).unwrap();
        }
        let found = cores(dir.path(), &[0, 1, 2, 3, 4, 5]);
        assert_eq!(found, Cores::from([(0, 0), (1, 1), (2, 0)]));
    }

    #[test]
    fn cpus_that_the_parent_excluded_stay_excluded() {
        let before = numbers(&sched_getaffinity(None).unwrap());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let host = Host::read().unwrap();
                assert_eq!(host.allowed(), Ok(before.clone()));
                sched_setaffinity(None, &set([before[0]])).unwrap();
                let host = Host::read().unwrap();
                assert_eq!(host.allowed(), Ok(vec![before[0]]));
                assert_eq!(numbers(&sched_getaffinity(None).unwrap()), [before[0]]);
            });
        });
    }
}
