//! Points at which a process may die: between two steps that leave something behind on disk, in the file system or at a place.
//!
//! Without the feature `testing` a point is nothing. A test lets the code of its thread die at its n-th point, then checks that a
//! successor continues from what is left.

/// Passes a point.
#[cfg(not(any(test, feature = "testing")))]
#[inline(always)]
pub fn point() {}

#[cfg(any(test, feature = "testing"))]
pub use testing::point;

/// Deaths at chosen points, for tests.
#[cfg(any(test, feature = "testing"))]
pub mod testing {
    use std::cell::Cell;
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

    thread_local! {
        /// Points to pass before the death; `None` if the thread is not to die.
        static POINTS: Cell<Option<u32>> = const { Cell::new(None) };
    }

    struct Killed;

    /// Passes a point, or dies there.
    pub fn point() {
        POINTS.with(|points| match points.get() {
            None => {}
            Some(0) => {
                points.set(None);
                resume_unwind(Box::new(Killed));
            }
            Some(n) => points.set(Some(n - 1)),
        });
    }

    /// Runs `life`, which dies at its point number `at`, counted from 0. `None` if it died.
    ///
    /// # Panics
    /// `life` panics for another reason.
    pub fn dies_at<T>(at: u32, life: impl FnOnce() -> T) -> Option<T> {
        POINTS.with(|points| points.set(Some(at)));
        let ended = catch_unwind(AssertUnwindSafe(life));
        POINTS.with(|points| points.set(None));
        match ended {
            Ok(value) => Some(value),
            Err(cause) if cause.is::<Killed>() => None,
            Err(cause) => resume_unwind(cause),
        }
    }
}
