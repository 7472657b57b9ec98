//! Time for the voice stream: CLOCK_MONOTONIC, one clock for all processes of a
//! host, and threads that wake when they should.

use rustix::thread::ClockId as SleepClock;
use rustix::time::{ClockId, Timespec};
use std::num::NonZeroU64;

/// Nanoseconds of CLOCK_MONOTONIC.
pub fn now() -> u64 {
    read(ClockId::Monotonic)
}

/// Nanoseconds since the epoch, by the clock as it is set now.
pub fn of_day() -> u64 {
    read(ClockId::Realtime)
}

fn read(clock: ClockId) -> u64 {
    let t = rustix::time::clock_gettime(clock);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// Sleeps until `at`; returns at once where that has passed.
pub fn sleep_until(at: u64) {
    let request = Timespec { tv_sec: (at / 1_000_000_000) as i64, tv_nsec: (at % 1_000_000_000) as i64 };
    while rustix::thread::clock_nanosleep_absolute(SleepClock::Monotonic, &request).is_err() {
        // Interrupted by a signal: the time is absolute, so sleep on.
    }
}

/// Makes a thread of the voice stream wake without delay: under SCHED_FIFO if `realtime`,
/// which the demo has tried, else [`wake_soon`].
pub fn wake_promptly(realtime: bool) {
    wake_soon();
    if realtime {
        super::priority::take(super::priority::VOICE);
    }
}

/// Makes the calling thread wake with as little delay as a thread without
/// privileges can have: no timer slack (the default is 50 us), and a short slice, which makes
/// the scheduler run it soon after it wakes (Linux 6.12 and later; elsewhere
/// that part has no effect).
pub fn wake_soon() {
    // Both only help: where the kernel refuses, the figures are what they are.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    let attributes =
        SchedAttributes { size: size_of::<SchedAttributes>() as u32, runtime: 100_000, ..DEFAULT };
    // SAFETY: sched_setattr(2) reads `size` bytes at the pointer, which this struct has.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
}

/// `struct sched_attr` of sched_setattr(2), first version; policy 0 is SCHED_OTHER.
#[repr(C)]
struct SchedAttributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    /// Under SCHED_OTHER: the slice, ns.
    runtime: u64,
    deadline: u64,
    period: u64,
}

const DEFAULT: SchedAttributes = SchedAttributes {
    size: 0,
    policy: 0,
    flags: 0,
    nice: 0,
    priority: 0,
    runtime: 0,
    deadline: 0,
    period: 0,
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_never_wakes_early() {
        wake_soon();
        let at = now() + 2_000_000;
        sleep_until(at);
        assert!(now() >= at);
        sleep_until(at - 1_000_000);
    }
}
