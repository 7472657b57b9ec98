//! Sources with flow queues: at an egress with a rate, where a queue stands.
//!
//! ```text
//!  tiers ─▶ source ─▶ flows ─▶ head: a part ─▶ judge ─▶ take_part, or drop_part
//!  a cap ──────────────▶ make_room: the longest flow's frame
//! ```
//!
//! The source's list counts its frames, so caps and backlogs work as for other sources.

use super::flows::{Flows, Keyed};
use super::scheduler::Source;
use super::source::SourceIndex;
use super::{Backlog, Full, Queued, Scheduler, SourceId, Tier, Verdict};

/// Time of empty flow queues before their memory is freed (ns): longer than a flow's CoDel remembers.
pub const EMPTY: u64 = 40_000_000_000;

impl<F: Keyed> Scheduler<F> {
    /// Changes how a source's frames are queued, by the egress's present settings; all stay. The caller
    /// then sets the source's place in the tiers.
    pub(super) fn queue_otherwise(&mut self, index: SourceIndex) {
        let Some(source) = &mut self.sources[usize::from(index)] else { return };
        match (&mut source.flows, self.config.flows_of(&source.config)) {
            (None, None) => {}
            (Some(flows), Some(config)) => flows.set_config(config),
            (None, Some(config)) => {
                let mut flows = Flows::new(config);
                while let Some(number) = self.arena.front(&source.list).map(|node| node.arrival) {
                    let push =
                        |queued: Queued<F>| flows.push_numbered(queued.frame.flow_key(), queued, number);
                    self.arena.pop_front(&mut source.list, 1, push);
                }
                let waits = flows.backlog();
                source.list.count(waits.frames, waits.bytes);
                self.active_flows += flows.active();
                source.flows = Some(Box::new(flows));
            }
            (Some(flows), None) => {
                self.active_flows -= flows.active();
                source.list = Default::default();
                while let Some((queued, number)) = flows.pop_numbered() {
                    self.arena.push_back(&mut source.list, queued, number);
                }
                source.flows = None;
            }
        }
    }

    /// Like [`enqueue_run`](Self::enqueue_run).
    #[inline(never)]
    pub(super) fn enqueue_flows(
        &mut self,
        now: u64,
        index: SourceIndex,
        frames: impl IntoIterator<Item = Queued<F>>,
    ) -> (usize, Result<(), Full>) {
        let Some(source) = &self.sources[usize::from(index)] else { return (0, Err(Full::NoSource)) };
        let mut room = self.room(source);
        let source = self.sources[usize::from(index)].as_mut();
        let Some(Source { list: source, flows: Some(flows), is_large, empty_since, .. }) = source else {
            return (0, Err(Full::NoSource));
        };
        let (before, active) = (flows.backlog(), flows.active());
        let mut done = Ok(());
        for queued in frames {
            done = room.take(queued.bytes.into());
            if done.is_err() {
                break;
            }
            flows.push_numbered(queued.frame.flow_key(), queued, self.arrivals);
            self.arrivals += 1;
        }
        let accepted = flows.backlog().frames - before.frames;
        let bytes = flows.backlog().bytes - before.bytes;
        source.count(accepted, bytes);
        *empty_since = None;
        if flows.is_large() && !std::mem::replace(is_large, true) {
            self.large.push(index);
        }
        self.active_flows += flows.active() - active;
        self.added(now, index, accepted, bytes);
        (accepted as usize, done)
    }

    /// Makes room for a refused frame of `bytes` of a source with flow queues: drops the oldest frame of
    /// its longest flow. `None` without flow queues, or if dropping its own frames cannot make enough room.
    pub fn make_room(&mut self, id: impl Into<SourceId>, bytes: u64) -> Option<Queued<F>> {
        let index = self.index(id.into())?;
        let source = self.sources[usize::from(index)].as_ref()?;
        source.flows.as_ref()?;
        let others = if source.config.promised() { 0 } else { self.unpromised_besides(source) };
        let limit =
            if source.config.promised() { u64::MAX } else { self.config.queue.saturating_sub(others) };
        if source.config.cap_frames == 0 || bytes > source.config.cap_bytes.min(limit) {
            return None;
        }
        self.pop_flow(index, Flows::drop_longest)
    }

    /// Whether the last ready [`head`](Self::head) is of a source with flow queues.
    pub fn is_of_flows(&mut self, now: u64) -> bool {
        let picked = self.next_turn(now).and_then(|(index, _)| self.sources[usize::from(index)].as_ref());
        picked.is_some_and(|source| source.flows.is_some())
    }

    /// Judges the last ready [`head`](Self::head) of a source with flow queues; `None` for other sources.
    /// `ect`: as for [`Flows::judge`].
    #[inline]
    pub fn judge(&mut self, now: u64, ect: impl FnOnce() -> bool) -> Option<Verdict> {
        let (index, _) = self.next_turn(now)?;
        Some(self.sources[usize::from(index)].as_mut()?.flows.as_mut()?.judge(now, ect))
    }

    /// Whether the last ready [`head`](Self::head) came when its flow had no frames; `false` for a source
    /// without flow queues.
    #[inline]
    pub fn is_sparse(&mut self, now: u64) -> bool {
        let picked = self.next_turn(now).and_then(|(index, _)| self.sources[usize::from(index)].as_ref());
        picked.and_then(|source| source.flows.as_ref()).is_some_and(|flows| flows.is_sparse())
    }

    /// Drops at most so many bytes of the [judged](Self::judge) frame; charges neither its source nor the
    /// rate.
    pub fn drop_part(&mut self, now: u64, bytes: u32) -> Option<(SourceId, Queued<F>)> {
        let (index, _) = self.next_turn(now)?;
        let id = self.sources[usize::from(index)].as_ref()?.id;
        Some((id, self.pop_flow(index, |flows| flows.drop_head(bytes))?))
    }

    /// Replaces large flow queues that have been empty for [a while](EMPTY) by new ones, and moves the old
    /// ones to `unused`, up to its room.
    pub fn take_unused(&mut self, now: u64, unused: &mut Vec<Box<Flows<F>>>) {
        let Self { large, sources, .. } = self;
        large.retain(|index| {
            let Some(source) = &mut sources[usize::from(*index)] else { return false };
            let Some(flows) = &mut source.flows else {
                source.is_large = false;
                return false;
            };
            if flows.backlog().frames > 0 {
                return true;
            }
            let since = *source.empty_since.get_or_insert(now);
            if now.saturating_sub(since) < EMPTY || unused.len() == unused.capacity() {
                return true;
            }
            let new = Box::new(Flows::new(*flows.config()));
            unused.push(std::mem::replace(flows, new));
            source.is_large = false;
            false
        });
    }

    /// Returns the number of flows with waiting frames.
    #[inline]
    pub fn active_flows(&self) -> u32 {
        self.active_flows
    }

    /// Takes at most so many bytes of the frame whose turn it is at a source, and charges it.
    #[inline(never)]
    pub(super) fn take_flow(
        &mut self,
        now: u64,
        index: SourceIndex,
        tier: Tier,
        bytes: u32,
    ) -> Option<Queued<F>> {
        let taken = self.leave(index, |flows| flows.take(bytes))?.0?;
        self.charge_tier(now, index, tier, 0, taken.bytes);
        self.charge_waiting(now, &taken);
        self.note_removed(index, taken.bytes.into());
        Some(taken)
    }

    /// Takes the next frames of a flow's turn, and charges them.
    #[inline(never)]
    pub(super) fn take_turn(
        &mut self,
        now: u64,
        index: SourceIndex,
        tier: Tier,
        frames: u32,
        taken: &mut dyn FnMut(Queued<F>),
    ) -> Option<()> {
        let first = *self.sources[usize::from(index)].as_ref()?.flows.as_ref()?.head()?;
        let (last, gone) = self.leave(index, |flows| flows.take_turn(now, frames, taken))?;
        self.charge_run(now, index, tier, gone, (&first, last));
        Some(())
    }

    /// Drops frames that `pop` takes out of a source's flows.
    pub(super) fn pop_flow(
        &mut self,
        index: SourceIndex,
        pop: impl FnOnce(&mut Flows<F>) -> Option<Queued<F>>,
    ) -> Option<Queued<F>> {
        let dropped = self.leave(index, pop)?.0?;
        self.note_removed(index, dropped.bytes.into());
        Some(dropped)
    }

    /// Takes frames, or a part of one, out of a source's flows, and updates the source's count; returns
    /// their amount.
    pub(super) fn leave<R>(
        &mut self,
        index: SourceIndex,
        pop: impl FnOnce(&mut Flows<F>) -> R,
    ) -> Option<(R, Backlog)> {
        let source = self.sources[usize::from(index)].as_mut()?;
        let flows = source.flows.as_mut()?;
        let (before, active) = (flows.backlog(), flows.active());
        let left = pop(flows);
        let after = flows.backlog();
        let gone = Backlog { frames: before.frames - after.frames, bytes: before.bytes - after.bytes };
        self.active_flows -= active - flows.active();
        source.list.count_out(gone.frames, gone.bytes);
        self.total.frames -= gone.frames;
        Some((left, gone))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::FlowKey;
    use crate::sched::sim::{egress, share, source};
    use crate::sched::{EgressConfig, FlowConfig};
    use tidegate_contract::FlowQueueing;

    /// Each frame is a flow of its own.
    #[derive(Clone, Copy)]
    struct Alone(u32);

    impl Keyed for Alone {
        fn flow_key(&self) -> FlowKey {
            FlowKey { flow: self.0.wrapping_mul(0x9e37_79b1), host: 0 }
        }
    }

    const SOURCES: u16 = 20;

    /// One frame of each of so many flows comes from each source, and leaves.
    fn pass(scheduler: &mut Scheduler<Alone>, now: u64, flows: u32) {
        for id in (0..SOURCES).map(source) {
            for flow in 0..flows {
                let queued = Queued { frame: Alone(flow), bytes: 60, deadline: u64::MAX, enqueued: now };
                scheduler.enqueue(now, id, queued).unwrap();
            }
        }
        for _ in 0..u32::from(SOURCES) * flows {
            assert!(scheduler.take(now).is_some());
        }
    }

    #[test]
    fn large_queues_that_stay_empty_are_given_back_a_few_at_a_time() {
        let rate = egress(Some(400_000_000_000), 1 << 30);
        let flows = FlowConfig::new(&FlowQueueing::default(), 1514, rate.rate.unwrap());
        let mut scheduler = Scheduler::new(EgressConfig { flows: Some(flows), ..rate });
        (0..SOURCES).for_each(|number| scheduler.set_source(0, source(number), share(1)));
        let unused = |scheduler: &mut Scheduler<Alone>, now| {
            let mut unused = Vec::with_capacity(16);
            scheduler.take_unused(now, &mut unused);
            assert!(unused.iter().all(|flows| flows.is_large() && flows.backlog().frames == 0));
            unused.len()
        };
        pass(&mut scheduler, 0, 8);
        assert_eq!([0, EMPTY].map(|now| unused(&mut scheduler, now)), [0, 0], "small ones stay");
        pass(&mut scheduler, 0, 256);
        assert_eq!([1, EMPTY].map(|now| unused(&mut scheduler, now)), [0, 0], "not empty for long enough");
        // One is in use meanwhile, and one has a frame.
        let frame = Queued { frame: Alone(1), bytes: 60, deadline: u64::MAX, enqueued: EMPTY };
        scheduler.enqueue(EMPTY, source(3), frame).unwrap();
        scheduler.take(EMPTY).unwrap();
        scheduler.enqueue(EMPTY, source(5), frame).unwrap();
        assert_eq!([EMPTY + 1, EMPTY + 2, EMPTY + 3].map(|now| unused(&mut scheduler, now)), [16, 2, 0]);
        scheduler.remove_source(source(5), drop);
        scheduler.set_source(EMPTY, source(5), share(1));
        assert_eq!([2 * EMPTY, 2 * EMPTY + 1].map(|now| unused(&mut scheduler, now)), [0, 1]);
        assert!(scheduler.large.is_empty());
        pass(&mut scheduler, 3 * EMPTY, 3);
        (0..SOURCES).for_each(|number| scheduler.remove_source(source(number), drop));
    }
}
