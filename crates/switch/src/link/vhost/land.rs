//! Receive buffers that the device of an RDMA link fills: popped ahead of the frames, and completed when these are at their port.
//!
//! ```text
//!  rx ring ─ pop, keep ─▶ slot of the landing ─▶ device ... frame ─ deliver ─▶ completed, beside frames that are copied
//!               ▲              └ buffers that the frame left empty: spare
//!               └── spare ◀────┘
//! ```
//!
//! Rules: one queue, mergeable buffers, no log, no order of completions. Half of the ring at most is kept, and no more than
//! the driver has left to other senders.

use super::Ring;
use crate::frame::VnetHdr;
use crate::link::rdma::landing::{BUFFERS, Chains, LONGEST, VIRTIO};
use crate::link::rdma::pair::TOGETHER;
use crate::link::rdma::{Feed, Landing, PortHalf};
use crate::virtio::{Queue, Single};
use smallvec::SmallVec;
use std::sync::Arc;

/// The queue pair whose ring is used.
pub(super) const QUEUE: u16 = 0;
/// Bytes of a slot's buffers.
const ROOM: usize = VIRTIO + LONGEST;

/// The port's part of a landing, and the buffers that no slot has.
pub struct Land {
    half: PortHalf,
    /// Kept chains that no slot has.
    spare: Vec<Single>,
    /// Kept chains.
    kept: u16,
    /// Its ring was stopped, or its memory replaced, before the device ended: the chains are lost.
    is_lost: bool,
}

impl Land {
    /// Returns that of a ring of which nothing is kept.
    pub fn new(half: PortHalf) -> Self {
        Self { half, spare: Vec::with_capacity(usize::from(u8::MAX)), kept: 0, is_lost: false }
    }

    /// Returns what it shares with the uplink.
    pub fn landing(&self) -> &Arc<Landing> {
        self.half.landing()
    }

    /// Returns how many chains of the ring it keeps.
    pub fn kept(&self) -> u16 {
        self.kept
    }

    /// Posts nothing more, and returns what slots were posted by, for the caller to drop.
    pub fn close(&mut self) -> Option<Feed> {
        self.half.close()
    }

    /// Gives up its chains: the ring that it has them from goes.
    pub(super) fn lose(&mut self) {
        self.is_lost = true;
    }

    /// Gives buffers to the device, as many as may be.
    pub(super) fn fill(&mut self, ring: &mut Ring) {
        let mut room = self.half.room();
        if room == 0 || self.is_lost || !ring.queue.can_keep() {
            return;
        }
        let mut more = self.may_keep(&mut ring.queue);
        let mut ready = SmallVec::<[u16; TOGETHER]>::new();
        let (mut from, mut may_gather) = (0, true);
        while room > 0
            && let Some((at, has_buffers)) = self.half.next(from)
        {
            from = at + 1;
            if !has_buffers {
                let gathered = if may_gather { self.gather(ring, &mut more) } else { None };
                let Some(buffers) = gathered else {
                    // Others were returned, with theirs.
                    may_gather = false;
                    continue;
                };
                self.half.fill(at, buffers);
            }
            ready.push(at);
            room -= 1;
            if ready.len() == TOGETHER {
                if !self.half.post(&ready) {
                    return;
                }
                ready.clear();
            }
        }
        if !ready.is_empty() {
            self.half.post(&ready);
        }
    }

    /// Returns how many more chains may be kept.
    fn may_keep(&self, queue: &mut Queue) -> usize {
        // The next post tells of a wrong index.
        let pending = queue.available().unwrap_or(0);
        let half = (u32::from(self.kept) + u32::from(pending)) / 2;
        half.min(u32::from(queue.size() / 2)).saturating_sub(self.kept.into()) as usize
    }

    /// Returns buffers for one slot, of which up to `more` are new; `None` if there are not enough.
    fn gather(&mut self, ring: &mut Ring, more: &mut usize) -> Option<Chains> {
        let (mut chains, mut room) = (Chains::new(), 0);
        while room < ROOM && chains.len() < BUFFERS {
            let Some(single) = self.spare.pop() else { break };
            room += single.len as usize;
            chains.push(single);
        }
        if room < ROOM {
            let (spares, wanted) = (chains.len(), BUFFERS - chains.len());
            let mut out = [Single::EMPTY; BUFFERS];
            let out = &mut out[..wanted.min(*more)];
            let popped = ring.queue.pop_singles::<true>(out);
            for single in &out[..popped] {
                let is_first = chains.is_empty();
                if room >= ROOM || is_first && single.len as usize <= VIRTIO || !self.half.reaches(single) {
                    break;
                }
                room += single.len as usize;
                chains.push(*single);
            }
            let used = chains.len() - spares;
            if room < ROOM {
                ring.queue.put_back(&out[..popped]);
                chains.truncate(spares);
                if popped == wanted && spares > 0 {
                    // Too small to be of use together: the driver may have others.
                    self.give_up(ring, &chains);
                } else {
                    self.spare.extend(chains);
                }
                return None;
            }
            ring.queue.put_back(&out[used..popped]);
            ring.queue.keep(&out[..used]);
            self.kept += used as u16;
            *more -= used;
        }
        // One that comes first has room behind the virtio header.
        if let Some(at) = chains.iter().position(|single| single.len as usize > VIRTIO) {
            chains.swap(0, at);
        }
        Some(chains)
    }

    /// Gives kept chains back, empty: drivers with mergeable buffers drop them.
    fn give_up(&mut self, ring: &mut Ring, chains: &[Single]) {
        if chains.is_empty() {
            return;
        }
        self.kept -= chains.len() as u16;
        ring.queue.complete_kept(chains.iter().map(|single| (single.head, 0)));
        ring.dirty = true;
    }

    /// Gives the guest the frame of `len` bytes in a slot, with this virtio header and head; returns how many buffers that has. `None` if it
    /// is to be copied.
    pub(super) fn deliver(
        &mut self,
        ring: &mut Ring,
        slot: u16,
        len: u32,
        vnet: &VnetHdr,
        head: &[u8],
    ) -> Option<usize> {
        if self.is_lost {
            return None;
        }
        let count = self.half.buffers(slot, len)?;
        let mut header = [0; VIRTIO];
        VnetHdr { num_buffers: count, ..*vnet }.write(&mut header);
        let (used, empty) = self.half.deliver(slot, len, &header, head)?;
        self.kept -= used.len() as u16;
        self.spare.extend(empty);
        ring.queue.complete_kept(used.iter().map(|single| (single.head, single.len)));
        ring.dirty = true;
        Some(used.len())
    }

    /// Gives all chains back that no frame and no device has.
    pub(super) fn collect(&mut self, ring: &mut Ring) {
        let mut all: Vec<Single> = self.half.collect().collect();
        all.append(&mut self.spare);
        if !self.is_lost {
            self.give_up(ring, &all);
        }
    }
}
