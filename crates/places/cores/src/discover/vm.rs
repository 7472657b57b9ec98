//! The threads of a VM's process, by kind.

use super::stat::Stat;
use crate::roots::{Roots, first_names, text};
use std::collections::BTreeMap;
use tidegate_cores::cpus::{self, Cpus};
use tidegate_cores::stage::{Thread, ThreadKind};

/// Most threads of one process that are looked at: no process may make each look long.
const MOST_THREADS: usize = 512;

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

/// Returns the threads of a process; none if it ended. The flag says that it has more. `known` are kinds by number, from QMP or
/// libvirt.
pub fn tasks(roots: &Roots, process: u32, known: &BTreeMap<u32, ThreadKind>) -> (Vec<Task>, bool) {
    let folder = roots.proc.join(process.to_string()).join("task");
    // In the order of their starts: virtual CPUs are among the first.
    let names = first_names(&folder, MOST_THREADS + 1);
    let more = names.len() > MOST_THREADS;
    let mut threads: Vec<u32> = names.iter().filter_map(|name| name.parse().ok()).collect();
    threads.truncate(MOST_THREADS);
    let task = |number: u32| {
        let stat = Stat::read(&folder.join(number.to_string()))?;
        let thread = Thread { process, thread: number, started: stat.started };
        Some(Task { kind: kind(thread, &stat, known), thread, stat })
    };
    (threads.into_iter().filter_map(task).collect(), more)
}

/// Returns the CPUs where a thread may run: `Cpus_allowed_list` of proc_pid_status(5); `None` if it ended.
pub fn allowed(roots: &Roots, thread: Thread) -> Option<Cpus> {
    let Thread { process, thread, .. } = thread;
    let text = text(roots.proc.join(format!("{process}/task/{thread}/status")))?;
    let line = text.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    cpus::from_list(line)
}

/// Returns the kind of a thread: by the kernel's flags, by its number, by `known`, or by its name, which QEMU sets with
/// `-name debug-threads=on`. The name is only the emulator's word, but a false one concerns its own VM alone.
fn kind(thread: Thread, stat: &Stat, known: &BTreeMap<u32, ThreadKind>) -> Option<ThreadKind> {
    let by_name = || {
        let io = stat.name.starts_with("IO ").then_some(ThreadKind::Io);
        vcpu_number(&stat.name).map(|_| ThreadKind::Vcpu).or(io)
    };
    let vhost = stat.vhost_of().map(|_| ThreadKind::Vhost);
    let main = (thread.process == thread.thread).then_some(ThreadKind::Emulator);
    vhost.or(main).or_else(|| known.get(&thread.thread).copied()).or_else(by_name)
}

/// Returns the number of a virtual CPU by the name of its thread: `CPU 0/KVM`, `CPU 3/TCG`.
pub fn vcpu_number(name: &str) -> Option<u32> {
    name.strip_prefix("CPU ")?.split_once('/')?.0.parse().ok()
}
