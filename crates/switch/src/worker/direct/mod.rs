//! The direct way: plain frames that meet no contention go from ring to ring, a batch at a time and
//! without a queue. The checks and the accounts are those of the queued way.
//!
//! ```text
//!  tx ring ─▶ one buffer each ─▶ heads copied ─▶ parse, policy, FDB ─▶ room? ─▶ tokens? ─▶ rx rings
//!     ▲                              │                                   │         │
//!     └── put back, to be queued ────┴── anything unusual ───────────────┴─ no ────┘
//! ```
//!
//! A frame is plain if it is one buffer with the headers of IP over Ethernet and asks for no more
//! than the receiver takes as it is. It meets no contention if nothing waits at its egress, the
//! egress has tokens, and the receiver a buffer that it fits into. Frames to another worker, to
//! a tap or to a guest that migrates take the queued way, as do those of ports that are watched.

mod copy;

use super::budget::DIRECT;
use super::inspect::flow_hash;
use super::settle::Miss;
use super::turns::BATCH;
use super::{Worker, clock};
use crate::fdb::{NotLearned, PortIndex};
use crate::frame::dscp::is_realtime;
use crate::frame::offload::{check, receiver_hdr};
use crate::frame::plain::{Plain, look};
use crate::frame::{L3, L4, Offload, Verdict, VnetHdr};
use crate::frame::{clear_realtime_marks, parse};
use crate::link::{Receiver, Rx, vhost};
use crate::port::{NEVER, Port};
use crate::virtio::Single;
use copy::{HEAD, read, write};
use tidegate_contract::Discipline;

/// Shortest frame taken: Ethernet and a whole IPv4 header, and long enough to be copied in two halves.
const SHORTEST: usize = 34;
/// The queue of a receiver that has one.
const ONLY: u16 = u16::MAX;
/// Receiving queues that the frames of one batch may go to.
const GROUPS: usize = 8;

/// One frame of a batch, decided on.
#[derive(Clone, Copy)]
struct Sent {
    /// Its receiving queue, and which of the batch's frames there it is.
    group: u8,
    rank: u8,
    len: u32,
    /// Ts, ns.
    started: u64,
    /// The virtio header to deliver.
    vnet: [u8; VnetHdr::LEN],
}

/// That of a frame which asks for nothing.
const COMPLETE: [u8; VnetHdr::LEN] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0];

/// What a batch has for one receiving queue.
#[derive(Clone, Copy)]
struct Group {
    egress: PortIndex,
    queue: u16,
    receiver: Receiver,
    /// Td of what is sent there, ns.
    deadline: Option<u64>,
    /// Bytes the egress may carry now.
    tokens: i64,
    frames: u8,
    bytes: u64,
    longest: u32,
    /// Where its buffers are among the batch's, and how many were there.
    first: u8,
    buffers: u8,
}

/// A worker's memory for batches.
pub(super) struct Batch {
    tx: [Single; BATCH],
    rx: [Single; BATCH],
    heads: [Head; BATCH],
    frames: [Sent; BATCH],
    groups: [Group; GROUPS],
    group_count: usize,
    /// All its frames started at the same time.
    together: bool,
    /// When its first frame arrived.
    arrival: u64,
}

#[derive(Clone, Copy)]
#[repr(align(64))]
struct Head([u8; HEAD]);

impl Default for Batch {
    fn default() -> Self {
        let group = Group {
            egress: 0,
            queue: 0,
            receiver: Receiver::default(),
            deadline: None,
            tokens: 0,
            frames: 0,
            bytes: 0,
            longest: 0,
            first: 0,
            buffers: 0,
        };
        Self {
            tx: [Single::EMPTY; BATCH],
            rx: [Single::EMPTY; BATCH],
            heads: [Head([0; HEAD]); BATCH],
            frames: [Sent { group: 0, rank: 0, len: 0, started: 0, vnet: COMPLETE }; BATCH],
            groups: [group; GROUPS],
            group_count: 0,
            together: true,
            arrival: 0,
        }
    }
}

impl Worker {
    /// Sends what can go the direct way of one transmit queue, while `budget` lasts; returns how many
    /// frames that were.
    pub(super) fn direct(&mut self, port: &mut Port, pair: usize, budget: &mut i64) -> usize {
        let Some(info) = &self.infos[port.index as usize] else { return 0 };
        let Some(rings) = port.link.tx.rings() else { return 0 };
        let header_len = rings.header_len();
        let Some(tx) = rings.queue(pair) else { return 0 };
        if port.capture.is_some() || tx.pending.is_some() || self.watch.covers(port.index) {
            return 0;
        }
        let learns = info.learns;
        let arrival = tx.arrivals.of(tx.ring.queue.next_avail());
        let Some(mut batch) = self.batch.take() else { return 0 };
        // Where contention lasts, only one frame is looked at in vain.
        let most = usize::from(tx.direct).clamp(1, self.turns.batch(port.index));
        let popped = tx.ring.queue.pop_singles::<false>(&mut batch.tx[..most]);
        let mut count = self.classify(port, &mut batch, popped, header_len, *budget, learns);
        if count > 0 {
            count = self.find_room(&mut batch, count);
            count = conform(port, &mut batch, count, arrival, self.now);
            batch.arrival = arrival;
        }
        if let Some(tx) = port.link.tx.rings().and_then(|rings| rings.queue(pair)) {
            tx.ring.queue.put_back(&batch.tx[count..popped]);
            tx.direct = if count > 0 || popped == 0 { BATCH as u8 } else { tx.direct / 2 };
        }
        if count < popped {
            self.give_back_buffers(&batch, count);
        }
        if count > 0 {
            let bytes = self.carry(port, pair, &mut batch, count, header_len);
            *budget -= bytes as i64 + count as i64 * DIRECT;
        }
        self.batch = Some(batch);
        count
    }

    /// Decides on the first frames of the batch; returns how many can go this way.
    fn classify(
        &mut self,
        port: &Port,
        batch: &mut Batch,
        popped: usize,
        header_len: usize,
        budget: i64,
        learns: bool,
    ) -> usize {
        let realtime = port.contract.deadline.is_some();
        let mut spent = 0;
        let seconds = (self.now / 1_000_000_000) as u32;
        batch.group_count = 0;
        for i in 0..popped {
            let single = batch.tx[i];
            let Some(len) = (single.len as usize).checked_sub(header_len) else { return i };
            if len < SHORTEST || len > port.contract.frame_max as usize || (spent >= budget && !realtime) {
                return i;
            }
            spent += len as i64 + DIRECT;
            let head = &mut batch.heads[i].0;
            let head_len = len.min(HEAD);
            // SAFETY: the ring translated the buffer, `header_len + len` bytes long, in the guest's
            // memory, which stays mapped while this worker runs its loop; read once.
            let vnet = unsafe { read(single.ptr, header_len, head, head_len) };
            let head = &mut head[..head_len];
            let (Plain { src, dst, dscp }, vid) = match look(head, len) {
                Some(plain) if port.contract.policy.passes_plain(head, plain.src, &port.held) => {
                    (plain, None)
                }
                Some(_) => return i,
                None => match look_closely(port, head, len) {
                    Some(seen) => seen,
                    None => return i,
                },
            };
            if is_realtime(dscp) && !realtime {
                clear_marks(head, len);
            }
            let Some(egress) = self.fdb.lookup(port.segment, dst) else { return i };
            let groups = &batch.groups[..batch.group_count];
            let open = |group: &Group| group.egress == egress && group.queue == ONLY;
            let group = match groups.iter().position(open) {
                Some(group) if vid.is_none() => group,
                _ => match self.group(port, batch, egress, i, len, vid) {
                    Some(group) => group,
                    None => return i,
                },
            };
            let to = &mut batch.groups[group];
            let vnet = match vnet {
                // Flags and GSO type of 0: it asks for nothing.
                [0, 0, ..] => COMPLETE,
                asked => match checksum_left(&asked, &batch.heads[i].0[..head_len], len, &to.receiver) {
                    Some(deliver) => deliver,
                    None => return i,
                },
            };
            // Last: no address is learned from a frame that is dropped in the end. One to its own
            // source would go where that was seen before.
            if learns
                && (src == dst
                    || self.fdb.learn(port.segment, src, port.index, seconds) == Err(NotLearned::Pinned))
            {
                return i;
            }
            batch.frames[i] = Sent { group: group as u8, rank: to.frames, len: len as u32, started: 0, vnet };
            to.frames += 1;
            to.bytes += len as u64;
            to.longest = to.longest.max(len as u32);
        }
        popped
    }

    /// The group of a frame to `egress`, where nothing is in the way of frames; a new one if need be.
    #[inline(never)]
    fn group(
        &mut self,
        port: &Port,
        batch: &mut Batch,
        egress: PortIndex,
        frame: usize,
        len: usize,
        vid: Option<u16>,
    ) -> Option<usize> {
        if egress == port.index || self.watch.covers(egress) || self.is_arriving(egress) {
            return None;
        }
        let to = self.ports[egress as usize].as_ref()?;
        let rings = to.link.rx.rings_ref()?;
        let idle = to.egress.scheduler.backlog_total().frames == 0;
        let here = !to.broken && to.capture.is_none() && to.segment == port.segment && !rings.is_logged();
        if !idle || !here || vid.is_some_and(|vid| !to.contract.policy.may_receive_tagged(vid)) {
            return None;
        }
        let queue = match rings.enabled.len() {
            0 => return None,
            1 => ONLY,
            queues => {
                let head = &batch.heads[frame].0[..len.min(HEAD)];
                rings.enabled[flow_hash(head, &parse(head, len).ok()?) as usize % queues]
            }
        };
        let groups = &batch.groups[..batch.group_count];
        if let Some(found) = groups.iter().position(|group| group.egress == egress && group.queue == queue) {
            return Some(found);
        }
        let deadline = self.infos[port.index as usize].as_ref()?.deadline_to(egress);
        let new = batch.group_count;
        *batch.groups.get_mut(new)? = Group {
            egress,
            queue,
            receiver: rings.receiver,
            deadline,
            // Real-time frames do not wait for the egress rate, but where it is that of a plain FIFO.
            tokens: match (deadline, to.contract.egress.discipline) {
                (Some(_), Discipline::Contract) => i64::MAX,
                _ => to.egress.scheduler.tokens(self.now),
            },
            frames: 0,
            bytes: 0,
            longest: 0,
            first: 0,
            buffers: 0,
        };
        batch.group_count += 1;
        Some(new)
    }

    /// Takes receive buffers for the batch; returns how many of its frames have one that they fit
    /// into, and tokens of their egress.
    fn find_room(&mut self, batch: &mut Batch, count: usize) -> usize {
        let mut first = 0;
        let mut room = true;
        for group in &mut batch.groups[..batch.group_count] {
            group.first = first as u8;
            group.buffers = 0;
            room &= group.tokens >= group.bytes as i64;
            let Some(to) = &mut self.ports[group.egress as usize] else { return 0 };
            let Some(ring) = rx_ring(&mut to.link.rx, group.queue) else { return 0 };
            let wanted = usize::from(group.frames);
            // An index that lies is for the queued way to find.
            if usize::from(ring.queue.pending()) < wanted && ring.queue.available().is_err() {
                return 0;
            }
            let buffers = &mut batch.rx[first..first + wanted];
            group.buffers = ring.queue.pop_singles::<true>(buffers) as u8;
            let needed = group.longest + group.receiver.header_len as u32;
            room &= group.buffers == group.frames && buffers.iter().all(|buffer| buffer.len >= needed);
            first += wanted;
        }
        if room {
            return count;
        }
        for (i, frame) in batch.frames[..count].iter().enumerate() {
            let group = &mut batch.groups[usize::from(frame.group)];
            let bytes = i64::from(frame.len);
            let buffer = &batch.rx[usize::from(group.first + frame.rank)];
            let needed = frame.len as usize + group.receiver.header_len;
            if frame.rank >= group.buffers || (buffer.len as usize) < needed || group.tokens < bytes {
                return i;
            }
            group.tokens -= bytes;
        }
        count
    }

    /// Puts back the receive buffers that the batch's first `count` frames do not use.
    fn give_back_buffers(&mut self, batch: &Batch, count: usize) {
        for (number, group) in batch.groups[..batch.group_count].iter().enumerate() {
            let in_group = |frame: &&Sent| usize::from(frame.group) == number;
            let used = match count {
                0 => 0,
                _ => batch.frames[..count].iter().filter(in_group).count(),
            };
            let unused = &batch.rx[usize::from(group.first)..][used..usize::from(group.buffers)];
            if !unused.is_empty()
                && let Some(to) = &mut self.ports[group.egress as usize]
                && let Some(ring) = rx_ring(&mut to.link.rx, group.queue)
            {
                ring.queue.put_back(unused);
            }
        }
    }

    /// Copies the batch's first `count` frames into their buffers, and accounts for them; returns their bytes.
    fn carry(
        &mut self,
        port: &mut Port,
        pair: usize,
        batch: &mut Batch,
        count: usize,
        header_len: usize,
    ) -> u64 {
        let Batch { tx, rx, heads, frames, groups, group_count, together, arrival } = batch;
        let (tx, frames) = (&tx[..count], &frames[..count]);
        let mut total = 0;
        for (number, group) in (0..).zip(&mut groups[..*group_count]) {
            (group.frames, group.bytes) = (0, 0);
            let Some(to) = &mut self.ports[group.egress as usize] else { continue };
            let receiver_header = group.receiver.header_len;
            let Some(ring) = rx_ring(&mut to.link.rx, group.queue) else { continue };
            let buffers = &rx[usize::from(group.first)..];
            let of_group = |frame: &&Sent| frame.group == number;
            for (i, frame) in frames.iter().enumerate().filter(|(_, frame)| of_group(frame)) {
                let buffer = &buffers[usize::from(frame.rank)];
                // SAFETY: both buffers were translated in memory that stays mapped while this
                // worker runs its loop: `header_len + len` bytes in the sender's, and the
                // receiver's has room for its header and `len` bytes.
                unsafe {
                    let from = tx[i].ptr.wrapping_add(header_len);
                    write(buffer.ptr, receiver_header, &frame.vnet, &heads[i].0, from, frame.len as usize);
                }
                group.frames += 1;
                group.bytes += u64::from(frame.len);
            }
            let lengths = frames.iter().filter(of_group).map(|frame| frame.len + receiver_header as u32);
            ring.queue.complete_all(buffers.iter().map(|buffer| buffer.head).zip(lengths));
            ring.dirty = true;
            total += group.bytes;
        }
        if let Some(queue) = port.link.tx.rings().and_then(|rings| rings.queue(pair)) {
            queue.ring.queue.complete_singles(tx);
            queue.ring.dirty = true;
        }
        self.touched.insert(port.index);
        groups[..*group_count].iter().for_each(|group| self.touched.insert(group.egress));
        self.now = clock();
        let stats = port.stats;
        stats.tx.frames.add(count as u64);
        stats.tx.wire_frames.add(count as u64);
        stats.tx.wire_bytes.add(total);
        if *together {
            stats.delay.record_many(self.now.saturating_sub(frames[0].started), count as u64);
        } else {
            frames.iter().for_each(|frame| stats.delay.record(self.now.saturating_sub(frame.started)));
        }
        for group in groups[..*group_count].iter().filter(|group| group.frames > 0) {
            let Some(to) = &mut self.ports[group.egress as usize] else { continue };
            port.talk.note(group.egress, group.bytes, group.frames.into());
            to.stats.rx.frames.add(u64::from(group.frames));
            to.stats.rx.wire_frames.add(u64::from(group.frames));
            to.stats.rx.wire_bytes.add(group.bytes);
            to.egress.scheduler.charge(self.now, group.bytes);
            to.egress.last = (port.index, self.now);
            to.egress.blocked_since = NEVER;
        }
        if port.contract.deadline.is_some() {
            self.account_deadlines(port, frames, &groups[..*group_count], *arrival);
        }
        total
    }

    /// What was sent under a deadline, just now.
    fn account_deadlines(&self, port: &Port, frames: &[Sent], groups: &[Group], arrival: u64) {
        let stats = port.stats;
        for frame in frames {
            let group = &groups[usize::from(frame.group)];
            let Some(deadline) = group.deadline else { continue };
            let delay = self.now.saturating_sub(frame.started);
            stats.realtime_delivered.add(1);
            stats.realtime_worst.raise(delay);
            if delay > deadline {
                let tokens = frame.started.saturating_sub(arrival);
                Miss::of_worker(group.egress, delay, deadline, tokens).record(stats);
            }
        }
    }
}

/// No vNIC without a deadline sends real-time marks.
#[inline(never)]
fn clear_marks(head: &mut [u8], len: usize) {
    if let Ok(mut headers) = parse(head, len) {
        clear_realtime_marks(head, &mut headers);
    }
}

/// The receiving queue of a group.
#[inline]
fn rx_ring(rx: &mut Rx, queue: u16) -> Option<&mut vhost::Ring> {
    let rings = rx.rings()?;
    let queue = if queue == ONLY { *rings.enabled.first()? } else { queue };
    rings.rings.get_mut(queue as usize)?.as_mut()
}

/// Whether a frame that is not plain at first sight, as one with a tag, can go this way.
#[inline(never)]
fn look_closely(port: &Port, head: &[u8], len: usize) -> Option<(Plain, Option<u16>)> {
    // One to many is copied first.
    if head[0] & 1 == 1 {
        return None;
    }
    let headers = parse(head, len).ok()?;
    let whole = matches!((headers.l3, headers.l4), (L3::Ipv4 | L3::Ipv6, L4::Tcp | L4::Udp));
    if !whole || port.contract.policy.check(head, &headers, &port.held) != Verdict::Pass {
        return None;
    }
    Some((Plain { dst: headers.dst, src: headers.src, dscp: headers.dscp }, headers.vid()))
}

/// The virtio header to deliver for a frame whose checksum is left to others, where the receiver
/// takes it so.
#[inline(never)]
fn checksum_left(
    asked: &[u8; VnetHdr::LEN],
    head: &[u8],
    len: usize,
    receiver: &Receiver,
) -> Option<[u8; VnetHdr::LEN]> {
    let vnet = VnetHdr::read_legacy(asked)?;
    let headers = parse(head, len).ok()?;
    let offload = check(&vnet, &headers, head.len(), len).ok()?;
    if offload.gso_size().is_some() || (offload != Offload::None && !receiver.csum) {
        return None;
    }
    let mut deliver = COMPLETE;
    receiver_hdr(&vnet, &headers, offload).write(&mut deliver);
    Some(deliver)
}

/// Charges the batch's frames to the sender's contract, and says when each started; returns how many
/// conform by `now`.
fn conform(port: &mut Port, batch: &mut Batch, count: usize, arrival: u64, now: u64) -> usize {
    let frames = &mut batch.frames[..count];
    batch.together = true;
    let Some(shaper) = &mut port.shaper else {
        frames.iter_mut().for_each(|frame| frame.started = arrival);
        return count;
    };
    let from = arrival.max(port.last_started);
    let groups = &batch.groups[..batch.group_count];
    let all = groups.iter().map(|group| usize::from(group.frames)).sum::<usize>() == count;
    let total: u64 = groups.iter().map(|group| group.bytes).sum();
    if all && from <= now && i64::try_from(total).is_ok_and(|total| shaper.available(from) >= total) {
        // They all conform at once, so they can be charged at once: as `Port::conform` does each.
        if port.contract.deadline.is_some() {
            shaper.charge(from, total);
        } else {
            let first = u64::from(frames[0].len);
            shaper.charge_waiting(from, now, first);
            shaper.charge(now, total - first);
        }
        frames.iter_mut().for_each(|frame| frame.started = from);
        port.last_started = from;
        return count;
    }
    batch.together = false;
    for (i, frame) in frames.iter_mut().enumerate() {
        match port.conform(arrival, frame.len, now) {
            Ok(at) => frame.started = at,
            Err(_) => return i,
        }
    }
    count
}
