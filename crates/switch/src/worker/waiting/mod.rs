//! A port above its own limit: its frames wait by flow, and leave in parts as tokens come.
//!
//! ```text
//!  ring, tap ─ look ahead: take ─▶ inspect ─▶ Room ─▶ whose turn it is ─▶ tokens for a part of it?
//!     ▲                                        ▲                           │ no: wake when they are there
//!     └ no slot: stays there                   └── the rest ◀── cut ◀──────┤ judged: Pass, Mark
//!                                                            dropped ◀─────┘ Drop: one segment
//! ```
//!
//! A flow whose frame cannot leave, for its receiver's worker or for a slot, lets the others go first. A
//! port with tokens and without waiting frames does none of this: its frames go as without a limit.

#[cfg(test)]
mod bounds;
#[cfg(test)]
mod scene;
#[cfg(test)]
mod tests;

use super::count::note_tokens;
use super::cut::{Part, cut, unsent_bytes};
use super::ingress::{Next, Turn};
use super::{Worker, budget};
use crate::fdb::PortIndex;
use crate::frame::{ect, set_ce};
use crate::link::Pending;
use crate::port::Port;
use crate::sched::flows::Verdict;
use crate::slots::{FrameRef, NEVER, NOWHERE};
use tidegate_evidence::DropReason;

/// How often in a turn a flow that cannot leave lets the others go first.
const YIELDS: u32 = 64;

impl Worker {
    /// Takes frames of a queue whose port has waiting frames, so that a sparse flow does not wait behind
    /// the others: as many as a turn may, and as have slots.
    pub(super) fn look_ahead(&mut self, port: &mut Port, queue: usize, budget: &mut i64) -> Turn {
        let mut turn = Turn::default();
        if port.draining || port.waiting.as_ref().is_none_or(|room| room.is_closing()) {
            return turn;
        }
        if port.link.tx.is_crowded(queue) {
            // A driver that relies on order sees no completion behind the oldest: half a ring is enough.
            self.relieve_oldest(port, queue);
            return turn;
        }
        turn.worked |= make_room(port, budget, is_over_full);
        match port.link.tx.poll(queue, self.now) {
            Ok(true) => {}
            Ok(false) => return turn,
            Err(error) => {
                self.fault(port, &error.to_string());
                return turn;
            }
        }
        for _ in 0..self.turns.batch(port.index) {
            let has_none = |port: &Port| !port.link.tx.may_look_ahead(queue) && has_most_slots(port);
            turn.worked |= make_room(port, budget, |port| is_over_full(port) || has_none(port));
            if *budget <= 0 {
                break;
            }
            if !port.link.tx.may_look_ahead(queue) {
                turn.worked |= self.do_without_room(port, budget);
                break;
            }
            match self.next(port, queue, budget) {
                Next::Frame(pending) => {
                    let unsent = unsent_bytes(pending.frame.get(), pending.sent);
                    port.wait_by_flow(pending, unsent, self.now);
                }
                Next::Dropped => {}
                Next::Nothing | Next::Full => break,
            }
            *budget -= budget::queued(0);
            turn.worked = true;
        }
        turn
    }

    /// Continues without a free slot. If waiting frames have the slots, tokens make room; otherwise
    /// receivers hold frames, and one of those is dropped. Takes frames that could otherwise be lost
    /// uncounted. `true` if there were any.
    fn do_without_room(&mut self, port: &mut Port, budget: &mut i64) -> bool {
        if has_most_slots(port) {
            return false;
        }
        self.ask_relief(port);
        self.absorb(port, budget)
    }

    /// Sends a port's waiting frames that have tokens, within `budget`.
    pub(super) fn serve_waiting(&mut self, port: &mut Port, budget: &mut i64) -> Turn {
        let mut turn = Turn::default();
        let (mut left, mut yields) = (self.turns.batch(port.index), 0);
        let mut is_behind = false;
        while left > 0 {
            if *budget <= 0 {
                turn.worked = true;
                break;
            }
            let Some(room) = &mut port.waiting else { break };
            let since = room.since();
            let Some((head, most)) = room.head() else { break };
            let (pending, reference) = (head.frame, head.frame.frame);
            let frame = reference.get();
            let mut part = Part::next(frame, head.bytes, most);
            let at = port.conforms_at(since, part.wire);
            if at > self.now {
                self.wake_at(at);
                turn.throttled = true;
                break;
            }
            if self.lacks_room(port, frame, part.wire) {
                is_behind = true;
                if self.may_wait_longer(port) {
                    turn.worked = true;
                    match let_others_go(port, &mut yields, budget) {
                        true => continue,
                        false => break,
                    }
                }
            }
            let Some(room) = &mut port.waiting else { break };
            let verdict = room.judge(self.now, || ect(frame.head(), &frame.headers));
            if verdict != Verdict::Pass {
                // The least part: one segment.
                part = Part::next(frame, head.bytes, 0);
            }
            if verdict == Verdict::Drop {
                room.drop_head(part.wire);
                end_part(port, reference, part.wire < head.bytes);
                port.count_tx_drop(DropReason::Codel);
                *budget -= budget::queued(0);
                turn.worked = true;
                left -= 1;
                continue;
            }
            let is_whole = part.wire == frame.wire_bytes;
            let slot = match port.link.tx.may_leave(frame, !is_whole) {
                true if is_whole => Some(reference),
                true => port.link.tx.slot_for_piece(frame),
                false => None,
            };
            let Some(slot) = slot else {
                self.ask_relief(port);
                match let_others_go(port, &mut yields, budget) {
                    true => continue,
                    false => break,
                }
            };
            *budget -= budget::queued(part.wire);
            turn.worked = true;
            left -= 1;
            let is_last = part.wire >= head.bytes;
            let is_sparse = head.bytes == frame.wire_bytes && room.is_sparse();
            if let Some(room) = &mut port.waiting {
                room.take(part.wire);
            }
            if is_whole {
                port.link.tx.end_wait(frame);
            }
            port.charge(since, at, part.wire, self.now);
            let started = at.max(pending.arrival.earliest);
            if is_sparse {
                port.stats.note_sparse_tx(pending.arrival.waited(started));
            }
            if is_last {
                note_tokens(port, &pending.arrival, started);
            }
            let egress = self.send_part(port, pending, part, slot, (started, verdict == Verdict::Mark));
            if !is_whole {
                if is_last {
                    // Its egress, if it is held up.
                    reference.get_mut().egress = egress.unwrap_or(NOWHERE);
                }
                end_part(port, reference, !is_last);
            }
        }
        if !is_behind {
            port.behind_since = NEVER;
        }
        if let Some(room) = &port.waiting {
            port.stats.tx.note_flows(room.active().into());
            if room.is_over() {
                port.waiting = None;
            }
        }
        turn
    }

    /// Sends a part of a frame, in a slot of its own unless it is the whole; returns its egress, if it is a
    /// single one.
    fn send_part(
        &mut self,
        port: &mut Port,
        pending: Pending,
        part: Part,
        slot: FrameRef,
        (started, marked): (u64, bool),
    ) -> Option<PortIndex> {
        let whole = pending.frame;
        let is_begun = whole.get().egress != NOWHERE;
        if slot != whole {
            begin(whole);
            if !cut(whole, part, slot) {
                debug_assert!(false, "a super-frame that was checked can be cut");
                port.link.tx.give_back(slot);
                return None;
            }
        }
        if marked {
            // Marks the part's own headers, not the rest of the frame.
            let frame = slot.get_mut();
            let head_len = usize::from(frame.head_len);
            if set_ce(&mut frame.bytes[..head_len], &frame.headers) {
                port.stats.tx.marked.add(1);
            }
        }
        // A frame that had a deadline at its beginning was counted then, as a whole.
        if pending.sent == 0 {
            let stats = &port.stats.tx;
            stats.frames.add(u64::from(!is_begun));
            stats.wire_frames.add(u64::from(slot.get().wire_frames));
            stats.wire_bytes.add(u64::from(part.wire));
        }
        if slot != whole {
            // Counted, whatever becomes of this part and the later ones.
            whole.get_mut().egress = port.index;
        }
        self.dispatch(port, slot, pending.arrival, started)
    }
}

/// Lets other flows go before the one whose turn it is; `false` if all did.
fn let_others_go(port: &mut Port, yields: &mut u32, budget: &mut i64) -> bool {
    let Some(room) = &mut port.waiting else { return false };
    room.yield_turn();
    *yields += 1;
    *budget -= budget::queued(0);
    *yields < room.active().min(YIELDS)
}

/// Begins a frame in parts: it stays until the last part is settled.
fn begin(whole: FrameRef) {
    let shares = &whole.get().shares;
    shares.set(shares.get().max(1));
}

/// Notes that a part of a frame left the room; `is_left`: more remains.
fn end_part(port: &mut Port, whole: FrameRef, is_left: bool) {
    if is_left {
        begin(whole);
    } else {
        port.release_waiting(whole);
    }
}

/// Whether at least half of the frames in flight wait here, not for receivers.
fn has_most_slots(port: &Port) -> bool {
    let waiting = port.waiting.as_ref().map_or(0, |room| room.backlog().frames as usize);
    2 * waiting >= port.link.tx.in_flight()
}

/// Drops frames of the longest flows in own memory while the port `lacks` room. A super-frame may need the
/// room of a thousand small ones: beyond `budget`, the next turn continues before it takes frames. `true`
/// if any was dropped.
fn make_room(port: &mut Port, budget: &mut i64, lacks: impl Fn(&Port) -> bool) -> bool {
    let mut dropped = false;
    while *budget > 0 && port.link.tx.holds_frames() && lacks(port) && drop_longest(port) {
        *budget -= budget::queued(0);
        dropped = true;
    }
    dropped
}

/// Whether more waits in own memory than may.
fn is_over_full(port: &Port) -> bool {
    port.waiting.as_ref().is_some_and(|room| room.is_over_full())
}

/// Drops the oldest frame of the longest flow; `false` if nothing waits.
fn drop_longest(port: &mut Port) -> bool {
    let dropped = port.waiting.as_mut().and_then(|room| room.drop_longest());
    let Some(queued) = dropped else { return false };
    port.count_tx_drop(DropReason::FlowCap);
    port.release_waiting(queued.frame.frame);
    true
}
