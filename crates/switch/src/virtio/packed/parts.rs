//! The memory of a packed virtqueue: descriptor ring and event suppression structures.

use super::position::{Position, used_half};
use super::{
    DESC_AVAIL, DESC_BYTES, DESC_NEXT, DESC_USED, GuestMemory, PER_LINE, QueueInflight, RingError,
    RingLayout, RingPart, locate,
};
use crate::virtio::inflight::{Record, stored};
use crate::virtio::layout::need_event;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Event suppression: notify always (virtio 1.2, 2.8.10).
pub(super) const EVENTS_ENABLE: u16 = 0;
/// Event suppression: do not notify.
pub(super) const EVENTS_DISABLE: u16 = 1;
/// Event suppression: notify when a place is passed.
pub(super) const EVENTS_AT_PLACE: u16 = 2;

/// The parts in this process. Aligned and mapped for their whole length as long as the
/// `GuestMemory` they were translated by lives.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parts {
    /// 16 bytes each: address, length, buffer id, flags.
    pub(super) desc: *mut u8,
    /// Place, flags; 2 bytes each.
    driver: *mut u32,
    device: *mut u32,
    pub(super) size: u16,
}

impl Parts {
    /// Users of the value hold `memory`.
    pub(super) fn translate(memory: &GuestMemory, layout: &RingLayout) -> Result<Self, RingError> {
        let size = u64::from(layout.size);
        Ok(Self {
            desc: locate(memory, RingPart::Descriptors, layout.desc, 16 * size, 16)?,
            driver: locate(memory, RingPart::DriverEvents, layout.avail, 4, 4)?.cast(),
            device: locate(memory, RingPart::DeviceEvents, layout.used, 4, 4)?.cast(),
            size: layout.size,
        })
    }

    #[inline]
    pub(super) fn descriptor(&self, slot: u16) -> *mut u8 {
        debug_assert!(slot < self.size);
        self.desc.wrapping_add(usize::from(slot) * DESC_BYTES as usize)
    }

    /// Returns length, buffer id and flags of the descriptor at `slot`: the part that the device writes.
    #[inline]
    pub(super) fn second_half(&self, slot: u16) -> &AtomicU64 {
        // SAFETY: in one of the ring's descriptors, mapped and aligned to 16 as long as the memory
        // is held; a driver writing meanwhile is no conflict, the access is atomic.
        unsafe { AtomicU64::from_ptr(self.descriptor(slot).cast::<u64>().wrapping_add(1)) }
    }

    #[inline]
    pub(super) fn flags(&self, slot: u16) -> u16 {
        // Acquire: whatever is read because of these flags is read after them.
        (u64::from_le(self.second_half(slot).load(Ordering::Acquire)) >> 48) as u16
    }

    /// Returns how many of the `n` descriptors from `place` on, none behind the end of the ring, are
    /// chains of one that the driver made available in this round.
    #[inline]
    pub(super) fn singles(&self, place: Position, n: u16) -> u16 {
        let slot = place.slot();
        let mask = u64::from(DESC_AVAIL | DESC_USED | DESC_NEXT) << 48;
        let alone = u64::from(place.available_flags()) << 48;
        // Acquire: whatever is read because of these flags is read after them.
        let half = |i: u16| u64::from_le(self.second_half(slot + i).load(Ordering::Acquire));
        let mut i = 0;
        // Four at a time, as a cache line has.
        while n - i >= PER_LINE {
            let halves = [half(i), half(i + 1), half(i + 2), half(i + 3)];
            let any = halves.iter().fold(0, |any, half| any | half);
            let all = halves.iter().fold(u64::MAX, |all, half| all & half);
            if (any & mask, all & mask) != (alone, alone) {
                break;
            }
            i += PER_LINE;
        }
        while i < n && half(i) & mask == alone {
            i += 1;
        }
        i
    }

    /// Writes a used descriptor; `order` orders earlier writes before it.
    #[inline]
    pub(super) fn use_slot(&self, slot: u16, half: u64, order: Ordering) {
        self.second_half(slot).store(half.to_le(), order);
        stored();
    }

    /// Writes used descriptors from `place` on, in no order that a driver could see; returns the place
    /// after them. `singles`: each takes one place.
    #[inline]
    pub(super) fn use_slots(
        &self,
        mut place: Position,
        mut records: impl ExactSizeIterator<Item = u64>,
        singles: bool,
    ) -> Position {
        while singles && records.len() > 0 {
            // Up to the end of the ring the round is the same.
            let here = records.len().min(usize::from(self.size - place.slot())) as u16;
            for (i, record) in (0..here).zip(&mut records) {
                self.use_slot(place.slot() + i, used_half(record, place), Ordering::Relaxed);
            }
            place = place.forward(here, self.size);
        }
        for record in records {
            self.use_slot(place.slot(), used_half(record, place), Ordering::Relaxed);
            place = place.forward(Record::unpack(record).places, self.size);
        }
        place
    }

    /// Writes one used descriptor for all chains from `used` to `end`, the last with buffer `id`; those up
    /// to `avail` stay in flight.
    #[inline]
    pub(super) fn show_batch(&self, inflight: &QueueInflight, id: u16, [used, end, avail]: [Position; 3]) {
        inflight.commit_all(used.0, end.0, avail.0);
        let half = used_half(Record { id, places: 0, len: 0 }.pack(), used);
        // Release: the driver looks no further than here.
        self.use_slot(used.slot(), half, Ordering::Release);
        inflight.commit_all(end.0, end.0, avail.0);
    }

    /// Gives all chains from `used` to `avail` back, unsent, and shows that; returns their number.
    pub(super) fn give_all_back(&self, inflight: &QueueInflight, used: Position, avail: Position) -> u16 {
        let places = avail.since(used, self.size).unwrap_or(0);
        if places == 0 {
            inflight.commit_all(used.0, used.0, avail.0);
            return 0;
        }
        // They still hold the driver's own words: only the first is written, at the end.
        let half = |place: Position| u64::from_le(self.second_half(place.slot()).load(Ordering::Acquire));
        let ends = |i: &u16| half(used.forward(*i, self.size)) >> 48 & u64::from(DESC_NEXT) == 0;
        let chains = (0..places).filter(ends).count().max(1);
        let id = (half(avail.back(1, self.size)) >> 32) as u16;
        self.show_batch(inflight, id, [used, avail, avail]);
        chains as u16
    }

    /// Whether the driver wants an interrupt for the last `passed` places before `used`.
    #[inline]
    pub(super) fn wants_interrupt(&self, event_idx: bool, used: Position, passed: u16) -> bool {
        // SAFETY: mapped and aligned to 4 as long as the memory is held.
        let event = unsafe { AtomicU32::from_ptr(self.driver) }.load(Ordering::Relaxed);
        let event = u32::from_le(event);
        match (event >> 16) as u16 & 3 {
            EVENTS_DISABLE => false,
            EVENTS_AT_PLACE if event_idx => {
                let place = Position(event as u16);
                // Both in places since the beginning of this round.
                let at = match place.wrap() == used.wrap() {
                    true => place.slot(),
                    false => place.slot().wrapping_sub(self.size),
                };
                need_event(at, used.slot(), used.slot().wrapping_sub(passed))
            }
            _ => true,
        }
    }

    pub(super) fn set_device_events(&self, place: u16, flags: u16) {
        let event = u32::from(place) | u32::from(flags) << 16;
        // SAFETY: mapped and aligned to 4 as long as the memory is held.
        unsafe { AtomicU32::from_ptr(self.device) }.store(event.to_le(), Ordering::Relaxed);
    }
}
