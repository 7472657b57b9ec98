//! What became of a frame, back at the worker that owns its source: the
//! descriptor returns to the guest, the delay is recorded, a miss gets its cause.

use super::Worker;
use super::crossing::Fate;
use super::fates::{Group, Home};
use crate::fdb::PortIndex;
use crate::port::buffers::BufferIndex;
use crate::port::{Frame, NEVER, Owner, Port};
use crate::stats::layout::{MISSES, NOBODY, VnicSlot};
use crate::stats::{DropReason, MissCause};

impl Worker {
    /// Settles everything that ended in this loop; `true` where anything did.
    pub(super) fn settle(&mut self) -> bool {
        let mut fates = std::mem::take(&mut self.fates);
        for group in fates.groups() {
            if self.settle_group(&group) {
                continue;
            }
            for mut fate in group.fates() {
                if let Some(worker) = self.settle_here(&mut fate)
                    && let Some((peer, _)) = &mut self.peers[worker]
                {
                    peer.settle(fate);
                    self.to_ring |= 1 << worker;
                }
            }
        }
        let worked = fates.len() > 0;
        // Its memory is kept, so that settling allocates nothing.
        fates.clear();
        self.fates = fates;
        worked
    }

    /// Settles frames that are given back together; `false` where they cannot be, or their source is not here.
    fn settle_group(&mut self, group: &Group) -> bool {
        let Some(Home { source, .. }) = group.home else { return false };
        let Some(port) = self.ports[source as usize].as_mut() else { return false };
        for (fate, frames) in group.runs() {
            let in_flight = &mut port.in_flight_to[fate.egress as usize];
            *in_flight = in_flight.saturating_sub(frames.len() as u32);
            for alike in frames.chunk_by(|a, b| a.get().started == b.get().started && !b.get().is_realtime())
            {
                account(port, alike[0].get(), fate, alike.len() as u64);
            }
        }
        port.relieving = NEVER;
        self.touched.insert(source);
        let began = self.watch.begin(source);
        port.link.tx.give_back_all(group.frames.iter().copied());
        self.watch.end(source, began);
        true
    }

    /// Settles a frame whose source is here, or tells which worker does. A source may have moved since: then the
    /// worker that it left passes the fate on.
    fn settle_here(&mut self, fate: &mut Fate) -> Option<usize> {
        let frame = fate.frame.get();
        if let Owner::Buffer { buffer } = frame.owner {
            return self.settle_copy(fate, buffer);
        }
        let Some(port) = self.ports[frame.source as usize].as_mut() else {
            return self.settle_elsewhere(fate);
        };
        let in_flight = &mut port.in_flight_to[fate.egress as usize];
        *in_flight = in_flight.saturating_sub(1);
        port.relieving = NEVER;
        self.touched.insert(frame.source);
        account(port, frame, fate, 1);
        let (source, began) = (frame.source, self.watch.begin(frame.source));
        port.link.tx.give_back(fate.frame);
        self.watch.end(source, began);
        None
    }

    /// A flooded copy: counted where its source is, then given back to the pool of the worker that made it, where it
    /// may outlive its port.
    fn settle_copy(&mut self, fate: &mut Fate, buffer: BufferIndex) -> Option<usize> {
        let frame = fate.frame.get();
        // A port outside the VLAN is not meant: nothing is lost where it gets no copy.
        let dropped = fate.dropped.take().filter(|why| *why != DropReason::Vlan);
        if let Some(reason) = dropped {
            if let Some(port) = &self.ports[frame.source as usize] {
                port.count_tx_drop(reason);
            } else if self.infos[frame.source as usize].is_some() {
                fate.dropped = dropped;
                return self.settle_elsewhere(fate);
            }
        }
        if frame.worker != self.id {
            return Some(usize::from(frame.worker));
        }
        self.flood.settle(fate.frame, buffer);
        None
    }

    /// The worker of a frame's source, which is not here.
    #[inline(never)]
    fn settle_elsewhere(&mut self, fate: &Fate) -> Option<usize> {
        let frame = fate.frame.get();
        let worker = self.infos[frame.source as usize].as_ref().map_or(frame.worker, |info| info.worker);
        if worker != self.id {
            return Some(usize::from(worker));
        }
        let kept = self.keep_fate(*fate);
        debug_assert!(kept, "a frame outlived its port");
        None
    }
}

/// Accounts for so many frames that started together; for one that has a deadline.
#[inline]
fn account(port: &Port, frame: &Frame, fate: &Fate, frames: u64) {
    let delay = fate.at.saturating_sub(frame.started);
    if let Some(reason) = fate.dropped {
        port.count_tx_drops(reason, frames);
    } else {
        port.stats.delay.record_many(delay, frames);
        if frame.is_realtime() {
            port.stats.realtime_delivered.add(frames);
            port.stats.realtime_worst.raise(delay);
        }
    }
    if frame.is_realtime() && (fate.dropped.is_some() || fate.at > frame.deadline) {
        note_miss(port, frame, fate, delay);
    }
}

/// Where the time went: each part of Tr - Ts has one owner.
struct Waits {
    worker: u64,
    queue: u64,
    buffers: u64,
}

impl Waits {
    fn of(frame: &Frame, fate: &Fate) -> Self {
        let before = fate.queued.saturating_sub(frame.started);
        let after = fate.at.saturating_sub(fate.queued.max(frame.started));
        let buffers = fate.buffers.min(after);
        let rest = after - buffers;
        // A frame that was behind no other and had buffers waited for the worker alone.
        match fate.behind {
            Some(_) => Self { worker: before, queue: rest, buffers },
            None => Self { worker: before + rest, queue: 0, buffers },
        }
    }

    fn cause(&self, fate: &Fate) -> MissCause {
        let longest = self.worker.max(self.queue).max(self.buffers);
        match fate.dropped {
            Some(DropReason::QueueFull | DropReason::RingShare) => MissCause::Queue,
            Some(DropReason::NoBuffers) => MissCause::Buffers,
            Some(DropReason::WorkerBehind) => MissCause::Worker,
            Some(reason) if reason != DropReason::Late && reason != DropReason::HeldTooLong => {
                MissCause::Dropped
            }
            _ if longest == self.buffers => MissCause::Buffers,
            _ if longest == self.queue => MissCause::Queue,
            _ => MissCause::Worker,
        }
    }
}

fn note_miss(port: &Port, frame: &Frame, fate: &Fate, delay: u64) {
    let waits = Waits::of(frame, fate);
    let miss = Miss {
        egress: fate.egress,
        cause: waits.cause(fate),
        dropped: fate.dropped,
        behind: fate.behind,
        delay,
        deadline: frame.deadline - frame.started,
        tokens: frame.waited_for_tokens,
        waits,
    };
    miss.record(port.stats);
}

/// A deadline that was missed, and why.
pub(super) struct Miss {
    egress: PortIndex,
    cause: MissCause,
    dropped: Option<DropReason>,
    behind: Option<PortIndex>,
    delay: u64,
    deadline: u64,
    tokens: u64,
    waits: Waits,
}

impl Miss {
    /// Of a frame that waited for nothing but its worker.
    pub(super) fn of_worker(egress: PortIndex, delay: u64, deadline: u64, tokens: u64) -> Self {
        let waits = Waits { worker: delay, queue: 0, buffers: 0 };
        let cause = MissCause::Worker;
        Self { egress, cause, dropped: None, behind: None, delay, deadline, tokens, waits }
    }

    #[cold]
    pub(super) fn record(&self, stats: &VnicSlot) {
        stats.misses[self.cause as usize].add(1);
        let number = stats.misses_seen.get() + 1;
        let record = &stats.miss_log[(number - 1) as usize % MISSES];
        record.number.set(0);
        // Not the time of day, which may jump: readers make that of it.
        record.at.set(super::clock());
        record.egress.set(u64::from(self.egress));
        record.cause.set(self.cause as u64);
        record.dropped.set(self.dropped.map_or(NOBODY, |r| r as u64));
        record.behind.set(self.behind.map_or(NOBODY, u64::from));
        record.delay.set(self.delay);
        record.deadline.set(self.deadline);
        record.tokens.set(self.tokens);
        record.worker.set(self.waits.worker);
        record.queue.set(self.waits.queue);
        record.buffers.set(self.waits.buffers);
        record.number.set(number);
        stats.misses_seen.set(number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::FrameRef;

    fn waits(worker: u64, queue: u64, buffers: u64) -> Waits {
        Waits { worker, queue, buffers }
    }

    fn fate(dropped: Option<DropReason>, frame: FrameRef) -> Fate {
        Fate { frame, egress: 1, at: 0, dropped, queued: 0, buffers: 0, behind: None }
    }

    #[test]
    fn the_longest_wait_is_the_cause() {
        let mut slots = crate::port::Slots::new(1, 0, 0);
        let frame = slots.take().unwrap();
        let late = fate(None, frame);
        assert_eq!(waits(5, 2, 1).cause(&late), MissCause::Worker);
        assert_eq!(waits(1, 5, 2).cause(&late), MissCause::Queue);
        assert_eq!(waits(1, 2, 5).cause(&late), MissCause::Buffers);
        assert_eq!(waits(9, 0, 0).cause(&fate(Some(DropReason::QueueFull), frame)), MissCause::Queue);
        assert_eq!(waits(9, 0, 0).cause(&fate(Some(DropReason::ReceiverDown), frame)), MissCause::Dropped);
        assert_eq!(waits(0, 0, 9).cause(&fate(Some(DropReason::Late), frame)), MissCause::Buffers);
        slots.give(frame);
    }

    #[test]
    fn every_nanosecond_has_one_owner() {
        let mut slots = crate::port::Slots::new(1, 0, 0);
        let reference = slots.take().unwrap();
        let frame = reference.get_mut();
        frame.started = 100;
        let fate = Fate { queued: 150, at: 400, buffers: 70, behind: Some(2), ..fate(None, reference) };
        let waits = Waits::of(frame, &fate);
        assert_eq!((waits.worker, waits.queue, waits.buffers), (50, 180, 70));
        let alone = Waits::of(frame, &Fate { behind: None, ..fate });
        assert_eq!((alone.worker, alone.queue, alone.buffers), (230, 0, 70));
        slots.give(reference);
    }
}
