//! Priorities of threads (sched(7)).

use crate::worker::Worker;
use crate::worker::events::Event;
use rustix::io::Errno;
use std::io;

/// Gives the calling thread, `worker`'s, its priority; notes a failure.
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

pub(super) fn schedule(policy: i32, priority: u8) -> rustix::io::Result<()> {
    let param = libc::sched_param { sched_priority: i32::from(priority) };
    // SAFETY: a call on the calling thread with a valid parameter.
    match unsafe { libc::sched_setscheduler(0, policy, &param) } {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::INVAL)),
    }
}

/// Changes the calling thread's priority. A thread with a service manager's policy may only lower it.
pub(super) fn reprioritise(priority: u8) -> rustix::io::Result<()> {
    let param = libc::sched_param { sched_priority: i32::from(priority) };
    // SAFETY: a call on the calling thread with a valid parameter.
    match unsafe { libc::sched_setparam(0, &raw const param) } {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::INVAL)),
    }
}

/// Whether a service manager gave the calling thread this priority; the right to set it does not come with it.
pub(super) fn has_realtime_priority(priority: u8) -> bool {
    let mut param = libc::sched_param { sched_priority: 0 };
    // SAFETY: calls on the calling thread; the parameter is live.
    let policy = unsafe { libc::sched_getscheduler(0) };
    // SAFETY: as above.
    let known = unsafe { libc::sched_getparam(0, &raw mut param) } == 0;
    known && policy == libc::SCHED_FIFO && param.sched_priority == i32::from(priority)
}

/// Asks the fair scheduler for a short slice (Linux 6.12), so that a woken worker runs earlier. Needs no
/// privilege; harmless on older kernels.
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
    // The call sets all attributes; the nice value must stay.
    let nice = rustix::process::getpriority_process(None).unwrap_or(0);
    let attr =
        SchedAttr { size: size_of::<SchedAttr>() as u32, nice, runtime: 100_000, ..SchedAttr::default() };
    // SAFETY: sched_setattr reads `size` bytes of the attribute and changes this thread only.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0) };
}
