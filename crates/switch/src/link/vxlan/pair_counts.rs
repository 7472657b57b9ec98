//! Counters of one pair of vNICs of two hosts. One worker writes them, other threads read them: no reader stops a worker.

use crate::hosts::late::Where;
use crate::stats::layout::Counter;
use tidegate_uplink::replay::Arrival;

/// Counters of one pair, of both directions.
#[derive(Debug, Default)]
pub struct PairCounts {
    /// Frames that left with a stamp.
    pub sent: Counter,
    /// Frames that arrived with a valid stamp, and were accepted.
    pub arrived: Counter,
    /// Frames that were sent and can no longer arrive.
    pub lost: Counter,
    /// Accepted frames that later ones had overtaken.
    pub reordered: Counter,
    /// Times that the sender began to count anew.
    pub restarted: Counter,
    /// Frames with a valid stamp that arrived before, or that are too old to tell; dropped.
    pub replayed: Counter,
    /// Frames with a trailer like a stamp, but not one of this segment's keys; delivered unchanged.
    pub forged: Counter,
    /// Accepted frames beyond the declared envelope of their vNIC: best effort here.
    pub excess: Counter,
    /// Accepted frames that this host dropped.
    pub dropped: Counter,
    /// Frames judged as in time.
    pub met: Counter,
    /// Frames that were late by more than the clocks' error: by the sender, the network, this host.
    pub late: [Counter; 3],
    /// Frames that were late by no more than that.
    pub uncertain: [Counter; 3],
    /// Frames that arrived while the clock of the sender's host was not known.
    pub unjudged: Counter,
    /// Most by which a frame was certainly late (ns).
    pub worst: Counter,
}

impl PairCounts {
    /// Counts a frame with a valid stamp. `lost`: frames lost so far.
    #[inline]
    pub(super) fn arrived(&self, arrival: Arrival, lost: u64) {
        if arrival.is_accepted() {
            self.arrived.add(1);
        }
        match arrival {
            Arrival::InOrder => {}
            Arrival::Reordered => self.reordered.add(1),
            Arrival::Restarted => self.restarted.add(1),
            Arrival::Replayed | Arrival::TooOld | Arrival::Contradiction => self.replayed.add(1),
        }
        self.lost.set(lost);
    }
}

/// Returns the place of a cause in the counters.
pub const fn place(cause: Where) -> usize {
    match cause {
        Where::Sender => 0,
        Where::Network => 1,
        Where::Receiver(_) => 2,
    }
}
