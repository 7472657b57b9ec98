//! Taking a packed queue into service, and out of it.
//!
//! ```text
//!   base ─────────▶ new ─────▶ in service ──▶ retire: base
//!   region, ring ─▶ recover ──▶    │
//!                      ▲           │ kill
//!                      └───────────┘
//! ```

use super::left::Left;
use super::{MAX_SIZE, PackedQueue, Parts, Place};
use crate::virtio::layout::{Features, RingLayout};
use crate::virtio::walker::Walker;
use crate::virtio::window::Window;
use crate::virtio::{GuestMemory, QueueInflight, RingError};
use std::sync::Arc;

impl PackedQueue {
    /// What a queue that was never started starts from: both places first, both counters 1.
    pub const FIRST: u32 = 0x8000_8000;

    /// Takes a queue into service. `base` says where the ring stands (vhost-user, "Vring state"):
    /// bits 0 to 14 the next available place, bit 15 its wrap counter, bits 16 to 31 the same for
    /// the next used one. Front ends that know only the first, DPDK's for one, leave the upper half
    /// zero, which then means the same as the lower.
    ///
    /// # Errors
    /// [`RingError::PackedSize`], [`RingError::PartUnmapped`], [`RingError::PartUnaligned`],
    /// [`RingError::PackedBase`].
    pub fn new(
        memory: Arc<GuestMemory>,
        layout: RingLayout,
        base: u32,
        features: Features,
    ) -> Result<Self, RingError> {
        Self::with_inflight(memory, layout, base, features, None)
    }

    /// As [`Queue::with_inflight`](super::Queue::with_inflight).
    ///
    /// # Errors
    /// As there.
    pub fn with_inflight(
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
        let left = inflight.snapshot(&layout, features.kind())?;
        if let Some(left) = &left {
            if features.in_order && inflight.is_transmit() {
                let mut queue = Self::standing_at(memory, parts, layout, features, inflight);
                queue.recover_in_order(left).map_err(RingError::Inflight)?;
                return Ok(queue);
            }
            let left = Left::of(left, size, inflight.is_transmit(), |slot| parts.flags(slot));
            let mut queue = Self::standing_at(memory, parts, layout, features, inflight);
            queue.recover(left.map_err(RingError::Inflight)?);
            return Ok(queue);
        }
        let avail = Place(base as u16);
        let used = if base >> 16 == 0 { avail } else { Place((base >> 16) as u16) };
        let taken = avail.since(used, size).filter(|_| avail.slot() < size && used.slot() < size);
        let taken = taken.ok_or(RingError::PackedBase { base, size })?;
        if features.in_order {
            // Nothing that is in flight may be passed over: it comes back, or is popped again.
            let transmit = inflight.is_transmit();
            inflight.enter(&layout, features.kind(), (used.0, if transmit { used.0 } else { 0 }, avail.0), 0);
            let mut queue = Self::standing_at(memory, parts, layout, features, inflight);
            (queue.avail, queue.used) = (if transmit { avail } else { used }, used);
            if transmit {
                queue.recovered = Some(queue.give_all_back()).filter(|back| *back > 0);
            }
            return Ok(queue);
        }
        inflight.enter(&layout, features.kind(), (used.0, 0, 0), taken);
        let mut queue = Self::standing_at(memory, parts, layout, features, inflight);
        (queue.avail, queue.used, queue.taken) = (avail, used, taken);
        Ok(queue)
    }

    /// A queue at the first place.
    fn standing_at(
        memory: Arc<GuestMemory>,
        parts: Parts,
        layout: RingLayout,
        features: Features,
        inflight: QueueInflight,
    ) -> Self {
        let size = layout.size;
        let tables = if features.in_order { 0 } else { usize::from(size) };
        Self {
            parts,
            size,
            event_idx: features.event_idx,
            avail: Place(Self::FIRST as u16),
            looked: 0,
            pending: 0,
            popped: 0,
            completed: 0,
            used: Place(Self::FIRST as u16),
            journal: vec![0; tables].into(),
            logged: 0,
            unpublished: 0,
            taken: 0,
            interrupt_due: true,
            places: vec![0; tables].into(),
            order: vec![0; tables.next_power_of_two()].into(),
            window: features.in_order.then(|| Window::new(size, 0)),
            inflight,
            recovered: None,
            layout,
            walker: Walker::new(memory, features.indirect),
        }
    }

    /// Goes on where a predecessor was killed.
    fn recover(&mut self, left: Left) {
        let Left { used, unshown, shown, in_flight, lost } = left;
        // A kill may have come between the completion and this.
        unshown.iter().chain(&shown).for_each(|record| self.inflight.unmark(record.id));
        self.used = used;
        if let Some(window) = &mut self.window {
            // A receive queue: all before `avail` is completed.
            self.unpublished = unshown.iter().map(|record| record.places).sum();
            unshown.iter().for_each(|record| window.restore(*record));
            self.inflight.commit(used.0, unshown.len() as u16);
            self.avail = used.forward(self.unpublished, self.size);
            self.recovered = Some(0);
            let _ = self.publish();
            self.interrupt_due = true;
            return;
        }
        for (logged, record) in self.journal.iter_mut().zip(&unshown) {
            *logged = record.pack();
            self.unpublished += record.places;
        }
        self.logged = unshown.len() as u16;
        self.inflight.commit(used.0, self.logged);
        self.taken = lost;
        for &(id, places) in &in_flight {
            self.places[usize::from(id)] = places;
            self.taken += places;
            self.popped = self.popped.wrapping_add(1);
        }
        self.avail = used.forward(self.unpublished + self.taken, self.size);
        self.recovered = Some(in_flight.len() as u16);
        self.complete_all(in_flight.iter().map(|&(id, _)| (id, 0)));
        let _ = self.publish();
        // The driver was not called yet.
        self.interrupt_due = true;
    }

    /// As [`Queue::recovered`](super::Queue::recovered).
    pub fn recovered(&self) -> Option<u16> {
        self.recovered
    }

    /// As [`Queue::retire`](super::Queue::retire).
    pub fn retire(self) -> u32 {
        debug_assert_eq!(self.unpublished, 0, "retired with completions unpublished");
        let base = self.base();
        self.inflight.leave(base);
        base
    }
}
