//! Ends a queue's operation between two stores to memory that outlives it, as a kill does.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

thread_local! {
    /// Stores until the cut; `None` for no cut.
    static LEFT: Cell<Option<u32>> = const { Cell::new(None) };
}

/// The payload of the unwinding, instead of a panic.
struct Cut;

/// Runs `operation` until `stores` stores to surviving memory have happened; `None` if it was cut there. A
/// cut value must not be used any more, like that of a killed process.
pub fn after<T>(stores: u32, operation: impl FnOnce() -> T) -> Option<T> {
    LEFT.set(Some(stores));
    let result = match stores {
        0 => Err(Box::new(Cut) as _),
        _ => catch_unwind(AssertUnwindSafe(operation)),
    };
    LEFT.set(None);
    match result {
        Ok(value) => Some(value),
        Err(panic) if panic.is::<Cut>() => None,
        Err(panic) => resume_unwind(panic),
    }
}

/// Counts a store to surviving memory.
pub fn stored() {
    if let Some(left) = LEFT.get() {
        LEFT.set(Some(left - 1));
        if left == 1 {
            resume_unwind(Box::new(Cut));
        }
    }
}
