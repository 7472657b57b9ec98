//! Guests that send and receive without end, from the same buffers.

use super::super::Worker;
use crate::fdb::PortIndex;
use crate::vhost_user::VringSetup;
use crate::virtio::GuestMemory;
use crate::virtio::memory::RegionSpec;
use std::os::fd::AsFd;
use std::sync::Arc;
use tidegate_frontend::driver::{Buffer, DriverFeatures, DriverQueue};
use tidegate_frontend::memory::SharedMemory;

const MERGEABLE: u64 = 1 << 15;
const V1: u64 = 1 << 32;
const PACKED: u64 = 1 << 34;
const VNET_HDR: u32 = 12;

/// A guest's rings and frames.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// Bytes of a frame.
    pub(super) size: u32,
    /// Entries of each ring.
    pub(super) ring: u16,
    pub(super) packed: bool,
}

pub(super) struct Guest {
    shape: Shape,
    memory: Arc<SharedMemory>,
    tx: DriverQueue,
    rx: DriverQueue,
    frame: u64,
    /// The buffer of each head in flight.
    given: Vec<u64>,
    free: Vec<u64>,
    pub(super) received: u64,
    /// Bytes of each receive buffer.
    pub(super) buffer: u32,
    /// Descriptors of each; all but the last have one byte.
    pub(super) pieces: u32,
}

impl Guest {
    pub(super) fn new(shape: Shape, own: PortIndex, to: PortIndex) -> Self {
        let room = u64::from(shape.size + VNET_HDR).next_multiple_of(64);
        let memory = SharedMemory::new(0, (1 << 20) + (room as usize) * (usize::from(shape.ring) + 1));
        let memory = Arc::new(memory.unwrap());
        let features = DriverFeatures { packed: shape.packed, ..DriverFeatures::default() };
        let tx = DriverQueue::new(&memory, shape.ring, features);
        let rx = DriverQueue::new(&memory, shape.ring, features);
        let frame = memory.alloc(room, 64);
        let mut bytes = vec![0; VNET_HDR as usize];
        bytes.extend([0x52, 0x54, 0, 0, 0, to as u8, 0x52, 0x54, 0, 0, 0, own as u8, 0x08, 0x00]);
        let ip = (shape.size - 14) as u16;
        bytes.extend([
            0x45,
            0,
            (ip >> 8) as u8,
            ip as u8,
            0,
            1,
            0,
            0,
            64,
            17,
            0,
            0,
            10,
            0,
            0,
            1,
            10,
            0,
            0,
            2,
        ]);
        bytes.extend([0, 7, 0, 7, ((ip - 20) >> 8) as u8, (ip - 20) as u8, 0, 0]);
        bytes.resize((shape.size + VNET_HDR) as usize, 0x5a);
        memory.write(frame, &bytes);
        let buffers = memory.alloc(room * u64::from(shape.ring), 64);
        let free = (0..u64::from(shape.ring)).map(|n| buffers + n * room).collect();
        let given = vec![0; usize::from(shape.ring)];
        Self {
            shape,
            memory,
            tx,
            rx,
            frame,
            given,
            free,
            received: 0,
            buffer: shape.size + VNET_HDR,
            pieces: 1,
        }
    }

    /// Connects rings and memory to a port of `worker`.
    pub(super) fn connect(&mut self, worker: &mut Worker, port: PortIndex) {
        let fd = self.memory.fd().as_fd().try_clone_to_owned().unwrap();
        let (user_addr, size) = (self.memory.user_addr(), self.memory.size());
        let region = RegionSpec { guest_addr: 0, user_addr, size, mmap_offset: 0, fd };
        worker.set_features(port, V1 | MERGEABLE | if self.shape.packed { PACKED } else { 0 });
        worker.set_memory(port, &Arc::new(GuestMemory::map(vec![region]).unwrap())).unwrap();
        for (queue, ring) in [(0, &self.rx), (1, &self.tx)] {
            let user = |addr| self.memory.to_user(addr);
            let setup = VringSetup {
                size: ring.size(),
                desc: user(ring.desc_addr()),
                avail: user(ring.avail_addr()),
                used: user(ring.used_addr()),
                base: if self.shape.packed { 0x8000_8000 } else { 0 },
                log: None,
                kick: None,
                call: None,
                inflight: None,
            };
            worker.start_queue(port, queue, setup).unwrap();
            worker.enable_queue(port, queue, true);
        }
        self.receive();
    }

    /// Fills the transmit ring.
    pub(super) fn send(&mut self) {
        while self.tx.reap().is_some() {}
        while self.tx.add(&[Buffer::readable(self.frame, self.shape.size + VNET_HDR)]).is_some() {}
        let _ = self.tx.publish();
    }

    /// Sends to this port from now on.
    pub(super) fn send_to(&mut self, to: PortIndex) {
        self.memory.write(self.frame + u64::from(VNET_HDR) + 5, &[to as u8]);
    }

    /// Fills the transmit ring with frames that are dropped, with another's source address, in buffers of
    /// these lengths.
    pub(super) fn send_spoofed(&mut self, lengths: &[u32]) {
        assert_eq!(lengths.iter().sum::<u32>(), self.shape.size + VNET_HDR);
        self.memory.write(self.frame + u64::from(VNET_HDR) + 6, &[0x52, 0x54, 0, 0, 0, 0xee]);
        let mut at = self.frame;
        let buffer = |&length: &u32| {
            let buffer = Buffer::readable(at, length);
            at += u64::from(length);
            buffer
        };
        let pieces: Vec<_> = lengths.iter().map(buffer).collect();
        while self.tx.reap().is_some() {}
        while self.tx.add(&pieces).is_some() {}
        let _ = self.tx.publish();
    }

    /// Fills the transmit ring with frames to all.
    pub(super) fn broadcast(&mut self) {
        self.memory.write(self.frame + u64::from(VNET_HDR), &[0xff; 6]);
        self.send();
    }

    /// Whether its frames are in its ring or under way.
    pub(super) fn is_sending(&mut self) -> bool {
        while self.tx.reap().is_some() {}
        self.tx.free() < self.tx.size()
    }

    /// Takes received frames, and gives all buffers back.
    pub(super) fn receive(&mut self) {
        while let Some(used) = self.rx.reap() {
            self.received += 1;
            self.free.push(self.given[usize::from(used.head)]);
        }
        while let Some(at) = self.free.pop() {
            let last = self.pieces - 1;
            let piece = |n: u32| match n == last {
                true => Buffer::writable(at + u64::from(n), self.buffer - last),
                false => Buffer::writable(at + u64::from(n), 1),
            };
            let pieces: Vec<_> = (0..self.pieces).map(piece).collect();
            let Some(head) = self.rx.add(&pieces) else {
                self.free.push(at);
                break;
            };
            self.given[usize::from(head)] = at;
        }
        let _ = self.rx.publish();
    }
}
