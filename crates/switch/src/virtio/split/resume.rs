//! Reads from region and ring how a killed process left a queue.

use crate::virtio::inflight::Snapshot;

/// A predecessor's state of a queue.
#[derive(Debug, PartialEq, Eq)]
pub struct Resume {
    /// Used entries up to here are written.
    pub next_used: u16,
    /// The chain completed last, which may still be marked.
    pub last: Option<u16>,
    /// Chains popped and not completed, of a transmit queue; a receive queue's are popped again.
    pub in_flight: Vec<u16>,
    /// Available index after them.
    pub next_avail: u16,
}

impl Resume {
    /// Makes it from the region's record and `used`, the ring's used index.
    pub fn of(snapshot: &Snapshot, used: u16, size: u16, transmit: bool) -> Result<Self, &'static str> {
        let (next_used, last, _) = snapshot.commit;
        // A shown chain was no longer marked, and may be in flight again.
        let last = (transmit && next_used != used).then_some(last);
        let marked = (0..).zip(&snapshot.places).filter(|&(head, &places)| places != 0 && Some(head) != last);
        let in_flight: Vec<u16> = if transmit { marked.map(|(head, _)| head).collect() } else { Vec::new() };
        let open = in_flight.len() as u32 + u32::from(snapshot.lost);
        if u32::from(next_used.wrapping_sub(used)) + open > size.into() {
            return Err("the record uses more entries than the ring has");
        }
        Ok(Self { next_used, last, in_flight, next_avail: next_used.wrapping_add(open as u16) })
    }
}
