//! A place for one object that several threads take and put back: at most one of them has it.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The place: empty while a thread has the object.
pub(super) struct Exchange<T: Send>(AtomicPtr<T>);

impl<T: Send> Exchange<T> {
    pub(super) fn empty() -> Self {
        Self(AtomicPtr::new(null_mut()))
    }

    /// Takes the object if it is here. Never waits.
    #[inline]
    pub(super) fn take(&self) -> Option<Box<T>> {
        // Acquire: the work of the thread that put the object here comes before.
        let thing = self.0.swap(null_mut(), Ordering::Acquire);
        // SAFETY: a non-null pointer comes from the `Box` given to `put`, and the swap for null keeps every
        // other thread from it.
        (!thing.is_null()).then(|| unsafe { Box::from_raw(thing) })
    }

    /// Puts the object here. An object that is already here leaks.
    #[inline]
    pub(super) fn put(&self, thing: Box<T>) {
        debug_assert!(self.0.load(Ordering::Relaxed).is_null(), "there is one thing only");
        self.0.store(Box::into_raw(thing), Ordering::Release);
    }
}

impl<T: Send> Drop for Exchange<T> {
    fn drop(&mut self) {
        self.take();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// For `make miri`.
    #[test]
    fn one_thread_has_the_value_at_a_time() {
        let rounds: u64 = if cfg!(miri) { 50 } else { 20_000 };
        let place = Exchange::empty();
        place.put(Box::new(0u64));
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let mut done = 0;
                    while done < rounds {
                        match place.take() {
                            Some(mut count) => {
                                *count += 1;
                                done += 1;
                                place.put(count);
                            }
                            None => std::thread::yield_now(),
                        }
                    }
                });
            }
        });
        assert_eq!(place.take().as_deref(), Some(&(3 * rounds)));
        assert!(place.take().is_none());
    }
}
