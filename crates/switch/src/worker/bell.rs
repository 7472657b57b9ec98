//! Wakes a worker that sleeps.

use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering, fence};

/// Wakes a sleeping worker.
pub struct Bell {
    pub(super) event: OwnedFd,
    pub(super) asleep: AtomicBool,
    pub(super) called: AtomicBool,
}

impl Bell {
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self {
            event: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            asleep: AtomicBool::new(false),
            called: AtomicBool::new(false),
        })
    }

    /// Wakes the worker if it sleeps. Whatever it is to find must be stored before.
    #[inline]
    pub fn ring(&self) {
        // Pairs with the fence in `about_to_sleep`: either it sees our work, or we see it asleep.
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::AcqRel) {
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
    }

    /// The worker announces that it will sleep; it must look for work once more afterwards.
    pub fn about_to_sleep(&self) {
        self.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// The worker is awake.
    pub fn awake(&self) {
        self.asleep.store(false, Ordering::Relaxed);
    }

    /// It was heard: not readable until it is rung again.
    pub fn heard(&self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.event, &mut count);
    }

    /// Readable when rung.
    pub fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}
