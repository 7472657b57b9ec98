//! One virtqueue's part of a region.
//!
//! ```text
//!   standing │ kind, size, addresses │ base │ lost      written at start and stop
//!   commit                                              one store completes a frame, or many
//!   journal: Record × entries                           packed: completed, not shown yet
//!   places:  u16 × entries                              tx, by buffer id: 0, or places in the ring
//! ```
//!
//! A split ring needs no journal: its used ring is one, as the driver reads up to the used index. A
//! transmit queue in order needs neither journal nor places: its chains in flight lie between two places of
//! the ring, which the commit names.

use super::Memory;
use crate::virtio::layout::Kind;
use crate::virtio::{RingError, RingLayout};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

/// Values of `Fixed::state`. A region begins as zeros.
const UNUSED: u32 = 0;
const IN_SERVICE: u32 = 1;
const STOPPED: u32 = 2;

/// A virtqueue's state in the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueState {
    /// Never started, or the region is not one of ours.
    Unused,
    /// In service: the process that starts it at the same place recovers it.
    InService,
    /// Taken out of service in order, at this base ([`Queue::retire`](crate::virtio::Queue::retire)). A
    /// process that was asked for the base (VHOST_USER_GET_VRING_BASE) may be killed before its reply: the
    /// next one finds it here.
    Stopped(u32),
}

/// The fixed fields of each queue's part.
#[repr(C)]
struct Fixed {
    state: AtomicU32,
    kind: AtomicU32,
    size: AtomicU32,
    base: AtomicU32,
    lost: AtomicU32,
    _unused: AtomicU32,
    desc: AtomicU64,
    avail: AtomicU64,
    used: AtomicU64,
    _line: [AtomicU64; 2],
    /// In a cache line of its own.
    commit: AtomicU64,
}

/// Bytes of [`Fixed`] and the free space after it.
const FIXED: usize = 128;
const _: () = assert!(size_of::<Fixed>() <= FIXED);

/// A completed chain of a packed ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::virtio) struct Record {
    /// Buffer id.
    pub id: u16,
    /// Places in the ring.
    pub places: u16,
    /// Bytes written.
    pub len: u32,
}

impl Record {
    #[inline]
    pub(in crate::virtio) fn pack(self) -> u64 {
        u64::from(self.len) | u64::from(self.id) << 32 | u64::from(self.places) << 48
    }

    #[inline]
    pub(in crate::virtio) fn unpack(word: u64) -> Self {
        Self { len: word as u32, id: (word >> 32) as u16, places: (word >> 48) as u16 }
    }
}

/// The record of a queue in service, read once. Not yet checked.
#[derive(Debug)]
pub(in crate::virtio) struct Snapshot {
    /// As [`QueueInflight::commit`] or [`QueueInflight::commit_all`] stored it.
    pub commit: (u16, u16, u16),
    /// Chains or places that an earlier predecessor without a region lost.
    pub lost: u16,
    /// As [`QueueInflight::mark`] stored it: one for each entry of the ring.
    pub places: Vec<u16>,
    /// As [`QueueInflight::log`] stored it, likewise.
    pub journal: Vec<Record>,
}

/// The part of one virtqueue in an [`Inflight`](super::Inflight) region. It keeps the mapping alive.
///
/// Clones are the same part; only one queue at a time may use it.
#[derive(Clone, Debug)]
pub struct QueueInflight {
    fixed: *const Fixed,
    journal: *const AtomicU64,
    places: *const AtomicU16,
    entries: u16,
    transmit: bool,
    _memory: Arc<Memory>,
}

// SAFETY: the pointers lead into `_memory`, which no thread owns, and all accesses are atomic.
unsafe impl Send for QueueInflight {}
// SAFETY: as above.
unsafe impl Sync for QueueInflight {}

impl QueueInflight {
    /// Bytes of a queue's part: whole pairs of cache lines, which processors fetch together.
    pub(super) fn bytes(entries: u16) -> usize {
        (FIXED + usize::from(entries) * (size_of::<u64>() + size_of::<u16>())).next_multiple_of(128)
    }

    /// # Safety
    /// `bytes(entries)` bytes at `at` are in `memory`, at a multiple of 8.
    pub(super) unsafe fn at(memory: Arc<Memory>, at: usize, entries: u16, transmit: bool) -> Self {
        let start = memory.start().wrapping_add(at);
        let journal = start.wrapping_add(FIXED);
        let places = journal.wrapping_add(usize::from(entries) * size_of::<u64>());
        Self {
            fixed: start.cast(),
            journal: journal.cast(),
            places: places.cast(),
            entries,
            transmit,
            _memory: memory,
        }
    }

    /// Returns private memory for a queue that no later process recovers, so that the hot path always has a
    /// region.
    pub(in crate::virtio) fn private(entries: u16) -> Self {
        let memory = Memory::private(Self::bytes(entries));
        // SAFETY: exactly so many bytes, and words of 8.
        unsafe { Self::at(memory, 0, entries, false) }
    }

    /// Returns the queue's state.
    pub fn state(&self) -> QueueState {
        let fixed = self.fixed();
        match fixed.state.load(Ordering::Acquire) {
            IN_SERVICE => QueueState::InService,
            STOPPED => QueueState::Stopped(fixed.base.load(Ordering::Relaxed)),
            _ => QueueState::Unused,
        }
    }

    /// Whether this is a transmit queue, whose chains in flight are completed after a kill.
    #[inline]
    pub(in crate::virtio) fn is_transmit(&self) -> bool {
        self.transmit
    }

    /// Returns the record of a queue to recover: it was in service, with the same ring at the same place.
    ///
    /// # Errors
    /// [`RingError::Inflight`]: the region has no room for such a ring, or holds impossible values.
    pub(in crate::virtio) fn snapshot(
        &self,
        layout: &RingLayout,
        kind: Kind,
    ) -> Result<Option<Snapshot>, RingError> {
        if layout.size > self.entries {
            return Err(RingError::Inflight("the region is for fewer entries"));
        }
        let fixed = self.fixed();
        let same = [(&fixed.desc, layout.desc), (&fixed.avail, layout.avail), (&fixed.used, layout.used)]
            .iter()
            .all(|(word, addr)| word.load(Ordering::Relaxed) == *addr);
        if self.state() != QueueState::InService
            || !same
            || fixed.kind.load(Ordering::Relaxed) != kind.bits()
            || fixed.size.load(Ordering::Relaxed) != u32::from(layout.size)
        {
            return Ok(None);
        }
        let lost = fixed.lost.load(Ordering::Relaxed) as u16;
        if kind.in_order && lost > 0 {
            return Err(RingError::Inflight(
                "the record has lost chains, but an in-order ring cannot skip a chain",
            ));
        }
        let commit = fixed.commit.load(Ordering::Relaxed);
        let read = |id| self.place(id).map_or(0, |place| place.load(Ordering::Relaxed));
        let record = |n| self.record(n).map_or(0, |record| record.load(Ordering::Relaxed));
        Ok(Some(Snapshot {
            commit: (commit as u16, (commit >> 16) as u16, (commit >> 32) as u16),
            lost,
            places: (0..layout.size).map(read).collect(),
            journal: (0..layout.size).map(|n| Record::unpack(record(n))).collect(),
        }))
    }

    /// Takes the queue into service, with nothing in flight. A kill meanwhile leaves it as it was, or
    /// unused.
    pub(in crate::virtio) fn enter(
        &self,
        layout: &RingLayout,
        kind: Kind,
        commit: (u16, u16, u16),
        lost: u16,
    ) {
        let fixed = self.fixed();
        self.set_state(UNUSED);
        (0..layout.size).for_each(|id| self.unmark(id));
        for (word, addr) in
            [(&fixed.desc, layout.desc), (&fixed.avail, layout.avail), (&fixed.used, layout.used)]
        {
            word.store(addr, Ordering::Relaxed);
        }
        fixed.kind.store(kind.bits(), Ordering::Relaxed);
        fixed.size.store(layout.size.into(), Ordering::Relaxed);
        fixed.lost.store(lost.into(), Ordering::Relaxed);
        self.commit_all(commit.0, commit.1, commit.2);
        self.set_state(IN_SERVICE);
    }

    /// Takes the queue out of service, with nothing in flight, to continue at `base`.
    pub(in crate::virtio) fn leave(&self, base: u32) {
        self.fixed().base.store(base, Ordering::Relaxed);
        self.set_state(STOPPED);
    }

    fn set_state(&self, standing: u32) {
        self.fixed().state.store(standing, Ordering::Release);
        stored();
    }

    /// Marks buffer `id` as in flight, with so many places.
    #[inline]
    pub(in crate::virtio) fn mark(&self, id: u16, places: u16) {
        if let Some(place) = self.place(id) {
            place.store(places, Ordering::Release);
            stored();
        }
    }

    /// Clears the mark of buffer `id`.
    #[inline]
    pub(in crate::virtio) fn unmark(&self, id: u16) {
        self.mark(id, 0);
    }

    /// Writes the `n`th record of the journal; it is valid once committed.
    #[inline]
    pub(in crate::virtio) fn log(&self, n: u16, record: u64) {
        if let Some(word) = self.record(n) {
            word.store(record, Ordering::Release);
            stored();
        }
    }

    /// One store, so that a kill leaves either the old pair or the new one.
    #[inline]
    pub(in crate::virtio) fn commit(&self, first: u16, second: u16) {
        self.commit_all(first, second, 0);
    }

    /// The same for three values.
    #[inline]
    pub(in crate::virtio) fn commit_all(&self, first: u16, second: u16, third: u16) {
        let all = u64::from(first) | u64::from(second) << 16 | u64::from(third) << 32;
        // Release: all committed data, frames in buffers included, is written before.
        self.fixed().commit.store(all, Ordering::Release);
        stored();
    }

    #[inline]
    fn fixed(&self) -> &Fixed {
        // SAFETY: in `_memory` by the contract of `at`, aligned to 8; all atomics, so any bytes will do.
        unsafe { &*self.fixed }
    }

    #[inline]
    fn place(&self, id: u16) -> Option<&AtomicU16> {
        // SAFETY: below `entries`, so in `_memory` by the contract of `at`; aligned, as all before is.
        (id < self.entries).then(|| unsafe { &*self.places.add(usize::from(id)) })
    }

    #[inline]
    fn record(&self, n: u16) -> Option<&AtomicU64> {
        // SAFETY: as for `place`.
        (n < self.entries).then(|| unsafe { &*self.journal.add(usize::from(n)) })
    }
}

/// Counts a store to memory that outlives the process; tests cut here.
#[inline(always)]
pub(in crate::virtio) fn stored() {
    #[cfg(test)]
    super::cut::stored();
}
