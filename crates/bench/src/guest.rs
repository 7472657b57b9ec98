//! One synthetic guest: a ring full of frames that go round, and a ring full of
//! buffers that go round.
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

/// VIRTIO_NET_F_CSUM, GUEST_CSUM, GUEST_TSO4 and HOST_TSO4: what super-frames take.
const OFFLOADS: u64 = 1 << 0 | 1 << 1 | 1 << 7 | 1 << 11;
/// Offset of num_buffers in a virtio_net_hdr (virtio 1.2, 5.1.6).
const NUM_BUFFERS: u64 = 10;
/// Completed frames are made available again once there are this many, but at most an eighth of a ring: the switch
/// looks at each batch once.
const BATCH: u16 = 32;

/// VIRTQ_DESC_F_WRITE.
const WRITE: u16 = 2;

const RECEIVE: usize = 0;
const TRANSMIT: usize = 1;

/// Why a guest cannot connect.
#[derive(Debug, thiserror::Error)]
pub enum GuestError {
    /// Its contract names no socket.
    #[error(transparent)]
    Scene(#[from] SceneError),
    /// The switch refused it.
    #[error("vnic.{name} at {socket}: {source} (is the switch running, with this contract in force?)")]
    Connect {
        /// Which vNIC.
        name: String,
        /// Its socket.
        socket: String,
        /// What happened.
        source: FrontEndError,
    },
    /// An offload is missing: frames would be cut, and the measurement would be another one.
    #[error("vnic.{name}: the switch offers features {has:#x}, of which {wanted:#x} are needed")]
    Features {
        /// Which vNIC.
        name: String,
        /// What was negotiated.
        has: u64,
        /// What is needed.
        wanted: u64,
    },
}

/// The virtqueues of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rings {
    /// Entries of each.
    pub size: u16,
    /// Packed ones (virtio 1.2, 2.8); otherwise split.
    pub packed: bool,
}

impl From<u16> for Rings {
    /// Split rings of that size.
    fn from(size: u16) -> Self {
        Self { size, packed: false }
    }
}

/// Frames and bytes that a guest received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// Frames, a super-frame being one.
    pub frames: u64,
    /// Bytes in memory, without virtio_net_hdr.
    pub bytes: u64,
}

/// The state of a ring at the guest's looks at it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Looks {
    /// Looks that found frames to take.
    pub count: u64,
    /// Looks that found more than three quarters of the ring to take: the switch may have waited for frames, or for
    /// buffers.
    pub late: u64,
}

impl Looks {
    #[inline]
    fn note(&mut self, taken: u16, ring: u16) {
        self.count += 1;
        self.late += u64::from(taken > ring / 4 * 3);
    }
}

/// A guest on a vNIC.
pub struct Guest {
    /// Its contract.
    pub vnic: Vnic,
    /// What it received so far.
    pub received: Received,
    /// Frames that the switch gave back so far: sent or dropped.
    pub sent: u64,
    /// How its transmit ring was found.
    pub looks: Looks,
    /// How its receive ring was found.
    pub drains: Looks,
    front: FrontEnd,
    memory: Arc<SharedMemory>,
    ring: u16,
    /// The receive buffer under each head.
    buffers: Vec<Buffer>,
    /// The frame under each head, once they were loaded.
    frames: Vec<Buffer>,
    buffer_size: usize,
    /// Frames may come in several buffers.
    merged: bool,
    /// Buffers of the current frame yet to come.
    rest: u16,
}

impl Guest {
    /// Whether its memory is in pages of 2 MB; it is if the kernel has reserved enough of them.
    pub fn has_huge_pages(&self) -> bool {
        self.memory.is_huge()
    }

    /// Connects with such `rings`, for frames of `size` and with receive buffers of `buffer` bytes.
    ///
    /// # Errors
    /// The switch refuses it, or lacks features that `rings` and `size` need.
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
            looks: Looks::default(),
            drains: Looks::default(),
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

    /// Its MAC.
    pub fn mac(&self) -> Mac {
        self.vnic.mac
    }

    /// Fills the transmit ring with the frames that `frame` makes of their number. The switch
    /// sees none of them before [`start`](Self::start).
    ///
    /// # Panics
    /// If it was filled before, or a frame is longer than a buffer.
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

    /// Whether the switch gave back all frames that were loaded.
    pub fn is_idle(&mut self) -> bool {
        completed(self.front.ring(TRANSMIT), self.ring) == self.ring
    }

    /// Sends the frames again that the switch gave back.
    #[inline]
    pub fn refill(&mut self) {
        let ring = self.front.ring(TRANSMIT);
        let batch = BATCH.min(self.ring / 8).max(1);
        if completed(ring, batch) < batch {
            return;
        }
        let taken = recycle(ring, &self.frames, |_| ());
        self.sent += u64::from(taken);
        self.looks.note(taken, self.ring);
        if ring.publish() {
            // A full counter means that the switch is signalled already.
            let _ = self.front.kick(TRANSMIT);
        }
    }

    /// Counts the received frames and gives the buffers back. Returns the number of frames.
    #[inline]
    pub fn drain(&mut self) -> u64 {
        if self.merged {
            return self.drain_each(|_| ());
        }
        let mut bytes = 0;
        let ring = self.front.ring(RECEIVE);
        let taken = recycle(ring, &self.buffers, |used| bytes += u64::from(used.len));
        let frames = u64::from(taken);
        if frames > 0 {
            self.drains.note(taken, self.ring);
            self.received.frames += frames;
            self.received.bytes += bytes - frames * VNET_HDR as u64;
            self.show_buffers();
        }
        frames
    }

    /// As [`drain`](Self::drain), with the flow of every frame.
    #[inline]
    pub fn drain_flows(&mut self, mut visit: impl FnMut(u16)) -> u64 {
        let memory = Arc::clone(&self.memory);
        self.drain_each(|buffer| {
            let mut flow = [0; 2];
            memory.read(buffer + FLOW_OFFSET, &mut flow);
            visit(flow_of(flow));
        })
    }

    /// Visits the first buffer of every frame, and adds up the rest.
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

    /// Copies frame `number` of the ones loaded, `len` bytes with its virtio_net_hdr, to receive buffers of
    /// `to`, from number `buffer` on: the copy alone of the switch's work. Returns the number after
    /// the last one it filled.
    ///
    /// # Panics
    /// If nothing was loaded.
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

/// The chains of a queue that is full of them, each of one buffer, by their heads.
fn chains(memory: &SharedMemory, queue: &DriverQueue) -> Vec<Buffer> {
    let mut chains = vec![Buffer::readable(0, 0); usize::from(queue.size())];
    for slot in 0..queue.size() {
        let mut bytes = [0; 16];
        memory.read(queue.desc_addr() + 16 * u64::from(slot), &mut bytes);
        // Address and length stand alike in both kinds of ring; then flags and next, or id and flags.
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

/// Completed chains, of which at most `most` are counted.
#[inline]
fn completed(queue: &DriverQueue, most: u16) -> u16 {
    match queue {
        DriverQueue::Split(queue) => queue.completed(),
        // Each costs a look; `most` is enough to decide whether to go through them.
        DriverQueue::Packed(queue) => queue.completed(most),
    }
}

/// Makes completed chains available again, each after `visit` saw it; returns how many.
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
                let again = queue.add(&[chains[usize::from(used.head)]]);
                assert_eq!(again, Some(used.head), "the buffer id that was free last");
                count += 1;
            }
            count
        }
    }
}
