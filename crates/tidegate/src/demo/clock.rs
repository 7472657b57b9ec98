//! Time for the voice stream: CLOCK_MONOTONIC, which all processes of a host share, and threads that wake
//! on time.

use rustix::thread::ClockId as SleepClock;
use rustix::time::{ClockId, Timespec};
use std::num::NonZeroU64;

/// Returns CLOCK_MONOTONIC (ns).
pub fn now() -> u64 {
    read(ClockId::Monotonic)
}

/// Returns the time of day: nanoseconds since the epoch.
pub fn of_day() -> u64 {
    read(ClockId::Realtime)
}

fn read(clock: ClockId) -> u64 {
    let t = rustix::time::clock_gettime(clock);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// Sleeps until `at`; returns at once if that has passed.
pub fn sleep_until(at: u64) {
    let request = Timespec { tv_sec: (at / 1_000_000_000) as i64, tv_nsec: (at % 1_000_000_000) as i64 };
    while rustix::thread::clock_nanosleep_absolute(SleepClock::Monotonic, &request).is_err() {
        // A signal interrupted the sleep: the time is absolute, so sleep on.
    }
}

/// Makes a thread of the voice stream wake without delay: applies [`wake_soon`] and, if `realtime`,
/// SCHED_FIFO. The demo has checked that it is permitted.
pub fn wake_promptly(realtime: bool) {
    wake_soon();
    if realtime {
        super::priority::take(super::priority::VOICE);
    }
}

/// Makes the calling thread wake with as little delay as is possible without privileges: no timer slack
/// (the default is 50 us), and a short slice, so that the scheduler runs it soon after it wakes (no effect
/// before Linux 6.12).
pub fn wake_soon() {
    // If the kernel refuses, the figures are only worse.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    let attributes =
        SchedAttributes { size: size_of::<SchedAttributes>() as u32, runtime: 100_000, ..DEFAULT };
    // SAFETY: sched_setattr(2) reads `size` bytes at the pointer, the size of this struct.
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
    /// Slice under SCHED_OTHER (ns).
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
    fn a_sleep_never_ends_early() {
        wake_soon();
        let at = now() + 2_000_000;
        sleep_until(at);
        assert!(now() >= at);
        sleep_until(at - 1_000_000);
    }
}
