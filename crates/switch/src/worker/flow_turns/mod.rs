//! From an egress's flow queues to its receiver: part by part, each judged before it leaves.
//!
//! ```text
//!  head ─┬─ the frames of a turn that are not to be cut, nor told ─▶ post all ─▶ fates: delivered
//!        │
//!        └─ part ─▶ whole segments ─▶ judge ─┬─ Pass ─▶ post ─▶ the rest stays first of its flow, or fate: delivered
//!                                            ├─ Mark ─▶ post, with CE in the copy
//!                                            └─ Drop ─▶ a segment is dropped; with the last one fate: dropped
//! ```

#[cfg(test)]
mod fates;
#[cfg(test)]
mod tests;

use super::Worker;
use super::departures::{fate, waited_for_rate};
use super::outstanding::end_rest;
use super::parts::{note_part, record_part};
use crate::link::delivery::{on_wire, understands_marks};
use crate::link::{Delivery, Posted};
use crate::port::{Egress, Port};
use crate::sched::{Backlog, Flows, Queued, Verdict};
use crate::slots::{FrameRef, NEVER};
use tidegate_evidence::DropReason;

impl Worker {
    /// Delivers the next frames of a flow's turn within `budget`, or the next part of the first, at most
    /// `most` bytes on the wire, or drops a segment of it; `None` if it stays first.
    #[inline(never)]
    pub(super) fn deliver_by_flow(
        &mut self,
        port: &mut Port,
        queued: &Queued<FrameRef>,
        most: u32,
        budget: i64,
    ) -> Option<Backlog> {
        let frame = queued.frame.get();
        let is_sparse = queued.bytes == frame.wire_bytes && port.egress.scheduler.is_sparse(self.now);
        let gone = match self.post_run(port, queued, usize::MAX, budget) {
            (0, outcome) => {
                let (mut what, _) = Delivery::next(frame, queued.bytes, most);
                if !matches!(outcome, Some(Posted::NoBuffers)) {
                    match port.egress.scheduler.judge(self.now, || understands_marks(frame)) {
                        Some(Verdict::Drop) => return Some(self.drop_segment(port, queued)),
                        Some(Verdict::Mark) => what.ce = true,
                        Some(Verdict::Pass) | None => {}
                    }
                }
                let gone = self.deliver_head(port, queued, what, outcome);
                port.stats.rx.marked.add(u64::from(gone.is_some() && what.ce));
                gone
            }
            (frames, _) => Some(self.end(port, queued, frames, None)),
        };
        if gone.is_some() && is_sparse {
            let waited = waited_for_rate(queued, port.egress.rate_until, self.now);
            port.stats.note_sparse_rx(waited);
        }
        gone
    }

    /// Notes a posted part that is not the last of its frame; `is_held`: its link completes it later.
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
        let Egress { scheduler, outstanding, blocked_since, last_sent, starved, .. } = &mut port.egress;
        scheduler.take_part(self.now, bytes);
        let blocked = std::mem::replace(blocked_since, NEVER);
        *starved = None;
        if is_held {
            outstanding.push(*queued, Some((frames, bytes)), blocked, self.now);
            port.note_given(frame.source, self.now);
        } else {
            *last_sent = (frame.source, self.now);
            note_part(port, (frames, bytes), None);
        }
        Backlog { frames: 1, bytes: bytes.into() }
    }

    /// Takes [unused](crate::sched::Scheduler::take_unused) memory of flow queues out for the caller to
    /// free, up to the room in `unused`. Not from a worker.
    pub fn take_unused(&mut self, mut unused: Vec<Box<Flows<FrameRef>>>) -> Vec<Box<Flows<FrameRef>>> {
        for own in &self.owned {
            if let Some(port) = &mut self.ports[usize::from(*own)] {
                port.egress.scheduler.take_unused(self.now, &mut unused);
            }
        }
        unused
    }

    /// Drops the next segment of the first frame, or all of a plain one: its flow should send less.
    fn drop_segment(&mut self, port: &mut Port, queued: &Queued<FrameRef>) -> Backlog {
        let (_, bytes) = Delivery::next(queued.frame.get(), queued.bytes, 0);
        self.drop_part(port, queued, bytes, DropReason::Codel)
    }

    /// Drops so many bytes of the first frame, or its rest, for a source whose flows are queued.
    pub(super) fn drop_part(
        &mut self,
        port: &mut Port,
        queued: &Queued<FrameRef>,
        bytes: u32,
        reason: DropReason,
    ) -> Backlog {
        let bytes = bytes.min(queued.bytes);
        self.touched.insert(port.index);
        port.stats.rx.dropped[reason as usize].add(1);
        let Egress { scheduler, last_sent, blocked_since, outstanding, .. } = &mut port.egress;
        scheduler.drop_part(self.now, bytes);
        if bytes == queued.bytes {
            let fate = fate(port.index, *last_sent, *blocked_since, queued, self.now, Some(reason));
            end_rest(&mut self.fates, outstanding, bytes, fate);
        }
        Backlog { frames: 1, bytes: bytes.into() }
    }
}
