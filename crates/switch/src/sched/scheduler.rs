//! The scheduler of one egress: sources, their queues, and the tiers over them.

use super::arena::{Arena, List};
use super::caps::Room;
use super::edf::Edf;
use super::fifo::Fifo;
use super::flows::{Flows, Keyed};
use super::hold::{Oldest, hold_limit, overdue};
use super::minima::{Credit, Minima};
use super::shares::{Share, Shares};
use super::source::{SourceIndex, SourceIndexes};
use super::{Backlog, EgressConfig, Full, Queued, SourceConfig, SourceId, Tier, TokenBucket};
use tidegate_contract::Discipline;

/// Decides which frame leaves an egress next, and when. See the [module](super).
///
/// Every operation costs O(log n) in the n sources with frames; others cost nothing. Memory is allocated
/// when a source is set, and doubles when more frames wait than ever before; not per frame.
///
/// Fields in this order: frames that pass the queue need the first ones.
#[derive(Debug)]
#[repr(C)]
pub struct Scheduler<F> {
    pub(super) total: Backlog,
    pub(super) bucket: Option<TokenBucket>,
    pub(super) config: EgressConfig,
    indexes: SourceIndexes,
    /// By index.
    pub(super) sources: Vec<Option<Source<F>>>,
    pub(super) arena: Arena<F>,
    /// Waiting bytes of sources without a promise.
    unpromised: u64,
    /// Number of the next arrival.
    pub(super) arrivals: u64,
    /// The last result of `head`, for `take`.
    pub(super) picked: Option<(SourceIndex, Tier)>,
    pub(super) edf: Edf,
    pub(super) minima: Minima,
    pub(super) shares: Shares,
    pub(super) fifo: Fifo,
    oldest: Oldest,
    /// Flows with frames, of sources with flow queues.
    pub(super) active_flows: u32,
    /// Sources with large flow queues.
    pub(super) large: Vec<SourceIndex>,
}

#[derive(Debug)]
pub(super) struct Source<F> {
    pub(super) id: SourceId,
    pub(super) config: SourceConfig,
    /// Its frames, oldest first. With flow queues, only their number.
    pub(super) list: List,
    /// Its flow queues.
    pub(super) flows: Option<Box<Flows<F>>>,
    /// They are large.
    pub(super) is_large: bool,
    /// When they were first seen empty since the last frame (ns).
    pub(super) empty_since: Option<u64>,
    /// Present with a `min`.
    pub(super) credit: Option<Credit>,
    pub(super) share: Share,
}

impl<F: Keyed> Scheduler<F> {
    /// Returns an egress without sources; its bucket is full.
    pub fn new(config: EgressConfig) -> Self {
        Self {
            config,
            bucket: config.rate.map(|rate| TokenBucket::new(rate, config.burst)),
            indexes: SourceIndexes::default(),
            sources: Vec::new(),
            arena: Arena::new(),
            total: Backlog::default(),
            unpromised: 0,
            arrivals: 0,
            picked: None,
            edf: Edf::default(),
            minima: Minima::default(),
            shares: Shares::default(),
            fifo: Fifo::default(),
            oldest: Oldest::default(),
            active_flows: 0,
            large: Vec::new(),
        }
    }

    /// Changes the egress; all frames stay, even above a smaller `queue`. A first rate's bucket starts full; a changed
    /// rate keeps the level.
    pub fn reconfigure(&mut self, now: u64, config: EgressConfig) {
        self.picked = None;
        self.bucket = config.rate.map(|rate| match self.bucket.take() {
            Some(mut bucket) => {
                bucket.set(now, rate, config.burst);
                bucket
            }
            None => TokenBucket::new(rate, config.burst),
        });
        let reordered = self.config.discipline != config.discipline;
        let cut_otherwise = self.config.kind != config.kind
            || self.config.flows != config.flows
            || config.flows.is_some() && self.config.rate != config.rate;
        self.config = config;
        if reordered || cut_otherwise {
            for index in 0..self.sources.len() {
                self.queue_otherwise(index as SourceIndex);
            }
        }
        if reordered {
            self.edf.clear();
            self.minima.clear();
            self.shares.clear();
            self.fifo.clear();
            for index in 0..self.sources.len() {
                self.activate(now, index as SourceIndex);
            }
        } else if cut_otherwise {
            for index in 0..self.sources.len() {
                self.minima.remove(index as SourceIndex);
                self.refresh(index as SourceIndex);
            }
        }
    }

    /// Adds a source, or changes one; its frames stay, even above smaller caps.
    pub fn set_source(&mut self, now: u64, id: impl Into<SourceId>, config: SourceConfig) {
        self.picked = None;
        let id = id.into();
        let index = self.indexes.get_or_insert(id);
        if self.sources.len() <= usize::from(index) {
            self.sources.resize_with(usize::from(index) + 1, || None);
        }
        self.edf.reserve(index);
        self.minima.reserve(index);
        self.shares.reserve(index);
        self.fifo.reserve(index);
        self.oldest.reserve(index);
        self.large.reserve(self.sources.len() - self.large.len());

        let patience = hold_limit(self.config.rate);
        let source = self.sources[usize::from(index)].get_or_insert_with(|| Source {
            id,
            config,
            list: List::default(),
            flows: None,
            is_large: false,
            empty_since: None,
            credit: None,
            share: Share::new(config.weight),
        });
        let was = source.config;
        let busy = !source.list.is_empty();
        source.config = config;
        source.share.set_weight(config.weight);
        source.credit = config.min.map(|min| match source.credit.take() {
            Some(mut credit) => {
                credit.set(now, min, config.min_burst, busy, patience);
                credit
            }
            None => Credit::new(now, min, config.min_burst),
        });
        if was.promised() != config.promised() {
            if config.promised() {
                self.unpromised -= source.list.bytes;
            } else {
                self.unpromised += source.list.bytes;
            }
        }
        self.queue_otherwise(index);
        if was.deadline.is_some() != config.deadline.is_some() {
            self.deactivate(index);
            self.activate(now, index);
        } else {
            self.minima.remove(index);
            self.refresh(index);
        }
    }

    /// Removes a source; its frames go to `dropped`, oldest first.
    pub fn remove_source(&mut self, id: impl Into<SourceId>, dropped: impl FnMut(Queued<F>)) {
        let id = id.into();
        self.clear_source(id, dropped);
        if let Some(index) = self.indexes.remove(id) {
            self.picked = None;
            self.sources[usize::from(index)] = None;
            self.oldest.remove(index);
            self.large.retain(|large| *large != index);
        }
    }

    /// Drops all frames of a source into `dropped`, oldest first.
    pub fn clear_source(&mut self, id: impl Into<SourceId>, mut dropped: impl FnMut(Queued<F>)) {
        let id = id.into();
        while let Some(queued) = self.drop_head(id) {
            dropped(queued);
        }
    }

    /// Drops all frames into `dropped`, those of each source oldest first.
    pub fn clear(&mut self, mut dropped: impl FnMut(Queued<F>)) {
        for index in 0..self.sources.len() {
            while let Some(queued) = self.pop_front(index as SourceIndex) {
                dropped(queued);
            }
        }
    }

    /// Drops the newest frame of a source; with flow queues, the oldest of the longest flow.
    pub fn drop_tail(&mut self, id: impl Into<SourceId>) -> Option<Queued<F>> {
        let index = self.indexes.get(id.into())?;
        let source = self.sources[usize::from(index)].as_mut()?;
        if source.flows.is_some() {
            return self.pop_flow(index, Flows::drop_longest);
        }
        let queued = self.arena.pop_back(&mut source.list)?;
        self.total.frames -= 1;
        self.note_removed(index, queued.bytes.into());
        Some(queued)
    }

    /// Drops the oldest frame of a source.
    pub fn drop_head(&mut self, id: impl Into<SourceId>) -> Option<Queued<F>> {
        self.pop_front(self.indexes.get(id.into())?)
    }

    /// Accepts a frame.
    ///
    /// # Errors
    /// The exceeded cap; of several, the source's own come first.
    #[inline]
    pub fn enqueue(&mut self, now: u64, id: impl Into<SourceId>, queued: Queued<F>) -> Result<(), Full> {
        self.enqueue_run(now, id, std::iter::once(queued)).1
    }

    /// Accepts frames of one source up to the first without room, like repeated [`enqueue`](Self::enqueue).
    /// Returns the number accepted, and why the next was not.
    #[inline]
    pub fn enqueue_run(
        &mut self,
        now: u64,
        id: impl Into<SourceId>,
        frames: impl IntoIterator<Item = Queued<F>>,
    ) -> (usize, Result<(), Full>) {
        let Some(index) = self.indexes.get(id.into()) else { return (0, Err(Full::NoSource)) };
        let Some(source) = &mut self.sources[usize::from(index)] else { return (0, Err(Full::NoSource)) };
        if source.flows.is_some() {
            return self.enqueue_flows(now, index, frames);
        }
        let List { frames: waited, bytes, .. } = source.list;
        let mut room =
            Room::of(&self.config, &source.config, &source.list, self.total.bytes, self.unpromised);
        let mut done = Ok(());
        for queued in frames {
            done = room.take(queued.bytes.into());
            if done.is_err() {
                break;
            }
            self.arena.push_back(&mut source.list, queued, self.arrivals);
            self.arrivals += 1;
        }
        let (accepted, bytes) = (source.list.frames - waited, source.list.bytes - bytes);
        self.total.frames += accepted;
        self.total.bytes += bytes;
        if !source.config.promised() {
            self.unpromised += bytes;
        }
        self.picked = None;
        if waited == 0 && accepted > 0 {
            self.activate(now, index);
        }
        (accepted as usize, done)
    }

    /// Whether a frame of so many bytes would be accepted.
    ///
    /// # Errors
    /// As of [`enqueue`](Self::enqueue).
    pub fn accepts(&self, id: impl Into<SourceId>, bytes: u64) -> Result<(), Full> {
        let source = self.source(id.into()).ok_or(Full::NoSource)?;
        self.room(source).take(bytes)
    }

    /// Returns the room of a source.
    pub(super) fn room(&self, source: &Source<F>) -> Room {
        Room::of(&self.config, &source.config, &source.list, self.total.bytes, self.unpromised)
    }

    /// Counts frames that were added to a source's flow queues.
    pub(super) fn added(&mut self, now: u64, index: SourceIndex, frames: u32, bytes: u64) {
        self.total.frames += frames;
        self.total.bytes += bytes;
        self.picked = None;
        let Some(source) = &self.sources[usize::from(index)] else { return };
        if !source.config.promised() {
            self.unpromised += bytes;
        }
        if source.list.frames == frames {
            self.activate(now, index);
        } else {
            // It may be another flow's turn now.
            self.refresh(index);
        }
    }

    /// Returns the waiting bytes of all other sources without a promise.
    pub(super) fn unpromised_besides(&self, source: &Source<F>) -> u64 {
        self.unpromised - if source.config.promised() { 0 } else { source.list.bytes }
    }

    /// Returns the bytes that may go at `now` without waiting for the egress rate, rounded down. Frames
    /// that go so, past the queue, are [charged](Self::charge).
    #[inline]
    pub fn tokens(&self, now: u64) -> i64 {
        self.bucket.as_ref().map_or(i64::MAX, |bucket| bucket.available(now))
    }

    /// Returns the bucket of the egress rate for direct use; `None` without a rate.
    pub fn bucket_mut(&mut self) -> Option<&mut TokenBucket> {
        self.bucket.as_mut()
    }

    /// Whether the egress rate delays nothing at `now`: there is none, or its bucket is full.
    pub fn is_unlimited(&self, now: u64) -> bool {
        self.bucket.as_ref().is_none_or(|bucket| bucket.is_full(now))
    }

    /// Removes tokens above `bytes` at `now`.
    pub fn lower_tokens(&mut self, now: u64, bytes: i64) {
        if let Some(bucket) = &mut self.bucket {
            bucket.lower(now, bytes);
        }
    }

    /// Charges frames that went past the empty queue.
    pub fn charge(&mut self, now: u64, bytes: u64) {
        if let Some(bucket) = &mut self.bucket {
            bucket.charge(now, bytes);
        }
    }

    /// Notes that the receiver saw the charged frames at `now`.
    #[inline]
    pub fn note_shown(&mut self, now: u64) {
        if let Some(bucket) = &mut self.bucket {
            bucket.note_shown(now);
        }
    }

    /// Drops frames held too long into `dropped`.
    ///
    /// Real-time frames: those past their deadline (one that is due at `now` is in time). All others, and
    /// with [`Discipline::Fifo`], which has no deadlines, all: those that have waited for `hold` ns. Nearly
    /// free without any.
    pub fn expire(&mut self, now: u64, hold: u64, mut dropped: impl FnMut(SourceId, Queued<F>)) {
        while let Some(index) = self.edf.first()
            && self.edf.first_due() < Some(now)
        {
            self.drop_front(index, &mut dropped);
        }
        while let Some(index) = self.oldest.due(now, hold) {
            match self.held_since(index) {
                None => self.oldest.remove(index),
                Some(enqueued) if overdue(enqueued, hold, now) => self.drop_front(index, &mut dropped),
                Some(enqueued) => self.oldest.set(index, enqueued),
            }
        }
    }

    /// Drops the oldest frame of a source that has one.
    fn drop_front(&mut self, index: SourceIndex, dropped: &mut impl FnMut(SourceId, Queued<F>)) {
        let id = self.sources[usize::from(index)].as_ref().map(|source| source.id);
        let (id, queued) = id.zip(self.pop_front(index)).expect("a source in a tier has frames");
        dropped(id, queued);
    }

    fn pop_front(&mut self, index: SourceIndex) -> Option<Queued<F>> {
        let source = self.sources[usize::from(index)].as_mut()?;
        if source.flows.is_some() {
            return self.pop_flow(index, Flows::pop_oldest);
        }
        let mut first = None;
        let gone = self.arena.pop_front(&mut source.list, 1, |queued| first = Some(queued));
        self.total.frames -= gone.frames;
        self.note_removed(index, gone.bytes);
        first
    }

    /// Whether a source is set.
    #[inline]
    pub fn knows(&self, id: impl Into<SourceId>) -> bool {
        self.indexes.get(id.into()).is_some()
    }

    pub(super) fn index(&self, id: SourceId) -> Option<SourceIndex> {
        self.indexes.get(id)
    }

    fn source(&self, id: SourceId) -> Option<&Source<F>> {
        self.sources[usize::from(self.indexes.get(id)?)].as_ref()
    }

    /// Returns the waiting frames of one source.
    pub fn backlog(&self, id: impl Into<SourceId>) -> Backlog {
        let of = |source: &Source<F>| Backlog { frames: source.list.frames, bytes: source.list.bytes };
        self.source(id.into()).map_or_else(Backlog::default, of)
    }

    /// Returns the waiting frames of all sources.
    #[inline]
    pub fn backlog_total(&self) -> Backlog {
        self.total
    }

    /// Returns since when the oldest frame waits of a source with a fixed hold time.
    fn held_since(&self, index: SourceIndex) -> Option<u64> {
        let source = self.sources[usize::from(index)].as_ref()?;
        let timed = self.config.discipline == Discipline::Contract && source.config.deadline.is_some();
        if timed {
            return None;
        }
        source.oldest(&self.arena)
    }

    /// Notes that so many bytes have left a source's list.
    #[inline]
    pub(super) fn note_removed(&mut self, index: SourceIndex, bytes: u64) {
        self.picked = None;
        self.total.bytes -= bytes;
        let Some(source) = &self.sources[usize::from(index)] else {
            return;
        };
        if !source.config.promised() {
            self.unpromised -= bytes;
        }
        if source.list.is_empty() {
            self.deactivate(index);
        } else {
            self.refresh(index);
        }
    }

    /// Puts a source with new frames into its tier.
    fn activate(&mut self, now: u64, index: SourceIndex) {
        let Some(source) = &mut self.sources[usize::from(index)] else {
            return;
        };
        let Some(oldest) = source.oldest(&self.arena) else {
            return;
        };
        let contract = self.config.discipline == Discipline::Contract;
        let real_time = source.config.deadline.is_some();
        if contract && !real_time {
            if let Some(credit) = &mut source.credit {
                credit.activate(now);
            }
            self.shares.activate(&mut source.share);
        }
        if !contract || !real_time {
            self.oldest.activate(index, oldest);
        }
        self.refresh(index);
    }

    /// Updates a source after a change of its head or settings.
    #[inline]
    fn refresh(&mut self, index: SourceIndex) {
        let Some(source) = &self.sources[usize::from(index)] else {
            return;
        };
        if let Some(flows) = &source.flows {
            let Some(part) = flows.part(self.config.flow_part()) else { return };
            if let Some(credit) = &source.credit {
                self.minima.set(index, credit, part);
            }
            self.shares.set(index, &source.share);
            return;
        }
        let Some(head) = self.arena.front(&source.list) else {
            return;
        };
        if self.config.discipline == Discipline::Fifo {
            self.fifo.set(index, head.arrival);
        } else if let Some(relative) = source.config.deadline {
            self.edf.set(index, &head.queued, relative);
        } else {
            if let Some(credit) = &source.credit {
                self.minima.set(index, credit, self.config.kind.part(head.queued.bytes, &source.config));
            }
            self.shares.set(index, &source.share);
        }
    }

    /// Takes a source without frames, or before a change of tiers, out of its tier.
    fn deactivate(&mut self, index: SourceIndex) {
        self.edf.remove(index);
        self.minima.remove(index);
        self.shares.remove(index);
        self.fifo.remove(index);
    }
}

impl<F: Copy> Source<F> {
    /// Returns since when its oldest frame waits.
    #[inline]
    fn oldest(&self, arena: &Arena<F>) -> Option<u64> {
        match &self.flows {
            None => arena.front(&self.list).map(|node| node.queued.enqueued),
            Some(flows) => flows.oldest(),
        }
    }
}
