//! From ring or tap to an egress, under the sender's contract.
//!
//! ```text
//!  ring ─▶ pop, copy headers ┐                      ┌─ not yet: wait in the ring (tap: in the pool)
//!  tap ──▶ read ─────────────┴▶ inspect ─▶ tokens? ─┴─▶ cut (real-time) ─▶ egress, here or at a peer
//!                                  └─▶ dropped, counted
//! ```

use super::crossing::Crossing;
use super::flood::Audience;
use super::{Fate, Worker, budget};
use crate::fdb::PortIndex;
use crate::frame::headers::is_of_link;
use crate::frame::offload::check;
use crate::frame::{HEADER_MAX, Headers, L3, L4, Offload, Segmenter, VnetHdr, clear_realtime_marks};
use crate::frame::{parse, segments, wire_bytes};
use crate::port::vhost::Pending;
use crate::port::{Frame, FrameRef, Link, NEVER, Owner, Port};
use crate::stats::DropReason;
use crate::virtio::{MAX_SPANS, Span};
use tidegate_contract::Mac;

/// Frames taken from one queue per loop.
pub(super) const BATCH: usize = 32;
/// Longest that a port waits for a worker that is behind, ns: as long as a frame may be held by a
/// receiver. After that it drops what that worker has no room for, and goes on.
const BEHIND: u64 = 10_000_000;

/// Where a frame goes.
enum To {
    /// To this port.
    Port(PortIndex),
    /// To these members of the segment.
    Flood(Audience),
}

/// What came of one attempt to send.
pub(super) enum Sent {
    Yes,
    /// Tokens are there at this time.
    At(u64),
    /// No slot for the next piece.
    NoSlot,
    /// The worker of its egress has no room for it yet.
    Behind,
}

impl Worker {
    /// Takes frames from own ports, real-time ones first, while `budget` lasts; real-time ones even then.
    /// `true` where there were any.
    pub(super) fn ingress(&mut self, budget: &mut i64) -> bool {
        let mut worked = false;
        let mut quiet = false;
        // Who came too late for this loop's budget comes first in the next.
        let mut late = None;
        for i in 0..self.polled.len() {
            if *budget <= 0 && i >= self.realtime {
                late = Some(i - self.realtime);
                worked = true;
                break;
            }
            let index = self.polled[i] as usize;
            let Some(mut port) = self.ports[index].take() else { continue };
            let began = self.watch.begin(port.index);
            let took = match &port.link {
                _ if port.pauses > 0 || port.broken => false,
                Link::Vhost(_) => self.ingress_rings(&mut port, budget),
                Link::Tap(_) => self.ingress_tap(&mut port, budget),
            };
            self.watch.end(port.index, began);
            if took {
                worked = true;
                self.touched.insert(port.index);
            }
            quiet |= self.note_idle(&mut port, took);
            self.ports[index] = Some(port);
        }
        if quiet {
            let ports = &self.ports;
            self.polled.retain(|index| ports[*index as usize].as_ref().is_none_or(|port| !port.quiet));
        }
        if let Some(first) = late {
            self.rotate_polled(first);
        }
        worked
    }

    fn ingress_rings(&mut self, port: &mut Port, budget: &mut i64) -> bool {
        let mut worked = false;
        let mut throttled = false;
        let Link::Vhost(vhost) = &port.link else { return false };
        let mut drops = budget::DROPPED;
        for pair in 0..vhost.tx.len() {
            let (took, waits) = self.ingress_ring(port, pair, budget, &mut drops);
            worked |= took;
            throttled |= waits;
        }
        port.set_throttled(throttled, self.now);
        worked
    }

    /// One transmit queue, while `budget` lasts; that of a port with a deadline while `drops` does. Returns whether
    /// frames were taken, and whether one waits for tokens.
    fn ingress_ring(
        &mut self,
        port: &mut Port,
        pair: usize,
        budget: &mut i64,
        drops: &mut i64,
    ) -> (bool, bool) {
        let now = self.now;
        let Link::Vhost(vhost) = &mut port.link else { return (false, false) };
        let Some(Some(tx)) = vhost.tx.get_mut(pair) else { return (false, false) };
        if !tx.ring.enabled {
            return (false, false);
        }
        // Slots bound what is in flight; what is done and held back in order comes on top.
        if tx.ring.queue.in_flight() > (tx.ring.queue.size() / 2).max(2) {
            self.let_through(port, pair);
        }
        let Link::Vhost(vhost) = &mut port.link else { return (false, false) };
        let Some(Some(tx)) = vhost.tx.get_mut(pair) else { return (false, false) };
        let available = match tx.ring.queue.available() {
            Ok(available) => available,
            Err(error) => {
                self.fault(port, &error.to_string());
                return (false, false);
            }
        };
        tx.arrivals.polled(tx.ring.queue.next_avail().wrapping_add(available), now);
        if available == 0 && tx.pending.is_none() {
            return (false, false);
        }
        let fast = self.fast(port, pair, budget);
        let mut worked = fast > 0;
        let realtime = port.contract.deadline.is_some();
        for _ in fast..BATCH {
            let is_over = if realtime { *drops <= 0 } else { *budget <= 0 };
            if is_over {
                break;
            }
            let before = *budget;
            let pending = match self.next_from_ring(port, pair, budget) {
                Next::Frame(pending) => pending,
                Next::Dropped => {
                    *budget -= budget::queued(0);
                    *drops -= before - *budget;
                    worked = true;
                    continue;
                }
                Next::Nothing => break,
                Next::Full => {
                    self.ask_relief(port);
                    // A slot comes back when the fates of this loop are settled.
                    worked = true;
                    break;
                }
            };
            // Before it is sent: after that it may be settled, and its slot another's.
            let cost = budget::queued(pending.frame.get().wire_bytes);
            match self.try_send(port, pending) {
                Sent::Yes => {
                    *budget -= cost;
                    worked = true;
                }
                Sent::At(at) => {
                    self.wake_at(at);
                    return (worked, true);
                }
                Sent::NoSlot => {
                    self.ask_relief(port);
                    break;
                }
                Sent::Behind => return (true, false),
            }
        }
        (worked, false)
    }

    /// The frame that waits, or the next one from the ring, whose descriptors are charged to `budget`.
    fn next_from_ring(&mut self, port: &mut Port, pair: usize, budget: &mut i64) -> Next {
        let Link::Vhost(vhost) = &mut port.link else { return Next::Nothing };
        let header_len = vhost.receiver.header_len;
        let Some(Some(tx)) = vhost.tx.get_mut(pair) else { return Next::Nothing };
        if let Some(pending) = tx.pending.take() {
            return Next::Frame(pending);
        }
        if tx.ring.queue.pending() == 0 {
            return Next::Nothing;
        }
        let Some(reference) = tx.slots.take() else { return Next::Full };
        let arrival = tx.arrivals.of(tx.ring.queue.next_avail());
        let chain = &mut self.scratch.chain;
        match tx.ring.queue.pop_readable(chain) {
            Ok(true) => *budget -= budget::scattered(chain.descriptors()),
            Ok(false) => {
                tx.slots.give(reference);
                return Next::Nothing;
            }
            Err(error) if !error.is_fatal() => {
                *budget -= budget::scattered(chain.descriptors());
                tx.slots.give(reference);
                tx.ring.queue.complete(chain.head(), 0);
                tx.ring.dirty = true;
                port.count_tx_drop(DropReason::TooScattered);
                return Next::Dropped;
            }
            Err(error) => {
                tx.slots.give(reference);
                self.fault(port, &error.to_string());
                return Next::Nothing;
            }
        }
        let head = chain.head();
        let frame = reference.get_mut();
        frame.owner = Owner::Ring { queue: pair as u16, head };
        let taken = take_head(frame, chain.spans(), chain.bytes(), header_len);
        match taken.and_then(|()| self.inspect(port, frame)) {
            Ok(()) => Next::Frame(Pending { frame: reference, arrival, sent: 0 }),
            Err(reason) => {
                port.count_tx_drop(reason);
                super::settle::give_back(port, reference);
                Next::Dropped
            }
        }
    }

    /// Decides on a frame by its copied head: whether it may be sent.
    pub(super) fn inspect(&mut self, port: &mut Port, frame: &mut Frame) -> Result<(), DropReason> {
        let len = frame.len as usize;
        let headers = parse(frame.head(), len).map_err(|_| DropReason::Malformed)?;
        let offload =
            check(&frame.vnet, &headers, frame.head_len as usize, len).map_err(|_| DropReason::Malformed)?;
        let longest = offload.gso_size().map_or(frame.len, |size| u32::from(headers.len) + u32::from(size));
        if longest > port.contract.frame_max {
            return Err(DropReason::TooLong);
        }
        self.admit(port, frame.head(), &headers)?;
        frame.headers = headers;
        frame.offload = offload;
        frame.wire_frames = segments(offload, &headers, len);
        frame.wire_bytes = wire_bytes(offload, &headers, len);
        frame.flow = flow_hash(frame.head(), &headers);
        let Some(info) = &self.infos[port.index as usize] else { return Err(DropReason::NoReceiver) };
        if info.deadline.is_none() {
            let head_len = frame.head_len as usize;
            clear_realtime_marks(&mut frame.bytes[..head_len], &mut frame.headers);
        }
        if info.learns {
            let seconds = (self.now / 1_000_000_000) as u32;
            if let Err(crate::fdb::NotLearned::Pinned) =
                self.fdb.learn(port.segment, headers.src, port.index, seconds)
            {
                // Another vNIC's own address, sent from behind a bridge: spoofed.
                return Err(DropReason::SourceMac);
            }
        }
        Ok(())
    }

    /// Where a frame goes, by what is known now; `None` back to its sender. Looked up when it is sent:
    /// while it waited for tokens its receiver's place may have become another's.
    fn destination(&self, port: &Port, dst: Mac) -> Option<To> {
        if dst.is_group() {
            return Some(To::Flood(if is_of_link(dst) { Audience::Control } else { Audience::All }));
        }
        match self.fdb.lookup(port.segment, dst) {
            Some(to) if to == port.index => None,
            Some(to) => Some(To::Port(to)),
            None => Some(To::Flood(Audience::Learning)),
        }
    }

    /// Sends a frame, or puts it back where it waits for tokens.
    pub(super) fn try_send(&mut self, port: &mut Port, mut pending: Pending) -> Sent {
        let reference = pending.frame;
        let frame = reference.get();
        let whole = frame.wire_bytes;
        let cut = match port.contract.cut_to {
            // What was begun in pieces ends in pieces, whatever the contract says by now.
            limit if pending.sent > 0 => Some(limit.unwrap_or(whole)),
            limit => limit.filter(|burst| whole > *burst && frame.offload.gso_size().is_some()),
        };
        match cut {
            Some(burst) => loop {
                match self.send_piece(port, &mut pending, burst) {
                    Piece::Last => return Sent::Yes,
                    Piece::More => {}
                    Piece::At(at) => {
                        put_back(port, pending);
                        return Sent::At(at);
                    }
                    Piece::NoSlot => {
                        put_back(port, pending);
                        return Sent::NoSlot;
                    }
                }
            },
            None if self.must_wait(port, frame) => {
                put_back(port, pending);
                Sent::Behind
            }
            None => match port.conform(pending.arrival, whole, self.now) {
                Ok(started) => {
                    count_sent(port, frame);
                    self.dispatch(port, pending.frame, pending.arrival, started);
                    Sent::Yes
                }
                Err(at) => {
                    put_back(port, pending);
                    Sent::At(at)
                }
            },
        }
    }

    /// Whether a frame is to wait, in its ring or pool, for a worker that has no room for it: this one
    /// for a super-frame, another one for any.
    fn must_wait(&mut self, port: &mut Port, frame: &Frame) -> bool {
        let super_frame = frame.offload.gso_size().is_some();
        if self.peers.len() < 2 && !super_frame {
            return false;
        }
        let Some(To::Port(egress)) = self.destination(port, frame.headers.dst) else { return false };
        let worker = self.infos[egress as usize].as_ref().map(|info| usize::from(info.worker));
        let is_full = match worker {
            Some(worker) if worker == usize::from(self.id) => {
                super_frame && self.is_behind(port.index, egress, frame)
            }
            Some(worker) => self.peers[worker].as_ref().is_some_and(|(peer, _)| !peer.has_room()),
            None => false,
        };
        if !is_full {
            port.behind_since = NEVER;
            return false;
        }
        port.behind_since = port.behind_since.min(self.now);
        self.now - port.behind_since < BEHIND
    }

    /// Sends the next piece of a real-time super-frame, at most `burst` bytes on the wire.
    fn send_piece(&mut self, port: &mut Port, pending: &mut Pending, burst: u32) -> Piece {
        let whole = pending.frame.get();
        let header = u32::from(whole.headers.len);
        let size = u32::from(whole.offload.gso_size().unwrap_or(1));
        let per_piece = (burst / (header + size)).max(1) * size;
        let body = whole.len - header;
        let (mut spans, count) = body_spans(whole);
        let segmenter = Segmenter::new(whole.head(), &whole.headers, whole.offload, body as usize);
        let mut head = [0; HEADER_MAX];
        let part = segmenter.and_then(|segmenter| {
            segmenter.with_size(per_piece as usize).starting_at(pending.sent as usize).next(&mut head)
        });
        let Some(part) = part else { return Piece::Last };
        let offload = if part.segments > 1 { whole.offload } else { Offload::Checksum };
        let wire = header * part.segments + part.payload_len as u32;
        let started = match port.conform(pending.arrival, wire, self.now) {
            Ok(started) => started,
            Err(at) => return Piece::At(at),
        };
        let Some(reference) = take_slot(port, whole) else { return Piece::NoSlot };
        if pending.sent == 0 {
            whole.shares.set(1);
            count_sent(port, whole);
        }
        let piece = reference.get_mut();
        piece.owner = Owner::Piece { whole: pending.frame };
        piece.len = header + part.payload_len as u32;
        piece.wire_bytes = wire;
        piece.wire_frames = part.segments;
        piece.flow = whole.flow;
        piece.offload = offload;
        piece.vnet = part.vnet;
        piece.headers = part.headers;
        piece.head_len = part.head_len as u16;
        piece.bytes = head;
        piece.span_count =
            slice_spans(&mut spans[..count], part.payload_offset, part.payload_len, &mut piece.spans) as u16;
        whole.shares.set(whole.shares.get() + 1);
        pending.sent += part.payload_len as u32;
        let last = pending.sent >= body;
        self.dispatch(port, reference, pending.arrival, started);
        if last {
            // The share that stood for "not yet cut to the end".
            release_share(port, pending.frame);
            Piece::Last
        } else {
            Piece::More
        }
    }

    /// Hands a conforming frame to its egress.
    fn dispatch(&mut self, port: &mut Port, reference: FrameRef, arrival: u64, started: u64) {
        let frame = reference.get_mut();
        frame.source = port.index;
        frame.started = started;
        frame.waited_for_tokens = started - arrival;
        frame.deadline = NEVER;
        if let Some(capture) = &mut port.capture {
            capture.record(frame, crate::capture::Direction::FromVm);
        }
        match self.destination(port, frame.headers.dst) {
            Some(To::Port(egress)) => {
                let info = self.infos[port.index as usize].as_ref();
                if let Some(deadline) = info.and_then(|info| info.deadline_to(egress)) {
                    frame.deadline = started + deadline;
                }
                port.in_flight_to[egress as usize] += 1;
                frame.egress = egress;
                self.route(egress, reference);
            }
            Some(To::Flood(audience)) => {
                self.flood_frame(port, frame, audience);
                super::settle::give_back(port, reference);
            }
            None => {
                port.count_tx_drop(DropReason::NoReceiver);
                super::settle::give_back(port, reference);
            }
        }
    }

    /// To the worker that owns the egress.
    pub(super) fn route(&mut self, egress: PortIndex, frame: FrameRef) {
        let Some(info) = &self.infos[egress as usize] else {
            self.drop_frame(frame, egress, DropReason::ReceiverDown);
            return;
        };
        let worker = info.worker as usize;
        if worker == self.id as usize {
            self.enqueue(egress, frame);
            return;
        }
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

    /// Drops a frame that did not reach an egress.
    pub(super) fn drop_frame(&mut self, frame: FrameRef, egress: PortIndex, reason: DropReason) {
        let (at, queued) = (self.now, self.now);
        self.fates.push(Fate { frame, egress, at, dropped: Some(reason), queued, buffers: 0, behind: None });
    }
}

enum Next {
    Frame(Pending),
    Dropped,
    Nothing,
    Full,
}

enum Piece {
    Last,
    More,
    At(u64),
    NoSlot,
}

fn count_sent(port: &Port, frame: &Frame) {
    port.stats.tx.frames.add(1);
    port.stats.tx.wire_frames.add(u64::from(frame.wire_frames));
    port.stats.tx.wire_bytes.add(u64::from(frame.wire_bytes));
}

fn put_back(port: &mut Port, pending: Pending) {
    match (&mut port.link, pending.frame.get().owner) {
        (Link::Tap(tap), _) => tap.waiting.push_front(pending),
        (Link::Vhost(vhost), Owner::Ring { queue, .. }) => {
            if let Some(Some(tx)) = vhost.tx.get_mut(queue as usize) {
                tx.pending = Some(pending);
            }
        }
        (_, owner) => debug_assert!(false, "{owner:?} does not wait"),
    }
}

fn take_slot(port: &mut Port, whole: &Frame) -> Option<FrameRef> {
    match (&mut port.link, whole.owner) {
        (Link::Tap(tap), _) => tap.slots.take(),
        (Link::Vhost(vhost), Owner::Ring { queue, .. }) => {
            vhost.tx.get_mut(queue as usize)?.as_mut()?.slots.take()
        }
        _ => None,
    }
}

/// Gives up one share of a cut super-frame.
pub(super) fn release_share(port: &mut Port, whole: FrameRef) {
    let shares = &whole.get().shares;
    shares.set(shares.get() - 1);
    if shares.get() == 0 {
        super::settle::give_back(port, whole);
    }
}

/// Copies the virtio header and the first bytes, and notes where the rest lies.
fn take_head(frame: &mut Frame, spans: &[Span], bytes: u32, header_len: usize) -> Result<(), DropReason> {
    let len = bytes.checked_sub(header_len as u32).ok_or(DropReason::Malformed)?;
    let head_len = (len as usize).min(HEADER_MAX);
    let mut bytes = [0u8; VnetHdr::LEN + HEADER_MAX];
    let want = header_len + head_len;
    let mut got = 0;
    let mut rest = 0;
    for span in spans {
        let span_len = span.len as usize;
        let here = span_len.min(want - got);
        // SAFETY: the ring translated the span in the guest's current memory, which stays mapped
        // while this worker runs its loop; read once, into our own bytes.
        unsafe { std::ptr::copy_nonoverlapping(span.ptr, bytes[got..].as_mut_ptr(), here) };
        got += here;
        if here < span_len {
            frame.spans[rest] = Span { ptr: span.ptr.wrapping_add(here), len: (span_len - here) as u32 };
            rest += 1;
        }
    }
    let vnet = if header_len == VnetHdr::LEN { VnetHdr::read(&bytes) } else { VnetHdr::read_legacy(&bytes) };
    frame.vnet = vnet.ok_or(DropReason::Malformed)?;
    frame.bytes[..head_len].copy_from_slice(&bytes[header_len..want]);
    frame.len = len;
    frame.head_len = head_len as u16;
    frame.span_count = rest as u16;
    Ok(())
}

/// All spans of a frame's body: what follows its headers, the part that was copied with them first.
pub(super) fn body_spans(frame: &Frame) -> ([Span; MAX_SPANS + 1], usize) {
    let mut spans = [Span::EMPTY; MAX_SPANS + 1];
    let mut count = 0;
    let copied = &frame.head()[frame.headers.len as usize..];
    if !copied.is_empty() {
        spans[0] = Span { ptr: copied.as_ptr().cast_mut(), len: copied.len() as u32 };
        count = 1;
    }
    spans[count..][..frame.payload().len()].copy_from_slice(frame.payload());
    (spans, count + frame.payload().len())
}

/// The part of `spans` from `offset`, `len` bytes long; returns how many spans it has.
pub(super) fn slice_spans(spans: &mut [Span], offset: usize, len: usize, out: &mut [Span]) -> usize {
    let (mut skip, mut left, mut count) = (offset as u32, len as u32, 0);
    for span in spans.iter() {
        if left == 0 {
            break;
        }
        if skip >= span.len {
            skip -= span.len;
            continue;
        }
        let here = (span.len - skip).min(left);
        out[count] = Span { ptr: span.ptr.wrapping_add(skip as usize), len: here };
        count += 1;
        left -= here;
        skip = 0;
    }
    count
}

/// Equal for all frames of a flow, and of fragments to the same host.
pub(super) fn flow_hash(head: &[u8], headers: &Headers) -> u32 {
    let (l3, l4) = (headers.l3_offset as usize, headers.l4_offset as usize);
    let addresses = match headers.l3 {
        L3::Ipv4 => l3 + 12..l3 + 20,
        L3::Ipv6 => l3 + 8..l3 + 40,
        _ => 0..12,
    };
    let ports = match headers.l4 {
        L4::Tcp | L4::Udp => l4..l4 + 4,
        _ => 0..0,
    };
    let bytes = |range| head.get::<std::ops::Range<usize>>(range).unwrap_or(&[]);
    let mix = |hash: u32, word: &[u8; 4]| {
        (hash.rotate_left(5) ^ u32::from_le_bytes(*word)).wrapping_mul(0x9e37_79b1)
    };
    let (words, _) = bytes(addresses).as_chunks();
    let hash = words.iter().fold(0, mix);
    let (words, _) = bytes(ports).as_chunks();
    // The low bits choose the queue: the high ones are mixed best.
    words.iter().fold(hash, mix) >> 8
}

impl From<crate::frame::policy::Reason> for DropReason {
    fn from(reason: crate::frame::policy::Reason) -> Self {
        use crate::frame::policy::Reason;
        match reason {
            Reason::SourceMac | Reason::NeighbourMac => Self::SourceMac,
            Reason::SourcePrefix | Reason::ArpSpoof | Reason::NeighbourSpoof => Self::SourcePrefix,
            Reason::LinkLocal => Self::LinkLocal,
            Reason::Control => Self::Control,
            Reason::Router => Self::Router,
            Reason::DhcpServer => Self::DhcpServer,
            Reason::Vlan => Self::Vlan,
            Reason::Encapsulation | Reason::Hidden => Self::Encapsulation,
        }
    }
}
