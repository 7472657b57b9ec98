//! The cost of deliveries, and the ports that pay.
//!
//! ```text
//!                    ┌ of their bytes ──▶ the senders, each by what its frames cost
//!  time of one ──────┤
//!  egress's turn     └ of the chains beyond one a frame ──▶ the receiver, whose buffers are small
//! ```
//!
//! The clock is read once for each served egress, not for each frame. Its time is divided by the frames'
//! costs in the [budget](super::budget).

use super::Worker;
use super::turns::Turns;
use crate::clock::clock;
use crate::fdb::PortIndex;
use crate::port::Port;

/// The cost of one egress's turn, in copied bytes.
pub(super) struct Bill {
    /// Runs of frames with the same source.
    runs: Vec<Run>,
    /// Chains beyond one per frame, and chains looked through in vain.
    pub(super) buffers: i64,
}

struct Run {
    source: PortIndex,
    frames: u64,
    cost: i64,
}

impl Default for Bill {
    fn default() -> Self {
        // More frames than a turn has, so nothing is allocated later.
        Self { runs: Vec::with_capacity(1024), buffers: 0 }
    }
}

impl Bill {
    /// Adds delivered or dropped frames of `source`; 0 frames for a completion that was counted at its
    /// delivery.
    #[inline]
    pub(super) fn add(&mut self, source: PortIndex, frames: u64, cost: i64) {
        match self.runs.last_mut().filter(|run| run.source == source) {
            Some(run) => (run.frames, run.cost) = (run.frames + frames, run.cost + cost),
            None => self.runs.push(Run { source, frames, cost }),
        }
    }
}

impl Worker {
    /// Charges the time of a receiver's turn, which ends now.
    pub(super) fn settle_bill(&mut self, receiver: &Port) {
        let frames: i64 = self.bill.runs.iter().map(|run| run.cost).sum();
        let buffers = std::mem::take(&mut self.bill.buffers);
        if frames + buffers == 0 {
            return;
        }
        self.now = clock();
        let sent = self.bill.runs.iter().map(|run| run.frames).sum();
        self.note_delivery(receiver.index, self.turns.elapsed(self.now), sent, frames);
        // Units of 2^-16 ns: a lap is shorter than a millisecond.
        let each = (self.turns.lap(self.now) << 16) / (frames + buffers);
        let time = |cost: i64| (cost * each) >> 16;
        for Run { source, frames, cost } in self.bill.runs.drain(..) {
            if let Some(port) = &self.ports[usize::from(source)] {
                self.turns.charge_delivery(source, time(cost));
                port.stats.work.deliver.add(time(cost) as u64);
                port.stats.work.delivered.add(frames);
            } else if let Some(info) = &self.infos[usize::from(source)] {
                // Its counters belong to another worker.
                self.turns.charge_delivery(Turns::of_worker(info.worker.into()), time(cost));
            }
        }
        self.turns.charge_buffers(receiver.index, time(buffers), time(frames));
        receiver.stats.work.buffers.add(time(buffers) as u64);
    }
}
