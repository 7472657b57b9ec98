//! The link's second lane: frames to and from [members](crate::link::rdma), by RDMA instead of VXLAN.
//!
//! ```text
//!  frame ─ its vNIC and its receiver have queue pairs, and it fits? ─ yes ─▶ encapsulate ─▶ send buffers
//!                                   │                                   └ the guest's memory, with zero copy: held
//!                                   └─ no ─▶ VXLAN
//!  queue pair ─▶ frame of a member ─ its peer carries the segment? ─▶ as VXLAN's: mark, stamp, copied into the store
//! ```
//!
//! The checksum that a guest left to its device stays unfinished up to the receiving guest, but in frames with a stamp:
//! no tag covers the header that tells of it.

use super::admit::mark;
use super::encapsulate::{Before, Encapsulated, Outer, Room, encapsulate};
use super::pairs::IncomingPairs;
use super::peers::Peers;
use super::take::{enter, open};
use super::wire::OnWire;
use super::{Rx, Tx};
use crate::clock::{RawTime, clock};
use crate::fdb::PeerIndex;
use crate::frame::VnetHdr;
use crate::hosts::Clocks;
use crate::link::rdma::incoming::Arrived;
use crate::link::rdma::outgoing::Gathered;
use crate::link::rdma::{self, outgoing};
use crate::link::store::Store;
use crate::link::{Completed, Posted};
use crate::slots::{Frame, FrameRef};
use crate::virtio::Span;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use tidegate_evidence::DropReason;
use tidegate_uplink::rdma::{Checksum, Header, header};
use tidegate_uplink::{stamp, vxlan};

/// Bytes of a frame's outer headers beyond VXLAN's: BTH 12, DETH 8, the header of the lane, ICRC 4; VXLAN has 8 for
/// these.
const MORE: usize = 12 + 8 + header::LEN + 4 - vxlan::LEN;
const _: () = assert!(MORE as u64 == tidegate_contract::rdma::BEYOND_VXLAN, "as admission counts");

/// Room for a frame's datagrams, counted on the wire.
struct Datagrams<'a> {
    destined: outgoing::Destined<'a>,
    on_wire: &'a mut OnWire,
}

impl Room for Datagrams<'_> {
    #[inline]
    fn room(&mut self, len: usize) -> Option<&mut [u8]> {
        let room = self.destined.room(len)?;
        self.on_wire.add(on_wire(len));
        Some(room)
    }

    #[inline]
    fn gather(&mut self, head: usize, body: &[Span], len: usize) -> Gathered<'_> {
        let room = self.destined.gather(head, body, len);
        if matches!(room, Gathered::Begin(_)) {
            self.on_wire.add(on_wire(head + len));
        }
        room
    }
}

/// Returns the bytes on the wire of a datagram of `len` bytes, beyond the outer headers of VXLAN.
#[inline]
fn on_wire(len: usize) -> usize {
    // RoCE pads to 4 bytes.
    (len - header::LEN).next_multiple_of(4) + MORE
}

/// The header of a frame in a datagram.
struct Numbered<'a> {
    next: &'a mut u32,
}

impl Before for Numbered<'_> {
    const LEN: usize = header::LEN;
    const TELLS_UNFINISHED: bool = true;

    #[inline]
    fn write(&mut self, out: &mut [u8], unfinished: Option<&VnetHdr>) {
        let checksum = unfinished.map_or(Checksum::Complete, |vnet| Checksum::Partial {
            start: vnet.csum_start,
            offset: vnet.csum_offset,
        });
        let sequence = *self.next;
        *self.next = sequence.wrapping_add(1);
        out.copy_from_slice(&Header { sequence, checksum }.write());
    }
}

impl Rx {
    /// Returns the way of a frame of segment `vni` whose longest datagram has `longest` bytes of it, if it leaves by RDMA:
    /// its receiver is a member of `peer`, where the FDB has it.
    #[inline]
    pub(super) fn way(
        &self,
        frame: &Frame,
        vni: u32,
        peer: PeerIndex,
        longest: usize,
    ) -> Option<outgoing::Way> {
        let lane = self.rdma.as_deref()?;
        let (src, dst) = (frame.headers.src, frame.headers.dst);
        let way = lane.way(frame.source, frame.segment, src, dst)?;
        let more = if frame.is_realtime() { stamp::LEN } else { 0 };
        // The tables may still have the former segment of this index.
        ((peer, vni) == (way.peer, way.vni) && longest + more <= way.longest).then_some(way)
    }

    /// Posts a frame that has a way.
    pub(super) fn post_by_rdma(&mut self, frame: &Frame, way: outgoing::Way, outer: &Outer) -> Posted {
        let Some(peer) = self.peers.get(way.peer).filter(|peer| peer.carries(frame.segment)) else {
            return Posted::Dropped(DropReason::NoReceiver);
        };
        let stamping = super::post::stamping(&mut self.pairs, &mut self.time, &mut self.now, frame, peer);
        let Some(lane) = self.rdma.as_deref_mut() else { return Posted::Dropped(DropReason::NoReceiver) };
        let (destined, next) = lane.destined(frame.source, way, outer.traffic_class, outer.is_urgent());
        let mut room = Datagrams { destined, on_wire: &mut self.lanes.on_wire };
        match encapsulate(frame, &mut Numbered { next }, &mut room, stamping) {
            Encapsulated::All if room.destined.holds() => Posted::Later,
            Encapsulated::Part(payload) if room.destined.holds() => Posted::LaterPart(payload),
            Encapsulated::All => Posted::Done,
            Encapsulated::Part(payload) => Posted::Part(payload),
            Encapsulated::NoRoom => Posted::NoBuffers,
            Encapsulated::Malformed => Posted::Dropped(DropReason::Malformed),
        }
    }

    /// Whether another flush is needed for frames to members.
    #[inline]
    pub(super) fn has_unsent_by_rdma(&self) -> bool {
        self.rdma.as_deref().is_some_and(rdma::Outgoing::has_unsent)
    }

    /// Posts what waits for the device, and counts what became of it.
    #[inline]
    pub(super) fn flush_rdma(&mut self) {
        let Some(lane) = self.rdma.as_deref_mut() else { return };
        if lane.has_waiting() {
            // Best effort of this lane goes before no urgent frame of the other.
            self.lanes.flush_urgent();
        }
        lane.flush();
        let fate = lane.take_fate();
        let counters = &mut self.lanes.counters;
        counters.frames += fate.sent;
        counters.bytes += fate.bytes;
        counters.drop(DropReason::UplinkRefused, fate.unsent);
    }

    /// Whether a frame may be held: it is best effort of a vNIC with zero copy.
    #[inline]
    pub(super) fn may_hold(&self, frame: &Frame) -> bool {
        !frame.is_realtime() && self.rdma.as_deref().is_some_and(|lane| lane.may_hold(frame.source))
    }

    /// Returns the most frames that it holds.
    pub(in crate::link) fn depth(&self) -> usize {
        if self.rdma.is_some() { outgoing::HELD } else { 0 }
    }

    /// Returns the end of its oldest held frame; `None` while that is open.
    pub(in crate::link) fn completed(&mut self) -> Option<Completed> {
        let is_lost = self.rdma.as_deref_mut()?.completed()?;
        Some(if is_lost { Completed::Dropped(DropReason::UplinkRefused) } else { Completed::Done })
    }

    /// Whether that has ended.
    pub(in crate::link) fn has_completed(&mut self) -> bool {
        self.rdma.as_deref_mut().is_some_and(rdma::Outgoing::has_completed)
    }

    /// Gives up all held frames.
    pub(in crate::link) fn cancel(&mut self) {
        if let Some(lane) = self.rdma.as_deref_mut() {
            lane.give_up();
        }
    }

    /// Replaces the queue pairs, and returns those before; `None` without RDMA.
    pub fn set_rdma(&mut self, tables: Arc<rdma::Tables>) -> Option<Arc<rdma::Tables>> {
        Some(self.rdma.as_mut()?.set_tables(tables))
    }
}

impl Tx {
    /// Takes the next frame of a member; `None` if no completion is left.
    pub(super) fn take_by_rdma(&mut self) -> Option<Result<FrameRef, DropReason>> {
        let Self { rdma, peers, store, now, .. } = self;
        let lane = rdma.as_deref_mut()?;
        let arrived = match lane.take_next()? {
            Ok(arrived) => arrived,
            Err(reason) => return Some(Err(reason)),
        };
        let stamps = (&mut self.pairs, &*self.clocks, &mut self.time);
        let kept = keep(&arrived, peers, stamps, store, *now);
        if let Ok(kept) = &kept {
            lane.note_copied(kept.get().len);
        }
        Some(kept)
    }

    /// Looks for completions, as the descriptor `queue` may tell of some.
    pub(super) fn look_at_rdma(&mut self, queue: usize) {
        let Some(lane) = &mut self.rdma else { return self.readiness.gone(queue) };
        if lane.look() {
            self.arrived = self.readiness.arrival(queue, clock());
        } else {
            self.readiness.drained(queue, self.now);
        }
    }

    /// Whether completions are left of the last look.
    #[inline]
    pub(super) fn has_arrived(&self) -> bool {
        self.rdma.as_deref().is_some_and(|lane| !lane.is_empty())
    }

    /// Returns the descriptor of the lane.
    pub(in crate::link) fn rdma_descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.rdma.as_deref().map(rdma::Incoming::descriptor)
    }

    /// Replaces the queue pairs.
    pub fn set_rdma(&mut self, tables: Arc<rdma::Tables>) {
        if let Some(lane) = &mut self.rdma {
            lane.set_tables(tables);
        }
    }
}

/// Copies a member's frame into the store.
#[inline]
fn keep(
    arrived: &Arrived<'_>,
    peers: &Peers,
    stamps: (&mut IncomingPairs, &Clocks, &mut RawTime),
    store: &mut Store,
    now: u64,
) -> Result<FrameRef, DropReason> {
    let Arrived { segment, traffic_class, .. } = *arrived;
    let peer = peers.get(arrived.peer).ok_or(DropReason::UnknownPeer)?;
    // The tables may still have the former segment of this index.
    if !peer.carries(segment) || peers.vni(segment) != Some(arrived.vni) {
        return Err(DropReason::UnknownSegment);
    }
    let (pairs, clocks, time) = stamps;
    let (frame, stamp) = open((&mut *pairs, clocks, time), segment, peer, arrived.bytes, now)?;
    let kept = mark(frame, traffic_class)
        .and_then(|mark| Ok((mark, store.keep(frame).ok_or(DropReason::PoolFull)?)));
    if stamp.is_some() && kept.is_err() {
        pairs.note_dropped(segment, frame);
    }
    let (mark, reference) = kept?;
    // A stamped frame is complete, whatever a header says that no tag covers.
    let vnet = if stamp.is_none() { arrived.vnet } else { VnetHdr::default() };
    enter(reference, (segment, peer.index), (vnet, stamp), mark);
    Ok(reference)
}
