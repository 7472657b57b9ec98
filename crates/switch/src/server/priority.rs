//! Priorities of threads (sched(7)).

use crate::worker::Worker;
use crate::worker::events::Event;
use rustix::io::Errno;
use std::io;

/// Gives the calling thread, which is `worker`'s, its priority; it says so where that fails.
pub(super) fn prioritise(worker: &mut Worker, realtime_priority: Option<u8>) {
    if let Some(priority) = realtime_priority {
        if !has_realtime_priority(priority)
            && let Err(error) = schedule(libc::SCHED_FIFO, priority)
        {
            worker.note(Event::NotRealTime { priority, error });
        }
    } else {
        short_slice();
    }
}

/// Puts the calling thread under `policy` (sched(7)).
pub(super) fn schedule(policy: i32, priority: u8) -> rustix::io::Result<()> {
    let param = libc::sched_param { sched_priority: i32::from(priority) };
    // SAFETY: a plain call on the calling thread with a valid parameter.
    match unsafe { libc::sched_setscheduler(0, policy, &param) } {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::INVAL)),
    }
}

/// Gives the calling thread another priority under the policy that it has: a thread with a service manager's may lower it.
pub(super) fn reprioritise(priority: u8) -> rustix::io::Result<()> {
    let param = libc::sched_param { sched_priority: i32::from(priority) };
    // SAFETY: a plain call on the calling thread with a valid parameter.
    match unsafe { libc::sched_setparam(0, &raw const param) } {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::INVAL)),
    }
}

/// Whether the calling thread has it already: from a service manager, which gives no right to take it along.
pub(super) fn has_realtime_priority(priority: u8) -> bool {
    let mut param = libc::sched_param { sched_priority: 0 };
    // SAFETY: plain calls on the calling thread; the parameter is live.
    let policy = unsafe { libc::sched_getscheduler(0) };
    // SAFETY: as above.
    let known = unsafe { libc::sched_getparam(0, &raw mut param) } == 0;
    known && policy == libc::SCHED_FIFO && param.sched_priority == i32::from(priority)
}

/// Asks the fair scheduler for a short slice (Linux 6.12): a worker that wakes
/// up is let in earlier. Unprivileged, and harmless where it is not known.
pub(super) fn short_slice() {
    #[repr(C)]
    #[derive(Default)]
    struct SchedAttr {
        size: u32,
        policy: u32,
        flags: u64,
        nice: i32,
        priority: u32,
        runtime: u64,
        deadline: u64,
        period: u64,
    }
    // The call sets all attributes: the nice value that the switch was started with has to stay.
    let nice = rustix::process::getpriority_process(None).unwrap_or(0);
    let attr =
        SchedAttr { size: size_of::<SchedAttr>() as u32, nice, runtime: 100_000, ..SchedAttr::default() };
    // SAFETY: sched_setattr reads `size` bytes of the attribute and changes this thread only.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0) };
}
