//! A slow model of flow queues: lists of keys as in the RFC, with every question answered by looking at all
//! flows. No table of ways, arena or heap. Random sequences of all operations [must
//! agree](super::agreement) with it. CoDel is the same code: its own tests compare it with RFC 8289.

use super::codel::{Codel, ControlLaw};
use super::{FlowConfig, Verdict};
use crate::frame::FlowKey;
use crate::sched::Queued;
use std::collections::{BTreeMap, VecDeque};

#[derive(Default)]
struct Flow {
    /// With their numbers of arrival.
    frames: VecDeque<(Queued<u32>, u64)>,
    deficit: i64,
    codel: Codel,
    host: u32,
    listed: bool,
    /// Number among the flows that began to wait; decides between flows of equal length.
    index: usize,
}

impl Flow {
    fn bytes(&self) -> u64 {
        self.frames.iter().map(|(queued, _)| u64::from(queued.bytes)).sum()
    }
}

pub(super) struct Model {
    config: FlowConfig,
    flows: BTreeMap<u32, Flow>,
    new: VecDeque<u32>,
    /// Hosts in turn, and each one's flows.
    hosts: VecDeque<u32>,
    old: BTreeMap<u32, VecDeque<u32>>,
    deficits: BTreeMap<u32, i64>,
    arrivals: u64,
    /// The flow whose first frame must be marked.
    marked: Option<u32>,
}

impl Model {
    pub(super) fn new(config: FlowConfig) -> Self {
        Self {
            config,
            flows: BTreeMap::new(),
            new: VecDeque::new(),
            hosts: VecDeque::new(),
            old: BTreeMap::new(),
            deficits: BTreeMap::new(),
            arrivals: 0,
            marked: None,
        }
    }

    pub(super) fn set_config(&mut self, config: FlowConfig) {
        let regrouped = self.config.per_host != config.per_host;
        self.config = config;
        if regrouped {
            self.rest();
            let mut waiting: Vec<_> = self.flows.iter().filter(|(_, f)| !f.frames.is_empty()).collect();
            waiting.sort_by_key(|(_, f)| f.index);
            let keys: Vec<_> =
                waiting.into_iter().map(|(&key, f)| FlowKey { flow: key, host: f.host }).collect();
            keys.into_iter().for_each(|key| self.activate(key));
            self.turn();
        }
    }

    fn host_of(&self, host: u32) -> u32 {
        if self.config.per_host { host } else { 0 }
    }

    fn activate(&mut self, key: FlowKey) {
        let host = self.host_of(key.host);
        if !self.flows.values().any(|flow| flow.listed && self.host_of(flow.host) == host) {
            self.deficits.insert(host, self.config.quantum.into());
        }
        let flow = self.flows.get_mut(&key.flow).unwrap();
        flow.listed = true;
        flow.deficit = self.config.quantum.into();
        self.new.push_back(key.flow);
    }

    pub(super) fn push(&mut self, key: FlowKey, queued: Queued<u32>) {
        let index = self.flows.len();
        let flow = self.flows.entry(key.flow).or_insert_with(|| Flow { index, ..Flow::default() });
        flow.host = key.host;
        flow.frames.push_back((queued, self.arrivals));
        self.arrivals += 1;
        if !flow.listed {
            self.activate(key);
        }
        self.turn();
    }

    /// Returns the flow whose turn it is: RFC 8290, 4.2, with a round of hosts around the old flows.
    fn turn(&mut self) -> Option<u32> {
        let quantum = i64::from(self.config.quantum);
        loop {
            if let Some(&key) = self.new.front() {
                let host = self.host_of(self.flows[&key].host);
                let owes = self.config.per_host && self.deficits[&host] <= 0;
                let flow = self.flows.get_mut(&key)?;
                if flow.deficit > 0 && !flow.frames.is_empty() && !owes {
                    return Some(key);
                }
                if flow.deficit <= 0 {
                    flow.deficit += quantum;
                }
                if flow.frames.is_empty() {
                    flow.codel.empty();
                }
                self.new.pop_front();
                self.old.entry(host).or_default().push_back(key);
                if !self.hosts.contains(&host) {
                    self.hosts.push_back(host);
                }
                continue;
            }
            let &host = self.hosts.front()?;
            let Some(&key) = self.old[&host].front() else {
                self.hosts.pop_front();
                continue;
            };
            if self.config.per_host && self.deficits[&host] <= 0 {
                *self.deficits.get_mut(&host)? += quantum;
                self.hosts.rotate_left(1);
                continue;
            }
            let flow = self.flows.get_mut(&key)?;
            let old = self.old.get_mut(&host)?;
            if flow.deficit <= 0 {
                flow.deficit += quantum;
                old.rotate_left(1);
            } else if flow.frames.is_empty() {
                flow.codel.empty();
                flow.listed = false;
                old.pop_front();
            } else {
                return Some(key);
            }
        }
    }

    pub(super) fn head(&mut self) -> Option<Queued<u32>> {
        let key = self.turn()?;
        Some(self.flows[&key].frames[0].0)
    }

    pub(super) fn active(&self) -> usize {
        self.flows.values().filter(|flow| !flow.frames.is_empty()).count()
    }

    pub(super) fn part(&mut self, most: u64) -> Option<u32> {
        let each = (most / self.active().max(1) as u64).max(self.config.frame.into());
        Some(self.head()?.bytes.min(each.min(u32::MAX.into()) as u32))
    }

    /// Returns the flow of the head.
    pub(super) fn key(&mut self) -> Option<u32> {
        self.turn()
    }

    pub(super) fn target(&self) -> u64 {
        self.config.target.max(2 * self.config.turn * self.active() as u64)
    }

    pub(super) fn judge(&mut self, now: u64, ect: bool) -> Verdict {
        let Some(key) = self.turn() else { return Verdict::Pass };
        if self.marked == Some(key) {
            return Verdict::Mark;
        }
        let target = self.target();
        let flow = self.flows.get_mut(&key).unwrap();
        let law = ControlLaw { target, interval: self.config.interval, frame: self.config.frame };
        let head = flow.frames[0].0;
        let behind = flow.bytes() - u64::from(head.bytes.min(self.config.frame));
        let verdict = flow.codel.judge(now, now - head.enqueued, behind, &law, || ect);
        self.marked = (verdict == Verdict::Mark).then_some(key).or(self.marked);
        verdict
    }

    pub(super) fn take(&mut self, bytes: u32) -> Option<Queued<u32>> {
        let key = self.turn()?;
        let taken = self.shrink(key, bytes)?;
        let host = self.host_of(self.flows[&key].host);
        self.flows.get_mut(&key)?.deficit -= i64::from(taken.bytes);
        *self.deficits.get_mut(&host)? -= i64::from(taken.bytes);
        self.settle();
        Some(taken)
    }

    pub(super) fn yield_turn(&mut self) {
        let Some(key) = self.turn() else { return };
        let host = self.host_of(self.flows[&key].host);
        if self.new.front() == Some(&key) {
            self.new.pop_front();
            self.old.entry(host).or_default().push_back(key);
            if !self.hosts.contains(&host) {
                self.hosts.push_back(host);
            }
        } else {
            self.old.get_mut(&host).unwrap().rotate_left(1);
            self.hosts.rotate_left(1);
        }
        self.turn();
    }

    pub(super) fn drop_head(&mut self, bytes: u32) -> Option<Queued<u32>> {
        let key = self.turn()?;
        let dropped = self.shrink(key, bytes);
        let flow = self.flows.get_mut(&key)?;
        if flow.frames.is_empty() {
            flow.codel.empty();
        }
        self.settle();
        dropped
    }

    fn shrink(&mut self, key: u32, bytes: u32) -> Option<Queued<u32>> {
        self.marked = self.marked.filter(|marked| *marked != key);
        let frames = &mut self.flows.get_mut(&key)?.frames;
        let head = &mut frames.front_mut()?.0;
        if head.bytes > bytes {
            head.bytes -= bytes;
            return Some(Queued { bytes, ..*head });
        }
        Some(frames.pop_front()?.0)
    }

    pub(super) fn drop_longest(&mut self) -> Option<Queued<u32>> {
        let waiting = self.flows.iter().filter(|(_, flow)| !flow.frames.is_empty());
        let longest = waiting.max_by_key(|(_, flow)| (flow.bytes(), std::cmp::Reverse(flow.index)));
        let key = *longest?.0;
        let dropped = self.shrink(key, u32::MAX);
        self.settle();
        dropped
    }

    pub(super) fn oldest(&self) -> Option<u64> {
        let heads = self.flows.values().filter_map(|flow| flow.frames.front());
        Some(heads.min_by_key(|(_, arrival)| *arrival)?.0.enqueued)
    }

    pub(super) fn expire(&mut self, now: u64, hold: u64) -> Vec<Queued<u32>> {
        let mut dropped = Vec::new();
        while let Some((_, key)) = self.eldest()
            && now - self.flows[&key].frames[0].0.enqueued >= hold
        {
            dropped.extend(self.shrink(key, u32::MAX));
            self.settle();
        }
        dropped
    }

    /// Returns the flow of the oldest frame.
    fn eldest(&self) -> Option<(u64, u32)> {
        self.flows.iter().filter_map(|(key, flow)| Some((flow.frames.front()?.1, *key))).min()
    }

    pub(super) fn backlog(&self) -> (usize, u64) {
        (self.flows.values().map(|f| f.frames.len()).sum(), self.flows.values().map(Flow::bytes).sum())
    }

    /// Without waiting frames, no flow is in a list. Turns end at once.
    fn settle(&mut self) {
        if self.active() == 0 {
            self.rest();
        }
        self.turn();
    }

    fn rest(&mut self) {
        self.new.clear();
        self.hosts.clear();
        self.old.clear();
        for flow in self.flows.values_mut().filter(|flow| flow.listed) {
            flow.listed = false;
            flow.codel.empty();
        }
    }
}
