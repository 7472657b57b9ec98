//! Frames that a link holds: posted, and not completed.
//!
//! ```text
//!  scheduler ─▶ post ─▶ Later ─▶ ▤▤▤▤ ─▶ completed, the oldest first ─▶ fate
//!                                 │ at most `depth` frames, and so many bytes
//!                                 └─▶ cancelled: after the link's longest time, or with the receiver
//! ```
//!
//! They have left the scheduler: no deadline, hold time or relief takes them back. Each keeps its slot and
//! its sender's memory until it is settled, so waiting for a sender's frames includes these. A frame of which the
//! link holds a part has its fate behind that part, however its rest ended: the link may read both.

use crate::fdb::PortIndex;
use crate::sched::Queued;
use crate::slots::FrameRef;
use std::collections::VecDeque;
use tidegate_evidence::DropReason;

/// A frame that a link holds, or a part of one.
#[derive(Clone, Copy, Debug)]
pub struct HeldFrame {
    /// The waiting frame.
    pub queued: Queued<FrameRef>,
    /// Its sender.
    pub source: PortIndex,
    /// Frames and bytes of the part on the wire, if it is not the frame's last.
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

/// A frame whose rest has ended, is counted, and waits for the parts that the link holds.
#[derive(Clone, Copy, Debug)]
pub struct EndedFrame {
    /// The frame.
    pub frame: FrameRef,
    /// The reason of a drop.
    pub dropped: Option<DropReason>,
    /// When the egress queued it (ns).
    pub queued: u64,
    /// Time at the head without receive buffers (ns).
    pub buffers: u64,
    /// Port whose frame left right before it, while it waited.
    pub behind: Option<PortIndex>,
}

/// What waits for a link.
#[derive(Clone, Copy, Debug)]
pub enum Entry {
    /// The link holds it.
    Held(HeldFrame),
    /// It ends when it is the oldest.
    Ended(EndedFrame),
}

impl Entry {
    /// Returns the sender.
    pub fn source(&self) -> PortIndex {
        match self {
            Self::Held(held) => held.source,
            Self::Ended(ended) => ended.frame.get().source,
        }
    }

    fn is_part_of(&self, frame: FrameRef) -> bool {
        matches!(self, Self::Held(held) if held.part.is_some() && held.queued.frame == frame)
    }
}

/// Frames that a link holds, in posting order.
#[derive(Debug)]
pub struct Outstanding {
    entries: VecDeque<Entry>,
    /// Of these, held ones.
    held: usize,
    /// Of those, on the wire.
    bytes: u64,
    depth: usize,
    longest: u64,
}

impl Outstanding {
    /// Returns room for a link that holds up to `depth` frames, each for at most `longest` ns: nothing is allocated later.
    pub fn new(depth: usize, longest: u64) -> Self {
        // Beside those held: frames that ended behind parts which were there when the oldest came, or came since; fewer than
        // `depth` of both kinds.
        Self { entries: VecDeque::with_capacity(3 * depth), held: 0, bytes: 0, depth, longest }
    }

    /// Whether nothing waits for the link.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether the link may hold another frame of `bytes`, within `most` bytes.
    pub fn has_room(&self, bytes: u32, most: u64) -> bool {
        self.held < self.depth && self.bytes + u64::from(bytes) <= most
    }

    /// Adds a frame, or a [part](HeldFrame::part), posted at `now` that has lacked room since
    /// `blocked_since`.
    pub fn push(&mut self, queued: Queued<FrameRef>, part: Option<(u32, u32)>, blocked_since: u64, now: u64) {
        debug_assert!(self.held < self.depth, "a link holds no more than it says");
        let source = queued.frame.get().source;
        let held = HeldFrame { queued, source, part, blocked_since: blocked_since.min(now), posted: now };
        self.bytes += held.bytes();
        self.held += 1;
        self.entries.push_back(Entry::Held(held));
    }

    /// Lets a frame, whose rest of `bytes` has ended, end behind the parts of it that the link holds; `false` if there are
    /// none, and nothing is added.
    #[inline]
    #[must_use]
    pub fn push_ended(&mut self, ended: EndedFrame, bytes: u32) -> bool {
        !self.entries.is_empty() && bytes < ended.frame.get().wire_bytes && self.push_behind(ended)
    }

    #[cold]
    fn push_behind(&mut self, ended: EndedFrame) -> bool {
        let is_held = self.entries.iter().rev().any(|entry| entry.is_part_of(ended.frame));
        if is_held {
            self.entries.push_back(Entry::Ended(ended));
        }
        is_held
    }

    /// Returns the oldest.
    pub fn oldest(&self) -> Option<&Entry> {
        self.entries.front()
    }

    /// Removes the oldest, which has ended.
    pub fn pop(&mut self) -> Option<Entry> {
        let entry = self.entries.pop_front()?;
        if let Entry::Held(held) = &entry {
            self.bytes -= held.bytes();
            self.held -= 1;
        }
        Some(entry)
    }

    /// Whether the oldest is held for too long at `now`.
    pub fn is_overdue(&self, now: u64) -> bool {
        matches!(self.oldest(), Some(Entry::Held(held)) if now.saturating_sub(held.posted) >= self.longest)
    }

    /// Whether it has a frame of `source`. Looks at each.
    pub fn has_any_of(&self, source: PortIndex) -> bool {
        self.entries.iter().any(|entry| entry.source() == source)
    }
}
