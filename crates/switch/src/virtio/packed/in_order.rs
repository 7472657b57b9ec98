//! A packed queue whose driver relies on order (VIRTIO_F_IN_ORDER; virtio 1.2, 2.8.8).
//!
//! ```text
//!  ring  ...──┬───────────┬──────────────┬─────────────┬──────────...
//!             │ being shown│ given back   │ in flight   │ pending
//!  ...────────┴───────────┴──────────────┴─────────────┴──────────...
//!             ▲ used      ▲ end                        ▲ avail
//!             └ one used descriptor: the last one's id └ commit: these three, in one store
//! ```
//!
//! What a transmit queue has in flight lies between two places, so the region holds those and no
//! mark for each chain; after a kill one used descriptor gives all of it back. Receive chains have
//! lengths: each has a used descriptor and, until that is shown, an entry in the journal.

use super::place::used_half;
use super::{PackedQueue, Place};
use crate::virtio::Single;
use crate::virtio::inflight::{Record, Snapshot};
use crate::virtio::walker::DESC_NEXT;
use std::sync::atomic::Ordering;

impl PackedQueue {
    /// Takes the chain at `avail` into flight; returns its number.
    #[inline]
    pub(super) fn take_in_order(&mut self, id: u16, places: u16) -> u16 {
        let number = self.window.as_mut().map_or(0, |window| window.push(id, places));
        self.step(places);
        if self.inflight.is_transmit() {
            self.commit_in_flight();
        }
        number
    }

    /// Of a transmit queue: all that is popped is in flight until it is shown.
    #[inline]
    pub(super) fn commit_in_flight(&self) {
        self.inflight.commit_all(self.used.0, self.used.0, self.avail.0);
    }

    #[inline]
    pub(super) fn complete_in_order<const TRANSMIT: bool>(&mut self, done: impl Iterator<Item = (u16, u32)>) {
        let Some(window) = &mut self.window else { return };
        let (inflight, shown) = (&self.inflight, window.shown);
        let mut freed = 0;
        let mut number = window.given.wrapping_sub(shown);
        window.complete(done, |record| {
            freed += Record::unpack(record).places;
            if !TRANSMIT {
                inflight.log(number, record);
                number = number.wrapping_add(1);
            }
        });
        if !TRANSMIT {
            // All at once: no driver ever sees half of a frame.
            inflight.commit(self.used.0, number);
        }
        self.taken -= freed;
        self.unpublished += freed;
    }

    /// As [`Queue::complete_singles`](crate::virtio::Queue::complete_singles).
    #[inline]
    pub(super) fn complete_run(&mut self, done: &[Single]) -> bool {
        let (Some(window), Some(first)) = (&mut self.window, done.first()) else { return false };
        let n = done.len() as u16;
        if !self.inflight.is_transmit() || !window.complete_run(first.head, n) {
            return false;
        }
        self.taken -= n;
        self.unpublished += n;
        true
    }

    /// Writes what was given back; returns the place after it.
    #[inline]
    pub(super) fn show_in_order(&mut self) -> Option<Place> {
        let window = self.window.as_mut()?;
        let (shown, given) = (window.shown, window.given);
        if shown == given {
            return None;
        }
        window.shown = given;
        let (first_place, size) = (self.used, self.size);
        let end = first_place.forward(self.unpublished, size);
        if self.inflight.is_transmit() {
            let last = window.record(given.wrapping_sub(1));
            self.show_batch(last, first_place, end, self.avail);
            return Some(end);
        }
        let first = window.record(shown);
        let count = given.wrapping_sub(shown) - 1;
        let others = (1..=count).map(|i| window.record(shown.wrapping_add(i)));
        let after = first_place.forward(Record::unpack(first).places, size);
        self.parts.use_slots(after, others, self.unpublished == count + 1);
        // Release: the driver looks no further than the first. The others of the batch, and what was
        // written to buffers, come before.
        self.parts.use_slot(first_place.slot(), used_half(first, first_place), Ordering::Release);
        self.inflight.commit(end.0, 0);
        Some(end)
    }

    /// One used descriptor for all chains from `used` to `end`, of which `last` is the last.
    #[inline]
    fn show_batch(&self, last: u64, used: Place, end: Place, avail: Place) {
        self.inflight.commit_all(used.0, end.0, avail.0);
        // Release: the driver looks no further than here.
        self.parts.use_slot(used.slot(), used_half(last, used), Ordering::Release);
        self.inflight.commit_all(end.0, end.0, avail.0);
    }

    /// Of a transmit queue: goes on where a predecessor was killed; all that it had in flight comes
    /// back.
    pub(super) fn recover_in_order(&mut self, left: &Snapshot) -> Result<(), &'static str> {
        let [mut used, end, avail] = [left.commit.0, left.commit.1, left.commit.2].map(Place);
        let size = self.size;
        if [used, end, avail].iter().any(|place| place.slot() >= size) {
            return Err("a place that it does not have");
        }
        let (Some(batch), Some(all)) = (end.since(used, size), avail.since(used, size)) else {
            return Err("more places than it has");
        };
        if batch > all {
            return Err("more completions than it has places");
        }
        if batch > 0 && used.was_used(self.parts.flags(used.slot())) {
            used = end;
        }
        (self.used, self.avail) = (used, avail);
        self.recovered = Some(self.give_all_back());
        Ok(())
    }

    /// Gives all from `used` to `avail` back, unsent, and shows it; returns how many chains that is.
    pub(super) fn give_all_back(&mut self) -> u16 {
        let (used, avail, size) = (self.used, self.avail, self.size);
        let places = avail.since(used, size).unwrap_or(0);
        if places > 0 {
            // They are the driver's own words still: only the first is written, at the end.
            let half =
                |place: Place| u64::from_le(self.parts.second_half(place.slot()).load(Ordering::Acquire));
            let ends = |i: &u16| half(used.forward(*i, size)) >> 48 & u64::from(DESC_NEXT) == 0;
            let chains = (0..places).filter(ends).count().max(1);
            let id = (half(avail.back(1, size)) >> 32) as u16;
            self.show_batch(Record { id, places: 0, len: 0 }.pack(), used, avail, avail);
            self.used = avail;
            return chains as u16;
        }
        self.inflight.commit_all(used.0, used.0, avail.0);
        0
    }
}
