//! The memory of a split virtqueue: descriptor table, available ring and used ring.

use crate::virtio::inflight::stored;
use crate::virtio::layout::{RingLayout, locate};
use crate::virtio::walker::DESC_BYTES;
use crate::virtio::{GuestMemory, RingError, RingPart};
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};

/// Available ring flag: the driver wants no interrupts (virtio 1.2, 2.7.6).
const AVAIL_NO_INTERRUPT: u16 = 1;
/// Used ring flag: the device wants no kicks (virtio 1.2, 2.7.8).
const USED_NO_NOTIFY: u16 = 1;

/// The parts in this process. Aligned and mapped for their whole length as long as the
/// `GuestMemory` they were translated by lives.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parts {
    /// 16 bytes each: address, length, flags, next.
    pub(super) desc: *mut u8,
    /// Flags, index, `size` heads, used_event; 2 bytes each.
    avail: *mut u16,
    /// Flags, index (2 bytes each), `size` times head and length (4 bytes each), avail_event.
    used: *mut u16,
    pub(super) size: u16,
}

impl Parts {
    /// Users of the value hold `memory`.
    pub(super) fn translate(memory: &GuestMemory, layout: &RingLayout) -> Result<Self, RingError> {
        let size = u64::from(layout.size);
        Ok(Self {
            desc: locate(memory, RingPart::Descriptors, layout.desc, 16 * size, 16)?,
            avail: locate(memory, RingPart::Available, layout.avail, 6 + 2 * size, 2)?.cast(),
            used: locate(memory, RingPart::Used, layout.used, 6 + 8 * size, 4)?.cast(),
            size: layout.size,
        })
    }

    /// Returns the address of descriptor `head`; beyond the table if that is not below the size.
    #[inline]
    pub(super) fn descriptor(&self, head: u16) -> *mut u8 {
        self.desc.wrapping_add(usize::from(head) * DESC_BYTES as usize)
    }

    /// The driver's index.
    #[inline]
    pub(super) fn avail_index(&self, order: Ordering) -> u16 {
        // SAFETY: second word of the available ring, mapped and aligned to 2 as long as the memory is held.
        u16::from_le(unsafe { AtomicU16::from_ptr(self.avail.add(1)) }.load(order))
    }

    /// The `i`th 2-byte word of the available ring: flags, index, heads, used_event.
    #[inline]
    fn avail_word(&self, i: usize) -> u16 {
        debug_assert!(i < 3 + usize::from(self.size));
        // SAFETY: the ring has 3 + size words, mapped and aligned to 2 as long as the memory is held;
        // callers stay below.
        u16::from_le(unsafe { AtomicU16::from_ptr(self.avail.add(i)) }.load(Ordering::Relaxed))
    }

    /// Returns the head in the slot of available index `index`.
    #[inline]
    pub(super) fn avail_entry(&self, index: u16) -> u16 {
        self.avail_word(2 + usize::from(index & (self.size - 1)))
    }

    /// Returns the used index at which the driver wants an interrupt.
    #[inline]
    pub(super) fn used_event(&self) -> u16 {
        self.avail_word(2 + usize::from(self.size))
    }

    /// Whether the driver wants interrupts, by its flag.
    #[inline]
    pub(super) fn wants_interrupts(&self) -> bool {
        self.avail_word(0) & AVAIL_NO_INTERRUPT == 0
    }

    /// The device's index.
    pub(super) fn used_index(&self) -> u16 {
        // SAFETY: as for `set_used_index`.
        u16::from_le(unsafe { AtomicU16::from_ptr(self.used.add(1)) }.load(Ordering::Relaxed))
    }

    /// Shows the driver the entries before `index`.
    #[inline]
    pub(super) fn set_used_index(&self, index: u16) {
        // SAFETY: second word of the used ring, mapped and aligned to 4 as long as the memory is held.
        let used = unsafe { AtomicU16::from_ptr(self.used.add(1)) };
        // Release: the entries are written before the index that covers them.
        used.store(index.to_le(), Ordering::Release);
        stored();
    }

    /// Writes the used entry of that index.
    #[inline]
    pub(super) fn write_used(&self, index: u16, head: u16, len: u32) {
        let at = 1 + 2 * usize::from(index & (self.size - 1));
        // SAFETY: flags and index are 4 bytes, the masked slot is below the size, and the used
        // ring is aligned to 4 and mapped for all its entries.
        let entry = unsafe { self.used.cast::<u32>().add(at) };
        // SAFETY: as above; a driver reading meanwhile is no conflict, the accesses are atomic.
        let (id, length) = unsafe { (AtomicU32::from_ptr(entry), AtomicU32::from_ptr(entry.add(1))) };
        id.store(u32::from(head).to_le(), Ordering::Relaxed);
        stored();
        length.store(len.to_le(), Ordering::Relaxed);
        stored();
    }

    /// Gives all entries from `used` to `popped` back, unsent, and shows that: in order, so the last one
    /// stands for all.
    pub(super) fn give_all_back(&self, used: u16, popped: u16) {
        if popped != used {
            self.write_used(used, self.avail_entry(popped.wrapping_sub(1)), 0);
            self.set_used_index(popped);
        }
    }

    /// Sets the flag whether the device wants kicks.
    pub(super) fn set_wants_kicks(&self, wants: bool) {
        let flags: u16 = if wants { 0 } else { USED_NO_NOTIFY };
        // SAFETY: first word of the used ring, mapped and aligned as long as the memory is held.
        unsafe { AtomicU16::from_ptr(self.used) }.store(flags.to_le(), Ordering::Relaxed);
    }

    /// Sets the available index at which the device wants a kick.
    pub(super) fn set_avail_event(&self, event: u16) {
        let after_entries = 2 + 4 * usize::from(self.size);
        // SAFETY: the word after the used entries, which the ring's mapped length includes.
        unsafe { AtomicU16::from_ptr(self.used.add(after_entries)) }.store(event.to_le(), Ordering::Relaxed);
    }
}
