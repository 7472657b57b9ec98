//! The threads of a VM's process, by kind.

use super::stat::Stat;
use crate::roots::{Roots, numbers};
use std::collections::BTreeMap;
use tidegate_cores::cpus::Cpus;
use tidegate_cores::stage::{Thread, ThreadKind};

/// Most threads of one process that are looked at: the most virtual CPUs of a VM (`KVM_MAX_VCPUS`) are 4,096, but no process may
/// make each look long.
const MOST_THREADS: usize = 1024;

/// One thread of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// The thread.
    pub thread: Thread,
    /// Its line of `/proc`.
    pub stat: Stat,
}

/// Returns the threads of a process; none if it ended. The flag says that it has more.
pub fn tasks(roots: &Roots, process: u32) -> (Vec<Task>, bool) {
    let folder = roots.proc.join(process.to_string()).join("task");
    let threads: Vec<u32> = numbers(&folder);
    let more = threads.len() > MOST_THREADS;
    let task = |thread: u32| {
        let stat = Stat::read(&folder.join(thread.to_string()))?;
        let started = stat.started;
        Some(Task { thread: Thread { process, thread, started }, stat })
    };
    (threads.into_iter().take(MOST_THREADS).filter_map(task).collect(), more)
}

/// Returns the CPUs where a thread may run: `Cpus_allowed_list` of proc_pid_status(5); `None` if it ended.
pub fn allowed(roots: &Roots, thread: Thread) -> Option<Cpus> {
    let Thread { process, thread, .. } = thread;
    let path = roots.proc.join(process.to_string()).join("task").join(thread.to_string()).join("status");
    let text = crate::roots::text(path)?;
    let line = text.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    tidegate_cores::cpus::from_list(line)
}

/// Returns the kind of a thread: by `known` (QMP, libvirt), by the kernel's flags, by its number, or by its name, which QEMU sets with
/// `-name debug-threads=on`. `None`: one of the emulator's helpers.
pub fn kind(task: &Task, known: &BTreeMap<u32, ThreadKind>) -> Option<ThreadKind> {
    let Task { thread: Thread { process, thread, .. }, stat } = task;
    let by_name = || {
        let name = stat.name.as_str();
        match () {
            () if process == thread => Some(ThreadKind::Emulator),
            () if is_vcpu(name) => Some(ThreadKind::Vcpu),
            () if name.starts_with("IO ") => Some(ThreadKind::Io),
            () => None,
        }
    };
    let vhost = stat.vhost_of().map(|_| ThreadKind::Vhost);
    vhost.or_else(|| known.get(thread).copied()).or_else(by_name)
}

/// Whether a name is that of a virtual CPU: `CPU 0/KVM`, `CPU 3/TCG`.
fn is_vcpu(name: &str) -> bool {
    let number = name.strip_prefix("CPU ").and_then(|rest| rest.split_once('/')).map(|(number, _)| number);
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
}
