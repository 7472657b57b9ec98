//! Reads `/proc` and `/sys`, as any user may; says what it may not see.

use super::proc::{self, Row, Thread, Times};
use crate::demo::clock;
use rustix::thread::{CpuSet, sched_getaffinity};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

/// Longest file that is read, bytes: `/proc/interrupts` of a large machine.
const LONGEST: u64 = 16 << 20;
/// Most threads of the host, CPUs and idle states of one that are looked at.
const THREADS: usize = 32_768;
const CPUS: usize = 1_024;
const STATES: usize = 16;
/// What makes a kernel slow, in the words of its configuration.
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

/// What does not change while it is measured.
#[derive(Clone, Debug, Default)]
pub struct Machine {
    /// CPUs that are there and run.
    pub online: BTreeSet<usize>,
    /// Those on which this program may run.
    pub own: BTreeSet<usize>,
    /// Those that the scheduler gives no work by itself.
    pub isolated: BTreeSet<usize>,
    /// The switch's workers whose threads can be seen.
    pub workers: Vec<Worker>,
    /// The driver of idle states.
    pub idle_driver: Option<String>,
    /// Whether it is a virtual machine.
    pub is_guest: bool,
    /// The frequency governor of a CPU, where it has one.
    pub governors: BTreeMap<usize, String>,
    /// The hyperthreads of one core, by CPU; with itself.
    pub siblings: BTreeMap<usize, BTreeSet<usize>>,
    /// What real-time threads may use of each period, and the period, us; the first negative without a limit.
    pub realtime: Option<(i64, i64)>,
    /// Whether memory may be swapped out.
    pub swaps: bool,
    /// Memory of the switch that cannot be swapped out, kB; `None` where that is not known.
    pub locked: Option<u64>,
    /// What of the kernel is for debugging.
    pub debugging: Vec<String>,
    /// Whether the kernel lets an urgent thread in while it works for another: `none` and `voluntary` do not. `None`
    /// where that is not known.
    pub preemption: Option<String>,
}

/// A worker's thread.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Worker {
    /// Its name, `worker-0`.
    pub name: String,
    /// Its thread.
    pub thread: u32,
    /// CPUs on which it may run.
    pub cpus: BTreeSet<usize>,
    /// Its SCHED_FIFO priority; `None` under SCHED_OTHER.
    pub priority: Option<u8>,
}

impl Machine {
    /// The CPUs that are measured: the workers', or those of this program.
    pub fn measured(&self) -> BTreeSet<usize> {
        let workers: BTreeSet<usize> =
            self.workers.iter().flat_map(|worker| worker.cpus.iter().copied()).collect();
        let all = if workers.is_empty() { &self.own } else { &workers };
        all.intersection(&self.online).copied().take(CPUS).collect()
    }
}

/// What is counted, at one time.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// When, ns of CLOCK_MONOTONIC.
    pub at: u64,
    /// What the CPUs' time went into.
    pub times: BTreeMap<usize, Times>,
    /// Softirqs by kind.
    pub softirqs: BTreeMap<String, Row>,
    /// Interrupts by number or kind.
    pub interrupts: BTreeMap<String, Row>,
    /// All threads but this program's, by number.
    pub threads: BTreeMap<u32, Thread>,
    /// How long a worker's thread was ready to run and did not, ns.
    pub waited: BTreeMap<u32, u64>,
    /// Idle states by CPU.
    pub idle: BTreeMap<usize, Vec<IdleState>>,
}

/// An idle state of one CPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IdleState {
    /// Such as `C6`.
    pub name: String,
    /// How long leaving it takes, us, as its driver says.
    pub latency_us: u64,
    /// How often it was entered.
    pub usage: u64,
}

/// Reads.
pub struct Looker {
    /// The switch's process.
    switch: Option<u32>,
    workers: Vec<Worker>,
    unseen: Vec<String>,
}

impl Looker {
    /// Of a host whose switch is this process.
    pub fn new(switch: Option<u32>) -> Self {
        Self { switch, workers: vec![], unseen: vec![] }
    }

    /// What could not be seen, and why.
    pub fn unseen(self) -> Vec<String> {
        self.unseen
    }

    /// What does not change.
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
            self.unseen.push(format!(
                "the switch's workers (pid {pid}): no such threads are visible here (another PID namespace, or hidepid); \
                 the CPUs of this program were measured instead"
            ));
        }
        workers
    }

    /// What is counted, now.
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
            if missing && !self.unseen.contains(&what) {
                self.unseen.push(what);
            }
        }
        snapshot
    }
}

/// A file's text; `None` where it cannot be read. What is no UTF-8 is replaced.
fn read(path: impl AsRef<Path>) -> Option<String> {
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(LONGEST).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// The entries of a folder that are `prefix` and a number.
fn numbered(folder: &str, prefix: &str, most: usize) -> Vec<usize> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let number = |name: &str| name.strip_prefix(prefix)?.parse().ok();
    entries.filter_map(|entry| number(entry.file_name().to_str()?)).take(most).collect()
}

fn numbers(folder: &str) -> Vec<u32> {
    numbered(folder, "", THREADS).into_iter().filter_map(|number| number.try_into().ok()).collect()
}

/// All threads that can be seen, but this program's own.
fn threads() -> BTreeMap<u32, Thread> {
    let own = std::process::id();
    let of = |pid: u32| numbers(&format!("/proc/{pid}/task")).into_iter().map(move |thread| (pid, thread));
    let all = numbers("/proc").into_iter().filter(|pid| *pid != own).flat_map(of).take(THREADS);
    all.filter_map(|(pid, thread)| {
        Some((thread, proc::thread(&read(format!("/proc/{pid}/task/{thread}/stat"))?)?))
    })
    .collect()
}

/// The idle states of a CPU that are not held off.
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

/// Debugging features that the kernel's configuration names.
fn debugging() -> Vec<String> {
    let release = read("/proc/sys/kernel/osrelease").unwrap_or_default();
    let config = read(format!("/boot/config-{}", release.trim())).unwrap_or_default();
    let is_set = |option: &&str| config.lines().any(|line| line == format!("{option}=y"));
    let mut all: Vec<String> =
        DEBUGGING.iter().filter(|option| is_set(option)).map(|o| (*o).to_owned()).collect();
    // It is there with CONFIG_PROVE_LOCKING alone.
    if all.is_empty() && Path::new("/proc/lockdep").exists() {
        all.push("CONFIG_LOCKDEP".into());
    }
    all
}

/// The mode of preemption, where it can be seen: `full`, `lazy`, `voluntary`, `none`, `rt`.
fn preemption() -> Option<String> {
    // Root may see the mode that is in force, in parentheses.
    let modes = read("/sys/kernel/debug/sched/preempt");
    if let Some(mode) = modes.as_deref().and_then(|text| Some(text.split_once('(')?.1.split_once(')')?.0)) {
        return Some(mode.to_owned());
    }
    let version = read("/proc/sys/kernel/version")?;
    let has = |word: &str| version.split_whitespace().any(|w| w == word);
    match () {
        () if has("PREEMPT_RT") => Some("rt".into()),
        () if has("PREEMPT") => Some("full".into()),
        // It can be any.
        () if has("PREEMPT_DYNAMIC") => None,
        () => Some("voluntary".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_can_be_looked_at() {
        let mut looker = Looker::new(None);
        let machine = looker.machine();
        assert!(!machine.measured().is_empty());
        assert!(machine.measured().is_subset(&machine.online));
        let snapshot = looker.snapshot();
        assert!(machine.online.iter().all(|cpu| snapshot.times.contains_key(cpu)));
        assert!(!snapshot.threads.contains_key(&std::process::id()));
    }

    #[test]
    fn a_switch_that_is_not_there_is_said() {
        let mut looker = Looker::new(Some(u32::MAX));
        assert_eq!(looker.machine().workers, []);
        assert!(looker.unseen()[0].contains("no such threads are visible here"));
    }
}
