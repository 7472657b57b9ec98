//! Real-time priority, where the host grants it: the switch's worker and the
//! voice stream's threads then run as they would on a production host, under
//! SCHED_FIFO, in both phases. Where it is not granted they share the CPUs with
//! everybody else, and the report says so.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// SCHED_FIFO priority of the switch's worker.
pub const WORKER: u8 = 2;
/// SCHED_FIFO priority of the voice stream's threads: short work, above the worker.
pub const VOICE: u8 = 3;
/// SCHED_FIFO priority of the [control threads](super::control): above all others of the demo.
pub const CONTROL: u8 = 4;

/// Whether threads of the demo may have real-time priority: those of root may, and
/// others where RLIMIT_RTPRIO allows it (limits.conf(5)), which is raised to its maximum.
pub fn allow() -> bool {
    let maximum = getrlimit(Resource::Rtprio).maximum;
    let _ = setrlimit(Resource::Rtprio, Rlimit { current: maximum, maximum });
    // A thread that ends at once: this one goes on as it is.
    std::thread::scope(|scope| scope.spawn(|| take(VOICE)).join().unwrap_or(false))
}

/// Puts the calling thread under SCHED_FIFO; `false` where that is not allowed.
pub fn take(priority: u8) -> bool {
    let parameters = libc::sched_param { sched_priority: i32::from(priority) };
    // SAFETY: sched_setscheduler(2) reads the parameters and changes this thread alone.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameters) == 0 }
}
