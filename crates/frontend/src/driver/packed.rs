//! The driver's side of a packed virtqueue (virtio 1.2, 2.8).
//!
//! ```text
//!          used             avail
//!           ▼                 ▼
//!   ────────┬─────────────────┬────────
//!    free   │ with the device │  free        add ─▶ descriptors ─▶ publish: flags of the first
//!   ────────┴─────────────────┴────────
//! ```

use super::in_order::InOrder;
use super::{Buffer, DriverFeatures, INDIRECT, MAX_INDIRECT, Used};
use crate::memory::SharedMemory;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

const AVAIL: u16 = 1 << 7;
const USED: u16 = 1 << 15;
const WRITE: u16 = super::WRITE;
const EVENTS_ENABLE: u16 = 0;
const EVENTS_DISABLE: u16 = 1;
const EVENTS_AT_PLACE: u16 = 2;

/// Start of a queue: slot 0, wrap counter 1.
pub const FIRST: u16 = 0x8000;

/// A position in the ring: descriptor slot and wrap counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RingPosition {
    slot: u16,
    wrap: bool,
}

impl RingPosition {
    fn from_bits(bits: u16) -> Self {
        Self { slot: bits & 0x7fff, wrap: bits & 0x8000 != 0 }
    }

    fn bits(self) -> u16 {
        self.slot | u16::from(self.wrap) << 15
    }

    #[inline]
    fn forward(self, n: u16, size: u16) -> Self {
        let slot = self.slot + n;
        if slot < size { Self { slot, ..self } } else { Self { slot: slot - size, wrap: !self.wrap } }
    }

    #[inline]
    fn available(self) -> u16 {
        if self.wrap { AVAIL } else { USED }
    }

    #[inline]
    fn used(self) -> u16 {
        if self.wrap { AVAIL | USED } else { 0 }
    }
}

/// The driver's side of one packed virtqueue, in memory shared with the device.
#[derive(Debug)]
pub struct PackedDriver {
    memory: Arc<SharedMemory>,
    size: u16,
    features: DriverFeatures,
    desc: u64,
    driver_events: u64,
    device_events: u64,
    /// Guest address of the indirect tables, one per buffer id; 0 without the feature.
    tables: u64,
    /// Positions of the next chain to add, and of the next used descriptor.
    avail: RingPosition,
    used: RingPosition,
    free: u16,
    /// Free buffer ids.
    ids: Vec<u16>,
    /// Descriptors of the chain in flight with each buffer id, 0 for none.
    places: Vec<u16>,
    /// Slot and final flags of the first unpublished chain.
    unpublished: Option<(u16, u16)>,
    added: u16,
    /// With VIRTIO_F_IN_ORDER: the chains in flight.
    order: InOrder,
}

impl PackedDriver {
    /// Makes an empty queue with both sides at `base`: slot and, in bit 15, wrap counter.
    ///
    /// # Panics
    /// Invalid size or slot, or full memory.
    pub fn starting_at(memory: &Arc<SharedMemory>, size: u16, features: DriverFeatures, base: u16) -> Self {
        assert!((1..=0x8000).contains(&size), "a packed ring of {size} entries");
        let start = RingPosition::from_bits(base);
        assert!(start.slot < size, "place {} in a ring of {size} entries", start.slot);
        let entries = u64::from(size);
        let desc = memory.alloc(16 * entries, 64);
        let events = memory.alloc(128, 64);
        let tables = if features.indirect { memory.alloc(entries * 16 * MAX_INDIRECT as u64, 16) } else { 0 };
        let queue = Self {
            memory: Arc::clone(memory),
            size,
            features,
            desc,
            driver_events: events,
            device_events: events + 64,
            tables,
            avail: start,
            used: start,
            free: size,
            ids: (0..size).rev().collect(),
            places: vec![0; usize::from(size)],
            unpublished: None,
            added: 0,
            order: InOrder::default(),
        };
        // Marks all descriptors as used in the last round.
        for slot in 0..size {
            let round = RingPosition { slot, wrap: if slot < start.slot { start.wrap } else { !start.wrap } };
            queue.memory.word(queue.flags_addr(slot)).store(round.used().to_le(), Ordering::Relaxed);
        }
        queue
    }

    /// Returns the entries of the ring.
    pub fn size(&self) -> u16 {
        self.size
    }

    /// Returns the guest address of the descriptor ring.
    pub fn desc_addr(&self) -> u64 {
        self.desc
    }

    /// Returns the guest address of the driver's event suppression structure.
    pub fn avail_addr(&self) -> u64 {
        self.driver_events
    }

    /// Returns the guest address of the device's event suppression structure.
    pub fn used_addr(&self) -> u64 {
        self.device_events
    }

    /// See [`DriverQueue::base`](super::DriverQueue::base).
    ///
    /// # Panics
    /// The device completed a chain that is not in flight.
    pub fn base(&self) -> u32 {
        let (mut place, mut left) = (self.used, self.size - self.free);
        while left > 0 && self.is_used(place) {
            let id = u16::from_le(self.memory.word(self.desc_at(place.slot) + 12).load(Ordering::Relaxed));
            let places = match self.features.in_order {
                true => self.order.up_to(id).map(|id| self.places_of(id)).sum(),
                false => self.places_of(id),
            };
            place = place.forward(places, self.size);
            left -= places;
        }
        u32::from(place.bits()) | u32::from(place.bits()) << 16
    }

    /// Returns the number of descriptors not in use.
    pub fn free(&self) -> u16 {
        self.free
    }

    /// See [`DriverQueue::add`](super::DriverQueue::add).
    #[inline]
    pub fn add(&mut self, buffers: &[Buffer]) -> Option<u16> {
        if buffers.len() > usize::from(self.free) {
            return None;
        }
        let id = self.ids.pop()?;
        let mut place = self.avail;
        for (i, buffer) in buffers.iter().enumerate() {
            let flags = buffer.flags(i + 1 < buffers.len()) | place.available();
            self.put(place.slot, i == 0, *buffer, id, flags);
            place = place.forward(1, self.size);
        }
        self.mark_taken(id, buffers.len() as u16);
        Some(id)
    }

    /// See [`DriverQueue::add_indirect`](super::DriverQueue::add_indirect).
    ///
    /// # Panics
    /// The feature was not negotiated.
    pub fn add_indirect(&mut self, buffers: &[Buffer]) -> Option<u16> {
        assert!(self.features.indirect, "indirect descriptors were not negotiated");
        if self.free == 0 {
            return None;
        }
        let id = self.ids.pop()?;
        let addr = self.tables + u64::from(id) * 16 * MAX_INDIRECT as u64;
        for (i, buffer) in (0u16..).zip(buffers) {
            self.write_raw_desc(addr, i, buffer.addr, buffer.len, buffer.flags(false), 0);
        }
        let table = Buffer::readable(addr, 16 * buffers.len() as u32);
        self.put(self.avail.slot, true, table, id, INDIRECT | self.avail.available());
        self.mark_taken(id, 1);
        Some(id)
    }

    /// See [`DriverQueue::offer_raw`](super::DriverQueue::offer_raw).
    pub fn offer_raw(&mut self, addr: u64, len: u32, flags: u16, id: u16) {
        let flags = flags & !(AVAIL | USED) | self.avail.available();
        self.write_raw_desc(self.desc, self.avail.slot, addr, len, flags, id);
        self.avail = self.avail.forward(1, self.size);
    }

    /// See [`DriverQueue::publish`](super::DriverQueue::publish).
    #[inline]
    pub fn publish(&mut self) -> bool {
        let Some((slot, flags)) = self.unpublished.take() else {
            return false;
        };
        self.memory.word(self.flags_addr(slot)).store(flags.to_le(), Ordering::Release);
        let added = std::mem::take(&mut self.added);
        // The device enables kicks, then looks at the next descriptor; the driver makes it available, then
        // looks for enabled kicks.
        fence(Ordering::SeqCst);
        let event = |at| u16::from_le(self.memory.word(self.device_events + at).load(Ordering::Acquire));
        match event(2) & 3 {
            EVENTS_DISABLE => false,
            EVENTS_AT_PLACE if self.features.event_idx => {
                let place = RingPosition::from_bits(event(0));
                let new = self.avail.slot;
                let at = if place.wrap == self.avail.wrap { 0 } else { self.size };
                new.wrapping_sub(place.slot.wrapping_sub(at)).wrapping_sub(1) < added
            }
            _ => true,
        }
    }

    /// See [`DriverQueue::reap`](super::DriverQueue::reap).
    ///
    /// # Panics
    /// The device completed a chain that is not in flight.
    #[inline]
    pub fn reap(&mut self) -> Option<Used> {
        if self.features.in_order {
            return self.reap_in_order();
        }
        let Used { head, len } = self.next_used()?;
        self.free_chain(head);
        Some(Used { head, len })
    }

    /// Counts completed chains, up to `most`. Not for VIRTIO_F_IN_ORDER, where one entry may stand for
    /// several.
    pub fn completed(&self, most: u16) -> u16 {
        let (mut place, mut left, mut count) = (self.used, self.size - self.free, 0);
        while left > 0 && count < most && self.is_used(place) {
            let id = u16::from_le(self.memory.word(self.desc_at(place.slot) + 12).load(Ordering::Relaxed));
            let places = self.places_of(id);
            place = place.forward(places, self.size);
            left -= places;
            count += 1;
        }
        count
    }

    fn reap_in_order(&mut self) -> Option<Used> {
        let next = match self.order.take() {
            Some(next) => next,
            None => {
                let Used { head, len } = self.next_used()?;
                self.order.used_up_to(head, len);
                self.order.take()?
            }
        };
        self.free_chain(next.head);
        Some(next)
    }

    /// Reads the next used descriptor, unchecked.
    #[inline]
    fn next_used(&self) -> Option<Used> {
        if self.free == self.size || !self.is_used(self.used) {
            return None;
        }
        let mut half = [0; 8];
        self.memory.read(self.desc_at(self.used.slot) + 8, &mut half);
        let len = u32::from_le_bytes(std::array::from_fn(|i| half[i]));
        let [id, flags] = [4, 6].map(|at| u16::from_le_bytes([half[at], half[at + 1]]));
        Some(Used { head: id, len: if flags & WRITE != 0 { len } else { 0 } })
    }

    #[inline]
    fn free_chain(&mut self, id: u16) {
        let places = self.places_of(id);
        self.places[usize::from(id)] = 0;
        self.ids.push(id);
        self.free += places;
        self.used = self.used.forward(places, self.size);
    }

    /// See [`DriverQueue::disable_interrupts`](super::DriverQueue::disable_interrupts).
    pub fn disable_interrupts(&mut self) {
        self.memory.word(self.driver_events + 2).store(EVENTS_DISABLE.to_le(), Ordering::Relaxed);
    }

    /// See [`DriverQueue::enable_interrupts`](super::DriverQueue::enable_interrupts).
    pub fn enable_interrupts(&mut self) -> bool {
        let flags = if self.features.event_idx { EVENTS_AT_PLACE } else { EVENTS_ENABLE };
        self.memory.word(self.driver_events).store(self.used.bits().to_le(), Ordering::Relaxed);
        // Release: a device that sees the flags also sees the place.
        self.memory.word(self.driver_events + 2).store(flags.to_le(), Ordering::Release);
        fence(Ordering::SeqCst);
        self.free < self.size && self.is_used(self.used)
    }

    /// See [`DriverQueue::write_raw_desc`](super::DriverQueue::write_raw_desc).
    pub fn write_raw_desc(&self, table: u64, index: u16, addr: u64, len: u32, flags: u16, id: u16) {
        let mut bytes = [0; 14];
        bytes[..8].copy_from_slice(&addr.to_le_bytes());
        bytes[8..12].copy_from_slice(&len.to_le_bytes());
        bytes[12..].copy_from_slice(&id.to_le_bytes());
        let at = table + 16 * u64::from(index);
        self.memory.write(at, &bytes);
        match (at + 14).is_multiple_of(2) {
            true => self.memory.word(at + 14).store(flags.to_le(), Ordering::Release),
            false => self.memory.write(at + 14, &flags.to_le_bytes()),
        }
    }

    /// Writes a descriptor; the flags of a batch's first one wait for `publish`.
    #[inline]
    fn put(&mut self, slot: u16, head: bool, buffer: Buffer, id: u16, flags: u16) {
        let at = self.desc_at(slot);
        self.memory.write(at, &buffer.addr.to_le_bytes());
        self.memory.write(at + 8, &buffer.len.to_le_bytes());
        self.memory.word(at + 12).store(id.to_le(), Ordering::Relaxed);
        if head && self.unpublished.is_none() {
            self.unpublished = Some((slot, flags));
        } else {
            self.memory.word(at + 14).store(flags.to_le(), Ordering::Relaxed);
        }
    }

    #[inline]
    fn mark_taken(&mut self, id: u16, places: u16) {
        if self.features.in_order {
            self.order.add(id);
        }
        self.places[usize::from(id)] = places;
        self.free -= places;
        self.added += places;
        self.avail = self.avail.forward(places, self.size);
    }

    #[inline]
    fn is_used(&self, place: RingPosition) -> bool {
        let flags = u16::from_le(self.memory.word(self.flags_addr(place.slot)).load(Ordering::Acquire));
        flags & (AVAIL | USED) == place.used()
    }

    #[inline]
    fn places_of(&self, id: u16) -> u16 {
        let places = self.places.get(usize::from(id)).copied().unwrap_or(0);
        assert!(places > 0, "the device completed chain {id}, which is not in flight");
        places
    }

    #[inline]
    fn desc_at(&self, slot: u16) -> u64 {
        self.desc + 16 * u64::from(slot)
    }

    #[inline]
    fn flags_addr(&self, slot: u16) -> u64 {
        self.desc_at(slot) + 14
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::DriverQueue;

    const FEATURES: DriverFeatures =
        DriverFeatures { packed: true, event_idx: true, indirect: true, in_order: false };

    fn queue(size: u16) -> (Arc<SharedMemory>, PackedDriver) {
        let memory = Arc::new(SharedMemory::new(0, 0x10000).unwrap());
        let queue = PackedDriver::starting_at(&memory, size, FEATURES, FIRST);
        (memory, queue)
    }

    /// Completes a chain as a device does, unchecked.
    fn complete(memory: &SharedMemory, queue: &PackedDriver, place: u16, id: u16, len: u32) {
        let place = RingPosition::from_bits(place);
        let flags = place.used() | if len > 0 { WRITE } else { 0 };
        queue.write_raw_desc(queue.desc_addr(), place.slot, 0, len, flags, id);
        assert_eq!(memory.bytes(queue.flags_addr(place.slot), 2), flags.to_le_bytes());
    }

    #[test]
    fn a_chain_is_laid_out_as_the_standard_says() {
        let (memory, mut queue) = queue(3);
        let id = queue.add(&[Buffer::readable(0x1122, 12), Buffer::writable(0x3344, 5)]).unwrap() as u8;
        let first = [0x22, 0x11, 0, 0, 0, 0, 0, 0, 12, 0, 0, 0, id, 0];
        assert_eq!(memory.bytes(queue.desc_addr(), 14), first);
        assert_eq!(memory.bytes(queue.desc_addr() + 14, 2), [0, 0], "not published yet");
        assert_eq!(
            memory.bytes(queue.desc_addr() + 16, 16),
            [0x44, 0x33, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, id, 0, 0x82, 0]
        );
        assert!(queue.publish(), "the device did not say it polls");
        assert_eq!(memory.bytes(queue.desc_addr() + 14, 2), [0x81, 0]);
        let id = queue.add_indirect(&[Buffer::writable(0x55, 6)]).unwrap() as u8;
        assert!(queue.publish());
        assert_eq!(memory.bytes(queue.desc_addr() + 40, 8), [16, 0, 0, 0, id, 0, 0x84, 0]);
        assert_eq!(queue.add(&[Buffer::readable(0, 1)]), None, "the ring is full");
    }

    #[test]
    fn the_next_round_has_the_flags_the_other_way_round() {
        let (memory, mut queue) = queue(2);
        let buffer = Buffer::readable(0, 1);
        let a = queue.add(&[buffer, buffer]).unwrap();
        assert!(queue.publish());
        assert_eq!(queue.reap(), None);
        assert_eq!(queue.base(), 0x8000_8000);
        complete(&memory, &queue, FIRST, a, 9);
        assert_eq!(queue.base(), 0, "the second place is skipped");
        assert_eq!(queue.reap(), Some(Used { head: a, len: 9 }));
        let b = queue.add(&[buffer]).unwrap();
        assert!(queue.publish());
        assert_eq!(memory.bytes(queue.desc_addr() + 14, 2), [0, 0x80]);
        assert_eq!(queue.reap(), None);
        complete(&memory, &queue, 0, b, 0);
        assert_eq!(queue.reap(), Some(Used { head: b, len: 0 }));
        assert_eq!(queue.free(), 2);
    }

    #[test]
    fn a_kick_is_due_when_the_place_is_passed() {
        for (event, wanted) in [(FIRST, true), (FIRST + 1, true), (FIRST + 2, false), (0, false), (1, false)]
        {
            let (memory, mut queue) = queue(4);
            memory.word(queue.used_addr()).store(u16::to_le(event), Ordering::Relaxed);
            memory.word(queue.used_addr() + 2).store(EVENTS_AT_PLACE.to_le(), Ordering::Relaxed);
            queue.add(&[Buffer::readable(0, 1); 2]).unwrap();
            assert_eq!(queue.publish(), wanted, "{event:#x}");
        }
    }

    #[test]
    #[should_panic(expected = "not in flight")]
    fn completing_twice_is_noticed() {
        let (memory, mut queue) = queue(4);
        let id = queue.add(&[Buffer::readable(0, 1)]).unwrap();
        queue.add(&[Buffer::readable(0, 1)]).unwrap();
        complete(&memory, &queue, FIRST, id, 0);
        complete(&memory, &queue, FIRST + 1, id, 0);
        queue.reap();
        queue.reap();
    }

    #[test]
    fn a_queue_can_start_anywhere() {
        let memory = Arc::new(SharedMemory::new(0, 0x10000).unwrap());
        for base in [2, 0x8002, 0, 0x8000] {
            let mut queue =
                DriverQueue::starting_at(&memory, 3, DriverFeatures { packed: true, ..FEATURES }, base);
            assert_eq!(queue.base(), u32::from(base) * 0x1_0001);
            for _ in 0..3 {
                queue.add(&[Buffer::readable(0, 1)]).unwrap();
            }
            assert!(queue.publish());
            assert_eq!(queue.reap(), None);
            assert_eq!(queue.base(), u32::from(base) * 0x1_0001, "nothing came back");
        }
    }
}
