//! Where a predecessor left a packed queue.
//!
//! ```text
//!   shown ──journal──▶ used ──in flight, lost──▶ avail
//!     └ the descriptor there says whether the driver saw the journal
//! ```

use super::position::Position;
use crate::virtio::inflight::{Record, Snapshot};

/// A consistent state, made from a region's record.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Resume {
    /// Next place for a used descriptor that the driver has not seen.
    pub(super) used: Position,
    /// Completed and not shown, from `used` on.
    pub(super) unshown: Vec<Record>,
    /// Completed and shown, perhaps still marked as in flight.
    pub(super) shown: Vec<Record>,
    /// Marked, so popped and not completed: ids and places. A receive queue's other chains are popped again:
    /// nothing was written to them, and no later descriptor was popped.
    pub(super) in_flight: Vec<(u16, u16)>,
    /// Places that stay taken for ever.
    pub(super) lost: u16,
}

impl Resume {
    /// Makes it from a region's record; `flags` returns those of the descriptor in a slot.
    pub(super) fn of(
        snapshot: &Snapshot,
        size: u16,
        in_order: bool,
        flags: impl FnOnce(u16) -> u16,
    ) -> Result<Self, &'static str> {
        let (place, count) = (Position(snapshot.commit.0), snapshot.commit.1);
        if place.slot() >= size {
            return Err("the record names a place outside the ring");
        }
        let records = snapshot
            .journal
            .get(..count.into())
            .ok_or("the record has more completions than the ring has places")?;
        if records.iter().any(|record| record.id >= size || record.places == 0) {
            return Err("the record has a completed buffer with an impossible id or no places");
        }
        let mut completed = vec![false; size.into()];
        records.iter().for_each(|record| completed[usize::from(record.id)] = true);
        // In order it marks none.
        let marked = (0..)
            .zip(&snapshot.places)
            .filter(|&(id, &places)| places != 0 && !in_order && !completed[usize::from(id)]);
        let in_flight: Vec<(u16, u16)> = marked.map(|(id, &places)| (id, places)).collect();
        let done: u32 = records.iter().map(|record| u32::from(record.places)).sum();
        let open: u32 = in_flight.iter().map(|&(_, places)| u32::from(places)).sum();
        if done + open + u32::from(snapshot.lost) > size.into() {
            return Err("the record uses more places than the ring has");
        }
        let records = records.to_vec();
        let (used, unshown, shown) = match count > 0 && place.was_used(flags(place.slot())) {
            true => (place.forward(done as u16, size), Vec::new(), records),
            false => (place, records, Vec::new()),
        };
        Ok(Self { used, unshown, shown, in_flight, lost: snapshot.lost })
    }
}
