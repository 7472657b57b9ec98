//! Whose turn it is: DRR++ (RFC 8290, 4.2), and the hosts' turns around it.
//!
//! ```text
//!   new     f7 ▸ f3                                 flows that had nothing waiting: first
//!   hosts   h1 ───────────────▸ h2                  then the hosts in turn,
//!           old f1 ▸ f4 ▸ f9    old f2              and each host's flows in turn
//! ```
//!
//! A flow has a deficit, bytes that it may send in its turn: a quantum to begin with, and one more whenever its turn has
//! come and it has none left. A flow that begins is *new* for one quantum, or until it has nothing more to send; then it is
//! *old*, so that it cannot be new again before all others had their turns. It is idle when its turn comes and it has no
//! frames.
//!
//! Where hosts are to be equal, a host has a deficit besides, which all of its flows use up, and its flows are new only
//! while it has some left: a host with a million flows of one frame each sends no more than its neighbour with one. Otherwise all
//! flows are one host's.

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
    /// Bytes; at most a quantum.
    deficit: i64,
    pub(super) host: Index,
    next: Index,
    /// It has no frames, and no turn.
    pub(super) is_idle: bool,
}

impl Flow {
    pub(super) fn new(key: FlowKey) -> Self {
        Self {
            list: List::default(),
            codel: Codel::default(),
            key,
            deficit: 0,
            host: 0,
            next: NONE,
            is_idle: true,
        }
    }
}

/// A host: what its flows share.
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

/// A list through flows, or through hosts, that is left at its front alone.
#[derive(Clone, Copy, Debug)]
struct Chain {
    first: Index,
    last: Index,
}

trait Linked {
    fn next(&mut self) -> &mut Index;
}

impl Linked for Flow {
    fn next(&mut self) -> &mut Index {
        &mut self.next
    }
}

impl Linked for Host {
    fn next(&mut self) -> &mut Index {
        &mut self.next
    }
}

impl Chain {
    const EMPTY: Self = Self { first: NONE, last: NONE };

    #[inline]
    fn first(self) -> Option<Index> {
        (self.first != NONE).then_some(self.first)
    }

    fn push<L: Linked>(&mut self, all: &mut [L], index: Index) {
        *all[usize::from(index)].next() = NONE;
        match all.get_mut(usize::from(self.last)) {
            Some(last) => *last.next() = index,
            None => self.first = index,
        }
        self.last = index;
    }

    fn pop<L: Linked>(&mut self, all: &mut [L]) {
        self.first = *all[usize::from(self.first)].next();
        if self.first == NONE {
            self.last = NONE;
        }
    }

    /// The first becomes the last.
    fn rotate<L: Linked>(&mut self, all: &mut [L]) {
        if self.first != self.last {
            let first = self.first;
            self.pop(all);
            self.push(all, first);
        }
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
    /// Hosts are to be equal.
    pub(super) per_host: bool,
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
        }
    }

    /// An idle flow has a frame now, and is of `host`.
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

    /// The flow whose turn it is.
    #[inline]
    pub(super) fn first(&self) -> Option<Index> {
        self.new.first().or_else(|| self.hosts[usize::from(self.ring.first()?)].old.first())
    }

    /// Gives the turn to a flow that has frames and may send, if any has: after every change. The RFC does so when the next
    /// frame is to leave, so that what comes meanwhile finds its flow new; here nothing depends on when that is asked.
    pub(super) fn settle(&mut self) {
        while let Some(index) = self.new.first() {
            let flow = &self.flows[usize::from(index)];
            if flow.deficit > 0 && !flow.list.is_empty() && !self.owes(flow.host) {
                return;
            }
            self.grow_old(index);
        }
        while let Some(turn) = self.ring.first() {
            if self.settle_host(turn) {
                return;
            }
        }
    }

    /// The turn of a new flow ends.
    fn grow_old(&mut self, index: Index) {
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

    /// Whether it is the turn of the first flow of the host whose turn it is; a turn ends otherwise.
    fn settle_host(&mut self, turn: Index) -> bool {
        let quantum = i64::from(self.quantum);
        let owes = self.owes(turn);
        let host = &mut self.hosts[usize::from(turn)];
        let Some(index) = host.old.first() else {
            host.is_in_turn = false;
            self.ring.pop(&mut self.hosts);
            return false;
        };
        if owes {
            host.deficit += quantum;
            self.ring.rotate(&mut self.hosts);
            return false;
        }
        let flow = &mut self.flows[usize::from(index)];
        if flow.deficit <= 0 {
            flow.deficit += quantum;
            host.old.rotate(&mut self.flows);
            return false;
        }
        if flow.list.is_empty() {
            host.old.pop(&mut self.flows);
            self.idle(index);
            return false;
        }
        true
    }

    fn owes(&self, host: Index) -> bool {
        self.per_host && self.hosts[usize::from(host)].deficit <= 0
    }

    /// A flow has sent so many bytes.
    #[inline]
    pub(super) fn charge(&mut self, index: Index, bytes: u32) {
        let flow = &mut self.flows[usize::from(index)];
        flow.deficit -= i64::from(bytes);
        if self.per_host {
            self.hosts[usize::from(flow.host)].deficit -= i64::from(bytes);
        }
    }

    /// Nothing waits: nobody has to wait for another's turn, so all flows are idle.
    pub(super) fn rest(&mut self) {
        while let Some(index) = self.new.first() {
            self.new.pop(&mut self.flows);
            self.idle(index);
        }
        while let Some(turn) = self.ring.first() {
            self.ring.pop(&mut self.hosts);
            self.hosts[usize::from(turn)].is_in_turn = false;
            while let Some(index) = self.hosts[usize::from(turn)].old.first() {
                self.hosts[usize::from(turn)].old.pop(&mut self.flows);
                self.idle(index);
            }
        }
    }

    fn idle(&mut self, index: Index) {
        let flow = &mut self.flows[usize::from(index)];
        flow.codel.empty();
        flow.is_idle = true;
        self.hosts[usize::from(flow.host)].flows -= 1;
    }
}
