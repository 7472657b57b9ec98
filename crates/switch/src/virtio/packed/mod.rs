//! The device's side of a packed virtqueue (virtio 1.2, 2.8).
//!
//! ```text
//!            used            avail                 avail + looked
//!             ▼                ▼                      ▼
//!  ring  ...──┬────────────────┬──────────────────────┬──────────...
//!             │ popped: taken  │ pending, not popped  │ not looked at
//!  ...────────┴────────────────┴──────────────────────┴──────────...
//!             ▲                  available ──▶ pop ──▶ Chain
//!             └── show ◀── journal: ids and lengths ◀── complete, in any order
//! ```
//!
//! One ring for both sides. The driver puts chains into it, descriptor after descriptor; the device
//! puts used descriptors into the same places, one for each chain, and skips as many places as the
//! Two flags of each descriptor, compared with a wrap counter that flips in every round, say which side
//! owns it.
//!
//! A place is looked at only if it is not in flight and its former completion is published, so at most the
//! ring's size is in flight, whatever a driver writes over descriptors it gave away.
//!
//! With VIRTIO_F_IN_ORDER (virtio 1.2, 2.8.8), a transmit queue's chains in flight lie between two places,
//! so the region holds those instead of a mark for each chain, and one used descriptor gives a batch back.
//! Receive chains have lengths: each has a used descriptor and, until that is shown, an entry in the
//! journal.
//!
//! Methods are those of [`Queue`](super::Queue), which documents them.

mod flags;
mod parts;
mod position;
mod resume;
mod start;

use super::inflight::Record;
use super::layout::{RingLayout, locate};
use super::memory::GuestMemory;
use super::order::Journal;
use super::walker::{
    DESC_BYTES, DESC_NEXT, Descriptor, End, Links, SINGLE_MASK, Table, Walker, longest_chain, single,
};
use super::{Chain, QueueInflight, RingError, RingPart, Single};
use crate::prefetch;
use flags::{DESC_AVAIL, DESC_USED, PER_LINE};
use parts::{EVENTS_AT_PLACE, EVENTS_DISABLE, EVENTS_ENABLE, Parts};
use position::Position;
pub(super) use start::FIRST_BASE;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Largest ring.
const MAX_SIZE: u16 = 1 << 15;
/// New descriptors per call of `available`; the rest of a chain comes on top.
pub(super) const LOOK: u16 = 64;
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
            // Only its length ends a table.
            true => (next < table.entries).then_some(next as u16),
            false if desc.flags & DESC_NEXT == 0 => None,
            false => Some(if next < table.entries { next as u16 } else { 0 }),
        })
    }
}

/// The device's side of one packed virtqueue. Counts chains as a split queue counts entries, so that both
/// are used alike. Fields in this order: each batch needs the first ones.
#[derive(Debug)]
#[repr(C)]
pub(super) struct PackedQueue<O> {
    parts: Parts,
    pub(super) order: O,
    /// Next place to pop.
    avail: Position,
    /// Places from there that were available at the last look; 0 if no chain is pending.
    seen_places: u16,
    /// Chains that start in them, at least one place each.
    pub(super) pending: u16,
    /// Place of the next used descriptor to show to the driver.
    used: Position,
    /// Places from there that are given back.
    unpublished: u16,
    /// Places from there to `avail`: in flight.
    taken: u16,
    event_idx: bool,
    pub(super) interrupt_due: bool,
    /// Holds the memory.
    walker: Walker,
    pub(super) inflight: QueueInflight,
    pub(super) recovered: Option<u16>,
    layout: RingLayout,
}

// SAFETY: the pointers lead into shared mappings kept alive by `walker`; no thread owns them.
unsafe impl<O: Send> Send for PackedQueue<O> {}

impl<O: Journal> PackedQueue<O> {
    #[inline]
    pub(super) fn size(&self) -> u16 {
        self.parts.size
    }

    /// Returns the places that are neither in flight nor given back and unshown.
    #[inline]
    fn free(&self) -> u16 {
        self.parts.size - self.taken - self.unpublished
    }

    #[inline]
    pub(super) fn available(&mut self) -> Result<u16, RingError> {
        let (free, size) = (self.free(), self.parts.size);
        let most = longest_chain(size);
        let end = free.min(self.seen_places + LOOK);
        let (mut seen_places, mut pending) = (self.seen_places, self.pending);
        let mut place = self.avail.forward(seen_places, size);
        while seen_places < end {
            // Chains of one descriptor, as most are, up to the end of the ring.
            let most_here = (end - seen_places).min(size - place.slot());
            let here = self.parts.singles(place, most_here);
            seen_places += here;
            pending += here;
            place = place.forward(here, size);
            if here == most_here {
                continue;
            }
            let mut flags = self.parts.flags(place.slot());
            if !place.is_available(flags) {
                break;
            }
            let mut length = 1;
            place = place.forward(1, size);
            // The rest of a chain exists when its first descriptor does.
            while flags & DESC_NEXT != 0 && length < most && seen_places + length < free {
                flags = self.parts.flags(place.slot());
                place = place.forward(1, size);
                length += 1;
            }
            seen_places += length;
            pending += 1;
        }
        (self.seen_places, self.pending) = (seen_places, pending);
        Ok(pending)
    }

    #[inline]
    fn fetch_for_writing(&self, n: u16) {
        let mut i = 0;
        while i < n {
            let slot = self.avail.forward(i, self.parts.size).slot();
            prefetch::for_writing(self.parts.descriptor(slot));
            i += PER_LINE - slot % PER_LINE;
        }
    }

    #[inline]
    pub(super) fn pop_singles<const WRITE: bool>(&mut self, out: &mut [Single]) -> usize {
        let parts = self.parts;
        // Up to the end of the ring, since within it a place is a number and the round is the same.
        let here = self.free().min(parts.size - self.avail.slot());
        let most = out.len().min(usize::from(here)) as u16;
        // A receive queue's descriptors are looked at only when taken: one look further reads lines that
        // the driver is writing. A transmit queue's are seen before, at their arrival.
        let count = if WRITE { most } else { most.min(self.pending) };
        if WRITE || !O::IN_ORDER {
            // They are read, and soon written as used. In order only one of a batch is.
            self.fetch_for_writing(count);
        }
        let mask = u64::from(DESC_AVAIL | DESC_USED | SINGLE_MASK) << 48;
        let wanted = u64::from(self.avail.available_flags() | single::<WRITE>()) << 48;
        let first = self.avail.slot();
        let mut popped = 0;
        for place in &mut out[..usize::from(count)] {
            let slot = first + popped;
            // Acquire: the rest of the descriptor is read after these flags.
            let half = u64::from_le(parts.second_half(slot).load(Ordering::Acquire));
            if half & mask != wanted {
                break;
            }
            // SAFETY: the first half of one of the ring's descriptors, mapped and aligned as long
            // as `self` holds the memory; read once.
            let addr = u64::from_le(unsafe { parts.descriptor(slot).cast::<u64>().read_volatile() });
            let desc = InSequence::parse(addr, half);
            let Some(ptr) = self.walker.buffer::<WRITE>(desc.addr, desc.len) else { break };
            let Some(token) = self.order.take_single(popped, desc.link) else { break };
            if !O::IN_ORDER && !WRITE {
                self.inflight.mark(desc.link, 1);
            }
            *place = Single { ptr, len: desc.len, head: token };
            popped += 1;
        }
        self.order.count_singles(popped);
        self.step(popped, popped);
        usize::from(popped)
    }

    #[inline]
    pub(super) fn put_back(&mut self, last: &[Single]) {
        if !O::IN_ORDER && self.inflight.is_transmit() {
            // The last one first: a kill leaves those in flight that come first in the ring.
            last.iter().rev().for_each(|single| self.inflight.unmark(single.head));
        }
        self.order.forget_singles(last);
        let n = last.len() as u16;
        self.step_back(n, n);
    }

    #[inline]
    pub(super) fn rewind(&mut self, n: u16) {
        let (inflight, marked) = (&self.inflight, !O::IN_ORDER && self.inflight.is_transmit());
        let unmark = |id| {
            if marked {
                inflight.unmark(id);
            }
        };
        let places = self.order.forget(n, unmark);
        self.step_back(n, places);
    }

    /// Advances by `chains` popped chains of `places` places.
    #[inline]
    fn step(&mut self, chains: u16, places: u16) {
        self.avail = self.avail.forward(places, self.parts.size);
        self.taken += places;
        // A chain that grew since the look leaves fewer places to the others, and receive buffers may be
        // popped unseen.
        self.seen_places = self.seen_places.saturating_sub(places);
        self.pending = self.pending.saturating_sub(chains).min(self.seen_places);
        if self.pending == 0 {
            self.seen_places = 0;
        }
        self.commit_in_flight();
    }

    /// Makes the last `chains` of `places` places pending again.
    #[inline]
    fn step_back(&mut self, chains: u16, places: u16) {
        self.avail = self.avail.back(places, self.parts.size);
        self.taken -= places;
        self.seen_places += places;
        self.pending += chains;
        self.commit_in_flight();
    }

    /// Of a transmit queue in order: all popped chains are in flight until shown.
    #[inline]
    fn commit_in_flight(&self) {
        if O::IN_ORDER && self.inflight.is_transmit() {
            self.inflight.commit_all(self.used.0, self.used.0, self.avail.0);
        }
    }

    #[inline]
    pub(super) fn complete_all(&mut self, done: impl Iterator<Item = (u16, u32)>) {
        match self.inflight.is_transmit() {
            true => self.complete_in::<true>(done),
            false => self.complete_in::<false>(done),
        }
    }

    /// Writes nothing to the ring before the show: a used descriptor overwrites one that may have to be
    /// popped again.
    #[inline]
    fn complete_in<const TRANSMIT: bool>(&mut self, done: impl Iterator<Item = (u16, u32)>) {
        let (inflight, shown) = (&self.inflight, self.used.0);
        let (mut logged, mut freed) = (self.order.counts().unshown(), 0);
        self.order.complete(done, |record| {
            freed += record.places;
            if TRANSMIT && O::IN_ORDER {
                return;
            }
            inflight.log(logged, record.pack());
            logged += 1;
            if TRANSMIT {
                // In this order: the chain is marked until it is committed, so a kill strands none.
                inflight.commit(shown, logged);
                inflight.unmark(record.id);
            }
        });
        if !TRANSMIT {
            // All at once: no driver ever sees half of a frame.
            inflight.commit(shown, logged);
        }
        self.taken -= freed;
        self.unpublished += freed;
    }

    /// A kept chain is in flight until the store that commits all of them, with the journal.
    pub(super) fn complete_kept(&mut self, done: impl Iterator<Item = (u16, u32)> + Clone) {
        self.complete_in::<false>(done.clone());
        done.for_each(|(id, _)| self.inflight.unmark(id));
    }

    #[inline]
    pub(super) fn complete_run(&mut self, first: u16, n: u16) -> bool {
        let done = self.order.complete_run(first, n);
        if done {
            self.taken -= n;
            self.unpublished += n;
        }
        done
    }

    /// Shows all completions to the driver; returns the number of places, if any.
    #[inline]
    pub(super) fn show(&mut self) -> Option<u16> {
        if self.order.counts().unshown() == 0 {
            return None;
        }
        let (used, size) = (self.used, self.parts.size);
        let end = used.forward(self.unpublished, size);
        if let Some(last) = self.order.id_for_all() {
            self.parts.show_batch(&self.inflight, last, [used, end, self.avail]);
        } else {
            let mut records = self.order.unshown();
            let singles = usize::from(self.unpublished) == records.len();
            let first = records.next()?;
            let after = used.forward(Record::unpack(first).places, size);
            self.parts.use_slots(after, records, singles);
            // Release: the driver looks no further than the first. The others of the batch, and data in
            // buffers, are written before.
            // written to buffers, come before.
            self.parts.use_slot(used.slot(), position::used_half(first, used), Ordering::Release);
            self.inflight.commit(end.0, 0);
        }
        self.order.show();
        self.used = end;
        Some(std::mem::take(&mut self.unpublished))
    }

    /// Whether the driver wants an interrupt for the last `passed` places (virtio 1.2, 2.8.10).
    #[inline]
    pub(super) fn wants_interrupt(&self, passed: u16) -> bool {
        self.parts.wants_interrupt(self.event_idx, self.used, passed)
    }

    pub(super) fn suppress_kicks(&mut self) {
        self.parts.set_device_events(0, EVENTS_DISABLE);
    }

    /// Asks for a kick at the next descriptor.
    pub(super) fn ask_for_kicks(&mut self) {
        let flags = if self.event_idx { EVENTS_AT_PLACE } else { EVENTS_ENABLE };
        self.parts.set_device_events(self.first_unseen().0, flags);
    }

    /// Whether there are descriptors that `available` has not seen.
    pub(super) fn has_more(&self) -> bool {
        self.seen_places < self.free() && self.is_available(self.first_unseen())
    }

    /// The first place that `available` has not seen.
    fn first_unseen(&self) -> Position {
        self.avail.forward(self.seen_places, self.parts.size)
    }

    pub(super) fn base(&self) -> u32 {
        let used = self.used.forward(self.unpublished, self.parts.size);
        u32::from(self.avail.0) | u32::from(used.0) << 16
    }

    pub(super) fn remap(&mut self, memory: Arc<GuestMemory>) -> Result<(), RingError> {
        self.parts = Parts::translate(&memory, &self.layout)?;
        self.walker.remap(memory);
        Ok(())
    }

    #[inline]
    pub(super) fn pop<const WRITE: bool>(&mut self, chain: &mut Chain) -> Result<bool, RingError> {
        if self.pending == 0 {
            return Ok(false);
        }
        let (head, size) = (self.avail.slot(), self.parts.size);
        chain.reset(head);
        // Acquire: the descriptor is read after its ownership flags.
        if !self.is_available(self.avail) {
            return Err(RingError::TakenBack { head });
        }
        // SAFETY: the descriptors are mapped as long as `self` holds the memory.
        let ring = unsafe { Table::of_ring(self.parts.desc, size) };
        let walked = self.walker.walk::<InSequence, WRITE>(ring, head, longest_chain(size), chain);
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

    /// After an error of the walk: takes the chain at `avail` into flight if the error is not fatal.
    /// Returns the error to report.
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

    /// Takes the chain at `avail` into flight; returns the token for `complete`.
    #[inline]
    fn take<const WRITE: bool>(&mut self, head: u16, end: End) -> Result<u16, RingError> {
        let End { taken, link: id } = end;
        let (free, size) = (self.free(), self.parts.size);
        if taken > free {
            return Err(RingError::Loop { head, most: free });
        }
        if id >= size {
            return Err(RingError::BufferId { head, id, size });
        }
        let token = self.order.take(id, taken).ok_or(RingError::BufferIdInFlight { head, id })?;
        if !O::IN_ORDER && !WRITE {
            self.inflight.mark(id, taken);
        }
        self.step(1, taken);
        Ok(token)
    }

    /// Returns the end of the chain at slot `head`, whatever its buffers are.
    #[cold]
    fn find_end(&self, head: u16) -> Result<End, RingError> {
        let most = longest_chain(self.parts.size);
        let mut slot = head;
        for taken in 1..=most {
            // SAFETY: one of the ring's descriptors, mapped as long as `self` holds the memory.
            let desc = unsafe { Descriptor::read::<InSequence>(self.parts.descriptor(slot)) };
            if desc.flags & DESC_NEXT == 0 {
                return Ok(End { taken, link: desc.link });
            }
            slot = if slot + 1 < self.parts.size { slot + 1 } else { 0 };
        }
        Err(RingError::Loop { head, most })
    }

    /// Whether the driver made the descriptor at `place` available in this round (2.8.1).
    #[inline]
    fn is_available(&self, place: Position) -> bool {
        place.is_available(self.parts.flags(place.slot()))
    }
}
