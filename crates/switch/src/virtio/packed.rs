//! The device's side of a packed virtqueue (virtio 1.2, 2.8).
//!
//! ```text
//!            used            avail                 avail + looked
//!             ▼                ▼                      ▼
//!  ring  ...──┬────────────────┬──────────────────────┬──────────...
//!             │ popped: taken  │ pending, not popped  │ not looked at
//!  ...────────┴────────────────┴──────────────────────┴──────────...
//!        ▲ unpublished         available ──▶ pop ──▶ Chain
//!        └── complete, in any order: ids and lengths, one after the other
//! ```
//!
//! One ring for both sides. The driver puts chains into it, descriptor after descriptor; the device
//! puts used descriptors into the same places, one for each chain, and skips as many places as the
//! chain had. Two flags of each descriptor, compared with a wrap counter that flips in every round,
//! say whose it is.
//!
//! A place is looked at only if it is not in flight and what was there is published, so no more
//! than the ring's size is ever in flight, whatever a driver writes over descriptors it gave away.
//!
//! One thread at a time may call a queue: the worker that owns its port.

use super::layout::{Features, RingLayout, locate, need_event};
use super::memory::GuestMemory;
use super::span::prefetch_write;
use super::walker::{
    DESC_BYTES, DESC_NEXT, DESC_WRITE, Descriptor, End, Links, Table, Walker, longest_chain,
};
use super::{Chain, QueueInflight, RingError, RingPart, Single};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Descriptor flag: with the driver's wrap counter made available (virtio 1.2, 2.8.1).
const DESC_AVAIL: u16 = 1 << 7;
/// Descriptor flag: with the device's wrap counter made used.
const DESC_USED: u16 = 1 << 15;
/// Event suppression: notify always (virtio 1.2, 2.8.10).
const EVENTS_ENABLE: u16 = 0;
/// Event suppression: do not notify.
const EVENTS_DISABLE: u16 = 1;
/// Event suppression: notify when a place is passed.
const EVENTS_AT_PLACE: u16 = 2;
/// Largest ring.
const MAX_SIZE: u16 = 1 << 15;
/// New descriptors one call of `available` looks at; the rest of a chain comes on top.
pub(super) const LOOK: u16 = 64;
/// Descriptors in a cache line.
const PER_LINE: u16 = 4;

/// Descriptors lie one after the other, in the ring and in tables (virtio 1.2, 2.8.6 and 2.8.7).
struct InSequence;

impl Links for InSequence {
    const NESTING_IS_WRONG: bool = false;

    #[inline]
    fn parse(addr: u64, rest: u64) -> Descriptor {
        Descriptor { addr, len: rest as u32, link: (rest >> 32) as u16, flags: (rest >> 48) as u16 }
    }

    #[inline]
    fn next(table: &Table, index: u16, desc: Descriptor) -> Result<Option<u16>, u16> {
        let next = u32::from(index) + 1;
        Ok(match table.indirect {
            // Only its length says where a table ends.
            true => (next < table.entries).then_some(next as u16),
            false if desc.flags & DESC_NEXT == 0 => None,
            false => Some(if next < table.entries { next as u16 } else { 0 }),
        })
    }
}

/// A place in the ring, in one of two alternating rounds: the slot, and the wrap counter in bit 15,
/// as event structures and vhost-user write it. One number, not two: what was stored a moment ago
/// in pieces is slow to load as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place(u16);

impl Place {
    const WRAP: u16 = 1 << 15;

    /// Below the size.
    #[inline]
    fn slot(self) -> u16 {
        self.0 & !Self::WRAP
    }

    #[inline]
    fn wrap(self) -> bool {
        self.0 & Self::WRAP != 0
    }

    /// `n` places on, at most the size.
    #[inline]
    fn forward(self, n: u16, size: u16) -> Self {
        let slot = self.slot() + n;
        let wrap = self.0 & Self::WRAP;
        if slot < size { Self(slot | wrap) } else { Self((slot - size) | (wrap ^ Self::WRAP)) }
    }

    /// Whether `flags`, found here, say that the driver made it available in this round.
    #[inline]
    fn is_available(self, flags: u16) -> bool {
        flags & (DESC_AVAIL | DESC_USED) == self.available_flags()
    }

    #[inline]
    fn available_flags(self) -> u16 {
        if self.wrap() { DESC_AVAIL } else { DESC_USED }
    }

    /// `n` places back, at most the size.
    fn back(self, n: u16, size: u16) -> Self {
        let wrap = self.0 & Self::WRAP;
        match self.slot().checked_sub(n) {
            Some(slot) => Self(slot | wrap),
            None => Self((self.slot() + size - n) | (wrap ^ Self::WRAP)),
        }
    }

    /// Places from `before` to this one, if they are at most `size`.
    fn since(self, before: Self, size: u16) -> Option<u16> {
        match self.wrap() == before.wrap() {
            true => self.slot().checked_sub(before.slot()),
            false => (self.slot() + size).checked_sub(before.slot()).filter(|&n| n <= size),
        }
    }
}

/// The parts in this process. Aligned and mapped for their whole length as long as the
/// `GuestMemory` they were translated by lives.
#[derive(Clone, Copy, Debug)]
struct Parts {
    /// 16 bytes each: address, length, buffer id, flags.
    desc: *mut u8,
    /// Place, flags; 2 bytes each.
    driver: *mut u32,
    device: *mut u32,
}

impl Parts {
    fn translate(memory: &GuestMemory, layout: &RingLayout) -> Result<Self, RingError> {
        let size = u64::from(layout.size);
        Ok(Self {
            desc: locate(memory, RingPart::Descriptors, layout.desc, 16 * size, 16)?,
            driver: locate(memory, RingPart::DriverEvents, layout.avail, 4, 4)?.cast(),
            device: locate(memory, RingPart::DeviceEvents, layout.used, 4, 4)?.cast(),
        })
    }
}

/// The device's side of one packed virtqueue. Counts chains as a split queue counts entries, so
/// that both are used alike.
#[derive(Debug)]
pub struct PackedQueue {
    parts: Parts,
    size: u16,
    event_idx: bool,
    /// Next place to pop.
    avail: Place,
    /// Places from there that were seen to be available; none if no chain is pending.
    looked: u16,
    /// Chains that start in them, at least one place each.
    pending: u16,
    /// Chains popped since the start, modulo 2^16.
    popped: u16,
    /// Chains completed since the start, modulo 2^16.
    completed: u16,
    /// Next place for a used descriptor.
    used: Place,
    /// Places between `used` and `avail`: in flight.
    taken: u16,
    /// Places before `used` that the driver was not shown.
    unpublished: u16,
    /// The first used descriptor of the batch, which shows all of them: slot and second half.
    first: Option<(u16, u64)>,
    /// Nothing was published yet, and our predecessor may owe the driver an interrupt.
    interrupt_due: bool,
    /// Places of the chain in flight with each buffer id, 0 for none.
    places: Box<[u16]>,
    /// Buffer ids in the order of popping, at `popped` masked: for `rewind`.
    order: Box<[u16]>,
    inflight: QueueInflight,
    /// Chains of a predecessor that were completed unsent; `None` if there was nothing to recover.
    recovered: Option<u16>,
    layout: RingLayout,
    /// Holds the memory.
    walker: Walker,
}

/// The flags of a used descriptor in the round of `place`.
#[inline]
fn used_flags(place: Place) -> u16 {
    if place.wrap() { DESC_AVAIL | DESC_USED } else { 0 }
}

// SAFETY: the pointers lead into shared mappings kept alive by `walker`; no thread owns them.
unsafe impl Send for PackedQueue {}

impl PackedQueue {
    /// What a queue that was never started starts from: both places first, both counters 1.
    pub const FIRST: u32 = 0x8000_8000;

    /// Takes a queue into service. `base` says where the ring stands (vhost-user, "Vring state"):
    /// bits 0 to 14 the next available place, bit 15 its wrap counter, bits 16 to 31 the same for
    /// the next used one. Front ends that know only the first, DPDK's for one, leave the upper half
    /// zero, which then means the same as the lower.
    ///
    /// # Errors
    /// [`RingError::PackedSize`], [`RingError::PartUnmapped`], [`RingError::PartUnaligned`],
    /// [`RingError::PackedBase`].
    pub fn new(
        memory: Arc<GuestMemory>,
        layout: RingLayout,
        base: u32,
        features: Features,
    ) -> Result<Self, RingError> {
        Self::with_inflight(memory, layout, base, features, None)
    }

    /// As [`Queue::with_inflight`](super::Queue::with_inflight).
    ///
    /// # Errors
    /// As there.
    pub fn with_inflight(
        memory: Arc<GuestMemory>,
        layout: RingLayout,
        base: u32,
        features: Features,
        inflight: Option<QueueInflight>,
    ) -> Result<Self, RingError> {
        let size = layout.size;
        if !(1..=MAX_SIZE).contains(&size) {
            return Err(RingError::PackedSize(size));
        }
        let parts = Parts::translate(&memory, &layout)?;
        let avail = Place(base as u16);
        let used = if base >> 16 == 0 { avail } else { Place((base >> 16) as u16) };
        let taken = avail.since(used, size).filter(|_| avail.slot() < size && used.slot() < size);
        let taken = taken.ok_or(RingError::PackedBase { base, size })?;
        Ok(Self {
            parts,
            size,
            event_idx: features.event_idx,
            avail,
            looked: 0,
            pending: 0,
            popped: 0,
            completed: 0,
            used,
            taken,
            unpublished: 0,
            first: None,
            interrupt_due: true,
            places: vec![0; usize::from(size)].into(),
            order: vec![0; usize::from(size).next_power_of_two()].into(),
            inflight: inflight.unwrap_or_else(|| QueueInflight::private(size)),
            recovered: None,
            layout,
            walker: Walker::new(memory, features.indirect),
        })
    }

    /// As [`Queue::recovered`](super::Queue::recovered).
    pub fn recovered(&self) -> Option<u16> {
        self.recovered
    }

    /// As [`Queue::retire`](super::Queue::retire).
    pub fn retire(self) -> u32 {
        let base = self.base();
        self.inflight.leave(base);
        base
    }

    /// Looks for chains the driver added; returns how many can be popped. This is the only look:
    /// chains added later are popped after the next call, and so are those of a burst that go
    /// beyond what one call looks at: 64 descriptors.
    #[inline]
    pub fn available(&mut self) -> u16 {
        let free = self.size - self.taken - self.unpublished;
        let most = longest_chain(self.size);
        let end = free.min(self.looked + LOOK);
        let (mut looked, mut pending) = (self.looked, self.pending);
        let mut place = self.avail.forward(looked, self.size);
        while looked < end {
            // Chains of one descriptor, as most are, up to the end of the ring.
            let alone = place.available_flags();
            let most_here = (end - looked).min(self.size - place.slot());
            let here = (0..most_here)
                .take_while(|i| self.flags(place.slot() + i) & (DESC_AVAIL | DESC_USED | DESC_NEXT) == alone);
            let here = here.count() as u16;
            looked += here;
            pending += here;
            place = place.forward(here, self.size);
            if here == most_here {
                continue;
            }
            let mut flags = self.flags(place.slot());
            if !place.is_available(flags) {
                break;
            }
            let mut length = 1;
            place = place.forward(1, self.size);
            // The rest of a chain is there when its first descriptor is.
            while flags & DESC_NEXT != 0 && length < most && looked + length < free {
                flags = self.flags(place.slot());
                place = place.forward(1, self.size);
                length += 1;
            }
            looked += length;
            pending += 1;
        }
        (self.looked, self.pending) = (looked, pending);
        pending
    }

    /// Chains that can be popped without another look at the ring: those found by
    /// [`available`](Self::available), and those put back.
    #[inline]
    pub fn pending(&self) -> u16 {
        self.pending
    }

    /// Chains popped and not completed.
    #[inline]
    pub fn in_flight(&self) -> u16 {
        self.popped.wrapping_sub(self.completed)
    }

    /// Entries of the ring.
    #[inline]
    pub fn size(&self) -> u16 {
        self.size
    }

    /// As [`SplitQueue::pop_readable`](super::SplitQueue::pop_readable).
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn pop_readable(&mut self, chain: &mut Chain) -> Result<bool, RingError> {
        self.pop::<false>(chain)
    }

    /// As [`SplitQueue::pop_writable`](super::SplitQueue::pop_writable).
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn pop_writable(&mut self, chain: &mut Chain) -> Result<bool, RingError> {
        self.pop::<true>(chain)
    }

    #[inline]
    fn fetch_for_writing(&self, n: u16) {
        let mut i = 0;
        while i < n {
            let slot = self.avail.forward(i, self.size).slot();
            prefetch_write(self.descriptor(slot));
            i += PER_LINE - slot % PER_LINE;
        }
    }

    /// As [`SplitQueue::pop_singles`](super::SplitQueue::pop_singles).
    #[inline]
    pub fn pop_singles<const WRITE: bool>(&mut self, out: &mut [Single]) -> usize {
        let free = self.size - self.taken - self.unpublished;
        // Up to the end of the ring: within it, a place is a number and a round has one look.
        let here = self.size - self.avail.slot();
        let count = self.pending.min(free).min(here).min(out.len().min(usize::from(u16::MAX)) as u16);
        // They were read; soon they are written, as used.
        self.fetch_for_writing(count);
        let (first, available) = (self.avail.slot(), self.avail.available_flags());
        let mut popped = 0;
        for single in &mut out[..usize::from(count)] {
            let slot = first + popped;
            // Acquire: the address is read after the flags that say whose it is.
            let half = u64::from_le(self.second_half(slot).load(Ordering::Acquire));
            // SAFETY: the first half of one of the ring's descriptors, mapped and aligned as long
            // as `self` holds the memory; read once.
            let addr = u64::from_le(unsafe { self.descriptor(slot).cast::<u64>().read_volatile() });
            let desc = InSequence::parse(addr, half);
            if desc.flags & (DESC_AVAIL | DESC_USED) != available {
                break;
            }
            let Some(places @ 0) = self.places.get_mut(usize::from(desc.link)) else { break };
            let Some(ptr) = self.walker.single::<WRITE>(desc) else { break };
            *places = 1;
            *single = Single { ptr, len: desc.len, head: desc.link };
            popped += 1;
        }
        self.avail = self.avail.forward(popped, self.size);
        self.popped = self.popped.wrapping_add(popped);
        self.taken += popped;
        // As `take` does it, chain by chain.
        self.looked = self.looked.saturating_sub(popped);
        self.pending = (self.pending - popped).min(self.looked);
        if self.pending == 0 {
            self.looked = 0;
        }
        usize::from(popped)
    }

    /// As [`SplitQueue::put_back`](super::SplitQueue::put_back).
    #[inline]
    pub fn put_back(&mut self, last: &[Single]) {
        let n = last.len() as u16;
        for single in last {
            let places = std::mem::take(&mut self.places[usize::from(single.head)]);
            debug_assert!(places == 1, "putting chain {} back, which is not in flight alone", single.head);
        }
        self.popped = self.popped.wrapping_sub(n);
        self.avail = self.avail.back(n, self.size);
        self.taken -= n;
        self.looked += n;
        self.pending += n;
    }

    /// Puts the last `n` popped chains back, for the next pops to find again; not for those of
    /// [`pop_singles`](Self::pop_singles).
    ///
    /// # Panics
    /// If fewer than `n` are in flight. Chains popped since must not have been completed.
    #[inline]
    pub fn rewind(&mut self, n: u16) {
        assert!(n <= self.in_flight(), "rewinding {n} chains of {} in flight", self.in_flight());
        for _ in 0..n {
            self.popped = self.popped.wrapping_sub(1);
            let id = self.order[usize::from(self.popped) & (self.order.len() - 1)];
            let places = std::mem::take(&mut self.places[usize::from(id)]);
            debug_assert!(places > 0, "rewinding chain {id}, which was completed");
            self.avail = self.avail.back(places, self.size);
            self.taken -= places;
            self.looked += places;
        }
        self.pending += n;
    }

    /// Gives a popped chain back, `len` bytes of it written (0 in a transmit queue). Chains may
    /// be completed in any order. The driver sees it after [`publish`](Self::publish).
    ///
    /// # Panics
    /// If no chain can have this id.
    #[inline]
    pub fn complete(&mut self, id: u16, len: u32) {
        self.complete_all(std::iter::once((id, len)));
    }

    /// As [`complete`](Self::complete), for many.
    #[inline]
    pub fn complete_all(&mut self, done: impl Iterator<Item = (u16, u32)>) {
        let size = self.size;
        let (mut slot, mut round) = (self.used.slot(), used_flags(self.used));
        let (mut first, mut shown, mut count) = (self.first, 0, 0u16);
        for (id, len) in done {
            let places = std::mem::take(&mut self.places[usize::from(id)]);
            debug_assert!(places > 0, "completing chain {id}, which is not in flight");
            // A length counts only with this flag (2.8.4).
            let flags = if len > 0 { round | DESC_WRITE } else { round };
            let half = u64::from(len) | u64::from(id) << 32 | u64::from(flags) << 48;
            match first {
                // The driver looks no further than the first, which is written last.
                Some(_) => self.second_half(slot).store(half.to_le(), Ordering::Relaxed),
                None => first = Some((slot, half)),
            }
            slot += places;
            if slot >= size {
                slot -= size;
                round ^= DESC_AVAIL | DESC_USED;
            }
            shown += places;
            count = count.wrapping_add(1);
        }
        self.first = first;
        self.used = self.used.forward(shown, size);
        self.taken -= shown;
        self.unpublished += shown;
        self.completed = self.completed.wrapping_add(count);
    }

    /// Shows the driver what was completed; returns whether it wants an interrupt
    /// (virtio 1.2, 2.8.10). Once per batch, not per chain: it is a full fence.
    ///
    /// The first call always returns `true`, as for a split queue.
    #[inline]
    #[must_use = "a driver that asked for an interrupt waits for it"]
    pub fn publish(&mut self) -> bool {
        let due = std::mem::take(&mut self.interrupt_due);
        let Some((slot, half)) = self.first.take() else { return due };
        // Release: the others of the batch, and what was written to buffers, come before.
        self.second_half(slot).store(half.to_le(), Ordering::Release);
        let passed = std::mem::take(&mut self.unpublished);
        // The driver asks for an interrupt, then looks at its next descriptor; we write that, then
        // look whether it asked. Without the fence both could miss the other.
        fence(Ordering::SeqCst);
        due || self.wants_interrupt(passed)
    }

    /// Whether the driver asked to be told of the last `passed` places before `used`.
    #[inline]
    fn wants_interrupt(&self, passed: u16) -> bool {
        // SAFETY: mapped and aligned to 4 as long as `self` holds the memory.
        let event = unsafe { AtomicU32::from_ptr(self.parts.driver) }.load(Ordering::Relaxed);
        let event = u32::from_le(event);
        match (event >> 16) as u16 & 3 {
            EVENTS_DISABLE => false,
            EVENTS_AT_PLACE if self.event_idx => {
                let place = Place(event as u16);
                // Both in places since the beginning of this round.
                let at = match place.wrap() == self.used.wrap() {
                    true => place.slot(),
                    false => place.slot().wrapping_sub(self.size),
                };
                need_event(at, self.used.slot(), self.used.slot().wrapping_sub(passed))
            }
            _ => true,
        }
    }

    /// Tells the driver not to kick: this queue is polled. A hint; kicks may still come.
    pub fn suppress_kicks(&mut self) {
        self.set_device_events(0, EVENTS_DISABLE);
    }

    /// Asks the driver to kick when it adds a chain that [`available`](Self::available) has not
    /// seen. Returns whether there is one already: poll again then, a kick may not come.
    #[must_use = "sleeping although chains arrived may be for ever"]
    pub fn request_kicks(&mut self) -> bool {
        let next = self.avail.forward(self.looked, self.size);
        let flags = if self.event_idx { EVENTS_AT_PLACE } else { EVENTS_ENABLE };
        self.set_device_events(next.0, flags);
        // The mirror image of the fence in `publish`.
        fence(Ordering::SeqCst);
        self.looked + self.taken + self.unpublished < self.size && self.is_available(next)
    }

    /// The number of the next chain to be popped, counted from the start modulo 2^16.
    #[inline]
    pub fn next_avail(&self) -> u16 {
        self.popped
    }

    /// Where the ring stands, as [`new`](Self::new) takes it (vhost-user,
    /// VHOST_USER_GET_VRING_BASE).
    pub fn base(&self) -> u32 {
        u32::from(self.avail.0) | u32::from(self.used.0) << 16
    }

    /// As [`SplitQueue::remap`](super::SplitQueue::remap).
    ///
    /// # Errors
    /// As there.
    pub fn remap(&mut self, memory: Arc<GuestMemory>) -> Result<(), RingError> {
        self.parts = Parts::translate(&memory, &self.layout)?;
        self.walker.remap(memory);
        Ok(())
    }

    #[inline]
    fn pop<const WRITE: bool>(&mut self, chain: &mut Chain) -> Result<bool, RingError> {
        if self.pending == 0 {
            return Ok(false);
        }
        let head = self.avail.slot();
        chain.reset(head);
        // Acquire: the descriptor is read after the flags that say whose it is.
        if !self.is_available(self.avail) {
            return Err(RingError::TakenBack { head });
        }
        // SAFETY: the descriptors are mapped as long as `self` holds the memory.
        let ring = unsafe { Table::of_ring(self.parts.desc, self.size) };
        let walked = self.walker.walk::<InSequence, WRITE>(ring, head, longest_chain(self.size), chain);
        let end = match walked {
            Ok(end) => end,
            Err(error) => return Err(self.unusable(head, error, chain)),
        };
        if let Err(error) = self.take(head, end) {
            chain.reset(head);
            return Err(error);
        }
        chain.set_head(end.link);
        Ok(true)
    }

    /// After an error of the walk: takes the chain at `avail` into flight all the same if that is
    /// not fatal. Returns the error that is to be reported.
    #[cold]
    fn unusable(&mut self, head: u16, error: RingError, chain: &mut Chain) -> RingError {
        chain.reset(head);
        if error.is_fatal() {
            return error;
        }
        match self.find_end(head).and_then(|end| self.take(head, end).map(|()| end.link)) {
            Ok(id) => {
                chain.reset(id);
                error
            }
            Err(worse) => worse,
        }
    }

    /// Takes the chain at `avail` into flight.
    #[inline]
    fn take(&mut self, head: u16, end: End) -> Result<(), RingError> {
        let End { taken, link: id } = end;
        let free = self.size - self.taken - self.unpublished;
        if taken > free {
            return Err(RingError::Loop { head, most: free });
        }
        let size = self.size;
        let places = self.places.get_mut(usize::from(id)).ok_or(RingError::BufferId { head, id, size })?;
        if *places != 0 {
            return Err(RingError::BufferIdInFlight { head, id });
        }
        *places = taken;
        let at = usize::from(self.popped) & (self.order.len() - 1);
        self.order[at] = id;
        self.popped = self.popped.wrapping_add(1);
        self.avail = self.avail.forward(taken, size);
        self.taken += taken;
        // A chain that grew since it was seen leaves fewer places to the others.
        self.looked = self.looked.saturating_sub(taken);
        self.pending = (self.pending - 1).min(self.looked);
        if self.pending == 0 {
            self.looked = 0;
        }
        Ok(())
    }

    /// Where the chain at slot `head` ends, whatever its buffers are.
    #[cold]
    fn find_end(&self, head: u16) -> Result<End, RingError> {
        let most = longest_chain(self.size);
        let mut slot = head;
        for taken in 1..=most {
            // SAFETY: one of the ring's descriptors, mapped as long as `self` holds the memory.
            let desc = unsafe { Descriptor::read::<InSequence>(self.descriptor(slot)) };
            if desc.flags & DESC_NEXT == 0 {
                return Ok(End { taken, link: desc.link });
            }
            slot = if slot + 1 < self.size { slot + 1 } else { 0 };
        }
        Err(RingError::Loop { head, most })
    }

    /// Whether the driver made the descriptor at `place` available in this round (2.8.1).
    #[inline]
    fn is_available(&self, place: Place) -> bool {
        place.is_available(self.flags(place.slot()))
    }

    #[inline]
    fn flags(&self, slot: u16) -> u16 {
        // Acquire: whatever is read because of these flags is read after them.
        (u64::from_le(self.second_half(slot).load(Ordering::Acquire)) >> 48) as u16
    }

    /// Length, buffer id and flags of the descriptor at `slot`: what the device writes.
    #[inline]
    fn second_half(&self, slot: u16) -> &AtomicU64 {
        // SAFETY: in one of the ring's descriptors, mapped and aligned to 16 as long as `self`
        // holds the memory; a driver writing meanwhile is no conflict, the access is atomic.
        unsafe { AtomicU64::from_ptr(self.descriptor(slot).cast::<u64>().wrapping_add(1)) }
    }

    #[inline]
    fn descriptor(&self, slot: u16) -> *mut u8 {
        debug_assert!(slot < self.size);
        self.parts.desc.wrapping_add(usize::from(slot) * DESC_BYTES as usize)
    }

    fn set_device_events(&self, place: u16, flags: u16) {
        let event = u32::from(place) | u32::from(flags) << 16;
        // SAFETY: mapped and aligned to 4 as long as `self` holds the memory.
        unsafe { AtomicU32::from_ptr(self.parts.device) }.store(event.to_le(), Ordering::Relaxed);
    }
}
