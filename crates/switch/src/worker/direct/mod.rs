//! The direct way: plain frames that meet no contention go from ring to ring, a batch at a time and
//! without a queue. The checks and the accounts are those of the queued way.
//!
//! ```text
//!  tx ring ─▶ one buffer each ─▶ heads copied ─▶ parse, policy, FDB ─▶ room? ─▶ tokens? ─▶ rx rings
//!     ▲                              │                                   │         │
//!     └── put back, to be queued ────┴── anything unusual ───────────────┴─ no ────┘
//! ```
//!
//! A frame is plain if it is one buffer with the headers of IP over Ethernet and asks for no more
//! than the receiver takes as it is. It meets no contention if nothing waits at its egress, the
//! egress has tokens, and the receiver a buffer that it fits into. Frames to another worker, to
//! a tap or to a guest that migrates take the queued way, as do those of ports that are watched.
//!
//! - `batch`: the memory of one
//! - `decide`: by its copied head, whether a frame goes this way, and where to
//! - `room`: receiving queues and their buffers
//! - `carry`: into the buffers, and the accounts

mod batch;
mod carry;
mod decide;
mod room;

pub(super) use batch::Batch;

use super::Worker;
use super::budget::DIRECT;
use super::turns::BATCH;
use crate::port::Port;

/// What went the direct way.
pub(super) struct Direct {
    /// How many frames.
    pub(super) frames: usize,
    /// The next one waits, where it is, for those before it that are at another worker.
    pub(super) waits: bool,
}

impl Worker {
    /// Sends what can go the direct way of one transmit queue, while `budget` lasts.
    pub(super) fn direct(&mut self, port: &mut Port, pair: usize, budget: &mut i64) -> Direct {
        const NONE: Direct = Direct { frames: 0, waits: false };
        let Some(info) = &self.infos[port.index as usize] else { return NONE };
        let Some(rings) = port.link.tx.rings() else { return NONE };
        let header_len = rings.header_len();
        let Some(tx) = rings.queue(pair) else { return NONE };
        if port.capture.is_some() || tx.pending.is_some() || self.watch.covers(port.index) {
            return NONE;
        }
        let learns = info.learns;
        let arrival = tx.arrivals.of(tx.ring.queue.next_avail());
        let Some(mut batch) = self.batch.take() else { return NONE };
        // Where contention lasts, only one frame is looked at in vain.
        let most = usize::from(tx.direct).clamp(1, self.turns.batch(port.index));
        let popped = tx.ring.queue.pop_singles::<false>(&mut batch.tx[..most]);
        let mut count = self.classify(port, &mut batch, popped, header_len, *budget, learns);
        port.lull = batch.lull;
        if count > 0 {
            let wanted = count;
            let room = self.find_room(&mut batch, wanted);
            count = conform(port, &mut batch, room, arrival, self.now);
            // What waits for tokens waits for nothing else.
            batch.waits &= room == wanted && count == room;
            batch.waits |= room < wanted && count == room && self.waits_for_room(port, &batch, room);
            batch.arrival = arrival;
        }
        if let Some(tx) = port.link.tx.rings().and_then(|rings| rings.queue(pair)) {
            tx.ring.queue.put_back(&batch.tx[count..popped]);
            tx.direct = if count > 0 || popped == 0 || batch.waits { BATCH as u8 } else { tx.direct / 2 };
        }
        if count < popped {
            self.give_back_buffers(&mut batch, count);
        }
        if count > 0 {
            let bytes = self.carry(port, pair, &mut batch, count, header_len);
            *budget -= bytes as i64 + count as i64 * DIRECT;
        }
        if !batch.halves.is_empty() {
            // What came meanwhile would end it, one frame after the others by crossing.
            batch.waits |= count > 0 && count == popped;
            self.put_halves_back(&mut batch);
        }
        let waits = batch.waits;
        self.batch = Some(batch);
        Direct { frames: count, waits }
    }
}

/// Charges the batch's frames to the sender's contract, and says when each started; returns how many
/// conform by `now`.
fn conform(port: &mut Port, batch: &mut Batch, count: usize, arrival: u64, now: u64) -> usize {
    let frames = &mut batch.frames[..count];
    batch.together = true;
    let Some(shaper) = &mut port.shaper else {
        frames.iter_mut().for_each(|frame| frame.started = arrival);
        return count;
    };
    let from = arrival.max(port.last_started);
    let groups = &batch.groups[..batch.group_count];
    let all = groups.iter().map(|group| usize::from(group.frames)).sum::<usize>() == count;
    let total: u64 = groups.iter().map(|group| group.bytes).sum();
    if all && from <= now && i64::try_from(total).is_ok_and(|total| shaper.available(from) >= total) {
        // They all conform at once, so they can be charged at once: as `Port::conform` does each.
        if port.contract.deadline.is_some() {
            shaper.charge(from, total);
        } else {
            let first = u64::from(frames[0].len);
            shaper.charge_waiting(from, now, first);
            shaper.charge(now, total - first);
        }
        frames.iter_mut().for_each(|frame| frame.started = from);
        port.last_started = from;
        return count;
    }
    batch.together = false;
    for (i, frame) in frames.iter_mut().enumerate() {
        match port.conform(arrival, frame.len, now) {
            Ok(at) => frame.started = at,
            Err(_) => return i,
        }
    }
    count
}
