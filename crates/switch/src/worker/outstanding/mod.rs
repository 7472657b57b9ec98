//! Frames that links hold until they complete them, for a bounded time.
//!
//! ```text
//!  egress's turn ─▶ completed? ─┬─ yes ─▶ fate: delivered, dropped ──▶ the next
//!                               ├─ no ──▶ held for too long? yes ─┐
//!                               └─ the link is broken ─────────────┴▶ cancel ─▶ fates: dropped
//!  receiver goes, switch retires ─▶ what was completed by then ─▶ cancel ─▶ fates: dropped
//! ```
//!
//! They move with a port, in its egress and its link. A source that goes waits for its frames, for the links' longest time
//! and one loop at most. A frame of which a part is held ends behind that part, whatever becomes of its rest.

#[cfg(test)]
mod lent;
#[cfg(test)]
mod scene;
#[cfg(test)]
mod tests;

use super::crossing::Fate;
use super::fates::Fates;
use super::parts::note_part;
use super::{Worker, budget, sleep};
use crate::fdb::PortIndex;
use crate::link::Completed;
use crate::port::outstanding::{EndedFrame, Entry, HeldFrame, Outstanding};
use crate::port::{Egress, Port};
use tidegate_evidence::DropReason;

/// Notes the fate of a frame whose rest of `bytes` left its queue: at once, or behind the parts of it that the link holds.
#[inline]
pub(super) fn end_rest(fates: &mut Fates, outstanding: &mut Outstanding, bytes: u32, fate: Fate) {
    let Fate { frame, dropped, queued, buffers, behind, .. } = fate;
    if !outstanding.push_ended(EndedFrame { frame, dropped, queued, buffers, behind }, bytes) {
        fates.push(fate);
    }
}

impl Worker {
    /// Ends frames that an egress's link has completed, or held for too long; `true` if there was any.
    #[inline(never)]
    pub(super) fn complete(&mut self, port: &mut Port) -> bool {
        let mut worked = false;
        while let Some(source) = self.end_oldest(port) {
            self.bill.add(source, 0, budget::COMPLETED);
            worked = true;
        }
        let overdue = port.egress.outstanding.is_overdue(self.now);
        if !port.egress.outstanding.is_empty() && (port.broken || overdue) {
            self.cancel(port, if overdue { DropReason::HeldTooLong } else { DropReason::ReceiverDown });
            worked = true;
        }
        if !port.egress.outstanding.is_empty() {
            self.poll = self.poll.min(self.now + sleep::BLOCKED_POLL);
        }
        worked
    }

    /// Drops frames that an own port's link holds, except completed ones.
    pub(super) fn cancel_at(&mut self, index: PortIndex, reason: DropReason) {
        let holds = |port: &Port| !port.egress.outstanding.is_empty();
        if !self.ports[usize::from(index)].as_deref().is_some_and(holds) {
            return;
        }
        let Some(mut port) = self.ports[usize::from(index)].take() else { return };
        while self.end_oldest(&mut port).is_some() {}
        self.cancel(&mut port, reason);
        self.ports[usize::from(index)] = Some(port);
    }

    /// Ends the oldest frame of a link if it was completed; returns its source.
    fn end_oldest(&mut self, port: &mut Port) -> Option<PortIndex> {
        if port.broken || port.egress.outstanding.is_empty() {
            return None;
        }
        let dropped = match port.egress.outstanding.oldest()? {
            Entry::Ended(_) => None,
            Entry::Held(_) => match port.link.rx.completed()? {
                Completed::Done => None,
                Completed::Dropped(reason) => Some(reason),
                Completed::Broken(why) => {
                    self.fault(port, &why);
                    return None;
                }
            },
        };
        let entry = port.egress.outstanding.pop()?;
        // Before its end, which may give the frame back.
        let source = entry.source();
        self.conclude_entry(port, &entry, dropped);
        Some(source)
    }

    fn conclude_entry(&mut self, port: &mut Port, entry: &Entry, dropped: Option<DropReason>) {
        match entry {
            Entry::Held(held) => self.conclude_held(port, held, dropped),
            Entry::Ended(ended) => {
                let EndedFrame { frame, dropped, queued, buffers, behind } = *ended;
                self.note_time(frame.get());
                let (egress, at) = (port.index, self.now);
                self.fates.push(Fate { frame, egress, at, dropped, queued, buffers, behind });
            }
        }
    }

    /// Moves the last fate, of the rest of a frame of `bytes`, behind the parts of it that the link holds, if there are any.
    #[inline(never)]
    pub(super) fn defer_rest(&mut self, egress: &mut Egress, bytes: u32) {
        if let Some(fate) = self.fates.pop() {
            end_rest(&mut self.fates, &mut egress.outstanding, bytes, fate);
        }
    }

    /// Concludes a frame that a link held.
    fn conclude_held(&mut self, port: &mut Port, held: &HeldFrame, dropped: Option<DropReason>) {
        if let Some(part) = held.part {
            return note_part(port, part, dropped);
        }
        self.note_time(held.queued.frame.get());
        self.conclude(port, &held.queued, held.blocked_since, dropped);
    }

    /// Drops all frames that a link holds.
    fn cancel(&mut self, port: &mut Port, reason: DropReason) {
        port.link.rx.cancel();
        while let Some(entry) = port.egress.outstanding.pop() {
            self.conclude_entry(port, &entry, Some(reason));
        }
    }
}
