//! How much of each CPU other threads use: `/proc/stat`, open since before the process gave up its files.
//!
//! ```text
//!  /proc/stat ─▶ parse ─┐
//!  workers' CPU time ───┴─ since the last time ─▶ others' share of each CPU
//! ```

use rustix::thread::Pid;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// The share of each CPU that other threads use, 0 to 1. CPUs without data are missing.
pub type Shares = BTreeMap<usize, f64>;

/// Shortest time between two readings: the kernel counts in steps of 10 ms.
const WATCHED: Duration = Duration::from_secs(2);
/// Bytes read of the file: the lines of CPUs come first, some 100 bytes each.
const READ: usize = 256 << 10;

/// Time of a CPU, in steps of 10 ms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    idle: u64,
    all: u64,
}

/// The last reading.
#[derive(Debug)]
pub struct Load {
    file: Option<File>,
    at: Instant,
    times: BTreeMap<usize, Times>,
    /// CPU time of the workers, ns.
    used: Vec<u64>,
}

impl Load {
    /// Returns a load without readings. `file` is `/proc/stat`; without it, the load is unknown.
    pub fn new(file: Option<File>) -> Self {
        Self { file, at: Instant::now(), times: BTreeMap::new(), used: Vec::new() }
    }

    /// Returns the use since the last reading; `None` if too recent. `own` has the `workers`' CPUs, unchanged
    /// since then.
    pub fn measure(&mut self, workers: &[Pid], own: &[Option<usize>]) -> Option<Shares> {
        if !self.times.is_empty() && self.at.elapsed() < WATCHED {
            return None;
        }
        let times = parse(&read(self.file.as_ref()?)?);
        let used: Vec<u64> = workers.iter().map(|worker| cpu_time(*worker)).collect();
        let watched = self.at.elapsed();
        self.at = Instant::now();
        let before = std::mem::replace(&mut self.times, times);
        let used_before = std::mem::replace(&mut self.used, used);
        let mut shares = shares(&before, &self.times);
        for ((cpu, now), before) in own.iter().zip(&self.used).zip(&used_before) {
            if let Some(share) = cpu.and_then(|cpu| shares.get_mut(&cpu)) {
                *share -= now.saturating_sub(*before) as f64 / watched.as_nanos().max(1) as f64;
            }
        }
        Some(shares)
    }

    /// Discards the last reading: workers have moved.
    pub fn forget(&mut self) {
        self.times.clear();
    }
}

fn read(file: &File) -> Option<String> {
    let mut text = vec![0; READ];
    let mut len = 0;
    while len < READ {
        match file.read_at(&mut text[len..], len as u64) {
            Ok(0) => break,
            Ok(more) => len += more,
            Err(_) => return None,
        }
    }
    text.truncate(len);
    Some(String::from_utf8_lossy(&text).into_owned())
}

/// Parses the times of each CPU (proc_stat(5)).
fn parse(text: &str) -> BTreeMap<usize, Times> {
    let times = |line: &str| {
        let (name, counts) = line.split_once(' ')?;
        let cpu = name.strip_prefix("cpu")?.parse().ok()?;
        // user nice system idle iowait irq softirq steal. The columns after them are included in these.
        let counts: Vec<u64> =
            counts.split_whitespace().take(8).map_while(|count| count.parse().ok()).collect();
        let all = counts.iter().fold(0u64, |all, count| all.saturating_add(*count));
        (counts.len() == 8).then(|| (cpu, Times { idle: counts[3].saturating_add(counts[4]), all }))
    };
    text.lines().take_while(|line| line.starts_with("cpu")).filter_map(times).collect()
}

/// Returns the share of each CPU of both readings that was not idle.
fn shares(before: &BTreeMap<usize, Times>, after: &BTreeMap<usize, Times>) -> Shares {
    let share = |(cpu, after): (&usize, &Times)| {
        let before = before.get(cpu)?;
        let all = after.all.checked_sub(before.all).filter(|all| *all > 0)?;
        let idle = after.idle.saturating_sub(before.idle).min(all);
        Some((*cpu, 1.0 - idle as f64 / all as f64))
    };
    after.iter().filter_map(share).collect()
}

/// Returns the CPU time of a thread of this process (ns); 0 if the kernel does not report it.
fn cpu_time(thread: Pid) -> u64 {
    // The clock of one thread's CPU time (kernel, posix-timers.h: CPUCLOCK_PERTHREAD_MASK | CPUCLOCK_SCHED).
    let clock = (!thread.as_raw_nonzero().get() << 3) | 6;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is live; an unknown clock is an error.
    match unsafe { libc::clock_gettime(clock, &raw mut time) } {
        0 => time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::thread::gettid;

    const TEXT: &str = "cpu  10 0 10 100 0 0 0 0 0 0\ncpu0 5 1 5 50 2 0 1 3 9 9\ncpu3 5 0 5 50 0 0 0 0\nintr 5 5\ncpu7 1 1\n";

    #[test]
    fn the_lines_of_cpus_are_read_and_nothing_else() {
        let times = parse(TEXT);
        assert_eq!(times.keys().copied().collect::<Vec<_>>(), [0, 3]);
        assert_eq!(times[&0], Times { idle: 52, all: 67 });
        assert!(parse("cpu1 1 2 x 4 5 6 7 8\ncpux 1 2 3 4 5 6 7 8\ncpu2 1 2 3\n").is_empty());
        assert!(parse("").is_empty());
    }

    #[test]
    fn a_share_is_of_what_was_added() {
        let times = |idle, all| Times { idle, all };
        let before =
            BTreeMap::from([(0, times(10, 20)), (1, times(10, 20)), (2, times(5, 9)), (3, times(0, 9))]);
        let after =
            BTreeMap::from([(0, times(10, 120)), (1, times(85, 120)), (2, times(5, 9)), (4, times(1, 1))]);
        assert_eq!(shares(&before, &after), Shares::from([(0, 1.0), (1, 0.25)]));
    }

    #[test]
    fn the_file_of_this_machine_is_understood() {
        let file = File::open("/proc/stat").unwrap();
        let text = read(&file).unwrap();
        assert!(!parse(&text).is_empty(), "{text}");
        let mut load = Load::new(Some(file));
        assert_eq!(load.measure(&[gettid()], &[None]), Some(Shares::new()));
        assert_eq!(load.measure(&[gettid()], &[None]), None, "too soon");
        assert!(cpu_time(gettid()) > 0);
    }

    #[test]
    fn nothing_is_known_without_the_file() {
        assert_eq!(Load::new(None).measure(&[], &[]), None);
    }
}
