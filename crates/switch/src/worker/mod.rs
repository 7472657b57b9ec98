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
//! - `budget`: how much work one loop takes in and sends on
//! - `loops`: the loops in which frames were late
//! - `turns`: divides the worker's time among ports
//! - `bill`: what a delivery cost, and which ports pay
//! - `ingress`: from links to egresses, under the senders' contracts
//!   - `decide`: whether a frame may be sent, and where it goes
//!   - `direct`: frames of one buffer, by the batch: from ring to ring, or to their egress
//!   - `inspect`, `send`: the others, one by one, to their egress
//!   - `count`: counters of sent frames
//!   - `cut`: super-frames in parts
//!   - `waiting`: frames of a port above its limit, by flow
//! - [`egress`]: puts frames into the scheduler; room there
//! - `serve`: from the scheduler to the receiver
//!   - `flow_turns`: of flow queues, part by part
//!   - `parts`: super-frames whose receivers have too few buffers
//!   - `outstanding`: frames that links complete later
//!   - `between`: real-time frames in the middle of a loop
//!   - `departures`: what leaves an egress is counted, and its fate noted
//! - [`addresses`]: link-local addresses that own ports use
//! - `shared`: addresses that own ports take from others
//! - `uplink`: frames of other hosts; `answer`: requests for their MACs
//! - [`flood`]: copies for broadcast, multicast and announcements
//! - `peers`: frames of other workers, which share the time too
//! - `fates`: how frames ended; [`settle`]: back at their source
//! - `missed`: missed deadlines; `arrived`: those of frames from other hosts
//! - [`crossing`]: rings between workers
//! - [`lending`]: receivers of other workers, for the direct way
//!   - `put_off`: calls that wait until a lent half is back
//! - [`moving`]: a port goes to another worker
//!   - `under_way`: frames of a port on their way while it moves
//! - `relief`: room in a ring of which half is in flight
//! - `returned`: memory of an uplink that other workers give back
//! - [`quiet`]: idle ports, which cost nothing
//! - `affinity`: which CPUs its thread runs on
//! - [`sleep`]: notifications and sleep
//!   - [`gaps`](crate::port::gaps): when the next real-time frame is expected
//!   - `precise`: timers to the nanosecond
//!   - `awake`: how much of the time may be spent waiting awake
//! - [`work`]: busy time, and how much ports send to each other
//! - [`trouble`]: faults of ports
//! - [`watch`]: ports whose memory holds the worker up
//! - [`handover`]: an end with nothing in flight
//! - [`handle`]: how other threads reach a worker
//!   - `inbox`: their calls; `bell`: wakes a worker that sleeps
//! - [`change`]: what they change
//! - [`events`]: notes for the thread that logs

mod addresses;
mod affinity;
mod answer;
mod arrived;
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
mod departures;
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
mod returned;
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
mod uplink;
mod waiting;
mod watch;
pub mod work;
#[cfg(test)]
mod writing;

pub use arrived::Hosts;
pub(crate) use budget::DROPPED;
pub use handle::mailbox;
use inbox::Inbox;

use crate::capacity::VNICS;
use crate::claims::{Claims, NamedAddresses};
use crate::clock::clock;
use crate::fdb::{Fdb, PortIndex};
use crate::link::Scratch;
use crate::neighbours::Neighbours;
use crate::port::gaps::Gaps;
use crate::port::{Port, PortInfo, PortSet};
use crate::slots::NEVER;
use crate::stats::LoopPart;
use crate::stats::layout::WorkerSlot;
use crate::virtio::sigbus;
use answer::Answers;
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

/// Urgent crossings per loop and peer: a worker that others flood still serves its own ports.
const CROSSINGS: usize = 256;

/// Calls per loop: front ends that keep asking do not stop the frames.
const CALLS: usize = 4;

/// A request of another thread, run between two loops.
type Call = handle::Call<Worker>;

/// A running worker, as other threads see it.
pub type WorkerHandle = handle::Handle<Worker>;

/// A worker's ends towards the others, by their number; `None` at its own.
pub type Peers = Vec<Option<(Peer, Arc<Bell>)>>;

/// One worker's state.
pub struct Worker {
    id: u16,
    inbox: Inbox<Call>,
    /// Own ports, by index.
    ports: Vec<Option<Box<Port>>>,
    /// Indices of own ports.
    owned: Vec<PortIndex>,
    /// Polled ports in their order, real-time ones first. The others are quiet: they have nothing to send,
    /// and a kick or a descriptor announces new frames.
    polled: Vec<PortIndex>,
    /// Number of real-time ports among the polled ones.
    realtime: usize,
    /// Ports whose drivers have to see completions.
    touched: PortSet,
    /// All ports of the switch.
    infos: Vec<Option<PortInfo>>,
    /// Ports by segment.
    members: Vec<Vec<PortIndex>>,
    fdb: Arc<Fdb>,
    claims: Arc<Claims>,
    /// Receiving halves of all workers' ports.
    lending: Arc<Lending>,
    /// Own ports to which other workers' frames came that could have gone directly.
    lending_wanted: PortSet,
    /// By the index of own ports.
    lulls: Box<[Lull]>,
    /// Ports towards which deadlines are promised.
    promised: PortSet,
    /// Calls that wait until a port's lent half is back.
    put_off: Vec<(PortIndex, Call)>,
    /// Link-local addresses that contracts name, by segment.
    named: Arc<[NamedAddresses]>,
    /// The other workers; `None` at its own place.
    peers: Peers,
    /// Peers that got something in this loop.
    to_ring: u64,
    /// Frames of peers come before those of own ports: in every other loop.
    peers_first: bool,
    /// How the time is divided.
    turns: Turns,
    /// Ports whose frames come from other workers.
    senders: Senders,
    /// Gaps between real-time frames of other workers.
    crossing_gaps: Gaps,
    /// When to look for real-time frames in the middle of a loop.
    between: Between,
    /// Deliveries of the egress that is being served.
    bill: Bill,
    /// Egresses with work.
    active: Vec<PortIndex>,
    /// Egress and source: half the source's ring is in flight, mostly at this egress; whether the oldest
    /// frame is to go.
    relief: Vec<(PortIndex, PortIndex, bool)>,
    /// Own uplinks that give the kernel memory for frames.
    collecting: Vec<PortIndex>,
    flood: FloodPool,
    /// The addresses of vNICs of other hosts.
    neighbours: Arc<Neighbours>,
    /// Answers to requests for these.
    answers: Answers,
    /// A port that is about to move to another worker.
    leaving: Option<Box<moving::Leaving<Worker>>>,
    /// A port that comes from another worker, with frames under way to it.
    arrival: Option<Box<moving::Arrival>>,
    /// Fates of this loop, not yet settled.
    fates: Fates,
    scratch: Scratch,
    /// `None` while it is in use.
    batch: Option<Box<direct::Batch>>,
    sleeper: Sleeper,
    /// Clocks of other hosts, and late frames from there.
    hosts: Option<Hosts>,
    /// Receives faults of ports.
    troubles: Troubles,
    watch: Watch,
    /// Its long loops.
    loops: Loops,
    /// Notes for the thread that logs.
    events: Events,
    stats: &'static WorkerSlot,
    /// Busy time since the last [`work_done`](Self::work_done) (ns).
    busy: u64,
    /// H: loops longer than this are counted.
    host_latency: u64,
    /// The time (ns), read once a loop and after each long part.
    now: u64,
    /// The earliest time at which something is due (ns).
    wake: u64,
    /// Next periodic recheck (ns); no frame waits for it.
    poll: u64,
    /// Last look for quiet ports' kicks (ns).
    last_kick_check: u64,
    /// Pause after that look (ns).
    pause: u64,
    /// `sigbus::lost()` at our last check; a higher value means a port lost memory.
    seen_losses: u64,
}

impl Worker {
    /// Returns a worker without ports. `peers` has one entry per worker, `None` at `id`.
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
            lending_wanted: PortSet::EMPTY,
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
            collecting: Vec::new(),
            flood: FloodPool::new(id),
            neighbours: Arc::default(),
            answers: Vec::with_capacity(answer::MOST),
            leaving: None,
            arrival: None,
            fates: Fates::with_capacity(4096),
            scratch: Scratch::default(),
            batch: Some(Box::default()),
            sleeper: Sleeper::new(inbox.bell(), inbox.epoll())?,
            inbox,
            hosts: None,
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
            last_kick_check: 0,
            pause: 0,
            seen_losses: sigbus::losses(),
        })
    }

    /// Runs loop after loop; never returns.
    pub fn run(mut self) -> ! {
        sleep::sharpen_timers();
        loop {
            self.turn();
        }
    }

    /// Runs one loop.
    #[inline(never)]
    pub fn turn(&mut self) {
        let worked = self.work();
        self.spin_or_sleep(worked);
    }

    /// Does all work that is possible now; `true` if there was any.
    #[inline]
    fn work(&mut self) -> bool {
        let started = clock();
        self.now = started;
        self.note_idle_time(started);
        self.between.begin(started);
        self.watch.expire(started);
        self.turns.begin(started);
        (self.wake, self.poll) = (NEVER, NEVER);
        if !self.collecting.is_empty() {
            self.collect_returned();
        }
        let mut worked = self.seen_losses != sigbus::losses() && self.break_lost_ports();
        for _ in 0..CALLS {
            let Some(call) = self.inbox.next() else { break };
            call(self);
            worked = true;
        }
        if !self.put_off.is_empty() {
            worked |= self.retry_put_off_calls();
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
        if !self.answers.is_empty() {
            self.hand_out_answers();
        }
        if !self.active.is_empty() {
            // An egress pays when its frames leave.
            self.now = clock();
            self.turns.pass(self.now);
        }
        worked |= self.egress(budget::egress(intake));
        if !self.answers.is_empty() {
            // Asked in the middle of the egresses.
            self.hand_out_answers();
        }
        worked |= self.fates_of_peers();
        worked |= self.relieve();
        worked |= self.settle();
        if !self.touched.is_empty() {
            self.flush(worked);
        }
        if !self.lending_wanted.is_empty() {
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
            self.note_duration(started, ended);
        }
        worked
    }

    /// Takes in best-effort frames within `budget`: of own ports and of other workers, each first in turn.
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

    /// Takes in real-time frames and requests of other workers.
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

    /// Settles frames that other workers have finished.
    fn fates_of_peers(&mut self) -> bool {
        let mut worked = false;
        for id in 0..self.peers.len() {
            while let Some(fate) = self.peers[id].as_mut().and_then(|(peer, _)| peer.receive_fate()) {
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

    /// Shows completions to drivers, then tells the token buckets that time: the worker can lose its CPU
    /// between charging and showing, while tokens fall in. An uplink may gather more if the worker `goes_on` at once.
    fn flush(&mut self, goes_on: bool) {
        let touched = std::mem::replace(&mut self.touched, PortSet::EMPTY);
        for index in touched.iter() {
            if let Some(port) = &mut self.ports[index as usize] {
                if goes_on && port.contract.is_uplink && port.link.rx.gathers(self.now) {
                    self.touched.insert(index);
                    continue;
                }
                let began = self.watch.begin(index);
                port.link.flush();
                self.watch.end(index, began);
                if let Some(owner) = port.link.tx.tells() {
                    self.to_ring |= 1 << owner;
                }
                if port.contract.is_uplink {
                    port.note_flushed(self.now);
                }
                if port.link.rx.has_unsent() {
                    self.touched.insert(index);
                    self.poll = self.poll.min(self.now + sleep::BLOCKED_POLL);
                }
            }
        }
        let now = clock();
        self.loops.part(LoopPart::Completion, None, self.turns.elapsed(now));
        for index in touched.iter() {
            if let Some(port) = &mut self.ports[index as usize]
                && !port.link.rx.is_gathering()
            {
                port.note_shown(now);
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

    /// Notes an event for the thread that logs.
    #[cold]
    pub fn note(&mut self, event: Event) {
        if !self.events.note(event, self.now) {
            self.stats.events_lost.add(1);
        }
    }

    /// Notes that work is due at `at` (ns).
    #[inline]
    fn wake_at(&mut self, at: u64) {
        self.wake = self.wake.min(at);
    }
}
