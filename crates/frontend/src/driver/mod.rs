//! The driver's side of a virtqueue (virtio 1.2, 2.7 and 2.8), for tests and benchmarks.
//!
//! ```text
//!   add ─▶ descriptors                          device        used ─▶ reap
//!   publish ─▶ available, at once ─▶ kick? ──▶ ........ ──▶  interrupt
//! ```
//!
//! - [`split`]: descriptor table, available and used ring
//! - [`packed`]: one descriptor ring
//! - `chain`: chains' buffers, and features that change the rings' meaning
//! - `in_order`: completion in order

mod chain;
mod in_order;
pub mod packed;
pub mod split;

use crate::memory::SharedMemory;
pub use chain::{Buffer, DriverFeatures, MAX_INDIRECT, Used};
use chain::{INDIRECT, WRITE};
use packed::PackedDriver;
use split::SplitDriver;
use std::sync::Arc;

/// The driver's side of one virtqueue, in memory shared with the device.
#[derive(Debug)]
pub enum DriverQueue {
    /// Descriptor table, available and used ring.
    Split(SplitDriver),
    /// One descriptor ring.
    Packed(PackedDriver),
}

macro_rules! either {
    ($queue:expr, $inner:ident => $what:expr) => {
        match $queue {
            Self::Split($inner) => $what,
            Self::Packed($inner) => $what,
        }
    };
}

impl DriverQueue {
    /// Makes an empty queue in `memory`.
    ///
    /// # Panics
    /// The layout has no such size, or the memory is full.
    pub fn new(memory: &Arc<SharedMemory>, size: u16, features: DriverFeatures) -> Self {
        Self::starting_at(memory, size, features, if features.packed { packed::FIRST } else { 0 })
    }

    /// As [`new`](Self::new), from `base`, as after a reconnection: all indices of a split queue, or slot
    /// (bits 0 to 14) and wrap counter (bit 15) of both sides of a packed one.
    ///
    /// # Panics
    /// As there, or an invalid slot.
    pub fn starting_at(memory: &Arc<SharedMemory>, size: u16, features: DriverFeatures, base: u16) -> Self {
        match features.packed {
            true => Self::Packed(PackedDriver::starting_at(memory, size, features, base)),
            false => Self::Split(SplitDriver::starting_at(memory, size, features, base)),
        }
    }

    /// Returns the entries of the ring.
    pub fn size(&self) -> u16 {
        either!(self, queue => queue.size())
    }

    /// Returns the guest address of the descriptor table or ring; a vring address by
    /// [`SharedMemory::to_user`].
    pub fn desc_addr(&self) -> u64 {
        either!(self, queue => queue.desc_addr())
    }

    /// Returns the guest address of the available ring or, packed, of the driver's event suppression.
    pub fn avail_addr(&self) -> u64 {
        either!(self, queue => queue.avail_addr())
    }

    /// Returns the guest address of the used ring or, packed, of the device's event suppression.
    pub fn used_addr(&self) -> u64 {
        either!(self, queue => queue.used_addr())
    }

    /// Returns how far the device has completed, as for VHOST_USER_SET_VRING_BASE: a device with nothing in
    /// flight continues there.
    pub fn base(&self) -> u32 {
        either!(self, queue => queue.base())
    }

    /// Returns the number of descriptors not in use.
    pub fn free(&self) -> u16 {
        either!(self, queue => queue.free())
    }

    /// Adds a chain, one descriptor per buffer. Returns its head (packed: buffer id), or `None` without
    /// enough free descriptors. The device sees it after [`publish`](Self::publish).
    ///
    /// # Panics
    /// `buffers` is empty.
    #[inline]
    pub fn add(&mut self, buffers: &[Buffer]) -> Option<u16> {
        assert!(!buffers.is_empty(), "a chain of no buffers");
        either!(self, queue => queue.add(buffers))
    }

    /// Adds a chain in an indirect table, which takes one descriptor.
    ///
    /// # Panics
    /// The feature was not negotiated, or there are no buffers or more than [`MAX_INDIRECT`].
    pub fn add_indirect(&mut self, buffers: &[Buffer]) -> Option<u16> {
        assert!((1..=MAX_INDIRECT).contains(&buffers.len()), "a table of {} buffers", buffers.len());
        either!(self, queue => queue.add_indirect(buffers))
    }

    /// Makes one descriptor available at once, unchecked, for tests that lie. `next` is its buffer id in a
    /// packed ring; a split ring uses descriptor 0.
    pub fn offer_raw(&mut self, addr: u64, len: u32, flags: u16, next: u16) {
        either!(self, queue => queue.offer_raw(addr, len, flags, next));
    }

    /// Publishes added chains to the device. Returns whether it asked for a kick.
    #[inline]
    #[must_use = "a device that asked for a kick waits for it"]
    pub fn publish(&mut self) -> bool {
        either!(self, queue => queue.publish())
    }

    /// Takes the next completed chain.
    ///
    /// # Panics
    /// The device completed a chain that is not in flight.
    #[inline]
    pub fn reap(&mut self) -> Option<Used> {
        either!(self, queue => queue.reap())
    }

    /// Asks the device for no interrupts, as a hint: the queue is polled.
    pub fn disable_interrupts(&mut self) {
        either!(self, queue => queue.disable_interrupts());
    }

    /// Asks for an interrupt at the next completion. Returns whether one has already happened, for which no
    /// interrupt may come.
    #[must_use = "sleeping while completed chains wait may never end"]
    pub fn enable_interrupts(&mut self) -> bool {
        either!(self, queue => queue.enable_interrupts())
    }

    /// Writes a descriptor, unchecked, into the table at guest address `table`, for tests that lie. In a
    /// packed ring `next` is the buffer id.
    pub fn write_raw_desc(&self, table: u64, index: u16, addr: u64, len: u32, flags: u16, next: u16) {
        either!(self, queue => queue.write_raw_desc(table, index, addr, len, flags, next));
    }
}
