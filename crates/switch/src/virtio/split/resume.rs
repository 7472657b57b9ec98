//! Reads from region and ring how a killed process left a queue.

use crate::virtio::inflight::Snapshot;

/// A predecessor's state of a queue.
#[derive(Debug, PartialEq, Eq)]
pub struct Resume {
    /// Used entries up to here are written.
    pub next_used: u16,
    /// Chains completed last, which may still be marked.
    pub last: Vec<u16>,
    /// Marked chains: popped and not completed. A receive queue's others are popped again.
    pub in_flight: Vec<u16>,
    /// Available index after them.
    pub next_avail: u16,
}

impl Resume {
    /// Makes it from the region's record and `used`, the ring's used index.
    pub fn of(
        snapshot: &Snapshot,
        used: u16,
        size: u16,
        (transmit, in_order): (bool, bool),
    ) -> Result<Self, &'static str> {
        let (next_used, second, _) = snapshot.commit;
        let last = match transmit {
            // A shown chain was no longer marked, and may be in flight again.
            true => (next_used != used).then_some(second).into_iter().collect(),
            // It marks none.
            false if in_order => vec![],
            false => {
                let journal = snapshot.journal.get(..second.into());
                let journal = journal.ok_or("the record has more completions than the ring has entries")?;
                journal.iter().map(|record| record.id).collect::<Vec<_>>()
            }
        };
        let mut is_marked: Vec<bool> = snapshot.places.iter().map(|places| *places != 0).collect();
        for head in &last {
            if let Some(is_marked) = is_marked.get_mut(usize::from(*head)) {
                *is_marked = false;
            }
        }
        let marked = (0..).zip(is_marked).filter(|(_, is_marked)| *is_marked && !in_order);
        let in_flight: Vec<u16> = marked.map(|(head, _)| head).collect();
        let open = in_flight.len() as u32 + u32::from(snapshot.lost);
        if u32::from(next_used.wrapping_sub(used)) + open > size.into() {
            return Err("the record uses more entries than the ring has");
        }
        Ok(Self { next_used, last, in_flight, next_avail: next_used.wrapping_add(open as u16) })
    }
}
