//! Frames that lie in one buffer each, a batch at a time: decided on once, then sent one of two ways.
//!
//! ```text
//!                                             ┌ room and tokens, nothing waits ─▶ directly: rx rings
//!  tx ring ─▶ heads copied ─▶ decide, FDB ────┤
//!     ▲                           │           └ else, and all behind ─▶ queue: slot ─▶ egress
//!     └── put back: looked at alone, or waits ◀── no slot, no tokens, another worker's ──┘
//! ```
//!
//! What is taken so is to one receiver, has the headers of TCP or UDP over IP, and asks for no more than a checksum. The
//! first frames of a batch that meet no contention go **directly**, from ring to ring: nothing waits at their egress, it
//! has tokens, the receiver a buffer that they fit into, and takes them as they are. All others to ports of this worker
//! are **queued** with what was decided on them: no byte that it was decided by is read again.
//!
//! Frames to another worker's port go directly where [its receiving half is lent](super::lending); otherwise they wait for
//! that in the sender's ring, or cross alone. Frames to a tap or to a guest that migrates are queued, as are those to
//! ports that are watched. Of ports that are watched themselves, or captured, frames are looked at alone.
//!
//! - `batch`: the memory of one
//! - `classify`: by the copied heads, how many are decided on, and which may go directly
//! - `room`: receiving queues and their buffers
//! - `carry`: into the buffers, and the accounts
//! - `queue`: the others, to their egress

mod batch;
mod carry;
mod classify;
mod queue;
mod room;

pub(super) use batch::Batch;
use batch::{Came, Sent};

use super::Worker;
use super::budget::DIRECT;
use super::turns::BATCH;
use crate::clock::clock;
use crate::port::Port;

/// What came of a batch.
pub(super) struct Outcome {
    /// How many frames were sent, directly or to their egress.
    pub(super) frames: usize,
    /// The next one waits, where it is, for those before it that are at another worker.
    pub(super) waits: bool,
    /// Another batch can be tried in this turn, behind the next one.
    pub(super) again: bool,
}

impl Worker {
    /// Sends what can go by the batch of one transmit queue, at most `most` frames, while `budget` lasts.
    pub(super) fn send_batch(
        &mut self,
        port: &mut Port,
        pair: usize,
        most: usize,
        budget: &mut i64,
    ) -> Outcome {
        const NONE: Outcome = Outcome { frames: 0, waits: false, again: true };
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
        batch.came.first = arrival;
        batch.came.together = tx.arrivals.came_together(first, popped);
        if !batch.came.together {
            tx.arrivals.latest_into(first, &mut batch.came.latest[..popped]);
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
        let mut again = !batch.crosses;
        if let Some(tx) = port.link.tx.rings().and_then(|rings| rings.queue(pair)) {
            tx.ring.queue.put_back(&batch.tx[sent..popped]);
            tx.direct = if sent > 0 || popped == 0 || batch.waits { BATCH as u8 } else { tx.direct / 2 };
            // Where frames are of another kind, one is looked at in vain, once a turn.
            again &= tx.direct > 1;
        }
        if !batch.halves.is_empty() {
            // What came meanwhile would end it, one frame after the others by crossing.
            batch.waits |= direct > 0 && sent == popped;
            self.put_halves_back(&mut batch);
        }
        let waits = batch.waits;
        self.batch = Some(batch);
        Outcome { frames: sent, waits, again }
    }

    /// How many of the batch's first frames go directly: those that may, and for which there are buffers and tokens.
    #[inline]
    fn find_direct(&mut self, port: &mut Port, batch: &mut Batch) -> usize {
        let wanted = batch.direct;
        if wanted == 0 {
            return 0;
        }
        let room = self.find_room(batch, wanted);
        let (total, arrival) = (batch.bytes(room), batch.came.first.earliest);
        let (count, together) = conform(port, &mut batch.frames[..room], total, arrival, self.now);
        batch.together = together;
        if count < wanted {
            // What waits for tokens waits for nothing else.
            batch.waits = room < wanted && count == room && self.waits_for_room(port, batch, room);
            self.give_back_buffers(batch, count);
        }
        count
    }
}

/// Notes how long frames that are sent, of which the first is number `from` of its batch, waited for the limit of their
/// sender, if that has one; `together`: they started at the same time.
#[inline]
fn note_tokens(port: &Port, frames: &[Sent], came: &Came, from: usize, together: bool) {
    if port.shaper.is_none() {
        return;
    }
    let (Some(first), Some(last)) = (frames.first(), frames.last()) else { return };
    // Frames start in order: where the last did not wait, none did.
    if together && came.together || last.started <= came.first.latest {
        return port.stats.note_token_wait_tx(came.first.waited(first.started), frames.len() as u64);
    }
    for (i, frame) in (from..).zip(frames) {
        port.stats.note_token_wait_tx(came.of(i).waited(frame.started), 1);
    }
}

/// Charges frames of `total` bytes, which arrived at `arrival`, to the sender's contract, and says when each started;
/// returns how many conform by `now`, and whether they started together.
fn conform(port: &mut Port, frames: &mut [Sent], total: u64, arrival: u64, now: u64) -> (usize, bool) {
    let Some(first) = frames.first().map(|first| u64::from(first.len)) else { return (0, true) };
    let Some(shaper) = &mut port.shaper else {
        frames.iter_mut().for_each(|frame| frame.started = arrival);
        return (frames.len(), true);
    };
    let from = arrival.max(port.last_started);
    if from <= now && i64::try_from(total).is_ok_and(|total| shaper.available(from) >= total) {
        // They all conform at once, so they can be charged at once: as `Port::conform` does each.
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
