//! Sends a permitted frame to its destination.
//!
//! ```text
//!  frame ─▶ room at the worker of its egress? ─▶ tokens? ─▶ egress, here or at a peer
//!                       └─ no ─┬─────────────────── no ─┘   flooded: copies
//!                              ▼
//!                  put back: waits in its ring or pool; without tokens, by flow
//! ```

use super::Worker;
use super::count::{count_sent, note_tokens};
use super::crossing::{Crossing, Fate};
use super::cut::{Piece, unsent_bytes};
use super::decide::{self, To};
use crate::fdb::PortIndex;
use crate::link::Pending;
use crate::port::Port;
use crate::slots::Arrival;
use crate::slots::{Frame, FrameRef, NEVER, Owner};
use tidegate_contract::frame::SMALLEST_FRAME;
use tidegate_evidence::DropReason;

/// Longest wait of a port for a busy worker (ns): as long as a receiver may hold a frame. After that the
/// port drops frames without room there, and continues.
const BEHIND: u64 = 10_000_000;

/// Result of one attempt to send.
pub(super) enum SendOutcome {
    Sent,
    /// Tokens are available at this time (ns).
    At(u64),
    /// No slot for the next piece.
    NoSlot,
    /// The egress's worker has no room yet.
    WorkerFull,
    /// The frame waits by flow.
    WaitsByFlow,
}

impl Worker {
    /// Returns a frame's present destination; `None` if that is its sender. Looked up at sending: its
    /// receiver's index may have become another's during the wait for tokens.
    fn destination(&self, port: &Port, frame: &Frame) -> Option<To> {
        let to = decide::destination(&self.fdb, frame.segment, port.index, frame.headers.dst)?;
        (!port.contract.is_uplink || self.may_come_in(to)).then_some(to)
    }

    /// Sends a frame, or puts it back to wait for tokens.
    pub(super) fn try_send(&mut self, port: &mut Port, mut pending: Pending) -> SendOutcome {
        let reference = pending.frame;
        let frame = reference.get();
        let whole = frame.wire_bytes;
        if pending.sent == 0 && port.cuts(frame, self.now) {
            port.wait_by_flow(pending, whole, self.now);
            return SendOutcome::WaitsByFlow;
        }
        let cut = match port.contract.cut_to {
            // A frame begun in pieces ends in pieces, whatever the contract says now.
            limit if pending.sent > 0 => Some(limit.unwrap_or(whole)),
            limit => limit.filter(|burst| whole > *burst && frame.offload.gso_size().is_some()),
        };
        match cut {
            Some(burst) => loop {
                match self.send_piece(port, &mut pending, burst) {
                    Piece::Last => return SendOutcome::Sent,
                    Piece::More => {}
                    Piece::At(at) => return self.without_tokens(port, pending, at),
                    Piece::NoSlot => {
                        port.link.tx.put_back(pending);
                        return SendOutcome::NoSlot;
                    }
                }
            },
            None if self.must_wait(port, frame, whole) => {
                port.link.tx.put_back(pending);
                SendOutcome::WorkerFull
            }
            None => match port.conform(
                pending.arrival.earliest,
                self.counted_bytes(port, whole, frame.wire_frames),
                self.now,
            ) {
                Ok(started) => {
                    count_sent(port, frame);
                    note_tokens(port, &pending.arrival, started);
                    self.dispatch(port, pending.frame, pending.arrival, started);
                    SendOutcome::Sent
                }
                Err(at) => self.without_tokens(port, pending, at),
            },
        }
    }

    /// Returns the bytes that `frames` frames of `bytes` bytes count for. With a deadline towards another host, a frame
    /// below 60 bytes counts for 60: its outer headers are as long, and admission is computed so.
    #[inline]
    pub(super) fn counted_bytes(&self, port: &Port, bytes: u32, frames: u32) -> u32 {
        if port.contract.deadline.is_none() {
            return bytes;
        }
        match &self.infos[usize::from(port.index)] {
            Some(info) if !info.away.is_empty() => bytes.max(frames.saturating_mul(SMALLEST_FRAME as u32)),
            _ => bytes,
        }
    }

    /// Lets a frame wait for tokens, available at `at` (ns).
    fn without_tokens(&self, port: &mut Port, pending: Pending, at: u64) -> SendOutcome {
        let unsent = unsent_bytes(pending.frame.get(), pending.sent);
        if port.wait(pending, unsent, self.now) { SendOutcome::WaitsByFlow } else { SendOutcome::At(at) }
    }

    /// Whether `bytes` of a frame wait, in its ring or pool, for a worker that [lacks
    /// room](Self::lacks_room).
    #[inline(always)]
    pub(super) fn must_wait(&mut self, port: &mut Port, frame: &Frame, bytes: u32) -> bool {
        if !self.lacks_room(port, frame, bytes) {
            port.behind_since = NEVER;
            return false;
        }
        self.may_wait_longer(port)
    }

    /// Whether the worker of the egress has no room for `bytes` of a frame: this worker for a
    /// super-frame's, another one for any.
    #[inline(always)]
    pub(super) fn lacks_room(&mut self, port: &Port, frame: &Frame, bytes: u32) -> bool {
        let super_frame = frame.offload.gso_size().is_some();
        if self.peers.len() < 2 && !super_frame {
            return false;
        }
        let Some(To::Port(egress)) = self.destination(port, frame) else { return false };
        let worker = self.infos[egress as usize].as_ref().map(|info| usize::from(info.worker));
        match worker {
            Some(worker) if worker == usize::from(self.id) => {
                super_frame && self.is_behind(port.index, egress, bytes)
            }
            Some(worker) => self.peers[worker].as_ref().is_some_and(|(peer, _)| !peer.has_room()),
            None => false,
        }
    }

    /// Whether a port with a frame for a worker without room still waits: only for a bounded time.
    pub(super) fn may_wait_longer(&self, port: &mut Port) -> bool {
        port.behind_since = port.behind_since.min(self.now);
        self.now - port.behind_since < BEHIND
    }

    /// Hands a conforming frame to its egress; returns the egress if it is a single one.
    pub(super) fn dispatch(
        &mut self,
        port: &mut Port,
        reference: FrameRef,
        arrival: Arrival,
        started: u64,
    ) -> Option<PortIndex> {
        let frame = reference.get_mut();
        frame.source = port.index;
        frame.start(&arrival, started);
        frame.deadline = NEVER;
        if let Some(capture) = &mut port.capture {
            capture.record(frame, crate::port::capture_tap::Direction::FromVm);
        }
        match self.destination(port, frame) {
            Some(To::Port(egress)) if port.contract.is_uplink && !port.link.tx.hold(frame, egress) => {
                port.count_tx_drop(DropReason::RingShare);
            }
            Some(To::Port(egress)) => {
                let info = self.infos[port.index as usize].as_ref();
                let deadline = match frame.stamp {
                    None => info.and_then(|info| info.deadline_to(egress)),
                    Some(stamped) => info.and_then(|info| info.arrivals).filter(|_| stamped.conforms),
                };
                if let Some(deadline) = deadline {
                    frame.deadline = started + deadline;
                }
                frame.egress = egress;
                let bytes = frame.wire_bytes.into();
                self.hand_on(port, &[reference], egress, bytes);
                return Some(egress);
            }
            // Its guest may change it, and would speak in a member's name to others: it has the address no more.
            Some(To::Flood(_)) if matches!(frame.owner, Owner::Landed { .. }) => {
                port.count_tx_drop(DropReason::NoReceiver);
            }
            Some(To::Flood(audience)) => self.flood_frame(port, frame, audience),
            None => port.count_tx_drop(DropReason::NoReceiver),
        }
        port.link.tx.give_back(reference);
        None
    }

    /// Hands started frames of `bytes` together from their sender to an egress.
    #[inline]
    pub(super) fn hand_on(&mut self, port: &mut Port, frames: &[FrameRef], egress: PortIndex, bytes: u64) {
        port.talk.note(egress, bytes, frames.len() as u64);
        port.in_flight_to[egress as usize] += frames.len() as u32;
        self.route(egress, frames);
    }

    /// Passes frames to the worker of the egress.
    pub(super) fn route(&mut self, egress: PortIndex, frames: &[FrameRef]) {
        let Some(info) = &self.infos[egress as usize] else {
            return frames.iter().for_each(|frame| self.drop_frame(*frame, egress, DropReason::ReceiverDown));
        };
        let worker = usize::from(info.worker);
        if worker == usize::from(self.id) {
            return self.enqueue(egress, frames);
        }
        for &frame in frames {
            let sent = match &mut self.peers[worker] {
                Some((peer, _)) => peer.send(Crossing::Frame { egress, frame }),
                None => false,
            };
            if sent {
                self.to_ring |= 1 << worker;
            } else {
                self.drop_frame(frame, egress, DropReason::WorkerBehind);
            }
        }
    }

    /// Drops a frame before it reached an egress.
    pub(super) fn drop_frame(&mut self, frame: FrameRef, egress: PortIndex, reason: DropReason) {
        self.fates.push(unqueued_fate(frame, egress, reason, self.now));
    }
}

/// Returns the fate of a frame that did not reach an egress.
pub(super) fn unqueued_fate(frame: FrameRef, egress: PortIndex, reason: DropReason, now: u64) -> Fate {
    Fate { frame, egress, at: now, dropped: Some(reason), queued: now, buffers: 0, behind: None }
}
