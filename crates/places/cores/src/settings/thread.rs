//! The CPUs and the nice value of a thread of another process.
//!
//! A thread is named by process, number and start: a number is used again for another thread once its first one ended, and the
//! system calls know numbers only (sched_setaffinity(2), setpriority(2); a pidfd has no such call). So the start is compared before
//! each change, right before the call, and after it. Between the first comparison and the call a thread would have to end, and the
//! kernel to give out all numbers up to `kernel.pid_max` once: microseconds against at least 32,767 new threads. If that happens, the
//! comparison after the call finds the other thread, and the log names it.

use crate::settings::step::Found;
use rustix::io::Errno;
use rustix::thread::{CpuSet, Pid, sched_setaffinity};
use tidegate_cores::cpus::{self, Cpus};
use tidegate_cores::stage::Thread;

/// The field of the nice value, and that of the start, after the command's name (proc_pid_stat(5): 19 and 22, from 1).
const NICE: usize = 19 - 3;
const STARTED: usize = 22 - 3;

/// The missing right.
const RIGHT: &str = " (it needs CAP_SYS_NICE: the packaged agent gets it by the drop-in cores.conf)";

/// Returns the CPUs on which a thread may run, those that are offline included; `None` if it ended.
pub fn affinity(thread: &Thread) -> Result<Option<Found>, String> {
    if !is_there(thread) {
        return Ok(None);
    }
    let Ok(status) = std::fs::read_to_string(file(thread, "status")) else { return Ok(None) };
    let cpus =
        status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).and_then(cpus::from_list);
    let cpus = cpus.ok_or_else(|| format!("{} has no list of CPUs", file(thread, "status")))?;
    Ok(is_there(thread).then(|| Found { index: 0, value: cpus::list(&cpus) }))
}

/// Sets the CPUs on which a thread may run.
pub fn set_affinity(thread: &Thread, value: &str) -> Result<(), String> {
    let wanted = cpus::from_list(value).ok_or_else(|| format!("{value:?} is no list of CPUs"))?;
    let mut set = CpuSet::new();
    if let Some(cpu) = wanted.iter().find(|cpu| **cpu >= CpuSet::MAX_CPU) {
        return Err(format!(
            "cannot give thread {} of process {} CPU {cpu}: CPUs of threads are set up to {} (leave those above out of \
             [host.cores] cpus)",
            thread.thread,
            thread.process,
            CpuSet::MAX_CPU - 1
        ));
    }
    wanted.iter().for_each(|cpu| set.set(*cpu));
    change(thread, || sched_setaffinity(Pid::from_raw(thread.thread.cast_signed()), &set)).map_err(|e| {
        let why = match e {
            Errno::PERM => RIGHT.to_owned(),
            Errno::INVAL => why_invalid(thread, &wanted),
            _ => String::new(),
        };
        format!("cannot give thread {} of process {} CPU {value}: {e}{why}", thread.thread, thread.process)
    })
}

/// Returns the nice value of a thread; `None` if it ended.
pub fn nice(thread: &Thread) -> Result<Option<Found>, String> {
    let fields = fields(thread).filter(|fields| started(fields) == Some(thread.started));
    let Some(fields) = fields else { return Ok(None) };
    let value = fields.get(NICE).ok_or_else(|| format!("{} has no nice value", file(thread, "stat")))?;
    Ok(Some(Found { index: 0, value: value.clone() }))
}

/// Sets the nice value of a thread.
pub fn set_nice(thread: &Thread, value: &str) -> Result<(), String> {
    let nice: i32 = value.parse().map_err(|_| format!("{value:?} is no nice value"))?;
    let set = || rustix::process::setpriority_process(Pid::from_raw(thread.thread.cast_signed()), nice);
    change(thread, set).map_err(|e| {
        let why = if e == Errno::PERM || e == Errno::ACCESS { RIGHT } else { "" };
        format!(
            "cannot set the nice value of thread {} of process {}: {e}{why}",
            thread.thread, thread.process
        )
    })
}

/// Changes a thread if it is the one that is meant; one that ended needs no change.
fn change(thread: &Thread, set: impl FnOnce() -> rustix::io::Result<()>) -> rustix::io::Result<()> {
    if !is_there(thread) {
        return Ok(());
    }
    match set() {
        // It ended meanwhile.
        Err(Errno::SRCH) => return Ok(()),
        other => other?,
    }
    if let Some(now) = fields(thread).and_then(|fields| started(&fields))
        && now != thread.started
    {
        tracing::warn!(
            thread = thread.thread,
            "its number was given to another thread while its CPUs or priority were set: look at that thread's"
        );
    }
    Ok(())
}

/// Returns the probable reason for which the kernel calls CPUs invalid.
fn why_invalid(thread: &Thread, wanted: &Cpus) -> String {
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online").ok();
    let online = online.and_then(|list| cpus::from_list(&list)).unwrap_or_default();
    match () {
        () if wanted.is_disjoint(&online) => " (the CPU is offline)".to_owned(),
        () => format!(
            " (its cpuset forbids the CPU, or it is a thread of the kernel that stays where it is: \
             /proc/{}/cgroup names its cpuset)",
            thread.process
        ),
    }
}

fn is_there(thread: &Thread) -> bool {
    fields(thread).and_then(|fields| started(&fields)) == Some(thread.started)
}

fn started(fields: &[String]) -> Option<u64> {
    fields.get(STARTED)?.parse().ok()
}

/// Returns the fields of a thread's `stat` from its state on; `None` if it ended. The name before them may have blanks and
/// parentheses.
fn fields(thread: &Thread) -> Option<Vec<String>> {
    let stat = std::fs::read_to_string(file(thread, "stat")).ok()?;
    let (_, rest) = stat.rsplit_once(')')?;
    Some(rest.split_ascii_whitespace().map(str::to_owned).collect())
}

fn file(Thread { process, thread, .. }: &Thread, name: &str) -> String {
    format!("/proc/{process}/task/{thread}/{name}")
}
