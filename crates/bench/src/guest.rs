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
use tidegate_frontend::driver::split::SplitDriver;
use tidegate_frontend::driver::{DriverQueue, Used};
use tidegate_frontend::front_end::{FrontEnd, FrontEndError, MRG_RXBUF, Options};
use tidegate_frontend::memory::SharedMemory;

/// VIRTIO_NET_F_CSUM, GUEST_CSUM, GUEST_TSO4 and HOST_TSO4: what super-frames take.
const OFFLOADS: u64 = 1 << 0 | 1 << 1 | 1 << 7 | 1 << 11;
/// Offset of num_buffers in a virtio_net_hdr (virtio 1.2, 5.1.6).
const NUM_BUFFERS: u64 = 10;
/// Completed frames are made available again from so many on: what is shown at once is looked at
/// at once. Less than an eighth of a ring never waits.
const BATCH: u16 = 32;

const RECEIVE: usize = 0;
const TRANSMIT: usize = 1;

/// Why a guest is not there.
#[derive(Debug, thiserror::Error)]
pub enum GuestError {
    /// Its contract does not say where it is connected.
    #[error(transparent)]
    Scene(#[from] SceneError),
    /// The switch did not take it.
    #[error("vnic.{name} at {socket}: {source} (is the switch running, with this contract in force?)")]
    Connect {
        /// Which vNIC.
        name: String,
        /// Its socket.
        socket: String,
        /// What happened.
        source: FrontEndError,
    },
    /// Without an offload frames would be cut, and something else measured.
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

/// What a guest received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// Frames, a super-frame being one.
    pub frames: u64,
    /// Bytes in memory, without virtio_net_hdr.
    pub bytes: u64,
}

/// How often and how a transmit ring was looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Looks {
    /// Times it was filled up.
    pub refills: u64,
    /// Times most of it was waiting for that: then the switch may have waited for frames.
    pub starved: u64,
}

/// A guest on a vNIC.
pub struct Guest {
    /// Its contract.
    pub vnic: Vnic,
    /// What it received so far.
    pub received: Received,
    /// How its transmit ring was found.
    pub looks: Looks,
    front: FrontEnd,
    memory: Arc<SharedMemory>,
    ring: u16,
    /// Where the receive buffer under each head is.
    buffers: Vec<u64>,
    /// Where each frame that was loaded is.
    frames: Vec<u64>,
    buffer_size: usize,
    /// Frames may come in several buffers.
    merged: bool,
    /// Buffers of the current frame yet to come.
    rest: u16,
}

impl Guest {
    /// Whether its memory is in pages of 2 MB: where the kernel has enough reserved.
    pub fn has_huge_pages(&self) -> bool {
        self.memory.is_huge()
    }

    /// Connects with rings of `ring` entries, for frames of `size` and with receive buffers of
    /// `buffer` bytes.
    ///
    /// # Errors
    /// The switch does not take it, or not with the offloads that `size` needs.
    pub fn connect(vnic: &Vnic, ring: u16, size: Size, buffer: u32) -> Result<Self, GuestError> {
        let socket = scene::socket(vnic)?;
        let wanted = if size == Size::Super { OFFLOADS | MRG_RXBUF } else { MRG_RXBUF };
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
        let table = front.ring(RECEIVE).desc_addr();
        let address = |head: u16| {
            let mut bytes = [0; 8];
            memory.read(table + 16 * u64::from(head), &mut bytes);
            u64::from_le_bytes(bytes)
        };
        let buffers = (0..ring).map(address).collect();
        Ok(Self {
            vnic: vnic.clone(),
            received: Received::default(),
            looks: Looks::default(),
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
        let table = self.front.ring(TRANSMIT).desc_addr();
        for number in 0..u64::from(self.ring) {
            let mut bytes = [0; 8];
            self.memory.read(table + 16 * number, &mut bytes);
            self.frames.push(u64::from_le_bytes(bytes));
        }
    }

    /// Shows the switch all that was loaded.
    pub fn start(&mut self) {
        self.front.flush(0);
    }

    /// Whether the switch gave back all frames that were loaded.
    pub fn is_idle(&mut self) -> bool {
        split(self.front.ring(TRANSMIT)).completed() == self.ring
    }

    /// Sends again what the switch gave back.
    #[inline]
    pub fn refill(&mut self) {
        let ring = split(self.front.ring(TRANSMIT));
        let completed = ring.completed();
        if completed < BATCH.min(self.ring / 8).max(1) {
            return;
        }
        self.looks.refills += 1;
        self.looks.starved += u64::from(completed > self.ring / 4 * 3);
        ring.recycle(completed, |_| ());
        if ring.publish() {
            // A full counter means it is signalled already.
            let _ = self.front.kick(TRANSMIT);
        }
    }

    /// Counts what was received and gives the buffers back. Returns how many frames.
    #[inline]
    pub fn drain(&mut self) -> u64 {
        if self.merged {
            return self.drain_each(|_| ());
        }
        let ring = split(self.front.ring(RECEIVE));
        let mut bytes = 0;
        let frames = u64::from(ring.recycle(u16::MAX, |used| bytes += u64::from(used.len)));
        if frames > 0 {
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
        let taken = split(front.ring(RECEIVE)).recycle(u16::MAX, |Used { head, len }| {
            bytes += u64::from(len);
            if *rest > 0 {
                *rest -= 1;
                return;
            }
            let buffer = buffers[usize::from(head)];
            let mut count = [0; 2];
            memory.read(buffer + NUM_BUFFERS, &mut count);
            *rest = u16::from_le_bytes(count).max(1) - 1;
            frames += 1;
            visit(buffer);
        });
        if taken > 0 {
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
    /// `to`, from number `buffer` on: what the switch does, and nothing else. Returns the number after
    /// the last one it filled.
    ///
    /// # Panics
    /// If nothing was loaded.
    pub fn copy_to(&self, to: &Self, number: usize, len: usize, mut buffer: usize) -> usize {
        let from = self.frames[number % self.frames.len()];
        let mut done = 0;
        while done < len {
            let here = (len - done).min(to.buffer_size);
            self.memory.copy_to(from + done as u64, &to.memory, to.buffers[buffer % to.buffers.len()], here);
            done += here;
            buffer += 1;
        }
        buffer
    }
}

/// The queue of a guest, which never asks for a packed one.
fn split(queue: &mut DriverQueue) -> &mut SplitDriver {
    match queue {
        DriverQueue::Split(queue) => queue,
        DriverQueue::Packed(_) => unreachable!("VIRTIO_F_RING_PACKED was not asked for"),
    }
}
