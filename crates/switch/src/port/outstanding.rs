//! Frames that a link holds: posted, and not completed.
//!
//! ```text
//!  scheduler ─▶ post ─▶ Later ─▶ ▤▤▤▤ ─▶ completed, the oldest first ─▶ fate
//!                                 │ at most `depth` frames, and so many bytes
//!                                 └─▶ cancelled: after LONGEST, or with the receiver
//! ```
//!
//! They have left the scheduler: no deadline, hold time or relief takes them back. Each keeps its slot and its
//! sender's memory until its fate is settled, so a thread that waits for a sender's frames waits for these too.

use crate::fdb::PortIndex;
use crate::sched::Queued;
use crate::slots::FrameRef;
use std::collections::VecDeque;

/// Longest that a link may hold a frame, ns, before all that it holds is cancelled: as long as a receiver without
/// buffers keeps a frame waiting. It does not grow where the rate of the egress is low: what a link has, it may send.
pub const LONGEST: u64 = 10_000_000;

/// A frame that a link holds, or a part of one.
#[derive(Clone, Copy, Debug)]
pub struct HeldFrame {
    /// The frame, as it waited.
    pub queued: Queued<FrameRef>,
    /// Who sent it.
    pub source: PortIndex,
    /// What the part is on the wire, frames and bytes, if it is not the last of its frame. The rest of that has a fate of its own,
    /// which may be settled before this: no one follows the reference to the frame then.
    pub part: Option<(u32, u32)>,
    /// Since when it waits for its receiver, ns: for room at the link, then for being completed.
    pub blocked_since: u64,
    /// When it was posted, ns.
    posted: u64,
}

impl HeldFrame {
    /// Bytes of what is held.
    fn bytes(&self) -> u64 {
        self.part.map_or(self.queued.bytes, |(_, bytes)| bytes).into()
    }
}

/// Frames that a link holds, in the order in which they were posted.
#[derive(Debug)]
pub struct Outstanding {
    frames: VecDeque<HeldFrame>,
    /// Of these, on the wire.
    bytes: u64,
    depth: usize,
}

impl Outstanding {
    /// Of a link that holds at most `depth` frames: nothing is allocated later.
    pub fn new(depth: usize) -> Self {
        Self { frames: VecDeque::with_capacity(depth), bytes: 0, depth }
    }

    /// Whether the link holds nothing.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Whether it may hold a frame of `bytes` besides, where it may hold `most` bytes.
    pub fn has_room(&self, bytes: u32, most: u64) -> bool {
        self.frames.len() < self.depth && self.bytes + u64::from(bytes) <= most
    }

    /// A frame was posted at `now`, which has stood without room since `blocked_since`; or a [part](HeldFrame::part) of it.
    pub fn push(&mut self, queued: Queued<FrameRef>, part: Option<(u32, u32)>, blocked_since: u64, now: u64) {
        debug_assert!(self.frames.len() < self.depth, "a link holds no more than it says");
        let source = queued.frame.get().source;
        let held = HeldFrame { queued, source, part, blocked_since: blocked_since.min(now), posted: now };
        self.bytes += held.bytes();
        self.frames.push_back(held);
    }

    /// The oldest of them ended.
    pub fn pop(&mut self) -> Option<HeldFrame> {
        let held = self.frames.pop_front()?;
        self.bytes -= held.bytes();
        Some(held)
    }

    /// Whether the oldest was held for too long at `now`.
    pub fn is_overdue(&self, now: u64) -> bool {
        self.frames.front().is_some_and(|held| now.saturating_sub(held.posted) >= LONGEST)
    }

    /// Whether there is a frame of `source`. Looks at each.
    pub fn has_any_of(&self, source: PortIndex) -> bool {
        self.frames.iter().any(|held| held.source == source)
    }
}
