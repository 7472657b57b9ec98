//! A clock that stands still until it is set: for tests, and for counting instructions.

use std::cell::Cell;

thread_local! {
    static TIME: Cell<Option<u64>> = const { Cell::new(None) };
}

/// The time of this thread's workers, ns; `None` while they read the machine's clock.
#[inline]
pub fn time() -> Option<u64> {
    TIME.get()
}

/// Sets the time of this thread's workers, ns; it stands still until it is set again.
pub fn set_time(now: u64) {
    TIME.set(Some(now));
}
