//! A guest's memory and its two rings, driven by hand.

use crate::cases::{IN_ORDER, PACKED};
use std::os::fd::AsFd;
use std::sync::Arc;
use tidegate_frontend::driver::{Buffer, DriverFeatures, DriverQueue};
use tidegate_frontend::memory::SharedMemory;
use tidegate_switch::vhost_user::VringSetup;
use tidegate_switch::virtio::memory::RegionSpec;
use tidegate_switch::virtio::{GuestMemory, Inflight};

/// Bytes of a receive buffer.
pub const BUFFER: u32 = 2048;
/// Bytes of each descriptor of a frame that is longer, as a kernel's pages are.
const PAGE: usize = 4096;
/// Room for both rings and what goes with them.
const RINGS: usize = 128 << 10;

/// A guest.
pub struct Guest {
    memory: Arc<SharedMemory>,
    packed: bool,
    size: u16,
    inflight: Inflight,
    pub tx: DriverQueue,
    pub rx: DriverQueue,
    /// What it sends, in turns: where, and how long.
    frames: Vec<Vec<Buffer>>,
    rx_buffers: u64,
}

impl Guest {
    /// A guest with rings of `size` entries that sends `frames`, virtio headers included.
    pub fn new(features: u64, size: u16, frames: &[Vec<u8>]) -> Self {
        let room = |frame: &Vec<u8>| frame.len().next_multiple_of(BUFFER as usize);
        let buffers = usize::from(size) * BUFFER as usize;
        let all = RINGS + buffers + frames.iter().map(room).sum::<usize>();
        let memory = Arc::new(SharedMemory::new(0, all.next_multiple_of(PAGE)).expect("memory"));
        memory.preallocate().expect("memory");
        let packed = features & PACKED != 0;
        let driver =
            DriverFeatures { packed, in_order: features & IN_ORDER != 0, ..DriverFeatures::default() };
        let mut tx = DriverQueue::new(&memory, size, driver);
        let mut rx = DriverQueue::new(&memory, size, driver);
        tx.disable_interrupts();
        rx.disable_interrupts();
        let place = |frame: &Vec<u8>| {
            let at = memory.alloc(room(frame) as u64, 64);
            memory.write(at, frame);
            let pieces = (at..).step_by(PAGE).zip(frame.chunks(PAGE));
            pieces.map(|(at, piece)| Buffer::readable(at, piece.len() as u32)).collect()
        };
        let frames = frames.iter().map(place).collect();
        let rx_buffers = memory.alloc(buffers as u64, 64);
        let inflight = Inflight::create(2, size).expect("memory");
        Self { memory, packed, size, inflight, tx, rx, frames, rx_buffers }
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
            size: self.size,
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
            self.tx.add(frame).expect("room");
        }
        let _ = self.tx.publish();
    }

    /// Gives `count` receive buffers, or as many as there is room for.
    pub fn give_buffers(&mut self, count: usize) {
        for _ in 0..count.min(usize::from(self.rx.free())) {
            let slot = self.rx.free() - 1;
            let buffer = self.rx_buffers + u64::from(slot) * u64::from(BUFFER);
            self.rx.add(&[Buffer::writable(buffer, BUFFER)]).expect("room");
        }
        let _ = self.rx.publish();
    }

    /// Takes back what it sent; returns how many frames that were.
    pub fn take_back(&mut self) -> u64 {
        std::iter::from_fn(|| self.tx.reap()).count() as u64
    }

    /// Takes what it received; returns the bytes, virtio headers included.
    pub fn receive(&mut self) -> usize {
        std::iter::from_fn(|| self.rx.reap()).map(|used| used.len as usize).sum()
    }
}
