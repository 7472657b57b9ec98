//! Completion queues.

#[cfg(feature = "simulated")]
use crate::simulated;
use crate::{Completion, Device, Error, device, real};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// A completion queue with an event channel of its own.
#[derive(Debug)]
pub struct CompletionQueue {
    pub(crate) inner: Inner,
}

#[derive(Debug)]
pub(crate) enum Inner {
    Real(real::CompletionQueue),
    #[cfg(feature = "simulated")]
    Simulated(simulated::CompletionQueue),
}

impl CompletionQueue {
    /// Makes a queue for `entries` completions. The channel's descriptor does not block.
    ///
    /// # Errors
    /// The device has no more.
    pub fn new(device: &Arc<Device>, entries: u32) -> Result<Arc<Self>, Error> {
        let inner = match &device.inner {
            device::Inner::Real(device) => Inner::Real(real::CompletionQueue::new(device, entries)?),
            #[cfg(feature = "simulated")]
            device::Inner::Simulated(device) => {
                Inner::Simulated(simulated::CompletionQueue::new(device, entries)?)
            }
        };
        Ok(Arc::new(Self { inner }))
    }

    /// Takes completions into `to`, and returns how many.
    ///
    /// # Errors
    /// The queue overran or the device went away: it is of no use any more.
    pub fn poll(&self, to: &mut [Completion]) -> Result<usize, Error> {
        match &self.inner {
            Inner::Real(queue) => queue.poll(to),
            #[cfg(feature = "simulated")]
            Inner::Simulated(queue) => queue.poll(to),
        }
    }

    /// Makes the next completion readable at the descriptor. Poll once more afterwards: one may have come before.
    ///
    /// # Errors
    /// The device went away.
    pub fn arm(&self) -> Result<(), Error> {
        match &self.inner {
            Inner::Real(queue) => queue.arm(),
            #[cfg(feature = "simulated")]
            Inner::Simulated(queue) => queue.arm(),
        }
    }

    /// Takes the event that made the descriptor readable, and acknowledges it. Each [`arm`](Self::arm) makes one at most.
    pub fn take_event(&self) {
        match &self.inner {
            Inner::Real(queue) => queue.take_event(),
            #[cfg(feature = "simulated")]
            Inner::Simulated(queue) => queue.take_event(),
        }
    }
}

impl AsFd for CompletionQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.inner {
            Inner::Real(queue) => queue.as_fd(),
            #[cfg(feature = "simulated")]
            Inner::Simulated(queue) => queue.as_fd(),
        }
    }
}
