//! A synthetic guest NIC: what QEMU and the guest's driver do together, in one
//! object.
//!
//! ```text
//!  push ─▶ tx buffers ─▶ DriverQueue ─flush, kick─▶ ┐
//!                                                   │ vhost-user back end
//!  receive ◀─ rx buffers ◀─ DriverQueue ◀──call──── ┘
//!                └── given back at once
//! ```
//!
//! Frames are passed with their virtio_net_hdr of [`FrontEnd::header_len`]
//! bytes in front. Queues are counted in pairs: transmit queue 1 is virtqueue 3.
//! [`push`](FrontEnd::push), [`flush`](FrontEnd::flush) and
//! [`receive`](FrontEnd::receive) into a kept buffer allocate nothing.

use crate::driver::{Buffer, DriverFeatures, DriverQueue};
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
use std::time::Duration;
use vhost::vhost_user::message::{FrontendReq, VhostUserHeaderFlag, VhostUserInflight};
use vhost::vhost_user::{Frontend, VhostUserFrontend, VhostUserProtocolFeatures};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vmm_sys_util::eventfd::EventFd;

/// VIRTIO_NET_F_MRG_RXBUF.
pub const MRG_RXBUF: u64 = 1 << 15;
/// VIRTIO_NET_F_MQ.
pub const MQ: u64 = 1 << 22;
/// VIRTIO_F_INDIRECT_DESC.
pub const INDIRECT_DESC: u64 = 1 << 28;
/// VIRTIO_F_EVENT_IDX.
pub const EVENT_IDX: u64 = 1 << 29;
/// VHOST_USER_F_PROTOCOL_FEATURES.
pub const PROTOCOL_FEATURES: u64 = 1 << 30;
/// VIRTIO_F_VERSION_1.
pub const VERSION_1: u64 = 1 << 32;
/// VIRTIO_F_IN_ORDER.
pub const IN_ORDER: u64 = 1 << 35;
/// VIRTIO_F_RING_PACKED.
pub const RING_PACKED: u64 = 1 << 34;

/// Offset of num_buffers in a virtio_net_hdr (virtio 1.2, 5.1.6).
const NUM_BUFFERS: usize = 10;

/// What kind of guest to be.
#[derive(Clone, Debug)]
pub struct Options {
    /// Wanted virtio features; negotiated is what the back end offers of them.
    pub features: u64,
    /// Wanted protocol features, likewise. With CONFIGURE_MEM_SLOTS memory goes
    /// region by region, as QEMU does it, else as one table. With INFLIGHT_SHMFD the back end's
    /// account of what is in flight is kept, and given back when the guest reconnects.
    pub protocol_features: VhostUserProtocolFeatures,
    /// Queue pairs to set up.
    pub queue_pairs: u16,
    /// Entries of each virtqueue; a power of two unless RING_PACKED is negotiated.
    pub queue_size: u16,
    /// Bytes of each buffer, header included: the longest frame that can be
    /// sent, and received unless MRG_RXBUF is negotiated.
    pub buffer_size: u32,
    /// Bytes of guest memory; more if rings and buffers need more.
    pub memory_size: u64,
    /// Whether to pass the memory on. A guest that does not sends an empty table.
    pub share: bool,
    /// Whether the memory is all there from the start.
    pub preallocate: bool,
    /// Whether the memory is in pages of 2 MB, where enough are free; then it is all there.
    pub huge_pages: bool,
}

impl Default for Options {
    /// One queue pair of 256 entries, buffers for a full Ethernet frame, and
    /// the features of a modern driver with split rings and without offloads.
    fn default() -> Self {
        Self {
            features: VERSION_1 | MRG_RXBUF | EVENT_IDX | INDIRECT_DESC | MQ | PROTOCOL_FEATURES,
            protocol_features: VhostUserProtocolFeatures::MQ | VhostUserProtocolFeatures::REPLY_ACK,
            queue_pairs: 1,
            queue_size: 256,
            buffer_size: 2048,
            memory_size: 0,
            share: true,
            preallocate: true,
            huge_pages: false,
        }
    }
}

/// Why the front end cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum FrontEndError {
    /// The socket or the memory could not be had.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The back end refused, answered wrongly, or went away.
    #[error("{step}: {source}")]
    Protocol {
        /// Which message.
        step: &'static str,
        /// What the `vhost` crate says of it.
        source: vhost::Error,
    },
    /// The back end has fewer queues than wanted.
    #[error("the back end has {has} virtqueues, wanted {wanted}")]
    Queues {
        /// GET_QUEUE_NUM.
        has: u64,
        /// Two for each pair.
        wanted: u64,
    },
    /// Not connected, or not by path.
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

/// One connection's socket: the protocol, and the bytes.
struct Link {
    protocol: Frontend,
    stream: UnixStream,
}

impl Link {
    /// Sends a message of 32-bit words that wants no reply.
    fn send_raw(&self, request: FrontendReq, payload: &[u32]) -> io::Result<()> {
        let header = [u32::from(request), 1, 4 * payload.len() as u32];
        let words = header.iter().chain(payload);
        let message: Vec<u8> = words.flat_map(|word| word.to_ne_bytes()).collect();
        (&self.stream).write_all(&message)
    }
}

/// A guest's NIC, connected to a vhost-user back end.
pub struct FrontEnd {
    options: Options,
    path: Option<PathBuf>,
    memory: Arc<SharedMemory>,
    link: Option<Link>,
    features: u64,
    protocol_features: VhostUserProtocolFeatures,
    /// What the back end said of its in-flight region, and the region.
    inflight: Option<(VhostUserInflight, File)>,
    /// Even: receive; odd: transmit. Empty before the first negotiation.
    queues: Vec<Queue>,
}

impl FrontEnd {
    /// Connects to a back end that listens at `path` and starts all queues.
    ///
    /// # Errors
    /// No connection, or a back end that does not agree.
    pub fn connect(path: impl AsRef<Path>, options: Options) -> Result<Self> {
        let stream = UnixStream::connect(&path)?;
        let mut guest = Self::from_stream(stream, options)?;
        guest.path = Some(path.as_ref().to_owned());
        Ok(guest)
    }

    /// As [`connect`](Self::connect), on a stream: one that was accepted, if
    /// the back end is the client.
    ///
    /// # Errors
    /// As there.
    pub fn from_stream(stream: UnixStream, options: Options) -> Result<Self> {
        let entries = u64::from(options.queue_size);
        // A ring with its indirect tables takes 2 KiB and some an entry.
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

    /// Closes the socket and nothing else, as a guest that crashes.
    pub fn disconnect(&mut self) {
        self.link = None;
    }

    /// Disconnects, connects to the same path and starts the queues where the
    /// back end left them: at the used index, as QEMU does, or the used place
    /// of a packed ring. The layout of the rings stays. What was in flight
    /// is shown again, so a back end that completed out of order completes some
    /// of it twice, unless INFLIGHT_SHMFD tells it what.
    ///
    /// # Errors
    /// As [`connect`](Self::connect); without a path, not connected.
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
        self.link = Some(Link { protocol: Frontend::from_stream(stream.try_clone()?, vrings), stream });
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

    /// Negotiated virtio features.
    pub fn features(&self) -> u64 {
        self.features
    }

    /// Bytes of virtio_net_hdr in front of each frame: 12, or 10 for a legacy
    /// driver without MRG_RXBUF.
    pub fn header_len(&self) -> usize {
        if self.features & (VERSION_1 | MRG_RXBUF) != 0 { 12 } else { 10 }
    }

    /// The guest's memory, for raw access.
    pub fn memory(&self) -> &Arc<SharedMemory> {
        &self.memory
    }

    /// Virtqueue `index` (even: receive, odd: transmit), for tests that lie.
    /// Reap raw chains before the next [`push`](Self::push) or
    /// [`in_flight`](Self::in_flight) on their queue, which take what comes back
    /// for theirs.
    ///
    /// # Panics
    /// If there is no such queue.
    pub fn ring(&mut self, index: usize) -> &mut DriverQueue {
        &mut self.queues[index].ring
    }

    /// Guest addresses of virtqueue `index`'s buffers.
    ///
    /// # Panics
    /// If there is no such queue.
    pub fn buffers(&self, index: usize) -> Range<u64> {
        let queue = &self.queues[index];
        queue.addr(0)..queue.addr(queue.ring.size())
    }

    /// Kicks virtqueue `index`, whether the back end asked for it or not.
    ///
    /// # Errors
    /// The event counter is full: the back end does not read it.
    pub fn kick(&self, index: usize) -> io::Result<()> {
        self.queues[index].kick.write(1)
    }

    /// The counter that virtqueue `index` is kicked by.
    ///
    /// # Panics
    /// If there is no such queue.
    pub fn kick_event(&self, index: usize) -> BorrowedFd<'_> {
        borrow(&self.queues[index].kick)
    }

    /// The counter that the back end calls for virtqueue `index`.
    ///
    /// # Panics
    /// If there is no such queue.
    pub fn call(&self, index: usize) -> BorrowedFd<'_> {
        borrow(&self.queues[index].call)
    }

    /// SET_VRING_KICK of virtqueue `index`, once more.
    ///
    /// # Errors
    /// The back end refused.
    ///
    /// # Panics
    /// If there is no such queue.
    pub fn pass_kick(&mut self, index: usize) -> Result<()> {
        let link = self.link.as_ref().ok_or(FrontEndError::NotConnected)?;
        link.protocol.set_vring_kick(index, &self.queues[index].kick).step("SET_VRING_KICK")
    }

    /// Whether the back end still holds the connection.
    pub fn is_connected(&self) -> bool {
        let Some(link) = &self.link else { return false };
        let mut fds = [PollFd::new(&link.stream, PollFlags::RDHUP)];
        let now = Timespec::default();
        poll(&mut fds, Some(&now)).is_ok() && !fds[0].revents().intersects(PollFlags::RDHUP | PollFlags::HUP)
    }

    /// The protocol, for single messages.
    ///
    /// # Errors
    /// Not connected.
    pub fn protocol(&mut self) -> Result<&mut Frontend> {
        let link = self.link.as_mut().ok_or(FrontEndError::NotConnected)?;
        Ok(&mut link.protocol)
    }

    /// The socket, for what no protocol allows.
    ///
    /// # Errors
    /// Not connected.
    pub fn stream(&self) -> Result<&UnixStream> {
        let link = self.link.as_ref().ok_or(FrontEndError::NotConnected)?;
        Ok(&link.stream)
    }

    /// SET_VRING_ENABLE, if protocol features were negotiated; without, a
    /// queue runs as soon as it is started.
    ///
    /// # Errors
    /// The back end refused.
    pub fn enable_queue(&mut self, index: usize, enabled: bool) -> Result<()> {
        if self.features & PROTOCOL_FEATURES == 0 {
            return Ok(());
        }
        self.protocol()?.set_vring_enable(index, enabled).step("SET_VRING_ENABLE")
    }

    /// GET_VRING_BASE: stops virtqueue `index`; returns the next available
    /// index the back end would have read, or both places of a packed ring.
    ///
    /// # Errors
    /// The back end refused.
    pub fn stop_queue(&mut self, index: usize) -> Result<u32> {
        self.protocol()?.get_vring_base(index).step("GET_VRING_BASE")
    }

    /// Describes virtqueue `index` to the back end and starts it at its [base](DriverQueue::base).
    ///
    /// # Errors
    /// The back end refused.
    pub fn start_queue(&mut self, index: usize) -> Result<()> {
        let link = self.link.as_ref().ok_or(FrontEndError::NotConnected)?;
        let (protocol, queue) = (&link.protocol, &self.queues[index]);
        let ring = &queue.ring;
        let base = ring.base();
        let config = VringConfigData {
            queue_max_size: ring.size(),
            queue_size: ring.size(),
            flags: 0,
            desc_table_addr: self.memory.to_user(ring.desc_addr()),
            used_ring_addr: self.memory.to_user(ring.used_addr()),
            avail_ring_addr: self.memory.to_user(ring.avail_addr()),
            log_addr: None,
        };
        protocol.set_vring_num(index, ring.size()).step("SET_VRING_NUM")?;
        match u16::try_from(base) {
            Ok(base) => protocol.set_vring_base(index, base).step("SET_VRING_BASE")?,
            // The `vhost` crate has no room for both halves of a packed ring's base.
            Err(_) => link.send_raw(FrontendReq::SET_VRING_BASE, &[index as u32, base])?,
        }
        protocol.set_vring_addr(index, &config).step("SET_VRING_ADDR")?;
        protocol.set_vring_call(index, &queue.call).step("SET_VRING_CALL")?;
        protocol.set_vring_kick(index, &queue.kick).step("SET_VRING_KICK")
    }

    /// Passes the memory to the back end, again if it was before.
    ///
    /// # Errors
    /// The back end refused.
    pub fn share_memory(&mut self) -> Result<()> {
        let region = VhostUserMemoryRegionInfo {
            guest_phys_addr: self.memory.guest_addr(),
            memory_size: self.memory.size(),
            userspace_addr: self.memory.user_addr(),
            mmap_offset: 0,
            mmap_handle: self.memory.fd().as_raw_fd(),
        };
        let (share, slots) = (
            self.options.share,
            self.protocol_features.contains(VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS),
        );
        let link = self.link.as_mut().ok_or(FrontEndError::NotConnected)?;
        if !share {
            // The `vhost` crate sends no empty table.
            return Ok(link.send_raw(FrontendReq::SET_MEM_TABLE, &[0, 0])?);
        }
        if slots {
            link.protocol.add_mem_region(&region).step("ADD_MEM_REG")?;
        } else {
            link.protocol.set_mem_table(&[region]).step("SET_MEM_TABLE")?;
        }
        Ok(())
    }

    /// Passes the back end its own account of what is in flight; asks for one first if there is none.
    fn share_inflight(&mut self) -> Result<()> {
        let (queues, entries) = (self.options.queue_pairs * 2, self.options.queue_size);
        let link = self.link.as_mut().ok_or(FrontEndError::NotConnected)?;
        let (region, file) = match &self.inflight {
            Some(inflight) => inflight,
            None => {
                let wanted = VhostUserInflight::new(0, 0, queues, entries);
                let made = link.protocol.get_inflight_fd(&wanted).step("GET_INFLIGHT_FD")?;
                self.inflight.insert(made)
            }
        };
        link.protocol.set_inflight_fd(region, file.as_raw_fd()).step("SET_INFLIGHT_FD")
    }

    fn negotiate(&mut self, vrings: u64) -> Result<()> {
        let (wanted, wanted_protocol) = (self.options.features, self.options.protocol_features);
        let protocol = self.protocol()?;
        protocol.set_owner().step("SET_OWNER")?;
        let features = protocol.get_features().step("GET_FEATURES")? & wanted;
        let mut protocol_features = VhostUserProtocolFeatures::empty();
        if features & PROTOCOL_FEATURES != 0 {
            let offered = protocol.get_protocol_features().step("GET_PROTOCOL_FEATURES")?;
            protocol_features = offered & wanted_protocol;
            protocol.set_protocol_features(protocol_features).step("SET_PROTOCOL_FEATURES")?;
            if protocol_features.contains(VhostUserProtocolFeatures::REPLY_ACK) {
                protocol.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
            }
            if protocol_features.contains(VhostUserProtocolFeatures::MQ) {
                let has = protocol.get_queue_num().step("GET_QUEUE_NUM")?;
                if has < vrings {
                    let wanted = vrings;
                    return Err(FrontEndError::Queues { has, wanted });
                }
            }
        }
        protocol.set_features(features).step("SET_FEATURES")?;
        self.features = features;
        self.protocol_features = protocol_features;
        Ok(())
    }

    fn new_queue(&self, receive: bool) -> Result<Queue> {
        let features = DriverFeatures {
            packed: self.features & RING_PACKED != 0,
            event_idx: self.features & EVENT_IDX != 0,
            indirect: self.features & INDIRECT_DESC != 0,
            in_order: self.features & IN_ORDER != 0,
        };
        let (size, buffer_size) = (self.options.queue_size, self.options.buffer_size);
        let mut queue = Queue::new(&self.memory, size, features, buffer_size)?;
        if receive {
            while queue.give_buffer() {}
            // The queue is not started yet: there is no back end to kick.
            let _ = queue.ring.publish();
        }
        Ok(queue)
    }

    /// Queues a frame on transmit queue `pair`, unseen until
    /// [`flush`](Self::flush). False if all buffers are in use.
    ///
    /// # Panics
    /// If the frame is longer than a buffer.
    #[inline]
    pub fn push(&mut self, pair: usize, frame: &[u8]) -> bool {
        assert!(
            frame.len() <= self.options.buffer_size as usize,
            "a frame of {} bytes for buffers of {}",
            frame.len(),
            self.options.buffer_size
        );
        let queue = &mut self.queues[2 * pair + 1];
        let Some(buffer) = queue.take_buffer() else {
            return false;
        };
        let addr = queue.addr(buffer);
        self.memory.write(addr, frame);
        let chain = [Buffer::readable(addr, frame.len() as u32)];
        queue.add(buffer, &chain)
    }

    /// Shows the back end what was pushed, and kicks it if it asked for that.
    #[inline]
    pub fn flush(&mut self, pair: usize) {
        self.queues[2 * pair + 1].show();
    }

    /// Sends one frame. False if all buffers are in use.
    ///
    /// # Panics
    /// If the frame is longer than a buffer.
    pub fn send(&mut self, pair: usize, frame: &[u8]) -> bool {
        let sent = self.push(pair, frame);
        self.flush(pair);
        sent
    }

    /// Sends frames with one notification; returns how many found a buffer.
    ///
    /// # Panics
    /// If a frame is longer than a buffer.
    pub fn send_batch<'f>(&mut self, pair: usize, frames: impl IntoIterator<Item = &'f [u8]>) -> usize {
        let sent = frames.into_iter().take_while(|frame| self.push(pair, frame)).count();
        self.flush(pair);
        sent
    }

    /// Frames of transmit queue `pair` that the back end has not given back.
    pub fn in_flight(&mut self, pair: usize) -> usize {
        let queue = &mut self.queues[2 * pair + 1];
        queue.reap_all();
        usize::from(queue.ring.size()) - queue.free.len()
    }

    /// Takes the next frame from receive queue `pair` into `frame`, header
    /// first, merged if it came in several buffers. False if there is none.
    ///
    /// # Panics
    /// If the back end breaks the rules: a length beyond the buffer, or
    /// num_buffers more than it gave back.
    pub fn receive_into(&mut self, pair: usize, frame: &mut Vec<u8>) -> bool {
        let (buffer_size, mergeable) = (self.options.buffer_size, self.features & MRG_RXBUF != 0);
        let queue = &mut self.queues[2 * pair];
        frame.clear();
        let mut wanted = 1;
        let mut got = 0;
        while got < wanted {
            let Some(used) = queue.ring.reap() else {
                assert_eq!(got, 0, "a frame of {wanted} buffers, of which {got} came");
                return false;
            };
            assert!(used.len <= buffer_size, "{} bytes in {buffer_size}", used.len);
            let buffer = queue.buffer_of[usize::from(used.head)];
            let start = frame.len();
            frame.resize(start + used.len as usize, 0);
            let addr = queue.addr(buffer);
            self.memory.read(addr, &mut frame[start..]);
            queue.free.push(buffer);
            got += 1;
            if got == 1 && mergeable {
                let bytes = frame.get(NUM_BUFFERS..NUM_BUFFERS + 2);
                let bytes = bytes.expect("a frame shorter than its header");
                wanted = usize::from(u16::from_le_bytes([bytes[0], bytes[1]]));
                assert!(wanted > 0, "num_buffers is 0");
            }
        }
        for _ in 0..got {
            queue.give_buffer();
        }
        queue.show();
        true
    }

    /// The next frame of receive queue `pair`.
    ///
    /// # Panics
    /// As [`receive_into`](Self::receive_into).
    pub fn receive(&mut self, pair: usize) -> Option<Vec<u8>> {
        let mut frame = Vec::new();
        self.receive_into(pair, &mut frame).then_some(frame)
    }

    /// Sleeps until a receive queue has a frame; false after `timeout`.
    ///
    /// # Errors
    /// The kernel refused to wait.
    pub fn wait_receive(&mut self, timeout: Duration) -> io::Result<bool> {
        let mut ready = false;
        for queue in self.queues.iter_mut().step_by(2) {
            // What was signalled so far is covered by looking at the ring now.
            let _ = queue.call.read();
            ready |= queue.ring.enable_interrupts();
        }
        if !ready {
            let calls = self.queues.iter().step_by(2).map(|queue| borrow(&queue.call));
            let calls: Vec<_> = calls.collect();
            let mut fds: Vec<_> = calls.iter().map(|call| PollFd::new(call, PollFlags::IN)).collect();
            let timeout = Timespec::try_from(timeout).map_err(io::Error::other)?;
            ready = poll(&mut fds, Some(&timeout))? > 0;
        }
        for queue in self.queues.iter_mut().step_by(2) {
            queue.ring.disable_interrupts();
        }
        Ok(ready)
    }
}

fn borrow(event: &EventFd) -> BorrowedFd<'_> {
    // SAFETY: the descriptor is the counter's, which outlives this borrow.
    unsafe { BorrowedFd::borrow_raw(event.as_raw_fd()) }
}
