//! Copies a batch's frames into their buffers, and updates the accounts of both ends.

use super::batch::{Batch, BatchArrival, BatchFrame, Group, HOME};
use super::note_tokens;
use super::room::rx_ring;
use crate::clock::clock;
use crate::link::vhost::copy::write;
use crate::port::Port;
use crate::slots::NEVER;
use crate::worker::Worker;
use crate::worker::missed::{Certainty, DelayOf, Miss};

impl Worker {
    /// Copies the batch's first `count` frames into their buffers, and accounts for them; returns their
    /// bytes.
    pub(super) fn carry(
        &mut self,
        port: &mut Port,
        pair: usize,
        batch: &mut Batch,
        count: usize,
        header_len: usize,
    ) -> u64 {
        let Batch { tx, rx, heads, frames, groups, group_count, halves, together, arrivals, .. } = batch;
        let (tx, frames) = (&tx[..count], &frames[..count]);
        let mut total = 0;
        for (number, group) in (0..).zip(&mut groups[..*group_count]) {
            (group.frames, group.bytes) = (0, 0);
            let receiver_header = group.receiver.header_len;
            let Some(ring) = rx_ring(&mut self.ports, halves, group) else { continue };
            let buffers = &rx[usize::from(group.first)..];
            let of_group = |frame: &&BatchFrame| frame.group == number;
            for (i, frame) in frames.iter().enumerate().filter(|(_, frame)| of_group(frame)) {
                let buffer = &buffers[usize::from(frame.rank)];
                // SAFETY: both buffers were translated in memory that stays mapped while this worker has
                // their rings: `header_len + len` bytes in the sender's; the receiver's has room for its
                // header and `len` bytes.
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
        let home = groups[..*group_count].iter().filter(|group| group.half == HOME);
        home.for_each(|group| self.touched.insert(group.egress));
        self.now = clock();
        note_tokens(port, frames, arrivals, 0, *together);
        let stats = port.stats;
        stats.tx.frames.add(count as u64);
        stats.tx.wire_frames.add(count as u64);
        stats.tx.wire_bytes.add(total);
        if *together && arrivals.together {
            let started = frames[0].started;
            stats.note_delay(started, arrivals.first.started_by(started), self.now, count as u64);
        } else {
            for (i, frame) in frames.iter().enumerate() {
                stats.note_delay(frame.started, arrivals.of(i).started_by(frame.started), self.now, 1);
            }
        }
        for group in groups[..*group_count].iter().filter(|group| group.frames > 0) {
            port.talk.note(group.egress, group.bytes, group.frames.into());
            if let Some((_, lent)) = halves.get_mut(usize::from(group.half)) {
                lent.note(port.index, group.frames.into(), group.bytes, self.now);
                continue;
            }
            let Some(to) = &mut self.ports[group.egress as usize] else { continue };
            to.stats.rx.frames.add(u64::from(group.frames));
            to.stats.rx.wire_frames.add(u64::from(group.frames));
            to.stats.rx.wire_bytes.add(group.bytes);
            if to.contract.egress.rate.is_some() {
                to.egress.scheduler.charge(self.now, group.bytes);
                to.stats.note_token_wait_rx(0, group.frames.into());
            }
            to.egress.last_sent = (port.index, self.now);
            to.egress.blocked_since = NEVER;
        }
        if port.contract.deadline.is_some() {
            self.account_deadlines(port, frames, &groups[..*group_count], arrivals);
        }
        total
    }

    /// Accounts for frames just sent under a deadline.
    fn account_deadlines(
        &mut self,
        port: &Port,
        frames: &[BatchFrame],
        groups: &[Group],
        arrivals: &BatchArrival,
    ) {
        for (i, frame) in frames.iter().enumerate() {
            let group = &groups[usize::from(frame.group)];
            let Some(deadline) = group.deadline else { continue };
            let (started, arrival) = (frame.started, arrivals.of(i));
            let delay = DelayOf {
                at: self.now,
                started,
                started_by: arrival.started_by(started),
                slept: arrival.slept_before(started),
            };
            port.stats.note_realtime(delay.most(), delay.least(), 1);
            if let Some(certainty) = delay.certainty(deadline) {
                let tokens = started.saturating_sub(arrival.earliest);
                Miss::of_worker(group.egress, delay, deadline, tokens).record(port, certainty, self.id);
                if certainty != Certainty::Asleep {
                    self.loops.late(started);
                }
            }
        }
    }
}
