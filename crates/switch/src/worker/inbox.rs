//! The calls of other threads to a worker.

use super::bell::Bell;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;

/// The worker's end; `C` is a call.
pub struct Inbox<C> {
    /// Calls that precede the others.
    pub(super) first: Receiver<C>,
    pub(super) calls: Receiver<C>,
    pub(super) bell: Arc<Bell>,
    pub(super) epoll: Arc<OwnedFd>,
}

impl<C> Inbox<C> {
    /// Takes the next call. Costs one load if there is none.
    #[inline]
    pub fn next(&self) -> Option<C> {
        if !self.bell.has_calls.load(Ordering::Relaxed) {
            return None;
        }
        // A read-modify-write: an earlier call is seen below, a later one sets the flag again.
        self.bell.has_calls.swap(false, Ordering::AcqRel);
        let call = self.first.try_recv().or_else(|_| self.calls.try_recv()).ok();
        if call.is_some() {
            self.bell.has_calls.store(true, Ordering::Release);
        }
        call
    }

    /// Whether no call waits.
    pub fn is_idle(&self) -> bool {
        !self.bell.has_calls.load(Ordering::Acquire)
    }

    /// Returns the worker's own bell.
    pub fn bell(&self) -> &Arc<Bell> {
        &self.bell
    }

    /// Returns the epoll in which the worker sleeps.
    pub fn epoll(&self) -> &Arc<OwnedFd> {
        &self.epoll
    }
}
