//! Completion queues.

use crate::{Device, Error};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// A completion queue with an event channel of its own.
#[derive(Debug)]
pub struct CompletionQueue {}

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
        let _ = (device, entries);
        todo!()
    }

    /// Takes completions into `to`, and returns how many.
    ///
    /// # Errors
    /// The queue overran or the device went away: it is of no use any more.
    pub fn poll(&self, to: &mut [Completion]) -> Result<usize, Error> {
        let _ = to;
        todo!()
    }

    /// Makes the next completion readable at the descriptor. Poll once more afterwards: one may have come before.
    ///
    /// # Errors
    /// The device went away.
    pub fn arm(&self) -> Result<(), Error> {
        todo!()
    }

    /// Takes the events that made the descriptor readable, and acknowledges them.
    pub fn take_events(&self) {
        todo!()
    }
}

impl AsFd for CompletionQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        todo!()
    }
}

impl Default for Completion {
    fn default() -> Self {
        Self { id: 0, status: Status::Success, is_receive: false, bytes: 0, queue_pair: 0, source: 0 }
    }
}
