//! A virtqueue of either layout.
//!
//! ```text
//!                  ┌─ RING_PACKED ──▶ PackedQueue ─┐
//!   Queue::new ────┤                               ├──▶ one walker ──▶ Chain
//!                  └─ otherwise ────▶ SplitQueue ──┘
//! ```
//!
//! Everything counts chains, whatever their descriptors take in the ring. See
//! [`SplitQueue`] and [`PackedQueue`] for what differs.

use super::{
    Chain, Features, GuestMemory, PackedQueue, QueueInflight, RingError, RingLayout, Single, SplitQueue,
};
use std::sync::Arc;

/// The device's side of one virtqueue, split or packed as negotiated.
#[derive(Debug)]
pub enum Queue {
    /// Descriptor table, available and used ring (virtio 1.2, 2.7).
    Split(SplitQueue),
    /// One descriptor ring (virtio 1.2, 2.8).
    Packed(PackedQueue),
}

macro_rules! either {
    ($queue:expr, $inner:ident => $what:expr) => {
        match $queue {
            Self::Split($inner) => $what,
            Self::Packed($inner) => $what,
        }
    };
}

impl Queue {
    /// The base of a queue that was never started.
    pub fn first_base(packed: bool) -> u32 {
        if packed { PackedQueue::FIRST } else { 0 }
    }

    /// Takes a queue into service. `base` is where to go on, as vhost-user's
    /// VHOST_USER_SET_VRING_BASE says it: see [`SplitQueue::new`] and [`PackedQueue::new`].
    ///
    /// # Errors
    /// As there; [`RingError::NoIndex`] for a base that only a packed ring can have.
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
    /// The driver may be owed an interrupt then: [`recovered`](Self::recovered).
    ///
    /// # Errors
    /// As for `new`; [`RingError::Inflight`] if what is in flight and the ring cannot both be true.
    pub fn with_inflight(
        memory: Arc<GuestMemory>,
        layout: RingLayout,
        base: u32,
        features: Features,
        inflight: Option<QueueInflight>,
    ) -> Result<Self, RingError> {
        if features.packed {
            return PackedQueue::with_inflight(memory, layout, base, features, inflight).map(Self::Packed);
        }
        let base = u16::try_from(base).map_err(|_| RingError::NoIndex(base))?;
        SplitQueue::with_inflight(memory, layout, base, features, inflight).map(Self::Split)
    }

    /// How many chains a predecessor left in flight and this queue completed unsent; `None` if it
    /// recovered nothing. If it did, [`publish`](Self::publish) and call the driver, completions
    /// or not.
    pub fn recovered(&self) -> Option<u16> {
        either!(self, queue => queue.recovered())
    }

    /// Takes the queue out of service, in order: what is completed is published, nothing is in
    /// flight. Returns the [`base`](Self::base), where it goes on; the in-flight region says the
    /// same from here on. A queue that is only dropped is recovered by the next one.
    pub fn retire(self) -> u32 {
        either!(self, queue => queue.retire())
    }

    /// Looks for chains the driver added; returns how many can be popped. A packed ring shows those
    /// of a long burst over several calls.
    ///
    /// # Errors
    /// [`RingError::AvailableIndex`], of a split ring. A packed one has no index to lie with.
    #[inline]
    pub fn available(&mut self) -> Result<u16, RingError> {
        match self {
            Self::Split(queue) => queue.available(),
            Self::Packed(queue) => Ok(queue.available()),
        }
    }

    /// Chains that can be popped without another look.
    #[inline]
    pub fn pending(&self) -> u16 {
        either!(self, queue => queue.pending())
    }

    /// Chains popped and not completed.
    #[inline]
    pub fn in_flight(&self) -> u16 {
        either!(self, queue => queue.in_flight())
    }

    /// What the driver calls the chain in flight that [`complete`](Self::complete) wants so.
    #[cfg(test)]
    pub(super) fn head_of(&self, token: u16) -> u16 {
        either!(self, queue => queue.head_of(token))
    }

    /// With VIRTIO_F_IN_ORDER: the oldest chain in flight, as [`complete`](Self::complete) wants it,
    /// and how many are completed behind it, which the driver gets back only after it. `None` where
    /// chains go back in any order.
    pub fn held_back(&self) -> Option<(u16, u16)> {
        either!(self, queue => queue.held_back())
    }

    /// Entries of the ring.
    #[inline]
    pub fn size(&self) -> u16 {
        either!(self, queue => queue.size())
    }

    /// Pops the next chain of a transmit queue: buffers for the device to read. `false` if none
    /// is [`pending`](Self::pending).
    ///
    /// # Errors
    /// What the driver got wrong. If it [is fatal](RingError::is_fatal), nothing was popped;
    /// otherwise the chain was popped and [`Chain::head`] is to be completed with length 0.
    #[inline]
    pub fn pop_readable(&mut self, chain: &mut Chain) -> Result<bool, RingError> {
        either!(self, queue => queue.pop_readable(chain))
    }

    /// Pops the next chain of a receive queue: buffers for the device to write. `false` if none
    /// is [`pending`](Self::pending).
    ///
    /// # Errors
    /// As for [`pop_readable`](Self::pop_readable).
    #[inline]
    pub fn pop_writable(&mut self, chain: &mut Chain) -> Result<bool, RingError> {
        either!(self, queue => queue.pop_writable(chain))
    }

    /// Pops the next pending chains of a queue (`WRITE`: of a receive queue) as long as each is
    /// one buffer; returns how many. Their buffers are being fetched into the cache. What else
    /// there is, errors too, is left to [`pop_readable`](Self::pop_readable) and
    /// [`pop_writable`](Self::pop_writable).
    #[inline]
    pub fn pop_singles<const WRITE: bool>(&mut self, out: &mut [Single]) -> usize {
        either!(self, queue => queue.pop_singles::<WRITE>(out))
    }

    /// Puts what [`pop_singles`](Self::pop_singles) popped last back, or the last of it.
    #[inline]
    pub fn put_back(&mut self, last: &[Single]) {
        either!(self, queue => queue.put_back(last));
    }

    /// Puts the last `n` popped chains back, for the next pops to find again: receive buffers
    /// that were too few for a frame. Not for those of [`pop_singles`](Self::pop_singles).
    ///
    /// # Panics
    /// If fewer than `n` are in flight. Chains popped since must not have been completed.
    #[inline]
    pub fn rewind(&mut self, n: u16) {
        either!(self, queue => queue.rewind(n));
    }

    /// Gives a popped chain back by its [`Chain::head`], `len` bytes of it written (0 in a transmit
    /// queue). Chains may be completed in any order; with VIRTIO_F_IN_ORDER one that is completed
    /// before an older one waits for it. The driver sees it after [`publish`](Self::publish).
    #[inline]
    pub fn complete(&mut self, head: u16, len: u32) {
        either!(self, queue => queue.complete(head, len));
    }

    /// As [`complete`](Self::complete), for many.
    #[inline]
    pub fn complete_all(&mut self, done: impl Iterator<Item = (u16, u32)>) {
        either!(self, queue => queue.complete_all(done));
    }

    /// Gives what [`pop_singles`](Self::pop_singles) popped in one call back, or the first of it:
    /// nothing was written to it.
    #[inline]
    pub fn complete_singles(&mut self, done: &[Single]) {
        either!(self, queue => queue.complete_singles(done));
    }

    /// Shows the driver what was completed; returns whether it wants an interrupt. Once per batch,
    /// not per chain: it is a full fence. The first call always returns `true`.
    #[inline]
    #[must_use = "a driver that asked for an interrupt waits for it"]
    pub fn publish(&mut self) -> bool {
        either!(self, queue => queue.publish())
    }

    /// Tells the driver not to kick: this queue is polled. A hint; kicks may still come.
    pub fn suppress_kicks(&mut self) {
        either!(self, queue => queue.suppress_kicks());
    }

    /// Asks the driver to kick when it adds a chain that [`available`](Self::available) has
    /// not seen. Returns whether there is one already: poll again then, a kick may not come.
    #[must_use = "sleeping although chains arrived may be for ever"]
    pub fn request_kicks(&mut self) -> bool {
        either!(self, queue => queue.request_kicks())
    }

    /// The number of the next chain to be popped, modulo 2^16.
    #[inline]
    pub fn next_avail(&self) -> u16 {
        either!(self, queue => queue.next_avail())
    }

    /// Where the ring stands, as [`new`](Self::new) takes it (vhost-user,
    /// VHOST_USER_GET_VRING_BASE).
    pub fn base(&self) -> u32 {
        match self {
            Self::Split(queue) => queue.next_avail().into(),
            Self::Packed(queue) => queue.base(),
        }
    }

    /// Goes on in a new memory table, at the same user addresses. Spans popped before lead into
    /// the old one, which the caller keeps until they are dropped.
    ///
    /// # Errors
    /// [`RingError::PartUnmapped`] or [`RingError::PartUnaligned`]; the queue then still works
    /// in the old table.
    pub fn remap(&mut self, memory: Arc<GuestMemory>) -> Result<(), RingError> {
        either!(self, queue => queue.remap(memory))
    }
}
