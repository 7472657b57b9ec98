//! Wakes a worker that sleeps.

use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering, fence};

/// Wakes a sleeping worker.
pub struct Bell {
    pub(super) event: OwnedFd,
    pub(super) asleep: AtomicBool,
    pub(super) has_calls: AtomicBool,
}

impl Bell {
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self {
            event: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            asleep: AtomicBool::new(false),
            has_calls: AtomicBool::new(false),
        })
    }

    /// Wakes the worker if it sleeps. The caller has stored the worker's new work before.
    #[inline]
    pub fn ring(&self) {
        // Pairs with the fence in `about_to_sleep`: either the worker sees the new work, or this thread
        // sees it asleep.
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::AcqRel) {
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
    }

    /// Announces sleep; the worker must look for work once more afterwards.
    pub fn about_to_sleep(&self) {
        self.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Announces that the worker is awake.
    pub fn awake(&self) {
        self.asleep.store(false, Ordering::Relaxed);
    }

    /// Clears the bell: not readable until the next ring.
    pub fn clear(&self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.event, &mut count);
    }

    /// Readable when rung.
    pub fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}
