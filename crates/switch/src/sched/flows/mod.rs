//! Flow queues: frames that wait for a rate, each flow by itself (RFC 8290, FQ-CoDel). Pure: no I/O and no clock.
//!
//! ```text
//!            ┌ ways ────────┐        ┌ flow 1  ▤▤▤▤▤▤ ┐   rounds            codel
//!  push ────▶│ key ▸ flow,  │───────▶│ flow 2  ▤      │──▶ sparse first, ──▶ judge ──▶ take: a part, or all
//!  (key,     │ host         │        │ flow 3  ▤▤▤    │    then in turn        │
//!   frame)   └──────────────┘        └────────────────┘                        ├─▶ Mark: the part carries CE
//!                                       │          │                           └─▶ Drop: drop_head
//!                              ages: expire    by bytes: drop_longest
//! ```
//!
//! A flow with few frames does not wait behind one with many: a new flow has its turn at once, and the
//! others have theirs in rounds, a quantum of bytes each. A flow whose frames wait too long must send less:
//! some of its own frames are marked or dropped, and none of another flow.
//!
//! Frames leave in *parts*: a super-frame of 64 KB would delay all others for 26 ms at 20 Mbit/s. The queue
//! [computes](Flows::part) the length of a part; the caller takes whole segments. The rest of a frame stays
//! the first of its flow.
//!
//! - `ways`: the flow of a key; bounded, whatever senders do
//! - `rounds`: the flows' turns
//! - `turn`: frames that leave together in a turn
//! - `codel`: flows that must send less
//! - `verdict`: the verdict on a frame that waited
//! - `ages`: all frames by age
//!
//! Memory doubles when more flows or frames wait than ever before, up to 1024 flows; not per frame. It does
//! not shrink: the scheduler replaces [large](Flows::is_large) queues that stay empty. An operation costs
//! O(log n) in the n flows with frames, and the search for the next turn: mostly one look at a flow for
//! each quantum of a frame; if all flows have used up their credit, a few looks at each of at most 1024.

mod ages;
mod codel;
mod rounds;
mod turn;
mod verdict;
mod ways;

#[cfg(test)]
mod agreement;
#[cfg(test)]
mod model;
#[cfg(test)]
mod promises;

use super::arena::{Arena, Node};
use super::heap::SourceHeap;
use super::hold::overdue;
use super::{Backlog, Queued};
use crate::frame::FlowKey;
use ages::Ages;
use codel::ControlLaw;
use rounds::{Flow, Host, Rounds};
use tidegate_contract::{FlowQueueing, Rate};
pub(super) use turn::Turn;
pub use verdict::Verdict;
use ways::{Index, Lookup, NONE, Ways};

/// Largest frame of an ordinary link (bytes).
const FRAME: u32 = tidegate_contract::frame::FRAME as u32;
/// Least quantum (bytes), and quanta per second of the rate otherwise: as in cake.
const QUANTUM: u32 = 300;
const QUANTA: u64 = 4096;
/// Initial room for nodes.
const ROOM: usize = 16;
/// Flows and frames of a queue that is not large: some 10 kB.
const FEW_FLOWS: usize = 32;
const FEW_FRAMES: usize = 128;

/// How flows are queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowConfig {
    /// Shortest wait that is too long (ns; RFC 8289, 4.3).
    pub target: u64,
    /// How long it must be too long before the sender is informed (ns; RFC 8289, 4.3); at most 2^32.
    pub interval: u64,
    /// Hosts get equal shares, and each host's flows share its part; otherwise all flows get equal shares.
    pub per_host: bool,
    /// Bytes that a flow gets per turn. A flow sends a longer frame after several turns, so that a flow of
    /// small frames does not wait for a full frame of each other flow.
    pub quantum: u32,
    /// Largest uncut frame (bytes).
    pub frame: u32,
    /// Time of that frame at the rate for which frames wait (ns).
    pub turn: u64,
}

impl FlowConfig {
    /// Makes it from a vNIC's contract, where frames of up to `frame` bytes, or super-frames cut to these,
    /// wait for `rate`.
    pub fn new(queueing: &FlowQueueing, frame: u32, rate: Rate) -> Self {
        let frame = frame.max(FRAME);
        let quantum = u32::try_from(rate.bits() / 8 / QUANTA).unwrap_or(u32::MAX).clamp(QUANTUM, frame);
        Self {
            target: queueing.target.get(),
            interval: queueing.interval.get(),
            per_host: queueing.per_host,
            quantum,
            frame,
            turn: u64::from(frame) * 8_000_000_000 / rate.bits(),
        }
    }
}

/// Returns the bytes of a frame that may leave at a rate before another flow's turn: those of a
/// millisecond.
pub fn part(rate: Rate) -> u64 {
    rate.bits() / 8_000
}

/// A frame with a flow.
pub trait Keyed: Copy {
    /// Returns its flow and host.
    fn flow_key(&self) -> FlowKey;
}

/// Flow queues. See the [module](self).
#[derive(Debug)]
pub struct Flows<T> {
    config: FlowConfig,
    arena: Arena<T>,
    ages: Ages,
    rounds: Rounds,
    flow_ways: Ways,
    host_ways: Ways,
    /// Flows with frames, the one with most bytes first.
    longest: SourceHeap,
    total: Backlog,
    /// Number of flows with frames.
    active: u32,
    /// The flow whose first frame must be marked, and has not left.
    marked: Index,
}

impl<T: Copy> Flows<T> {
    /// Returns empty queues.
    pub fn new(config: FlowConfig) -> Self {
        Self {
            config,
            arena: Arena::with_room(ROOM),
            ages: Ages::new(),
            rounds: Rounds::new(config.quantum, config.per_host),
            flow_ways: Ways::new(),
            host_ways: Ways::new(),
            longest: SourceHeap::default(),
            total: Backlog::default(),
            active: 0,
            marked: NONE,
        }
    }

    /// Changes how flows are queued; all frames stay in their flows' order.
    pub fn set_config(&mut self, config: FlowConfig) {
        self.rounds.quantum = config.quantum;
        let regrouped = self.config.per_host != config.per_host;
        self.config = config;
        if regrouped {
            self.rounds.idle_all();
            self.rounds.per_host = config.per_host;
            for index in 0..self.rounds.flows.len() as Index {
                if !self.rounds.flows[usize::from(index)].list.is_empty() {
                    self.activate(index);
                }
            }
            self.rounds.settle();
        }
    }

    /// Whether more flows or frames waited here than few senders have: up to 150 kB of memory.
    #[inline]
    pub fn is_large(&self) -> bool {
        self.rounds.flows.len() > FEW_FLOWS || self.arena.most() > FEW_FRAMES
    }

    /// Returns the settings.
    pub fn config(&self) -> &FlowConfig {
        &self.config
    }

    /// Adds a frame behind those of its flow. The caller has checked the room: nothing is dropped here.
    ///
    /// # Panics
    /// With 2^32 - 1 waiting frames; memory ends long before.
    pub fn push(&mut self, key: FlowKey, queued: Queued<T>) {
        self.push_numbered(key, queued, 0);
    }

    /// Adds a frame with a number for [leaving](Self::pop_numbered) to another queue.
    pub(super) fn push_numbered(&mut self, key: FlowKey, queued: Queued<T>, number: u64) {
        let index = self.flow(key);
        let flow = &mut self.rounds.flows[usize::from(index)];
        if flow.list.is_empty() {
            flow.is_sparse = true;
            self.active += 1;
        }
        let node = self.arena.push_back(&mut flow.list, queued, number);
        self.ages.push(node, index);
        self.total.frames += 1;
        self.total.bytes += u64::from(queued.bytes);
        if flow.is_idle {
            self.activate(index);
        }
        self.set_length(index);
        self.rounds.settle();
    }

    /// Returns the flow of a key.
    #[inline]
    fn flow(&mut self, key: FlowKey) -> Index {
        let flows = &mut self.rounds.flows;
        let next = flows.len() as Index;
        let is_idle = |index| flows[usize::from(index)].is_idle;
        let is_shared = |index| flows[usize::from(index)].shared > 0;
        match self.flow_ways.place(key.flow, next, is_idle, is_shared) {
            Lookup::Known(index) => index,
            Lookup::Shared(index) => {
                let flow = &mut flows[usize::from(index)];
                // Including the new frame.
                flow.shared = flow.list.frames + 1;
                index
            }
            Lookup::Reused(index) => {
                flows[usize::from(index)] = Flow::new(key);
                index
            }
            Lookup::New => {
                flows.push(Flow::new(key));
                self.longest.reserve(next);
                next
            }
        }
    }

    /// Gives an idle flow its place: it has frames now.
    fn activate(&mut self, index: Index) {
        let key = self.rounds.flows[usize::from(index)].key.host;
        let hosts = &mut self.rounds.hosts;
        let host = if self.config.per_host {
            // If hosts do not count, all flows belong to the host without a number.
            let next = hosts.len() as Index;
            let is_idle = |index| hosts[usize::from(index)].flows == 0;
            match self.host_ways.place(key, next, is_idle, |_| false) {
                Lookup::Known(host) | Lookup::Shared(host) | Lookup::Reused(host) => host,
                Lookup::New => {
                    hosts.push(Host::NEW);
                    next
                }
            }
        } else {
            0
        };
        self.rounds.activate(index, host);
    }

    /// Returns the frame whose turn it is: the same until a push, take or drop.
    #[inline]
    pub fn head(&self) -> Option<&Queued<T>> {
        self.first().map(|node| &node.queued)
    }

    /// Whether the frame whose turn it is came when its flow had no frames: so does every frame of a sparse
    /// flow.
    #[inline]
    pub fn is_sparse(&self) -> bool {
        self.rounds.first().is_some_and(|index| self.rounds.flows[usize::from(index)].is_sparse)
    }

    /// Returns the node of the frame whose turn it is.
    #[inline]
    pub(super) fn first(&self) -> Option<&Node<T>> {
        self.arena.front(&self.rounds.flows[usize::from(self.rounds.first()?)].list)
    }

    /// Returns the frames' memory.
    pub(super) fn arena(&self) -> &Arena<T> {
        &self.arena
    }

    /// Returns how many bytes of the frame whose turn it is may leave at once, if `most` bytes may go
    /// before another flow's turn: a round of all flows takes no longer, if that allows each a frame.
    #[inline]
    pub fn part(&self, most: u64) -> Option<u32> {
        Some(self.head()?.bytes.min(self.longest_part(most)))
    }

    /// Returns how many bytes of any frame may leave at once.
    #[inline]
    fn longest_part(&self, most: u64) -> u32 {
        let each = most / u64::from(self.active.max(1));
        u32::try_from(each).unwrap_or(u32::MAX).max(self.config.frame)
    }

    /// Returns the present law for flows.
    #[inline]
    fn law(&self) -> ControlLaw {
        let FlowConfig { target, interval, frame, turn, .. } = self.config;
        // In a flow that sends one frame per turn of all others, each frame waits for a round.
        ControlLaw { target: target.max(turn.saturating_mul(2 * u64::from(self.active))), interval, frame }
    }

    /// Judges the frame whose turn it is, just before it leaves; `Pass` without one. `ect`: whether its
    /// sender [understands marks](crate::frame::ect); called only if it must be informed.
    ///
    /// A part that must be marked gets the same verdict until it has left, or its frame was dropped.
    pub fn judge(&mut self, now: u64, ect: impl FnOnce() -> bool) -> Verdict {
        let Some(index) = self.rounds.first() else { return Verdict::Pass };
        if index == self.marked {
            return Verdict::Mark;
        }
        let law = self.law();
        let flow = &mut self.rounds.flows[usize::from(index)];
        let Some(head) = self.arena.front(&flow.list).map(|node| node.queued) else { return Verdict::Pass };
        let (sojourn, behind) = law.seen(now, &head, flow.list.bytes);
        let verdict = flow.codel.judge(now, sojourn, behind, &law, ect);
        if verdict == Verdict::Mark {
            self.marked = index;
        }
        verdict
    }

    /// Takes at most `bytes` of the frame whose turn it is, and charges its flow; the result has the taken
    /// bytes. The rest stays the first of its flow.
    pub fn take(&mut self, bytes: u32) -> Option<Queued<T>> {
        let index = self.rounds.first()?;
        let taken = self.shrink(index, bytes)?;
        self.rounds.charge(index, taken.bytes);
        self.note_removed(index, taken.bytes);
        Some(taken)
    }

    /// Lets other flows go before the one whose turn it is, which cannot send now. A new one becomes old;
    /// its next turn comes after a round.
    pub fn yield_turn(&mut self) {
        self.rounds.yield_turn();
    }

    /// Drops at most `bytes` of the frame whose turn it is, after [`Verdict::Drop`]. Its flow is not
    /// charged.
    pub fn drop_head(&mut self, bytes: u32) -> Option<Queued<T>> {
        let index = self.rounds.first()?;
        let dropped = self.shrink(index, bytes)?;
        let flow = &mut self.rounds.flows[usize::from(index)];
        if flow.list.is_empty() {
            flow.codel.empty();
        }
        self.note_removed(index, dropped.bytes);
        Some(dropped)
    }

    /// Drops the oldest frame of the flow with most bytes.
    pub fn drop_longest(&mut self) -> Option<Queued<T>> {
        let index = self.longest.first()?;
        self.pop(index)
    }

    /// Takes out the oldest frame of all.
    pub fn pop_oldest(&mut self) -> Option<Queued<T>> {
        self.pop(self.ages.oldest()?)
    }

    /// Takes out the oldest frame of all, with its number of [`push_numbered`](Self::push_numbered).
    pub(super) fn pop_numbered(&mut self) -> Option<(Queued<T>, u64)> {
        let index = self.ages.oldest()?;
        let number = self.arena.front(&self.rounds.flows[usize::from(index)].list)?.arrival;
        Some((self.pop(index)?, number))
    }

    /// Drops frames that have waited for `hold` ns, oldest first, into `dropped`. Nearly free without any.
    pub fn expire(&mut self, now: u64, hold: u64, mut dropped: impl FnMut(Queued<T>)) {
        while let Some(oldest) = self.oldest()
            && overdue(oldest, hold, now)
            && let Some(queued) = self.pop_oldest()
        {
            dropped(queued);
        }
    }

    /// Takes out all frames, oldest first.
    pub fn drain(&mut self, mut drained: impl FnMut(Queued<T>)) {
        while let Some(queued) = self.pop_oldest() {
            drained(queued);
        }
    }

    /// Returns since when the oldest frame waits (ns).
    #[inline]
    pub fn oldest(&self) -> Option<u64> {
        let flow = &self.rounds.flows[usize::from(self.ages.oldest()?)];
        self.arena.front(&flow.list).map(|node| node.queued.enqueued)
    }

    /// Returns the waiting frames and bytes.
    #[inline]
    pub fn backlog(&self) -> Backlog {
        self.total
    }

    /// Returns the number of flows with frames.
    #[inline]
    pub fn active(&self) -> u32 {
        self.active
    }

    /// Takes out the first frame of a flow.
    fn pop(&mut self, index: Index) -> Option<Queued<T>> {
        let queued = self.shrink(index, u32::MAX)?;
        self.note_removed(index, queued.bytes);
        Some(queued)
    }

    /// Takes at most `bytes` of the first frame of a flow.
    #[inline]
    fn shrink(&mut self, index: Index, bytes: u32) -> Option<Queued<T>> {
        if index == self.marked {
            self.marked = NONE;
        }
        let Flow { list, is_sparse, shared, .. } = &mut self.rounds.flows[usize::from(index)];
        if let Some(part) = self.arena.shrink_front(list, bytes) {
            return Some(part);
        }
        *is_sparse = false;
        self.ages.remove(list.first()?);
        let mut first = None;
        self.arena.pop_front(list, 1, |queued| first = Some(queued));
        self.total.frames -= 1;
        *shared = shared.saturating_sub(1);
        self.active -= u32::from(list.is_empty());
        first
    }

    /// Notes that so many bytes have left a flow.
    #[inline]
    fn note_removed(&mut self, index: Index, bytes: u32) {
        self.total.bytes -= u64::from(bytes);
        self.set_length(index);
        if self.total.frames == 0 {
            self.rounds.idle_all();
        } else {
            self.rounds.settle();
        }
    }

    /// Updates a flow's place by its bytes.
    #[inline]
    fn set_length(&mut self, index: Index) {
        let list = &self.rounds.flows[usize::from(index)].list;
        if list.is_empty() {
            self.longest.remove(index);
        } else {
            self.longest.set(index, u128::from(u64::MAX - list.bytes));
        }
    }
}
