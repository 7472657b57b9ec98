//! Which descriptors of a link may have frames, and since when frames there can be unseen.
//!
//! ```text
//!  epoll ─ note_readable ─▶ ┌────────────┐ ─ turn ─▶ the link reads one ─┬▶ a frame ─▶ its arrival
//!          note_empty ────▶ │ descriptor │                               └▶ nothing: drained
//!                           └────────────┘
//! ```

use crate::slots::Arrival;
use crate::slots::arrival::UnseenSince;

/// The state of a link's descriptors, all of which are read in turns.
pub struct Readiness {
    /// Whether a descriptor may have frames: it was not yet read until it would block.
    readable: Box<[bool]>,
    /// Since when each can have unread frames: a read found nothing, or the descriptor was silent.
    unseen: Box<[UnseenSince]>,
    /// The descriptor to read next.
    next: usize,
}

impl Readiness {
    /// Returns the state of `count` descriptors, unread at `now` (ns).
    pub fn new(count: usize, now: u64) -> Self {
        Self {
            readable: (0..count).map(|_| true).collect(),
            unseen: (0..count).map(|_| UnseenSince::from(now)).collect(),
            next: 0,
        }
    }

    /// Returns the next descriptor to read: the readable ones take turns.
    #[inline]
    pub fn turn(&mut self) -> Option<usize> {
        for _ in 0..self.readable.len() {
            let queue = self.next;
            self.next = (queue + 1) % self.readable.len();
            if self.readable[queue] {
                return Some(queue);
            }
        }
        None
    }

    /// Notes that reads which began at `now`, or later, took all frames of a descriptor.
    #[inline]
    pub fn drained(&mut self, queue: usize, now: u64) {
        self.readable[queue] = false;
        self.unseen[queue].polled(now);
    }

    /// Notes that a descriptor cannot be read.
    pub fn gone(&mut self, queue: usize) {
        self.readable[queue] = false;
    }

    /// Returns the arrival of a frame that was read by `seen` (ns). The kernel does not tell since when it
    /// was there.
    #[inline]
    pub fn arrival(&self, queue: usize, seen: u64) -> Arrival {
        self.unseen[queue].arrival(seen)
    }

    /// Whether any descriptor may have frames.
    #[inline]
    pub fn any(&self) -> bool {
        self.readable.contains(&true)
    }

    /// Counts all unread frames as arrived at `now`.
    pub fn restart(&mut self, now: u64) {
        self.unseen.fill(UnseenSince::from(now));
    }

    /// Notes that silent descriptors were empty at `since`, and that the worker slept after that until
    /// `woke`, unless the two are equal. The others have a known time.
    #[inline]
    pub fn note_sleep(&mut self, since: u64, woke: u64) {
        self.silent().for_each(|unseen| unseen.note_sleep(since, woke));
    }

    /// Notes that a descriptor became readable after `since`, from when on the worker slept until `woke`,
    /// unless the two are equal.
    #[inline]
    pub fn note_readable(&mut self, queue: usize, since: u64, woke: u64) {
        if let Some(readable) = self.readable.get_mut(queue)
            && !std::mem::replace(readable, true)
        {
            self.unseen[queue].note_sleep(since, woke);
        }
    }

    /// Notes that no silent descriptor is readable at `now`.
    #[inline]
    pub fn note_empty(&mut self, now: u64) {
        self.silent().for_each(|unseen| unseen.polled(now));
    }

    #[inline]
    fn silent(&mut self) -> impl Iterator<Item = &mut UnseenSince> {
        self.unseen
            .iter_mut()
            .zip(&self.readable)
            .filter(|(_, readable)| !**readable)
            .map(|(unseen, _)| unseen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readable_descriptors_take_turns_until_they_are_drained() {
        let mut readiness = Readiness::new(3, 100);
        assert_eq!([(); 4].map(|()| readiness.turn()), [Some(0), Some(1), Some(2), Some(0)]);
        readiness.drained(1, 200);
        readiness.gone(2);
        assert_eq!([(); 2].map(|()| readiness.turn()), [Some(0), Some(0)]);
        readiness.drained(0, 200);
        assert_eq!((readiness.turn(), readiness.any()), (None, false));
        readiness.note_empty(300);
        readiness.note_readable(1, 300, 900);
        assert_eq!((readiness.turn(), readiness.any()), (Some(1), true));
        assert_eq!(readiness.arrival(1, 950), Arrival { earliest: 900, latest: 950, slept: 600 });
        readiness.note_readable(7, 300, 900);
    }
}
