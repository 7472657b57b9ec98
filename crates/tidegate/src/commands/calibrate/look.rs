//! Reads `/proc` and `/sys` with any user's rights, and records what is not visible.

use super::proc::{self, Row, Thread, Times};
use crate::demo::clock;
use rustix::thread::{CpuSet, sched_getaffinity};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

/// Longest part of a file that is read (bytes); `/proc/interrupts` of a large machine fits.
const LONGEST: u64 = 16 << 20;
/// Limits of what is read: threads of the host, CPUs, idle states of one CPU.
const THREADS: usize = 32_768;
const CPUS: usize = 1_024;
const STATES: usize = 16;
/// Options of the kernel's configuration that make it slow.
const DEBUGGING: [&str; 8] = [
    "CONFIG_PROVE_LOCKING",
    "CONFIG_LOCK_STAT",
    "CONFIG_KASAN",
    "CONFIG_KCSAN",
    "CONFIG_DEBUG_KMEMLEAK",
    "CONFIG_DEBUG_OBJECTS",
    "CONFIG_DEBUG_PAGEALLOC_ENABLE_DEFAULT",
    "CONFIG_PREEMPT_TRACER",
];

/// Properties of the host that do not change during the measurement.
#[derive(Clone, Debug, Default)]
pub struct Machine {
    pub online: BTreeSet<usize>,
    /// CPUs on which this program may run.
    pub own: BTreeSet<usize>,
    /// CPUs that the scheduler gives no work by itself.
    pub isolated: BTreeSet<usize>,
    /// Workers of the switch whose threads are visible.
    pub workers: Vec<Worker>,
    pub idle_driver: Option<String>,
    pub is_guest: bool,
    /// Frequency governor by CPU, for CPUs that have one.
    pub governors: BTreeMap<usize, String>,
    /// Hyperthreads of the CPU's core, itself included, by CPU.
    pub siblings: BTreeMap<usize, BTreeSet<usize>>,
    /// Time that real-time threads may use in each period, and the period (us); a negative time means no
    /// limit.
    pub realtime: Option<(i64, i64)>,
    pub swaps: bool,
    /// Locked memory of the switch (kB); `None` if unknown.
    pub locked: Option<u64>,
    pub debugging: Vec<String>,
    /// Preemption mode; `None` if unknown. With `none` and `voluntary` an urgent thread waits while the
    /// kernel works for another thread.
    pub preemption: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Worker {
    pub name: String,
    pub thread: u32,
    /// Online CPUs on which it may run.
    pub cpus: BTreeSet<usize>,
    /// Its SCHED_FIFO priority; `None` under SCHED_OTHER.
    pub priority: Option<u8>,
}

impl Machine {
    /// Returns the CPUs to measure: the workers' or, if no worker is visible, those of this program.
    pub fn measured(&self) -> BTreeSet<usize> {
        let workers: BTreeSet<usize> =
            self.workers.iter().flat_map(|worker| worker.cpus.iter().copied()).collect();
        let all = if workers.is_empty() { &self.own } else { &workers };
        all.intersection(&self.online).copied().take(CPUS).collect()
    }
}

#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Time of reading (CLOCK_MONOTONIC, ns).
    pub at: u64,
    pub times: BTreeMap<usize, Times>,
    pub softirqs: BTreeMap<String, Row>,
    pub interrupts: BTreeMap<String, Row>,
    /// Threads of all other programs, by thread number.
    pub threads: BTreeMap<u32, Thread>,
    /// Time for which a worker's thread was ready but did not run (ns), by thread number.
    pub waited: BTreeMap<u32, u64>,
    pub idle: BTreeMap<usize, Vec<IdleState>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IdleState {
    /// Name, such as `C6`.
    pub name: String,
    /// Exit latency (us), as the driver states it.
    pub latency_us: u64,
    pub usage: u64,
}

pub struct Observer {
    switch: Option<u32>,
    workers: Vec<Worker>,
    not_visible: Vec<String>,
}

impl Observer {
    pub fn new(switch: Option<u32>) -> Self {
        Self { switch, workers: vec![], not_visible: vec![] }
    }

    pub fn not_visible(self) -> Vec<String> {
        self.not_visible
    }

    pub fn machine(&mut self) -> Machine {
        let cpu = |name: &str| read(format!("/sys/devices/system/cpu/{name}")).map(|text| proc::list(&text));
        let allowed = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
        let own: BTreeSet<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect();
        let online = cpu("online").filter(|all| !all.is_empty()).unwrap_or_else(|| own.clone());
        let of_each = |name: &str| -> BTreeMap<usize, String> {
            let path = |cpu| format!("/sys/devices/system/cpu/cpu{cpu}/{name}");
            let each =
                online.iter().take(CPUS).filter_map(|cpu| Some((*cpu, read(path(*cpu))?.trim().to_owned())));
            each.collect()
        };
        let siblings = of_each("topology/thread_siblings_list");
        let sysctl = |name: &str| read(format!("/proc/sys/kernel/{name}"))?.trim().parse().ok();
        self.workers = self.switch.map(|pid| self.workers_of(pid, &online)).unwrap_or_default();
        Machine {
            workers: self.workers.clone(),
            isolated: cpu("isolated").unwrap_or_default(),
            idle_driver: read("/sys/devices/system/cpu/cpuidle/current_driver")
                .map(|driver| driver.trim().to_owned())
                .filter(|driver| !driver.is_empty() && driver != "none"),
            is_guest: read("/proc/cpuinfo").is_some_and(|text| {
                let flags = text.lines().find(|line| line.starts_with("flags"));
                flags.is_some_and(|line| line.split_whitespace().any(|flag| flag == "hypervisor"))
            }),
            governors: of_each("cpufreq/scaling_governor"),
            siblings: siblings.into_iter().map(|(cpu, all)| (cpu, proc::list(&all))).collect(),
            realtime: sysctl("sched_rt_runtime_us").zip(sysctl("sched_rt_period_us")),
            swaps: read("/proc/swaps").is_some_and(|text| text.lines().count() > 1),
            locked: self.switch.and_then(|pid| {
                let status = read(format!("/proc/{pid}/status"))?;
                proc::value(&status, "VmLck")?.split_whitespace().next()?.parse().ok()
            }),
            debugging: debugging(),
            preemption: preemption(),
            online,
            own,
        }
    }

    fn workers_of(&mut self, pid: u32, online: &BTreeSet<usize>) -> Vec<Worker> {
        let tasks = format!("/proc/{pid}/task");
        let worker = |thread: u32| {
            let known = proc::thread(&read(format!("{tasks}/{thread}/stat"))?)?;
            known.name.strip_prefix("worker-")?.parse::<u16>().ok()?;
            let status = read(format!("{tasks}/{thread}/status"))?;
            let cpus = proc::list(proc::value(&status, "Cpus_allowed_list")?);
            let cpus = cpus.intersection(online).copied().collect();
            Some(Worker { name: known.name, thread, cpus, priority: known.priority })
        };
        let mut workers: Vec<Worker> = numbers(&tasks).into_iter().filter_map(worker).collect();
        workers.sort_by(|a, b| (a.name.len(), &a.name).cmp(&(b.name.len(), &b.name)));
        if workers.is_empty() {
            self.not_visible.push(format!(
                "the switch's workers (pid {pid}): no such threads are visible here (another PID namespace, or hidepid); \
                 the CPUs of this program were measured instead"
            ));
        }
        workers
    }

    pub fn snapshot(&mut self) -> Snapshot {
        let file = |path: &str| read(path).unwrap_or_default();
        let waited = |worker: &Worker| {
            let text = read(format!("/proc/{}/task/{}/schedstat", self.switch?, worker.thread))?;
            Some((worker.thread, text.split_whitespace().nth(1)?.parse().ok()?))
        };
        let snapshot = Snapshot {
            at: clock::now(),
            times: proc::times(&file("/proc/stat")),
            softirqs: proc::rows(&file("/proc/softirqs")),
            interrupts: proc::rows(&file("/proc/interrupts")),
            threads: threads(),
            waited: self.workers.iter().filter_map(waited).collect(),
            idle: numbered("/sys/devices/system/cpu", "cpu", CPUS)
                .into_iter()
                .map(|cpu| (cpu, states(cpu)))
                .collect(),
        };
        for (missing, what) in [
            (snapshot.times.is_empty(), "the CPUs' time (/proc/stat), with steal"),
            (snapshot.softirqs.is_empty(), "softirqs (/proc/softirqs)"),
            (snapshot.interrupts.is_empty(), "interrupts (/proc/interrupts)"),
            (
                !snapshot.threads.contains_key(&1),
                "threads of other users (hidepid, or another PID namespace)",
            ),
        ] {
            let what = what.to_owned();
            if missing && !self.not_visible.contains(&what) {
                self.not_visible.push(what);
            }
        }
        snapshot
    }
}

/// Reads a file's text; `None` if it cannot be read. Replaces invalid UTF-8.
fn read(path: impl AsRef<Path>) -> Option<String> {
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(LONGEST).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Lists the numbers of the folder's entries that are named `prefix` and a number.
fn numbered(folder: &str, prefix: &str, most: usize) -> Vec<usize> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let number = |name: &str| name.strip_prefix(prefix)?.parse().ok();
    entries.filter_map(|entry| number(entry.file_name().to_str()?)).take(most).collect()
}

fn numbers(folder: &str) -> Vec<u32> {
    numbered(folder, "", THREADS).into_iter().filter_map(|number| number.try_into().ok()).collect()
}

/// Reads all visible threads except this program's own.
fn threads() -> BTreeMap<u32, Thread> {
    let own = std::process::id();
    let of = |pid: u32| numbers(&format!("/proc/{pid}/task")).into_iter().map(move |thread| (pid, thread));
    let all = numbers("/proc").into_iter().filter(|pid| *pid != own).flat_map(of).take(THREADS);
    all.filter_map(|(pid, thread)| {
        Some((thread, proc::thread(&read(format!("/proc/{pid}/task/{thread}/stat"))?)?))
    })
    .collect()
}

/// Reads the idle states of a CPU, without disabled ones.
fn states(cpu: usize) -> Vec<IdleState> {
    let folder = format!("/sys/devices/system/cpu/cpu{cpu}/cpuidle");
    let state = |number: usize| {
        let value =
            |name: &str| read(format!("{folder}/state{number}/{name}")).map(|text| text.trim().to_owned());
        let is_held_off = value("disable").is_some_and(|text| text != "0");
        let state = IdleState {
            name: value("name")?,
            latency_us: value("latency")?.parse().ok()?,
            usage: value("usage")?.parse().ok()?,
        };
        (!is_held_off).then_some(state)
    };
    numbered(&folder, "state", STATES).into_iter().filter_map(state).collect()
}

fn debugging() -> Vec<String> {
    let release = read("/proc/sys/kernel/osrelease").unwrap_or_default();
    let config = read(format!("/boot/config-{}", release.trim())).unwrap_or_default();
    let is_set = |option: &&str| config.lines().any(|line| line == format!("{option}=y"));
    let mut all: Vec<String> =
        DEBUGGING.iter().filter(|option| is_set(option)).map(|o| (*o).to_owned()).collect();
    // Shows lock debugging where the configuration is not readable.
    if all.is_empty() && Path::new("/proc/lockdep").exists() {
        all.push("CONFIG_LOCKDEP".into());
    }
    all
}

/// Returns the preemption mode if it is visible: `full`, `lazy`, `voluntary`, `none`, `rt`.
fn preemption() -> Option<String> {
    // Only root can read the active mode, which stands in parentheses.
    let modes = read("/sys/kernel/debug/sched/preempt");
    if let Some(mode) = modes.as_deref().and_then(|text| Some(text.split_once('(')?.1.split_once(')')?.0)) {
        return Some(mode.to_owned());
    }
    let version = read("/proc/sys/kernel/version")?;
    let has = |word: &str| version.split_whitespace().any(|w| w == word);
    match () {
        () if has("PREEMPT_RT") => Some("rt".into()),
        () if has("PREEMPT") => Some("full".into()),
        // Any mode is possible.
        () if has("PREEMPT_DYNAMIC") => None,
        () => Some("voluntary".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_can_be_observed() {
        let mut observer = Observer::new(None);
        let machine = observer.machine();
        assert!(!machine.measured().is_empty());
        assert!(machine.measured().is_subset(&machine.online));
        let snapshot = observer.snapshot();
        assert!(machine.online.iter().all(|cpu| snapshot.times.contains_key(cpu)));
        assert!(!snapshot.threads.contains_key(&std::process::id()));
    }

    #[test]
    fn a_missing_switch_is_reported() {
        let mut observer = Observer::new(Some(u32::MAX));
        assert_eq!(observer.machine().workers, []);
        assert!(observer.not_visible()[0].contains("no such threads are visible here"));
    }
}
