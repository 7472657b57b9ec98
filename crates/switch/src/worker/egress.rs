//! From an egress's scheduler to its receiver.

use super::crossing::Fate;
use super::send::lost;
use super::{Worker, budget, clock};
use crate::capture::Direction;
use crate::fdb::PortIndex;
use crate::link::Posted;
use crate::link::scratch::staged;
use crate::port::{Egress, Frame, FrameRef, NEVER, Port};
use crate::sched::{Full, Head, Queued, Scheduler, Tier};
use crate::stats::DropReason;

/// Real-time frames delivered to one receiver per loop.
const REALTIME: usize = 64;

impl Worker {
    /// Queues frames of one source at an own egress.
    pub(super) fn enqueue(&mut self, egress: PortIndex, frames: &[FrameRef]) {
        if self.arrival.is_some() {
            return frames.iter().for_each(|frame| {
                if !self.set_aside(egress, *frame) {
                    self.enqueue_all(egress, &[*frame]);
                }
            });
        }
        self.enqueue_all(egress, frames);
    }

    fn enqueue_all(&mut self, egress: PortIndex, frames: &[FrameRef]) {
        let now = self.now;
        let Some(source) = frames.first().map(|first| first.get().source) else { return };
        let (Some(port), Some(info)) = (&mut self.ports[egress as usize], &self.infos[source as usize])
        else {
            return frames.iter().for_each(|frame| self.drop_frame(*frame, egress, DropReason::ReceiverDown));
        };
        let queue = &mut port.egress;
        let mut known = queue.scheduler.knows(source);
        for &reference in frames {
            let frame = reference.get();
            let may_receive = |vid| port.contract.policy.may_receive_tagged(vid);
            let reason = if frame.headers.vid().is_some_and(|vid| !may_receive(vid)) {
                DropReason::Vlan
            } else if frame.segment != port.segment {
                // The port moved, or is another by now, since the frame was sent here.
                DropReason::NoReceiver
            } else {
                if !std::mem::replace(&mut known, true) {
                    let config = info.source_config(egress, &port.contract.egress);
                    queue.scheduler.set_source(now, source, config);
                }
                let queued = Queued {
                    frame: reference,
                    bytes: frame.wire_bytes,
                    deadline: frame.deadline,
                    enqueued: now,
                };
                match queue.scheduler.enqueue(now, source, queued) {
                    Ok(()) => {
                        if !std::mem::replace(&mut queue.active, true) {
                            self.active.push(egress);
                        }
                        continue;
                    }
                    Err(_) => full(queue, now),
                }
            };
            self.fates.push(lost(reference, egress, reason, now));
        }
    }

    /// Makes room for sources with half their ring in flight: drops their newest frame, or the oldest
    /// that holds others back, where the receiver is what it waits for. Where it waits for this
    /// worker, it is on its way.
    pub(super) fn relieve(&mut self) -> bool {
        let before = self.fates.len();
        let mut relief = std::mem::take(&mut self.relief);
        for (egress, source, oldest) in relief.drain(..) {
            let now = self.now;
            let Some(port) = &mut self.ports[egress as usize] else { continue };
            if oldest && port.egress.outstanding.has_any_of(source) {
                // Its link holds that one.
                continue;
            }
            let drop = |s: &mut Scheduler<_>| if oldest { s.drop_head(source) } else { s.drop_tail(source) };
            if is_stuck(&mut port.egress, now)
                && let Some(queued) = drop(&mut port.egress.scheduler)
            {
                self.drop_frame(queued.frame, egress, DropReason::RingShare);
            }
        }
        self.relief = relief;
        before != self.fates.len()
    }

    /// Whether a super-frame would be dropped for want of room at an own egress that has not come to
    /// its turn: a worker that copies as fast as it can lets it wait in the sender's ring instead.
    pub(super) fn is_behind(&mut self, source: PortIndex, egress: PortIndex, frame: &Frame) -> bool {
        let now = self.now;
        let Some(port) = &mut self.ports[egress as usize] else { return false };
        let room = port.egress.scheduler.accepts(source, u64::from(frame.wire_bytes));
        // What an empty queue does not take has no turn to wait for.
        !matches!(room, Ok(()) | Err(Full::NoSource))
            && port.egress.blocked_since == NEVER
            && matches!(port.egress.scheduler.head(now), Head::Ready { .. })
    }

    /// What waits at own egresses and could leave now, as cost; not counted further than matters.
    pub(super) fn waiting(&self) -> i64 {
        let mut waiting = 0;
        for index in &self.active {
            let Some(Port { egress, .. }) = self.ports[*index as usize].as_deref() else { continue };
            if egress.blocked_since == NEVER && !self.turns.is_held(*index) {
                waiting +=
                    budget::waiting(egress.scheduler.backlog_total(), egress.scheduler.tokens(self.now));
            }
            if waiting >= budget::QUANTUM {
                break;
            }
        }
        waiting
    }

    /// Serves all egresses with work, while `budget` lasts: each has an equal part of it first, so that the queue of one
    /// does not keep another's frames waiting; `true` where anything moved.
    pub(super) fn egress(&mut self, mut budget: i64) -> bool {
        let mut worked = false;
        if self.active.len() > 1 {
            let part = budget / self.active.len() as i64;
            worked |= self.serve_all(&mut budget, part);
        }
        let rest = budget;
        worked | (!self.active.is_empty() && rest > 0 && self.serve_all(&mut budget, rest))
    }

    /// Serves all egresses with work, each up to `part` of `budget`.
    fn serve_all(&mut self, budget: &mut i64, part: i64) -> bool {
        let mut worked = false;
        // Who came too late for this loop's budget comes first in the next.
        let mut late = None;
        let mut i = 0;
        while i < self.active.len() {
            let index = self.active[i];
            let Some(mut port) = self.ports[index as usize].take() else {
                self.active.remove(i);
                continue;
            };
            if !self.lending.take_back(&mut port) {
                // It is back after a batch of another worker.
                self.ports[index as usize] = Some(port);
                worked = true;
                i += 1;
                continue;
            }
            let too_late = *budget <= 0;
            let mut left = part.min(*budget);
            let before = left;
            worked |= match self.turns.holds(index) {
                false => self.serve(&mut port, &mut left),
                true => self.hold_back(&mut port),
            };
            *budget -= before - left;
            self.settle_bill(&port);
            let is_empty = port.egress.scheduler.backlog_total().frames == 0;
            if is_empty {
                port.egress.blocked_since = NEVER;
            }
            if is_empty && port.egress.outstanding.is_empty() {
                port.egress.active = false;
                self.active.remove(i);
            } else {
                late = late.or(too_late.then_some(index));
                i += 1;
            }
            self.ports[index as usize] = Some(port);
        }
        if let Some(first) = self.active.iter().position(|index| Some(*index) == late) {
            self.active.rotate_left(first);
        }
        worked
    }

    /// Delivers to a port whose buffers took its time only what has a deadline. Not idle: the rest is due in a round to come.
    fn hold_back(&mut self, port: &mut Port) -> bool {
        self.serve(port, &mut 0);
        self.expire(port);
        true
    }

    /// Delivers what may go now. Only what cannot go on is looked at for frames held too long:
    /// what a late worker or a raised limit left behind is on its way.
    fn serve(&mut self, port: &mut Port, budget: &mut i64) -> bool {
        self.scratch.waiting = port.egress.scheduler.backlog_total().frames as usize;
        let worked = self.deliver(port, budget);
        port.link.rx.finish();
        worked
    }

    fn deliver(&mut self, port: &mut Port, budget: &mut i64) -> bool {
        let mut worked = !port.egress.outstanding.is_empty() && self.complete(port);
        let mut realtime = 0;
        loop {
            match port.egress.scheduler.head(self.now) {
                Head::Empty => return worked,
                Head::WaitUntil(at) => {
                    self.wake_at(at);
                    return self.expire(port) || worked;
                }
                Head::Ready { tier, .. } if tier != Tier::RealTime && *budget <= 0 => {
                    // Not idle: the rest is due at once.
                    return true;
                }
                Head::Ready { tier, queued, .. } => {
                    if tier == Tier::RealTime {
                        realtime += 1;
                        if realtime > REALTIME {
                            return true;
                        }
                    }
                    let delivered = self.deliver_head(port, queued);
                    let buffers = budget::scattered(self.scratch.filled);
                    self.bill.buffers += buffers;
                    *budget -= buffers;
                    if !delivered {
                        return self.expire(port) || worked;
                    }
                    let cost = budget::queued(queued.bytes);
                    self.bill.add(queued.frame.get().source, cost);
                    *budget -= cost;
                    worked = true;
                }
            }
        }
    }

    /// Delivers or drops the first frame; `false` where it stays first.
    fn deliver_head(&mut self, port: &mut Port, queued: Queued<FrameRef>) -> bool {
        let frame = queued.frame.get();
        let tried = |(tried, enqueued, chains): (FrameRef, u64, u16)| {
            ((tried, enqueued) == (queued.frame, queued.enqueued)).then_some(chains)
        };
        let tried = port.egress.starved.and_then(tried);
        // A thousand tiny buffers that are too few are not to be looked through in every loop.
        self.scratch.filled = 0;
        let is_known = tried.is_some() && tried == self.chains_waiting(frame, port);
        let outcome = match is_known || !port.may_post(queued.bytes) {
            true => Posted::NoBuffers,
            false if self.watch.covers(frame.source) || self.watch.covers(port.index) => {
                self.deliver_watched(frame, port)
            }
            false => port.link.rx.post(frame, &mut self.scratch),
        };
        let is_held = outcome == Posted::Later;
        let dropped = match outcome {
            Posted::Done | Posted::Later => None,
            Posted::Dropped(reason) => Some(reason),
            Posted::NoBuffers => {
                if port.egress.blocked_since == NEVER {
                    port.egress.blocked_since = self.now;
                }
                let chains = self.chains_waiting(frame, port);
                if !is_known {
                    self.scratch.filled = self.scratch.filled.max(chains.map_or(0, usize::from));
                }
                port.egress.starved = chains.map(|chains| (queued.frame, queued.enqueued, chains));
                self.poll = self.poll.min(self.now + super::sleep::BLOCKED_POLL);
                return false;
            }
            Posted::Broken(error) => {
                self.fault(port, &error.to_string());
                Some(DropReason::ReceiverDown)
            }
        };
        self.touched.insert(port.index);
        port.egress.scheduler.take(self.now);
        if frame.is_realtime() {
            // The others are timed once a loop; a deadline deserves the exact time.
            self.now = clock();
        }
        let blocked_since = std::mem::replace(&mut port.egress.blocked_since, NEVER);
        match is_held {
            true => port.egress.outstanding.push(queued, blocked_since, self.now),
            false => self.conclude(port, &queued, blocked_since, dropped),
        }
        true
    }

    /// What became of a frame: counted at its receiver, and on its way back to its source.
    #[inline]
    pub(super) fn conclude(
        &mut self,
        port: &mut Port,
        queued: &Queued<FrameRef>,
        blocked_since: u64,
        dropped: Option<DropReason>,
    ) {
        let frame = queued.frame.get();
        match dropped {
            None => {
                port.stats.rx.frames.add(1);
                port.stats.rx.wire_frames.add(u64::from(frame.wire_frames));
                port.stats.rx.wire_bytes.add(u64::from(frame.wire_bytes));
                if let Some(capture) = &mut port.capture {
                    capture.record(frame, Direction::ToVm);
                }
            }
            Some(reason) => port.stats.rx.dropped[reason as usize].add(1),
        }
        self.fates.push(fate(port.index, port.egress.last, blocked_since, queued, self.now, dropped));
        port.egress.last = (frame.source, self.now);
    }

    /// How many [chains wait](crate::link::Rx::room) where a frame would go: of a watched port, a page of its ring may
    /// be what is waited for.
    pub(super) fn chains_waiting(&mut self, frame: &Frame, port: &mut Port) -> Option<u16> {
        let began = self.watch.begin(port.index);
        let chains = port.link.rx.room(frame);
        self.watch.end(port.index, began);
        chains
    }

    /// Delivers by way of our own memory, so that what waits for a page waits for one port's.
    #[cold]
    fn deliver_watched(&mut self, frame: &Frame, port: &mut Port) -> Posted {
        if port.link.rx.depth() > 0 {
            // Our own memory has the next frame before the link is done with this one.
            let began = self.watch.begin(frame.source);
            let outcome = port.link.rx.post(frame, &mut self.scratch);
            self.watch.end(frame.source, began);
            return outcome;
        }
        let began = self.watch.begin(frame.source);
        let staged = staged(frame, self.watch.buffer());
        self.watch.end(frame.source, began);
        let began = self.watch.begin(port.index);
        let outcome = port.link.rx.post(staged.as_ref().unwrap_or(frame), &mut self.scratch);
        self.watch.end(port.index, began);
        outcome
    }

    /// Drops what was held as long as it may be.
    fn expire(&mut self, port: &mut Port) -> bool {
        let now = self.now;
        let (index, stats) = (port.index, port.stats);
        let Egress { scheduler, blocked_since, last, .. } = &mut port.egress;
        let before = self.fates.len();
        scheduler.expire(now, port.contract.hold, |_, queued: Queued<FrameRef>| {
            let late = queued.frame.get().is_realtime();
            let reason = if late { DropReason::Late } else { DropReason::HeldTooLong };
            stats.rx.dropped[reason as usize].add(1);
            self.fates.push(fate(index, *last, *blocked_since, &queued, now, Some(reason)));
        });
        before != self.fates.len()
    }
}

/// What the queue of an egress waits for that has no room for a frame. A frame that may leave now
/// says nothing about a queue at its rate, one is always about to; a rate that goes unused does.
fn full(egress: &mut Egress, now: u64) -> DropReason {
    match egress.scheduler.head(now) {
        _ if egress.blocked_since != NEVER => DropReason::NoBuffers,
        Head::Ready { .. } if egress.scheduler.is_unlimited(now) => DropReason::WorkerBehind,
        Head::Ready { .. } | Head::WaitUntil(_) | Head::Empty => DropReason::QueueFull,
    }
}

/// Whether it is the receiver or its rate that an egress waits for, not this worker.
fn is_stuck(egress: &mut Egress, now: u64) -> bool {
    egress.blocked_since != NEVER || matches!(egress.scheduler.head(now), Head::WaitUntil(_))
}

/// What became of a frame, with what its egress knows of its waiting.
fn fate(
    egress: PortIndex,
    (source, left): (PortIndex, u64),
    blocked_since: u64,
    queued: &Queued<FrameRef>,
    at: u64,
    dropped: Option<DropReason>,
) -> Fate {
    let blocked =
        if blocked_since == NEVER { 0 } else { at.saturating_sub(blocked_since.max(queued.enqueued)) };
    Fate {
        frame: queued.frame,
        egress,
        at,
        dropped,
        queued: queued.enqueued,
        buffers: blocked,
        behind: (left > 0 && left >= queued.enqueued).then_some(source),
    }
}

#[cfg(test)]
mod tests {
    use super::{DropReason, NEVER};
    use crate::fdb::SegmentIndex;
    use crate::port::Slots;
    use crate::sched::EgressConfig;
    use crate::worker::{budget, testing};
    use tidegate_contract::Rate;

    #[test]
    fn a_full_queue_says_what_it_waits_for() {
        use super::full;
        let (mut worker, _handle) = testing::worker();
        for (index, keys) in [(0, ""), (1, "rx = { max = \"8mbit\", burst = \"2kB\" }")] {
            let info = testing::add_port_with(&mut worker, index, keys);
            worker.set_info(index, Some(info));
        }
        let mut slots = Slots::new(2, 0, 0);
        let frame = slots.take().unwrap();
        frame.get_mut().wire_bytes = 1000;
        worker.enqueue(1, &[frame]);
        let now = worker.now;
        let port = worker.ports[1].as_mut().unwrap();
        assert_eq!(full(&mut port.egress, now), DropReason::WorkerBehind, "it could leave");
        port.egress.blocked_since = now;
        assert_eq!(full(&mut port.egress, now), DropReason::NoBuffers);
        port.egress.blocked_since = NEVER;
        port.egress.scheduler.charge(now, 1000);
        assert_eq!(full(&mut port.egress, now), DropReason::QueueFull, "tokens for one frame");
        port.egress.scheduler.charge(now, 1000);
        assert_eq!(full(&mut port.egress, now), DropReason::QueueFull, "no tokens");
        let refilled = now + 2_000_000;
        assert_eq!(full(&mut port.egress, refilled), DropReason::WorkerBehind, "a burst that nothing uses");
        worker.clear_egress(1);
        worker.fates.drain(..).for_each(|fate| slots.give(fate.frame));
    }

    #[test]
    fn every_receiver_has_its_turn() {
        let (mut worker, _handle) = testing::worker();
        (0..4).for_each(|index| testing::add_port(&mut worker, index));
        let mut slots = Slots::new(64, 0, 0);
        let mut served = [0; 4];
        // Two receivers of super-frames use a loop's budget up and empty their queues by that; the
        // third has a queue as well.
        for _ in 0..12 {
            for egress in [1, 2, 3] {
                if egress != 2 || served[2] == 0 {
                    let frame = slots.take().unwrap();
                    frame.get_mut().wire_bytes = 65_536;
                    if worker.ports[egress].as_ref().unwrap().egress.active {
                        slots.give(frame);
                    } else {
                        worker.enqueue(egress as u16, &[frame]);
                    }
                }
            }
            worker.egress(budget::QUANTUM);
            for fate in worker.fates.drain(..) {
                served[usize::from(fate.egress)] += 1;
                slots.give(fate.frame);
            }
        }
        assert_eq!(served[2], 1, "{served:?}");
        for egress in 1..4 {
            worker.clear_egress(egress);
        }
        worker.fates.drain(..).for_each(|fate| slots.give(fate.frame));
    }

    #[test]
    fn a_frame_stays_in_its_segment() {
        let (mut worker, _handle) = testing::worker();
        (0..2).for_each(|index| testing::add_port(&mut worker, index));
        let mut slots = Slots::new(2, 0, 0);
        // A link may bring frames of many segments: the frame's counts, not its port's.
        for (segment, dropped) in [(0, None), (5, Some(DropReason::NoReceiver))] {
            let frame = slots.take().unwrap();
            frame.get_mut().segment = SegmentIndex(segment);
            worker.enqueue(1, &[frame]);
            assert_eq!(worker.fates.last().and_then(|fate| fate.dropped), dropped);
        }
        worker.clear_egress(1);
        worker.fates.drain(..).for_each(|fate| slots.give(fate.frame));
    }

    #[test]
    fn real_time_frames_wait_for_a_wire() {
        let (mut worker, _handle) = testing::worker();
        testing::add_port(&mut worker, 1);
        let mut info = testing::add_port_with(&mut worker, 0, "");
        info.deadline = Some(NEVER / 4);
        info.to.insert(1);
        worker.set_info(0, Some(info));
        // A frame a minute.
        let wire = EgressConfig::physical(Rate::from_bits(8_000 / 60).unwrap(), 1000, 0, u64::MAX);
        let begin = worker.now;
        worker.ports[1].as_mut().unwrap().egress.scheduler.reconfigure(begin, wire);
        let mut slots = Slots::new(2, 0, 0);
        for _ in 0..2 {
            let frame = slots.take().unwrap();
            (frame.get_mut().wire_bytes, frame.get_mut().deadline) = (1000, begin + NEVER / 4);
            worker.enqueue(1, &[frame]);
        }
        for (seconds, gone) in [(0, 1), (31, 1), (62, 2)] {
            worker.now = begin + seconds * 1_000_000_000;
            worker.egress(budget::QUANTUM);
            assert_eq!(worker.fates.len(), gone, "after {seconds} s");
        }
        worker.fates.drain(..).for_each(|fate| slots.give(fate.frame));
    }
}
