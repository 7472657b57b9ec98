//! Slots for frames that land in a guest's buffers: what the port's worker and the uplink's worker share. The only file here
//! that reads and writes these buffers.
//!
//! ```text
//!  slot │ scratch: GRH, header (ours) │ buffers: 12 bytes for the virtio header, frame ─▶ next buffer ... (the guest's)
//!        ▲ the device writes both       ▲ the head is copied once, and all is decided on the copy
//!
//!  PortHalf ─ fill, post ─▶ device ─▶ take ─▶ Taken ─ land ─▶ frame ... ─▶ PortHalf: deliver ─▶ come_back
//! ```
//!
//! [`stages`](super::stages) tell who has a slot. A landing keeps the guest's memory mapped: as long as a frame lies in a slot, the
//! frame's spans are valid, whatever became of queue pair, ring and front end.

use super::counters::GuestCounters;
use super::guest::GuestRegions;
use super::memory::Buffers;
use super::setup::Setup;
use super::stages::Stages;
use crate::fdb::PortIndex;
use crate::frame::{HEADER_MAX, Payload, VnetHdr};
use crate::virtio::{GuestMemory, Single, Span};
use smallvec::SmallVec;
use std::cell::UnsafeCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use tidegate_uplink::rdma::header;
use tidegate_verbs::{Error, GRH, Region};

/// Most slots of a port.
pub const SLOTS: u16 = 128;
/// Most buffers of a slot. With the scratch they are the pieces of one request.
pub const BUFFERS: usize = 7;
/// Bytes of a slot's scratch: GRH and header.
pub const SCRATCH: usize = GRH + header::LEN;
/// Longest frame that finds room, whatever the port's MTU is.
pub const LONGEST: usize = super::setup::LONGEST - header::LEN;
/// Length of the virtio header before a frame: with mergeable buffers alone frames land.
pub const VIRTIO: usize = VnetHdr::LEN;

/// The buffers of a slot.
pub type Chains = SmallVec<[Single; BUFFERS]>;

/// Slots of one port, in one table of its guest's memory.
pub struct Landing {
    /// Its number, which no other one has.
    pub number: u32,
    /// The port.
    pub port: PortIndex,
    pub(super) stages: Stages,
    pub(super) slots: Box<[Slot]>,
    pub(super) scratch: Buffers,
    /// Keeps the buffers mapped.
    _memory: Arc<GuestMemory>,
    counters: Arc<GuestCounters>,
    /// The device has nothing of it any more.
    pub(super) over: Arc<AtomicBool>,
    /// The device did not destroy its queue pair.
    undestroyed: Arc<AtomicBool>,
    /// Its port's driver receives in another way by now.
    is_unfit: AtomicBool,
}

/// One slot.
#[derive(Default)]
pub(super) struct Slot {
    /// Written by the port in `Free`, `Delivered` and `Returned`; read by the uplink's worker in `Taken`.
    pub(super) chains: UnsafeCell<Chains>,
    /// Written by the uplink's worker in `Taken`; read by both in `Landed` and `Delivered`.
    pub(super) frame: UnsafeCell<Head>,
}

/// What is known of a frame that landed.
pub(super) struct Head {
    pub(super) len: u32,
    pub(super) head_len: u16,
    pub(super) bytes: [u8; HEADER_MAX],
}

impl Default for Head {
    fn default() -> Self {
        Self { len: 0, head_len: 0, bytes: [0; HEADER_MAX] }
    }
}

// SAFETY: a slot's cells are used by the side alone to which its stage belongs (see `Slot`); pointers to buffers lead into
// memory that `_memory` keeps mapped, and that no thread owns.
unsafe impl Send for Landing {}
// SAFETY: the same.
unsafe impl Sync for Landing {}

impl std::fmt::Debug for Landing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Landing")
            .field("number", &self.number)
            .field("port", &self.port)
            .finish_non_exhaustive()
    }
}

/// A datagram in a slot, as the uplink's worker looks at it. Dropped, it is refused.
pub struct Taken<'a> {
    landing: &'a Landing,
    at: u16,
    len: u32,
}

impl Landing {
    /// Makes the slots of a port, in its guest's memory. `over` tells that the device has nothing of it any more, `undestroyed` that it
    /// never will. The uplink's link [gets to know](super::Incoming::set_landing) it first, then the port gets [its half](super::PortHalf).
    ///
    /// # Errors
    /// No memory may be registered.
    pub(super) fn new(
        setup: &Setup,
        guest: &GuestRegions,
        [over, undestroyed]: [Arc<AtomicBool>; 2],
    ) -> Result<Arc<Self>, Error> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let scratch = Region::new(&setup.device, usize::from(SLOTS) * SCRATCH)?;
        Ok(Arc::new(Self {
            number: NUMBER.fetch_add(1, Ordering::Relaxed),
            port: guest.port,
            stages: Stages::new(SLOTS),
            slots: (0..SLOTS).map(|_| Slot::default()).collect(),
            scratch: Buffers::new(scratch, SCRATCH),
            _memory: guest.memory().clone(),
            counters: guest.counters().clone(),
            over,
            undestroyed,
            is_unfit: AtomicBool::new(false),
        }))
    }

    /// Returns how many slots the device has.
    #[inline]
    pub fn posted(&self) -> u32 {
        self.stages.posted()
    }

    /// Returns how many slots have frames that are under way, as the uplink's worker sees it.
    #[inline]
    pub(super) fn under_way(&self) -> u32 {
        self.stages.out()
    }

    /// Whether the device has nothing of it any more, and no frame of it is under way.
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire) && !self.stages.are_out()
    }

    /// Whether it never [is over](Self::is_over), since the device did not destroy its queue pair, and no frame of it is under way.
    pub fn is_kept(&self) -> bool {
        self.undestroyed.load(Ordering::Acquire) && !self.stages.are_out()
    }

    /// Notes that its port's driver receives in another way by now: frames are copied, and it is to end.
    pub fn note_unfit(&self) {
        self.is_unfit.store(true, Ordering::Relaxed);
    }

    /// Whether that is so.
    pub fn is_unfit(&self) -> bool {
        self.is_unfit.load(Ordering::Relaxed)
    }

    /// Whether frames of it are under way.
    pub fn are_out(&self) -> bool {
        self.stages.are_out()
    }

    /// Notes that the device is done with a slot, without a datagram. Returns whether it had the slot.
    pub(super) fn flush(&self, at: u16) -> bool {
        self.stages.flush(at)
    }

    /// Takes a slot in which the device wrote `bytes` bytes, with the GRH; `None` if it had no such slot. Copies the frame's
    /// head, which is read once.
    ///
    /// # Errors
    /// It has no frame; the slot is returned.
    #[inline]
    pub(super) fn take(&self, at: u16, bytes: u32) -> Option<Result<Taken<'_>, ()>> {
        if !self.stages.take(at) {
            return None;
        }
        let len = (bytes as usize).checked_sub(SCRATCH).filter(|len| *len <= LONGEST);
        let Some(len) = len else {
            self.stages.refuse(at);
            return Some(Err(()));
        };
        let taken = Taken { landing: self, at, len: len as u32 };
        let (spans, count) = taken.all();
        let slot = &self.slots[usize::from(at)];
        // SAFETY: the slot is taken: its frame is this worker's.
        let frame = unsafe { &mut *slot.frame.get() };
        // SAFETY: the guest's memory is mapped as long as this lives.
        let payload = unsafe { Payload::new(&spans[..count]) };
        let head_len = payload.copy_to(0, &mut frame.bytes[..len.min(HEADER_MAX)]);
        (frame.len, frame.head_len) = (len as u32, head_len as u16);
        Some(Ok(taken))
    }

    /// Returns the bytes of a landed frame beyond its head, which were not copied.
    fn payload_len(&self, at: u16) -> u32 {
        // SAFETY: called while the frame of the slot is with the caller: it does not change.
        let frame = unsafe { &*self.slots[usize::from(at)].frame.get() };
        frame.len - u32::from(frame.head_len)
    }

    /// Notes that a landed frame is back at the uplink's worker; returns the bytes that were not copied if its guest has it.
    pub(super) fn come_back(&self, at: u16) -> Option<u32> {
        if at >= self.stages.count() {
            return None;
        }
        let len = self.payload_len(at);
        let is_delivered = self.stages.come_back(at)?;
        if is_delivered {
            self.counters.received.add(1);
            self.counters.received_bytes.add(len.into());
        }
        is_delivered.then_some(len)
    }
}

impl Taken<'_> {
    /// Returns the slot.
    pub fn slot(&self) -> (u32, u16) {
        (self.landing.number, self.at)
    }

    /// Returns the frame's bytes, and with a stamp those.
    #[inline]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the GRH, and the bytes behind it up to the frame: in the switch's own memory.
    #[inline]
    pub(super) fn before(&self) -> [u8; SCRATCH] {
        // SAFETY: the device is done with the slot, and it is posted again only once it is returned.
        let bytes = unsafe { self.landing.scratch.bytes(self.at, SCRATCH) };
        bytes.and_then(|bytes| bytes.first_chunk().copied()).unwrap_or([0; SCRATCH])
    }

    /// Returns the copied head.
    #[inline]
    pub fn head(&self) -> &[u8] {
        // SAFETY: the slot is taken: its frame is this worker's, and `take` has written it.
        let frame = unsafe { &*self.landing.slots[usize::from(self.at)].frame.get() };
        &frame.bytes[..usize::from(frame.head_len)]
    }

    /// Returns where the frame lies.
    #[inline]
    fn all(&self) -> ([Span; BUFFERS], usize) {
        // SAFETY: the slot is taken: the port does not change its buffers.
        let chains = unsafe { &*self.landing.slots[usize::from(self.at)].chains.get() };
        let (mut spans, mut count, mut left, mut skip) = ([Span::EMPTY; BUFFERS], 0, self.len, VIRTIO as u32);
        for single in chains {
            let len = single.len.saturating_sub(skip).min(left);
            if len > 0 && count < BUFFERS {
                spans[count] = Span { ptr: single.ptr.wrapping_add(skip as usize), len };
                count += 1;
            }
            left -= len;
            skip = 0;
        }
        (spans, count)
    }

    /// Returns where the frame lies behind its head.
    #[inline]
    pub fn rest(&self) -> ([Span; BUFFERS], usize) {
        let (all, count) = self.all();
        let (mut spans, skip) = ([Span::EMPTY; BUFFERS], self.head().len());
        let count = crate::slots::slice_spans(&all[..count], skip, self.len as usize - skip, &mut spans);
        (spans, count)
    }

    /// Returns a copy of its last bytes; `None` if it has fewer.
    pub fn end<const LEN: usize>(&self) -> Option<[u8; LEN]> {
        let (head, (rest, count)) = (self.head(), self.rest());
        // SAFETY: the guest's memory is mapped as long as the landing lives.
        let payload = unsafe { Payload::new(&rest[..count]) };
        let from = (self.len as usize).checked_sub(LEN)?;
        let of_head = head.get(from..).unwrap_or_default();
        let mut end = [0; LEN];
        end[..of_head.len()].copy_from_slice(of_head);
        payload.copy_to(from.saturating_sub(head.len()), &mut end[of_head.len()..]);
        Some(end)
    }

    /// Copies the frame; returns its bytes.
    pub fn copy<'b>(&self, to: &'b mut [u8; LONGEST]) -> &'b [u8] {
        let head = self.head();
        to[..head.len()].copy_from_slice(head);
        let (rest, count) = self.rest();
        // SAFETY: the guest's memory is mapped as long as the landing lives.
        let payload = unsafe { Payload::new(&rest[..count]) };
        let copied = payload.copy_to(0, &mut to[head.len()..]);
        &to[..head.len() + copied]
    }

    /// Lets its frame go its way: the slot comes back with that.
    #[inline]
    pub fn land(self) {
        self.landing.stages.land(self.at);
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        // One that landed is not refused any more.
        self.landing.stages.refuse(self.at);
    }
}
