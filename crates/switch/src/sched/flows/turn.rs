//! Frames of a flow that leave one after the other in its turn, together.
//!
//! ```text
//!  head: of flow f ──▶ f1 ▶ f2 ▶ f3 │ f4 ▶ f5
//!                         the turn ┘ f has sent what it may, or f4 is to be cut, or may have to be told
//! ```
//!
//! Which these are is told without taking them. Another flow has its turn before them only if it comes meanwhile.

use super::codel::{Codel, Law};
use super::rounds::Flow;
use super::{Flows, Queued};

impl<T: Copy> Flows<T> {
    /// What is left of the turn of the flow whose turn it is, at `now`, where parts are as [above](Self::part).
    pub(in crate::sched) fn turn(&self, now: u64, most: u64) -> Option<Turn> {
        let index = self.rounds.first()?;
        let Flow { list, codel, .. } = &self.rounds.flows[usize::from(index)];
        // One that alone has frames has all turns.
        let credit = if self.active == 1 { i64::MAX } else { self.rounds.credit(index) };
        Some(Turn {
            now,
            law: self.law(),
            codel: *codel,
            bytes: list.bytes,
            credit: if index == self.marked { 0 } else { credit },
            most: self.longest_part(most),
        })
    }

    /// Takes the next `frames` of a [turn](Self::turn), judging each, or the frame whose turn it is, as it was judged: as one
    /// after the other by [`take`](Self::take). The bytes of the last.
    pub(in crate::sched) fn take_turn(
        &mut self,
        now: u64,
        frames: u32,
        taken: &mut dyn FnMut(Queued<T>),
    ) -> u32 {
        let Some(index) = self.rounds.first() else { return 0 };
        let mut last = 0;
        for _ in 0..frames {
            self.judge(now, || false);
            let Some(queued) = self.shrink(index, u32::MAX) else { break };
            last = queued.bytes;
            self.rounds.charge(index, last);
            self.total.bytes -= u64::from(last);
            taken(queued);
            if self.total.frames > 0 {
                self.rounds.settle();
            }
        }
        self.removed(index, 0);
        last
    }
}

impl Law {
    /// How long a frame, the first of a flow of `bytes`, has waited, and how many bytes wait behind a segment of it.
    #[inline]
    pub(super) fn seen<T>(&self, now: u64, head: &Queued<T>, bytes: u64) -> (u64, u64) {
        (now.saturating_sub(head.enqueued), bytes - u64::from(head.bytes.min(self.frame)))
    }
}

/// What is left of the turn of a flow: which of its frames leave one after the other, each whole, as none is to be told.
#[derive(Debug)]
pub(in crate::sched) struct Turn {
    now: u64,
    law: Law,
    codel: Codel,
    /// What waits of the flow.
    bytes: u64,
    /// What it may send.
    credit: i64,
    /// The longest frame that is not cut.
    most: u32,
}

impl Turn {
    /// Whether the next frame of the flow leaves; it has left then.
    #[inline]
    pub(in crate::sched) fn lets_pass<T>(&mut self, next: &Queued<T>) -> bool {
        let (sojourn, behind) = self.law.seen(self.now, next, self.bytes);
        let passes = self.credit > 0
            && next.bytes <= self.most
            && self.codel.lets_pass(self.now, sojourn, behind, &self.law);
        self.credit -= i64::from(next.bytes);
        self.bytes -= u64::from(next.bytes);
        passes
    }
}
