//! A virtqueue of either layout, with its chains given back in any order or in that of the pops.
//!
//! ```text
//!                                             ┌─ AnyOrder ─┐
//!                  ┌─ otherwise ────▶ SplitQueue ─ InOrder ─┤
//!   Queue::new ────┤                                        ├──▶ one walker ──▶ Chain
//!                  └─ RING_PACKED ──▶ PackedQueue ─ InOrder ┤
//!                                             └─── ById ────┘
//! ```
//!
//! All counts are of chains, whatever their descriptors take in the ring. One thread at a time may call a
//! queue: the worker that owns its port.

use super::order::{AnyOrder, ById, InOrder, Order};
use super::packed::{FIRST_BASE, PackedQueue};
use super::split::SplitQueue;
use super::{Chain, Features, GuestMemory, QueueInflight, RingError, RingLayout, Single};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

/// The device's side of one virtqueue, split or packed as negotiated.
#[derive(Debug)]
pub struct Queue(Ring);

#[derive(Debug)]
enum Ring {
    /// Descriptor table, available and used ring (virtio 1.2, 2.7).
    Split(SplitQueue<AnyOrder>),
    SplitInOrder(SplitQueue<InOrder<()>>),
    /// One descriptor ring (virtio 1.2, 2.8).
    Packed(PackedQueue<ById>),
    PackedInOrder(PackedQueue<InOrder<u16>>),
}

macro_rules! any {
    ($queue:expr, $ring:ident => $what:expr) => {
        match $queue {
            Ring::Split($ring) => $what,
            Ring::SplitInOrder($ring) => $what,
            Ring::Packed($ring) => $what,
            Ring::PackedInOrder($ring) => $what,
        }
    };
}

impl Queue {
    /// The base of a queue that was never started.
    pub fn first_base(packed: bool) -> u32 {
        if packed { FIRST_BASE } else { 0 }
    }

    /// Takes a queue into service. `base` is where to continue, as in VHOST_USER_SET_VRING_BASE
    /// (vhost-user, "Vring state"):
    ///
    /// - of a split ring, the first available index to be read; the used index continues where the ring
    ///   says;
    /// - of a packed ring, in bits 0 to 14 the next available place, in bit 15 its wrap counter, in bits
    ///   16 to 31 the same for the next used one. Front ends that know only the first, DPDK's for one,
    ///   leave the upper half zero, which then means the same as the lower.
    ///
    /// # Errors
    /// [`RingError::Size`] or [`RingError::PackedSize`], [`RingError::PartUnmapped`],
    /// [`RingError::PartUnaligned`], [`RingError::Base`] or [`RingError::PackedBase`];
    /// [`RingError::NoIndex`] for a base that only a packed ring can have.
    pub fn new(
        memory: Arc<GuestMemory>,
        layout: RingLayout,
        base: u32,
        features: Features,
    ) -> Result<Self, RingError> {
        Self::with_inflight(memory, layout, base, features, None)
    }

    /// As [`new`](Self::new), for a queue that a successor of this process can recover. If a
    /// predecessor left it in service, at the same place and as large, this call recovers it, and
    /// `base` means nothing:
    ///
    /// - chains of a transmit queue that were in flight are completed, unsent;
    /// - chains of a receive queue that were in flight are available again;
    /// - whatever was completed is shown.
    ///
    /// The driver may lack an interrupt then: [`recovered`](Self::recovered).
    ///
    /// # Errors
    /// As for `new`; [`RingError::Inflight`] if the in-flight record and the ring contradict each other.
    pub fn with_inflight(
        memory: Arc<GuestMemory>,
        layout: RingLayout,
        base: u32,
        features: Features,
        inflight: Option<QueueInflight>,
    ) -> Result<Self, RingError> {
        Ok(Self(match (features.packed, features.in_order) {
            (false, false) => Ring::Split(SplitQueue::start(memory, layout, base, features, inflight)?),
            (false, true) => Ring::SplitInOrder(SplitQueue::start(memory, layout, base, features, inflight)?),
            (true, false) => Ring::Packed(PackedQueue::start(memory, layout, base, features, inflight)?),
            (true, true) => {
                Ring::PackedInOrder(PackedQueue::start(memory, layout, base, features, inflight)?)
            }
        }))
    }

    /// Returns how many chains a predecessor left in flight and this queue completed unsent; `None` if it
    /// recovered nothing. After a recovery, [`publish`](Self::publish) and call the driver, with or without
    /// completions.
    pub fn recovered(&self) -> Option<u16> {
        any!(&self.0, ring => ring.recovered)
    }

    /// Takes the queue out of service in order: completions are published, nothing is in flight. Returns
    /// the [`base`](Self::base) to continue from; the in-flight region records it too. A queue that is only
    /// dropped is recovered by the next one.
    pub fn retire(self) -> u32 {
        any!(self.0, ring => {
            debug_assert_eq!(ring.order.counts().unshown(), 0, "retired with completions unpublished");
            let base = ring.base();
            ring.inflight.leave(base);
            base
        })
    }

    /// Looks for chains the driver added; returns how many can be popped. A packed ring shows those
    /// of a long burst over several calls.
    ///
    /// # Errors
    /// [`RingError::AvailableIndex`], of a split ring. A packed one has no index to lie with.
    #[inline]
    pub fn available(&mut self) -> Result<u16, RingError> {
        any!(&mut self.0, ring => ring.available())
    }

    /// Chains that can be popped without another look.
    #[inline]
    pub fn pending(&self) -> u16 {
        any!(&self.0, ring => ring.pending)
    }

    /// Chains popped and not completed.
    #[inline]
    pub fn in_flight(&self) -> u16 {
        any!(&self.0, ring => ring.order.counts().in_flight())
    }

    /// Returns the driver's number of the chain in flight with this token of [`complete`](Self::complete).
    #[cfg(test)]
    pub(super) fn head_of(&self, token: u16) -> u16 {
        any!(&self.0, ring => ring.order.id_of(token))
    }

    /// With VIRTIO_F_IN_ORDER: returns the token of the oldest chain in flight, and how many completed ones
    /// behind it the driver gets back only after it. `None` if chains go back in any order.
    pub fn held_back(&self) -> Option<(u16, u16)> {
        any!(&self.0, ring => ring.order.held_back())
    }

    /// Entries of the ring.
    #[inline]
    pub fn size(&self) -> u16 {
        any!(&self.0, ring => ring.size())
    }

    /// Pops the next chain of a transmit queue: buffers for the device to read. `false` if none
    /// is [`pending`](Self::pending).
    ///
    /// # Errors
    /// What the driver got wrong. If it [is fatal](RingError::is_fatal), nothing was popped;
    /// otherwise the chain was popped and [`Chain::head`] is to be completed with length 0.
    #[inline]
    pub fn pop_readable(&mut self, chain: &mut Chain) -> Result<bool, RingError> {
        any!(&mut self.0, ring => ring.pop::<false>(chain))
    }

    /// Pops the next chain of a receive queue: buffers for the device to write. `false` if none
    /// is [`pending`](Self::pending).
    ///
    /// # Errors
    /// As for [`pop_readable`](Self::pop_readable).
    #[inline]
    pub fn pop_writable(&mut self, chain: &mut Chain) -> Result<bool, RingError> {
        any!(&mut self.0, ring => ring.pop::<true>(chain))
    }

    /// Pops the next chains of a queue as long as each is one buffer; returns how many. Their buffers are being
    /// fetched into the cache. Of a transmit queue chains are popped that are [`pending`](Self::pending); of a receive
    /// queue (`WRITE`) all that the driver gave. Other chains, and errors, are left to
    /// [`pop_readable`](Self::pop_readable) and [`pop_writable`](Self::pop_writable).
    #[inline]
    pub fn pop_singles<const WRITE: bool>(&mut self, out: &mut [Single]) -> usize {
        any!(&mut self.0, ring => ring.pop_singles::<WRITE>(out))
    }

    /// Puts back the chains of the last [`pop_singles`](Self::pop_singles), or the last of them.
    #[inline]
    pub fn put_back(&mut self, last: &[Single]) {
        any!(&mut self.0, ring => ring.put_back(last));
    }

    /// Puts the last `n` popped chains back, for the next pops to find again: receive buffers
    /// that were too few for a frame. Not for those of [`pop_singles`](Self::pop_singles).
    ///
    /// # Panics
    /// If fewer than `n` are in flight. Chains popped since must not have been completed.
    #[inline]
    pub fn rewind(&mut self, n: u16) {
        any!(&mut self.0, ring => ring.rewind(n));
    }

    /// Gives a popped chain back by its [`Chain::head`], `len` bytes of it written (0 in a transmit
    /// queue). Chains may be completed in any order; with VIRTIO_F_IN_ORDER one that is completed
    /// before an older one waits for it. The driver sees it after [`publish`](Self::publish).
    #[inline]
    pub fn complete(&mut self, head: u16, len: u32) {
        self.complete_all(std::iter::once((head, len)));
    }

    /// As [`complete`](Self::complete), for many.
    #[inline]
    pub fn complete_all(&mut self, done: impl Iterator<Item = (u16, u32)>) {
        any!(&mut self.0, ring => ring.complete_all(done));
    }

    /// Gives back the chains of one call of [`pop_singles`](Self::pop_singles), or the first of them:
    /// nothing was written to them.
    #[inline]
    pub fn complete_singles(&mut self, done: &[Single]) {
        let Some(first) = done.first() else { return };
        any!(&mut self.0, ring => if !ring.complete_run(first.head, done.len() as u16) {
            ring.complete_all(done.iter().map(|single| (single.head, 0)));
        });
    }

    /// Whether chains can be [kept](Self::keep): not with VIRTIO_F_IN_ORDER, since the others would wait for them.
    pub fn can_keep(&self) -> bool {
        matches!(self.0, Ring::Split(_) | Ring::Packed(_))
    }

    /// Keeps chains of a receive queue that were popped as singles just now: they are completed by
    /// [`complete_kept`](Self::complete_kept) alone, in any order, beside chains that are popped later. After a kill they come back
    /// with length 0.
    pub fn keep(&mut self, singles: &[Single]) {
        debug_assert!(self.can_keep(), "kept in order");
        any!(&mut self.0, ring => singles.iter().for_each(|single| ring.inflight.mark(single.head, 1)));
    }

    /// Gives kept chains back, with the bytes written to each: the buffers of one frame, which after a kill are shown together or
    /// not at all.
    pub fn complete_kept(&mut self, done: impl Iterator<Item = (u16, u32)> + Clone) {
        match &mut self.0 {
            Ring::Split(ring) => ring.complete_kept(done),
            Ring::Packed(ring) => ring.complete_kept(done),
            Ring::SplitInOrder(_) | Ring::PackedInOrder(_) => debug_assert!(false, "none is kept in order"),
        }
    }

    /// Shows the driver all completions; returns whether it wants an interrupt. Once per batch, not per
    /// chain: it is a full fence.
    ///
    /// The first call always returns `true`, completions or not: a device that served the ring
    /// before us may have been killed between a completion and its interrupt.
    #[inline]
    #[must_use = "a driver that asked for an interrupt waits for it"]
    pub fn publish(&mut self) -> bool {
        any!(&mut self.0, ring => {
            let due = std::mem::take(&mut ring.interrupt_due);
            let Some(since) = ring.show() else { return due };
            // The driver asks for an interrupt, then looks at our completions; we show them, then look
            // whether it asked. Without the fence both could miss the other.
            fence(Ordering::SeqCst);
            due || ring.wants_interrupt(since)
        })
    }

    /// Tells the driver not to kick: this queue is polled. A hint; kicks may still come.
    pub fn suppress_kicks(&mut self) {
        any!(&mut self.0, ring => ring.suppress_kicks());
    }

    /// Asks the driver to kick when it adds a chain that [`available`](Self::available) has
    /// not seen. Returns whether there is one already: poll again then, a kick may not come.
    #[must_use = "sleeping although chains arrived may be for ever"]
    pub fn request_kicks(&mut self) -> bool {
        any!(&mut self.0, ring => {
            ring.ask_for_kicks();
            // The mirror image of the fence in `publish`.
            fence(Ordering::SeqCst);
            ring.has_more()
        })
    }

    /// The number of the next chain to be popped, modulo 2^16.
    #[inline]
    pub fn next_avail(&self) -> u16 {
        any!(&self.0, ring => ring.order.counts().popped)
    }

    /// Returns where the ring stands, as [`new`](Self::new) takes it (vhost-user,
    /// VHOST_USER_GET_VRING_BASE).
    pub fn base(&self) -> u32 {
        any!(&self.0, ring => ring.base())
    }

    /// Continues in a new memory table, at the same user addresses. Spans popped before point into the old
    /// one, which the caller keeps until they are dropped.
    ///
    /// # Errors
    /// [`RingError::PartUnmapped`] or [`RingError::PartUnaligned`]; the queue then still works
    /// in the old table.
    pub fn remap(&mut self, memory: Arc<GuestMemory>) -> Result<(), RingError> {
        any!(&mut self.0, ring => ring.remap(memory))
    }
}
