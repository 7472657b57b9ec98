//! A port: the connection of one vNIC and its contract, owned by a worker.
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
//! - [`gaps`]: when the next real-time frame of a source is expected
//! - [`talk`]: how much the port sends to others
//! - `lent`: a receiving half that another worker has
//! - [`capture_tap`]: the worker's end of a capture
//! - [`uplink`]: a port that leads to other hosts

pub mod capture_tap;
pub mod contract;
pub mod gaps;
mod lent;
pub mod outstanding;
pub mod talk;
pub mod uplink;
pub mod waiting;

pub use contract::{PortContract, PortInfo, PortSet};
pub use outstanding::Outstanding;
pub use uplink::Floods;
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

/// Longest pause between two related changes of a port (ns): a guest that resets its device stops one queue
/// after the other.
const CHANGES: u64 = 5_000_000;

/// One port. Fields in this order, so that the turns of hundreds of busy ports touch few cache lines: those
/// of its own turn, and those of a frame to it, are neighbours.
#[repr(C)]
pub struct Port {
    /// Its contract.
    pub contract: PortContract,
    /// The bucket of its `tx.max`.
    pub shaper: Option<TokenBucket>,
    /// Frames that wait for it by flow; `None` if frames wait one behind the other, or never.
    pub waiting: Option<Box<Room>>,
    /// Ts of the frame sent last, or the end of its last pause: later frames never start before.
    pub last_started: u64,
    /// Of frames that were late only by the worker's wake-up: the beginning of the present search for the
    /// longest such delay, and that delay (ns).
    pub longest_asleep: Cell<(u64, u64)>,
    /// Traffic to other ports.
    pub talk: Talk,
    /// Beginning of its wait for tokens; [`NEVER`] without one.
    pub throttled_since: u64,
    /// Its capture.
    pub capture: Option<Box<CaptureTap>>,
    /// Its counters.
    pub stats: &'static VnicSlot,
    /// Its index, everywhere.
    pub index: PortIndex,
    /// The uplink whose frames it takes in: itself, or of an [arm](crate::server::arms) the port that has it. Of other ports, its index.
    pub uplink: PortIndex,
    /// Its segment.
    pub segment: SegmentIndex,
    /// From this time on frames without tokens wait by flow (ns); before, one behind the other.
    pub flows_from: u64,
    /// Number of changes under way during which nothing is taken from it: of its link, its segment, its
    /// worker, and one while the switch holds new ports.
    pub pauses: u32,
    /// Loops without frames of it.
    pub idle_loops: u16,
    /// Gaps between its frames, if they have a deadline.
    pub gaps: Gaps,
    /// It is paused, and frames that wait by flow still leave.
    pub draining: bool,
    /// Its link is invalid: nothing is taken from it until it is made anew.
    pub broken: bool,
    /// Not polled: a kick or a descriptor announces frames.
    pub quiet: bool,
    /// The link of its frames.
    pub link: Link,
    /// Frames to it.
    pub egress: Egress,

    /// Since when another worker's receiver has no buffers for its frames; [`NEVER`] if it has.
    pub room_since: u64,
    /// Since when a worker has no room for its frames; [`NEVER`] if it has.
    pub behind_since: u64,
    /// When another drop of its frames may be requested: none came back since the last request, perhaps
    /// because there was nothing to drop. [`NEVER`] without a request.
    pub relieving: u64,
    /// When the oldest frame of a ring may be looked for, after it waited for no receiver (ns).
    pub looked_back: u64,
    /// Its frames in flight to each port: distinguishes a slow receiver.
    pub in_flight_to: Box<[u32; VNICS]>,
    /// The cap on copies of flooded frames.
    pub flood: TokenBucket,
    /// The same by segment, of an uplink.
    pub floods: Floods,
    /// Link-local addresses that it holds.
    pub claimed: LinkLocals,
}

/// The receiving half. Fields in this order: a direct frame needs the first ones.
#[repr(C)]
pub struct Egress {
    /// Its place for [lending](crate::worker::lending); `None` while it is lent.
    pub lendable: Option<Box<Lent>>,
    /// Since when the first frame lacks receive buffers; [`NEVER`] if it does not.
    pub blocked_since: u64,
    /// End of the last wait for its rate; 0 before the first.
    pub rate_until: u64,
    /// The source of the last frame, and when it left.
    pub last_sent: (PortIndex, u64),
    /// Waiting frames, in order.
    pub scheduler: Scheduler<FrameRef>,
    /// Whether it is in the worker's list of egresses with work.
    pub active: bool,
    /// The frame that found too few buffers, when it was queued, and the number of chains: it is not tried
    /// until there are more.
    pub starved: Option<(FrameRef, u64, u16)>,
    /// When a part of a super-frame without enough buffers left; 0 before the first.
    pub part_at: u64,
    /// Frames that its link holds.
    pub outstanding: Outstanding,
}

impl Port {
    /// Returns a port with full buckets and nothing in flight.
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
            last_sent: (index, 0),
            outstanding: Outstanding::new(link.rx.depth(), link.rx.longest()),
            lendable: Some(Lent::new(stats)),
        };
        Self {
            index,
            uplink: index,
            segment,
            shaper: contract.tx_limit.map(|(rate, burst)| TokenBucket::new(rate, burst)),
            waiting: Room::changed(None, RoomConfig::of(&contract)),
            flood: TokenBucket::new(contract.flood.0, contract.flood.1),
            floods: link
                .peers()
                .map_or_else(Floods::default, |peers| Floods::new(peers, &Floods::default(), contract.flood)),
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
            claimed: LinkLocals::default(),
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

    /// Sets a new contract; earned tokens stay.
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
        self.floods.set(now, contract.flood);
        self.egress.scheduler.reconfigure(now, contract.egress);
        self.stats.rx.flows_now.set(self.egress.scheduler.active_flows().into());
        if contract.deadline != self.contract.deadline {
            // Misses under another promise say nothing about this one.
            self.stats.realtime_worst.set(0);
            self.stats.realtime_worst_least.set(0);
        }
        self.contract = contract;
    }

    /// Charges `bytes` that arrived at `arrival`, and returns when they conform to the contract.
    ///
    /// A real-time frame is charged at its conformance, from which its deadline counts. Any other is
    /// charged when sent, so that a worker that lost its CPU does not give more than the burst at once.
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

    /// Returns when `bytes` that arrived at `arrival` conform, if nothing else is charged before.
    #[inline]
    pub fn conforms_at(&self, arrival: u64, bytes: u32) -> u64 {
        let Some(shaper) = &self.shaper else { return arrival };
        shaper.conforms_at(arrival.max(self.last_started), u64::from(bytes))
    }

    /// Charges `bytes` that [conform](Self::conforms_at) at `at`, at `now`, like
    /// [`conform`](Self::conform).
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

    /// Whether frames wait by flow: further ones wait with them.
    #[inline]
    pub fn waits(&self) -> bool {
        self.waiting.as_ref().is_some_and(|room| !room.is_empty())
    }

    /// Lets a decided frame with `left` bytes on the wire wait for tokens. Whether it waits by flow;
    /// otherwise it waits in front of all frames of its ring or pool.
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

    /// Lets a decided frame with `left` bytes on the wire wait by flow.
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

    /// Whether frames are taken from it, or waiting ones sent.
    #[inline]
    pub fn may_send(&self) -> bool {
        !self.broken && (self.pauses == 0 || self.draining && self.pauses == 1)
    }

    /// Puts waiting frames back into their rings as if they had not been taken: those after which no other
    /// was taken.
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

    /// Releases a frame that waited by flow: it goes back once its sent parts are settled.
    pub fn release_waiting(&mut self, whole: FrameRef) {
        self.link.tx.end_wait(whole.get());
        if whole.get().shares.get() == 0 || whole.get().release() {
            self.link.tx.give_back(whole);
        }
    }

    /// Drops all frames that wait by flow.
    pub fn drop_waiting(&mut self, reason: DropReason) {
        let Some(mut room) = self.waiting.take() else { return };
        while let Some(queued) = room.drop_longest() {
            self.count_tx_drop(reason);
            self.release_waiting(queued.frame.frame);
        }
        self.stats.tx.note_flows(0);
        self.waiting = Some(room).filter(|room| !room.is_over());
    }

    /// Whether its link may get another frame.
    #[inline]
    pub fn may_post(&self, frame: &Frame) -> bool {
        let outstanding = &self.egress.outstanding;
        outstanding.is_empty()
            || self.link.rx.bounds_itself()
            || frame.is_realtime() && self.link.rx.lets_realtime_pass()
            || outstanding.has_room(frame.wire_bytes, self.contract.egress.most_outstanding())
    }

    /// Notes that drivers saw this port's completions at `now`.
    #[inline]
    pub fn note_shown(&mut self, now: u64) {
        // A deadline's envelope counts from the conformance of frames.
        if self.contract.deadline.is_none()
            && let Some(shaper) = &mut self.shaper
        {
            shaper.note_shown(now);
        }
        self.egress.scheduler.note_shown(now);
    }

    /// Counts a frame of this port that was dropped before it was sent.
    #[inline]
    pub fn count_tx_drop(&self, reason: DropReason) {
        self.count_tx_drops(reason, 1);
    }

    /// Counts `frames` frames like that.
    #[inline]
    pub fn count_tx_drops(&self, reason: DropReason, frames: u64) {
        self.stats.tx.dropped[reason as usize].add(frames);
    }

    /// Returns the egress with most frames of this port in flight.
    pub fn longest_egress(&self) -> PortIndex {
        let (index, _) = self.in_flight_to.iter().enumerate().max_by_key(|(_, n)| **n).unwrap_or((0, &0));
        index as PortIndex
    }

    /// Whether an unsent frame leaves [in parts](Room::cuts) although nothing waits.
    #[inline]
    pub fn cuts(&self, frame: &Frame, now: u64) -> bool {
        self.waiting.as_ref().is_some_and(|room| room.cuts(frame) && now >= self.flows_from)
    }

    /// Notes that it sent nothing until `now`, by a change or by itself. That time earns no tokens beyond
    /// its burst, nor does its deadline's clock run. The next change may follow at once, and must not wait
    /// for frames taken ahead in between.
    pub fn restart(&mut self, now: u64) {
        self.flows_from = now + CHANGES;
        self.last_started = self.last_started.max(now);
        self.link.tx.count_as_arrived(now);
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
