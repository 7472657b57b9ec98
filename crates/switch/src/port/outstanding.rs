//! Frames that a link holds: posted, and not completed.
//!
//! ```text
//!  scheduler ─▶ post ─▶ Later ─▶ ▤▤▤▤ ─▶ completed, the oldest first ─▶ fate
//!                                 │ at most `depth` frames, and so many bytes
//!                                 └─▶ cancelled: after LONGEST, or with the receiver
//! ```
//!
//! They have left the scheduler: no deadline, hold time or relief takes them back. Each keeps its slot and
//! its sender's memory until it is settled, so waiting for a sender's frames includes these.

use crate::fdb::PortIndex;
use crate::sched::Queued;
use crate::slots::FrameRef;
use std::collections::VecDeque;

/// Longest time that a link may hold a frame (ns) before all its frames are cancelled: as long as a
/// receiver without buffers delays one. A low egress rate does not extend it: the link may send all it has.
pub const LONGEST: u64 = 10_000_000;

/// A frame that a link holds, or a part of one.
#[derive(Clone, Copy, Debug)]
pub struct HeldFrame {
    /// The waiting frame.
    pub queued: Queued<FrameRef>,
    /// Its sender.
    pub source: PortIndex,
    /// Frames and bytes of the part on the wire, if it is not the frame's last. The rest has a fate of its
    /// own, which may be settled before: nothing uses the reference to the frame then.
    pub part: Option<(u32, u32)>,
    /// Beginning of its wait for the receiver (ns): for room at the link, then for completion.
    pub blocked_since: u64,
    /// When it was posted, ns.
    posted: u64,
}

impl HeldFrame {
    /// Bytes of the held part.
    fn bytes(&self) -> u64 {
        self.part.map_or(self.queued.bytes, |(_, bytes)| bytes).into()
    }
}

/// Frames that a link holds, in posting order.
#[derive(Debug)]
pub struct Outstanding {
    frames: VecDeque<HeldFrame>,
    /// Of these, on the wire.
    bytes: u64,
    depth: usize,
}

impl Outstanding {
    /// Returns room for a link that holds up to `depth` frames: nothing is allocated later.
    pub fn new(depth: usize) -> Self {
        Self { frames: VecDeque::with_capacity(depth), bytes: 0, depth }
    }

    /// Whether the link holds nothing.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Whether it may hold another frame of `bytes`, within `most` bytes.
    pub fn has_room(&self, bytes: u32, most: u64) -> bool {
        self.frames.len() < self.depth && self.bytes + u64::from(bytes) <= most
    }

    /// Adds a frame, or a [part](HeldFrame::part), posted at `now` that has lacked room since
    /// `blocked_since`.
    pub fn push(&mut self, queued: Queued<FrameRef>, part: Option<(u32, u32)>, blocked_since: u64, now: u64) {
        debug_assert!(self.frames.len() < self.depth, "a link holds no more than it says");
        let source = queued.frame.get().source;
        let held = HeldFrame { queued, source, part, blocked_since: blocked_since.min(now), posted: now };
        self.bytes += held.bytes();
        self.frames.push_back(held);
    }

    /// Removes the oldest, which has ended.
    pub fn pop(&mut self) -> Option<HeldFrame> {
        let held = self.frames.pop_front()?;
        self.bytes -= held.bytes();
        Some(held)
    }

    /// Whether the oldest is held for too long at `now`.
    pub fn is_overdue(&self, now: u64) -> bool {
        self.frames.front().is_some_and(|held| now.saturating_sub(held.posted) >= LONGEST)
    }

    /// Whether it has a frame of `source`. Looks at each.
    pub fn has_any_of(&self, source: PortIndex) -> bool {
        self.frames.iter().any(|held| held.source == source)
    }
}
