//! A guest's memory and its two rings, driven by hand.

use crate::cases::{IN_ORDER, PACKED};
use std::os::fd::AsFd;
use std::sync::Arc;
use tidegate_frontend::driver::{Buffer, DriverFeatures, DriverQueue};
use tidegate_frontend::memory::SharedMemory;
use tidegate_switch::vhost_user::VringSetup;
use tidegate_switch::virtio::memory::RegionSpec;
use tidegate_switch::virtio::{GuestMemory, Inflight};

const RING: u16 = 1024;
const BUFFER: u32 = 2048;

/// A guest.
pub struct Guest {
    memory: Arc<SharedMemory>,
    packed: bool,
    inflight: Inflight,
    pub tx: DriverQueue,
    pub rx: DriverQueue,
    /// What it sends, in turns: where, and how long.
    frames: Vec<Buffer>,
    rx_buffers: u64,
}

impl Guest {
    /// A guest that sends `frames`, virtio headers included.
    pub fn new(features: u64, frames: &[Vec<u8>]) -> Self {
        let memory = Arc::new(SharedMemory::new(0, 8 << 20).expect("memory"));
        memory.preallocate().expect("memory");
        let packed = features & PACKED != 0;
        let driver =
            DriverFeatures { packed, in_order: features & IN_ORDER != 0, ..DriverFeatures::default() };
        let mut tx = DriverQueue::new(&memory, RING, driver);
        let mut rx = DriverQueue::new(&memory, RING, driver);
        tx.disable_interrupts();
        rx.disable_interrupts();
        let tx_buffers = memory.alloc(frames.len() as u64 * u64::from(BUFFER), 64);
        let rx_buffers = memory.alloc(u64::from(RING) * u64::from(BUFFER), 64);
        let place = |(i, frame): (u64, &Vec<u8>)| {
            let at = tx_buffers + i * u64::from(BUFFER);
            memory.write(at, frame);
            Buffer::readable(at, frame.len() as u32)
        };
        let frames = (0..).zip(frames).map(place).collect();
        let inflight = Inflight::create(2, RING).expect("memory");
        Self { memory, packed, inflight, tx, rx, frames, rx_buffers }
    }

    /// Its memory, as the switch maps it.
    pub fn map(&self) -> Arc<GuestMemory> {
        let fd = self.memory.fd().as_fd().try_clone_to_owned().expect("a descriptor");
        let (user_addr, size) = (self.memory.user_addr(), self.memory.size());
        let region = RegionSpec { guest_addr: 0, user_addr, size, mmap_offset: 0, fd };
        Arc::new(GuestMemory::map(vec![region]).expect("mapped"))
    }

    /// Where its queue `index` lies, and what keeps account of it.
    pub fn setup(&self, index: u16, ring: &DriverQueue) -> VringSetup {
        let user = |addr| self.memory.to_user(addr);
        VringSetup {
            size: RING,
            desc: user(ring.desc_addr()),
            avail: user(ring.avail_addr()),
            used: user(ring.used_addr()),
            // Of a packed ring: the first place, wrap counter 1, on both sides.
            base: if self.packed { 0x8000_8000 } else { 0 },
            log: None,
            kick: None,
            call: None,
            inflight: self.inflight.queue(index),
        }
    }

    /// Sends `count` frames.
    pub fn send(&mut self, count: u16) {
        for frame in self.frames.iter().cycle().take(usize::from(count)) {
            self.tx.add(std::slice::from_ref(frame)).expect("room");
        }
        let _ = self.tx.publish();
    }

    /// Gives `count` receive buffers, or as many as there is room for.
    pub fn give_buffers(&mut self, count: u16) {
        for _ in 0..count.min(self.rx.free()) {
            let slot = u64::from(self.rx.free() - 1);
            let buffer = self.rx_buffers + slot * u64::from(BUFFER);
            self.rx.add(&[Buffer::writable(buffer, BUFFER)]).expect("room");
        }
        let _ = self.rx.publish();
    }

    /// Takes back what it sent; returns how many frames that were.
    pub fn take_back(&mut self) -> u16 {
        std::iter::from_fn(|| self.tx.reap()).count() as u16
    }

    /// Takes what it received: all of `len` bytes with their header.
    pub fn receive(&mut self, len: usize) {
        while let Some(used) = self.rx.reap() {
            assert_eq!(used.len as usize, len);
        }
    }
}
