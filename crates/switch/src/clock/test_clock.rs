//! A clock that stands still until it is set, or that a function drives: for tests, and for counting
//! instructions.

use std::cell::Cell;

#[derive(Clone, Copy)]
enum Clock {
    /// The machine's.
    Machine,
    /// It stands still.
    Still(u64),
    /// Returned by this function.
    Function(fn() -> u64),
}

thread_local! {
    static CLOCK: Cell<Clock> = const { Cell::new(Clock::Machine) };
}

/// Returns the time of this thread's workers (ns); `None` while they read the machine's clock.
#[inline]
pub fn time() -> Option<u64> {
    match CLOCK.get() {
        Clock::Machine => None,
        Clock::Still(now) => Some(now),
        Clock::Function(time_fn) => Some(time_fn()),
    }
}

/// Sets the time of this thread's workers (ns); it stands still until the next call.
pub fn set_time(now: u64) {
    CLOCK.set(Clock::Still(now));
}

/// Lets this function return the time of this thread's workers (ns).
pub fn set_clock(time_fn: fn() -> u64) {
    CLOCK.set(Clock::Function(time_fn));
}
