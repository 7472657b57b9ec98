//! To the network: a frame is copied behind its tag, and a flush sends many by one call.
//!
//! ```text
//!  frame ─ FDB ─┬▶ behind the NIC, group, unknown ─▶ queue ─ flush ─▶ kernel
//!               └▶ elsewhere: dropped
//! ```

use super::Rx;
use super::wire::{self, Tci, Written};
use crate::fdb::Destination;
use crate::frame::headers::ETHERTYPE_VLAN;
use crate::link::Posted;
use crate::link::vxlan::Peers;
use crate::link::vxlan::pairs::PairKey;
use crate::slots::Frame;
use std::sync::Arc;
use tidegate_contract::network_paths::PRIORITY;
use tidegate_evidence::DropReason;

impl Rx {
    pub(in crate::link) fn post(&mut self, frame: &Frame) -> Posted {
        // A frame of another host never goes to another host: two that flood to each other would loop.
        if frame.peer.is_some() {
            return Posted::Dropped(DropReason::NoReceiver);
        }
        let vlan = self.peers.vni(frame.segment).and_then(|vlan| u16::try_from(vlan).ok());
        let Some(vlan) = vlan else { return Posted::Dropped(DropReason::UnknownSegment) };
        if !self.leads_to(frame) {
            return Posted::Dropped(DropReason::NoReceiver);
        }
        let len =
            frame.offload.gso_size().map_or(frame.len, |size| u32::from(frame.headers.len) + u32::from(size));
        if len > self.longest {
            return Posted::Dropped(DropReason::PathMtu);
        }
        if is_tagged(frame.head()) {
            return Posted::Dropped(DropReason::Unacceptable);
        }
        let tci = Tci::new(vlan, self.priority(frame));
        match self.outgoing.write(frame, tci, &mut self.counters, &mut self.on_wire) {
            Written::All => Posted::Done,
            Written::Part(payload) => Posted::Part(payload),
            Written::NoRoom => Posted::NoBuffers,
            Written::Malformed => Posted::Dropped(DropReason::Malformed),
        }
    }

    /// Posts the first of `frames`: returns how many are done, and the next one's result if it differs.
    pub(in crate::link) fn post_run<'a>(
        &mut self,
        frames: impl Iterator<Item = &'a Frame>,
    ) -> (u32, Option<Posted>) {
        let mut done = 0;
        for frame in frames {
            match self.post(frame) {
                Posted::Done => done += 1,
                other => return (done, Some(other)),
            }
        }
        (done, None)
    }

    /// Sends posted frames, as many as the kernel takes.
    pub(in crate::link) fn flush(&mut self) {
        self.outgoing.flush(&mut self.counters);
    }

    /// Whether a flush would send frames if the kernel took them.
    #[inline]
    pub(in crate::link) fn has_unsent(&self) -> bool {
        self.outgoing.has_unsent()
    }

    /// Replaces the network behind the NIC, and returns that before.
    pub fn set_peers(&mut self, peers: Arc<Peers>) -> Arc<Peers> {
        std::mem::replace(&mut self.peers, peers)
    }

    /// Returns the priority of a frame: that of paths only with a deadline, while the network has one for its pair.
    #[inline]
    fn priority(&self, frame: &Frame) -> u8 {
        if !frame.is_realtime() {
            return 0;
        }
        let pair = PairKey::new(frame.segment, frame.headers.src, frame.headers.dst);
        if self.peers.is_marked(&pair) { PRIORITY } else { 0 }
    }

    /// Whether a frame's receiver is behind the NIC, or may be.
    fn leads_to(&self, frame: &Frame) -> bool {
        let dst = frame.headers.dst;
        if dst.is_group() {
            return true;
        }
        match self.fdb.destination(frame.segment, dst) {
            Some(Destination::Peer { link, .. }) => link == self.port,
            Some(_) => false,
            None => true,
        }
    }
}

/// Whether a frame has a tag already: no frame leaves with two (IEEE 802.1ad).
fn is_tagged(head: &[u8]) -> bool {
    head.get(wire::ADDRESSES..).and_then(|rest| rest.first_chunk()) == Some(&ETHERTYPE_VLAN.to_be_bytes())
}
