//! The threads of a VM's process, by kind.

use super::stat::Stat;
use crate::roots::{Roots, first_names, text};
use std::collections::BTreeMap;
use tidegate_cores::cpus::{self, Cpus};
use tidegate_cores::stage::{Thread, ThreadKind};

/// Most threads of one process that are looked at: no process may make each look long.
pub const MOST_THREADS: usize = 512;

/// Most threads of all VMs together.
const MOST_OF_ALL: usize = 8192;

/// One thread of a VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// The thread.
    pub thread: Thread,
    /// Its line of `/proc`.
    pub stat: Stat,
    /// Its kind; `None`: one of the emulator's helpers.
    pub kind: Option<ThreadKind>,
}

/// The numbers of the threads that are looked at.
#[derive(Debug, Default)]
pub struct Numbers {
    /// By process, in the order of their starts: virtual CPUs are among the first.
    pub of: BTreeMap<u32, Vec<u32>>,
    /// Processes that have more.
    pub more: Vec<u32>,
}

impl Numbers {
    /// Returns those of these processes; a process that ended has none.
    pub fn read(roots: &Roots, processes: impl Iterator<Item = u32>) -> Self {
        let of = |process: u32| {
            let folder = roots.proc.join(process.to_string()).join("task");
            let names = first_names(folder, MOST_THREADS + 1);
            (process, names.iter().filter_map(|name| name.parse().ok()).collect::<Vec<u32>>())
        };
        let mut found = Self { of: processes.map(of).collect(), more: vec![] };
        let counts: Vec<usize> = found.of.values().map(Vec::len).collect();
        let share = share(&counts, MOST_OF_ALL).min(MOST_THREADS);
        for (process, threads) in &mut found.of {
            if threads.len() > share {
                found.more.push(*process);
                threads.truncate(share);
            }
        }
        found
    }
}

/// Returns the most that each gets at once, so that all together get no more than `most`.
fn share(counts: &[usize], most: usize) -> usize {
    let mut sorted = counts.to_vec();
    sorted.sort_unstable();
    let (mut left, mut sharers) = (most, sorted.len());
    for count in sorted {
        if count * sharers > left {
            return left / sharers;
        }
        (left, sharers) = (left - count, sharers - 1);
    }
    usize::MAX
}

/// Returns the threads of a process by their numbers, without those that ended. `known` are kinds by number, from QMP or libvirt.
pub fn tasks(roots: &Roots, process: u32, numbers: &[u32], known: &BTreeMap<u32, ThreadKind>) -> Vec<Task> {
    let folder = roots.proc.join(process.to_string()).join("task");
    let task = |number: &u32| {
        let stat = Stat::read(&folder.join(number.to_string()))?;
        let thread = Thread { process, thread: *number, started: stat.started };
        Some(Task { kind: kind(thread, &stat, known), thread, stat })
    };
    numbers.iter().filter_map(task).collect()
}

/// Returns the CPUs where a thread may run: `Cpus_allowed_list` of proc_pid_status(5); `None` if it ended.
pub fn allowed(roots: &Roots, thread: Thread) -> Option<Cpus> {
    let Thread { process, thread, .. } = thread;
    let text = text(roots.proc.join(format!("{process}/task/{thread}/status")))?;
    let line = text.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    cpus::from_list(line)
}

/// Returns the kind of a thread: by the kernel's flags, by its number, by `known`, or by its name, which QEMU sets with
/// `-name debug-threads=on`. The name is only the emulator's word.
fn kind(thread: Thread, stat: &Stat, known: &BTreeMap<u32, ThreadKind>) -> Option<ThreadKind> {
    let by_name = || {
        // QEMU's own monitor has such a thread, too, which carries no guest's data.
        let is_io = stat.name.starts_with("IO ") && stat.name != "IO mon_iothread";
        let io = is_io.then_some(ThreadKind::Io);
        vcpu_number(&stat.name).map(|_| ThreadKind::Vcpu).or(io)
    };
    let vhost = stat.vhost_of().filter(|owner| *owner == thread.process).map(|_| ThreadKind::Vhost);
    let main = (thread.process == thread.thread).then_some(ThreadKind::Emulator);
    vhost.or(main).or_else(|| known.get(&thread.thread).copied()).or_else(by_name)
}

/// Returns the number of a virtual CPU by the name of its thread: `CPU 0/KVM`, `CPU 3/TCG`.
pub fn vcpu_number(name: &str) -> Option<u32> {
    name.strip_prefix("CPU ")?.split_once('/')?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_share_is_the_largest_that_fits(counts in prop::collection::vec(0_usize..600, 0..40), most in 0_usize..5000) {
            let share = share(&counts, most);
            let taken = |share: usize| counts.iter().map(|count| *count.min(&share)).sum::<usize>();
            prop_assert!(taken(share) <= most);
            prop_assert!(share == usize::MAX || taken(share + 1) > most);
        }
    }
}
