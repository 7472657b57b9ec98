//! Counters of sent frames.

use crate::port::Port;
use crate::slots::Arrival;
use crate::slots::Frame;

/// Counts a sent frame.
pub(crate) fn count_sent(port: &Port, frame: &Frame) {
    port.stats.tx.frames.add(1);
    port.stats.tx.wire_frames.add(u64::from(frame.wire_frames));
    port.stats.tx.wire_bytes.add(u64::from(frame.wire_bytes));
}

/// Notes how long a sent frame waited for its sender's limit, if any.
#[inline]
pub(crate) fn note_tokens(port: &Port, arrival: &Arrival, started: u64) {
    if port.shaper.is_some() {
        port.stats.note_token_wait_tx(arrival.waited(started), 1);
    }
}
