//! From links to egresses, under the senders' contracts: the ports' turns, and their frames.
//!
//! ```text
//!  link ─ poll ─┬▶ by the batch: decide ─▶ directly, or to their egress, here or at a peer
//!               └▶ the next one alone: take ─▶ inspect ─▶ send (cut, flood) ─▶ egress
//!                   ▲                            └─▶ dropped, counted  │
//!                   ├────────────── put back: not yet ────────────────┤
//!                   └─ looked ahead in ◀─ waits by flow: no tokens ◀──┘
//! ```

use super::send::SendOutcome;
use super::turns::BATCH;
use super::{Worker, budget};
use crate::clock::clock;
use crate::link::{Pending, Taken};
use crate::port::Port;
use crate::stats::LoopPart;
use tidegate_evidence::DropReason;

/// Result of taking a frame.
pub(super) enum Next {
    /// It may be sent.
    Frame(Pending),
    /// It was dropped, and counted.
    Dropped,
    Nothing,
    /// The port has as many frames in flight as it may.
    Full,
}

/// Result of a port's visit.
#[derive(Default)]
pub(super) struct Visit {
    /// There was work, or will be when it is due.
    pub(super) worked: bool,
    /// The port became quiet.
    quiet: bool,
}

/// Result of a queue's turn.
#[derive(Default)]
pub(super) struct Turn {
    /// There was work.
    pub(super) worked: bool,
    /// A frame waits for tokens.
    pub(super) throttled: bool,
}

impl Worker {
    /// Takes frames from own ports within `budget`, real-time ones first and beyond it. `true` if there
    /// were any.
    pub(super) fn ingress(&mut self, budget: &mut i64) -> bool {
        let mut worked = false;
        let mut quiet = false;
        // A port that comes too late for this loop's budget is first in the next.
        let mut late = None;
        for i in 0..self.polled.len() {
            if i >= self.realtime && (*budget <= 0 || self.turns.is_long()) {
                late = Some(i - self.realtime);
                worked = true;
                self.turns.break_off(&self.polled[i..]);
                break;
            }
            let visit = self.visit_port(i, budget);
            worked |= visit.worked;
            quiet |= visit.quiet;
        }
        if quiet {
            let ports = &self.ports;
            self.polled.retain(|index| ports[*index as usize].as_ref().is_none_or(|port| !port.quiet));
        }
        if let Some(first) = late {
            self.rotate_polled(first);
        }
        worked
    }

    /// Takes frames from the polled port at this place, if it is its turn. The name avoids `turn`: the
    /// instructions of [`Worker::turn`] are counted by that name.
    #[inline]
    pub(super) fn visit_port(&mut self, place: usize, budget: &mut i64) -> Visit {
        if !self.turns.is_due(self.polled[place]) {
            return Visit { worked: true, quiet: false };
        }
        let index = self.polled[place] as usize;
        let Some(mut port) = self.ports[index].take() else { return Visit::default() };
        let (began, before) = (self.watch.begin(port.index), *budget);
        let took = port.may_send() && self.ingress_port(&mut port, budget);
        self.watch.end(port.index, began);
        if took {
            self.touched.insert(port.index);
        }
        if *budget < before {
            if place < self.realtime {
                port.gaps.arrived(self.now);
            }
            self.now = clock();
            self.loops.part(LoopPart::Ingress, Some(port.index), self.turns.elapsed(self.now));
            let took = self.turns.end(port.index, self.now);
            port.stats.work.take.add(took as u64);
        } else {
            self.turns.note_empty();
        }
        let quiet = self.note_idle(&mut port, took);
        self.ports[index] = Some(port);
        Visit { worked: took, quiet }
    }

    fn ingress_port(&mut self, port: &mut Port, budget: &mut i64) -> bool {
        let mut all = Turn::default();
        let mut drops = budget::DROPPED;
        let queues = if port.draining { 0 } else { port.link.tx.queues() };
        for queue in 0..queues {
            let turn = if port.waits() {
                self.look_ahead(port, queue, budget)
            } else {
                self.ingress_queue(port, queue, budget, &mut drops)
            };
            all.worked |= turn.worked;
            all.throttled |= turn.throttled;
        }
        if port.waits() {
            let turn = self.serve_waiting(port, budget);
            all.worked |= turn.worked;
            all.throttled |= turn.throttled;
        }
        port.set_throttled(all.throttled, self.now);
        all.worked
    }

    /// Takes frames of one transmit queue within `budget`; of a port with a deadline within `drops`.
    fn ingress_queue(&mut self, port: &mut Port, queue: usize, budget: &mut i64, drops: &mut i64) -> Turn {
        if port.link.tx.is_crowded(queue) {
            self.relieve_oldest(port, queue);
        }
        match port.link.tx.poll(queue, self.now) {
            Ok(true) => {}
            Ok(false) => return Turn::default(),
            Err(error) => {
                self.fault(port, &error.to_string());
                return Turn::default();
            }
        }
        let mut worked = false;
        let realtime = port.contract.deadline.is_some();
        let mut left = self.turns.batch(port.index);
        let mut by_batch = true;
        while left > 0 {
            if by_batch {
                let batch = self.send_batch(port, queue, left, budget);
                if batch.waits {
                    return Turn { worked: true, throttled: false };
                }
                worked |= batch.frames > 0;
                left -= batch.frames;
                by_batch = batch.may_continue;
            }
            let is_over = if realtime { *drops <= 0 } else { *budget <= 0 };
            if left == 0 || is_over {
                break;
            }
            left -= 1;
            let before = *budget;
            let pending = match self.next(port, queue, budget) {
                Next::Frame(pending) => pending,
                Next::Dropped => {
                    *budget -= budget::queued(0);
                    *drops -= before - *budget;
                    worked = true;
                    continue;
                }
                Next::Nothing => break,
                Next::Full => {
                    self.ask_relief(port);
                    // A slot comes back when the fates of this loop are settled.
                    return Turn { worked: true, throttled: false };
                }
            };
            // Read before sending: afterwards the frame may be settled, and its slot another's.
            let cost = budget::queued(pending.frame.get().wire_bytes);
            let throttled = match self.try_send(port, pending) {
                SendOutcome::Sent => {
                    *budget -= cost;
                    worked = true;
                    continue;
                }
                SendOutcome::At(at) => {
                    self.wake_at(at);
                    true
                }
                SendOutcome::NoSlot => {
                    self.ask_relief(port);
                    false
                }
                SendOutcome::WorkerFull => {
                    worked = true;
                    false
                }
                SendOutcome::WaitsByFlow => {
                    self.look_ahead(port, queue, budget);
                    return Turn { worked: true, throttled: false };
                }
            };
            worked |= self.absorb(port, budget);
            return Turn { worked, throttled };
        }
        Turn { worked, throttled: false }
    }

    /// Takes the next frame that may be sent; charges its descriptors to `budget`.
    pub(super) fn next(&mut self, port: &mut Port, queue: usize, budget: &mut i64) -> Next {
        match port.link.tx.take(queue, &mut self.scratch, port.waits()) {
            Taken::New(pending, descriptors) => {
                *budget -= budget::scattered(descriptors);
                match self.inspect(port, pending.frame.get_mut()) {
                    Ok(()) => Next::Frame(pending),
                    Err(reason) => {
                        port.count_tx_drop(reason);
                        port.link.tx.give_back(pending.frame);
                        Next::Dropped
                    }
                }
            }
            Taken::PutBack(pending) => Next::Frame(pending),
            Taken::Dropped(reason, descriptors) => {
                *budget -= budget::scattered(descriptors);
                port.count_tx_drop(reason);
                Next::Dropped
            }
            Taken::Nothing => Next::Nothing,
            Taken::Full => Next::Full,
            Taken::Broken(reason) => {
                self.fault(port, &reason);
                Next::Nothing
            }
        }
    }

    /// While a frame waits, takes those behind it that could be lost otherwise. `true` if there were any.
    pub(super) fn absorb(&mut self, port: &mut Port, budget: &mut i64) -> bool {
        if *budget <= 0 && port.contract.deadline.is_none() {
            return false;
        }
        let absorbed = port.link.tx.absorb(BATCH);
        *budget -= absorbed.bytes as i64 + absorbed.frames as i64 * budget::queued(0);
        for (reason, frames) in DropReason::ALL.iter().zip(absorbed.dropped) {
            if frames > 0 {
                port.count_tx_drops(*reason, frames);
            }
        }
        if let Some(reason) = absorbed.broken {
            self.fault(port, &reason);
        }
        absorbed.frames > 0
    }
}
