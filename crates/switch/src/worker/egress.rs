//! Puts frames into an egress's scheduler, and makes room there.

use super::departures::fate;
use super::outstanding::end_rest;
use super::send::unqueued_fate;
use super::{Worker, budget};
use crate::fdb::PortIndex;
use crate::port::{Egress, Port};
use crate::sched::{Full, Head, Queued, Scheduler};
use crate::slots::{Frame, FrameRef, NEVER};
use tidegate_evidence::DropReason;

/// Most frames of other flows dropped for a new one: a super-frame of tiny segments must not cost a loop.
const EVICTED: u32 = 8;

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
        let Some(first) = frames.first().map(|first| first.get()) else { return };
        let (source, id) = (first.source, first.scheduled_as());
        let (Some(port), Some(info)) = (&mut self.ports[egress as usize], &self.infos[source as usize])
        else {
            return frames.iter().for_each(|frame| self.drop_frame(*frame, egress, DropReason::ReceiverDown));
        };
        let Port { segment, contract, egress: queue, stats, .. } = &mut **port;
        let refused = |frame: &Frame| match frame.headers.vid() {
            Some(vid) if !contract.policy.may_receive_tagged(vid) => Some(DropReason::Vlan),
            // The port moved, or another has its index, since the frame was sent.
            _ if frame.segment != *segment && !contract.is_uplink => Some(DropReason::NoReceiver),
            _ => None,
        };
        let mut rest = frames;
        let mut evicted = 0;
        while let Some(first) = rest.first() {
            let mut room = None;
            let reason = refused(first.get()).or_else(|| {
                if !queue.scheduler.knows(id) {
                    let config = info.config_of(id, egress, &contract.egress);
                    queue.scheduler.set_source(now, id, config);
                }
                let all = rest.iter().map(|frame| (*frame, frame.get()));
                let run =
                    all.take_while(|(_, frame)| refused(frame).is_none()).map(|(reference, frame)| Queued {
                        frame: reference,
                        bytes: frame.wire_bytes,
                        deadline: frame.deadline,
                        enqueued: now,
                    });
                let (accepted, done) = queue.scheduler.enqueue_run(now, id, run);
                rest = &rest[accepted..];
                if accepted > 0 {
                    evicted = 0;
                }
                if accepted > 0 && !std::mem::replace(&mut queue.active, true) {
                    self.active.push(egress);
                }
                done.err()?;
                let next = rest.first()?.get().wire_bytes;
                if evicted < EVICTED {
                    evicted += 1;
                    room = queue.scheduler.make_room(id, next.into());
                }
                room.is_none().then(|| full(queue, now))
            });
            if let Some(dropped) = room {
                // A frame of the longest flow, not the new one, which is tried again.
                let why = Some(DropReason::FlowCap);
                stats.rx.dropped[DropReason::FlowCap as usize].add(1);
                let fate = fate(egress, queue.last_sent, queue.blocked_since, &dropped, now, why);
                end_rest(&mut self.fates, &mut queue.outstanding, dropped.bytes, fate);
            }
            if let Some(reason) = reason
                && let Some((dropped, others)) = rest.split_first()
            {
                self.fates.push(unqueued_fate(*dropped, egress, reason, now));
                (rest, evicted) = (others, 0);
            }
        }
    }

    /// Makes room for sources with half their ring in flight: drops their newest frame, or the oldest that
    /// holds others back, if it waits for the receiver. A frame that waits for this worker leaves soon.
    pub(super) fn relieve(&mut self) -> bool {
        let before = self.fates.len();
        let mut relief = std::mem::take(&mut self.relief);
        for (egress, source, oldest) in relief.drain(..) {
            let now = self.now;
            let Some(port) = &mut self.ports[egress as usize] else { continue };
            if oldest && port.egress.outstanding.has_any_of(source) {
                // The link holds that frame.
                continue;
            }
            let drop = |s: &mut Scheduler<_>| if oldest { s.drop_head(source) } else { s.drop_tail(source) };
            if is_stuck(&mut port.egress, now)
                && let Some(queued) = drop(&mut port.egress.scheduler)
            {
                let fate = unqueued_fate(queued.frame, egress, DropReason::RingShare, now);
                end_rest(&mut self.fates, &mut port.egress.outstanding, queued.bytes, fate);
            }
        }
        self.relief = relief;
        before != self.fates.len()
    }

    /// Whether an own egress that waits for its turn would drop so many bytes of a super-frame for lack of
    /// room: they wait in the sender's ring instead.
    pub(super) fn is_behind(&mut self, source: PortIndex, egress: PortIndex, bytes: u32) -> bool {
        let now = self.now;
        let Some(port) = &mut self.ports[egress as usize] else { return false };
        let room = port.egress.scheduler.accepts(source, u64::from(bytes));
        // An empty queue without room has no turn to wait for.
        !matches!(room, Ok(()) | Err(Full::NoSource))
            && port.egress.blocked_since == NEVER
            && matches!(port.egress.scheduler.head(now), Head::Ready { .. })
    }

    /// Returns the cost of frames that could leave own egresses now; counts no further than matters.
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
}

/// Returns the cause of a full queue. A frame that may leave now does not exclude the rate as cause, since
/// at its rate one is always about to leave; an unused rate does.
fn full(egress: &mut Egress, now: u64) -> DropReason {
    match egress.scheduler.head(now) {
        _ if egress.blocked_since != NEVER => DropReason::NoBuffers,
        Head::Ready { .. } if egress.scheduler.is_unlimited(now) => DropReason::WorkerBehind,
        Head::Ready { .. } | Head::WaitUntil(_) | Head::Empty => DropReason::QueueFull,
    }
}

/// Whether an egress waits for its receiver or its rate, not for this worker.
fn is_stuck(egress: &mut Egress, now: u64) -> bool {
    egress.blocked_since != NEVER || matches!(egress.scheduler.head(now), Head::WaitUntil(_))
}

#[cfg(test)]
mod tests {
    use super::{DropReason, NEVER};
    use crate::fdb::SegmentIndex;
    use crate::slots::Slots;
    use crate::worker::testing;

    #[test]
    fn a_full_queue_names_the_cause_of_its_wait() {
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
        worker.fates.drain().for_each(|fate| slots.give(fate.frame));
    }

    #[test]
    fn a_frame_stays_in_its_segment() {
        let (mut worker, _handle) = testing::worker();
        (0..2).for_each(|index| testing::add_port(&mut worker, index));
        let mut slots = Slots::new(2, 0, 0);
        // A link may bring frames of many segments: the frame's segment counts, not its port's.
        for (segment, dropped) in [(0, None), (5, Some(DropReason::NoReceiver))] {
            let frame = slots.take().unwrap();
            frame.get_mut().segment = SegmentIndex(segment);
            worker.enqueue(1, &[frame]);
            let fate = worker.fates.drain().next();
            assert_eq!(fate.and_then(|fate| fate.dropped), dropped);
            fate.into_iter().for_each(|fate| slots.give(fate.frame));
        }
        worker.clear_egress(1);
        worker.fates.drain().for_each(|fate| slots.give(fate.frame));
    }
}
