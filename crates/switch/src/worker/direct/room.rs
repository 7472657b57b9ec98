//! Where a batch goes: receiving queues in front of which nothing waits, and their buffers.

use super::batch::{Batch, Group, ONLY, Sent};
use super::copy::HEAD;
use crate::fdb::PortIndex;
use crate::frame::parse;
use crate::link::{Rx, vhost};
use crate::port::Port;
use crate::worker::Worker;
use crate::worker::inspect::flow_hash;
use tidegate_contract::Discipline;

impl Worker {
    /// The group of a frame to `egress`, where nothing is in the way of frames; a new one if need be.
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
    pub(super) fn find_room(&mut self, batch: &mut Batch, count: usize) -> usize {
        let mut first = 0;
        let mut room = true;
        for group in &mut batch.groups[..batch.group_count] {
            group.first = first as u8;
            group.buffers = 0;
            room &= group.tokens >= group.bytes as i64;
            let Some(to) = &mut self.ports[group.egress as usize] else { return 0 };
            let Some(ring) = rx_ring(&mut to.link.rx, group.queue) else { return 0 };
            let wanted = usize::from(group.frames);
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
    pub(super) fn give_back_buffers(&mut self, batch: &Batch, count: usize) {
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
}

/// The receiving queue of a group.
#[inline]
pub(super) fn rx_ring(rx: &mut Rx, queue: u16) -> Option<&mut vhost::Ring> {
    let rings = rx.rings()?;
    let queue = if queue == ONLY { *rings.enabled.first()? } else { queue };
    rings.rings.get_mut(queue as usize)?.as_mut()
}
