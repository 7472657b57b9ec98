//! Frames that lie in one buffer each, a batch at a time: decided on once, then sent on one of two ways.
//!
//! ```text
//!                                             ┌ room and tokens, nothing waits ─▶ directly: rx rings
//!  tx ring ─▶ heads copied ─▶ decide, FDB ────┤
//!     ▲                           │           └ else, and all behind ─▶ queue: slot ─▶ egress
//!     └── put back: looked at alone, or waits ◀── no slot, no tokens, another worker's ──┘
//! ```
//!
//! A batch takes frames to one receiver, with TCP or UDP over IP, that ask for a checksum at most. Its
//! first frames without contention go **directly**, from ring to ring: nothing waits at their egress, it
//! has tokens, and the receiver has a fitting buffer and takes them as they are. All others to ports of
//! this worker are **queued** with the decision on them: the bytes decided on are not read again.
//!
//! Frames to another worker's port go directly if [its receiving half is lent](super::lending); otherwise
//! they wait for that in the sender's ring, or cross alone. Frames to a tap, to a guest that migrates, or
//! to a watched port are queued. Frames of a watched or captured port are looked at alone.
//!
//! - `batch`: a batch's memory
//! - `classify`: decides by the copied heads, and which frames may go directly
//! - `room`: receiving queues and their buffers
//! - `carry`: into the buffers, and the accounts
//! - `queue`: the others, to their egress

mod batch;
mod carry;
mod classify;
mod queue;
mod room;

pub(super) use batch::Batch;
use batch::{BatchArrival, BatchFrame};

use super::Worker;
use super::budget::DIRECT;
use super::turns::BATCH;
use crate::clock::clock;
use crate::port::Port;

/// Result of a batch.
pub(super) struct Outcome {
    /// Frames sent, directly or to their egress.
    pub(super) frames: usize,
    /// The next frame waits in its ring for earlier ones that are at another worker.
    pub(super) waits: bool,
    /// Another batch can follow in this turn, behind the next frame.
    pub(super) may_continue: bool,
}

impl Worker {
    /// Sends up to `most` frames of one transmit queue as a batch, within `budget`.
    pub(super) fn send_batch(
        &mut self,
        port: &mut Port,
        pair: usize,
        most: usize,
        budget: &mut i64,
    ) -> Outcome {
        const NONE: Outcome = Outcome { frames: 0, waits: false, may_continue: true };
        let Some(info) = &self.infos[port.index as usize] else { return NONE };
        let Some(rings) = port.link.tx.rings() else { return NONE };
        let header_len = rings.header_len();
        let Some(tx) = rings.queue(pair) else { return NONE };
        if port.capture.is_some() || tx.pending.is_some() || self.watch.covers(port.index) {
            return NONE;
        }
        let learns = info.learns;
        let first = tx.ring.queue.next_avail();
        let arrival = tx.arrivals.of(first, clock);
        let Some(mut batch) = self.batch.take() else { return NONE };
        let most = usize::from(tx.direct).clamp(1, most);
        let popped = tx.ring.queue.pop_singles::<false>(&mut batch.tx[..most]);
        batch.arrivals.first = arrival;
        batch.arrivals.together = tx.arrivals.arrived_together(first, popped);
        if !batch.arrivals.together {
            tx.arrivals.write_latest(first, &mut batch.arrivals.latest[..popped]);
        }
        let decided = self.classify(port, &mut batch, popped, header_len, *budget, learns);
        let direct = self.find_direct(port, &mut batch);
        if direct > 0 {
            let bytes = self.carry(port, pair, &mut batch, direct, header_len);
            *budget -= bytes as i64 + direct as i64 * DIRECT;
        }
        let mut sent = direct;
        let end = if batch.waits { direct } else { batch.queued_end(direct, decided) };
        if direct < end {
            sent = self.queue(port, pair, &mut batch, direct..end, header_len, budget);
        }
        let mut may_continue = !batch.crosses;
        if let Some(tx) = port.link.tx.rings().and_then(|rings| rings.queue(pair)) {
            tx.ring.queue.put_back(&batch.tx[sent..popped]);
            tx.direct = if sent > 0 || popped == 0 || batch.waits { BATCH as u8 } else { tx.direct / 2 };
            // With frames of another kind one look per turn is in vain.
            may_continue &= tx.direct > 1;
        }
        if !batch.halves.is_empty() {
            // A later frame would end the wait: one frame after another would cross.
            batch.waits |= direct > 0 && sent == popped;
            self.put_halves_back(&mut batch);
        }
        let waits = batch.waits;
        self.batch = Some(batch);
        Outcome { frames: sent, waits, may_continue }
    }

    /// Returns how many of the first frames go directly: they may, and have buffers and tokens.
    #[inline]
    fn find_direct(&mut self, port: &mut Port, batch: &mut Batch) -> usize {
        let wanted = batch.direct;
        if wanted == 0 {
            return 0;
        }
        let room = self.find_room(batch, wanted);
        let (total, arrival) = (batch.bytes(room), batch.arrivals.first.earliest);
        let (count, together) = conform(port, &mut batch.frames[..room], total, arrival, self.now);
        batch.together = together;
        if count < wanted {
            // A frame that waits for tokens waits for nothing else.
            batch.waits = room < wanted && count == room && self.waits_for_room(port, batch, room);
            self.give_back_buffers(batch, count);
        }
        count
    }
}

/// Notes how long sent frames, the first with number `from` of its batch, waited for their sender's limit,
/// if any; `together`: they started at the same time.
#[inline]
fn note_tokens(port: &Port, frames: &[BatchFrame], arrivals: &BatchArrival, from: usize, together: bool) {
    if port.shaper.is_none() {
        return;
    }
    let (Some(first), Some(last)) = (frames.first(), frames.last()) else { return };
    // Frames start in order: if the last did not wait, none did.
    if together && arrivals.together || last.started <= arrivals.first.latest {
        return port.stats.note_token_wait_tx(arrivals.first.waited(first.started), frames.len() as u64);
    }
    for (i, frame) in (from..).zip(frames) {
        port.stats.note_token_wait_tx(arrivals.of(i).waited(frame.started), 1);
    }
}

/// Charges frames of `total` bytes, which arrived at `arrival`, to the sender's contract, and sets each
/// start; returns how many conform by `now`, and whether they started together.
fn conform(port: &mut Port, frames: &mut [BatchFrame], total: u64, arrival: u64, now: u64) -> (usize, bool) {
    let Some(first) = frames.first().map(|first| u64::from(first.len)) else { return (0, true) };
    let Some(shaper) = &mut port.shaper else {
        frames.iter_mut().for_each(|frame| frame.started = arrival);
        return (frames.len(), true);
    };
    let from = arrival.max(port.last_started);
    if from <= now && i64::try_from(total).is_ok_and(|total| shaper.available(from) >= total) {
        // All conform at once, so one charge suffices: `Port::conform` does the same for each.
        if port.contract.deadline.is_some() {
            shaper.charge(from, total);
        } else {
            shaper.charge_waiting(from, now, first);
            shaper.charge(now, total - first);
        }
        frames.iter_mut().for_each(|frame| frame.started = from);
        port.last_started = from;
        return (frames.len(), true);
    }
    for (i, frame) in frames.iter_mut().enumerate() {
        match port.conform(arrival, frame.len, now) {
            Ok(at) => frame.started = at,
            Err(_) => return (i, false),
        }
    }
    (frames.len(), false)
}
