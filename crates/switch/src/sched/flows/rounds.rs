//! The flows' turns: DRR++ (RFC 8290, 4.2), within the hosts' turns.
//!
//! ```text
//!   new     f7 ▸ f3                                 flows that had nothing waiting: first
//!   hosts   h1 ───────────────▸ h2                  then the hosts in turn,
//!           old f1 ▸ f4 ▸ f9    old f2              and each host's flows in turn
//! ```
//!
//! A flow has a deficit, bytes that it may send in its turn: a quantum at first, and one more whenever its
//! turn comes without any left. A beginning flow is *new* for one quantum, or until it has no more frames;
//! then it is *old*, so it cannot be new before all others had their turns. It becomes idle when its turn
//! comes without frames.
//!
//! If hosts must be equal, a host also has a deficit, which all of its flows use up, and its flows are new
//! only while some is left: a host with a million flows of one frame each sends no more than its neighbour
//! with one. Otherwise all flows belong to one host.
//!
//! A frame of 64 KB uses up 218 quanta of 300 bytes. After a whole round without a turn, further such
//! rounds are skipped: each flow gets all their quanta at once.

use super::codel::Codel;
use super::ways::{Index, NONE};
use crate::frame::FlowKey;
use crate::sched::arena::List;

/// A flow.
#[derive(Clone, Debug)]
pub(super) struct Flow {
    pub(super) list: List,
    pub(super) codel: Codel,
    pub(super) key: FlowKey,
    /// Its first frame came when it had none.
    pub(super) is_sparse: bool,
    /// Bytes; at most a quantum.
    deficit: i64,
    pub(super) host: Index,
    next: Index,
    /// Number of its first frames up to the last one of a key that [shares](super::ways) it.
    pub(super) shared: u32,
    /// It has neither frames nor a turn.
    pub(super) is_idle: bool,
}

impl Flow {
    pub(super) fn new(key: FlowKey) -> Self {
        Self {
            list: List::default(),
            codel: Codel::default(),
            key,
            is_sparse: false,
            deficit: 0,
            host: 0,
            next: NONE,
            shared: 0,
            is_idle: true,
        }
    }
}

/// A host: the shared state of its flows.
#[derive(Clone, Debug)]
pub(super) struct Host {
    old: Chain,
    /// Bytes; at most a quantum.
    deficit: i64,
    next: Index,
    is_in_turn: bool,
    /// Flows that are not idle.
    pub(super) flows: u16,
}

impl Host {
    pub(super) const NEW: Self =
        Self { old: Chain::EMPTY, deficit: 0, next: NONE, is_in_turn: false, flows: 0 };
}

/// A list of flows or of hosts, from which only the front is removed.
#[derive(Clone, Copy, Debug)]
struct Chain {
    first: Index,
    last: Index,
}

trait Linked {
    fn next(&self) -> Index;
    fn set_next(&mut self, next: Index);
}

impl Linked for Flow {
    fn next(&self) -> Index {
        self.next
    }

    fn set_next(&mut self, next: Index) {
        self.next = next;
    }
}

impl Linked for Host {
    fn next(&self) -> Index {
        self.next
    }

    fn set_next(&mut self, next: Index) {
        self.next = next;
    }
}

impl Chain {
    const EMPTY: Self = Self { first: NONE, last: NONE };

    #[inline]
    fn first(self) -> Option<Index> {
        (self.first != NONE).then_some(self.first)
    }

    fn push<L: Linked>(&mut self, all: &mut [L], index: Index) {
        all[usize::from(index)].set_next(NONE);
        match all.get_mut(usize::from(self.last)) {
            Some(last) => last.set_next(index),
            None => self.first = index,
        }
        self.last = index;
    }

    fn pop<L: Linked>(&mut self, all: &mut [L]) {
        self.first = all[usize::from(self.first)].next();
        if self.first == NONE {
            self.last = NONE;
        }
    }

    /// Moves the first to the end.
    fn rotate<L: Linked>(&mut self, all: &mut [L]) {
        if self.first != self.last {
            let first = self.first;
            self.pop(all);
            self.push(all, first);
        }
    }

    fn iter<L: Linked>(self, all: &[L]) -> impl Iterator<Item = Index> {
        let some = |index| (index != NONE).then_some(index);
        std::iter::successors(self.first(), move |index| some(all[usize::from(*index)].next()))
    }
}

/// All flows and hosts, and their turns.
#[derive(Debug)]
pub(super) struct Rounds {
    pub(super) flows: Vec<Flow>,
    pub(super) hosts: Vec<Host>,
    new: Chain,
    ring: Chain,
    pub(super) quantum: u32,
    /// Hosts must be equal.
    pub(super) per_host: bool,
    /// Looks at flows and hosts during the search for turns.
    #[cfg(test)]
    pub(super) visits: std::cell::Cell<usize>,
}

impl Rounds {
    pub(super) fn new(quantum: u32, per_host: bool) -> Self {
        Self {
            flows: Vec::new(),
            hosts: vec![Host::NEW],
            new: Chain::EMPTY,
            ring: Chain::EMPTY,
            quantum,
            per_host,
            #[cfg(test)]
            visits: std::cell::Cell::default(),
        }
    }

    #[inline]
    fn note_visit(&self) {
        #[cfg(test)]
        self.visits.set(self.visits.get() + 1);
    }

    /// Activates an idle flow, which belongs to `host`.
    pub(super) fn activate(&mut self, index: Index, host: Index) {
        let quantum = i64::from(self.quantum);
        let (flow, of) = (&mut self.flows[usize::from(index)], &mut self.hosts[usize::from(host)]);
        if of.flows == 0 {
            of.deficit = quantum;
        }
        of.flows += 1;
        (flow.host, flow.deficit, flow.is_idle) = (host, quantum, false);
        self.new.push(&mut self.flows, index);
    }

    /// Returns the flow whose turn it is.
    #[inline]
    pub(super) fn first(&self) -> Option<Index> {
        self.new.first().or_else(|| self.hosts[usize::from(self.ring.first()?)].old.first())
    }

    /// Returns how many bytes a flow may send in its turn; its last frame may be longer.
    #[inline]
    pub(super) fn credit(&self, index: Index) -> i64 {
        let Flow { deficit, host, .. } = self.flows[usize::from(index)];
        if self.per_host { deficit.min(self.hosts[usize::from(host)].deficit) } else { deficit }
    }

    /// Gives the turn to a flow with frames and credit, if any: after every change. The RFC does so when
    /// the next frame is to leave, so that a new arrival finds its flow new; here the time of the question
    /// does not matter.
    ///
    /// Looks at each flow and host a few times at most, however many quanta they lack.
    pub(super) fn settle(&mut self) {
        while let Some(index) = self.new.first() {
            let flow = &self.flows[usize::from(index)];
            if flow.deficit > 0 && !flow.list.is_empty() && !self.is_in_debt(flow.host) {
                return;
            }
            self.grow_old(index);
        }
        let mut passed = 0;
        while let Some(turn) = self.ring.first() {
            self.note_visit();
            if self.hosts[usize::from(turn)].old.first().is_none() {
                self.leave_ring(turn);
            } else if !self.is_in_debt(turn) {
                if self.settle_host(turn) {
                    return;
                }
            } else if passed < self.hosts.len() {
                passed += 1;
                self.hosts[usize::from(turn)].deficit += i64::from(self.quantum);
                self.ring.rotate(&mut self.hosts);
            } else {
                passed = 0;
                self.skip_hosts();
            }
        }
    }

    /// Ends the turn of a new flow.
    fn grow_old(&mut self, index: Index) {
        self.note_visit();
        self.new.pop(&mut self.flows);
        let flow = &mut self.flows[usize::from(index)];
        if flow.deficit <= 0 {
            flow.deficit += i64::from(self.quantum);
        }
        if flow.list.is_empty() {
            flow.codel.empty();
        }
        let host = flow.host;
        self.hosts[usize::from(host)].old.push(&mut self.flows, index);
        if !std::mem::replace(&mut self.hosts[usize::from(host)].is_in_turn, true) {
            self.ring.push(&mut self.hosts, host);
        }
    }

    /// Gives the turn to a flow of the present host; whether one has frames. All others are idle then.
    fn settle_host(&mut self, turn: Index) -> bool {
        let mut passed = 0;
        while let Some(index) = self.hosts[usize::from(turn)].old.first() {
            self.note_visit();
            let host = &mut self.hosts[usize::from(turn)];
            let flow = &mut self.flows[usize::from(index)];
            if flow.deficit <= 0 {
                if passed < host.flows {
                    passed += 1;
                    flow.deficit += i64::from(self.quantum);
                    host.old.rotate(&mut self.flows);
                } else {
                    passed = 0;
                    self.skip_flows(turn);
                }
            } else if flow.list.is_empty() {
                host.old.pop(&mut self.flows);
                self.idle(index);
            } else {
                return true;
            }
        }
        false
    }

    /// Skips all rounds of a host's flows in which none with frames may send. Flows without frames become
    /// idle in them.
    #[cold]
    fn skip_flows(&mut self, turn: Index) {
        let old = self.hosts[usize::from(turn)].old;
        let with_frames = old.iter(&self.flows).filter(|index| self.has_frames(*index));
        let rounds =
            with_frames.map(|index| self.quanta_needed(self.flows[usize::from(index)].deficit)).min();
        // Without frames they end with all idle.
        let rounds = rounds.unwrap_or(i64::MAX);
        for _ in 0..self.hosts[usize::from(turn)].flows {
            let old = &mut self.hosts[usize::from(turn)].old;
            let Some(index) = old.first() else { return };
            if !self.has_frames(index) && self.quanta_needed(self.flows[usize::from(index)].deficit) < rounds
            {
                self.hosts[usize::from(turn)].old.pop(&mut self.flows);
                self.idle(index);
            } else {
                self.flows[usize::from(index)].deficit += rounds * i64::from(self.quantum);
                self.hosts[usize::from(turn)].old.rotate(&mut self.flows);
            }
        }
    }

    /// Skips all rounds of the hosts in which none with frames may send. Hosts without frames leave the
    /// ring in them.
    #[cold]
    fn skip_hosts(&mut self) {
        let with_frames = self.ring.iter(&self.hosts).filter(|host| self.host_has_frames(*host));
        let rounds = with_frames.map(|host| self.quanta_needed(self.hosts[usize::from(host)].deficit)).min();
        let rounds = rounds.unwrap_or(i64::MAX);
        for _ in 0..self.ring.iter(&self.hosts).count() {
            let Some(host) = self.ring.first() else { return };
            let lacks = self.quanta_needed(self.hosts[usize::from(host)].deficit);
            if lacks < rounds && !self.host_has_frames(host) {
                self.leave_ring(host);
            } else {
                self.hosts[usize::from(host)].deficit += rounds * i64::from(self.quantum);
                self.ring.rotate(&mut self.hosts);
            }
        }
    }

    /// Whether a host in the ring has frames, if no flow is new.
    fn host_has_frames(&self, host: Index) -> bool {
        self.note_visit();
        self.hosts[usize::from(host)].old.iter(&self.flows).any(|flow| self.has_frames(flow))
    }

    fn has_frames(&self, flow: Index) -> bool {
        self.note_visit();
        !self.flows[usize::from(flow)].list.is_empty()
    }

    /// Returns how many quanta a flow or host of this deficit needs before it may send.
    fn quanta_needed(&self, deficit: i64) -> i64 {
        if deficit > 0 { 0 } else { -deficit / i64::from(self.quantum) + 1 }
    }

    fn is_in_debt(&self, host: Index) -> bool {
        self.per_host && self.hosts[usize::from(host)].deficit <= 0
    }

    /// Lets the other flows of its host, and the other hosts, go before the flow whose turn it is, which
    /// keeps its deficit.
    pub(super) fn yield_turn(&mut self) {
        if let Some(index) = self.new.first() {
            self.grow_old(index);
        } else if let Some(turn) = self.ring.first() {
            self.hosts[usize::from(turn)].old.rotate(&mut self.flows);
            self.ring.rotate(&mut self.hosts);
        }
        self.settle();
    }

    /// Charges a flow for sent bytes.
    #[inline]
    pub(super) fn charge(&mut self, index: Index, bytes: u32) {
        let flow = &mut self.flows[usize::from(index)];
        flow.deficit -= i64::from(bytes);
        if self.per_host {
            self.hosts[usize::from(flow.host)].deficit -= i64::from(bytes);
        }
    }

    /// Makes all flows idle: none has frames, so none has to wait for another's turn.
    pub(super) fn idle_all(&mut self) {
        while let Some(index) = self.new.first() {
            self.new.pop(&mut self.flows);
            self.idle(index);
        }
        while let Some(turn) = self.ring.first() {
            self.leave_ring(turn);
        }
    }

    /// Takes the present host, which has no frames, out of the ring: its flows are idle.
    fn leave_ring(&mut self, turn: Index) {
        self.ring.pop(&mut self.hosts);
        self.hosts[usize::from(turn)].is_in_turn = false;
        while let Some(index) = self.hosts[usize::from(turn)].old.first() {
            self.note_visit();
            self.hosts[usize::from(turn)].old.pop(&mut self.flows);
            self.idle(index);
        }
    }

    fn idle(&mut self, index: Index) {
        let flow = &mut self.flows[usize::from(index)];
        flow.codel.empty();
        flow.is_idle = true;
        self.hosts[usize::from(flow.host)].flows -= 1;
    }
}
