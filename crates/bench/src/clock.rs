//! Time, CPU pinning, and the CPU time that other programs took.

use rustix::thread::{CpuSet, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Returns CLOCK_MONOTONIC (ns).
#[inline]
pub fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Pins this thread to one CPU.
///
/// # Errors
/// The CPU does not exist, or this process may not use it.
pub fn pin(cpu: usize) -> io::Result<()> {
    let no =
        || io::Error::new(io::ErrorKind::InvalidInput, format!("CPU {cpu} is beyond {}", CpuSet::MAX_CPU));
    if cpu >= CpuSet::MAX_CPU {
        return Err(no());
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    Ok(sched_setaffinity(None, &set)?)
}

/// Moves this thread, and the threads that it will start, off these CPUs, where other threads are measured.
/// Without other CPUs it does nothing.
pub fn keep_off(cpus: &[usize]) {
    let mut set = CpuSet::new();
    (0..CpuSet::MAX_CPU).filter(|cpu| !cpus.contains(cpu)).for_each(|cpu| set.set(cpu));
    // The kernel ignores CPUs that do not exist, and refuses a set without any existing CPU.
    let _ = sched_setaffinity(None, &set);
}

/// Reads from schedstat how long threads ran, and how long they were ready but did not run.
#[derive(Debug)]
pub struct StolenTime(Vec<(PathBuf, File)>);

impl StolenTime {
    /// Measures the calling thread.
    ///
    /// # Errors
    /// The kernel keeps no schedstat.
    pub fn here() -> io::Result<Self> {
        let path = PathBuf::from("/proc/thread-self/schedstat");
        let file = open(&path)?;
        Ok(Self(vec![(path, file)]))
    }

    /// Measures all threads of the process `pid` whose names begin with `name`, together.
    ///
    /// # Errors
    /// There is no such thread, or the kernel keeps no schedstat.
    pub fn of(pid: u32, name: &str) -> io::Result<Self> {
        let tasks = PathBuf::from(format!("/proc/{pid}/task"));
        let mut files = Vec::new();
        for task in fs::read_dir(&tasks).map_err(|error| with_path(&tasks, error))? {
            let task = task?.path();
            // A thread with an unreadable file has ended.
            if fs::read_to_string(task.join("comm")).is_ok_and(|comm| comm.starts_with(name)) {
                let path = task.join("schedstat");
                let file = open(&path)?;
                files.push((path, file));
            }
        }
        if files.is_empty() {
            let none = format!("{}: no thread is called {name}...", tasks.display());
            return Err(io::Error::new(io::ErrorKind::NotFound, none));
        }
        Ok(Self(files))
    }

    /// Measures no thread: always 0.
    pub fn none() -> Self {
        Self(Vec::new())
    }

    /// Returns for how long the threads were ready but did not run since they began (ns).
    ///
    /// # Errors
    /// A thread ended, or its file is not as documented (Documentation/scheduler/sched-stats.rst in the
    /// kernel's sources): three numbers, of which this is the second.
    pub fn read(&self) -> io::Result<u64> {
        self.sum(1)
    }

    /// Returns for how long the threads ran since they began (ns).
    ///
    /// # Errors
    /// As [`read`](Self::read); this is the first number.
    pub fn ran(&self) -> io::Result<u64> {
        self.sum(0)
    }

    fn sum(&self, which: usize) -> io::Result<u64> {
        self.0.iter().map(|(path, file)| number(file, which).map_err(|error| with_path(path, error))).sum()
    }
}

fn number(file: &File, which: usize) -> io::Result<u64> {
    let mut text = [0; 128];
    let len = file.read_at(&mut text, 0)?;
    let words = std::str::from_utf8(&text[..len]).ok();
    let number = words.and_then(|text| text.split_whitespace().nth(which)?.parse().ok());
    number.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "fewer numbers than documented"))
}

fn open(path: &Path) -> io::Result<File> {
    File::open(path).map_err(|error| with_path(path, error))
}

fn with_path(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedstat_counts_on() {
        // Only a thread of this name: threads of other tests may end during the read.
        const NAME: &str = "counts-on";
        let counts = || {
            for taken in [StolenTime::here().unwrap(), StolenTime::of(std::process::id(), NAME).unwrap()] {
                let before = (taken.read().unwrap(), taken.ran().unwrap());
                std::thread::yield_now();
                assert!(taken.read().unwrap() >= before.0 && taken.ran().unwrap() >= before.1);
            }
        };
        std::thread::Builder::new().name(NAME.to_owned()).spawn(counts).unwrap().join().unwrap();
        assert_eq!((StolenTime::none().read().unwrap(), StolenTime::none().ran().unwrap()), (0, 0));
        let error = StolenTime::of(std::process::id(), "no such thread").unwrap_err();
        assert!(error.to_string().contains("no such thread"), "{error}");
    }

    #[test]
    fn there_is_no_cpu_4000() {
        assert!(pin(4000).is_err());
    }
}
