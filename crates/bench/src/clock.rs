//! Time, the CPU, and what was taken away of it.

use rustix::thread::{CpuSet, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Nanoseconds of CLOCK_MONOTONIC.
#[inline]
pub fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Keeps this thread on one CPU.
///
/// # Errors
/// There is no such CPU, or it may not be used.
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

/// How long the calling thread was ready and did not run, as its schedstat says.
#[derive(Debug)]
pub struct Taken(File);

impl Taken {
    /// Of the thread that calls.
    ///
    /// # Errors
    /// The kernel keeps no schedstat.
    pub fn open() -> io::Result<Self> {
        File::open("/proc/thread-self/schedstat").map(Self)
    }

    /// Nanoseconds since the thread began. Allocates nothing.
    ///
    /// # Errors
    /// The file is not as documented in sched-stats.rst: three numbers, of which this is the second.
    pub fn read(&self) -> io::Result<u64> {
        let mut text = [0; 128];
        let len = self.0.read_at(&mut text, 0)?;
        let words = std::str::from_utf8(&text[..len]).ok();
        let second = words.and_then(|text| text.split_whitespace().nth(1)?.parse().ok());
        second.ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidData, "/proc/thread-self/schedstat: no second number")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedstat_counts_on() {
        let taken = Taken::open().unwrap();
        let before = taken.read().unwrap();
        std::thread::yield_now();
        assert!(taken.read().unwrap() >= before);
    }

    #[test]
    fn there_is_no_cpu_4000() {
        assert!(pin(4000).is_err());
    }
}
