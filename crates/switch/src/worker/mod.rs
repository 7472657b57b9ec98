//! A worker: one thread that owns ports and carries their frames.
//!
//! ```text
//!            ┌──────────────────── one loop ─────────────────────┐
//!  calls ──▶ │ ingress: rings, taps ─▶ checks, tokens ─┐         │
//!  peers ──▶ │                                         ▼         │ ──▶ peers (other workers)
//!            │ egress: scheduler ─▶ copy ─▶ receiver's buffers   │
//!            │ settle: descriptors back, delays, misses          │
//!            └── nothing to do: arm notifications, sleep ────────┘
//! ```
//!
//! - `budget`: how much of it all in one loop
//! - `loops`: the loops in which frames were late
//! - `turns`: whose turn it is, by what each port takes of the worker's time
//! - `bill`: what a delivery took, and whom it is charged to
//! - `ingress`: from links to egresses, under the senders' contracts
//!   - `decide`: whether a frame may be sent, and where it goes
//!   - `direct`: frames of one buffer, by the batch: from ring to ring, or to their egress
//!   - `inspect`, `send`: the others, one by one, to their egress
//!   - `cut`: super-frames in parts
//!   - `waiting`: frames of a port above its limit, by flow
//! - [`egress`]: into the scheduler, and what waits there
//! - `serve`: from the scheduler to the receiver
//!   - `flow_turns`: of flow queues, part by part
//!   - `parts`: super-frames whose receivers have too few buffers
//!   - `outstanding`: what links complete later
//!   - `between`: real-time frames in the middle of a loop
//! - [`addresses`]: link-local addresses that own ports use
//! - `shared`: addresses that own ports take from others
//! - [`flood`]: copies for broadcast, multicast and announcements
//! - `peers`: frames of other workers, whose time is divided too
//! - `fates`: what became of frames; [`settle`]: back at their source
//! - `missed`: deadlines that were missed
//! - [`crossing`]: rings between workers
//! - [`lending`]: receivers of other workers, for the direct way
//! - [`moving`]: a port goes to another worker
//! - `relief`: room in a ring of which half is in flight
//! - [`quiet`]: ports that have nothing to send cost nothing
//! - `affinity`: which CPUs its thread runs on
//! - [`sleep`]: notifications and sleep
//!   - [`gaps`](crate::port::gaps): when the next real-time frame is to be expected
//!   - `precise`: timers to the nanosecond
//!   - `awake`: for how much of the time to wait for it awake
//! - [`talk`]: whom ports send how much to
//! - [`trouble`]: what is wrong with ports
//! - [`watch`]: whose memory holds the worker up
//! - [`handover`]: an end with nothing in flight
//! - [`handle`]: how other threads reach a worker
//! - [`change`]: what they ask of it
//! - [`events`]: what it has to say, for another thread to put in words

mod addresses;
mod affinity;
mod awake;
mod bell;
mod between;
mod bill;
mod budget;
pub mod change;
mod count;
pub mod crossing;
mod cut;
mod decide;
mod direct;
pub mod egress;
#[cfg(test)]
mod equivalence;
pub mod events;
mod fates;
pub mod flood;
mod flow_turns;
pub mod handle;
pub mod handover;
mod inbox;
mod ingress;
mod inspect;
pub mod lending;
mod loops;
mod missed;
pub mod moving;
mod outstanding;
#[cfg(test)]
mod overload;
mod parts;
mod peers;
mod precise;
mod put_off;
mod quiet;
mod relief;
mod send;
mod serve;
pub mod settle;
mod shared;
pub mod sleep;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod token_waits;
pub mod trouble;
mod turns;
mod under_way;
mod waiting;
mod watch;
pub mod work;
#[cfg(test)]
mod writing;

pub(crate) use budget::DROPPED;
pub use handle::mailbox;
use inbox::Inbox;

use crate::capacity::VNICS;
use crate::claims::{Claims, Named};
use crate::clock::clock;
use crate::fdb::{Fdb, PortIndex};
use crate::link::Scratch;
use crate::port::gaps::Gaps;
use crate::port::{Port, PortInfo, PortSet};
use crate::slots::NEVER;
use crate::stats::LoopPart;
use crate::stats::layout::WorkerSlot;
use crate::virtio::sigbus;
use bell::Bell;
use between::Between;
use bill::Bill;
use crossing::{Crossing, Peer};
use events::{Event, Events};
use fates::Fates;
use flood::FloodPool;
use lending::{Lending, Lull};
use loops::Loops;
use peers::Senders;
use sleep::Sleeper;
use std::sync::Arc;
use trouble::Troubles;
use turns::Turns;
use watch::Watch;

/// Urgent crossings handled per loop and peer: a worker that others flood comes to its own ports too.
const CROSSINGS: usize = 256;

/// Calls answered per loop, so that front ends that never stop asking do not stop the frames.
const CALLS: usize = 4;

/// What another thread has a worker do, between two loops.
type Call = handle::Call<Worker>;

/// A running worker, as other threads see it.
pub type WorkerHandle = handle::Handle<Worker>;

/// A worker's ends towards the others, by their number; none at its own.
pub type Peers = Vec<Option<(Peer, Arc<Bell>)>>;

/// One worker's state.
pub struct Worker {
    id: u16,
    inbox: Inbox<Call>,
    /// Ports it owns, by index.
    ports: Vec<Option<Box<Port>>>,
    /// Indices of those.
    owned: Vec<PortIndex>,
    /// Those that are polled, in this order: real-time ones first. The others are quiet: they have nothing to send, and
    /// a kick or a descriptor tells when they do.
    polled: Vec<PortIndex>,
    /// How many of the polled ones are real-time.
    realtime: usize,
    /// Ports whose drivers are to be shown what was completed.
    touched: PortSet,
    /// All ports of the switch.
    infos: Vec<Option<PortInfo>>,
    /// Ports by segment.
    members: Vec<Vec<PortIndex>>,
    fdb: Arc<Fdb>,
    claims: Arc<Claims>,
    /// Receiving halves of all workers' ports.
    lending: Arc<Lending>,
    /// Own ports that other workers' frames came for, which could go directly.
    asked: PortSet,
    /// By the index of an own port.
    lulls: Box<[Lull]>,
    /// Ports that deadlines hold towards.
    promised: PortSet,
    /// Calls that wait for what a port lends.
    put_off: Vec<(PortIndex, Call)>,
    /// Link-local addresses that contracts name, by segment.
    named: Arc<[Named]>,
    /// The other workers; none at its own place.
    peers: Peers,
    /// Peers that were sent something in this loop.
    to_ring: u64,
    /// The peers' frames are taken in before those of own ports: in every other loop.
    peers_first: bool,
    /// Whose turn it is.
    turns: Turns,
    /// Whose frames come from other workers.
    senders: Senders,
    /// Between real-time frames of other workers.
    crossing_gaps: Gaps,
    /// When real-time frames are looked for in the middle of a loop.
    between: Between,
    /// What the egress that is served has delivered.
    bill: Bill,
    /// Egresses with work.
    active: Vec<PortIndex>,
    /// Egress and source: half the source's ring is in flight, and most of it waits there.
    relief: Vec<(PortIndex, PortIndex, bool)>,
    flood: FloodPool,
    /// A port that is about to go to another worker.
    leaving: Option<Box<moving::Leaving<Worker>>>,
    /// A port that comes from another one, with what was under way to it.
    arrival: Option<Box<moving::Arrival>>,
    /// Fates of this loop, not yet settled.
    fates: Fates,
    scratch: Scratch,
    /// None while it is in use.
    batch: Option<Box<direct::Batch>>,
    sleeper: Sleeper,
    /// Where it is told what is wrong with ports.
    troubles: Troubles,
    watch: Watch,
    /// Its long loops.
    loops: Loops,
    /// What another thread puts in words.
    events: Events,
    stats: &'static WorkerSlot,
    /// For how long it was busy since [it was asked](Self::work_done), ns.
    busy: u64,
    /// H: loops longer than this are counted.
    host_latency: u64,
    /// The time, read once a loop and after whatever took long.
    now: u64,
    /// The earliest time at which something is due.
    wake: u64,
    /// When something is looked at again although it may not have changed; no frame waits for that.
    poll: u64,
    /// When quiet ports' kicks were last looked for.
    looked: u64,
    /// How long they are not looked for after that, ns.
    pause: u64,
    /// The count of lost guest memory up to which it was looked which port lost it.
    lost: u64,
}

impl Worker {
    /// A worker without ports. `peers` has one entry per worker, none at `id`.
    #[allow(clippy::too_many_arguments, reason = "each is a way to another party")]
    pub fn new(
        id: u16,
        inbox: Inbox<Call>,
        fdb: Arc<Fdb>,
        claims: Arc<Claims>,
        lending: Arc<Lending>,
        peers: Peers,
        stats: &'static WorkerSlot,
        troubles: Troubles,
        events: Events,
    ) -> std::io::Result<Self> {
        Ok(Self {
            id,
            ports: (0..VNICS).map(|_| None).collect(),
            owned: Vec::new(),
            polled: Vec::with_capacity(VNICS),
            realtime: 0,
            touched: PortSet::EMPTY,
            infos: vec![None; VNICS],
            members: Vec::new(),
            fdb,
            claims,
            lending,
            asked: PortSet::EMPTY,
            lulls: vec![Lull::default(); VNICS].into(),
            promised: PortSet::EMPTY,
            put_off: Vec::new(),
            named: Arc::default(),
            peers,
            to_ring: 0,
            peers_first: false,
            turns: Turns::new(clock()),
            senders: Senders::default(),
            crossing_gaps: Gaps::default(),
            between: Between::default(),
            bill: Bill::default(),
            active: Vec::with_capacity(VNICS),
            relief: Vec::with_capacity(VNICS),
            flood: FloodPool::new(id),
            leaving: None,
            arrival: None,
            fates: Fates::with_capacity(4096),
            scratch: Scratch::default(),
            batch: Some(Box::default()),
            sleeper: Sleeper::new(inbox.bell(), inbox.epoll())?,
            inbox,
            watch: Watch::new(troubles.clone()),
            troubles,
            loops: Loops::default(),
            events,
            stats,
            busy: 0,
            host_latency: u64::MAX,
            now: clock(),
            wake: NEVER,
            poll: NEVER,
            looked: 0,
            pause: 0,
            lost: sigbus::lost(),
        })
    }

    /// Works for ever.
    pub fn run(mut self) -> ! {
        sleep::sharpen_timers();
        loop {
            self.turn();
        }
    }

    /// One loop; [`run`](Self::run) makes one after the other.
    #[inline(never)]
    pub fn turn(&mut self) {
        let worked = self.work();
        self.rest(worked);
    }

    /// Everything there is to do now; `true` where there was anything.
    #[inline]
    fn work(&mut self) -> bool {
        let started = clock();
        self.now = started;
        self.idled(started);
        self.between.begin(started);
        self.watch.expire(started);
        self.turns.begin(started);
        (self.wake, self.poll) = (NEVER, NEVER);
        let mut worked = self.lost != sigbus::lost() && self.memory_lost();
        for _ in 0..CALLS {
            let Some(call) = self.inbox.next() else { break };
            call(self);
            worked = true;
        }
        if !self.put_off.is_empty() {
            worked |= self.put_off_calls();
        }
        if self.leaving.is_some() {
            worked |= self.try_to_leave();
        }
        worked |= self.urgent_crossings();
        if worked {
            let now = clock();
            self.turns.leave_out(now);
            self.loops.part(LoopPart::Change, None, now.saturating_sub(started));
        }
        let mut intake = budget::intake(self.waiting());
        worked |= self.take_in(&mut intake);
        if !self.active.is_empty() {
            // What is charged to an egress is charged when it leaves.
            self.now = clock();
            self.turns.pass(self.now);
        }
        worked |= self.egress(budget::egress(intake));
        worked |= self.fates_of_peers();
        worked |= self.relieve();
        worked |= self.settle();
        if !self.touched.is_empty() {
            self.flush();
        }
        if !self.asked.is_empty() {
            self.lend_asked();
        }
        self.ring_peers();
        if worked {
            let ended = clock();
            self.turns.finish(ended);
            let took = ended.saturating_sub(started);
            self.busy += took;
            self.stats.loops.add(1);
            self.stats.loop_time.record(took);
            if took > self.host_latency {
                self.stats.loops_over_budget.add(1);
            }
            self.loops.end(ended, took, self.stats);
            self.took(started, ended);
        }
        worked
    }

    /// Best-effort frames, while `budget` lasts: of own ports and of other workers, each first in turn.
    fn take_in(&mut self, budget: &mut i64) -> bool {
        if self.peers.len() < 2 {
            return self.ingress(budget);
        }
        let arrived = self.arrival.is_some() && self.take_in_arrived(budget);
        self.peers_first = !self.peers_first;
        if arrived {
            self.turns.leave_out(clock());
        }
        let before = self.peers_first && self.crossings(budget);
        let worked = self.ingress(budget);
        let after = !self.peers_first && self.crossings(budget);
        arrived | before | worked | after
    }

    /// Real-time frames and requests of the other workers.
    fn urgent_crossings(&mut self) -> bool {
        let mut worked = false;
        for id in 0..self.peers.len() {
            for _ in 0..CROSSINGS {
                let Some((peer, _)) = &mut self.peers[id] else { break };
                let Some(crossing) = peer.receive_urgent() else { break };
                worked = true;
                if matches!(crossing, Crossing::Frame { .. }) {
                    self.crossing_gaps.arrived(self.now);
                }
                self.crossed(crossing);
            }
        }
        worked
    }

    fn crossed(&mut self, crossing: Crossing) {
        match crossing {
            Crossing::Frame { egress, frame } => {
                self.ask_to_lend(egress, frame.get());
                self.enqueue(egress, &[frame]);
            }
            Crossing::Relieve { egress, .. } if self.ports[egress as usize].is_none() => {
                self.pass_on(egress, crossing);
            }
            Crossing::Relieve { egress, source, oldest } => self.relief.push((egress, source, oldest)),
        }
    }

    /// What became of the frames that other workers were sent.
    fn fates_of_peers(&mut self) -> bool {
        let mut worked = false;
        for id in 0..self.peers.len() {
            while let Some(fate) = self.peers[id].as_mut().and_then(|(peer, _)| peer.settled()) {
                worked = true;
                self.fates.push(fate);
            }
            if let Some((peer, _)) = &mut self.peers[id]
                && peer.retry()
            {
                self.to_ring |= 1 << id;
            }
        }
        worked
    }

    /// Shows drivers what was completed, then says to the token buckets when that was: a worker can
    /// be kept from its CPU between charging and showing, while tokens fall in.
    fn flush(&mut self) {
        let touched = std::mem::replace(&mut self.touched, PortSet::EMPTY);
        for index in touched.iter() {
            if let Some(port) = &mut self.ports[index as usize] {
                let began = self.watch.begin(index);
                port.link.flush();
                self.watch.end(index, began);
            }
        }
        let now = clock();
        self.loops.part(LoopPart::Completion, None, self.turns.elapsed(now));
        for index in touched.iter() {
            if let Some(port) = &mut self.ports[index as usize] {
                port.shown(now);
            }
        }
    }

    fn ring_peers(&mut self) {
        while self.to_ring != 0 {
            let id = self.to_ring.trailing_zeros() as usize;
            self.to_ring &= self.to_ring - 1;
            if let Some((_, bell)) = &self.peers[id] {
                bell.ring();
            }
        }
    }

    /// Has another thread put in words what happened.
    #[cold]
    pub fn note(&mut self, event: Event) {
        if !self.events.note(event, self.now) {
            self.stats.events_lost.add(1);
        }
    }

    /// Something is due at `at`.
    #[inline]
    fn wake_at(&mut self, at: u64) {
        self.wake = self.wake.min(at);
    }
}
