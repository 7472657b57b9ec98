//! Taking a split queue into service, at a base or where a predecessor was killed.

use super::parts::Parts;
use super::resume::Resume;
use super::{Order, SplitQueue};
use crate::virtio::layout::{Features, RingLayout};
use crate::virtio::order::Counts;
use crate::virtio::walker::Walker;
use crate::virtio::{GuestMemory, QueueInflight, RingError};
use std::sync::Arc;

impl<O: Order> SplitQueue<O> {
    /// As [`Queue::with_inflight`](crate::virtio::Queue::with_inflight).
    ///
    /// # Errors
    /// [`RingError::Size`], [`RingError::PartUnmapped`], [`RingError::PartUnaligned`],
    /// [`RingError::NoIndex`], [`RingError::Base`], [`RingError::Inflight`].
    pub(in crate::virtio) fn start(
        memory: Arc<GuestMemory>,
        layout: RingLayout,
        base: u32,
        features: Features,
        inflight: Option<QueueInflight>,
    ) -> Result<Self, RingError> {
        let base = u16::try_from(base).map_err(|_| RingError::NoIndex(base))?;
        let size = layout.size;
        if !size.is_power_of_two() {
            return Err(RingError::Size(size));
        }
        let parts = Parts::translate(&memory, &layout)?;
        let inflight = inflight.unwrap_or_else(|| QueueInflight::private(size));
        let (used, kind, transmit) = (parts.used_index(), features.kind(), inflight.is_transmit());
        let open = base.wrapping_sub(used);
        let mut in_flight = Vec::new();
        let mut counts = Counts::at(used);
        let mut recovered = None;
        match inflight.snapshot(&layout, kind)? {
            Some(snapshot) if O::IN_ORDER && transmit => {
                let popped = snapshot.commit.0;
                if popped.wrapping_sub(used) > size {
                    return Err(RingError::Inflight("the record uses more entries than the ring has"));
                }
                parts.give_all_back(used, popped);
                counts = Counts::at(popped);
                recovered = Some(popped.wrapping_sub(used));
            }
            Some(snapshot) => {
                let resume = Resume::of(&snapshot, used, size, (transmit, O::IN_ORDER))
                    .map_err(RingError::Inflight)?;
                resume.last.iter().for_each(|head| inflight.unmark(*head));
                if !transmit {
                    // The journal is written anew.
                    inflight.commit(resume.next_used, 0);
                }
                counts = Counts { popped: resume.next_avail, returned: resume.next_used, shown: used };
                recovered = Some(resume.in_flight.len() as u16);
                in_flight = resume.in_flight;
            }
            None if open > size => return Err(RingError::Base { base, used, size }),
            // In order, no chain in flight may be skipped: it comes back, or is popped again.
            None if O::IN_ORDER && transmit => {
                inflight.enter(&layout, kind, (base, 0, 0), 0);
                parts.give_all_back(used, base);
                counts = Counts::at(base);
                recovered = Some(open).filter(|back| *back > 0);
            }
            None if O::IN_ORDER => inflight.enter(&layout, kind, (used, 0, 0), 0),
            None => {
                inflight.enter(&layout, kind, (used, 0, 0), open);
                counts.popped = base;
            }
        }
        let mut queue = Self {
            parts,
            order: O::new(size, counts, transmit),
            pending: 0,
            event_idx: features.event_idx,
            interrupt_due: true,
            inflight,
            recovered,
            layout,
            walker: Walker::new(memory, features.indirect),
        };
        queue.come_back(&in_flight);
        // The first publish calls the driver.
        let _ = queue.show();
        Ok(queue)
    }
}
