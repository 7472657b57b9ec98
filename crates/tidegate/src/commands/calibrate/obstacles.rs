//! Finds what stands in the way of a smaller `host-latency`, with remedies, from two snapshots of the
//! measured CPUs. Pure.

use super::look::{Machine, Snapshot};
use crate::format::{duration, percent, plural};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use tidegate_visible::visible;

/// Least share of a CPU for which a thread is named.
const BUSY: f64 = 0.01;
/// Least share of a CPU's time that is reported: of softirqs and steal, and of a sibling's work.
const SHARE: f64 = 0.001;
const SIBLING: f64 = 0.05;
/// Least rates that are reported (per second and CPU): softirqs, interrupts of devices, interrupts from
/// other CPUs, sleeps, page faults of a worker.
const SOFTIRQS: f64 = 100.0;
const DEVICES: f64 = 10.0;
const OTHERS: f64 = 1_000.0;
const SLEEPS: f64 = 1.0;
const FAULTS: f64 = 1.0;
/// Most items named for one CPU, and most CPUs (or workers) listed.
const NAMED: usize = 3;
const CPUS: usize = 4;

/// Kinds of obstacles, in the order of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    OneCpu,
    Steal,
    BusyThreads,
    /// A worker runs with ordinary priority beside busy threads.
    OrdinaryPriority,
    /// A worker may run on more than one CPU.
    NotPinned,
    Softirqs,
    Interrupts,
    Hyperthread,
    /// The CPU sleeps when idle, and wakes late.
    IdleStates,
    Frequency,
    /// The kernel throttles real-time threads.
    RealtimeThrottling,
    /// The kernel does not preempt the system call of another thread.
    Preemption,
    PageFaults,
    Swap,
    DebuggingKernel,
}

impl Kind {
    pub fn title(self) -> &'static str {
        match self {
            Self::OneCpu => "one CPU",
            Self::Steal => "steal",
            Self::BusyThreads => "busy threads",
            Self::OrdinaryPriority => "ordinary priority",
            Self::NotPinned => "not pinned",
            Self::Softirqs => "softirqs",
            Self::Interrupts => "interrupts",
            Self::Hyperthread => "hyperthread",
            Self::IdleStates => "idle states",
            Self::Frequency => "frequency",
            Self::RealtimeThrottling => "real-time throttling",
            Self::Preemption => "preemption",
            Self::PageFaults => "page faults",
            Self::Swap => "swap",
            Self::DebuggingKernel => "kernel for debugging",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Obstacle {
    pub kind: Kind,
    /// CPUs it concerns; empty if it concerns the host.
    pub cpus: Vec<usize>,
    pub what: Vec<String>,
    pub remedy: String,
}

/// Returns the obstacles seen between two snapshots, in the order of their kinds.
pub fn obstacles(machine: &Machine, before: &Snapshot, after: &Snapshot) -> Vec<Obstacle> {
    let observations = Observations { machine, before, after, cpus: machine.measured() };
    let busy = observations.busy_threads();
    let mut all: Vec<Obstacle> = [
        observations.one_cpu(),
        observations.steal(),
        observations.ordinary_priority(busy.is_some()),
        busy,
        observations.not_pinned(),
        observations.softirqs(),
        observations.interrupts(),
        observations.hyperthread(),
        observations.idle_states(),
        observations.frequency(),
        observations.realtime_throttling(),
        observations.preemption(),
        observations.page_faults(),
        observations.swap(),
        observations.debugging(),
    ]
    .into_iter()
    .flatten()
    .collect();
    all.sort_by_key(|obstacle| obstacle.kind);
    all
}

struct Observations<'a> {
    machine: &'a Machine,
    before: &'a Snapshot,
    after: &'a Snapshot,
    cpus: BTreeSet<usize>,
}

impl Observations<'_> {
    fn seconds(&self) -> f64 {
        (self.after.at.saturating_sub(self.before.at) as f64 / 1e9).max(1e-3)
    }

    /// Returns the share of a CPU's time that went into `part`.
    fn share(&self, cpu: usize, part: impl Fn(&super::proc::Times) -> u64) -> Option<f64> {
        let times = self.after.times.get(&cpu)?.since(self.before.times.get(&cpu)?);
        (times.total() > 0).then(|| part(&times) as f64 / times.total() as f64)
    }

    /// Builds an obstacle from the CPUs for which `of` returns something, the largest value first.
    fn by_cpu(
        &self,
        kind: Kind,
        remedy: &str,
        of: impl Fn(usize) -> Option<(f64, String)>,
    ) -> Option<Obstacle> {
        let mut found: Vec<(usize, f64, String)> =
            self.cpus.iter().filter_map(|cpu| of(*cpu).map(|(much, what)| (*cpu, much, what))).collect();
        found.sort_by(|a, b| b.1.total_cmp(&a.1));
        let mut what: Vec<String> =
            found.iter().take(CPUS).map(|(cpu, _, what)| format!("CPU {cpu}: {what}")).collect();
        if let Some(more) = found.len().checked_sub(CPUS).filter(|more| *more > 0) {
            what.push(format!("less on {}", plural(more as u64, "more CPU")));
        }
        let mut cpus: Vec<usize> = found.iter().map(|(cpu, ..)| *cpu).collect();
        cpus.sort_unstable();
        (!cpus.is_empty()).then(|| Obstacle { kind, cpus, what, remedy: remedy.into() })
    }

    fn host(kind: Kind, what: Vec<String>, remedy: &str) -> Option<Obstacle> {
        Some(Obstacle { kind, cpus: vec![], what, remedy: remedy.into() })
    }

    fn one_cpu(&self) -> Option<Obstacle> {
        let what = || "this host has one CPU: a worker waits for each thread that runs there".into();
        (self.machine.online.len() == 1)
            .then(|| {
                Self::host(Kind::OneCpu, vec![what()], "give the host a second CPU, and pin the worker to it")
            })
            .flatten()
    }

    fn steal(&self) -> Option<Obstacle> {
        let remedy = "this is a virtual machine: reserve CPUs for it, or run the switch on the host itself";
        self.by_cpu(Kind::Steal, remedy, |cpu| {
            let share = self.share(cpu, |times| times.steal).filter(|share| *share >= SHARE)?;
            Some((share, format!("the hypervisor took {} of its time away", percent(share))))
        })
    }

    fn busy_threads(&self) -> Option<Obstacle> {
        let workers: BTreeSet<u32> = self.machine.workers.iter().map(|worker| worker.thread).collect();
        let ticks = self.seconds() * rustix::param::clock_ticks_per_second() as f64;
        let mut by_cpu: BTreeMap<usize, Vec<(f64, String)>> = BTreeMap::new();
        for (number, thread) in self.after.threads.iter().filter(|(number, _)| !workers.contains(number)) {
            let earlier = self.before.threads.get(number).filter(|earlier| earlier.began == thread.began);
            let share = thread.used.saturating_sub(earlier.map_or(0, |e| e.used)) as f64 / ticks;
            if share < BUSY {
                continue;
            }
            let what = format!("{} ({number}) {}", visible(&thread.name), percent(share));
            let at: BTreeSet<usize> = earlier.map(|e| e.cpu).into_iter().chain([thread.cpu]).collect();
            at.into_iter().for_each(|cpu| by_cpu.entry(cpu).or_default().push((share, what.clone())));
        }
        let shared = self.cpus.iter().any(|cpu| !self.machine.isolated.contains(cpu));
        let remedy = match shared {
            true => {
                "keep them off the workers' CPUs: pin the workers, and use cpusets or isolcpus= for other threads"
            }
            false => "the CPU is isolated, and these threads were bound to it: bind them to other CPUs",
        };
        self.by_cpu(Kind::BusyThreads, remedy, |cpu| {
            let mut all = by_cpu.get(&cpu)?.clone();
            all.sort_by(|a, b| b.0.total_cmp(&a.0));
            let named = all.iter().take(NAMED).map(|(_, what)| what.as_str()).collect::<Vec<_>>().join(", ");
            Some((all.iter().map(|(share, _)| share).sum(), named))
        })
    }

    fn ordinary_priority(&self, beside_busy: bool) -> Option<Obstacle> {
        let waited = |thread: u32| {
            let waited = self.after.waited.get(&thread)?.checked_sub(*self.before.waited.get(&thread)?)?;
            Some(format!(", was ready and did not run for {} of {:.0} s", duration(waited), self.seconds()))
        };
        let ordinary = self.machine.workers.iter().filter(|worker| worker.priority.is_none());
        let all: Vec<String> = ordinary
            .take(CPUS)
            .map(|worker| {
                let waited = waited(worker.thread).unwrap_or_default();
                format!("{} is under SCHED_OTHER{waited}", visible(&worker.name))
            })
            .collect();
        let remedy = "give the workers real-time priority (--fifo-priority) or CPUs of their own";
        (beside_busy && !all.is_empty()).then(|| Self::host(Kind::OrdinaryPriority, all, remedy)).flatten()
    }

    fn not_pinned(&self) -> Option<Obstacle> {
        let free: Vec<_> = self.machine.workers.iter().filter(|worker| worker.cpus.len() > 1).collect();
        let (first, online) = (free.first()?, self.machine.online.len());
        let what = match free.len() {
            1 => format!("{} may run on {} CPUs of {online}", visible(&first.name), first.cpus.len()),
            n => format!("{n} workers are pinned to no CPU"),
        };
        Self::host(
            Kind::NotPinned,
            vec![what],
            "give the workers CPUs that no other program uses (--cpus); by default each with a deadline has its own",
        )
    }

    /// Returns by how much a counter rose per second.
    fn rate(&self, of: impl Fn(&Snapshot) -> Option<u64>) -> f64 {
        let count = |snapshot| of(snapshot).unwrap_or(0);
        count(self.after).saturating_sub(count(self.before)) as f64 / self.seconds()
    }

    fn softirqs(&self) -> Option<Obstacle> {
        let remedy = "steer softirqs to other CPUs: receive packet steering (rps_cpus) for NET_RX, smp_affinity of the \
                      interrupts that raise them";
        self.by_cpu(Kind::Softirqs, remedy, |cpu| {
            let share = self.share(cpu, |times| times.softirq).unwrap_or(0.0);
            let rates = self.after.softirqs.keys().map(|kind| {
                let of = |snapshot: &Snapshot| snapshot.softirqs.get(kind)?.counts.get(&cpu).copied();
                (self.rate(of), kind)
            });
            let named = most(rates.filter(|(rate, _)| *rate >= SOFTIRQS), |kind| visible(kind).into_owned())?;
            (share >= SHARE).then(|| (share, format!("{} of its time: {named}", percent(share))))
        })
    }

    fn interrupts(&self) -> Option<Obstacle> {
        let remedy = "move interrupts of devices by /proc/irq/N/smp_affinity (and tell irqbalance); CAL and TLB come from \
                      other CPUs' work on memory they share";
        self.by_cpu(Kind::Interrupts, remedy, |cpu| {
            let rates = self.after.interrupts.iter().filter_map(|(name, row)| {
                let of = |snapshot: &Snapshot| snapshot.interrupts.get(name)?.counts.get(&cpu).copied();
                let rate = self.rate(of);
                let is_device = name.bytes().all(|b| b.is_ascii_digit());
                // The local timer interrupts are the workers' own.
                let least = if is_device { DEVICES } else { OTHERS };
                (name != "LOC" && rate >= least).then(|| (rate, format!("{name} {}", row.label)))
            });
            let rates: Vec<(f64, String)> = rates.collect();
            let all = rates.iter().map(|(rate, _)| rate).sum();
            Some((all, most(rates.into_iter(), |name| visible(name.trim()).into_owned())?))
        })
    }

    fn hyperthread(&self) -> Option<Obstacle> {
        let remedy = "keep work off the workers' siblings, or switch hyperthreads off (/sys/devices/system/cpu/smt/control)";
        self.by_cpu(Kind::Hyperthread, remedy, |cpu| {
            let siblings = self.machine.siblings.get(&cpu)?.iter().filter(|sibling| **sibling != cpu);
            let busy =
                siblings.filter_map(|sibling| Some((1.0 - self.share(*sibling, |t| t.idle)?, sibling)));
            let (share, sibling) =
                busy.max_by(|a, b| a.0.total_cmp(&b.0)).filter(|(share, _)| *share >= SIBLING)?;
            Some((share, format!("CPU {sibling} of the same core was busy for {}", percent(share))))
        })
    }

    fn idle_states(&self) -> Option<Obstacle> {
        let driver = self.machine.idle_driver.as_deref().unwrap_or("no driver");
        let remedy = match self.machine.is_guest {
            true => {
                "forbid these idle states on the workers' CPUs only: echo n/a > \
                 /sys/devices/system/cpu/cpuN/power/pm_qos_resume_latency_us. In a virtual machine a halted CPU waits for the hypervisor, regardless of the latency that the driver states"
            }
            false => {
                "forbid these idle states on the workers' CPUs only: echo n/a > \
                 /sys/devices/system/cpu/cpuN/power/pm_qos_resume_latency_us"
            }
        };
        self.by_cpu(Kind::IdleStates, remedy, |cpu| {
            let earlier = self.before.idle.get(&cpu)?;
            let states = self.after.idle.get(&cpu)?.iter().filter(|state| state.name != "POLL");
            let entered = states.filter_map(|state| {
                let before = earlier.iter().find(|s| s.name == state.name)?.usage;
                let rate = state.usage.saturating_sub(before) as f64 / self.seconds();
                (rate >= SLEEPS).then_some((rate, state))
            });
            // The state with the longest exit latency makes the tail.
            let (rate, deepest) = entered.max_by_key(|(_, state)| state.latency_us)?;
            let name = visible(&deepest.name).into_owned();
            let what = format!(
                "{rate:.0} times a second in {name} ({}), exit latency {} us",
                visible(driver),
                deepest.latency_us
            );
            Some((deepest.latency_us as f64 + rate / 1e9, what))
        })
    }

    fn frequency(&self) -> Option<Obstacle> {
        let remedy = "set the performance governor on the workers' CPUs: echo performance > \
                      /sys/devices/system/cpu/cpuN/cpufreq/scaling_governor";
        self.by_cpu(Kind::Frequency, remedy, |cpu| {
            let governor = self.machine.governors.get(&cpu).filter(|governor| *governor != "performance")?;
            Some((0.0, format!("frequency governor {}", visible(governor))))
        })
    }

    fn realtime_throttling(&self) -> Option<Obstacle> {
        let (runtime, period) =
            self.machine.realtime.filter(|(runtime, period)| *runtime >= 0 && runtime < period)?;
        let first = self.machine.workers.iter().find(|worker| worker.priority.is_some())?;
        let what = format!(
            "{} is under SCHED_FIFO, and the kernel lets such threads run for {runtime} us of each {period} us",
            visible(&first.name)
        );
        Self::host(
            Kind::RealtimeThrottling,
            vec![what],
            "set AllowedCPUs= in the unit of the switch, which leaves other CPUs to other programs, then: sysctl kernel.sched_rt_runtime_us=-1",
        )
    }

    fn preemption(&self) -> Option<Obstacle> {
        let mode = self.machine.preemption.as_deref().filter(|mode| ["none", "voluntary"].contains(mode))?;
        let what = format!(
            "preemption is {mode}: a worker waits until the kernel has finished another thread's system call"
        );
        Self::host(Kind::Preemption, vec![what], "boot with preempt=full, if the kernel supports it")
    }

    fn page_faults(&self) -> Option<Obstacle> {
        let faults = self.machine.workers.iter().filter_map(|worker| {
            let (before, after) =
                (self.before.threads.get(&worker.thread)?, self.after.threads.get(&worker.thread)?);
            let minor = after.faults.0.saturating_sub(before.faults.0);
            let major = after.faults.1.saturating_sub(before.faults.1);
            (major > 0 || minor as f64 / self.seconds() >= FAULTS).then(|| {
                format!(
                    "{} waited for {}, {major} of them read from disk",
                    visible(&worker.name),
                    plural(minor + major, "page")
                )
            })
        });
        let faults: Vec<String> = faults.take(CPUS).collect();
        let remedy = "preallocate guests' memory (prealloc=on), in huge pages if the host has some";
        (!faults.is_empty()).then(|| Self::host(Kind::PageFaults, faults, remedy)).flatten()
    }

    fn swap(&self) -> Option<Obstacle> {
        let what = "the switch's memory is not locked, and this host swaps".into();
        (self.machine.swaps && self.machine.locked == Some(0))
            .then(|| {
                Self::host(
                    Kind::Swap,
                    vec![what],
                    "set MemorySwapMax=0 for the units of the switch and the guests, or run swapoff -a",
                )
            })
            .flatten()
    }

    fn debugging(&self) -> Option<Obstacle> {
        let options = &self.machine.debugging;
        let what = format!("the kernel has {}", options.join(", "));
        (!options.is_empty())
            .then(|| Self::host(Kind::DebuggingKernel, vec![what], "run a kernel without these options"))
            .flatten()
    }
}

/// Names the most frequent items with their rates per second; `None` without any.
fn most<T>(rates: impl Iterator<Item = (f64, T)>, name: impl Fn(&T) -> String) -> Option<String> {
    let mut all: Vec<(f64, T)> = rates.collect();
    all.sort_by(|a, b| b.0.total_cmp(&a.0));
    let named: Vec<String> = all
        .iter()
        .take(NAMED)
        .map(|(rate, what)| format!("{} {}/s", name(what), crate::format::count(*rate as u64)))
        .collect();
    (!named.is_empty()).then(|| named.join(", "))
}

#[cfg(test)]
mod tests {
    use super::super::look::{IdleState, Worker};
    use super::super::proc::{Row, Thread, Times};
    use super::*;

    fn machine() -> Machine {
        let worker = Worker { name: "worker-0".into(), thread: 8, cpus: [1].into(), priority: None };
        Machine { online: [0, 1].into(), own: [0, 1].into(), workers: vec![worker], ..Machine::default() }
    }

    fn thread(name: &str, cpu: usize, used: u64) -> Thread {
        Thread { name: name.into(), cpu, used, ..Thread::default() }
    }

    fn ticks(seconds: u64) -> u64 {
        seconds * rustix::param::clock_ticks_per_second()
    }

    fn quiet() -> (Snapshot, Snapshot) {
        let after = Snapshot {
            at: 10_000_000_000,
            times: [0, 1].map(|cpu| (cpu, Times { idle: 1000, ..Times::default() })).into(),
            threads: [(8, thread("worker-0", 1, ticks(9)))].into(),
            waited: [(8, 30_000_000)].into(),
            ..Snapshot::default()
        };
        let times = [0, 1].map(|cpu| (cpu, Times::default())).into();
        let threads = [(8, thread("worker-0", 1, 0))].into();
        (Snapshot { times, threads, waited: [(8, 0)].into(), ..Snapshot::default() }, after)
    }

    fn kinds(all: &[Obstacle]) -> Vec<Kind> {
        all.iter().map(|obstacle| obstacle.kind).collect()
    }

    #[test]
    fn a_quiet_host_has_no_obstacles() {
        let (before, after) = quiet();
        assert_eq!(obstacles(&machine(), &before, &after), []);
    }

    #[test]
    fn a_busy_thread_is_named_where_it_runs() {
        let (before, mut after) = quiet();
        after.threads.insert(77, thread("stress\n", 1, ticks(9)));
        after.threads.insert(78, thread("elsewhere", 0, ticks(9)));
        after.threads.insert(79, thread("idle", 1, 1));
        let found = obstacles(&machine(), &before, &after);
        assert_eq!(kinds(&found), [Kind::BusyThreads, Kind::OrdinaryPriority]);
        assert_eq!(
            (found[0].cpus.as_slice(), found[0].what[0].as_str()),
            ([1].as_slice(), "CPU 1: stress\\n (77) 90 %")
        );
        assert_eq!(
            found[1].what[0],
            "worker-0 is under SCHED_OTHER, was ready and did not run for 30.0 ms of 10 s"
        );
        // Another thread with the number of one that ended.
        let mut before = before;
        before.threads.insert(77, Thread { began: 5, ..thread("before", 0, ticks(500)) });
        assert!(obstacles(&machine(), &before, &after)[0].what[0].contains("stress\\n (77) 90 %"));
    }

    #[test]
    fn obstacles_by_the_kernel_and_the_hypervisor_are_named() {
        let (mut before, mut after) = quiet();
        let mut machine = machine();
        after.times.insert(1, Times { idle: 940, softirq: 40, steal: 20, ..Times::default() });
        let row = |label: &str, count| Row { label: label.into(), counts: [(1, count)].into() };
        after.softirqs = [("NET_RX".into(), row("", 20_000)), ("TIMER".into(), row("", 5))].into();
        after.interrupts =
            [("36".into(), row("virtio2-req.0", 500)), ("LOC".into(), row("timer", 99_999))].into();
        let state = |usage| IdleState { name: "C6".into(), latency_us: 133, usage };
        before.idle = [(1, vec![state(0)])].into();
        after.idle = [(1, vec![state(23_000)])].into();
        machine.siblings = [(1, [0, 1].into())].into();
        after.times.insert(0, Times { threads: 600, idle: 400, ..Times::default() });
        machine.governors = [(0, "powersave".into()), (1, "powersave".into())].into();
        let found = obstacles(&machine, &before, &after);
        let what: Vec<&str> = found.iter().map(|obstacle| obstacle.what[0].as_str()).collect();
        let expected = [
            "CPU 1: the hypervisor took 2.0 % of its time away",
            "CPU 1: 4.0 % of its time: NET_RX 2,000/s",
            "CPU 1: 36 virtio2-req.0 50/s",
            "CPU 1: CPU 0 of the same core was busy for 60 %",
            "CPU 1: 2300 times a second in C6 (no driver), exit latency 133 us",
            "CPU 1: frequency governor powersave",
        ];
        assert_eq!(what, expected);
    }

    #[test]
    fn obstacles_that_never_change_are_named() {
        let (before, after) = quiet();
        let one = Machine { online: [1].into(), ..machine() };
        assert_eq!(kinds(&obstacles(&one, &before, &after)), [Kind::OneCpu]);
        let mut all = machine();
        all.workers[0] = Worker { priority: Some(10), cpus: [0, 1].into(), ..all.workers[0].clone() };
        all.realtime = Some((950_000, 1_000_000));
        all.preemption = Some("voluntary".into());
        (all.swaps, all.locked) = (true, Some(0));
        all.debugging = vec!["CONFIG_KASAN".into()];
        let mut after = after;
        after.threads.get_mut(&8).unwrap().faults = (11, 2);
        let expected = [
            Kind::NotPinned,
            Kind::RealtimeThrottling,
            Kind::Preemption,
            Kind::PageFaults,
            Kind::Swap,
            Kind::DebuggingKernel,
        ];
        assert_eq!(kinds(&obstacles(&all, &before, &after)), expected);
        all.realtime = Some((-1, 1_000_000));
        assert!(!kinds(&obstacles(&all, &before, &after)).contains(&Kind::RealtimeThrottling));
    }

    #[test]
    fn many_cpus_are_one_line() {
        let cpus = 0..100;
        let machine =
            Machine { online: cpus.clone().collect(), own: cpus.clone().collect(), ..Machine::default() };
        let (before, mut after) = quiet();
        let at = |steal| Times { idle: 900, steal, ..Times::default() };
        after.times = cpus.clone().map(|cpu| (cpu, at(cpu as u64))).collect();
        let before = Snapshot { times: cpus.map(|cpu| (cpu, Times::default())).collect(), ..before };
        let found = obstacles(&machine, &before, &after);
        assert_eq!(found[0].cpus.len(), 99);
        assert!(found[0].what[0].starts_with("CPU 99: the hypervisor took 9.9 %"), "{:?}", found[0].what);
        assert_eq!(found[0].what.last().unwrap(), "less on 95 more CPUs");
    }
}
