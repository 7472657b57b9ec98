//! From a guest's transmit rings: headers are copied, payload is referred to.

use super::super::{Pending, Taken};
use super::{Tx, TxQueue};
use crate::clock::clock;
use crate::frame::{HEADER_MAX, VnetHdr};
use crate::sched::Queued;
use crate::slots::{Frame, FrameRef, Owner};
use crate::virtio::{Chain, DirtyLog, RingError, Span};
use tidegate_evidence::DropReason;

impl Tx {
    /// Returns the number of transmit queues, those out of service included.
    #[inline]
    pub fn queues(&self) -> usize {
        self.queues.len()
    }

    /// Returns the length of the virtio header, 10 or 12.
    #[inline]
    pub fn header_len(&self) -> usize {
        self.header_len
    }

    /// Returns a queue in service.
    #[inline]
    pub fn queue(&mut self, queue: usize) -> Option<&mut TxQueue> {
        self.queues.get_mut(queue)?.as_mut()
    }

    fn all(&mut self) -> impl Iterator<Item = &mut TxQueue> {
        self.queues.iter_mut().flatten()
    }

    #[inline]
    pub(in crate::link) fn poll(&mut self, queue: usize, now: u64) -> Result<bool, RingError> {
        let Some(tx) = self.queue(queue).filter(|tx| tx.ring.enabled) else { return Ok(false) };
        let available = tx.ring.queue.available()?;
        let next = tx.ring.queue.next_avail();
        tx.arrivals.polled(next, next.wrapping_add(available), now, clock);
        Ok(available > 0 || tx.pending.is_some())
    }

    #[inline]
    pub(in crate::link) fn take(&mut self, queue: usize, chain: &mut Chain, ahead: bool) -> Taken {
        let header_len = self.header_len;
        let Some(tx) = self.queue(queue) else { return Taken::Nothing };
        if let Some(pending) = tx.pending.take() {
            return Taken::PutBack(pending);
        }
        if tx.ring.queue.pending() == 0 {
            return Taken::Nothing;
        }
        let Some(frame) = tx.slot(ahead) else { return Taken::Full };
        let number = tx.count_taken();
        let arrival = tx.arrivals.of(number as u16, clock);
        match tx.ring.queue.pop_readable(chain) {
            Ok(true) => {}
            Ok(false) => {
                tx.slots.give(frame);
                return Taken::Nothing;
            }
            Err(error) if !error.is_fatal() => {
                tx.slots.give(frame);
                tx.give_chain(chain.head());
                return Taken::Dropped(DropReason::TooScattered, chain.descriptors());
            }
            Err(error) => {
                tx.slots.give(frame);
                return Taken::Broken(error.to_string());
            }
        }
        match take_head(frame.get_mut(), chain.spans(), chain.bytes(), header_len) {
            Ok(()) => {
                frame.get_mut().owner = Owner::Ring { queue: queue as u16, head: chain.head() };
                Taken::New(Pending { frame, arrival, sent: 0, number }, chain.descriptors())
            }
            Err(reason) => {
                tx.slots.give(frame);
                tx.give_chain(chain.head());
                Taken::Dropped(reason, chain.descriptors())
            }
        }
    }

    /// Returns the queue of a frame.
    #[inline]
    fn queue_of(&mut self, frame: &Frame) -> Option<&mut TxQueue> {
        match frame.owner {
            Owner::Ring { queue, .. } => self.queue(usize::from(queue)),
            Owner::Piece { whole } => self.queue_of(whole.get()),
            owner => {
                debug_assert!(false, "{owner:?} does not belong to a ring");
                None
            }
        }
    }

    pub(in crate::link) fn entries(&self, frame: &Frame) -> Option<u16> {
        let Owner::Ring { queue, .. } = frame.owner else { return None };
        Some(self.queues.get(usize::from(queue))?.as_ref()?.ring.queue.size())
    }

    #[inline]
    pub(in crate::link) fn may_look_ahead(&self, queue: usize) -> bool {
        self.queues.get(queue).and_then(Option::as_ref).is_some_and(TxQueue::may_look_ahead)
    }

    #[inline]
    pub(in crate::link) fn put_back(&mut self, pending: Pending) {
        if let Some(tx) = self.queue_of(pending.frame.get()) {
            debug_assert!(tx.pending.is_none(), "one waits already");
            tx.pending = Some(pending);
        }
    }

    pub(in crate::link) fn begin_wait(&mut self, frame: &Frame) {
        if let Some(tx) = self.queue_of(frame) {
            tx.slots.begin_wait();
        }
    }

    pub(in crate::link) fn end_wait(&mut self, frame: &Frame) {
        if let Some(tx) = self.queue_of(frame) {
            tx.slots.end_wait();
        }
    }

    pub(in crate::link) fn may_leave(&mut self, frame: &Frame, in_parts: bool) -> bool {
        self.queue_of(frame).is_some_and(|tx| {
            let pieces = usize::from(tx.limits.pieces);
            tx.slots.available() > 0 && !(in_parts && tx.slots.pieces() >= pieces)
        })
    }

    pub(in crate::link) fn slot_for_piece(&mut self, whole: &Frame) -> Option<FrameRef> {
        let slots = &mut self.queue_of(whole)?.slots;
        // Waiting frames may have taken all slots.
        let piece = if slots.available() > 0 { slots.take_or_make() } else { None };
        piece.inspect(|_| slots.note_piece())
    }

    #[inline]
    pub(in crate::link) fn give_back(&mut self, reference: FrameRef) {
        let owner = reference.get().owner;
        let Some(tx) = self.queue_of(reference.get()) else { return };
        tx.slots.give(reference);
        match owner {
            Owner::Ring { head, .. } => tx.give_chain(head),
            Owner::Piece { whole } => {
                tx.slots.end_piece();
                if whole.get().release() {
                    self.give_back(whole);
                }
            }
            _ => {}
        }
    }

    /// For frames of one ring.
    #[inline]
    pub(in crate::link) fn give_back_all(&mut self, frames: impl Iterator<Item = FrameRef> + Clone) {
        let Some(tx) = frames.clone().next().and_then(|first| self.queue_of(first.get())) else { return };
        let head = |frame: FrameRef| match frame.get().owner {
            Owner::Ring { head, .. } => Some((head, 0)),
            _ => None,
        };
        tx.ring.queue.complete_all(frames.clone().filter_map(head));
        tx.ring.dirty = true;
        frames.for_each(|frame| tx.slots.give(frame));
    }

    #[inline]
    pub(in crate::link) fn is_crowded(&self, queue: usize) -> bool {
        // Slots bound frames in flight; completed ones held back in order come on top.
        let crowded = |tx: &TxQueue| tx.ring.enabled && tx.ring.queue.in_flight() > tx.limits.popped;
        self.queues.get(queue).and_then(Option::as_ref).is_some_and(crowded)
    }

    pub(in crate::link) fn holds_back(&self, queue: usize) -> Option<FrameRef> {
        let tx = self.queues.get(queue)?.as_ref()?;
        let (head, 1..) = tx.ring.queue.held_back()? else { return None };
        tx.slots.find(Owner::Ring { queue: queue as u16, head })
    }

    #[inline]
    pub(in crate::link) fn flush(&mut self) {
        let log = self.log.as_ref();
        for tx in self.queues.iter_mut().flatten() {
            tx.ring.flush(log);
        }
    }

    pub(in crate::link) fn take_pending(&mut self) -> Option<Pending> {
        self.all().find_map(|tx| tx.pending.take())
    }

    pub(in crate::link) fn untake_pending(&mut self) {
        for tx in self.all() {
            // A frame with a sent piece cannot be sent anew. Nothing was popped after a waiting one, so it
            // is the ring's last.
            if let Some(pending) = tx.pending.take_if(|pending| pending.sent == 0) {
                tx.slots.give(pending.frame);
                tx.ring.queue.rewind(1);
            }
        }
    }

    pub(in crate::link) fn untake(&mut self, waiting: &mut Vec<Queued<Pending>>) {
        // Those of one ring are in its order: youngest first, each that ends its ring goes back, and the
        // next one ends it.
        waiting.reverse();
        waiting.retain(|queued| !self.untake_last(&queued.frame));
        waiting.reverse();
    }

    /// Puts an unsent waiting frame back if it ends its ring. Whether it did.
    fn untake_last(&mut self, pending: &Pending) -> bool {
        #[cfg(test)]
        UNTAKEN.set(UNTAKEN.get() + 1);
        let frame = pending.frame.get();
        let Some(tx) = self.queue_of(frame) else { return false };
        if is_begun(pending) || tx.count_taken() != pending.number + 1 {
            return false;
        }
        tx.slots.give(pending.frame);
        tx.ring.queue.rewind(1);
        tx.taken -= 1;
        true
    }

    /// As if so many more entries had been taken.
    #[cfg(test)]
    pub fn age(&mut self, entries: u64) {
        self.all().for_each(|tx| tx.taken += entries);
    }

    pub(in crate::link) fn in_flight(&self) -> usize {
        self.queues.iter().flatten().map(|tx| tx.slots.in_flight()).sum()
    }

    pub(in crate::link) fn waiting(&self) -> usize {
        self.queues.iter().flatten().filter(|tx| tx.pending.is_some_and(|pending| pending.sent == 0)).count()
    }

    pub(in crate::link) fn count_as_arrived(&mut self, now: u64) {
        self.all().for_each(|tx| tx.arrivals.restart(now));
    }

    #[inline]
    pub(in crate::link) fn note_sleep(&mut self, since: u64, woke: u64) {
        self.all().for_each(|tx| tx.arrivals.note_sleep(since, woke));
    }

    pub(in crate::link) fn can_be_quiet(&self) -> bool {
        self.queues.iter().flatten().all(|tx| tx.ring.kick.is_some() && tx.pending.is_none())
    }

    pub(in crate::link) fn request_kicks(&mut self, throttled: bool) -> bool {
        let mut came = false;
        for tx in self.all().filter(|tx| tx.ring.enabled) {
            // A throttled queue's entries are known; only new ones are worth a wake-up.
            let news = tx.ring.queue.request_kicks();
            came |= news || (!throttled && tx.ring.queue.pending() > 0);
        }
        came
    }

    #[inline]
    pub(in crate::link) fn suppress_kicks(&mut self) {
        self.all().for_each(|tx| tx.ring.queue.suppress_kicks());
    }

    pub(in crate::link) fn is_lost(&self) -> bool {
        self.memory.as_ref().is_some_and(|memory| memory.is_lost())
            || self.log.as_ref().is_some_and(DirtyLog::is_lost)
    }
}

#[cfg(test)]
thread_local! {
    /// Number of frames examined for putting them back.
    pub static UNTAKEN: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Whether a part of a frame that waits was sent, or dropped.
fn is_begun(pending: &Pending) -> bool {
    pending.frame.get().shares.get() > 0
}

impl TxQueue {
    /// How many entries were taken until now. Counted on by what the ring's index, of 16 bits, has gone since it was asked
    /// last: exact while frames wait, since each that is taken then asks.
    #[inline]
    fn count_taken(&mut self) -> u64 {
        self.taken += u64::from(self.ring.queue.next_avail().wrapping_sub(self.taken as u16));
        self.taken
    }

    /// A slot for a frame that is to be sent, or is taken `ahead` of those before it and waits.
    #[inline]
    fn slot(&mut self, ahead: bool) -> Option<FrameRef> {
        if ahead {
            return if self.may_look_ahead() { self.slots.take_or_make() } else { None };
        }
        if self.slots.available() > 0 { self.slots.take() } else { None }
    }

    fn may_look_ahead(&self) -> bool {
        self.slots.in_flight() - self.slots.pieces() < usize::from(self.limits.frames.min(self.limits.share))
    }

    /// Gives a chain back to the driver.
    #[inline]
    fn give_chain(&mut self, head: u16) {
        self.ring.queue.complete(head, 0);
        self.ring.dirty = true;
    }
}

/// Copies the virtio header and the first bytes, and notes where the rest lies.
fn take_head(frame: &mut Frame, spans: &[Span], bytes: u32, header_len: usize) -> Result<(), DropReason> {
    let len = bytes.checked_sub(header_len as u32).ok_or(DropReason::Malformed)?;
    let head_len = (len as usize).min(HEADER_MAX);
    let mut bytes = [0u8; VnetHdr::LEN + HEADER_MAX];
    let want = header_len + head_len;
    let mut got = 0;
    let mut rest = 0;
    for span in spans {
        let span_len = span.len as usize;
        let here = span_len.min(want - got);
        // SAFETY: the ring translated the span in the guest's current memory, which stays mapped
        // while this worker runs its loop; read once, into our own bytes.
        unsafe { std::ptr::copy_nonoverlapping(span.ptr, bytes[got..].as_mut_ptr(), here) };
        got += here;
        if here < span_len {
            frame.spans[rest] = Span { ptr: span.ptr.wrapping_add(here), len: (span_len - here) as u32 };
            rest += 1;
        }
    }
    let vnet = if header_len == VnetHdr::LEN { VnetHdr::read(&bytes) } else { VnetHdr::read_legacy(&bytes) };
    frame.vnet = vnet.ok_or(DropReason::Malformed)?;
    frame.bytes[..head_len].copy_from_slice(&bytes[header_len..want]);
    frame.len = len;
    frame.head_len = head_len as u16;
    frame.span_count = rest as u16;
    Ok(())
}
