//! From other hosts: some messages by a call, a frame of them by each take.
//!
//! ```text
//!  socket ─ receive ─▶ messages ─▶ datagram ─ admit ─▶ copied into the store ─▶ frame: segment, peer, arrival
//!                                      │         └▶ with those behind it, if they were one super-frame
//!                                      └▶ refused, or no room: dropped, with the reason
//! ```
//!
//! The head of a frame is copied into its slot and the rest into the pool, so that a frame which waits holds
//! no memory of its neighbours in a message.

use super::Tx;
use super::admit::{admit, mark};
use super::pairs::IncomingPairs;
use super::peers::{Peer, Peers};
use super::rejoin::rejoin;
use super::sockets::{Incoming, MESSAGES};
use crate::clock::{RawTime, clock, wall_clock};
use crate::fdb::{PeerIndex, PortIndex, SegmentIndex};
use crate::frame::{VnetHdr, parse, set_ecn};
use crate::hosts::Clocks;
use crate::link::reading::{Read, Reads};
use crate::link::store::Store;
use crate::slots::{Arrival, Frame, FrameRef, NOWHERE, Owner, Stamped};
use rustix::io::Errno;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use tidegate_evidence::DropReason;

/// Bytes that a call is to receive: so many are copied in some 30 us.
const CALL: usize = 1 << 18;
/// Least messages of a call, as long as they may be.
const LEAST: usize = 4;

/// Messages that are being taken apart.
pub(super) struct Batch {
    incoming: Incoming,
    /// The next message.
    next: usize,
    /// The message under way.
    current: Current,
    /// When they arrived, by the polls.
    polled: Arrival,
    /// The time of the poll that found them (ns of CLOCK_REALTIME, as the kernel's times are).
    wall: u64,
    /// When the message under way arrived.
    arrival: Arrival,
    /// Most messages of the next call.
    most: usize,
}

/// A message under way.
#[derive(Clone, Copy, Default)]
struct Current {
    /// Its number.
    message: usize,
    /// The place of its next datagram, and its end.
    at: usize,
    end: usize,
    /// Length of its datagrams but the last (bytes).
    size: usize,
    traffic_class: u8,
    peer: Option<PeerIndex>,
}

/// Returns the most messages of a call after one of at most `most`, which received `count` messages with
/// `bytes` bytes: the next ones may be as long as these. At most twice as many, since a sender of short
/// messages may go on with long ones.
fn next_most(most: usize, count: usize, bytes: usize) -> usize {
    let fitting = (CALL * count).checked_div(bytes).unwrap_or(MESSAGES);
    fitting.min(2 * most).clamp(LEAST, MESSAGES)
}

impl Batch {
    pub(super) fn new() -> Self {
        Self {
            incoming: Incoming::default(),
            next: 0,
            current: Current::default(),
            polled: Arrival::default(),
            wall: 0,
            arrival: Arrival::default(),
            most: LEAST,
        }
    }

    /// Whether all datagrams were taken.
    #[inline]
    fn is_empty(&self) -> bool {
        self.current.at == self.current.end && self.next == self.incoming.count()
    }

    /// Receives messages in place of those before; returns whether there may be more.
    fn receive(&mut self, socket: &OwnedFd) -> Result<bool, Errno> {
        self.next = 0;
        let count = self.incoming.receive(socket.as_fd(), self.most)?;
        let bytes: usize = (0..count).map(|at| self.incoming.len(at)).sum();
        let was_full = count == self.most;
        self.most = next_most(self.most, count, bytes);
        Ok(was_full)
    }

    /// Begins the next message; `None` without one. An invalid one counts as a datagram.
    fn begin(&mut self, peers: &Peers) -> Option<Result<(), DropReason>> {
        let message = self.next;
        if message == self.incoming.count() {
            return None;
        }
        self.next += 1;
        let Some(found) = self.incoming.message(message).filter(|found| !found.bytes.is_empty()) else {
            return Some(Err(DropReason::Malformed));
        };
        self.current = Current {
            message,
            at: 0,
            end: found.bytes.len(),
            size: found.size,
            traffic_class: found.traffic_class,
            peer: peers.by_source(found.source).map(|peer| peer.index),
        };
        let age = found.received.and_then(|received| self.wall.checked_sub(received));
        self.arrival = age.map_or(self.polled, |age| self.polled.of_age(age));
        Some(Ok(()))
    }
}

impl Tx {
    /// All sockets count as one queue: their frames wait in one store.
    #[inline]
    pub(in crate::link) fn queues(&self) -> usize {
        1
    }

    pub(in crate::link) fn sockets(&self) -> &[Arc<OwnedFd>] {
        &self.sockets
    }

    #[inline]
    pub(in crate::link) fn poll(&mut self, now: u64) -> bool {
        self.now = now;
        self.store.has_waiting() || !self.batch.is_empty() || self.readiness.any() || self.has_arrived()
    }

    /// Takes the next datagram of the message under way.
    fn datagram(&mut self) -> Result<FrameRef, DropReason> {
        let current = &mut self.batch.current;
        let from = current.at;
        current.at = current.end.min(from + current.size);
        let datagram = self.batch.incoming.bytes(current.message, from..current.at);
        let peer = current.peer.and_then(|peer| self.peers.get(peer)).ok_or(DropReason::UnknownPeer)?;
        let (segment, frame) = admit(&self.peers, peer, datagram)?;
        let stamps = (&mut self.pairs, &*self.clocks, &mut self.time);
        let (frame, stamp) = open(stamps, segment, peer, frame, self.now)?;
        let behind = self.batch.incoming.bytes(current.message, current.at..current.end);
        // A stamped one has bytes behind its packet, and does not join.
        let behind = behind.chunks(current.size).map_while(|datagram| {
            let (other, frame) = admit(&self.peers, peer, datagram).ok()?;
            (other == segment).then_some(frame)
        });
        let kept = mark(frame, current.traffic_class).and_then(|mark| {
            let joins = stamp.is_none() && self.store.has_room();
            let whole = joins.then(|| rejoin(frame, behind)).flatten();
            let kept = match &whole {
                None => self.store.keep(frame),
                Some(whole) => self.store.gather(whole.head(), whole.body()),
            };
            Ok((mark, whole, kept.ok_or(DropReason::PoolFull)?))
        });
        if stamp.is_some() && kept.is_err() {
            self.pairs.note_dropped(segment, frame);
        }
        let (mark, whole, reference) = kept?;
        let mut vnet = VnetHdr::default();
        if let Some(whole) = whole {
            current.at = current.end.min(current.at + (whole.body().len() - 1) * current.size);
            vnet = whole.vnet();
        }
        enter(reference, (segment, peer.index), (vnet, stamp), mark);
        Ok(reference)
    }

    /// Lets `egress` hold a frame, whose egress the caller then sets; `false` if it holds its [part of the
    /// store](super::share).
    #[inline]
    pub(in crate::link) fn hold(&mut self, frame: &Frame, egress: PortIndex) -> bool {
        if let Owner::Landed { landing, .. } = frame.owner {
            // The FDB has its address at another port by now. That one's frames may not lie in this one's memory.
            let to = self.rdma.as_ref().and_then(|lane| lane.port_of_landing(landing));
            if to != Some(egress) {
                return false;
            }
        }
        self.shares.take(&self.store, frame, egress)
    }

    #[inline(never)]
    pub(in crate::link) fn give_back(&mut self, reference: FrameRef) {
        self.shares.give(reference.get());
        if let Some((landing, slot)) = self.store.give_back(reference)
            && let Some(lane) = &mut self.rdma
        {
            lane.come_back(landing, slot);
        }
    }

    /// No frame waits, and each socket was read until it would block: the next frame makes it readable.
    #[inline]
    pub(in crate::link) fn can_be_quiet(&self) -> bool {
        !self.store.has_waiting() && self.batch.is_empty() && !self.readiness.any() && !self.has_arrived()
    }

    /// Returns the pairs whose frames arrive with a deadline.
    #[inline]
    pub fn pairs(&self) -> &IncomingPairs {
        &self.pairs
    }

    /// Replaces them, and returns those before.
    pub fn set_pairs(&mut self, mut pairs: IncomingPairs) -> IncomingPairs {
        pairs.continue_from(&self.pairs);
        std::mem::replace(&mut self.pairs, pairs)
    }

    /// Replaces the peers, also for messages that were received before.
    pub fn set_peers(&mut self, peers: Arc<Peers>) {
        self.peers = peers;
    }
}

/// Reads the stamp of a frame of `peer`, if it has one, as [`IncomingPairs::open`] does.
#[inline]
pub(super) fn open<'a>(
    (pairs, clocks, time): (&mut IncomingPairs, &Clocks, &mut RawTime),
    segment: SegmentIndex,
    peer: &Peer,
    frame: &'a [u8],
    now: u64,
) -> Result<(&'a [u8], Option<Stamped>), DropReason> {
    if !peer.takes_stamps {
        return Ok((frame, None));
    }
    let there = || {
        let now = time.now();
        let estimate = clocks.estimate(peer.index, now)?;
        Some((now.wrapping_add_signed(estimate.offset_ns), estimate.error_ns))
    };
    pairs.open(segment, peer.index, frame, now, there)
}

/// Notes where a frame in the store came from, its offloads and its stamp, and sets its congestion mark, if it gets one.
#[inline]
pub(super) fn enter(
    reference: FrameRef,
    (segment, peer): (SegmentIndex, PeerIndex),
    (vnet, stamp): (VnetHdr, Option<Stamped>),
    mark: Option<u8>,
) {
    let kept = reference.get_mut();
    (kept.segment, kept.peer, kept.egress) = (segment, Some(peer), NOWHERE);
    (kept.vnet, kept.stamp) = (vnet, stamp);
    if let Some(mark) = mark {
        let head = &mut kept.bytes[..usize::from(kept.head_len)];
        if let Ok(headers) = parse(head, kept.len as usize) {
            set_ecn(head, &headers, mark);
        }
    }
}

impl Reads for Tx {
    fn store(&mut self) -> &mut Store {
        &mut self.store
    }

    /// Takes the next datagram, of messages or completions that are looked for if there is none.
    fn read(&mut self) -> Read {
        let mut failed = false;
        loop {
            if self.batch.current.at < self.batch.current.end {
                return match self.datagram() {
                    Ok(frame) => Read::Frame(frame, self.batch.arrival),
                    Err(reason) => Read::Dropped(reason),
                };
            }
            match self.batch.begin(&self.peers) {
                Some(Ok(())) => continue,
                Some(Err(reason)) => return Read::Dropped(reason),
                None => {}
            }
            match self.take_by_rdma() {
                Some(Ok(frame)) => return Read::Frame(frame, self.arrived),
                Some(Err(reason)) => return Read::Dropped(reason),
                None => {}
            }
            let Some(queue) = self.readiness.turn() else { return Read::Empty };
            if queue == self.sockets.len() {
                self.look_at_rdma(queue);
                continue;
            }
            match self.batch.receive(&self.sockets[queue]) {
                Ok(may_have_more) => {
                    self.batch.polled = self.readiness.arrival(queue, clock());
                    self.batch.wall = wall_clock();
                    if !may_have_more {
                        self.readiness.drained(queue, self.now);
                    }
                }
                Err(Errno::AGAIN) => self.readiness.drained(queue, self.now),
                Err(
                    error @ (Errno::BADF | Errno::NOTSOCK | Errno::FAULT | Errno::INVAL | Errno::OPNOTSUPP),
                ) => {
                    self.readiness.gone(queue);
                    return Read::Gone(format!("the socket to other hosts cannot be read: {error}"));
                }
                // Something that befell an earlier datagram, told once.
                Err(_) if !failed => failed = true,
                // Such as a lack of memory: it is read again when its descriptor says so.
                Err(_) => self.readiness.gone(queue),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Of any messages: a call may take more than it aims at only if all of its messages are longer than
        /// those before; and it takes no more than twice as many.
        #[test]
        fn a_call_stays_near_its_aim(lens in prop::collection::vec(1..=65_507usize, 1..100)) {
            let mut most = LEAST;
            for len in lens {
                let next = next_most(most, most, most * len);
                prop_assert!((LEAST..=MESSAGES).contains(&next) && next <= 2 * most);
                prop_assert!(next == LEAST || next * len <= CALL, "if the next ones are as long");
                most = next;
            }
        }
    }
}
