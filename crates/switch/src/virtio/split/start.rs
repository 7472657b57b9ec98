//! Taking a split queue into service, and out of it.
//!
//! ```text
//!   base ─────────▶ new ─────▶ in service ──▶ retire: base
//!   region, ring ─▶ recover ──▶    │
//!                      ▲           │ kill
//!                      └───────────┘
//! ```

use super::left::Left;
use super::{Rings, SplitQueue};
use crate::virtio::inflight::{Snapshot, stored};
use crate::virtio::layout::{Features, RingLayout};
use crate::virtio::walker::Walker;
use crate::virtio::window::Window;
use crate::virtio::{GuestMemory, QueueInflight, RingError};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl SplitQueue {
    /// Takes a queue into service. `base` is the first available index to be read
    /// (vhost-user, VHOST_USER_SET_VRING_BASE); the used index goes on where the ring says.
    ///
    /// # Errors
    /// [`RingError::Size`], [`RingError::PartUnmapped`], [`RingError::PartUnaligned`],
    /// [`RingError::Base`].
    pub fn new(
        memory: Arc<GuestMemory>,
        layout: RingLayout,
        base: u16,
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
        base: u16,
        features: Features,
        inflight: Option<QueueInflight>,
    ) -> Result<Self, RingError> {
        let size = layout.size;
        if !size.is_power_of_two() {
            return Err(RingError::Size(size));
        }
        let rings = Rings::translate(&memory, &layout)?;
        let inflight = inflight.unwrap_or_else(|| QueueInflight::private(size));
        let left = inflight.snapshot(&layout, features.kind())?;
        let mut queue = Self {
            rings,
            size,
            event_idx: features.event_idx,
            seen: base,
            next_avail: base,
            next_used: 0,
            published: 0,
            window: None,
            interrupt_due: true,
            inflight,
            recovered: None,
            layout,
            walker: Walker::new(memory, features.indirect),
        };
        let used = u16::from_le(queue.used_idx().load(Ordering::Relaxed));
        queue.next_used = used;
        queue.published = used;
        let kind = features.kind();
        match left {
            Some(left) if features.in_order && queue.inflight.is_transmit() => {
                let popped = left.commit.0;
                if popped.wrapping_sub(used) > size {
                    return Err(RingError::Inflight("more entries than it has"));
                }
                queue.recovered = Some(popped.wrapping_sub(used));
                queue.give_all_back(popped);
            }
            Some(left) => queue.recover(&left)?,
            None if base.wrapping_sub(used) > size => return Err(RingError::Base { base, used, size }),
            // Nothing that is in flight may be passed over: it comes back, or is popped again.
            None if features.in_order && queue.inflight.is_transmit() => {
                queue.inflight.enter(&layout, kind, (base, 0, 0), 0);
                queue.recovered = Some(base.wrapping_sub(used)).filter(|back| *back > 0);
                queue.give_all_back(base);
            }
            None if features.in_order => {
                queue.inflight.enter(&layout, kind, (used, 0, 0), 0);
                (queue.next_avail, queue.seen) = (used, used);
            }
            None => queue.inflight.enter(&layout, kind, (used, 0, 0), base.wrapping_sub(used)),
        }
        if features.in_order {
            queue.window = Some(Window::new(size, queue.next_avail));
        }
        Ok(queue)
    }

    /// Gives all that is not used before `popped` back, unsent, and shows it: in order, so that the
    /// last one stands for all.
    fn give_all_back(&mut self, popped: u16) {
        if popped != self.published {
            let head = self.avail_entry(popped.wrapping_sub(1));
            self.write_used(self.published, head, 0);
            self.used_idx().store(popped.to_le(), Ordering::Release);
            stored();
        }
        (self.next_used, self.published) = (popped, popped);
        (self.next_avail, self.seen) = (popped, popped);
    }

    /// Goes on where a predecessor was killed; `published` is the used index in the ring.
    fn recover(&mut self, left: &Snapshot) -> Result<(), RingError> {
        let transmit = self.inflight.is_transmit();
        let Left { next_used, last, in_flight, next_avail } =
            Left::of(left, self.published, self.size, transmit).map_err(RingError::Inflight)?;
        self.next_used = next_used;
        self.next_avail = next_avail;
        self.seen = next_avail;
        self.recovered = Some(in_flight.len() as u16);
        if let Some(head) = last {
            self.inflight.unmark(head);
        }
        self.complete_all(in_flight.iter().map(|&head| (head, 0)));
        let _ = self.publish();
        // The driver was not called yet.
        self.interrupt_due = true;
        Ok(())
    }

    /// As [`Queue::recovered`](super::Queue::recovered).
    pub fn recovered(&self) -> Option<u16> {
        self.recovered
    }

    /// As [`Queue::retire`](super::Queue::retire).
    pub fn retire(self) -> u32 {
        debug_assert_eq!(self.published, self.next_used, "retired with completions unpublished");
        let base = self.next_avail.into();
        self.inflight.leave(base);
        base
    }
}
