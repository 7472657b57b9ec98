//! The calls that other threads send a worker.

use super::bell::Bell;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;

/// The worker's end; `C` is a call.
pub struct Inbox<C> {
    /// Calls that go before others.
    pub(super) first: Receiver<C>,
    pub(super) calls: Receiver<C>,
    pub(super) bell: Arc<Bell>,
    pub(super) epoll: Arc<OwnedFd>,
}

impl<C> Inbox<C> {
    /// The next call, if there is one. Costs one load where there is none.
    #[inline]
    pub fn next(&self) -> Option<C> {
        if !self.bell.called.load(Ordering::Relaxed) {
            return None;
        }
        // A read-modify-write: a call sent before it is seen below, one sent after sets the flag again.
        self.bell.called.swap(false, Ordering::AcqRel);
        let call = self.first.try_recv().or_else(|_| self.calls.try_recv()).ok();
        if call.is_some() {
            self.bell.called.store(true, Ordering::Release);
        }
        call
    }

    /// Whether no call waits.
    pub fn is_idle(&self) -> bool {
        !self.bell.called.load(Ordering::Acquire)
    }

    /// The worker's own bell.
    pub fn bell(&self) -> &Arc<Bell> {
        &self.bell
    }

    /// What the worker sleeps in.
    pub fn epoll(&self) -> &Arc<OwnedFd> {
        &self.epoll
    }
}
