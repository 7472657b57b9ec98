//! Departures of frames from an egress: counted at their receiver, and their fates noted.
//!
//! ```text
//!  serve: delivered ─┐                     ┌▶ the receiver's counters, its capture
//!  link: completed ──┼─▶ out of the queue ─┤
//!  held too long ────┘                     └▶ fates ─▶ settle: back at their source
//! ```

use super::crossing::Fate;
use super::outstanding::end_rest;
use super::{Worker, parts};
use crate::clock::clock;
use crate::fdb::PortIndex;
use crate::link::delivery::wire_frames_left;
use crate::port::capture_tap::Direction;
use crate::port::{Egress, Port};
use crate::sched::{Backlog, Queued};
use crate::slots::{Frame, FrameRef, NEVER};
use tidegate_evidence::DropReason;

impl Worker {
    /// Ends the first `frames` of a run, of which `head` is the first, at their egress.
    #[inline]
    pub(super) fn end(
        &mut self,
        port: &mut Port,
        head: &Queued<FrameRef>,
        frames: u32,
        dropped: Option<DropReason>,
    ) -> Backlog {
        self.touched.insert(port.index);
        self.note_time(head.frame.get());
        let Port { index, contract, stats, egress, .. } = port;
        let Egress { scheduler, blocked_since, rate_until, last_sent: last, outstanding, .. } = egress;
        let is_realtime = head.frame.get().is_realtime();
        // A frame that passes best effort in the link did not wait for it.
        let passes = is_realtime && !outstanding.is_empty();
        let since = if passes { NEVER } else { std::mem::replace(blocked_since, NEVER) };
        self.fates.begin(fate(*index, *last, since, head, self.now, dropped));
        let mut sent = SentFrames::default();
        let has_rate = contract.egress.rate.is_some();
        let is_rest_of_held = !outstanding.is_empty() && head.bytes != head.frame.get().wire_bytes;
        // The frames behind the head were queued later.
        let none_waited = waited_for_rate(head, *rate_until, self.now) == 0;
        scheduler.take_run(self.now, frames, |queued| {
            if is_realtime && sent.frames > 0 {
                // Each frame with a deadline gets its cause of waiting.
                let last = (head.frame.get().source, self.now);
                self.fates.begin(fate(*index, last, NEVER, &queued, self.now, dropped));
            }
            self.fates.add(queued.frame);
            sent.add(&queued);
            if has_rate && !none_waited {
                stats.note_token_wait_rx(waited_for_rate(&queued, *rate_until, self.now), 1);
            }
        });
        if has_rate && none_waited {
            stats.note_token_wait_rx(0, frames.into());
        }
        self.count(port, sent, head, dropped);
        if is_rest_of_held {
            self.defer_rest(&mut port.egress, head.bytes);
        }
        Backlog { frames, bytes: sent.bytes }
    }

    /// Concludes a frame that its link held: counts it at its receiver, and sends it back to its source.
    pub(super) fn conclude(
        &mut self,
        port: &mut Port,
        queued: &Queued<FrameRef>,
        blocked_since: u64,
        dropped: Option<DropReason>,
    ) {
        self.fates.push(fate(port.index, port.egress.last_sent, blocked_since, queued, self.now, dropped));
        let mut sent = SentFrames::default();
        sent.add(queued);
        let last = port.egress.last_sent;
        self.count(port, sent, queued, dropped);
        if port.link.rx.lets_realtime_pass() {
            // No frame with a deadline waited for this one.
            port.egress.last_sent = last;
        }
    }

    /// Counts frames at their receiver; `first` is the first, and their fates are the latest ones.
    fn count(
        &mut self,
        port: &mut Port,
        sent: SentFrames,
        first: &Queued<FrameRef>,
        dropped: Option<DropReason>,
    ) {
        let is_rest = first.bytes != first.frame.get().wire_bytes;
        if is_rest && dropped.is_none() {
            self.note_rest(port, first);
        }
        let frames = self.fates.last(sent.frames as usize);
        match dropped {
            None => {
                port.stats.rx.frames.add(sent.frames);
                port.stats.rx.wire_frames.add(sent.wire_frames);
                port.stats.rx.wire_bytes.add(sent.bytes);
                if let Some(capture) = port.capture.as_mut().filter(|_| !is_rest) {
                    frames.iter().for_each(|frame| capture.record(frame.get(), Direction::ToVm));
                }
            }
            Some(reason) => port.stats.rx.dropped[reason as usize].add(sent.frames),
        }
        if let Some(last) = frames.last() {
            port.egress.last_sent = (last.get().source, self.now);
        }
    }

    /// The time is read once a loop; frames with a deadline get the exact time.
    #[inline]
    pub(super) fn note_time(&mut self, frame: &Frame) {
        if frame.is_realtime() {
            self.now = clock();
        }
    }

    /// Drops frames held too long.
    pub(super) fn expire(&mut self, port: &mut Port) -> bool {
        let now = self.now;
        let (index, stats) = (port.index, port.stats);
        let hold = parts::longest_wait(&port.egress, now, port.contract.hold);
        let Egress { scheduler, blocked_since, last_sent: last, outstanding, .. } = &mut port.egress;
        let before = self.fates.len();
        scheduler.expire(now, hold, |_, queued: Queued<FrameRef>| {
            let late = queued.frame.get().is_realtime();
            let reason = if late { DropReason::Late } else { DropReason::HeldTooLong };
            stats.rx.dropped[reason as usize].add(1);
            let fate = fate(index, *last, *blocked_since, &queued, now, Some(reason));
            end_rest(&mut self.fates, outstanding, queued.bytes, fate);
        });
        before != self.fates.len()
    }
}

/// Frames that left, and their size on the wire.
#[derive(Clone, Copy, Default)]
struct SentFrames {
    frames: u64,
    wire_frames: u64,
    bytes: u64,
}

impl SentFrames {
    #[inline]
    fn add(&mut self, queued: &Queued<FrameRef>) {
        self.frames += 1;
        self.wire_frames += u64::from(wire_frames_left(queued.frame.get(), queued.bytes));
        self.bytes += u64::from(queued.bytes);
    }
}

/// Returns how long a frame that leaves at `now` waited for its egress's rate, which last delayed one until
/// `rate_until`.
#[inline]
pub(super) fn waited_for_rate(queued: &Queued<FrameRef>, rate_until: u64, now: u64) -> u64 {
    rate_until.min(now).saturating_sub(queued.enqueued)
}

/// Returns a frame's fate, with its waiting times at the egress.
pub(super) fn fate(
    egress: PortIndex,
    (source, left): (PortIndex, u64),
    blocked_since: u64,
    queued: &Queued<FrameRef>,
    at: u64,
    dropped: Option<DropReason>,
) -> Fate {
    let blocked =
        if blocked_since == NEVER { 0 } else { at.saturating_sub(blocked_since.max(queued.enqueued)) };
    Fate {
        frame: queued.frame,
        egress,
        at,
        dropped,
        queued: queued.enqueued,
        buffers: blocked,
        behind: (left > 0 && left >= queued.enqueued).then_some(source),
    }
}
