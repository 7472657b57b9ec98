//! The port's part of a landing: fills slots, gives frames to the guest, and takes buffers back. With [`landing`](super::landing) the only
//! file that reads and writes these buffers.
//!
//! ```text
//!  buffers ─ fill ─▶ slot ─ post ─▶ device ... frame at its port ─ deliver ─▶ header, head if changed ─▶ buffers, filled and empty
//!                                                                  collect ─▶ all that no frame has
//! ```

use super::guest::GuestRegions;
use super::landing::{Chains, Landing, VIRTIO};
use super::pair::{LocalPair, TOGETHER};
use super::setup::Setup;
use super::stages::Stage;
use crate::virtio::{Single, Span};
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tidegate_verbs::Error;

/// The port's part, of the worker that has the port's receiving half.
pub struct PortHalf {
    landing: Arc<Landing>,
    /// What slots are posted by; gone when nothing is to be posted any more.
    feed: Option<Feed>,
}

/// What slots are posted by.
pub struct Feed {
    /// The queue pair.
    pub pair: Arc<LocalPair>,
    /// The guest's memory as the device may write it.
    pub guest: Arc<GuestRegions>,
}

impl PortHalf {
    /// Makes a landing for frames that a queue pair receives into its guest's memory, and the port's half.
    ///
    /// # Errors
    /// No memory may be registered.
    pub fn new(setup: &Setup, feed: Feed) -> Result<(Arc<Landing>, Self), Error> {
        let landing = Landing::new(setup, &feed.guest, feed.pair.over())?;
        feed.pair.keep(&landing, &feed.guest);
        Ok((landing.clone(), Self { landing, feed: Some(feed) }))
    }

    /// Returns what both sides share.
    pub fn landing(&self) -> &Arc<Landing> {
        &self.landing
    }

    /// Returns how many slots the queue pair has room for.
    #[inline]
    pub fn room(&self) -> usize {
        let Some(Feed { pair, .. }) = &self.feed else { return 0 };
        pair.room_for_landing(self.landing.posted())
    }

    /// Gives up what slots are posted by, for the caller to drop: none is posted any more.
    pub fn close(&mut self) -> Option<Feed> {
        self.feed.take()
    }

    /// Returns the next slot from `from` on that can be posted, and whether it has buffers already.
    #[inline]
    pub fn next(&self, from: u16) -> Option<(u16, bool)> {
        (from..self.landing.stages.count()).find_map(|at| match self.landing.stages.stage(at) {
            // SAFETY: a free slot is the port's.
            Some(Stage::Free) => Some((at, !unsafe { &*self.chains(at) }.is_empty())),
            Some(Stage::Returned) => Some((at, true)),
            _ => None,
        })
    }

    fn chains(&self, at: u16) -> *mut Chains {
        self.landing.slots[usize::from(at)].chains.get()
    }

    /// Whether the device may write to a buffer.
    #[inline]
    pub fn reaches(&self, single: &Single) -> bool {
        let span = Span { ptr: single.ptr, len: single.len };
        self.feed.as_ref().is_some_and(|feed| feed.guest.find(&span).is_some())
    }

    /// Puts buffers into a free slot that has none.
    ///
    /// # Panics
    /// In debug builds, if it is not free, or has some.
    #[inline]
    pub fn fill(&mut self, at: u16, buffers: Chains) {
        debug_assert_eq!(self.landing.stages.stage(at), Some(Stage::Free));
        // SAFETY: a free slot is the port's, and this is its only half.
        let chains = unsafe { &mut *self.chains(at) };
        debug_assert!(chains.is_empty(), "it has buffers");
        *chains = buffers;
    }

    /// Gives slots that have buffers to the device, by one write to it. Returns whether it took all; those that it did not take are
    /// returned.
    pub fn post(&mut self, slots: &[u16]) -> bool {
        let Some(feed) = &self.feed else { return false };
        let mine: SmallVec<[u16; TOGETHER]> =
            slots.iter().copied().filter(|at| self.landing.stages.post(*at)).collect();
        // SAFETY: the slots are noted as the device's, after the port wrote their buffers, which do not change until the device
        // gives them back.
        let chains = |at: u16| unsafe { &*self.chains(at) }.as_slice();
        // SAFETY: nothing else reads or writes scratch and buffers of posted slots. A guest that writes to its buffers sees
        // what it did.
        let posted = unsafe { feed.pair.post_landing(&self.landing.scratch, &feed.guest, &mine, chains) };
        let Err(taken) = posted else { return mine.len() == slots.len() };
        mine[taken.min(mine.len())..].iter().for_each(|at| _ = self.landing.flush(*at));
        false
    }

    /// Gives the frame of a slot to its guest: writes the virtio header, and the head if the switch changed it. Returns the slot's buffers with
    /// the bytes in each, and those that are empty; `None` if no frame of `len` bytes landed there.
    pub fn deliver(
        &mut self,
        at: u16,
        len: u32,
        header: &[u8; VIRTIO],
        head: &[u8],
    ) -> Option<(Chains, Chains)> {
        if self.landing.stages.stage(at) != Some(Stage::Landed) {
            return None;
        }
        {
            // SAFETY: the frame has landed: what is known of it does not change.
            let frame = unsafe { &*self.landing.slots[usize::from(at)].frame.get() };
            if frame.len != len || head.len() != usize::from(frame.head_len) {
                return None;
            }
            // SAFETY: the buffers are the frame's, and in mapped memory.
            let chains = unsafe { &*self.chains(at) };
            // SAFETY: as before: they have room for the virtio header and the frame.
            unsafe { write(chains, 0, header) };
            if head != &frame.bytes[..head.len()] {
                // SAFETY: the same.
                unsafe { write(chains, VIRTIO, head) };
            }
        }
        if !self.landing.stages.deliver(at) {
            return None;
        }
        // SAFETY: the frame is delivered: until it comes back, and after that, the slot is the port's.
        let chains = std::mem::take(unsafe { &mut *self.chains(at) });
        let (mut used, mut empty, mut left) = (Chains::new(), Chains::new(), VIRTIO as u32 + len);
        for single in chains {
            let here = single.len.min(left);
            left -= here;
            if here > 0 {
                used.push(Single { len: here, ..single });
            } else {
                empty.push(single);
            }
        }
        Some((used, empty))
    }

    /// Returns how many buffers `deliver` would use for a frame of `len` bytes; `None` if none landed there.
    #[inline]
    pub fn buffers(&self, at: u16, len: u32) -> Option<u16> {
        if self.landing.stages.stage(at) != Some(Stage::Landed) {
            return None;
        }
        // SAFETY: the frame has landed: its buffers do not change.
        let chains = unsafe { &*self.chains(at) };
        let (mut left, mut count) = (VIRTIO as u32 + len, 0);
        for single in chains {
            if left == 0 {
                break;
            }
            left = left.saturating_sub(single.len);
            count += 1;
        }
        (left == 0).then_some(count)
    }

    /// Takes the buffers of all slots that no frame has, once the device [is over](Landing::is_over), or of those alone that are the port's.
    pub fn collect(&mut self) -> impl Iterator<Item = Single> {
        let over = self.landing.over.load(Ordering::Acquire);
        let mut all = Vec::new();
        for at in 0..self.landing.stages.count() {
            let is_mine = matches!(self.landing.stages.stage(at), Some(Stage::Free | Stage::Returned));
            if (over || is_mine) && self.landing.stages.collect(at) {
                // SAFETY: the slot is free, so the port's.
                all.extend(std::mem::take(unsafe { &mut *self.chains(at) }));
            }
        }
        all.into_iter()
    }
}

/// Writes bytes to buffers, from the `from`th byte on.
///
/// # Safety
/// The buffers are mapped and writable.
unsafe fn write(chains: &[Single], from: usize, mut bytes: &[u8]) {
    let mut skip = from;
    for single in chains {
        let len = single.len as usize;
        if skip >= len {
            skip -= len;
            continue;
        }
        let here = bytes.len().min(len - skip);
        // SAFETY: within the buffer, by contract mapped; ours and the guest's memory do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), single.ptr.wrapping_add(skip), here) };
        bytes = &bytes[here..];
        skip = 0;
        if bytes.is_empty() {
            return;
        }
    }
}
