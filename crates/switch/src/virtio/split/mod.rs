//! The device's side of a split virtqueue (virtio 1.2, 2.7).
//!
//! ```text
//!              seen: what `available` last saw of the driver's index
//!                │
//!   available  ┌─▼────────────┬──────────────────┐
//!   entries    │ not popped   │ popped: a Chain  │   complete, in any order
//!              └──────────────┴──────────────────┘          │
//!                             ▲ next_avail                  ▼
//!   used entries                              next_used, then published
//! ```
//!
//! Indices count modulo 2^16 and the size divides 2^16, so that an index masked is a slot.
//! One thread at a time may call a queue: the worker that owns its port.

mod left;
mod start;

use super::inflight::{Record, stored};
use super::layout::{RingLayout, locate, need_event};
use super::memory::GuestMemory;
use super::span::prefetch;
use super::walker::{DESC_BYTES, DESC_NEXT, Descriptor, Links, Table, Walker, longest_chain};
use super::window::Window;
use super::{Chain, QueueInflight, RingError, RingPart, Single};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering, fence};

/// Available ring flag: the driver wants no interrupts (virtio 1.2, 2.7.6).
const AVAIL_NO_INTERRUPT: u16 = 1;
/// Used ring flag: the device wants no kicks (virtio 1.2, 2.7.8).
const USED_NO_NOTIFY: u16 = 1;

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

/// The rings in this process. Aligned and mapped for their whole length as long as the
/// `GuestMemory` they were translated by lives.
#[derive(Clone, Copy, Debug)]
struct Rings {
    /// 16 bytes each: address, length, flags, next.
    desc: *mut u8,
    /// Flags, index, `size` heads, used_event; 2 bytes each.
    avail: *mut u16,
    /// Flags, index (2 bytes each), `size` times head and length (4 bytes each), avail_event.
    used: *mut u16,
}

impl Rings {
    fn translate(memory: &GuestMemory, layout: &RingLayout) -> Result<Self, RingError> {
        let size = u64::from(layout.size);
        Ok(Self {
            desc: locate(memory, RingPart::Descriptors, layout.desc, 16 * size, 16)?,
            avail: locate(memory, RingPart::Available, layout.avail, 6 + 2 * size, 2)?.cast(),
            used: locate(memory, RingPart::Used, layout.used, 6 + 8 * size, 4)?.cast(),
        })
    }
}

/// The device's side of one split virtqueue.
#[derive(Debug)]
pub struct SplitQueue {
    rings: Rings,
    size: u16,
    event_idx: bool,
    /// Driver's index as `available` last saw it.
    seen: u16,
    /// Next entry to pop.
    next_avail: u16,
    /// Next used entry to write.
    next_used: u16,
    /// Used index the driver was told.
    published: u16,
    /// With VIRTIO_F_IN_ORDER: the chains in flight; their numbers are the available indices.
    window: Option<Window>,
    /// Nothing was published yet, and our predecessor may owe the driver an interrupt.
    interrupt_due: bool,
    inflight: QueueInflight,
    /// Chains of a predecessor that were completed unsent; `None` if there was nothing to recover.
    recovered: Option<u16>,
    layout: RingLayout,
    /// Holds the memory.
    walker: Walker,
}

// SAFETY: the pointers lead into shared mappings kept alive by `walker`; no thread owns them.
unsafe impl Send for SplitQueue {}

impl SplitQueue {
    /// Looks at the driver's index; returns how many entries can be popped. This is the only
    /// look: entries added later are popped after the next call.
    ///
    /// # Errors
    /// [`RingError::AvailableIndex`]: more entries than the driver has. As every entry
    /// available or in flight is one of the ring's, those in flight are never more than its size.
    #[inline]
    pub fn available(&mut self) -> Result<u16, RingError> {
        // Acquire: entries and descriptors are read after the index that covers them.
        let avail = u16::from_le(self.avail_idx().load(Ordering::Acquire));
        let (used, size) = (self.published, self.size);
        // Both halves: an index that runs backwards past what was popped is a lie as well. Not more than
        // the ring has beyond what is popped and not shown, or 32,768 entries could be made available twice.
        let unshown = self.next_avail.wrapping_sub(used);
        if avail.wrapping_sub(used) > size
            || avail.wrapping_sub(self.next_avail) > size.saturating_sub(unshown)
        {
            return Err(RingError::AvailableIndex { avail, used, size });
        }
        self.seen = avail;
        Ok(self.pending())
    }

    /// Entries that can be popped without another look at the driver's index.
    #[inline]
    pub fn pending(&self) -> u16 {
        self.seen.wrapping_sub(self.next_avail)
    }

    /// Entries popped and not completed.
    #[inline]
    pub fn in_flight(&self) -> u16 {
        match &self.window {
            Some(window) => window.in_flight(),
            None => self.next_avail.wrapping_sub(self.next_used),
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

    /// Pops the next chain of a transmit queue: buffers for the device to read. `false` if none
    /// is [`pending`](Self::pending).
    ///
    /// # Errors
    /// What the driver got wrong. If it [is fatal](RingError::is_fatal), nothing was popped;
    /// otherwise the chain was popped and [`Chain::head`] is to be completed with length 0.
    #[inline]
    pub fn pop_readable(&mut self, chain: &mut Chain) -> Result<bool, RingError> {
        self.pop::<false>(chain)
    }

    /// Pops the next chain of a receive queue: buffers for the device to write. `false` if none
    /// is [`pending`](Self::pending).
    ///
    /// # Errors
    /// As for [`pop_readable`](Self::pop_readable).
    #[inline]
    pub fn pop_writable(&mut self, chain: &mut Chain) -> Result<bool, RingError> {
        self.pop::<true>(chain)
    }

    /// Pops the next pending chains of a queue (`WRITE`: of a receive queue) as long as each is
    /// one buffer; returns how many. Their buffers are being fetched into the cache. What else
    /// there is, errors too, is left to [`pop_readable`](Self::pop_readable) and
    /// [`pop_writable`](Self::pop_writable).
    #[inline]
    pub fn pop_singles<const WRITE: bool>(&mut self, out: &mut [Single]) -> usize {
        match self.window {
            Some(_) => self.singles::<WRITE, true>(out),
            None => self.singles::<WRITE, false>(out),
        }
    }

    #[inline]
    fn singles<const WRITE: bool, const IN_ORDER: bool>(&mut self, out: &mut [Single]) -> usize {
        let count = out.len().min(usize::from(self.pending()));
        for (i, single) in (0..).zip(&mut out[..count]) {
            single.head = self.avail_entry(self.next_avail.wrapping_add(i));
            // A head beyond the table is refused below; here it is only a hint.
            prefetch(self.rings.desc.wrapping_add(usize::from(single.head) * DESC_BYTES as usize));
        }
        let mut popped = 0;
        for single in &mut out[..count] {
            if single.head >= self.size {
                break;
            }
            let at = usize::from(single.head) * DESC_BYTES as usize;
            // SAFETY: the head is below the size, and the table is mapped for all its entries.
            let desc = unsafe { Descriptor::read::<ByName>(self.rings.desc.add(at)) };
            let Some(ptr) = self.walker.single::<WRITE>(desc) else { break };
            (single.ptr, single.len) = (ptr, desc.len);
            if IN_ORDER {
                let Some(window) = &mut self.window else { break };
                single.head = window.push(single.head, 1);
            } else if !WRITE {
                self.inflight.mark(single.head, 1);
            }
            popped += 1;
        }
        self.next_avail = self.next_avail.wrapping_add(popped as u16);
        if IN_ORDER && !WRITE {
            self.commit_in_flight();
        }
        popped
    }

    /// Of a transmit queue in order: what is popped is in flight until it is shown.
    #[inline]
    fn commit_in_flight(&self) {
        if self.window.is_some() && self.inflight.is_transmit() {
            self.inflight.commit(self.next_avail, 0);
        }
    }

    /// Puts what [`pop_singles`](Self::pop_singles) popped last back, or the last of it.
    #[inline]
    pub fn put_back(&mut self, last: &[Single]) {
        let n = last.len() as u16;
        assert!(n <= self.in_flight(), "putting {n} chains back of {} in flight", self.in_flight());
        if let Some(window) = &mut self.window {
            window.forget(n);
            self.next_avail = self.next_avail.wrapping_sub(n);
            self.commit_in_flight();
            return;
        }
        if self.inflight.is_transmit() {
            // The last one first: a kill leaves those in flight that come before in the ring.
            last.iter().rev().for_each(|single| self.inflight.unmark(single.head));
        }
        self.next_avail = self.next_avail.wrapping_sub(n);
    }

    /// Puts the last `n` popped chains back, for the next pops to find again: receive buffers
    /// that were too few for a frame.
    ///
    /// # Panics
    /// If fewer than `n` are in flight. Chains popped since must not have been completed.
    #[inline]
    pub fn rewind(&mut self, n: u16) {
        assert!(n <= self.in_flight(), "rewinding {n} chains of {} in flight", self.in_flight());
        if let Some(window) = &mut self.window {
            window.forget(n);
            self.next_avail = self.next_avail.wrapping_sub(n);
            self.commit_in_flight();
            return;
        }
        for _ in 0..n {
            self.next_avail = self.next_avail.wrapping_sub(1);
            if self.inflight.is_transmit() {
                // A driver that rewrites its entry meanwhile gets what it asked for.
                self.inflight.unmark(self.avail_entry(self.next_avail));
            }
        }
    }

    /// Gives a popped chain back, `len` bytes of it written (0 in a transmit queue). Chains may
    /// be completed in any order. The driver sees it after [`publish`](Self::publish).
    #[inline]
    pub fn complete(&mut self, head: u16, len: u32) {
        self.complete_all(std::iter::once((head, len)));
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
        let n = done.len() as u16;
        if self.inflight.is_transmit()
            && let (Some(window), Some(first)) = (&mut self.window, done.first())
            && window.complete_run(first.head, n)
        {
            self.next_used = self.next_used.wrapping_add(n);
            return;
        }
        self.complete_all(done.iter().map(|single| (single.head, 0)));
    }

    /// A transmit queue writes one used entry for all that is published, so none here.
    #[inline]
    fn complete_in_order<const TRANSMIT: bool>(&mut self, done: impl Iterator<Item = (u16, u32)>) {
        let Some(mut window) = self.window.take() else { return };
        let mut next = self.next_used;
        window.complete(done, |record| {
            if !TRANSMIT {
                let Record { id, len, .. } = Record::unpack(record);
                self.write_used(next, id, len);
            }
            next = next.wrapping_add(1);
        });
        self.next_used = next;
        self.window = Some(window);
        if !TRANSMIT {
            // All at once: no driver ever sees half of a frame.
            self.inflight.commit(self.next_used, 0);
        }
    }

    /// Writes the used entry of that index.
    #[inline]
    fn write_used(&self, index: u16, head: u16, len: u32) {
        let at = 1 + 2 * usize::from(index & (self.size - 1));
        // SAFETY: flags and index are 4 bytes, the masked slot is below the size, and the used
        // ring is aligned to 4 and mapped for all its entries.
        let entry = unsafe { self.rings.used.cast::<u32>().add(at) };
        // SAFETY: as above; a driver reading meanwhile is no conflict, the accesses are atomic.
        let (id, length) = unsafe { (AtomicU32::from_ptr(entry), AtomicU32::from_ptr(entry.add(1))) };
        id.store(u32::from(head).to_le(), Ordering::Relaxed);
        stored();
        length.store(len.to_le(), Ordering::Relaxed);
        stored();
    }

    #[inline]
    fn complete_in<const TRANSMIT: bool>(&mut self, done: impl Iterator<Item = (u16, u32)>) {
        let mut next = self.next_used;
        for (head, len) in done {
            debug_assert!(next != self.next_avail, "completing chain {head}, but none is in flight");
            self.write_used(next, head, len);
            next = next.wrapping_add(1);
            if TRANSMIT {
                // In this order: until it is committed the chain is marked, so a kill strands none.
                self.inflight.commit(next, head);
                self.inflight.unmark(head);
            }
        }
        if !TRANSMIT {
            // All at once: no driver ever sees half of a frame.
            self.inflight.commit(next, 0);
        }
        self.next_used = next;
    }

    /// Shows the driver what was completed; returns whether it wants an interrupt
    /// (virtio 1.2, 2.7.7 and 2.7.8). Once per batch, not per chain: it is a full fence.
    ///
    /// The first call always returns `true`, completions or not: a device that served the ring
    /// before us may have been killed between a completion and its interrupt.
    #[inline]
    #[must_use = "a driver that asked for an interrupt waits for it"]
    pub fn publish(&mut self) -> bool {
        let (old, new) = (self.published, self.next_used);
        let due = std::mem::take(&mut self.interrupt_due);
        if old == new {
            return due;
        }
        if let Some(window) = &mut self.window {
            window.shown = new;
            if self.inflight.is_transmit() {
                // One entry for the batch, where the first one's would be.
                let last = Record::unpack(window.record(new.wrapping_sub(1)));
                self.write_used(old, last.id, 0);
            }
        }
        // Release: the entries are written before the index that covers them.
        self.used_idx().store(new.to_le(), Ordering::Release);
        stored();
        self.published = new;
        // The driver asks for an interrupt, then looks at our index; we move the index, then
        // look whether it asked. Without the fence both could miss the other.
        fence(Ordering::SeqCst);
        let wanted = if self.event_idx {
            need_event(self.avail_word(2 + usize::from(self.size)), new, old)
        } else {
            self.avail_word(0) & AVAIL_NO_INTERRUPT == 0
        };
        due || wanted
    }

    /// Tells the driver not to kick: this queue is polled. A hint; kicks may still come.
    pub fn suppress_kicks(&mut self) {
        if self.event_idx {
            // An index just behind the driver's: it is reached again after 2^16 entries.
            self.set_avail_event(self.seen.wrapping_sub(1));
        } else {
            self.set_used_flags(USED_NO_NOTIFY);
        }
    }

    /// Asks the driver to kick when it adds an entry that [`available`](Self::available) has
    /// not seen. Returns whether there is one already: poll again then, a kick may not come.
    #[must_use = "sleeping although entries arrived may be for ever"]
    pub fn request_kicks(&mut self) -> bool {
        if self.event_idx {
            self.set_avail_event(self.seen);
        } else {
            self.set_used_flags(0);
        }
        // The mirror image of the fence in `publish`.
        fence(Ordering::SeqCst);
        u16::from_le(self.avail_idx().load(Ordering::Relaxed)) != self.seen
    }

    /// The next available index that would be popped (vhost-user, VHOST_USER_GET_VRING_BASE).
    #[inline]
    pub fn next_avail(&self) -> u16 {
        self.next_avail
    }

    /// Goes on in a new memory table, at the same user addresses. Spans popped before lead into
    /// the old one, which the caller keeps until they are dropped.
    ///
    /// # Errors
    /// [`RingError::PartUnmapped`] or [`RingError::PartUnaligned`]; the queue then still works
    /// in the old table.
    pub fn remap(&mut self, memory: Arc<GuestMemory>) -> Result<(), RingError> {
        self.rings = Rings::translate(&memory, &self.layout)?;
        self.walker.remap(memory);
        Ok(())
    }

    #[inline]
    fn pop<const WRITE: bool>(&mut self, chain: &mut Chain) -> Result<bool, RingError> {
        if self.next_avail == self.seen {
            return Ok(false);
        }
        let head = self.avail_entry(self.next_avail);
        chain.reset(head);
        if head >= self.size {
            return Err(RingError::Head { entry: self.next_avail, head, size: self.size });
        }
        // SAFETY: the descriptors are mapped as long as `self` holds the memory.
        let ring = unsafe { Table::of_ring(self.rings.desc, self.size) };
        let walked = self.walker.walk::<ByName, WRITE>(ring, head, longest_chain(self.size), chain);
        let mut token = head;
        if !matches!(walked, Err(error) if error.is_fatal()) {
            if let Some(window) = &mut self.window {
                token = window.push(head, 1);
            } else if !WRITE {
                self.inflight.mark(head, 1);
            }
            self.next_avail = self.next_avail.wrapping_add(1);
            self.commit_in_flight();
        }
        match walked {
            Ok(_) => chain.set_head(token),
            Err(_) => chain.reset(token),
        }
        walked.map(|_| true)
    }

    #[inline]
    fn avail_idx(&self) -> &AtomicU16 {
        // SAFETY: second word of the available ring, mapped and aligned to 2 as long as `self`
        // holds the memory.
        unsafe { AtomicU16::from_ptr(self.rings.avail.add(1)) }
    }

    #[inline]
    fn used_idx(&self) -> &AtomicU16 {
        // SAFETY: second word of the used ring, mapped and aligned to 4 as long as `self` holds
        // the memory.
        unsafe { AtomicU16::from_ptr(self.rings.used.add(1)) }
    }

    /// The `i`th 2-byte word of the available ring: flags, index, heads, used_event.
    #[inline]
    fn avail_word(&self, i: usize) -> u16 {
        debug_assert!(i < 3 + usize::from(self.size));
        // SAFETY: the ring has 3 + size words, mapped and aligned to 2 as long as `self` holds
        // the memory; callers stay below.
        u16::from_le(unsafe { AtomicU16::from_ptr(self.rings.avail.add(i)) }.load(Ordering::Relaxed))
    }

    /// The head in the slot of available index `index`.
    #[inline]
    fn avail_entry(&self, index: u16) -> u16 {
        self.avail_word(2 + usize::from(index & (self.size - 1)))
    }

    fn set_used_flags(&self, flags: u16) {
        // SAFETY: first word of the used ring, mapped and aligned as long as `self` holds the memory.
        unsafe { AtomicU16::from_ptr(self.rings.used) }.store(flags.to_le(), Ordering::Relaxed);
    }

    fn set_avail_event(&self, event: u16) {
        let after_entries = 2 + 4 * usize::from(self.size);
        // SAFETY: the word after the used entries, which the ring's mapped length includes.
        unsafe { AtomicU16::from_ptr(self.rings.used.add(after_entries)) }
            .store(event.to_le(), Ordering::Relaxed);
    }
}
