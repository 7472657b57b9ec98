//! A synthetic guest NIC: QEMU's and the guest driver's work.
//!
//! ```text
//!  push ─▶ tx buffers ─▶ DriverQueue ─flush, kick─▶ ┐
//!                                                   │ vhost-user back end
//!  receive ◀─ rx buffers ◀─ DriverQueue ◀──call──── ┘
//!                └── given back at once
//! ```
//!
//! Frames begin with a virtio_net_hdr of [`FrontEnd::header_len`] bytes. Queues are counted in pairs:
//! transmit queue 1 is virtqueue 3. [`push`](FrontEnd::push), [`flush`](FrontEnd::flush), and
//! [`receive`](FrontEnd::receive) into a kept buffer allocate nothing.
//!
//! - `options`: features, queues and memory of a guest
//! - `setup`: negotiation, memory and queues
//! - `traffic`: frames in both directions

mod options;
mod setup;
mod traffic;

pub use options::{
    EVENT_IDX, IN_ORDER, INDIRECT_DESC, MQ, MRG_RXBUF, Options, PROTOCOL_FEATURES, RING_PACKED, VERSION_1,
};

use crate::driver::DriverQueue;
use crate::memory::SharedMemory;
use crate::queue::Queue;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fs::File;
use std::io::{self, Write};
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use vhost::VhostBackend;
use vhost::vhost_user::message::{FrontendReq, VhostUserInflight};
use vhost::vhost_user::{Frontend, VhostUserProtocolFeatures};
use vmm_sys_util::eventfd::EventFd;

/// Why the front end cannot continue.
#[derive(Debug, thiserror::Error)]
pub enum FrontEndError {
    /// The socket or the memory failed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The back end refused, answered wrongly, or disconnected.
    #[error("{step}: {source}")]
    Protocol {
        /// The message.
        step: &'static str,
        /// The `vhost` crate's error.
        source: vhost::Error,
    },
    /// The back end has fewer queues than wanted.
    #[error("the back end has {has} virtqueues, wanted {wanted}")]
    Queues {
        /// The answer to GET_QUEUE_NUM.
        has: u64,
        /// Two per pair.
        wanted: u64,
    },
    /// Not connected, or without a path.
    #[error("not connected")]
    NotConnected,
}

type Result<T> = std::result::Result<T, FrontEndError>;

trait Step<T> {
    fn step(self, step: &'static str) -> Result<T>;
}

impl<T> Step<T> for vhost::Result<T> {
    fn step(self, step: &'static str) -> Result<T> {
        self.map_err(|source| FrontEndError::Protocol { step, source })
    }
}

/// A connection's protocol and socket.
struct BackEndSocket {
    protocol: Frontend,
    stream: UnixStream,
}

impl BackEndSocket {
    /// Sends 32-bit words that need no reply.
    fn send_raw(&self, request: FrontendReq, payload: &[u32]) -> io::Result<()> {
        let header = [u32::from(request), 1, 4 * payload.len() as u32];
        let words = header.iter().chain(payload);
        let message: Vec<u8> = words.flat_map(|word| word.to_ne_bytes()).collect();
        (&self.stream).write_all(&message)
    }
}

/// A guest's NIC on a vhost-user back end.
pub struct FrontEnd {
    options: Options,
    path: Option<PathBuf>,
    memory: Arc<SharedMemory>,
    link: Option<BackEndSocket>,
    features: u64,
    protocol_features: VhostUserProtocolFeatures,
    /// The back end's in-flight region: answer and file.
    inflight: Option<(VhostUserInflight, File)>,
    /// Even: receive; odd: transmit. Empty before the first negotiation.
    queues: Vec<Queue>,
}

impl FrontEnd {
    /// Connects to a listening back end, and starts all queues.
    ///
    /// # Errors
    /// The connection or the negotiation failed.
    pub fn connect(path: impl AsRef<Path>, options: Options) -> Result<Self> {
        let stream = UnixStream::connect(&path)?;
        let mut guest = Self::from_stream(stream, options)?;
        guest.path = Some(path.as_ref().to_owned());
        Ok(guest)
    }

    /// As [`connect`](Self::connect), on a stream, such as one accepted from a back end in client mode.
    ///
    /// # Errors
    /// As there.
    pub fn from_stream(stream: UnixStream, options: Options) -> Result<Self> {
        let entries = u64::from(options.queue_size);
        // A ring with indirect tables takes little more than 2 KiB per entry.
        let queue = entries * (u64::from(options.buffer_size) + 2048 + 64) + 4096;
        let needed = (queue * u64::from(options.queue_pairs) * 2).next_multiple_of(4096);
        let size = needed.max(options.memory_size.next_multiple_of(4096));
        let size = size as usize;
        let huge = options.huge_pages.then(|| SharedMemory::in_huge_pages(0, size).ok()).flatten();
        let memory = Arc::new(huge.map_or_else(|| SharedMemory::new(0, size), Ok)?);
        if options.preallocate {
            memory.preallocate()?;
        }
        let mut guest = Self {
            options,
            path: None,
            memory,
            link: None,
            features: 0,
            protocol_features: VhostUserProtocolFeatures::empty(),
            inflight: None,
            queues: Vec::new(),
        };
        guest.attach(stream)?;
        Ok(guest)
    }

    /// Closes only the socket, as a crashing guest.
    pub fn disconnect(&mut self) {
        self.link = None;
    }

    /// Reconnects to the same path and starts the queues at the used index, as QEMU does, or at the used
    /// place of a packed ring. The rings keep their layout. Chains in flight are shown again: without
    /// INFLIGHT_SHMFD, a back end that completed out of order completes some twice.
    ///
    /// # Errors
    /// As [`connect`](Self::connect); or there is no path.
    pub fn reconnect(&mut self) -> Result<()> {
        self.disconnect();
        let path = self.path.as_ref().ok_or(FrontEndError::NotConnected)?;
        let stream = UnixStream::connect(path)?;
        self.attach(stream)
    }

    /// As [`reconnect`](Self::reconnect), on a stream.
    ///
    /// # Errors
    /// As there.
    pub fn attach(&mut self, stream: UnixStream) -> Result<()> {
        let vrings = u64::from(self.options.queue_pairs) * 2;
        self.link =
            Some(BackEndSocket { protocol: Frontend::from_stream(stream.try_clone()?, vrings), stream });
        self.negotiate(vrings)?;
        if self.protocol_features.contains(VhostUserProtocolFeatures::INFLIGHT_SHMFD) {
            self.share_inflight()?;
        }
        self.share_memory()?;
        if self.queues.is_empty() {
            for index in 0..vrings {
                let queue = self.new_queue(index.is_multiple_of(2))?;
                self.queues.push(queue);
            }
        }
        for index in 0..vrings as usize {
            self.start_queue(index)?;
            self.enable_queue(index, true)?;
        }
        Ok(())
    }

    /// Returns the negotiated virtio features.
    pub fn features(&self) -> u64 {
        self.features
    }

    /// Returns the length of the virtio_net_hdr (bytes): 12, or 10 for a legacy driver without MRG_RXBUF.
    pub fn header_len(&self) -> usize {
        if self.features & (VERSION_1 | MRG_RXBUF) != 0 { 12 } else { 10 }
    }

    /// Returns the guest's memory, for raw access.
    pub fn memory(&self) -> &Arc<SharedMemory> {
        &self.memory
    }

    /// Returns virtqueue `index` (even: receive, odd: transmit), for tests that lie. Reap raw chains before
    /// the next [`push`](Self::push) or [`in_flight`](Self::in_flight), which take every returned chain for
    /// their own.
    ///
    /// # Panics
    /// There is no such queue.
    pub fn ring(&mut self, index: usize) -> &mut DriverQueue {
        &mut self.queues[index].ring
    }

    /// Returns the guest addresses of a virtqueue's buffers.
    ///
    /// # Panics
    /// There is no such queue.
    pub fn buffers(&self, index: usize) -> Range<u64> {
        let queue = &self.queues[index];
        queue.addr(0)..queue.addr(queue.ring.size())
    }

    /// Kicks virtqueue `index`, even unasked.
    ///
    /// # Errors
    /// The event counter is full: the back end does not read it.
    pub fn kick(&self, index: usize) -> io::Result<()> {
        self.queues[index].kick.write(1)
    }

    /// Returns a virtqueue's kick eventfd.
    ///
    /// # Panics
    /// There is no such queue.
    pub fn kick_event(&self, index: usize) -> BorrowedFd<'_> {
        borrow(&self.queues[index].kick)
    }

    /// Returns a virtqueue's call eventfd.
    ///
    /// # Panics
    /// There is no such queue.
    pub fn call(&self, index: usize) -> BorrowedFd<'_> {
        borrow(&self.queues[index].call)
    }

    /// Sends SET_VRING_KICK of virtqueue `index` again.
    ///
    /// # Errors
    /// The back end refused.
    ///
    /// # Panics
    /// There is no such queue.
    pub fn pass_kick(&mut self, index: usize) -> Result<()> {
        let link = self.link.as_ref().ok_or(FrontEndError::NotConnected)?;
        link.protocol.set_vring_kick(index, &self.queues[index].kick).step("SET_VRING_KICK")
    }

    /// Whether the back end keeps the connection.
    pub fn is_connected(&self) -> bool {
        let Some(link) = &self.link else { return false };
        let mut fds = [PollFd::new(&link.stream, PollFlags::RDHUP)];
        let now = Timespec::default();
        poll(&mut fds, Some(&now)).is_ok() && !fds[0].revents().intersects(PollFlags::RDHUP | PollFlags::HUP)
    }

    /// Returns the protocol, for single messages.
    ///
    /// # Errors
    /// Not connected.
    pub fn protocol(&mut self) -> Result<&mut Frontend> {
        let link = self.link.as_mut().ok_or(FrontEndError::NotConnected)?;
        Ok(&mut link.protocol)
    }

    /// Returns the socket, for tests that break the protocol.
    ///
    /// # Errors
    /// Not connected.
    pub fn stream(&self) -> Result<&UnixStream> {
        let link = self.link.as_ref().ok_or(FrontEndError::NotConnected)?;
        Ok(&link.stream)
    }
}

fn borrow(event: &EventFd) -> BorrowedFd<'_> {
    // SAFETY: the counter owns the descriptor and outlives this borrow.
    unsafe { BorrowedFd::borrow_raw(event.as_raw_fd()) }
}
