//! Frames in flight: the copied head, and the place of the payload.
//!
//! ```text
//!  tx ring, tap ──▶ Slots::take ──▶ Frame (headers copied, payload referenced)
//!                       ▲                │ FrameRef: owner's worker ─▶ egress's worker
//!                       └── Slots::give ◀┘ once, back on the owner's worker
//! ```
//!
//! The worker that owns a [`Frame`]'s source writes it; then one worker at a time reads it until it comes
//! back. That makes passing a bare pointer between workers sound.

use super::arrival::Arrival;
use super::buffers::BufferIndex;
use super::leaks::note_leak;
use crate::fdb::{PeerIndex, PortIndex, SegmentIndex};
use crate::frame::{FlowKey, HEADER_MAX, Headers, HostEnd, Offload, VnetHdr};
use crate::sched::{Keyed, SourceId};
use crate::virtio::{MAX_SPANS, Span};
use std::cell::{Cell, UnsafeCell};
use std::ops::Range;
use std::ptr::NonNull;
use tidegate_uplink::stamp::Stamp;

/// No deadline.
pub const NEVER: u64 = u64::MAX;

/// The egress of a frame that waits to be sent.
pub const NOWHERE: PortIndex = PortIndex::MAX;

/// The owner of a frame's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// A transmit ring of the source: the chain that starts at `head`.
    Ring {
        /// Queue pair.
        queue: u16,
        /// First descriptor.
        head: u16,
    },
    /// The byte pool of the source, a link without rings.
    Pool {
        /// First chunk; the others are linked to it.
        first: u32,
        /// How many chunks.
        chunks: u16,
    },
    /// The guest that receives it: the device wrote it to that one's buffers.
    Landed {
        /// The landing's number.
        landing: u32,
        /// The slot there.
        slot: u16,
    },
    /// One of the pieces that a super-frame was cut into.
    Piece {
        /// The super-frame.
        whole: FrameRef,
    },
    /// A flooded copy, in a buffer of the source's worker.
    Buffer {
        /// The buffer.
        buffer: BufferIndex,
    },
    /// The slot is free.
    Free,
}

/// The stamp of a frame from another host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamped {
    /// The stamp.
    pub stamp: Stamp,
    /// Its vNIC keeps to its declared envelope: the frame has a deadline here.
    pub conforms: bool,
}

/// A frame in flight.
#[derive(Clone)]
pub struct Frame {
    /// The port it came from.
    pub source: PortIndex,
    /// Its segment. A port of one segment sets it for all of its frames.
    pub segment: SegmentIndex,
    /// The host that sent it, if another one did.
    pub peer: Option<PeerIndex>,
    /// Its stamp, which a registered vNIC's host made.
    pub stamp: Option<Stamped>,
    /// The worker whose pool a flooded copy returns to; for other frames, the one at which their queue was
    /// started.
    pub worker: u16,
    /// Its slot, in the owner's [`Slots`].
    pub slot: u16,
    /// Unsettled pieces of a cut frame. Only the owner uses it: a cell, since it changes while other
    /// workers read the rest.
    pub shares: Cell<u16>,
    /// The owner of the memory.
    pub owner: Owner,
    /// Its destination, or [`NOWHERE`].
    pub egress: PortIndex,
    /// Bytes, without the virtio header.
    pub len: u32,
    /// Bytes on the wire: every segment with its headers.
    pub wire_bytes: u32,
    /// Segments on the wire.
    pub wire_frames: u32,
    /// Earliest start of the deadline's clock (Ts, ns): the later of [arrival](crate::slots::Arrival) and
    /// conformance.
    pub started: u64,
    /// Latest start (ns).
    pub started_by: u64,
    /// Time before `started` in which it may have started while the worker slept (ns).
    pub slept: u64,
    /// Its wait for the envelope before that (ns).
    pub waited_for_tokens: u64,
    /// Ts + Td, or [`NEVER`].
    pub deadline: u64,
    /// The checked offload request.
    pub offload: Offload,
    /// The sender's virtio header.
    pub vnet: VnetHdr,
    /// The parsed headers; for an untagged frame without requests, only the addresses are certain.
    pub headers: Headers,
    /// Bytes of `bytes` in use.
    pub head_len: u16,
    /// Entries of `spans` in use.
    pub span_count: u16,
    /// The frame's copied first bytes: decided on and delivered.
    pub bytes: [u8; HEADER_MAX],
    /// The rest, in the source's memory. A piece of a cut frame may begin in the whole's copied bytes, so
    /// there is one more than a chain has.
    pub spans: [Span; MAX_SPANS + 1],
}

impl Frame {
    /// The copied first bytes.
    #[inline]
    pub fn head(&self) -> &[u8] {
        &self.bytes[..self.head_len as usize]
    }

    /// Returns the places of the rest.
    #[inline]
    pub fn payload(&self) -> &[Span] {
        &self.spans[..self.span_count as usize]
    }

    /// Returns a number that spreads flows over a receiver's queues.
    pub fn flow(&self) -> u32 {
        crate::frame::flow(self.head(), self.len as usize)
    }

    /// Releases one share; `true` if it was the last. Only the owner's worker calls this.
    #[inline]
    pub fn release(&self) -> bool {
        self.shares.set(self.shares.get() - 1);
        self.shares.get() == 0
    }

    /// Starts its deadline's clock, at `started` at the earliest.
    #[inline]
    pub fn start(&mut self, arrival: &Arrival, started: u64) {
        self.started = started;
        self.started_by = arrival.started_by(started);
        self.slept = arrival.slept_before(started);
        self.waited_for_tokens = started - arrival.earliest;
    }

    /// The source in a scheduler: its frames with a deadline from other hosts are one of their own.
    #[inline]
    pub fn scheduled_as(&self) -> SourceId {
        match self.stamp {
            Some(Stamped { conforms: true, .. }) => SourceId::arrivals(self.source),
            _ => self.source.into(),
        }
    }

    /// Whether it carries a deadline.
    #[inline]
    pub fn is_realtime(&self) -> bool {
        self.deadline != NEVER
    }
}

/// A reference to a frame in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameRef(NonNull<Frame>);

// SAFETY: only the worker that has a FrameRef uses it (see the module's text).
unsafe impl Send for FrameRef {}

impl Keyed for FrameRef {
    /// Its host is the destination: it waits for its receiver.
    fn flow_key(&self) -> FlowKey {
        let frame = self.get();
        FlowKey::of(frame.head(), frame.len as usize, HostEnd::Destination)
    }
}

impl FrameRef {
    /// The frame.
    #[inline]
    pub fn get(&self) -> &Frame {
        // SAFETY: slots outlive every reference to them: a port gives its slots up only once all its frames
        // came back.
        unsafe { self.0.as_ref() }
    }

    /// Returns the frame, for the worker that owns its source.
    #[inline]
    #[allow(
        clippy::mut_from_ref,
        reason = "FrameRef is the exclusive handle; Copy only to pass through queues"
    )]
    pub fn get_mut(&self) -> &mut Frame {
        // SAFETY: the owner calls this only before it passes the frame on and after its return, when no
        // other reference is used.
        unsafe { &mut *self.0.as_ptr() }
    }
}

/// Slots made at a time beyond those for frames in flight.
const STEP: usize = 32;

/// Slots for frames in flight, a fixed number of them, and for frames that [wait to be
/// sent](Self::begin_wait) in addition.
///
/// ```text
///  frames │ sent │ waits │ sent │ free ... │     made at once: as many as may be sent and not back
///  more   │ waits ... │ ▸ waits, free │ ▸      made by STEP where frames wait; they stay as long as all do
/// ```
///
/// A frame may have any of them.
pub struct Slots {
    frames: Box<[UnsafeCell<Frame>]>,
    free: Vec<u16>,
    /// Further ones, by [`STEP`].
    more: Vec<Box<[UnsafeCell<Frame>]>>,
    source: PortIndex,
    worker: u16,
    /// Slots of waiting frames.
    waiting: usize,
    /// Slots of pieces.
    pieces: usize,
}

// SAFETY: the frames' pointers lead into memory that no thread owns; only the worker that owns the port
// uses the slots, wherever the port moves.
unsafe impl Send for Slots {}

impl Slots {
    /// Returns `count` slots for frames of port `source`, owned by `worker`: as many may be in flight.
    pub fn new(count: u16, source: PortIndex, worker: u16) -> Self {
        Self {
            frames: frames(0..count, source, worker),
            free: (0..count).rev().collect(),
            more: Vec::new(),
            source,
            worker,
            waiting: 0,
            pieces: 0,
        }
    }

    /// Takes a free slot of those made. The caller [asks](Self::available) whether it may.
    #[inline]
    pub fn take(&mut self) -> Option<FrameRef> {
        let slot = usize::from(self.free.pop()?);
        let frame = match self.frames.get(slot) {
            Some(frame) => frame,
            None => self.further(slot)?,
        };
        NonNull::new(frame.get()).map(FrameRef)
    }

    /// Takes a free slot, or makes some. The caller bounds their number.
    pub fn take_or_make(&mut self) -> Option<FrameRef> {
        if self.free.is_empty() {
            self.make();
        }
        self.take()
    }

    #[cold]
    fn make(&mut self) {
        let made = self.made();
        let (Ok(from), Ok(end)) = (u16::try_from(made), u16::try_from(made + STEP)) else { return };
        self.more.push(frames(from..end, self.source, self.worker));
        self.free.extend((from..end).rev());
    }

    #[cold]
    fn further(&self, slot: usize) -> Option<&UnsafeCell<Frame>> {
        let slot = slot - self.frames.len();
        self.more.get(slot / STEP)?.get(slot % STEP)
    }

    /// Takes a slot back.
    #[inline]
    pub fn give(&mut self, frame: FrameRef) {
        frame.get_mut().owner = Owner::Free;
        self.free.push(frame.get().slot);
    }

    /// Notes that a frame with a slot waits to be sent.
    pub fn begin_wait(&mut self) {
        self.waiting += 1;
    }

    /// Notes that it no longer waits.
    pub fn end_wait(&mut self) {
        debug_assert!(self.waiting > 0, "none waits");
        self.waiting = self.waiting.saturating_sub(1);
    }

    /// Notes that a slot is a piece's.
    pub fn note_piece(&mut self) {
        self.pieces += 1;
    }

    /// Notes that a piece's slot came back.
    #[inline]
    pub fn end_piece(&mut self) {
        self.pieces -= 1;
    }

    /// Returns the slots of waiting frames.
    #[cfg(test)]
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// Returns the slots of pieces.
    pub fn pieces(&self) -> usize {
        self.pieces
    }

    /// Returns the frame of that owner, if any. Looks at each slot.
    pub fn find(&self, owner: Owner) -> Option<FrameRef> {
        let all = self.frames.iter().chain(self.more.iter().flatten());
        let mut frames = all.filter_map(|frame| NonNull::new(frame.get()).map(FrameRef));
        frames.find(|frame| frame.get().owner == owner)
    }

    /// Returns the number of slots made.
    pub fn made(&self) -> usize {
        self.frames.len() + self.more.len() * STEP
    }

    /// Returns the slots in use.
    pub fn in_flight(&self) -> usize {
        self.made() - self.free.len()
    }

    /// Returns how many more frames may be sent before one comes back.
    #[inline]
    pub fn available(&self) -> usize {
        (self.free.len() + self.waiting).saturating_sub(self.more.len() * STEP)
    }
}

/// Returns free slots with these numbers.
fn frames(slots: Range<u16>, source: PortIndex, worker: u16) -> Box<[UnsafeCell<Frame>]> {
    let frame = |slot| {
        UnsafeCell::new(Frame {
            source,
            segment: SegmentIndex(0),
            peer: None,
            stamp: None,
            worker,
            slot,
            shares: Cell::new(0),
            owner: Owner::Free,
            egress: 0,
            len: 0,
            wire_bytes: 0,
            wire_frames: 0,
            started: 0,
            started_by: 0,
            slept: 0,
            waited_for_tokens: 0,
            deadline: NEVER,
            offload: Offload::None,
            vnet: VnetHdr::default(),
            headers: Headers::NONE,
            head_len: 0,
            span_count: 0,
            bytes: [0; HEADER_MAX],
            spans: [Span::EMPTY; MAX_SPANS + 1],
        })
    };
    slots.map(frame).collect()
}

impl Drop for Slots {
    fn drop(&mut self) {
        // Memory with pointers to it is leaked, not freed.
        if self.in_flight() > 0 {
            let in_flight = self.in_flight();
            std::mem::forget(std::mem::take(&mut self.frames));
            std::mem::forget(std::mem::take(&mut self.more));
            note_leak(in_flight);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_lent_once_and_come_back() {
        let mut slots = Slots::new(2, 3, 0);
        let (a, b) = (slots.take().unwrap(), slots.take().unwrap());
        assert_ne!(a, b);
        assert!(slots.take().is_none());
        slots.give(a);
        assert_eq!(slots.take(), Some(a));
        let owner = Owner::Ring { queue: 0, head: 7 };
        assert_eq!(slots.find(owner), None);
        a.get_mut().owner = owner;
        assert_eq!(slots.find(owner), Some(a));
        slots.give(a);
        assert_eq!(slots.find(owner), None);
        slots.give(b);
        assert_eq!(slots.in_flight(), 0);
        assert_eq!(b.get().source, 3);
    }

    #[test]
    fn as_many_are_made_as_wait_and_as_many_are_sent_as_may_be() {
        let mut slots = Slots::new(4, 3, 7);
        let mut waiting: Vec<_> = (0..100).map(|_| slots.take_or_make().unwrap()).collect();
        waiting.iter().for_each(|_| slots.begin_wait());
        assert_eq!((slots.in_flight(), slots.available(), slots.made()), (100, 4, 4 + 3 * STEP));
        for (left, frame) in (0..4).rev().zip(waiting.split_off(96)) {
            slots.end_wait();
            assert_eq!(slots.available(), left);
            assert_eq!((frame.get().source, frame.get().worker), (3, 7));
            let owner = Owner::Ring { queue: 0, head: 7 };
            frame.get_mut().owner = owner;
            assert_eq!(slots.find(owner), Some(frame));
            waiting.push(frame);
            frame.get_mut().owner = Owner::Free;
        }
        let mut numbers: Vec<_> = waiting.iter().map(|frame| frame.get().slot).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), 100, "each is lent once");
        for (back, frame) in waiting.into_iter().rev().enumerate() {
            if back >= 4 {
                slots.end_wait();
            }
            slots.give(frame);
        }
        assert_eq!((slots.in_flight(), slots.available(), slots.made()), (0, 4, 4 + 3 * STEP));
    }
}
