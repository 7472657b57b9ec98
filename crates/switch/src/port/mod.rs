//! A port: where one vNIC is connected, and its contract, in the hands of the
//! worker that owns it.
//!
//! ```text
//!  Port ┬ link                     how frames get in and out
//!       ├ contract, shaper         what it may send
//!       ├ waiting: Room            what waits to be sent
//!       └ egress: sched::Scheduler what waits to be received
//! ```
//!
//! - [`outstanding`]: frames that a link holds
//! - [`waiting`]: frames that wait for the limit, by flow
//! - [`contract`]: a contract, compiled

pub mod capture_tap;
pub mod contract;
pub mod gaps;
mod lent;
pub mod outstanding;
pub mod talk;
pub mod waiting;

pub use contract::{PortContract, PortInfo, PortSet};
pub use outstanding::Outstanding;
pub use waiting::{Room, RoomConfig};

use crate::capacity::VNICS;
use crate::fdb::{PortIndex, SegmentIndex};
use crate::frame::LinkLocals;
use crate::link::{Link, Pending};
use crate::sched::{Scheduler, TokenBucket};
use crate::slots::{Frame, FrameRef, NEVER, NOWHERE};
use crate::stats::layout::VnicSlot;
use capture_tap::CaptureTap;
use gaps::Gaps;
pub use lent::Lent;
use std::cell::Cell;
use talk::Talk;
use tidegate_evidence::DropReason;

/// How soon after one change of a port the next one may follow, ns: a guest that resets its device stops one queue after the
/// other.
const CHANGES: u64 = 5_000_000;

/// One port. In memory as written here, so that the turns of hundreds of busy ports find what they need in few cache
/// lines: what its own turn needs, and what a frame to it needs, are neighbours.
#[repr(C)]
pub struct Port {
    /// Its contract.
    pub contract: PortContract,
    /// The hard limit on what it sends.
    pub shaper: Option<TokenBucket>,
    /// What waits for that by flow; none where frames wait one behind the other, or never.
    pub waiting: Option<Box<Room>>,
    /// Ts of the frame sent last, or when it was last kept from sending: what comes after never
    /// starts before.
    pub last_started: u64,
    /// Of frames that were late only if the worker's wake-up took that long: since when the longest such delay is looked
    /// for, and that delay, ns.
    pub longest_asleep: Cell<(u64, u64)>,
    /// Whom it sends how much to.
    pub talk: Talk,
    /// Since when it waits for tokens; [`NEVER`] while it does not.
    pub throttled_since: u64,
    /// Where copies go during a capture.
    pub capture: Option<Box<CaptureTap>>,
    /// Where it counts.
    pub stats: &'static VnicSlot,
    /// Its index, everywhere.
    pub index: PortIndex,
    /// Its segment.
    pub segment: SegmentIndex,
    /// From when on frames that find no tokens wait by flow, ns; before, one behind the other.
    pub flows_from: u64,
    /// How many changes under way need that nothing is taken from it: of its link, of its segment, of its worker, and one
    /// while the switch holds new ports.
    pub pauses: u32,
    /// For how many loops it has had nothing to send.
    pub idle_loops: u16,
    /// Between arrivals of its frames, where they have a deadline.
    pub gaps: Gaps,
    /// It is paused, and what waits by flow still leaves: nothing is taken to it.
    pub draining: bool,
    /// Its link lies: nothing is taken from it until it is made anew.
    pub broken: bool,
    /// Not polled: a kick or a descriptor tells when there is something.
    pub quiet: bool,
    /// How frames get in and out.
    pub link: Link,
    /// What waits to be received by it.
    pub egress: Egress,

    /// Since when a receiver of another worker has no buffers for its frames; [`NEVER`] while it has.
    pub room_since: u64,
    /// Since when a worker has no room for its frames; [`NEVER`] while it has.
    pub behind_since: u64,
    /// A frame of it was to be dropped, and none came back since: when that may be asked again, as there
    /// may have been nothing to drop. [`NEVER`] otherwise.
    pub relieving: u64,
    /// The oldest frame of a ring was looked for, and waits for no receiver: when it may be looked for again, ns.
    pub looked_back: u64,
    /// Its frames in flight to each port: whom a slow receiver is told from.
    pub in_flight_to: Box<[u32; VNICS]>,
    /// The cap on copies of flooded frames.
    pub flood: TokenBucket,
    /// Link-local addresses that it may use.
    pub held: LinkLocals,
}

/// The receiving half. In memory as written here: what a frame that goes directly needs comes first.
#[repr(C)]
pub struct Egress {
    /// What it is [lent](crate::worker::lending) in; none while it is.
    pub lendable: Option<Box<Lent>>,
    /// Since when the first frame stands without receive buffers; [`NEVER`] while it does not.
    pub blocked_since: u64,
    /// Until when its rate last kept a frame waiting; 0 where it never did.
    pub rate_until: u64,
    /// Whose frame left last, and when.
    pub last: (PortIndex, u64),
    /// What waits, in order.
    pub scheduler: Scheduler<FrameRef>,
    /// In the worker's list of egresses with work.
    pub active: bool,
    /// The frame that found too few buffers, when it was queued, and how many chains there were: it
    /// is not tried again while there are no more.
    pub starved: Option<(FrameRef, u64, u16)>,
    /// When a part of a super-frame left for which there were too few buffers; 0 before the first.
    pub part_at: u64,
    /// What its link holds.
    pub outstanding: Outstanding,
}

impl Port {
    /// A port without contract history: buckets full, nothing in flight.
    pub fn new(
        index: PortIndex,
        segment: SegmentIndex,
        contract: PortContract,
        stats: &'static VnicSlot,
        link: Link,
    ) -> Self {
        let egress = Egress {
            scheduler: Scheduler::new(contract.egress),
            active: false,
            blocked_since: NEVER,
            rate_until: 0,
            starved: None,
            part_at: 0,
            last: (index, 0),
            outstanding: Outstanding::new(link.rx.depth()),
            lendable: Some(Lent::new(stats)),
        };
        Self {
            index,
            segment,
            shaper: contract.tx_limit.map(|(rate, burst)| TokenBucket::new(rate, burst)),
            waiting: Room::changed(None, RoomConfig::of(&contract)),
            flood: TokenBucket::new(contract.flood.0, contract.flood.1),
            contract,
            stats,
            link,
            flows_from: 0,
            pauses: 0,
            draining: false,
            broken: false,
            quiet: false,
            idle_loops: 0,
            gaps: Gaps::default(),
            relieving: NEVER,
            looked_back: 0,
            held: LinkLocals::default(),
            throttled_since: NEVER,
            behind_since: NEVER,
            room_since: NEVER,
            last_started: 0,
            longest_asleep: Cell::default(),
            in_flight_to: Box::new([0; VNICS]),
            talk: Talk::default(),
            egress,
            capture: None,
        }
    }

    /// A new contract, live: tokens earned so far are kept.
    pub fn set_contract(&mut self, contract: PortContract, now: u64) {
        self.shaper = match (self.shaper.take(), contract.tx_limit) {
            (Some(mut bucket), Some((rate, burst))) => {
                bucket.set(now, rate, burst);
                Some(bucket)
            }
            (None, Some((rate, burst))) => Some(TokenBucket::new(rate, burst)),
            (_, None) => None,
        };
        if contract.tx_limit != self.contract.tx_limit {
            self.stats.forget_waits_tx();
        }
        if contract.egress != self.contract.egress {
            self.stats.forget_waits_rx();
        }
        self.waiting = Room::changed(self.waiting.take(), RoomConfig::of(&contract));
        self.flood.set(now, contract.flood.0, contract.flood.1);
        self.egress.scheduler.reconfigure(now, contract.egress);
        self.stats.rx.flows_now.set(self.egress.scheduler.active_flows().into());
        if contract.deadline != self.contract.deadline {
            // What was seen under another promise says nothing about this one.
            self.stats.realtime_worst.set(0);
            self.stats.realtime_worst_least.set(0);
        }
        self.contract = contract;
    }

    /// When `bytes` that arrived at `arrival` conform to the contract, and charges them.
    ///
    /// A real-time frame is charged when it conformed, since its deadline counts from there. Any
    /// other is charged when it is sent, so that a worker that was kept from its core does not give
    /// more than the burst at once.
    ///
    /// # Errors
    /// The time to try again at.
    #[inline]
    pub fn conform(&mut self, arrival: u64, bytes: u32, now: u64) -> Result<u64, u64> {
        if self.shaper.is_none() {
            return Ok(arrival);
        }
        let at = self.conforms_at(arrival, bytes);
        if at > now {
            return Err(at);
        }
        self.charge(arrival, at, bytes, now);
        Ok(at)
    }

    /// When `bytes` that arrived at `arrival` conform to the contract, where nothing else is charged until then.
    #[inline]
    pub fn conforms_at(&self, arrival: u64, bytes: u32) -> u64 {
        let Some(shaper) = &self.shaper else { return arrival };
        shaper.conforms_at(arrival.max(self.last_started), u64::from(bytes))
    }

    /// Charges `bytes` that [conformed](Self::conforms_at) `at` that time, at `now`, as [`conform`](Self::conform) does.
    #[inline]
    pub fn charge(&mut self, arrival: u64, at: u64, bytes: u32, now: u64) {
        let Some(shaper) = &mut self.shaper else { return };
        let arrival = arrival.max(self.last_started);
        match self.contract.deadline {
            Some(_) => shaper.charge(at, u64::from(bytes)),
            None => shaper.charge_waiting(arrival, now, u64::from(bytes)),
        }
        self.last_started = at;
    }

    /// Whether frames wait by flow: what comes waits with them.
    #[inline]
    pub fn waits(&self) -> bool {
        self.waiting.as_ref().is_some_and(|room| !room.is_empty())
    }

    /// A frame that was decided on, of which `left` bytes on the wire are left, finds no tokens. Whether it waits by flow;
    /// otherwise it waits before all that comes after it in its ring or pool.
    pub fn wait(&mut self, pending: Pending, left: u32, now: u64) -> bool {
        let frame = pending.frame.get_mut();
        let by_flow = self.waiting.as_ref().is_some_and(|room| {
            let is_brief = |entries| room.is_brief(frame, entries);
            now >= self.flows_from && !(room.is_empty() && self.link.tx.entries(frame).is_some_and(is_brief))
        });
        if by_flow {
            self.wait_by_flow(pending, left, now);
        } else {
            frame.egress = NOWHERE;
            self.link.tx.put_back(pending);
        }
        by_flow
    }

    /// A frame that was decided on, of which `left` bytes on the wire are left, waits by flow.
    pub fn wait_by_flow(&mut self, pending: Pending, left: u32, now: u64) {
        let frame = pending.frame.get_mut();
        (frame.egress, frame.deadline) = (NOWHERE, NEVER);
        self.push_waiting(pending, left, now);
    }

    fn push_waiting(&mut self, pending: Pending, left: u32, now: u64) {
        if let Some(room) = &mut self.waiting {
            room.push(pending, left, now);
            self.link.tx.begin_wait(pending.frame.get());
        }
    }

    /// Whether frames are taken from it, or of what waits sent on.
    #[inline]
    pub fn may_send(&self) -> bool {
        !self.broken && (self.pauses == 0 || self.draining && self.pauses == 1)
    }

    /// Puts frames that wait back into their rings, as if they had not been taken: those behind which nothing else was taken.
    pub fn put_back_waiting(&mut self, now: u64) {
        let Some(room) = self.waiting.as_mut().filter(|room| !room.is_empty() && !self.broken) else {
            return;
        };
        self.link.tx.untake_pending();
        let mut waiting = Vec::with_capacity(room.backlog().frames as usize);
        room.drain(|queued| waiting.push(queued));
        waiting.iter().for_each(|queued| self.link.tx.end_wait(queued.frame.frame.get()));
        self.link.tx.untake(&mut waiting);
        waiting.iter().for_each(|queued| self.push_waiting(queued.frame, queued.bytes, now));
    }

    /// A frame that waited by flow is here no more: it goes back once all parts of it that were sent are settled.
    pub fn release_waiting(&mut self, whole: FrameRef) {
        self.link.tx.end_wait(whole.get());
        if whole.get().shares.get() == 0 || whole.get().release() {
            self.link.tx.give_back(whole);
        }
    }

    /// Drops all that waits by flow.
    pub fn drop_waiting(&mut self, reason: DropReason) {
        let Some(mut room) = self.waiting.take() else { return };
        while let Some(queued) = room.drop_longest() {
            self.count_tx_drop(reason);
            self.release_waiting(queued.frame.frame);
        }
        self.stats.tx.note_flows(0);
        self.waiting = Some(room).filter(|room| !room.is_over());
    }

    /// Whether its link may be given a frame beside those that it holds.
    #[inline]
    pub fn may_post(&self, frame: &Frame) -> bool {
        let outstanding = &self.egress.outstanding;
        outstanding.is_empty()
            || frame.is_realtime() && self.link.rx.lets_pass()
            || outstanding.has_room(frame.wire_bytes, self.contract.egress.most_outstanding())
    }

    /// What this port sent and received was shown to the drivers, at `now`.
    #[inline]
    pub fn shown(&mut self, now: u64) {
        // The envelope of a deadline counts from when frames conform.
        if self.contract.deadline.is_none()
            && let Some(shaper) = &mut self.shaper
        {
            shaper.shown(now);
        }
        self.egress.scheduler.shown(now);
    }

    /// Counts a frame of this port that was dropped before it was sent on.
    #[inline]
    pub fn count_tx_drop(&self, reason: DropReason) {
        self.count_tx_drops(reason, 1);
    }

    /// Counts `frames` frames like that.
    #[inline]
    pub fn count_tx_drops(&self, reason: DropReason, frames: u64) {
        self.stats.tx.dropped[reason as usize].add(frames);
    }

    /// The egress with most frames of this port in flight.
    pub fn longest_egress(&self) -> PortIndex {
        let (index, _) = self.in_flight_to.iter().enumerate().max_by_key(|(_, n)| **n).unwrap_or((0, &0));
        index as PortIndex
    }

    /// Whether a frame of which nothing was sent is to leave [in parts](Room::cuts) although nothing waits.
    #[inline]
    pub fn cuts(&self, frame: &Frame, now: u64) -> bool {
        self.waiting.as_ref().is_some_and(|room| room.cuts(frame) && now >= self.flows_from)
    }

    /// It was kept from sending until `now`, by a change or by its own doing. That time earns it no
    /// tokens beyond its burst, nor does its deadline's clock run meanwhile. The next change may follow at once, and is not
    /// to wait for what was looked ahead to in between.
    pub fn restart(&mut self, now: u64) {
        self.flows_from = now + CHANGES;
        self.last_started = self.last_started.max(now);
        self.link.tx.restart(now);
    }

    /// Starts or ends the account of throttled time.
    #[inline]
    pub fn set_throttled(&mut self, throttled: bool, now: u64) {
        match (throttled, self.throttled_since) {
            (true, NEVER) => {
                self.throttled_since = now;
                self.stats.throttled_now.set(1);
            }
            (true, since) | (false, since) if since != NEVER => {
                self.stats.throttled.add(now.saturating_sub(since));
                self.throttled_since = if throttled { now } else { NEVER };
                self.stats.throttled_now.set(u64::from(throttled));
            }
            _ => {}
        }
    }
}
