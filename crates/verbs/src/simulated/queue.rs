//! A completion queue of the fabric.
//!
//! ```text
//!  push ─▶ entries, in order ─ poll ─▶ Completion, and how many requests of its queue pair are done by it
//!    ├ armed: one event, and armed no more      └ full: broken, for good
//! ```

use crate::{Completion, Status};
use rustix::event::{EventfdFlags, eventfd};
use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Most entries of a queue, as of a device.
pub const ENTRIES_MAX: u32 = 1 << 16;

/// A completion, and what its taking sets free.
#[derive(Clone, Copy, Debug)]
pub struct Told {
    /// The completion.
    pub completion: Completion,
    /// Whether it is a receive's, which an unsuccessful completion does not say.
    pub is_receive: bool,
    /// Requests that are done by it: itself, and sends before it that were not to be told.
    pub covers: u32,
}

/// A completion queue.
#[derive(Debug)]
pub struct Queue {
    entries: usize,
    waiting: VecDeque<Told>,
    is_armed: bool,
    is_broken: bool,
    event: Arc<OwnedFd>,
}

impl Queue {
    /// Returns a queue for so many completions.
    pub fn new(entries: u32) -> io::Result<Self> {
        if entries == 0 || entries > ENTRIES_MAX {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let event = Arc::new(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?);
        let entries = entries as usize;
        Ok(Self { entries, waiting: VecDeque::new(), is_armed: false, is_broken: false, event })
    }

    /// Returns the descriptor that an event makes readable.
    pub fn event(&self) -> &Arc<OwnedFd> {
        &self.event
    }

    /// Adds a completion. Returns false if the queue broke by it; a broken queue takes none.
    #[must_use]
    pub fn push(&mut self, told: Told) -> bool {
        if self.is_broken {
            return true;
        }
        if self.waiting.len() == self.entries {
            self.is_broken = true;
            return false;
        }
        self.waiting.push_back(told);
        if std::mem::take(&mut self.is_armed) {
            // The counter is far from full: one is added for each time that the queue is armed.
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
        true
    }

    /// Takes the oldest completions, at most so many.
    ///
    /// # Errors
    /// The queue is broken.
    pub fn take(&mut self, most: usize) -> io::Result<impl Iterator<Item = Told>> {
        self.check()?;
        Ok(self.waiting.drain(..most.min(self.waiting.len())))
    }

    fn check(&self) -> io::Result<()> {
        if self.is_broken { Err(io::Error::from_raw_os_error(libc::EOVERFLOW)) } else { Ok(()) }
    }

    /// Makes the next completion an event. One that waits already is none, as with a device.
    ///
    /// # Errors
    /// The queue is broken.
    pub fn arm(&mut self) -> io::Result<()> {
        self.check()?;
        self.is_armed = true;
        Ok(())
    }
}

/// Returns the completion of a send or a receive that failed or was flushed: like soft-RoCE's, it says nothing else.
pub fn unsuccessful(id: u64, status: Status, queue_pair: u32) -> Completion {
    Completion { id, status, queue_pair, ..Completion::default() }
}
