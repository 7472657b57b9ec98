//! A clock that stands still until it is set, or that a function tells: for tests, and for counting instructions.

use std::cell::Cell;

#[derive(Clone, Copy)]
enum Clock {
    /// The machine's.
    Machine,
    /// It stands still.
    Still(u64),
    /// What this says.
    Told(fn() -> u64),
}

thread_local! {
    static CLOCK: Cell<Clock> = const { Cell::new(Clock::Machine) };
}

/// The time of this thread's workers, ns; `None` while they read the machine's clock.
#[inline]
pub fn time() -> Option<u64> {
    match CLOCK.get() {
        Clock::Machine => None,
        Clock::Still(now) => Some(now),
        Clock::Told(tell) => Some(tell()),
    }
}

/// Sets the time of this thread's workers, ns; it stands still until it is set again.
pub fn set_time(now: u64) {
    CLOCK.set(Clock::Still(now));
}

/// Has this function tell this thread's workers the time, ns.
pub fn set_clock(tell: fn() -> u64) {
    CLOCK.set(Clock::Told(tell));
}
