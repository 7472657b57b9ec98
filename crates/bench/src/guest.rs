//! A synthetic guest: a ring of frames and a ring of buffers, both reused in circles.
//!
//! ```text
//!  load ─▶ frames in guest memory ─start─▶ ┌────────┐
//!  refill: completed ─▶ available again    │ switch │
//!  drain:  filled ─▶ counted, given back ◀─└────────┘
//! ```

use crate::frames::{FLOW_OFFSET, Size, VNET_HDR, flow_of};
use crate::scene::{self, SceneError};
use std::sync::Arc;
use tidegate_contract::{Mac, Vnic};
use tidegate_frontend::driver::{Buffer, DriverQueue, Used};
use tidegate_frontend::front_end::{FrontEnd, FrontEndError, MRG_RXBUF, Options, RING_PACKED};
use tidegate_frontend::memory::SharedMemory;

/// VIRTIO_NET_F_CSUM, GUEST_CSUM, GUEST_TSO4 and HOST_TSO4, which super-frames need.
const OFFLOADS: u64 = 1 << 0 | 1 << 1 | 1 << 7 | 1 << 11;
/// Offset of num_buffers in a virtio_net_hdr (virtio 1.2, 5.1.6).
const NUM_BUFFERS: u64 = 10;
/// Completed frames after which they are made available again (at most an eighth of a ring), so that the
/// switch looks at each batch once.
const BATCH: u16 = 32;

/// VIRTQ_DESC_F_WRITE.
const WRITE: u16 = 2;

const RECEIVE: usize = 0;
const TRANSMIT: usize = 1;

#[derive(Debug, thiserror::Error)]
pub enum GuestError {
    /// The contract names no socket.
    #[error(transparent)]
    Scene(#[from] SceneError),
    /// The switch refused the guest.
    #[error("vnic.{name} at {socket}: {source} (is the switch running, with this contract in force?)")]
    Connect {
        name: String,
        socket: String,
        /// What happened.
        source: FrontEndError,
    },
    /// An offload is missing. Without it frames would be cut, and the measurement would differ.
    #[error("vnic.{name}: the switch offers features {has:#x}, of which {wanted:#x} are needed")]
    Features {
        name: String,
        /// Features negotiated.
        has: u64,
        /// Features needed.
        wanted: u64,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rings {
    /// Size of each ring (entries).
    pub size: u16,
    /// Whether the rings are packed (virtio 1.2, 2.8); otherwise split.
    pub packed: bool,
}

impl From<u16> for Rings {
    fn from(size: u16) -> Self {
        Self { size, packed: false }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// Frames; a super-frame counts as one.
    pub frames: u64,
    /// Bytes in memory, without virtio_net_hdr.
    pub bytes: u64,
}

/// How full a ring was when the guest looked at it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingPolls {
    /// Looks that found frames to take.
    pub count: u64,
    /// Looks that found more than three quarters of the ring to take: the switch may have waited for frames
    /// or buffers.
    pub late: u64,
}

impl RingPolls {
    #[inline]
    fn note(&mut self, taken: u16, ring: u16) {
        self.count += 1;
        self.late += u64::from(taken > ring / 4 * 3);
    }
}

pub struct Guest {
    pub vnic: Vnic,
    /// Frames and bytes received so far.
    pub received: Received,
    /// Frames that the switch gave back so far: sent or dropped.
    pub sent: u64,
    /// Looks at the transmit ring.
    pub refills: RingPolls,
    /// Looks at the receive ring.
    pub drains: RingPolls,
    front: FrontEnd,
    memory: Arc<SharedMemory>,
    ring: u16,
    /// Receive buffer by head.
    buffers: Vec<Buffer>,
    /// Frame by head, once loaded.
    frames: Vec<Buffer>,
    buffer_size: usize,
    /// Whether a frame may fill several buffers.
    merged: bool,
    /// Remaining buffers of the current frame.
    rest: u16,
}

impl Guest {
    /// Returns whether the guest's memory is in pages of 2 MB; it is if the kernel has reserved enough of
    /// them.
    pub fn has_huge_pages(&self) -> bool {
        self.memory.is_huge()
    }

    /// Connects with `rings`, for frames of `size`, with receive buffers of `buffer` bytes.
    ///
    /// # Errors
    /// The switch refuses the guest, or lacks features that `rings` and `size` need.
    pub fn connect(
        vnic: &Vnic,
        rings: impl Into<Rings>,
        size: Size,
        buffer: u32,
    ) -> Result<Self, GuestError> {
        let Rings { size: ring, packed } = rings.into();
        let socket = scene::socket(vnic)?;
        let offloads = if size == Size::Super { OFFLOADS } else { 0 };
        let wanted = MRG_RXBUF | offloads | if packed { RING_PACKED } else { 0 };
        let defaults = Options::default();
        let options = Options {
            features: defaults.features | wanted,
            queue_size: ring,
            buffer_size: buffer,
            huge_pages: true,
            ..defaults
        };
        let front = FrontEnd::connect(socket, options);
        let mut front = front.map_err(|source| GuestError::Connect {
            name: vnic.name.clone(),
            socket: socket.display().to_string(),
            source,
        })?;
        if front.features() & wanted != wanted {
            return Err(GuestError::Features { name: vnic.name.clone(), has: front.features(), wanted });
        }
        let memory = Arc::clone(front.memory());
        let buffers = chains(&memory, front.ring(RECEIVE));
        Ok(Self {
            vnic: vnic.clone(),
            received: Received::default(),
            sent: 0,
            refills: RingPolls::default(),
            drains: RingPolls::default(),
            front,
            memory,
            ring,
            buffers,
            frames: Vec::new(),
            buffer_size: buffer as usize,
            merged: (buffer as usize) < VNET_HDR + size.bytes(),
            rest: 0,
        })
    }

    pub fn mac(&self) -> Mac {
        self.vnic.mac
    }

    /// Fills the transmit ring with the frames that `frame` builds from their numbers. The switch does not
    /// see them before [`start`](Self::start).
    ///
    /// # Panics
    /// The ring was filled before, or a frame is longer than a buffer.
    pub fn load(&mut self, mut frame: impl FnMut(u16) -> Vec<u8>) {
        for number in 0..self.ring {
            assert!(self.front.push(0, &frame(number)), "the transmit ring was full before");
        }
        self.frames = chains(&self.memory, self.front.ring(TRANSMIT));
    }

    /// Makes all loaded frames available to the switch.
    pub fn start(&mut self) {
        self.front.flush(0);
    }

    pub fn is_idle(&mut self) -> bool {
        completed(self.front.ring(TRANSMIT), self.ring) == self.ring
    }

    /// Resends the frames that the switch gave back.
    #[inline]
    pub fn refill(&mut self) {
        let ring = self.front.ring(TRANSMIT);
        let batch = BATCH.min(self.ring / 8).max(1);
        if completed(ring, batch) < batch {
            return;
        }
        let taken = recycle(ring, &self.frames, |_| ());
        self.sent += u64::from(taken);
        self.refills.note(taken, self.ring);
        if ring.publish() {
            // A full counter means that the switch is signalled already.
            let _ = self.front.kick(TRANSMIT);
        }
    }

    /// Counts the received frames and gives their buffers back. Returns the number of frames.
    #[inline]
    pub fn drain(&mut self) -> u64 {
        if self.merged {
            return self.drain_each(|_| ());
        }
        let (mut frames, mut bytes) = (0, 0);
        let ring = self.front.ring(RECEIVE);
        let taken = recycle(ring, &self.buffers, |used| {
            // A buffer that came back empty has no frame: it was lent to a device that is gone.
            frames += u64::from(used.len > 0);
            bytes += u64::from(used.len);
        });
        if taken > 0 {
            self.drains.note(taken, self.ring);
            self.received.frames += frames;
            self.received.bytes += bytes - frames * VNET_HDR as u64;
            self.show_buffers();
        }
        frames
    }

    /// As [`drain`](Self::drain), and visits the flow of every frame.
    #[inline]
    pub fn drain_flows(&mut self, mut visit: impl FnMut(u16)) -> u64 {
        let memory = Arc::clone(&self.memory);
        self.drain_each(|buffer| {
            let mut flow = [0; 2];
            memory.read(buffer + FLOW_OFFSET, &mut flow);
            visit(flow_of(flow));
        })
    }

    /// Visits the first buffer of every frame, and counts the bytes of all its buffers.
    #[inline]
    fn drain_each(&mut self, mut visit: impl FnMut(u64)) -> u64 {
        let Self { front, memory, buffers, rest, .. } = self;
        let (mut frames, mut bytes) = (0, 0);
        let taken = recycle(front.ring(RECEIVE), buffers, |Used { head, len }| {
            bytes += u64::from(len);
            if *rest > 0 {
                *rest -= 1;
                return;
            }
            if len == 0 {
                return;
            }
            let buffer = buffers[usize::from(head)].addr;
            let mut count = [0; 2];
            memory.read(buffer + NUM_BUFFERS, &mut count);
            *rest = u16::from_le_bytes(count).max(1) - 1;
            frames += 1;
            visit(buffer);
        });
        if taken > 0 {
            self.drains.note(taken, self.ring);
            self.received.frames += frames;
            self.received.bytes += bytes - frames * VNET_HDR as u64;
            self.show_buffers();
        }
        frames
    }

    fn show_buffers(&mut self) {
        if self.front.ring(RECEIVE).publish() {
            let _ = self.front.kick(RECEIVE);
        }
    }

    /// Copies `len` bytes of the loaded frame `number`, with its virtio_net_hdr, to receive buffers of `to`
    /// from number `buffer` on: only the copy of the switch's work. Returns the number after the last
    /// buffer filled.
    ///
    /// # Panics
    /// No frame was loaded.
    pub fn copy_to(&self, to: &Self, number: usize, len: usize, mut buffer: usize) -> usize {
        let from = self.frames[number % self.frames.len()].addr;
        let mut done = 0;
        while done < len {
            let here = (len - done).min(to.buffer_size);
            let into = to.buffers[buffer % to.buffers.len()].addr;
            self.memory.copy_to(from + done as u64, &to.memory, into, here);
            done += here;
            buffer += 1;
        }
        buffer
    }
}

/// Returns the chains of a full queue by their heads; each chain has one buffer.
fn chains(memory: &SharedMemory, queue: &DriverQueue) -> Vec<Buffer> {
    let mut chains = vec![Buffer::readable(0, 0); usize::from(queue.size())];
    for slot in 0..queue.size() {
        let mut bytes = [0; 16];
        memory.read(queue.desc_addr() + 16 * u64::from(slot), &mut bytes);
        // Address and length are the same in both ring layouts; then follow flags and next, or id and
        // flags.
        let (addr, len) = (bytes[..8].try_into(), bytes[8..12].try_into());
        let (addr, len) = (u64::from_le_bytes(addr.unwrap_or_default()), len.unwrap_or_default());
        let half = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let (head, flags) = match queue {
            DriverQueue::Split(_) => (slot, half(12)),
            DriverQueue::Packed(_) => (half(12), half(14)),
        };
        let writable = flags & WRITE != 0;
        chains[usize::from(head)] = Buffer { addr, len: u32::from_le_bytes(len), writable };
    }
    chains
}

/// Returns the number of completed chains; it may stop counting at `most`.
#[inline]
fn completed(queue: &DriverQueue, most: u16) -> u16 {
    match queue {
        DriverQueue::Split(queue) => queue.completed(),
        // Each count costs a look at the ring; the caller only needs to know whether there are `most`.
        DriverQueue::Packed(queue) => queue.completed(most),
    }
}

/// Makes completed chains available again, each after `visit` saw it. Returns their number.
#[inline]
fn recycle(queue: &mut DriverQueue, chains: &[Buffer], mut visit: impl FnMut(Used)) -> u16 {
    match queue {
        DriverQueue::Split(queue) => queue.recycle(u16::MAX, visit),
        DriverQueue::Packed(queue) => {
            let mut count = 0;
            while count < queue.size()
                && let Some(used) = queue.reap()
            {
                visit(used);
                let new_head = queue.add(&[chains[usize::from(used.head)]]);
                assert_eq!(new_head, Some(used.head), "the buffer id that was free last");
                count += 1;
            }
            count
        }
    }
}
