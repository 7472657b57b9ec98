//! Sockets that send, each with the datagrams that wait for it.
//!
//! ```text
//!            hash of the inner flow      ┌ urgent ─┐
//!  datagram ─────────────────────▶ lane ─┤         ├─ flush: urgent ones of all lanes first ─▶ socket
//!       │    family of the peer          └ others ─┘
//!       └─ of a pair with a lane ──▶ lane of urgent ones only ─▶ socket
//! ```
//!
//! A real-time pair of vNICs may have a lane of its own, so that the network can tell it by its source port. A flow keeps its lane, and so its order and its outer source port. A lane whose socket is full keeps its
//! datagrams for the next flush, for a bounded time. While it has no room, frames for it hold up those for
//! other lanes in one loop only; then they [give way](Lanes::gives_way).

use super::counters::Counters;
use super::encapsulate::{Outer, Room};
use super::sockets::{MESSAGE_MAX, NotSent, Outgoing};
use super::trains::Trains;
use super::wire::OnWire;
use crate::clock::clock;
use crate::slots::NEVER;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use tidegate_evidence::DropReason;
use tidegate_uplink::vxlan;

/// Bytes that wait for a socket, and trains.
const OTHERS: (usize, usize) = (1 << 18, 64);
/// The same, of frames with a deadline.
const URGENT: (usize, usize) = (1 << 17, 64);

/// Longest wait of a datagram without a deadline for its socket (ns): as long as a receiver may hold a
/// frame.
const HOLD: u64 = 10_000_000;

/// Most lanes of pairs.
pub const PAIR_LANES: usize = tidegate_contract::network_paths::MOST_PAIRS;
/// Longest time in which datagrams without a deadline gather while their worker goes on (ns): a call of the kernel costs as
/// much for a train as for one of them.
const GATHER: u64 = 30_000;

/// Most bytes that a lane lets gather: more make no call cheaper, and leave the cache.
const GATHERED: usize = 1 << 14;

/// All lanes of a link.
pub struct Lanes {
    v4: Box<[Lane]>,
    v6: Box<[Lane]>,
    /// Of one pair each; of the family of the others.
    pairs: Box<[Lane]>,
    /// Those where datagrams may wait.
    waiting_pairs: u64,
    pub(super) outgoing: Outgoing,
    pub(super) counters: Counters,
    /// Frames that got room since the last look.
    pub(super) on_wire: OnWire,
    /// Datagrams wait.
    unsent: bool,
    /// Since when they [gather](Self::gathers) (ns); [`NEVER`] if they do not.
    since: u64,
}

struct Lane {
    socket: OwnedFd,
    urgent: Trains,
    others: Trains,
    /// There was no room for a frame since the last flush, nor did the kernel make any.
    is_full: bool,
    /// The same, between the two flushes before.
    was_full: bool,
}

/// Room in a lane, for one destination.
pub struct Destined<'a> {
    lane: &'a mut Lane,
    outgoing: &'a mut Outgoing,
    counters: &'a mut Counters,
    on_wire: &'a mut OnWire,
    to: SocketAddr,
    outer: Outer,
}

impl Lanes {
    /// Returns a lane for each socket, whose trains have at most `longest` bytes. Of `pairs`, [`PAIR_LANES`] are used.
    pub fn new(v4: Vec<OwnedFd>, v6: Vec<OwnedFd>, pairs: Vec<OwnedFd>, longest: usize) -> Self {
        let lane = |socket, others: (usize, usize)| Lane {
            socket,
            urgent: Trains::new(URGENT.0, URGENT.1, longest),
            others: Trains::new(others.0, others.1, longest),
            is_full: false,
            was_full: false,
        };
        let lanes = |sockets: Vec<OwnedFd>| sockets.into_iter().map(|socket| lane(socket, OTHERS)).collect();
        Self {
            v4: lanes(v4),
            v6: lanes(v6),
            pairs: pairs.into_iter().take(PAIR_LANES).map(|socket| lane(socket, (0, 0))).collect(),
            waiting_pairs: 0,
            outgoing: Outgoing::default(),
            counters: Counters::default(),
            on_wire: OnWire::default(),
            unsent: false,
            since: NEVER,
        }
    }

    /// Returns the room for a frame to `to`; `None` if no socket sends to such an address.
    #[inline]
    pub fn destined(&mut self, to: SocketAddr, outer: &Outer) -> Option<Destined<'_>> {
        let own = outer.lane.map(usize::from).filter(|at| *at < self.pairs.len());
        let lane = match own {
            Some(at) => {
                self.waiting_pairs |= 1 << at;
                &mut self.pairs[at]
            }
            None => {
                let lanes = if to.is_ipv4() { &mut self.v4 } else { &mut self.v6 };
                let at = place(lanes, outer)?;
                &mut lanes[at]
            }
        };
        self.unsent = true;
        Some(Destined {
            lane,
            outgoing: &mut self.outgoing,
            counters: &mut self.counters,
            on_wire: &mut self.on_wire,
            to,
            outer: *outer,
        })
    }

    /// Whether a frame's lane was full in the loop before, too.
    pub fn stays_full(&self, to: SocketAddr, outer: &Outer) -> bool {
        let lanes = if to.is_ipv4() { &self.v4 } else { &self.v6 };
        let own = outer.lane.and_then(|at| self.pairs.get(usize::from(at)));
        let lane = own.or_else(|| lanes.get(place(lanes, outer)?));
        lane.is_some_and(|lane| lane.is_full && lane.was_full)
    }

    /// Whether a frame without room is dropped: its lane stays full, and another one has room, whose frames
    /// must not wait. If all lanes are full, the frame waits like all others.
    pub fn gives_way(&self, to: SocketAddr, outer: &Outer) -> bool {
        let has_room = |lane: &Lane| !lane.is_full && !lane.was_full;
        self.stays_full(to, outer) && self.v4.iter().chain(&self.v6).any(has_room)
    }

    /// Whether datagrams wait.
    #[inline]
    pub fn has_unsent(&self) -> bool {
        self.unsent
    }

    /// Whether datagrams may wait at `now` (ns) for more to make longer trains: none is urgent, their sockets have
    /// room, and they are neither many nor old.
    #[inline]
    pub fn gathers(&mut self, now: u64) -> bool {
        let has_room = |lane: &Lane| !lane.is_full && !lane.was_full && lane.others.bytes() < GATHERED;
        let may_wait = |lane: &Lane| lane.urgent.is_empty() && has_room(lane);
        // Pairs have urgent ones only.
        if !self.unsent || self.waiting_pairs != 0 || !self.v4.iter().chain(&self.v6).all(may_wait) {
            return false;
        }
        self.since = self.since.min(now);
        now.saturating_sub(self.since) < GATHER
    }

    /// Whether they do since the last flush.
    #[inline]
    pub fn is_gathering(&self) -> bool {
        self.since != NEVER
    }

    /// Sends what the kernel takes: urgent datagrams of all lanes first.
    pub fn flush(&mut self) {
        if !self.unsent {
            return;
        }
        self.flush_urgent();
        (self.unsent, self.since) = (self.waiting_pairs != 0, NEVER);
        for lane in self.v4.iter_mut().chain(&mut self.v6) {
            lane.send(&mut self.outgoing, &mut self.counters);
            lane.was_full = std::mem::take(&mut lane.is_full);
            self.unsent |= lane.has_unsent();
        }
        if self.unsent {
            self.expire(clock());
        }
    }

    /// Sends what the kernel takes of urgent datagrams: those of pairs first.
    pub fn flush_urgent(&mut self) {
        let mut pairs = std::mem::take(&mut self.waiting_pairs);
        while pairs != 0 {
            let at = pairs.trailing_zeros() as usize;
            pairs &= pairs - 1;
            let lane = &mut self.pairs[at];
            send(&lane.socket, &mut lane.urgent, &mut self.outgoing, &mut self.counters);
            lane.was_full = std::mem::take(&mut lane.is_full);
            self.waiting_pairs |= u64::from(lane.has_unsent()) << at;
        }
        for lane in self.v4.iter_mut().chain(&mut self.v6) {
            send(&lane.socket, &mut lane.urgent, &mut self.outgoing, &mut self.counters);
        }
    }

    /// Drops datagrams that waited too long.
    #[cold]
    fn expire(&mut self, now: u64) {
        self.unsent = false;
        for lane in self.v4.iter_mut().chain(&mut self.v6).chain(&mut self.pairs) {
            let late = lane.urgent.expire(now, NEVER);
            self.counters.drop(DropReason::Late, late.datagrams);
            let old = lane.others.expire(now, HOLD);
            self.counters.drop(DropReason::HeldTooLong, old.datagrams);
            self.unsent |= lane.has_unsent();
        }
    }
}

/// Returns the place of a frame's lane; `None` without lanes.
#[inline]
fn place(lanes: &[Lane], outer: &Outer) -> Option<usize> {
    match lanes.len() {
        0 => None,
        1 => Some(0),
        count => Some(outer.flow as usize % count),
    }
}

impl Lane {
    #[inline]
    fn has_unsent(&self) -> bool {
        !self.urgent.is_empty() || !self.others.is_empty()
    }

    #[inline]
    fn has_room(&self, to: &SocketAddr, outer: &Outer, len: usize) -> bool {
        let trains = if outer.is_urgent() { &self.urgent } else { &self.others };
        trains.has_room(to, outer.traffic_class, len)
    }

    /// Sends until the socket is full, urgent datagrams first.
    fn send(&mut self, outgoing: &mut Outgoing, counters: &mut Counters) {
        send(&self.socket, &mut self.urgent, outgoing, counters);
        if self.urgent.is_empty() {
            send(&self.socket, &mut self.others, outgoing, counters);
        }
    }
}

/// Sends trains until the socket is full. Each call of the kernel ends a train, or is one of few for it.
fn send(socket: &OwnedFd, trains: &mut Trains, outgoing: &mut Outgoing, counters: &mut Counters) {
    let mut again = false;
    while !trains.is_empty() {
        let (reason, longest) = match outgoing.send(socket.as_fd(), trains.iter()) {
            Ok(sent) => {
                counters.sent(trains.remove(sent));
                again = false;
                continue;
            }
            Err(NotSent::Full) => return,
            Err(NotSent::Uncut) => {
                trains.break_up();
                continue;
            }
            Err(NotSent::Earlier) if !again => {
                again = true;
                continue;
            }
            Err(NotSent::TooLong) => (DropReason::PathMtu, true),
            Err(NotSent::NoRoute | NotSent::Earlier) => (DropReason::NoRoute, false),
            Err(NotSent::Filter | NotSent::Other(_)) => (DropReason::UplinkRefused, false),
        };
        let left = if longest { trains.remove_longest() } else { trains.remove(1) };
        counters.drop(reason, left.datagrams);
        again = false;
    }
}

impl Room for Destined<'_> {
    #[inline]
    fn room(&mut self, len: usize) -> Option<&mut [u8]> {
        debug_assert!(len <= MESSAGE_MAX, "checked by the caller");
        if !self.lane.has_room(&self.to, &self.outer, len) {
            if self.lane.is_full {
                // One call of the kernel a loop.
                return None;
            }
            self.lane.send(self.outgoing, self.counters);
            if !self.lane.has_room(&self.to, &self.outer, len) {
                self.lane.is_full = true;
                return None;
            }
        }
        self.on_wire.add(len - vxlan::LEN);
        let Lane { urgent, others, .. } = &mut *self.lane;
        let trains = if self.outer.is_urgent() { urgent } else { others };
        trains.reserve(self.to, self.outer.traffic_class, len, self.outer.deadline)
    }
}
