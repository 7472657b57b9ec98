//! A slow model of the scheduler: every question is answered by looking at all sources and their history.
//! No heap, no arena, no state that could go stale. Flow queues have [a model of their own](super::flows),
//! and are used as they are here. Random sequences of all operations [must agree](super::agreement) with it
//! step by step.

use super::flows::part;
use super::*;
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};

const PER_BYTE: i128 = 8_000_000_000;
const SCALE: u128 = 1 << 20;

pub(super) struct Model {
    config: EgressConfig,
    bucket: Option<TokenBucket>,
    pub(super) sources: BTreeMap<SourceId, Source>,
    /// Indices of removed sources.
    free: Vec<usize>,
    arrivals: u64,
    virtual_time: u128,
    furthest: u128,
}

pub(super) struct Source {
    /// Decides between equals.
    index: usize,
    pub(super) config: SourceConfig,
    frames: VecDeque<(Queued<u32>, u64)>,
    /// Its frames, if it has flow queues.
    flows: Option<RefCell<Flows<u32>>>,
    /// Tier 3: tag and weight at some time, and bytes served since.
    tag: u128,
    weight: u128,
    served: u128,
    sharing: bool,
    /// Tier 2: units ahead at some time, and units charged since.
    since: u64,
    ahead: i128,
    charged: i128,
}

impl Source {
    fn start_tag(&self) -> u128 {
        self.tag + self.served * SCALE / self.weight
    }
    fn ahead(&self, now: u64) -> i128 {
        let rate = self.config.min.map_or(0, Rate::bits);
        self.ahead + self.charged - i128::from(now - self.since) * i128::from(rate)
    }
    fn restart(&mut self, now: u64, ahead: i128) {
        (self.since, self.ahead, self.charged) = (now, ahead, 0);
    }
    fn head(&self) -> Option<Queued<u32>> {
        match &self.flows {
            Some(flows) => flows.borrow().head().copied(),
            None => Some(self.frames.front()?.0),
        }
    }
    /// Returns how many bytes of the head may be taken at once.
    fn part(&self, config: &EgressConfig) -> u32 {
        if let Some(flows) = &self.flows {
            return flows.borrow().part(config.rate.map_or(u64::MAX, part)).unwrap_or(0);
        }
        let all = self.frames[0].0.bytes;
        match config.kind {
            EgressKind::Virtual => all,
            EgressKind::Physical { quantum, train } => {
                let promised = self.config.deadline.is_some() || self.config.min.is_some();
                all.min(if promised { quantum.max(1) } else { quantum.max(train).max(1) })
            }
        }
    }
    pub(super) fn waiting(&self) -> u32 {
        self.flows.as_ref().map_or(self.frames.len() as u32, |flows| flows.borrow().backlog().frames)
    }
    fn oldest(&self) -> Option<u64> {
        match &self.flows {
            Some(flows) => flows.borrow().oldest(),
            None => Some(self.frames.front()?.0.enqueued),
        }
    }
    fn pop_oldest(&mut self) -> Option<Queued<u32>> {
        match &self.flows {
            Some(flows) => flows.borrow_mut().pop_oldest(),
            None => Some(self.frames.pop_front()?.0),
        }
    }
    fn pop_newest(&mut self) -> Option<Queued<u32>> {
        match &self.flows {
            Some(flows) => flows.borrow_mut().drop_longest(),
            None => Some(self.frames.pop_back()?.0),
        }
    }
    /// Queues its frames by the egress's settings.
    fn queue_otherwise(&mut self, config: &EgressConfig) {
        let virtual_rate = config.rate.is_some() && config.kind == EgressKind::Virtual;
        let may = virtual_rate && config.discipline == Discipline::Contract && self.config.deadline.is_none();
        match (&self.flows, config.flows.filter(|_| may)) {
            (None, None) => {}
            (Some(flows), Some(config)) => flows.borrow_mut().set_config(config),
            (None, Some(config)) => {
                let mut flows = Flows::new(config);
                let frames = std::mem::take(&mut self.frames);
                frames
                    .into_iter()
                    .for_each(|(q, arrival)| flows.push_numbered(q.frame.flow_key(), q, arrival));
                self.flows = Some(RefCell::new(flows));
            }
            (Some(flows), None) => {
                self.frames = std::iter::from_fn(|| flows.borrow_mut().pop_numbered()).collect();
                self.flows = None;
            }
        }
    }
    fn eligible(&self, now: u64, egress: &EgressConfig) -> bool {
        let burst = i128::from(self.config.min_burst);
        let credit = burst * PER_BYTE - self.ahead(now);
        self.config.min.is_some() && credit >= i128::from(self.part(egress)).min(burst) * PER_BYTE
    }
    /// Returns the first whole nanosecond by which the ideal line has sent the head.
    fn due(&self, egress: &EgressConfig) -> i128 {
        let rate = i128::from(self.config.min.map_or(1, Rate::bits));
        let units = self.ahead + self.charged + i128::from(self.part(egress)) * PER_BYTE;
        i128::from(self.since) + units.div_euclid(rate) + i128::from(units.rem_euclid(rate) > 0)
    }
    fn deadline(&self) -> u64 {
        let head = self.frames[0].0;
        match head.deadline {
            u64::MAX => head.enqueued + self.config.deadline.unwrap_or(0),
            deadline => deadline,
        }
    }
    pub(super) fn bytes(&self) -> u64 {
        if let Some(flows) = &self.flows {
            return flows.borrow().backlog().bytes;
        }
        self.frames.iter().map(|(q, _)| u64::from(q.bytes)).sum()
    }
}

impl Model {
    pub(super) fn new(config: EgressConfig) -> Self {
        Self {
            config,
            bucket: config.rate.map(|r| TokenBucket::new(r, config.burst)),
            sources: BTreeMap::new(),
            free: Vec::new(),
            arrivals: 0,
            virtual_time: 0,
            furthest: 0,
        }
    }

    pub(super) fn waiting(&self) -> u64 {
        self.sources.values().map(|s| u64::from(s.waiting())).sum()
    }

    fn contract(&self) -> bool {
        self.config.discipline == Discipline::Contract
    }

    pub(super) fn reconfigure(&mut self, now: u64, config: EgressConfig) {
        self.bucket = config.rate.map(|rate| {
            let fresh = TokenBucket::new(rate, config.burst);
            self.bucket.take().map_or(fresh, |mut b| {
                b.set(now, rate, config.burst);
                b
            })
        });
        let reordered = config.discipline != self.config.discipline;
        self.config = config;
        self.sources.values_mut().for_each(|s| s.queue_otherwise(&config));
        if reordered {
            self.sources.values_mut().for_each(|s| s.sharing = false);
            let ids: Vec<_> = self.sources.keys().copied().collect();
            ids.into_iter().for_each(|id| self.begins(now, id));
        }
    }

    pub(super) fn set_source(&mut self, now: u64, id: SourceId, config: SourceConfig) {
        let next = self.sources.len() + self.free.len();
        let free = &mut self.free;
        let source = self.sources.entry(id).or_insert_with(|| Source {
            index: free.pop().unwrap_or(next),
            config,
            frames: VecDeque::new(),
            flows: None,
            tag: 0,
            weight: u128::from(config.weight.max(1)),
            served: 0,
            sharing: false,
            since: now,
            ahead: 0,
            charged: 0,
        });
        let was = source.config;
        let patience = i128::from(hold_limit(self.config.rate));
        if source.weight != u128::from(config.weight.max(1)) {
            (source.tag, source.served) = (source.start_tag(), 0);
            source.weight = u128::from(config.weight.max(1));
        }
        let mut ahead = source.ahead(now);
        if was.min.is_none() {
            ahead = 0;
        } else if source.waiting() == 0 {
            ahead = ahead.max(0);
        }
        let rate = i128::from(config.min.map_or(0, Rate::bits));
        source.restart(now, ahead.max(-rate * patience));
        source.config = config;
        source.queue_otherwise(&self.config);
        if was.deadline.is_some() != config.deadline.is_some() {
            source.sharing = false;
            self.begins(now, id);
        }
    }

    /// `id` may have frames, and is new to its tier.
    fn begins(&mut self, now: u64, id: SourceId) {
        let contract = self.contract();
        let nobody = !self.sources.values().any(|s| s.sharing);
        let Some(source) = self.sources.get_mut(&id) else {
            return;
        };
        if source.waiting() == 0 || source.config.deadline.is_some() || !contract {
            return;
        }
        source.restart(now, source.ahead(now).max(0));
        if nobody {
            self.virtual_time = self.virtual_time.max(self.furthest);
        }
        if source.start_tag() < self.virtual_time {
            (source.tag, source.served) = (self.virtual_time, 0);
        }
        source.sharing = true;
    }

    pub(super) fn enqueue(&mut self, now: u64, id: SourceId, queued: Queued<u32>) -> Result<(), Full> {
        let limited: u64 = self
            .sources
            .values()
            .filter(|s| !self.contract() || !s.config.promised())
            .map(Source::bytes)
            .sum();
        let contract = self.contract();
        let source = self.sources.get_mut(&id).ok_or(Full::NoSource)?;
        let bytes = u64::from(queued.bytes);
        if source.waiting() >= source.config.cap_frames {
            return Err(Full::SourceFrames);
        }
        if source.bytes() + bytes > source.config.cap_bytes {
            return Err(Full::SourceBytes);
        }
        if !(contract && source.config.promised()) && limited + bytes > self.config.queue {
            return Err(Full::EgressBytes);
        }
        let beside_others = contract && !source.config.promised() && limited > source.bytes();
        if beside_others && limited + source.bytes() + bytes > self.config.queue {
            return Err(Full::EgressBytes);
        }
        match &source.flows {
            Some(flows) => {
                flows.borrow_mut().push_numbered(queued.frame.flow_key(), queued, self.arrivals);
            }
            None => source.frames.push_back((queued, self.arrivals)),
        }
        self.arrivals += 1;
        if source.waiting() == 1 {
            self.begins(now, id);
        }
        Ok(())
    }

    fn turn(&self, now: u64) -> Option<(SourceId, Tier)> {
        let busy = || self.sources.iter().filter(|(_, s)| s.waiting() > 0);
        if !self.contract() {
            let first = busy().min_by_key(|(_, s)| s.frames[0].1)?;
            return Some((*first.0, Tier::Fifo));
        }
        let real_time = busy().filter(|(_, s)| s.config.deadline.is_some());
        if let Some((&id, _)) = real_time.min_by_key(|(_, s)| (s.deadline(), s.index)) {
            return Some((id, Tier::RealTime));
        }
        let eligible = busy().filter(|(_, s)| s.eligible(now, &self.config));
        if let Some((&id, _)) = eligible.min_by_key(|(_, s)| (s.due(&self.config), s.index)) {
            return Some((id, Tier::Minimum));
        }
        let (&id, _) = busy().min_by_key(|(_, s)| (s.start_tag(), s.index))?;
        Some((id, Tier::Share))
    }

    /// Returns the head, or `Err(true)` if it has to wait for the rate.
    pub(super) fn head(&self, now: u64) -> Result<(SourceId, Tier, Queued<u32>, u32), bool> {
        let (id, tier) = self.turn(now).ok_or(false)?;
        let source = &self.sources[&id];
        let part = source.part(&self.config);
        let is_exempt = tier == Tier::RealTime && self.config.kind == EgressKind::Virtual;
        match &self.bucket {
            Some(b) if !is_exempt && b.conforms_at(now, part.into()) > now => Err(true),
            _ => Ok((id, tier, source.head().ok_or(false)?, part)),
        }
    }

    pub(super) fn take(&mut self, now: u64, bytes: u32) -> Option<(SourceId, Tier, Queued<u32>)> {
        let (id, tier, head, _) = self.head(now).ok()?;
        let queued = Queued { bytes: head.bytes.min(bytes), ..head };
        match (&mut self.bucket, self.config.kind) {
            (Some(bucket), EgressKind::Virtual) => {
                bucket.charge_waiting(queued.enqueued, now, queued.bytes.into());
            }
            (Some(bucket), _) => bucket.charge(now, queued.bytes.into()),
            (None, _) => {}
        }
        let patience = hold_limit(self.config.rate);
        let source = self.sources.get_mut(&id)?;
        match tier {
            Tier::Minimum => {
                source.charged += i128::from(queued.bytes) * PER_BYTE;
                let rate = source.config.min.map_or(0, Rate::bits);
                let most = i128::from(patience) * i128::from(rate);
                if source.ahead(now) < -most {
                    source.restart(now, -most);
                }
            }
            Tier::Share => {
                self.virtual_time = self.virtual_time.max(source.start_tag());
                source.served += u128::from(queued.bytes);
                self.furthest = self.furthest.max(source.start_tag());
            }
            _ => {}
        }
        let source = self.sources.get_mut(&id)?;
        match &source.flows {
            Some(flows) => _ = flows.borrow_mut().take(queued.bytes),
            None if queued.bytes == head.bytes => _ = source.frames.pop_front(),
            None => source.frames[0].0.bytes -= queued.bytes,
        }
        source.sharing &= source.waiting() > 0;
        Some((id, tier, queued))
    }

    pub(super) fn remove(&mut self, id: SourceId) {
        self.free.extend(self.sources.remove(&id).map(|source| source.index));
    }

    /// Drops the oldest frame of a source, or the newest; with flow queues, the oldest of the longest flow.
    pub(super) fn drop_one(&mut self, id: SourceId, newest: bool) -> Option<Queued<u32>> {
        let source = self.sources.get_mut(&id)?;
        let popped = if newest { source.pop_newest() } else { source.pop_oldest() }?;
        source.sharing &= source.waiting() > 0;
        Some(popped)
    }

    /// Returns the frame dropped for one of `bytes` without room: of the longest flow, if that can make
    /// room.
    pub(super) fn make_room(&mut self, id: SourceId, bytes: u32) -> Option<Queued<u32>> {
        let unpromised = |s: &Source| !s.config.promised();
        let all: u64 = self.sources.values().filter(|s| unpromised(s)).map(Source::bytes).sum();
        let source = self.sources.get(&id)?;
        let others = all - if unpromised(source) { source.bytes() } else { 0 };
        let bytes = u64::from(bytes);
        let fits = bytes <= source.config.cap_bytes
            && source.config.cap_frames > 0
            && (!unpromised(source) || others + bytes <= self.config.queue);
        if fits && source.flows.is_some() { self.drop_one(id, true) } else { None }
    }

    /// Judges the ready frame of a source with flow queues.
    pub(super) fn judge(&mut self, now: u64, ect: bool) -> Option<Verdict> {
        let (id, ..) = self.head(now).ok()?;
        Some(self.sources[&id].flows.as_ref()?.borrow_mut().judge(now, || ect))
    }

    pub(super) fn drop_part(&mut self, now: u64, bytes: u32) -> Option<(SourceId, Queued<u32>)> {
        let (id, ..) = self.head(now).ok()?;
        let source = self.sources.get_mut(&id)?;
        let dropped = source.flows.as_ref()?.borrow_mut().drop_head(bytes)?;
        source.sharing &= source.waiting() > 0;
        Some((id, dropped))
    }

    pub(super) fn active_flows(&self) -> u32 {
        self.sources.values().filter_map(|s| Some(s.flows.as_ref()?.borrow().active())).sum()
    }

    pub(super) fn expire(&mut self, now: u64, hold: u64) -> Vec<(SourceId, Queued<u32>)> {
        let mut dropped = Vec::new();
        let contract = self.contract();
        for (&id, source) in &mut self.sources {
            while let Some(oldest) = source.oldest() {
                let late = if contract && source.config.deadline.is_some() {
                    source.deadline() < now
                } else {
                    now - oldest >= hold
                };
                if !late {
                    break;
                }
                dropped.extend(source.pop_oldest().map(|q| (id, q)));
            }
            source.sharing &= source.waiting() > 0;
        }
        dropped
    }
}
