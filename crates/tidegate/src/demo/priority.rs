//! Real-time priority, where the host permits it: the switch's worker and voice's threads then run under
//! SCHED_FIFO in both phases, as on a production host. Otherwise they share the CPUs with all other
//! threads, and the report says so.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

pub const WORKER: u8 = 2;
/// SCHED_FIFO priority of voice's threads: short work, above the worker.
pub const VOICE: u8 = 3;
/// SCHED_FIFO priority of the [control threads](super::control): the highest of the demo.
pub const CONTROL: u8 = 4;

/// Returns whether threads of the demo may have real-time priority: root's may, and others within
/// RLIMIT_RTPRIO (limits.conf(5)), which this function raises to its maximum.
pub fn allow() -> bool {
    let maximum = getrlimit(Resource::Rtprio).maximum;
    let _ = setrlimit(Resource::Rtprio, Rlimit { current: maximum, maximum });
    // A temporary thread tries it, so that this one does not change.
    std::thread::scope(|scope| scope.spawn(|| take(VOICE)).join().unwrap_or(false))
}

/// Puts the calling thread under SCHED_FIFO; returns `false` if that is not permitted.
pub fn take(priority: u8) -> bool {
    let parameters = libc::sched_param { sched_priority: i32::from(priority) };
    // SAFETY: sched_setscheduler(2) only reads the parameters, and changes only this thread.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameters) == 0 }
}
