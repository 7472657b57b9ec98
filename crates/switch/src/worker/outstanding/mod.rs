//! Frames that links hold until they complete them, for a bounded time.
//!
//! ```text
//!  egress's turn ─▶ completed? ─┬─ yes ─▶ fate: delivered, dropped ──▶ the next
//!                               ├─ no ──▶ held for LONGEST? ─ yes ─┐
//!                               └─ the link is broken ─────────────┴▶ cancel ─▶ fates: dropped
//!  receiver goes, switch retires ─▶ what was completed by then ─▶ cancel ─▶ fates: dropped
//! ```
//!
//! They move with a port, in its egress and its link. A source that goes waits for its frames, for LONGEST
//! and one loop at most.

#[cfg(test)]
mod scene;
#[cfg(test)]
mod tests;

use super::parts::note_part;
use super::{Worker, budget, sleep};
use crate::fdb::PortIndex;
use crate::link::Completed;
use crate::port::Port;
use crate::port::outstanding::HeldFrame;
use tidegate_evidence::DropReason;

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
        let dropped = match port.link.rx.completed()? {
            Completed::Done => None,
            Completed::Dropped(reason) => Some(reason),
            Completed::Broken(why) => {
                self.fault(port, &why);
                return None;
            }
        };
        let held = port.egress.outstanding.pop()?;
        self.conclude_held(port, &held, dropped);
        Some(held.source)
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
        while let Some(held) = port.egress.outstanding.pop() {
            self.conclude_held(port, &held, Some(reason));
        }
    }
}
