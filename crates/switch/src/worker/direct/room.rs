//! Receiving queues of a batch, in front of which nothing waits, and their buffers.

use super::batch::{Batch, BatchFrame, Group, HOME, ONLY};
use crate::fdb::PortIndex;
use crate::frame::flow;
use crate::link::vhost;
use crate::link::vhost::copy::HEAD;
use crate::port::Lent;
use crate::port::Port;
use crate::slots::NEVER;
use crate::worker::Worker;
use crate::worker::lending::HalfLocation;
use tidegate_contract::Discipline;

/// Longest wait of a port for buffers of another worker's receiver (ns): twice as long as a driver takes
/// for a ring of small frames.
const ROOM: u64 = 50_000;

impl Worker {
    /// Returns the group of a frame to `egress`, a new one if need be; `None` if frames cannot go directly
    /// there.
    #[inline(never)]
    pub(super) fn group(
        &mut self,
        port: &Port,
        batch: &mut Batch,
        egress: PortIndex,
        frame: usize,
        len: usize,
        vid: Option<u16>,
    ) -> Option<usize> {
        let half = self.reach(port, batch, egress, vid)?;
        let deadline = self.infos[port.index as usize].as_ref()?.deadline_to(egress);
        let (rx, tokens, is_fifo) = match batch.halves.get(usize::from(half)) {
            Some((_, lent)) => (&lent.rx, lent.tokens(self.now), false),
            None => {
                let to = self.ports[egress as usize].as_ref()?;
                let is_fifo = deadline.is_some() && to.contract.egress.discipline == Discipline::Fifo;
                (&to.link.rx, to.egress.scheduler.tokens(self.now), is_fifo)
            }
        };
        let rings = rx.rings_ref().filter(|rings| !rings.is_logged())?;
        let queue = match rings.enabled.len() {
            0 => return None,
            1 => ONLY,
            queues => {
                let head = &batch.heads[frame].0[..len.min(HEAD)];
                rings.enabled[flow(head, len) as usize % queues]
            }
        };
        let groups = &batch.groups[..batch.group_count];
        if let Some(found) = groups.iter().position(|group| group.egress == egress && group.queue == queue) {
            batch.groups[found].vid = vid.unwrap_or(0);
            return Some(found);
        }
        let new = batch.group_count;
        *batch.groups.get_mut(new)? = Group {
            egress,
            queue,
            vid: vid.unwrap_or(0),
            half,
            receiver: rings.receiver,
            deadline,
            // Real-time frames do not wait for the egress rate, except for a plain FIFO's.
            tokens: if deadline.is_some() && !is_fifo { i64::MAX } else { tokens },
            frames: 0,
            bytes: 0,
            longest: 0,
            first: 0,
            buffers: 0,
        };
        batch.group_count += 1;
        Some(new)
    }

    /// Returns the batch's half for `egress`, or [`HOME`]; `None` if frames cannot go there directly, or
    /// the half is in use.
    fn reach(&mut self, port: &Port, batch: &mut Batch, egress: PortIndex, vid: Option<u16>) -> Option<u8> {
        if self.watch.covers(egress) || self.is_arriving(egress) {
            return None;
        }
        let half = match &mut self.ports[egress as usize] {
            Some(to) => {
                let idle = to.egress.scheduler.backlog_total().frames == 0;
                let here = !to.broken && to.capture.is_none() && to.segment == port.segment;
                if !idle || !here || vid.is_some_and(|vid| !to.contract.policy.may_receive_tagged(vid)) {
                    return None;
                }
                if to.egress.lendable.is_some() {
                    return Some(HOME);
                }
                if let Some(known) = batch.half_of(egress) {
                    return Some(known);
                }
                match self.lending.reach(to) {
                    HalfLocation::Home => return Some(HOME),
                    HalfLocation::Lent(half) => half,
                    HalfLocation::Away => return None,
                }
            }
            None if vid.is_some_and(|vid| vid != 0) => return None,
            None => match batch.half_of(egress) {
                Some(known) => return Some(known),
                None => self.borrow(port, batch, egress)?,
            },
        };
        // No more halves than groups, so nothing is allocated.
        if batch.halves.len() == batch.halves.capacity() {
            self.lending.put_back(egress, half, self.ports[egress as usize].is_some());
            return None;
        }
        batch.halves.push((egress, half));
        Some(batch.halves.len() as u8 - 1)
    }

    /// Takes the half that another worker's port lends. Earlier frames that went the other way have to
    /// arrive first: the sender waits for that once the receiver was lent, until it is lent again.
    #[inline(never)]
    fn borrow(&mut self, port: &Port, batch: &mut Batch, egress: PortIndex) -> Option<Box<Lent>> {
        let [from, to] = [port.index, egress].map(|port| self.infos[port as usize].as_ref());
        let realtime = port.contract.deadline.is_some() || from?.deadline_to(egress).is_some();
        if realtime || to?.segment != port.segment || self.flood.copies_of(port.index) > 0 {
            return None;
        }
        let in_flight = port.in_flight_to[egress as usize];
        if in_flight == 0
            && let Some(half) = self.lending.take(egress)
        {
            if half.segment != port.segment {
                self.lending.put_back(egress, half, false);
                return None;
            }
            self.lulls[port.index as usize].finish(self.now);
            return Some(half);
        }
        let worker = to?.worker;
        let (peer, _) = self.peers[usize::from(worker)].as_ref()?;
        let lull = &mut self.lulls[port.index as usize];
        let sent = lull.sent_before(egress, worker, peer.sent(), self.now);
        let ahead = if in_flight > 0 { u64::from(in_flight) + peer.untaken_frames(sent) } else { 0 };
        let is_offered = self.lending.is_offered(egress);
        batch.waits = lull.waits(egress, is_offered, sent, ahead, self.now);
        None
    }

    /// Whether the batch's frames from `first` on wait in the sender's ring for buffers of another worker's
    /// receiver: queueing them there costs more than the driver's time. A receiver without buffers for
    /// longer is its owner's affair.
    #[inline(never)]
    pub(super) fn waits_for_room(&self, port: &mut Port, batch: &Batch, first: usize) -> bool {
        let group = &batch.groups[usize::from(batch.frames[first].group)];
        if group.half == HOME
            || port.contract.deadline.is_some()
            || group.tokens < i64::from(batch.frames[first].len)
        {
            return false;
        }
        port.room_since = if first > 0 { self.now } else { port.room_since.min(self.now) };
        let waits = self.now - port.room_since < ROOM;
        if !waits {
            port.room_since = NEVER;
        }
        waits
    }

    /// Puts the batch's lent halves back.
    #[inline(never)]
    pub(super) fn put_halves_back(&mut self, batch: &mut Batch) {
        for (egress, half) in batch.halves.drain(..) {
            let by_owner = self.ports[egress as usize].is_some();
            self.lending.put_back(egress, half, by_owner);
        }
    }

    /// Takes receive buffers for the batch; returns how many of its frames have a fitting one, and tokens.
    pub(super) fn find_room(&mut self, batch: &mut Batch, count: usize) -> usize {
        let mut first = 0;
        let mut room = true;
        let Batch { groups, group_count, halves, rx, .. } = batch;
        for group in &mut groups[..*group_count] {
            group.first = first as u8;
            group.buffers = 0;
            room &= group.tokens >= group.bytes as i64;
            let Some(ring) = rx_ring(&mut self.ports, halves, group) else { return 0 };
            let wanted = usize::from(group.frames);
            let buffers = &mut rx[first..first + wanted];
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

    /// Puts back receive buffers that the batch's first `count` frames do not use.
    pub(super) fn give_back_buffers(&mut self, batch: &mut Batch, count: usize) {
        let Batch { groups, group_count, halves, rx, frames, .. } = batch;
        for (number, group) in groups[..*group_count].iter().enumerate() {
            let in_group = |frame: &&BatchFrame| usize::from(frame.group) == number;
            let used = match count {
                0 => 0,
                _ => frames[..count].iter().filter(in_group).count(),
            };
            let unused = &rx[usize::from(group.first)..][used..usize::from(group.buffers)];
            if !unused.is_empty()
                && let Some(ring) = rx_ring(&mut self.ports, halves, group)
            {
                ring.queue.put_back(unused);
            }
        }
    }
}

/// Returns the receiving queue of a group.
#[inline]
pub(super) fn rx_ring<'a>(
    ports: &'a mut [Option<Box<Port>>],
    halves: &'a mut [(PortIndex, Box<Lent>)],
    group: &Group,
) -> Option<&'a mut vhost::Ring> {
    let rx = match halves.get_mut(usize::from(group.half)) {
        Some((_, lent)) => &mut lent.rx,
        None => &mut ports[group.egress as usize].as_mut()?.link.rx,
    };
    let rings = rx.rings()?;
    let queue = if group.queue == ONLY { *rings.enabled.first()? } else { group.queue };
    rings.rings.get_mut(queue as usize)?.as_mut()
}
