//! Where an agent may die: the points between two steps that leave something behind, on disk, in the
//! file system or in a place.
//!
//! Nothing in a release. Tests make the agent of their thread die at the n-th point, with everything it
//! held, and look whether its successor makes sense of what is left.

#[cfg(not(test))]
#[inline(always)]
pub fn point() {}

#[cfg(test)]
pub use testing::point;

#[cfg(test)]
pub mod testing {
    use std::cell::Cell;
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

    thread_local! {
        /// Points left to pass; `None` where the agent is not to die.
        static LEFT: Cell<Option<u32>> = const { Cell::new(None) };
    }

    struct Killed;

    /// Passes a point, or dies there.
    pub fn point() {
        LEFT.with(|left| match left.get() {
            None => {}
            Some(0) => {
                left.set(None);
                resume_unwind(Box::new(Killed));
            }
            Some(n) => left.set(Some(n - 1)),
        });
    }

    /// Does `life`, which dies at its point number `at`, counted from 0; `None` where it did.
    pub fn dies_at<T>(at: u32, life: impl FnOnce() -> T) -> Option<T> {
        LEFT.with(|left| left.set(Some(at)));
        let ended = catch_unwind(AssertUnwindSafe(life));
        LEFT.with(|left| left.set(None));
        match ended {
            Ok(value) => Some(value),
            Err(cause) if cause.is::<Killed>() => None,
            Err(cause) => resume_unwind(cause),
        }
    }
}
