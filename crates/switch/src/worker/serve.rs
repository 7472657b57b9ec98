//! From an egress's scheduler to its receiver.

use super::between::CHECK;
use super::departures::waited_for_rate;
use super::{Worker, budget};
use crate::link::scratch::staged;
use crate::link::{Delivery, Posted};
use crate::port::Port;
use crate::sched::{Backlog, Head, Queued, Tier};
use crate::slots::{Frame, FrameRef, NEVER};
use tidegate_evidence::DropReason;

/// Real-time frames to one receiver per loop.
const REALTIME: usize = 64;

impl Worker {
    /// Serves all egresses with work within `budget`: each first gets an equal part, so that no queue
    /// delays another's frames; `true` if any frame moved.
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
        // An egress that comes too late for this loop's budget is first in the next.
        let mut late = None;
        let mut i = 0;
        // The interrupted egress, and the rest of its part.
        let mut rest = None;
        while i < self.active.len() {
            let index = self.active[i];
            let Some(mut port) = self.ports[index as usize].take() else {
                self.active.remove(i);
                continue;
            };
            if !self.take_back_to_serve(&mut port) {
                // Another worker's batch has the half; it comes back.
                self.ports[index as usize] = Some(port);
                worked = true;
                i += 1;
                continue;
            }
            let too_late = *budget <= 0;
            let mut left = match rest.take() {
                Some((interrupted, left)) if interrupted == index => left,
                _ => part.min(*budget),
            };
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
            if self.check_realtime() && !is_empty && left > 0 {
                rest = Some((index, left));
                i -= 1;
            }
        }
        if let Some(first) = self.active.iter().position(|index| Some(*index) == late) {
            self.active.rotate_left(first);
        }
        worked
    }

    /// Delivers only frames with deadlines to a port whose buffers used up its time. Not idle: the rest is
    /// due in a later round.
    fn hold_back(&mut self, port: &mut Port) -> bool {
        self.serve(port, &mut 0);
        self.expire(port);
        true
    }

    /// Delivers frames that may go now. Looks for frames held too long only if the egress cannot continue:
    /// after a late worker or a raised limit frames leave soon.
    pub(super) fn serve(&mut self, port: &mut Port, budget: &mut i64) -> bool {
        self.scratch.waiting = port.egress.scheduler.backlog_total().frames as usize;
        if port.contract.egress.flows.is_some() {
            port.stats.rx.note_flows(port.egress.scheduler.active_flows().into());
        }
        let worked = self.deliver(port, budget);
        port.link.rx.finish();
        if port.contract.egress.flows.is_some() {
            port.stats.rx.flows_now.set(port.egress.scheduler.active_flows().into());
        }
        worked
    }

    fn deliver(&mut self, port: &mut Port, budget: &mut i64) -> bool {
        let mut worked = !port.egress.outstanding.is_empty() && self.complete(port);
        let mut realtime = REALTIME;
        loop {
            match port.egress.scheduler.head(self.now) {
                Head::Empty => return worked,
                Head::WaitUntil(at) => {
                    port.egress.rate_until = at;
                    self.wake_at(at);
                    return self.expire(port) || worked;
                }
                Head::Ready { tier, .. } if tier != Tier::RealTime && *budget <= 0 => {
                    // Not idle: the rest is due at once.
                    return true;
                }
                Head::Ready { tier, queued, part, .. } => {
                    let (most, left) = match tier {
                        Tier::RealTime => (realtime, i64::MAX),
                        _ if self.expects_realtime() => (usize::MAX, (*budget).min(CHECK)),
                        _ => (usize::MAX, *budget),
                    };
                    if most == 0 {
                        return true;
                    }
                    let gone = if tier != Tier::RealTime && port.contract.egress.flows.is_some() {
                        self.deliver_by_flow(port, &queued, part, left)
                    } else {
                        self.deliver_run(port, &queued, part, most, left)
                    };
                    let buffers = budget::scattered(self.scratch.filled);
                    self.bill.buffers += buffers;
                    *budget -= buffers;
                    let mut copies = 0;
                    if port.contract.is_uplink {
                        let own = gone.map_or(0, |gone| gone.bytes);
                        copies = budget::all_queued(port.charge_on_wire(self.now, own));
                        *budget -= copies;
                    }
                    let Some(gone) = gone else { return self.expire(port) || worked };
                    if tier == Tier::RealTime {
                        realtime -= gone.frames as usize;
                    }
                    let cost = budget::all_queued(gone);
                    self.bill.add(queued.frame.get().source, gone.frames.into(), cost + copies);
                    *budget -= cost;
                    worked = true;
                    if tier != Tier::RealTime && self.is_interrupted(cost) {
                        return true;
                    }
                }
            }
        }
    }

    /// Delivers the first frame, or the `part` of it that a wire takes at once (bytes), and those that [leave
    /// with it](Self::post_run), or drops the first; `None` if it stays first.
    #[inline]
    fn deliver_run(
        &mut self,
        port: &mut Port,
        queued: &Queued<FrameRef>,
        part: u32,
        most: usize,
        budget: i64,
    ) -> Option<Backlog> {
        if part < queued.bytes {
            let frame = queued.frame.get();
            let (what, _) = Delivery::next(frame, queued.bytes, part);
            let outcome = (!port.may_post(frame)).then_some(Posted::NoBuffers);
            return self.deliver_head(port, queued, what, outcome);
        }
        match self.post_run(port, queued, most, budget) {
            (0, outcome) => {
                let rest = Delivery::of_rest(queued.frame.get(), queued.bytes);
                self.deliver_head(port, queued, rest, outcome)
            }
            (frames, _) => Some(self.end(port, queued, frames, None)),
        }
    }

    /// Writes the first frame and up to `most` that leave with it, within `budget`. All have a deadline, or
    /// none has. Returns their number, and [the next one's result](crate::link::Rx::post_run).
    pub(super) fn post_run(
        &mut self,
        port: &mut Port,
        head: &Queued<FrameRef>,
        most: usize,
        mut budget: i64,
    ) -> (u32, Option<Posted>) {
        self.scratch.filled = 0;
        let frame = head.frame.get();
        let tried = chains_at_last_try(port, head);
        if !port.may_post(frame) || tried.is_some() && tried == self.chains_waiting(frame, port) {
            // A thousand tiny buffers that do not suffice must not be read in every loop.
            return (0, Some(Posted::NoBuffers));
        }
        let is_watched = self.watch.covers(frame.source) || self.watch.covers(port.index);
        if is_watched || head.bytes != frame.wire_bytes {
            // Alone: by way of the worker's own memory, or the rest of a super-frame.
            return (0, None);
        }
        let is_realtime = frame.is_realtime();
        let run = port.egress.scheduler.run(self.now).take(most).map_while(|queued| {
            // The rest of a frame whose flow was queued may be anywhere in the queue.
            let is_whole = queued.bytes == queued.frame.get().wire_bytes;
            let goes = budget > 0 && is_whole && is_realtime == (queued.deadline != NEVER);
            budget -= budget::queued(queued.bytes);
            goes.then(|| queued.frame.get())
        });
        port.link.rx.post_run(frame, run, &self.scratch)
    }

    /// Delivers the due part of the first frame, or drops it, after the first attempt's `outcome`, if any;
    /// `None` if it stays first.
    pub(super) fn deliver_head(
        &mut self,
        port: &mut Port,
        queued: &Queued<FrameRef>,
        what: Delivery,
        outcome: Option<Posted>,
    ) -> Option<Backlog> {
        let frame = queued.frame.get();
        let outcome = match outcome {
            Some(outcome) => outcome,
            None if self.watch.covers(frame.source) || self.watch.covers(port.index) => {
                self.deliver_watched(frame, what, port)
            }
            None => port.link.rx.post(frame, what, &mut self.scratch),
        };
        let dropped = match outcome {
            Posted::Done | Posted::Later if what.to != u32::MAX => {
                return Some(self.end_turn(port, queued, what, outcome == Posted::Later));
            }
            Posted::Done | Posted::Later => None,
            Posted::Part(payload) => return Some(self.end_part(port, queued, payload, false)),
            Posted::LaterPart(payload) => return Some(self.end_part(port, queued, payload, true)),
            Posted::Dropped(reason) => Some(reason),
            Posted::NoBuffers => {
                if port.egress.blocked_since == NEVER {
                    port.egress.blocked_since = self.now;
                }
                let chains = self.chains_waiting(frame, port);
                if chains_at_last_try(port, queued) != chains {
                    self.scratch.filled = self.scratch.filled.max(chains.map_or(0, usize::from));
                }
                port.egress.starved = chains.map(|chains| (queued.frame, queued.enqueued, chains));
                self.poll = self.poll.min(self.now + super::sleep::BLOCKED_POLL);
                return None;
            }
            Posted::Broken(error) => {
                self.fault(port, &error.to_string());
                Some(DropReason::ReceiverDown)
            }
        };
        if outcome == Posted::Later {
            self.touched.insert(port.index);
            self.note_time(frame);
            if port.contract.egress.rate.is_some() {
                let wait = waited_for_rate(queued, port.egress.rate_until, self.now);
                port.stats.note_token_wait_rx(wait, 1);
            }
            port.egress.scheduler.take(self.now);
            let blocked_since = std::mem::replace(&mut port.egress.blocked_since, NEVER);
            port.egress.outstanding.push(*queued, None, blocked_since, self.now);
            port.note_given(frame.source, self.now);
            return Some(Backlog { frames: 1, bytes: queued.bytes.into() });
        }
        if let Some(reason) = dropped
            && port.egress.scheduler.is_of_flows(self.now)
        {
            // An undelivered part does not count against the rate.
            let gone = self.drop_part(port, queued, u32::MAX, reason);
            port.egress.blocked_since = NEVER;
            return Some(gone);
        }
        Some(self.end(port, queued, 1, dropped))
    }

    /// Returns how many [chains wait](crate::link::Rx::room) for a frame; a watched port's ring may be the
    /// page that is waited for.
    pub(super) fn chains_waiting(&mut self, frame: &Frame, port: &mut Port) -> Option<u16> {
        let began = self.watch.begin(port.index);
        let chains = port.link.rx.room(frame);
        self.watch.end(port.index, began);
        chains
    }

    /// Delivers by way of the worker's own memory, so that a wait for a page concerns one port.
    #[cold]
    fn deliver_watched(&mut self, frame: &Frame, what: Delivery, port: &mut Port) -> Posted {
        if port.link.rx.lends_memory() {
            // The worker's own memory would hold the next frame before the link is done with this one.
            let began = self.watch.begin(frame.source);
            let outcome = port.link.rx.post(frame, what, &mut self.scratch);
            self.watch.end(frame.source, began);
            return outcome;
        }
        let began = self.watch.begin(frame.source);
        let staged = staged(frame, what, self.watch.buffer());
        self.watch.end(frame.source, began);
        let began = self.watch.begin(port.index);
        let (frame, what) = staged.as_ref().map_or((frame, what), |part| (part, Delivery::WHOLE));
        let outcome = port.link.rx.post(frame, what, &mut self.scratch);
        self.watch.end(port.index, began);
        outcome
    }
}

/// Returns how many chains there were when an egress's first frame found too few, if it did.
#[inline]
fn chains_at_last_try(port: &Port, head: &Queued<FrameRef>) -> Option<u16> {
    let (frame, enqueued, chains) = port.egress.starved?;
    ((frame, enqueued) == (head.frame, head.enqueued)).then_some(chains)
}

#[cfg(test)]
mod tests {
    use crate::sched::EgressConfig;
    use crate::slots::{NEVER, Slots};
    use crate::worker::{budget, testing};
    use tidegate_contract::Rate;

    #[test]
    fn every_receiver_has_its_turn() {
        let (mut worker, _handle) = testing::worker();
        (0..4).for_each(|index| testing::add_port(&mut worker, index));
        let mut slots = Slots::new(64, 0, 0);
        let mut served = [0; 4];
        // Two receivers of super-frames use up a loop's budget and empty their queues; the third has a
        // queue as well.
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
            for fate in worker.fates.drain() {
                served[usize::from(fate.egress)] += 1;
                slots.give(fate.frame);
            }
        }
        assert_eq!(served[2], 1, "{served:?}");
        for egress in 1..4 {
            worker.clear_egress(egress);
        }
        worker.fates.drain().for_each(|fate| slots.give(fate.frame));
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
        worker.fates.drain().for_each(|fate| slots.give(fate.frame));
    }
}
