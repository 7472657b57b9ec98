//! Broadcast, multicast and unknown unicast: the frame is copied once, and
//! every member of the segment gets a reference to the copy.

use super::Worker;
use crate::capacity::VNICS;
use crate::fdb::{PeerIndex, PortIndex, SegmentIndex};
use crate::frame::neighbour::Reply;
use crate::frame::{HEADER_MAX, Offload, VnetHdr, parse};
use crate::port::Port;
use crate::slots::buffers::{BufferIndex, Buffers};
use crate::slots::{Frame, FrameRef, Owner, Slots};
use tidegate_contract::Mac;
use tidegate_evidence::DropReason;

/// Segments, for counts by segment.
const SEGMENTS: usize = 1 << 16;

/// Flooded frames in flight per worker.
const COPIES: u16 = 256;
/// Longest flooded frame: a large MTU's. The switch does not segment a super-frame for several receivers, and drops it.
pub const FLOOD_MAX: usize = 9_216;

/// Members of a segment that a frame is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Audience {
    /// All: broadcast and multicast.
    All,
    /// Ports behind which the switch learns addresses: unknown unicast.
    Learning,
    /// Members that receive frames for the link itself.
    Control,
}

/// The pool of copies.
pub struct FloodPool {
    slots: Slots,
    /// One for each slot: each slot in use has one.
    buffers: Buffers,
    /// Copies in flight of each source.
    copies: Box<[u16; VNICS]>,
    /// Copies in flight of other hosts' frames, by segment.
    from_hosts: Box<[u16]>,
}

/// Bytes of an announcement on the wire.
const ANNOUNCEMENT: usize = 60;

impl FloodPool {
    /// Returns an empty pool of `worker`.
    pub fn new(worker: u16) -> Self {
        Self {
            slots: Slots::new(COPIES, 0, worker),
            buffers: Buffers::new(COPIES, FLOOD_MAX),
            copies: Box::new([0; VNICS]),
            // Its pages are touched when first used.
            from_hosts: vec![0; SEGMENTS].into(),
        }
    }

    /// Takes a slot with a buffer for a source that holds fewer than are free: so the next source that
    /// floods finds one, even if receivers take nothing. Each segment of other hosts' frames, from a `peer`, is
    /// a source of its own.
    fn take(
        &mut self,
        source: PortIndex,
        segment: SegmentIndex,
        peer: Option<PeerIndex>,
        receivers: u16,
    ) -> Option<(FrameRef, BufferIndex)> {
        let held = match peer {
            Some(_) => &mut self.from_hosts[usize::from(segment.0)],
            None => &mut self.copies[usize::from(source)],
        };
        if usize::from(*held) >= self.slots.available() {
            return None;
        }
        let (reference, buffer) = self.slots.take().zip(self.buffers.take(receivers))?;
        if peer.is_some() {
            *held += 1;
        }
        self.copies[usize::from(source)] += 1;
        let frame = reference.get_mut();
        frame.owner = Owner::Buffer { buffer };
        (frame.source, frame.segment, frame.peer, frame.stamp) = (source, segment, peer, None);
        Some((reference, buffer))
    }

    /// Copies `frame` for `receivers` receivers; `None` if the source holds its part of the pool or the
    /// frame is too long.
    pub fn copy(&mut self, frame: &Frame, receivers: u16) -> Option<FrameRef> {
        let tail = (frame.len as usize).checked_sub(frame.head_len as usize)?;
        if tail > FLOOD_MAX || receivers == 0 {
            return None;
        }
        let (reference, buffer) = self.take(frame.source, frame.segment, frame.peer, receivers)?;
        let memory = self.buffers.span(buffer, tail);
        let copy = reference.get_mut();
        let mut at = 0;
        for span in frame.payload() {
            // SAFETY: the source's memory stays mapped while this worker holds its frame, and the spans'
            // lengths add up to `tail`, which fits.
            unsafe {
                std::ptr::copy_nonoverlapping(span.ptr, memory.ptr.wrapping_add(at), span.len as usize);
            }
            at += span.len as usize;
        }
        debug_assert_eq!(at, tail);
        copy.len = frame.len;
        copy.wire_bytes = frame.wire_bytes;
        copy.wire_frames = frame.wire_frames;
        (copy.started, copy.started_by, copy.slept) = (frame.started, frame.started_by, frame.slept);
        copy.waited_for_tokens = 0;
        copy.deadline = crate::slots::NEVER;
        copy.offload = frame.offload;
        copy.vnet = frame.vnet;
        copy.headers = frame.headers;
        copy.head_len = frame.head_len;
        copy.bytes = frame.bytes;
        copy.span_count = u16::from(tail > 0);
        copy.spans[0] = memory;
        Some(reference)
    }

    /// Notes that one receiver is done with a copy.
    pub fn settle(&mut self, reference: FrameRef, buffer: BufferIndex) {
        if self.buffers.release(buffer) {
            let frame = reference.get();
            self.copies[usize::from(frame.source)] -= 1;
            if frame.peer.is_some() {
                self.from_hosts[usize::from(frame.segment.0)] -= 1;
            }
            self.slots.give(reference);
        }
    }

    /// Returns the copies in flight of `source`.
    #[inline]
    pub fn copies_of(&self, source: PortIndex) -> u16 {
        self.copies[usize::from(source)]
    }

    /// Returns the copies in flight.
    pub fn in_flight(&self) -> usize {
        self.slots.in_flight()
    }
}

impl Worker {
    /// Sends a copy of `frame` to members of its segment.
    pub(super) fn flood_frame(&mut self, port: &mut Port, frame: &Frame, audience: Audience) {
        // Checked before the receivers are found in the whole segment: the frame has one at least, or goes
        // nowhere.
        if !self.neighbours.is_empty() && self.answer(port, frame) {
            return;
        }
        let bucket = port.flood_bucket(frame.segment);
        if bucket.conforms_at(self.now, frame.wire_bytes.into()) > self.now {
            port.count_tx_drop(DropReason::FloodCap);
            return;
        }
        let (receivers, copies) = self.copies(port.index, frame.segment, audience);
        if receivers == 0 {
            port.count_tx_drop(DropReason::NoReceiver);
            return;
        }
        let bytes = u64::from(frame.wire_bytes) * copies;
        if port.flood_bucket(frame.segment).conforms_at(self.now, bytes) > self.now {
            port.count_tx_drop(DropReason::FloodCap);
            return;
        }
        let Some(copy) = self.flood.copy(frame, receivers) else {
            port.count_tx_drop(DropReason::FloodCap);
            return;
        };
        port.flood_bucket(frame.segment).charge(self.now, bytes);
        self.spread(port.index, audience, copy);
    }

    /// Announces a port's addresses to the segment (RARP, as QEMU does after migration), so that bridges
    /// behind other ports learn them.
    pub fn announce(&mut self, index: PortIndex, macs: &[Mac]) {
        let Some(mut port) = self.ports[index as usize].take() else { return };
        for mac in macs {
            let (receivers, copies) = self.copies(index, port.segment, Audience::Learning);
            // A front end may ask repeatedly.
            let bytes = ANNOUNCEMENT as u64 * copies;
            if port.flood.conforms_at(self.now, bytes) > self.now {
                port.count_tx_drop(DropReason::FloodCap);
            } else if let Some(copy) = self.flood.announcement(index, port.segment, *mac, receivers, self.now)
            {
                port.flood.charge(self.now, bytes);
                self.spread(index, Audience::Learning, copy);
            }
        }
        self.ports[index as usize] = Some(port);
        self.settle();
        self.ring_peers();
    }

    /// Returns the receivers of a flood, and the copies for all of them: an uplink makes one for each peer.
    fn copies(&self, from: PortIndex, segment: SegmentIndex, audience: Audience) -> (u16, u64) {
        let copies = |member: PortIndex| match &self.infos[usize::from(member)] {
            Some(info) if info.is_uplink => info.copies_in(segment),
            _ => 1,
        };
        self.receivers(from, segment, audience)
            .fold((0, 0), |(receivers, all), member| (receivers + 1, all + copies(member)))
    }

    fn receivers(
        &self,
        from: PortIndex,
        segment: SegmentIndex,
        audience: Audience,
    ) -> impl Iterator<Item = PortIndex> {
        let members = self.members.get(segment.0 as usize).map_or(&[][..], Vec::as_slice);
        members.iter().copied().filter(move |member| self.floods_to(from, *member, audience))
    }

    fn floods_to(&self, from: PortIndex, member: PortIndex, audience: Audience) -> bool {
        let Some(info) = &self.infos[member as usize] else { return false };
        let asked = match audience {
            Audience::All => true,
            Audience::Learning => info.learns,
            Audience::Control => info.control,
        };
        member != from && asked && !(info.is_uplink && self.is_uplink(from))
    }

    fn spread(&mut self, from: PortIndex, audience: Audience, copy: FrameRef) {
        let segment = copy.get().segment.0 as usize;
        for i in 0..self.members.get(segment).map_or(0, Vec::len) {
            let member = self.members[segment][i];
            if self.floods_to(from, member, audience) {
                self.route(member, &[copy]);
            }
        }
    }
}

impl FloodPool {
    /// Returns a reply to the sender of `frame`; `None` if the source holds its part of the pool.
    pub fn reply(&mut self, frame: &Frame, reply: &Reply) -> Option<FrameRef> {
        let len = reply.frame().len();
        let headers = parse(reply.frame(), len).ok()?;
        let (reference, _) = self.take(frame.source, frame.segment, None, 1)?;
        let copy = reference.get_mut();
        (copy.len, copy.wire_bytes, copy.wire_frames) = (len as u32, len as u32, 1);
        (copy.started, copy.started_by, copy.slept) = (frame.started, frame.started_by, frame.slept);
        (copy.waited_for_tokens, copy.deadline) = (0, crate::slots::NEVER);
        (copy.offload, copy.vnet, copy.headers) = (Offload::None, VnetHdr::default(), headers);
        (copy.bytes, copy.head_len, copy.span_count) = (reply.head(), len as u16, 0);
        Some(reference)
    }

    /// Returns a RARP request from `mac` for itself (RFC 903), padded to 60 bytes.
    fn announcement(
        &mut self,
        source: PortIndex,
        segment: SegmentIndex,
        mac: Mac,
        receivers: u16,
        now: u64,
    ) -> Option<FrameRef> {
        const LEN: usize = ANNOUNCEMENT;
        if receivers == 0 {
            return None;
        }
        let mut bytes = [0u8; HEADER_MAX];
        bytes[..6].fill(0xff);
        bytes[6..12].copy_from_slice(&mac.0);
        // RARP; Ethernet, IPv4, lengths 6 and 4, operation 3: request reverse
        bytes[12..22].copy_from_slice(&[0x80, 0x35, 0, 1, 8, 0, 6, 4, 0, 3]);
        bytes[22..28].copy_from_slice(&mac.0);
        bytes[32..38].copy_from_slice(&mac.0);
        let headers = parse(&bytes[..LEN], LEN).ok()?;
        let (reference, _) = self.take(source, segment, None, receivers)?;
        let frame = reference.get_mut();
        (frame.len, frame.wire_bytes, frame.wire_frames) = (LEN as u32, LEN as u32, 1);
        (frame.started, frame.deadline) = (now, crate::slots::NEVER);
        (frame.offload, frame.vnet, frame.headers) = (Offload::None, VnetHdr::default(), headers);
        (frame.bytes, frame.head_len, frame.span_count) = (bytes, LEN as u16, 0);
        Some(reference)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::testing;

    /// Finding receivers takes a step for each member of the segment.
    #[test]
    fn receivers_are_not_looked_for_without_budget() {
        let (mut worker, _handle) = testing::worker();
        testing::add_port(&mut worker, 0);
        let mut slots = Slots::new(2, 0, 0);
        let frame = slots.take().unwrap();
        frame.get_mut().wire_bytes = 60;
        let mut port = worker.ports[0].take().unwrap();
        let dropped = |port: &Port, reason| port.stats.tx.dropped[reason as usize].get();
        worker.flood_frame(&mut port, frame.get(), Audience::All);
        assert_eq!(dropped(&port, DropReason::NoReceiver), 1);
        port.flood.charge(worker.now, 1 << 40);
        worker.flood_frame(&mut port, frame.get(), Audience::All);
        slots.give(frame);
        assert_eq!(
            [DropReason::NoReceiver, DropReason::FloodCap].map(|reason| dropped(&port, reason)),
            [1, 1]
        );
    }

    /// Head-end replication: the cap is on copies made.
    #[test]
    fn a_flood_to_an_uplink_counts_for_each_peer() {
        let (mut worker, _handle) = testing::worker();
        testing::add_port(&mut worker, 0);
        let _far = testing::add_uplink(&mut worker, 1);
        worker.set_members(vec![vec![0, 1]]);
        let mut slots = Slots::new(2, 0, 0);
        let frame = slots.take().unwrap();
        (frame.get_mut().wire_bytes, frame.get_mut().len) = (1000, 0);
        for copies in [1u16, 64] {
            worker.set_copies(1, [copies].into());
            let mut port = worker.ports[0].take().unwrap();
            port.flood = crate::sched::TokenBucket::new(port.contract.flood.0, port.contract.flood.1);
            let before = port.flood.available(worker.now);
            worker.flood_frame(&mut port, frame.get(), Audience::All);
            assert_eq!(before - port.flood.available(worker.now), i64::from(copies) * 1000);
            worker.ports[0] = Some(port);
        }
        slots.give(frame);
        worker.clear_egress(1);
        worker.settle();
        assert_eq!(worker.flood.in_flight(), 0);
    }

    /// One tenant's broadcasts on another host leave those of other tenants alone.
    #[test]
    fn each_segment_of_an_uplink_has_a_flood_cap_of_its_own() {
        let (mut worker, _handle) = testing::worker();
        testing::add_port(&mut worker, 0);
        let _far = testing::add_uplink(&mut worker, 1);
        let mut port = worker.ports[1].take().unwrap();
        let flooded = SegmentIndex(0);
        port.flood_bucket(flooded).charge(worker.now, 1 << 40);
        assert!(port.flood.is_full(worker.now), "that of segments which no peer carries");
        assert!(port.flood_bucket(SegmentIndex(1)).is_full(worker.now));
        // A new table of peers keeps the debt.
        worker.ports[1] = Some(port);
        let segments = [(flooded, 7), (SegmentIndex(1), 8)];
        let peers = crate::link::vxlan::Peers::new(vec![], &segments).unwrap();
        drop(worker.set_peers(1, peers.into()));
        let port = worker.ports[1].as_mut().unwrap();
        assert!(port.flood_bucket(flooded).available(worker.now) < 0);
        assert!(port.flood_bucket(SegmentIndex(1)).is_full(worker.now));
    }

    #[test]
    fn a_segment_of_other_hosts_leaves_room_for_others() {
        let mut pool = FloodPool::new(0);
        let mut held = Vec::new();
        for segment in 0..6 {
            let before = held.len();
            let peer = PeerIndex::new(1);
            held.extend(std::iter::from_fn(|| pool.take(9, SegmentIndex(segment), peer, 1)));
            assert!(held.len() > before, "nothing left for segment {segment}");
        }
        assert_eq!(usize::from(pool.copies_of(9)), held.len());
        held.drain(..).for_each(|(copy, buffer)| pool.settle(copy, buffer));
        assert!(pool.in_flight() == 0 && pool.copies_of(9) == 0);
        assert!(pool.from_hosts.iter().all(|held| *held == 0));
    }

    #[test]
    fn the_largest_flooder_leaves_room_for_others() {
        let mut pool = FloodPool::new(0);
        let mut held = Vec::new();
        for source in 0..6 {
            let before = held.len();
            held.extend(std::iter::from_fn(|| {
                pool.announcement(source, SegmentIndex(0), Mac([2, 0, 0, 0, 0, 1]), 1, 0)
            }));
            assert!(held.len() > before, "nothing left for {source}");
        }
        for copy in held.drain(..) {
            let Owner::Buffer { buffer } = copy.get().owner else { panic!("a copy lies in a buffer") };
            pool.settle(copy, buffer);
        }
        assert_eq!(pool.in_flight(), 0);
        assert!(pool.copies.iter().all(|held| *held == 0));
    }
}
