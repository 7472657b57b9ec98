//! Taking a packed queue into service, at a base or where a predecessor was killed.

use super::resume::Resume;
use super::{Journal, MAX_SIZE, PackedQueue, Parts, Position};
use crate::virtio::inflight::Snapshot;
use crate::virtio::layout::{Features, RingLayout};
use crate::virtio::order::Counts;
use crate::virtio::walker::Walker;
use crate::virtio::{GuestMemory, QueueInflight, RingError};
use std::sync::Arc;

/// Base of a queue that was never started: both places first, both counters 1.
pub(in crate::virtio) const FIRST_BASE: u32 = 0x8000_8000;

impl<O: Journal> PackedQueue<O> {
    /// As [`Queue::with_inflight`](crate::virtio::Queue::with_inflight).
    ///
    /// # Errors
    /// [`RingError::PackedSize`], [`RingError::PartUnmapped`], [`RingError::PartUnaligned`],
    /// [`RingError::PackedBase`], [`RingError::Inflight`].
    pub(in crate::virtio) fn start(
        memory: Arc<GuestMemory>,
        layout: RingLayout,
        base: u32,
        features: Features,
        inflight: Option<QueueInflight>,
    ) -> Result<Self, RingError> {
        let size = layout.size;
        if !(1..=MAX_SIZE).contains(&size) {
            return Err(RingError::PackedSize(size));
        }
        let parts = Parts::translate(&memory, &layout)?;
        let inflight = inflight.unwrap_or_else(|| QueueInflight::private(size));
        let (kind, transmit) = (features.kind(), inflight.is_transmit());
        let first = Position(FIRST_BASE as u16);
        let mut queue = Self {
            parts,
            order: O::new(size, Counts::at(0), transmit),
            avail: first,
            seen_places: 0,
            pending: 0,
            used: first,
            unpublished: 0,
            taken: 0,
            event_idx: features.event_idx,
            interrupt_due: true,
            inflight,
            recovered: None,
            layout,
            walker: Walker::new(memory, features.indirect),
        };
        if let Some(snapshot) = queue.inflight.snapshot(&layout, kind)? {
            match O::IN_ORDER && transmit {
                true => queue.recover_range(&snapshot),
                false => queue.recover(&snapshot),
            }
            .map_err(RingError::Inflight)?;
            return Ok(queue);
        }
        let avail = Position(base as u16);
        let used = if base >> 16 == 0 { avail } else { Position((base >> 16) as u16) };
        let taken = avail.since(used, size).filter(|_| avail.slot() < size && used.slot() < size);
        let taken = taken.ok_or(RingError::PackedBase { base, size })?;
        (queue.avail, queue.used) = (avail, used);
        match (O::IN_ORDER, transmit) {
            (false, _) => {
                queue.inflight.enter(&layout, kind, (used.0, 0, 0), taken);
                queue.taken = taken;
            }
            // In order, no chain in flight may be skipped: it comes back, or is popped again.
            (true, true) => {
                queue.inflight.enter(&layout, kind, (used.0, used.0, avail.0), 0);
                let back = parts.give_all_back(&queue.inflight, used, avail);
                queue.used = avail;
                queue.recovered = Some(back).filter(|back| *back > 0);
            }
            (true, false) => {
                queue.inflight.enter(&layout, kind, (used.0, 0, avail.0), 0);
                queue.avail = used;
            }
        }
        Ok(queue)
    }

    /// Of a transmit queue in order: continues where a predecessor was killed; all its chains in flight
    /// come back.
    fn recover_range(&mut self, snapshot: &Snapshot) -> Result<(), &'static str> {
        let [mut used, end, avail] = [snapshot.commit.0, snapshot.commit.1, snapshot.commit.2].map(Position);
        let size = self.parts.size;
        if [used, end, avail].iter().any(|place| place.slot() >= size) {
            return Err("the record names a place outside the ring");
        }
        let (Some(batch), Some(all)) = (end.since(used, size), avail.since(used, size)) else {
            return Err("the record uses more places than the ring has");
        };
        if batch > all {
            return Err("the record has more completions than the ring has places");
        }
        if batch > 0 && used.was_used(self.parts.flags(used.slot())) {
            used = end;
        }
        self.recovered = Some(self.parts.give_all_back(&self.inflight, used, avail));
        (self.used, self.avail) = (avail, avail);
        Ok(())
    }

    /// Continues where a predecessor was killed.
    fn recover(&mut self, snapshot: &Snapshot) -> Result<(), &'static str> {
        let (size, transmit) = (self.parts.size, self.inflight.is_transmit());
        let resume = Resume::of(snapshot, size, O::IN_ORDER, |slot| self.parts.flags(slot))?;
        let Resume { used, unshown, shown, in_flight, lost } = resume;
        // A kill may have come between the completion and this.
        unshown.iter().chain(&shown).for_each(|record| self.inflight.unmark(record.id));
        self.used = used;
        for record in &unshown {
            self.order.restore(*record);
            self.unpublished += record.places;
        }
        self.inflight.commit(used.0, unshown.len() as u16);
        self.taken = lost;
        for &(id, places) in &in_flight {
            self.order.take(id, places).ok_or("the record has an impossible chain in flight")?;
            self.taken += places;
        }
        self.avail = used.forward(self.unpublished + self.taken, size);
        self.recovered = Some(in_flight.len() as u16);
        let done = in_flight.iter().map(|&(id, _)| (id, 0));
        if transmit {
            self.complete_all(done);
        } else if !in_flight.is_empty() {
            self.complete_kept(done);
        }
        // The first publish calls the driver.
        let _ = self.show();
        Ok(())
    }
}
