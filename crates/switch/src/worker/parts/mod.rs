//! Super-frames whose receivers have too few buffers for all of their segments.
//!
//! ```text
//!  head of its source ─▶ post ─┬─ Done ───────────────────────────────▶ fate: delivered
//!      ▲                       └─ Part: counted; the rest ──┐
//!      │                                                    ├─ no buffer for 10 ms, 40 ms in all ─▶ fate: dropped
//!      └────── buffers; others may have their turn before ◀─┘
//! ```
//!
//! The rest stays at its place in the queue, so order, deadlines, relief, moves and removals treat it as
//! any waiting frame. Its sender gets its memory back, with one fate, when the last part has left or was
//! dropped.

#[cfg(test)]
mod tests;

use super::Worker;
use crate::link::Delivery;
use crate::link::delivery::on_wire;
use crate::port::capture_tap::Direction;
use crate::port::{Egress, Port};
use crate::sched::{Backlog, Queued};
use crate::slots::{FrameRef, NEVER};
use tidegate_evidence::DropReason;

/// Longest time without buffers of a receiver that takes super-frames in parts (ns): as long as one without
/// buffers delays a frame.
const NO_BUFFER: u64 = 10_000_000;
/// Longest wait of frames for a receiver that takes super-frames in parts (ns).
const IN_ALL: u64 = 40_000_000;

impl Worker {
    /// Notes that the first segments of a waiting super-frame left, with `payload` bytes after their
    /// headers; the others found too few buffers. `is_held`: their link completes them later.
    #[inline(never)]
    pub(super) fn end_part(
        &mut self,
        port: &mut Port,
        queued: &Queued<FrameRef>,
        payload: u32,
        is_held: bool,
    ) -> Backlog {
        let frame = queued.frame.get();
        let (frames, bytes) = on_wire(frame, payload);
        debug_assert!(bytes < queued.bytes, "the last part ends the frame");
        self.touched.insert(port.index);
        self.note_time(frame);
        let from = Delivery::of_rest(frame, queued.bytes).from;
        record_part(port, queued, Delivery { from, to: from + payload, ce: false });
        port.egress.scheduler.take_part(self.now, bytes);
        if is_held {
            port.egress.outstanding.push(*queued, Some((frames, bytes)), NEVER, self.now);
        } else {
            note_part(port, (frames, bytes), None);
        }
        let Egress { last_sent, blocked_since, part_at, starved, .. } = &mut port.egress;
        (*last_sent, *part_at, *starved) = ((frame.source, self.now), self.now, None);
        if *blocked_since == NEVER {
            *blocked_since = self.now;
        }
        Backlog { frames: 1, bytes: bytes.into() }
    }

    /// Notes that the rest of a super-frame was delivered.
    #[inline(never)]
    pub(super) fn note_rest(&mut self, port: &mut Port, queued: &Queued<FrameRef>) {
        if self.now.saturating_sub(port.egress.part_at) < NO_BUFFER {
            port.egress.part_at = self.now;
        }
        record_part(port, queued, Delivery::of_rest(queued.frame.get(), queued.bytes));
    }
}

/// Counts a part of a frame, frames and bytes on the wire, at its receiver.
pub(super) fn note_part(port: &Port, (frames, bytes): (u32, u32), dropped: Option<DropReason>) {
    if let Some(reason) = dropped {
        return port.stats.rx.dropped[reason as usize].add(1);
    }
    port.stats.rx.wire_frames.add(frames.into());
    port.stats.rx.wire_bytes.add(bytes.into());
}

/// Copies a delivered part into its receiver's capture, if any.
pub(super) fn record_part(port: &mut Port, queued: &Queued<FrameRef>, what: Delivery) {
    if let Some(capture) = &mut port.capture
        && let Some(part) = what.cut(queued.frame.get())
    {
        capture.record(&part, Direction::ToVm);
    }
}

/// Returns how long a frame without a deadline may wait at an egress that takes nothing at `now`; `hold` if
/// it takes frames whole.
pub(super) fn longest_wait(egress: &Egress, now: u64, hold: u64) -> u64 {
    if now.saturating_sub(egress.part_at) < NO_BUFFER { hold.max(IN_ALL) } else { hold }
}
