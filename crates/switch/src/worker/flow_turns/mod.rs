//! From an egress's flow queues to its receiver: part by part, each judged before it leaves.
//!
//! ```text
//!  head: part ─▶ whole segments ─▶ judge ─┬─ Pass ─▶ post ─▶ the rest stays first of its flow, or fate: delivered
//!                                         ├─ Mark ─▶ post, with CE in the copy
//!                                         └─ Drop ─▶ a segment is dropped; with the last one fate: dropped
//! ```

#[cfg(test)]
mod tests;

use super::Worker;
use super::parts::{note_part, record_part};
use super::serve::{Gone, fate, tried, waited_for_rate};
use crate::link::delivery::{on_wire, understands_marks};
use crate::link::{Delivery, Posted};
use crate::port::{Egress, FrameRef, NEVER, Port};
use crate::sched::{Backlog, Queued, Verdict};
use crate::stats::DropReason;

impl Worker {
    /// Delivers the next part of the first frame, at most `most` bytes as counted on the wire, or drops a segment of it; `None`
    /// where it stays first.
    #[inline(never)]
    pub(super) fn deliver_part(
        &mut self,
        port: &mut Port,
        queued: &Queued<FrameRef>,
        most: u32,
    ) -> Option<Backlog> {
        self.scratch.filled = 0;
        let frame = queued.frame.get();
        let (mut what, _) = Delivery::next(frame, queued.bytes, most);
        let tried = tried(port, queued);
        if !port.may_post(frame) || tried.is_some() && tried == self.chains_waiting(frame, port) {
            return self.deliver_head(port, queued, what, Some(Posted::NoBuffers));
        }
        match port.egress.scheduler.judge(self.now, || understands_marks(frame)) {
            Some(Verdict::Drop) => return Some(self.drop_segment(port, queued)),
            Some(Verdict::Mark) => what.ce = true,
            Some(Verdict::Pass) | None => {}
        }
        let is_sparse = queued.bytes == frame.wire_bytes && port.egress.scheduler.is_sparse(self.now);
        let gone = self.deliver_head(port, queued, what, None);
        if gone.is_some() {
            port.stats.rx.marked.add(what.ce.into());
            if is_sparse {
                let waited = waited_for_rate(queued, port.egress.rate_until, self.now);
                port.stats.note_sparse_rx(waited);
            }
        }
        gone
    }

    /// A part that is not the last of its frame was posted; `is_held`: its link completes it later.
    #[inline(never)]
    pub(super) fn end_turn(
        &mut self,
        port: &mut Port,
        queued: &Queued<FrameRef>,
        what: Delivery,
        is_held: bool,
    ) -> Backlog {
        let frame = queued.frame.get();
        let (frames, bytes) = on_wire(frame, what.to - what.from);
        self.touched.insert(port.index);
        record_part(port, queued, what);
        let Egress { scheduler, outstanding, blocked_since, last, starved, .. } = &mut port.egress;
        scheduler.take_part(self.now, bytes);
        let blocked = std::mem::replace(blocked_since, NEVER);
        *starved = None;
        if is_held {
            outstanding.push(*queued, Some((frames, bytes)), blocked, self.now);
        } else {
            *last = (frame.source, self.now);
            note_part(port, (frames, bytes), None);
        }
        Backlog { frames: 1, bytes: bytes.into() }
    }

    /// A frame, or what was left of it, was posted, or can never be.
    pub(super) fn end_of_flow(
        &mut self,
        port: &mut Port,
        queued: &Queued<FrameRef>,
        dropped: Option<DropReason>,
    ) -> Backlog {
        self.touched.insert(port.index);
        let Egress { scheduler, last, blocked_since, rate_until, .. } = &mut port.egress;
        let since = std::mem::replace(blocked_since, NEVER);
        let has_left = match dropped {
            None => scheduler.take(self.now).is_some(),
            // What is not delivered takes nothing of the rate.
            Some(_) => scheduler.drop_part(self.now, u32::MAX).is_some(),
        };
        debug_assert!(has_left, "a frame that has a fate has left");
        self.fates.push(fate(port.index, *last, since, queued, self.now, dropped));
        if dropped.is_none() {
            port.stats.note_token_wait_rx(waited_for_rate(queued, *rate_until, self.now), 1);
        }
        let mut gone = Gone::default();
        gone.add(queued);
        self.count(port, gone, queued, dropped);
        Backlog { frames: 1, bytes: queued.bytes.into() }
    }

    /// Drops the next segment of the first frame, or all of one that is no super-frame: its flow is to send less.
    fn drop_segment(&mut self, port: &mut Port, queued: &Queued<FrameRef>) -> Backlog {
        let (_, bytes) = Delivery::next(queued.frame.get(), queued.bytes, 0);
        self.touched.insert(port.index);
        port.stats.rx.dropped[DropReason::Codel as usize].add(1);
        let Egress { scheduler, last, blocked_since, .. } = &mut port.egress;
        scheduler.drop_part(self.now, bytes);
        if bytes == queued.bytes {
            let why = Some(DropReason::Codel);
            self.fates.push(fate(port.index, *last, *blocked_since, queued, self.now, why));
        }
        Backlog { frames: 1, bytes: bytes.into() }
    }
}
