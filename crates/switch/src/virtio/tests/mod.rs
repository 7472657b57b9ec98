//! Driver and device on one memory: the driver is `tidegate_frontend`'s.

mod concurrent;
mod hostile;
mod inflight;
mod memory;
mod model;
mod packed;
mod split;
mod writer;

use super::memory::RegionSpec;
use super::{Features, GuestMemory, Queue, RingLayout};
use std::sync::Arc;
use tidegate_frontend::driver::{DriverFeatures, DriverQueue};
use tidegate_frontend::memory::SharedMemory;

/// Guest address of test guests' memory.
const GUEST_ADDR: u64 = 0x4000_0000;

/// Returns the table entry that shares all of `memory` with the device.
fn spec(memory: &SharedMemory) -> RegionSpec {
    RegionSpec {
        guest_addr: memory.guest_addr(),
        user_addr: memory.user_addr(),
        size: memory.size(),
        mmap_offset: 0,
        fd: memory.fd().try_clone_to_owned().unwrap(),
    }
}

fn layout(driver: &DriverQueue, memory: &SharedMemory) -> RingLayout {
    RingLayout {
        size: driver.size(),
        desc: memory.to_user(driver.desc_addr()),
        avail: memory.to_user(driver.avail_addr()),
        used: memory.to_user(driver.used_addr()),
    }
}

/// Returns the same features for the driver's side.
fn of_driver(features: Features) -> DriverFeatures {
    let Features { packed, event_idx, indirect, in_order } = features;
    DriverFeatures { packed, event_idx, indirect, in_order }
}

/// A queue seen from both sides.
struct Guest {
    memory: Arc<SharedMemory>,
    map: Arc<GuestMemory>,
    driver: DriverQueue,
    device: Queue,
}

impl Guest {
    fn new(size: u16, features: Features) -> Self {
        Self::starting_at(size, features, if features.packed { 0x8000 } else { 0 })
    }

    /// Starts both sides at `base`: an index of a split ring; of a packed one, its place modulo the size
    /// and its highest bit.
    fn starting_at(size: u16, features: Features, base: u16) -> Self {
        let base = if features.packed { (base & 0x8000) | ((base & 0x7fff) % size) } else { base };
        let memory = Arc::new(SharedMemory::new(GUEST_ADDR, 1 << 20).unwrap());
        let map = Arc::new(GuestMemory::map(vec![spec(&memory)]).unwrap());
        let driver = DriverQueue::starting_at(&memory, size, of_driver(features), base);
        let device = Queue::new(Arc::clone(&map), layout(&driver, &memory), driver.base(), features).unwrap();
        Self { memory, map, driver, device }
    }

    /// Writes `bytes` into guest memory; returns their guest address.
    fn place(&self, bytes: &[u8]) -> u64 {
        let addr = self.memory.alloc(bytes.len() as u64, 1);
        self.memory.write(addr, bytes);
        addr
    }
}
