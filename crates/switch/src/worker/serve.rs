//! From an egress's scheduler to its receiver.

use super::between::CHECK;
use super::crossing::Fate;
use super::outstanding::end_rest;
use super::{Worker, budget, parts};
use crate::clock::clock;
use crate::fdb::PortIndex;
use crate::link::delivery::wire_frames_left;
use crate::link::scratch::staged;
use crate::link::{Delivery, Posted};
use crate::port::capture_tap::Direction;
use crate::port::{Egress, Port};
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

    /// Ends the first `frames` of a run, of which `head` is the first, at their egress.
    #[inline]
    pub(super) fn end(
        &mut self,
        port: &mut Port,
        head: &Queued<FrameRef>,
        frames: u32,
        dropped: Option<DropReason>,
    ) -> Backlog {
        self.touched.insert(port.index);
        self.note_time(head.frame.get());
        let Port { index, contract, stats, egress, .. } = port;
        let Egress { scheduler, blocked_since, rate_until, last_sent: last, outstanding, .. } = egress;
        let is_realtime = head.frame.get().is_realtime();
        // A frame that passes best effort in the link did not wait for it.
        let passes = is_realtime && !outstanding.is_empty();
        let since = if passes { NEVER } else { std::mem::replace(blocked_since, NEVER) };
        self.fates.begin(fate(*index, *last, since, head, self.now, dropped));
        let mut sent = SentFrames::default();
        let has_rate = contract.egress.rate.is_some();
        let is_rest_of_held = !outstanding.is_empty() && head.bytes != head.frame.get().wire_bytes;
        // The frames behind the head were queued later.
        let none_waited = waited_for_rate(head, *rate_until, self.now) == 0;
        scheduler.take_run(self.now, frames, |queued| {
            if is_realtime && sent.frames > 0 {
                // Each frame with a deadline gets its cause of waiting.
                let last = (head.frame.get().source, self.now);
                self.fates.begin(fate(*index, last, NEVER, &queued, self.now, dropped));
            }
            self.fates.add(queued.frame);
            sent.add(&queued);
            if has_rate && !none_waited {
                stats.note_token_wait_rx(waited_for_rate(&queued, *rate_until, self.now), 1);
            }
        });
        if has_rate && none_waited {
            stats.note_token_wait_rx(0, frames.into());
        }
        self.count(port, sent, head, dropped);
        if is_rest_of_held {
            self.defer_rest(&mut port.egress, head.bytes);
        }
        Backlog { frames, bytes: sent.bytes }
    }

    /// Concludes a frame that its link held: counts it at its receiver, and sends it back to its source.
    pub(super) fn conclude(
        &mut self,
        port: &mut Port,
        queued: &Queued<FrameRef>,
        blocked_since: u64,
        dropped: Option<DropReason>,
    ) {
        self.fates.push(fate(port.index, port.egress.last_sent, blocked_since, queued, self.now, dropped));
        let mut sent = SentFrames::default();
        sent.add(queued);
        let last = port.egress.last_sent;
        self.count(port, sent, queued, dropped);
        if port.link.rx.lets_realtime_pass() {
            // No frame with a deadline waited for this one.
            port.egress.last_sent = last;
        }
    }

    /// Counts frames at their receiver; `first` is the first, and their fates are the latest ones.
    pub(super) fn count(
        &mut self,
        port: &mut Port,
        sent: SentFrames,
        first: &Queued<FrameRef>,
        dropped: Option<DropReason>,
    ) {
        let is_rest = first.bytes != first.frame.get().wire_bytes;
        if is_rest && dropped.is_none() {
            self.note_rest(port, first);
        }
        let frames = self.fates.last(sent.frames as usize);
        match dropped {
            None => {
                port.stats.rx.frames.add(sent.frames);
                port.stats.rx.wire_frames.add(sent.wire_frames);
                port.stats.rx.wire_bytes.add(sent.bytes);
                if let Some(capture) = port.capture.as_mut().filter(|_| !is_rest) {
                    frames.iter().for_each(|frame| capture.record(frame.get(), Direction::ToVm));
                }
            }
            Some(reason) => port.stats.rx.dropped[reason as usize].add(sent.frames),
        }
        if let Some(last) = frames.last() {
            port.egress.last_sent = (last.get().source, self.now);
        }
    }

    /// The time is read once a loop; frames with a deadline get the exact time.
    #[inline]
    pub(super) fn note_time(&mut self, frame: &Frame) {
        if frame.is_realtime() {
            self.now = clock();
        }
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

    /// Drops frames held too long.
    fn expire(&mut self, port: &mut Port) -> bool {
        let now = self.now;
        let (index, stats) = (port.index, port.stats);
        let hold = parts::longest_wait(&port.egress, now, port.contract.hold);
        let Egress { scheduler, blocked_since, last_sent: last, outstanding, .. } = &mut port.egress;
        let before = self.fates.len();
        scheduler.expire(now, hold, |_, queued: Queued<FrameRef>| {
            let late = queued.frame.get().is_realtime();
            let reason = if late { DropReason::Late } else { DropReason::HeldTooLong };
            stats.rx.dropped[reason as usize].add(1);
            let fate = fate(index, *last, *blocked_since, &queued, now, Some(reason));
            end_rest(&mut self.fates, outstanding, queued.bytes, fate);
        });
        before != self.fates.len()
    }
}

/// Frames that left, and their size on the wire.
#[derive(Clone, Copy, Default)]
pub(super) struct SentFrames {
    frames: u64,
    wire_frames: u64,
    bytes: u64,
}

impl SentFrames {
    #[inline]
    pub(super) fn add(&mut self, queued: &Queued<FrameRef>) {
        self.frames += 1;
        self.wire_frames += u64::from(wire_frames_left(queued.frame.get(), queued.bytes));
        self.bytes += u64::from(queued.bytes);
    }
}

/// Returns how many chains there were when an egress's first frame found too few, if it did.
#[inline]
fn chains_at_last_try(port: &Port, head: &Queued<FrameRef>) -> Option<u16> {
    let (frame, enqueued, chains) = port.egress.starved?;
    ((frame, enqueued) == (head.frame, head.enqueued)).then_some(chains)
}

/// Returns how long a frame that leaves at `now` waited for its egress's rate, which last delayed one until
/// `rate_until`.
#[inline]
pub(super) fn waited_for_rate(queued: &Queued<FrameRef>, rate_until: u64, now: u64) -> u64 {
    rate_until.min(now).saturating_sub(queued.enqueued)
}

/// Returns a frame's fate, with its waiting times at the egress.
pub(super) fn fate(
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
