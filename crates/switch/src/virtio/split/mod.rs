//! The device's side of a split virtqueue (virtio 1.2, 2.7).
//!
//! ```text
//!                              ┌── pending ──┐   what `available` saw
//!   available  ┌───────────────┴─────────────┼──────────────────┐
//!   entries    │ not popped                  │ popped: a Chain  │   complete, in any order
//!              └─────────────────────────────┴──────────────────┘          │
//!                                            ▲ popped                      ▼
//!   used entries                                             given, then shown
//! ```
//!
//! Indices count modulo 2^16 and the size divides 2^16, so a masked index is a slot. Methods are those of
//! [`Queue`](super::Queue), which documents them.

mod parts;
mod resume;
mod start;

use super::inflight::Record;
use super::layout::{RingLayout, need_event};
use super::memory::GuestMemory;
use super::order::Order;
use super::walker::{DESC_NEXT, Descriptor, Links, SINGLE_MASK, Table, Walker, longest_chain, single};
use super::{Chain, QueueInflight, RingError, Single};
use crate::prefetch;
use parts::Parts;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Descriptors name their followers (virtio 1.2, 2.7.5).
struct ByName;

impl Links for ByName {
    const NESTING_IS_WRONG: bool = true;

    #[inline]
    fn parse(addr: u64, rest: u64) -> Descriptor {
        Descriptor { addr, len: rest as u32, flags: (rest >> 32) as u16, link: (rest >> 48) as u16 }
    }

    #[inline]
    fn next(table: &Table, _: u16, desc: Descriptor) -> Result<Option<u16>, u16> {
        match desc {
            Descriptor { flags, .. } if flags & DESC_NEXT == 0 => Ok(None),
            Descriptor { link, .. } if u32::from(link) >= table.entries => Err(link),
            Descriptor { link, .. } => Ok(Some(link)),
        }
    }
}

/// The device's side of one split virtqueue. Fields in this order: each batch needs the first ones.
#[derive(Debug)]
#[repr(C)]
pub(super) struct SplitQueue<O> {
    parts: Parts,
    /// Its counts are the ring's indices.
    pub(super) order: O,
    /// Entries that can be popped.
    pub(super) pending: u16,
    event_idx: bool,
    pub(super) interrupt_due: bool,
    /// Holds the memory.
    walker: Walker,
    pub(super) inflight: QueueInflight,
    pub(super) recovered: Option<u16>,
    layout: RingLayout,
}

// SAFETY: the pointers lead into shared mappings kept alive by `walker`; no thread owns them.
unsafe impl<O: Send> Send for SplitQueue<O> {}

impl<O: Order> SplitQueue<O> {
    #[inline]
    pub(super) fn size(&self) -> u16 {
        self.parts.size
    }

    /// Every entry available or in flight is one of the ring's, so at most its size is in flight.
    #[inline]
    pub(super) fn available(&mut self) -> Result<u16, RingError> {
        // Acquire: entries and descriptors are read after the index that covers them.
        let avail = self.parts.avail_index(Ordering::Acquire);
        let (counts, size) = (self.order.counts(), self.parts.size);
        let used = counts.shown;
        // Checks both ends: an index that runs backwards past the popped entries is a lie as well. At most
        // as many as the ring has beyond the unshown ones, or 32,768 entries could be made available twice.
        let unshown = counts.popped.wrapping_sub(used);
        let pending = avail.wrapping_sub(counts.popped);
        if avail.wrapping_sub(used) > size || pending > size.saturating_sub(unshown) {
            return Err(RingError::AvailableIndex { avail, used, size });
        }
        self.pending = pending;
        Ok(pending)
    }

    #[inline]
    pub(super) fn pop_singles<const WRITE: bool>(&mut self, out: &mut [Single]) -> usize {
        // Looks for receive buffers only when they are wanted. `available` reports a wrong index.
        if WRITE && usize::from(self.pending) < out.len() && self.available().is_err() {
            return 0;
        }
        let next = self.order.counts().popped;
        let count = out.len().min(self.pending.into());
        for (i, single) in (0..).zip(&mut out[..count]) {
            single.head = self.parts.avail_entry(next.wrapping_add(i));
            // A head beyond the table is refused below; this is only a hint.
            prefetch::for_reading(self.parts.descriptor(single.head));
        }
        let mut popped = 0u16;
        for place in &mut out[..count] {
            let head = place.head;
            if head >= self.parts.size {
                break;
            }
            // SAFETY: the head is below the size, and the table is mapped for all its entries.
            let desc = unsafe { Descriptor::read::<ByName>(self.parts.descriptor(head)) };
            if desc.flags & SINGLE_MASK != single::<WRITE>() {
                break;
            }
            let Some(ptr) = self.walker.buffer::<WRITE>(desc.addr, desc.len) else { break };
            let Some(token) = self.order.take_single(popped, head) else { break };
            *place = Single { ptr, len: desc.len, head: token };
            if !O::IN_ORDER && !WRITE {
                self.inflight.mark(head, 1);
            }
            popped += 1;
        }
        self.order.count_singles(popped);
        self.pending -= popped;
        self.commit_in_flight();
        popped.into()
    }

    /// Of a transmit queue in order: popped chains are in flight until shown.
    #[inline]
    fn commit_in_flight(&self) {
        if O::IN_ORDER && self.inflight.is_transmit() {
            self.inflight.commit(self.order.counts().popped, 0);
        }
    }

    #[inline]
    pub(super) fn put_back(&mut self, last: &[Single]) {
        self.order.forget_singles(last);
        self.pending += last.len() as u16;
        if !O::IN_ORDER && self.inflight.is_transmit() {
            // The last one first: a kill leaves those in flight that come first in the ring.
            last.iter().rev().for_each(|single| self.inflight.unmark(single.head));
        }
        self.commit_in_flight();
    }

    #[inline]
    pub(super) fn rewind(&mut self, n: u16) {
        self.order.forget(n, |_| {});
        self.pending += n;
        if !O::IN_ORDER && self.inflight.is_transmit() {
            let next = self.order.counts().popped;
            // A driver that rewrites its entry meanwhile harms only itself.
            let heads = (0..n).rev().map(|i| self.parts.avail_entry(next.wrapping_add(i)));
            heads.for_each(|head| self.inflight.unmark(head));
        }
        self.commit_in_flight();
    }

    #[inline]
    pub(super) fn complete_all(&mut self, done: impl Iterator<Item = (u16, u32)>) {
        match self.inflight.is_transmit() {
            true => self.complete_in::<true>(done),
            false => self.complete_in::<false>(done),
        }
    }

    #[inline]
    fn complete_in<const TRANSMIT: bool>(&mut self, done: impl Iterator<Item = (u16, u32)>) {
        let (parts, inflight) = (&self.parts, &self.inflight);
        let mut next = self.order.counts().returned;
        self.order.complete(done, |Record { id: head, len, .. }| {
            if TRANSMIT && O::IN_ORDER {
                // One used entry for all published chains.
                return;
            }
            parts.write_used(next, head, len);
            next = next.wrapping_add(1);
            if TRANSMIT {
                // In this order: the chain is marked until it is committed, so a kill strands none.
                inflight.commit(next, head);
                inflight.unmark(head);
            }
        });
        if !TRANSMIT {
            // All at once: no driver ever sees half of a frame.
            inflight.commit(next, 0);
        }
    }

    #[inline]
    pub(super) fn complete_run(&mut self, first: u16, n: u16) -> bool {
        self.order.complete_run(first, n)
    }

    /// Shows all completions to the driver; returns the used index before that, if any.
    #[inline]
    pub(super) fn show(&mut self) -> Option<u16> {
        let counts = self.order.counts();
        if counts.unshown() == 0 {
            return None;
        }
        if let Some(last) = self.order.id_for_all() {
            // One entry for the batch, where the first one's would be.
            self.parts.write_used(counts.shown, last, 0);
        }
        self.parts.set_used_index(counts.returned);
        self.order.show();
        Some(counts.shown)
    }

    /// Whether the driver wants an interrupt for the chains shown since used index `old` (virtio 1.2, 2.7.7
    /// and 2.7.8).
    #[inline]
    pub(super) fn wants_interrupt(&self, old: u16) -> bool {
        match self.event_idx {
            true => need_event(self.parts.used_event(), self.order.counts().shown, old),
            false => self.parts.wants_interrupts(),
        }
    }

    /// A kept chain is in flight until the store that commits all of them, and the journal names those that are
    /// committed and still marked.
    pub(super) fn complete_kept(&mut self, done: impl Iterator<Item = (u16, u32)> + Clone) {
        let (parts, inflight) = (&self.parts, &self.inflight);
        let mut next = self.order.counts().returned;
        let mut count = 0;
        self.order.complete(done.clone(), |record| {
            parts.write_used(next, record.id, record.len);
            inflight.log(count, record.pack());
            next = next.wrapping_add(1);
            count += 1;
        });
        inflight.commit(next, count);
        done.for_each(|(head, _)| inflight.unmark(head));
        inflight.commit(next, 0);
    }

    /// Completes chains of a predecessor, unused.
    fn come_back(&mut self, heads: &[u16]) {
        let done = heads.iter().map(|head| (*head, 0));
        match self.inflight.is_transmit() {
            true => self.complete_all(done),
            false if heads.is_empty() => {}
            false => self.complete_kept(done),
        }
    }

    /// Returns the driver's index at the last `available`.
    fn seen(&self) -> u16 {
        self.order.counts().popped.wrapping_add(self.pending)
    }

    pub(super) fn suppress_kicks(&mut self) {
        match self.event_idx {
            // An index just behind the driver's: it is reached again after 2^16 entries.
            true => self.parts.set_avail_event(self.seen().wrapping_sub(1)),
            false => self.parts.set_wants_kicks(false),
        }
    }

    /// Asks for a kick at the next entry.
    pub(super) fn ask_for_kicks(&mut self) {
        match self.event_idx {
            true => self.parts.set_avail_event(self.seen()),
            false => self.parts.set_wants_kicks(true),
        }
    }

    /// Whether there are entries that `available` has not seen.
    pub(super) fn has_more(&self) -> bool {
        self.parts.avail_index(Ordering::Relaxed) != self.seen()
    }

    pub(super) fn base(&self) -> u32 {
        self.order.counts().popped.into()
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
        let (next, size) = (self.order.counts().popped, self.parts.size);
        let head = self.parts.avail_entry(next);
        chain.reset(head);
        if head >= size {
            return Err(RingError::Head { entry: next, head, size });
        }
        // SAFETY: the descriptors are mapped as long as `self` holds the memory.
        let ring = unsafe { Table::of_ring(self.parts.desc, size) };
        let walked = self.walker.walk::<ByName, WRITE>(ring, head, longest_chain(size), chain);
        let mut token = head;
        if !matches!(walked, Err(error) if error.is_fatal()) {
            token = self.order.take(head, 1).unwrap_or(head);
            if !O::IN_ORDER && !WRITE {
                self.inflight.mark(head, 1);
            }
            self.pending -= 1;
            self.commit_in_flight();
        }
        match walked {
            Ok(_) => chain.set_head(token),
            Err(_) => chain.reset(token),
        }
        walked.map(|_| true)
    }
}
