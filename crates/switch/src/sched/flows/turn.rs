//! Frames of a flow that leave together in its turn.
//!
//! ```text
//!  head: of flow f ──▶ f1 ▶ f2 ▶ f3 │ f4 ▶ f5
//!                         the turn ┘ f has sent what it may, or f4 is to be cut, or may have to be told
//! ```
//!
//! The turn is computed without taking frames. Only the arrival of another flow can come between them.

use super::codel::{Codel, ControlLaw};
use super::rounds::Flow;
use super::{Flows, Queued};

impl<T: Copy> Flows<T> {
    /// Returns the rest of the present turn at `now`, with parts as in [`part`](Self::part).
    pub(in crate::sched) fn turn(&self, now: u64, most: u64) -> Option<Turn> {
        let index = self.rounds.first()?;
        let Flow { list, codel, .. } = &self.rounds.flows[usize::from(index)];
        // A flow that alone has frames has all turns.
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

    /// Takes the next `frames` of a [turn](Self::turn), judging each, or the judged frame whose turn it is:
    /// like repeated [`take`](Self::take). Returns the bytes of the last.
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
        self.note_removed(index, 0);
        last
    }
}

impl ControlLaw {
    /// Returns how long a frame, the first of a flow of `bytes`, has waited, and the bytes behind a segment
    /// of it.
    #[inline]
    pub(super) fn seen<T>(&self, now: u64, head: &Queued<T>, bytes: u64) -> (u64, u64) {
        (now.saturating_sub(head.enqueued), bytes - u64::from(head.bytes.min(self.frame)))
    }
}

/// The rest of a flow's turn: frames that leave whole, one after the other, since none must be judged.
#[derive(Debug)]
pub(in crate::sched) struct Turn {
    now: u64,
    law: ControlLaw,
    codel: Codel,
    /// Waiting bytes of the flow.
    bytes: u64,
    /// Its credit (bytes).
    credit: i64,
    /// The longest uncut frame.
    most: u32,
}

impl Turn {
    /// Whether the flow's next frame leaves; it is counted then.
    #[inline]
    pub(in crate::sched) fn allows<T>(&mut self, next: &Queued<T>) -> bool {
        let (sojourn, behind) = self.law.seen(self.now, next, self.bytes);
        let passes = self.credit > 0
            && next.bytes <= self.most
            && self.codel.passes(self.now, sojourn, behind, &self.law);
        self.credit -= i64::from(next.bytes);
        self.bytes -= u64::from(next.bytes);
        passes
    }
}
