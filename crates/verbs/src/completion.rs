//! Completion queues.

#[cfg(feature = "simulated")]
use crate::simulated;
use crate::{Device, Error, device, real};
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

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Done.
    Success,
    /// The queue pair is in the error state, or left it: the request was flushed (IBV_WC_WR_FLUSH_ERR).
    Flushed,
    /// Another error, by its number (ibv_wc_status).
    Failed(u32),
}

/// The completion of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The request's `id`.
    pub id: u64,
    /// What became of it. On failure only `id` and `queue_pair` are valid.
    pub status: Status,
    /// Of a receive; else of a send.
    pub is_receive: bool,
    /// Bytes received, with the [`GRH`](crate::GRH).
    pub bytes: u32,
    /// Number of the queue pair here.
    pub queue_pair: u32,
    /// Number of the sending queue pair.
    pub source: u32,
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

    /// Takes the events that made the descriptor readable, and acknowledges them.
    pub fn take_events(&self) {
        match &self.inner {
            Inner::Real(queue) => queue.take_events(),
            #[cfg(feature = "simulated")]
            Inner::Simulated(queue) => queue.take_events(),
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

impl Default for Completion {
    fn default() -> Self {
        Self { id: 0, status: Status::Success, is_receive: false, bytes: 0, queue_pair: 0, source: 0 }
    }
}
