//! The device's side of a packed virtqueue (virtio 1.2, 2.8).
//!
//! ```text
//!            used            avail                 avail + looked
//!             ▼                ▼                      ▼
//!  ring  ...──┬────────────────┬──────────────────────┬──────────...
//!             │ popped: taken  │ pending, not popped  │ not looked at
//!  ...────────┴────────────────┴──────────────────────┴──────────...
//!             ▲                  available ──▶ pop ──▶ Chain
//!             └── publish ◀── journal: ids and lengths ◀── complete, in any order
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

mod in_order;
mod left;
mod parts;
mod place;
mod start;

use super::inflight::Record;
use super::layout::{RingLayout, locate};
use super::memory::GuestMemory;
use super::span::prefetch_write;
use super::walker::{DESC_BYTES, DESC_NEXT, Descriptor, End, Links, Table, Walker, longest_chain};
use super::window::Window;
use super::{Chain, QueueInflight, RingError, RingPart, Single};
use parts::{EVENTS_AT_PLACE, EVENTS_DISABLE, EVENTS_ENABLE, Parts};
use place::{Place, single_record};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

/// Descriptor flag: with the driver's wrap counter made available (virtio 1.2, 2.8.1).
const DESC_AVAIL: u16 = 1 << 7;
/// Descriptor flag: with the device's wrap counter made used.
const DESC_USED: u16 = 1 << 15;
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
    /// Place of the next used descriptor that the driver is shown.
    used: Place,
    /// What was completed since, as [`Record`]s: `logged` of them.
    journal: Box<[u64]>,
    logged: u16,
    /// Places that they take, from `used` on.
    unpublished: u16,
    /// Places from there to `avail`: in flight.
    taken: u16,
    /// Nothing was published yet, and our predecessor may owe the driver an interrupt.
    interrupt_due: bool,
    /// Places of the chain in flight with each buffer id, 0 for none.
    places: Box<[u16]>,
    /// Buffer ids in the order of popping, at `popped` masked: for `rewind`.
    order: Box<[u16]>,
    /// With VIRTIO_F_IN_ORDER, instead of journal, places, order and their counters.
    window: Option<Window>,
    inflight: QueueInflight,
    /// Chains of a predecessor that were completed unsent; `None` if there was nothing to recover.
    recovered: Option<u16>,
    layout: RingLayout,
    /// Holds the memory.
    walker: Walker,
}

// SAFETY: the pointers lead into shared mappings kept alive by `walker`; no thread owns them.
unsafe impl Send for PackedQueue {}

impl PackedQueue {
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
            let most_here = (end - looked).min(self.size - place.slot());
            let here = self.parts.singles(place, most_here);
            looked += here;
            pending += here;
            place = place.forward(here, self.size);
            if here == most_here {
                continue;
            }
            let mut flags = self.parts.flags(place.slot());
            if !place.is_available(flags) {
                break;
            }
            let mut length = 1;
            place = place.forward(1, self.size);
            // The rest of a chain is there when its first descriptor is.
            while flags & DESC_NEXT != 0 && length < most && looked + length < free {
                flags = self.parts.flags(place.slot());
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
        match &self.window {
            Some(window) => window.in_flight(),
            None => self.popped.wrapping_sub(self.completed),
        }
    }

    #[cfg(test)]
    pub(super) fn head_of(&self, token: u16) -> u16 {
        self.window.as_ref().map_or(token, |window| Record::unpack(window.record(token)).id)
    }

    /// As [`Queue::held_back`](super::Queue::held_back).
    pub fn held_back(&self) -> Option<(u16, u16)> {
        let window = self.window.as_ref()?;
        Some((window.given, window.held_back()))
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
            prefetch_write(self.parts.descriptor(slot));
            i += PER_LINE - slot % PER_LINE;
        }
    }

    /// As [`SplitQueue::pop_singles`](super::SplitQueue::pop_singles).
    #[inline]
    pub fn pop_singles<const WRITE: bool>(&mut self, out: &mut [Single]) -> usize {
        match self.window {
            Some(_) => self.singles::<WRITE, true>(out),
            None => self.singles::<WRITE, false>(out),
        }
    }

    #[inline]
    fn singles<const WRITE: bool, const IN_ORDER: bool>(&mut self, out: &mut [Single]) -> usize {
        let free = self.size - self.taken - self.unpublished;
        // Up to the end of the ring: within it, a place is a number and a round has one look.
        let here = self.size - self.avail.slot();
        let count = self.pending.min(free).min(here).min(out.len().min(usize::from(u16::MAX)) as u16);
        if WRITE || !IN_ORDER {
            // They were read; soon they are written, as used. In order one is, of a batch. Receive
            // buffers that were seen behind them are the next batch's.
            let ahead = if WRITE { (2 * count).min(self.looked) } else { count };
            self.fetch_for_writing(ahead);
        }
        let (first, available) = (self.avail.slot(), self.avail.available_flags());
        let mut popped = 0;
        for single in &mut out[..usize::from(count)] {
            let slot = first + popped;
            // `available` has acquired what the driver wrote before these flags; this look is whether
            // it took the chain back.
            let half = u64::from_le(self.parts.second_half(slot).load(Ordering::Relaxed));
            // SAFETY: the first half of one of the ring's descriptors, mapped and aligned as long
            // as `self` holds the memory; read once.
            let addr = u64::from_le(unsafe { self.parts.descriptor(slot).cast::<u64>().read_volatile() });
            let desc = InSequence::parse(addr, half);
            if desc.flags & (DESC_AVAIL | DESC_USED) != available {
                break;
            }
            let head = if IN_ORDER {
                let Some(ptr) = self.walker.single::<WRITE>(desc) else { break };
                let Some(window) = &mut self.window else { break };
                if desc.link >= self.size {
                    break;
                }
                *single = Single { ptr, len: desc.len, head: window.push_record(single_record(half)) };
                popped += 1;
                continue;
            } else {
                desc.link
            };
            let Some(places @ 0) = self.places.get_mut(usize::from(head)) else { break };
            let Some(ptr) = self.walker.single::<WRITE>(desc) else { break };
            *places = 1;
            if !WRITE {
                self.inflight.mark(head, 1);
            }
            *single = Single { ptr, len: desc.len, head };
            popped += 1;
        }
        self.avail = self.avail.forward(popped, self.size);
        if IN_ORDER {
            if !WRITE && self.inflight.is_transmit() {
                self.commit_in_flight();
            }
        } else {
            self.popped = self.popped.wrapping_add(popped);
        }
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
        if let Some(window) = &mut self.window {
            window.forget(n);
            self.step_back(n, n);
            return;
        }
        // The last one first: a kill leaves those in flight that come before in the ring.
        for single in last.iter().rev() {
            if self.inflight.is_transmit() {
                self.inflight.unmark(single.head);
            }
            let places = std::mem::take(&mut self.places[usize::from(single.head)]);
            debug_assert!(places == 1, "putting chain {} back, which is not in flight alone", single.head);
        }
        self.popped = self.popped.wrapping_sub(n);
        self.avail = self.avail.back(n, self.size);
        self.taken -= n;
        self.looked += n;
        self.pending += n;
    }

    /// Makes the last `n` chains in order pending again, which took so many places.
    #[inline]
    fn step_back(&mut self, n: u16, places: u16) {
        self.avail = self.avail.back(places, self.size);
        self.taken -= places;
        self.looked += places;
        self.pending += n;
        if self.inflight.is_transmit() {
            self.commit_in_flight();
        }
    }

    /// Puts the last `n` popped chains back, for the next pops to find again; not for those of
    /// [`pop_singles`](Self::pop_singles).
    ///
    /// # Panics
    /// If fewer than `n` are in flight. Chains popped since must not have been completed.
    #[inline]
    pub fn rewind(&mut self, n: u16) {
        assert!(n <= self.in_flight(), "rewinding {n} chains of {} in flight", self.in_flight());
        if let Some(window) = &mut self.window {
            window.forget(n);
            let numbers = (0..n).map(|i| window.popped.wrapping_add(i));
            let places = numbers.map(|number| Record::unpack(window.record(number)).places).sum();
            self.step_back(n, places);
            return;
        }
        for _ in 0..n {
            self.popped = self.popped.wrapping_sub(1);
            let id = self.order[usize::from(self.popped) & (self.order.len() - 1)];
            if self.inflight.is_transmit() {
                self.inflight.unmark(id);
            }
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
        match (&self.window, self.inflight.is_transmit()) {
            (None, true) => self.complete_in::<true>(done),
            (None, false) => self.complete_in::<false>(done),
            (Some(_), true) => self.complete_in_order::<true>(done),
            (Some(_), false) => self.complete_in_order::<false>(done),
        }
    }

    /// As [`Queue::complete_singles`](super::Queue::complete_singles).
    #[inline]
    pub fn complete_singles(&mut self, done: &[Single]) {
        if !self.complete_run(done) {
            self.complete_all(done.iter().map(|single| (single.head, 0)));
        }
    }

    /// Nothing is written to the ring before [`publish`](Self::publish): a used descriptor takes the
    /// place of one that may have to be popped again.
    #[inline]
    fn complete_in<const TRANSMIT: bool>(&mut self, done: impl Iterator<Item = (u16, u32)>) {
        let (before, shown) = (self.logged, self.used.0);
        let (mut logged, mut freed) = (before, 0);
        for (id, len) in done {
            let places = std::mem::take(&mut self.places[usize::from(id)]);
            debug_assert!(places > 0, "completing chain {id}, which is not in flight");
            let record = Record { id, places, len }.pack();
            self.journal[usize::from(logged)] = record;
            self.inflight.log(logged, record);
            logged += 1;
            freed += places;
            if TRANSMIT {
                // In this order: until it is committed the chain is marked, so a kill strands none.
                self.inflight.commit(shown, logged);
                self.inflight.unmark(id);
            }
        }
        if !TRANSMIT {
            // All at once: no driver ever sees half of a frame.
            self.inflight.commit(shown, logged);
        }
        self.logged = logged;
        self.taken -= freed;
        self.unpublished += freed;
        self.completed = self.completed.wrapping_add(logged - before);
    }

    /// Shows the driver what was completed; returns whether it wants an interrupt
    /// (virtio 1.2, 2.8.10). Once per batch, not per chain: it is a full fence.
    ///
    /// The first call always returns `true`, as for a split queue.
    #[inline]
    #[must_use = "a driver that asked for an interrupt waits for it"]
    pub fn publish(&mut self) -> bool {
        let due = std::mem::take(&mut self.interrupt_due);
        let shown = if self.window.is_some() { self.show_in_order() } else { self.show_in_any_order() };
        let Some(place) = shown else { return due };
        self.used = place;
        let passed = std::mem::take(&mut self.unpublished);
        // The driver asks for an interrupt, then looks at its next descriptor; we write that, then
        // look whether it asked. Without the fence both could miss the other.
        fence(Ordering::SeqCst);
        due || self.parts.wants_interrupt(self.event_idx, place, passed)
    }

    /// Writes what was completed; returns the place after it.
    #[inline]
    fn show_in_any_order(&mut self) -> Option<Place> {
        let logged = usize::from(std::mem::take(&mut self.logged));
        let (&first, others) = self.journal[..logged].split_first()?;
        let (first_place, size) = (self.used, self.size);
        let after = first_place.forward(Record::unpack(first).places, size);
        let singles = usize::from(self.unpublished) == logged;
        let place = self.parts.use_slots(after, others.iter().copied(), singles);
        // Release: the driver looks no further than the first. The others of the batch, and what was
        // written to buffers, come before.
        self.parts.use_slot(first_place.slot(), place::used_half(first, first_place), Ordering::Release);
        self.inflight.commit(place.0, 0);
        Some(place)
    }

    /// Tells the driver not to kick: this queue is polled. A hint; kicks may still come.
    pub fn suppress_kicks(&mut self) {
        self.parts.set_device_events(0, EVENTS_DISABLE);
    }

    /// Asks the driver to kick when it adds a chain that [`available`](Self::available) has not
    /// seen. Returns whether there is one already: poll again then, a kick may not come.
    #[must_use = "sleeping although chains arrived may be for ever"]
    pub fn request_kicks(&mut self) -> bool {
        let next = self.avail.forward(self.looked, self.size);
        let flags = if self.event_idx { EVENTS_AT_PLACE } else { EVENTS_ENABLE };
        self.parts.set_device_events(next.0, flags);
        // The mirror image of the fence in `publish`.
        fence(Ordering::SeqCst);
        self.looked + self.taken + self.unpublished < self.size && self.is_available(next)
    }

    /// The number of the next chain to be popped, counted from the start modulo 2^16.
    #[inline]
    pub fn next_avail(&self) -> u16 {
        self.window.as_ref().map_or(self.popped, |window| window.popped)
    }

    /// Where the ring stands, as [`new`](Self::new) takes it (vhost-user,
    /// VHOST_USER_GET_VRING_BASE).
    pub fn base(&self) -> u32 {
        let used = self.used.forward(self.unpublished, self.size);
        u32::from(self.avail.0) | u32::from(used.0) << 16
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
            Err(error) => return Err(self.unusable::<WRITE>(head, error, chain)),
        };
        match self.take::<WRITE>(head, end) {
            Ok(token) => chain.set_head(token),
            Err(error) => {
                chain.reset(head);
                return Err(error);
            }
        }
        Ok(true)
    }

    /// After an error of the walk: takes the chain at `avail` into flight all the same if that is
    /// not fatal. Returns the error that is to be reported.
    #[cold]
    fn unusable<const WRITE: bool>(&mut self, head: u16, error: RingError, chain: &mut Chain) -> RingError {
        chain.reset(head);
        if error.is_fatal() {
            return error;
        }
        match self.find_end(head).and_then(|end| self.take::<WRITE>(head, end)) {
            Ok(token) => {
                chain.reset(token);
                error
            }
            Err(worse) => worse,
        }
    }

    /// Takes the chain at `avail` into flight; returns what `complete` wants of it.
    #[inline]
    fn take<const WRITE: bool>(&mut self, head: u16, end: End) -> Result<u16, RingError> {
        let End { taken, link: id } = end;
        let free = self.size - self.taken - self.unpublished;
        if taken > free {
            return Err(RingError::Loop { head, most: free });
        }
        let size = self.size;
        if id >= size {
            return Err(RingError::BufferId { head, id, size });
        }
        if self.window.is_some() {
            return Ok(self.take_in_order(id, taken));
        }
        let places = self.places.get_mut(usize::from(id)).ok_or(RingError::BufferId { head, id, size })?;
        if *places != 0 {
            return Err(RingError::BufferIdInFlight { head, id });
        }
        *places = taken;
        if !WRITE {
            self.inflight.mark(id, taken);
        }
        let at = usize::from(self.popped) & (self.order.len() - 1);
        self.order[at] = id;
        self.popped = self.popped.wrapping_add(1);
        self.step(taken);
        Ok(id)
    }

    /// One chain of so many places was popped.
    #[inline]
    fn step(&mut self, taken: u16) {
        self.avail = self.avail.forward(taken, self.size);
        self.taken += taken;
        // A chain that grew since it was seen leaves fewer places to the others.
        self.looked = self.looked.saturating_sub(taken);
        self.pending = (self.pending - 1).min(self.looked);
        if self.pending == 0 {
            self.looked = 0;
        }
    }

    /// Where the chain at slot `head` ends, whatever its buffers are.
    #[cold]
    fn find_end(&self, head: u16) -> Result<End, RingError> {
        let most = longest_chain(self.size);
        let mut slot = head;
        for taken in 1..=most {
            // SAFETY: one of the ring's descriptors, mapped as long as `self` holds the memory.
            let desc = unsafe { Descriptor::read::<InSequence>(self.parts.descriptor(slot)) };
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
        place.is_available(self.parts.flags(place.slot()))
    }
}
