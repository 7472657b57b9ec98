//! Sockets that send, each with the datagrams that wait for it.
//!
//! ```text
//!            hash of the inner flow      ┌ urgent ─┐
//!  datagram ─────────────────────▶ lane ─┤         ├─ flush: urgent ones of all lanes first ─▶ socket
//!            family of the peer          └ others ─┘
//! ```
//!
//! A flow keeps its lane, and so its order and its outer source port. A lane whose socket is full keeps its
//! datagrams for the next flush.

use super::counters::Counters;
use super::encapsulate::{Outer, Room};
use super::sockets::{MESSAGE_MAX, NotSent, Outgoing};
use super::trains::Trains;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use tidegate_evidence::DropReason;

/// Bytes that wait for a socket, and trains.
const OTHERS: (usize, usize) = (1 << 18, 64);
/// The same, of frames with a deadline.
const URGENT: (usize, usize) = (1 << 17, 64);

/// All lanes of a link.
pub struct Lanes {
    v4: Box<[Lane]>,
    v6: Box<[Lane]>,
    pub(super) outgoing: Outgoing,
    pub(super) counters: Counters,
    /// Datagrams wait.
    unsent: bool,
}

struct Lane {
    socket: OwnedFd,
    urgent: Trains,
    others: Trains,
}

/// Room in a lane, for one destination.
pub struct Destined<'a> {
    lane: &'a mut Lane,
    outgoing: &'a mut Outgoing,
    counters: &'a mut Counters,
    to: SocketAddr,
    traffic_class: u8,
    is_urgent: bool,
}

impl Lanes {
    /// Returns a lane for each socket, whose trains have at most `longest` bytes.
    pub fn new(v4: Vec<OwnedFd>, v6: Vec<OwnedFd>, longest: usize) -> Self {
        let lane = |socket| Lane {
            socket,
            urgent: Trains::new(URGENT.0, URGENT.1, longest),
            others: Trains::new(OTHERS.0, OTHERS.1, longest),
        };
        Self {
            v4: v4.into_iter().map(lane).collect(),
            v6: v6.into_iter().map(lane).collect(),
            outgoing: Outgoing::default(),
            counters: Counters::default(),
            unsent: false,
        }
    }

    /// Returns the room for a frame to `to`; `None` if no socket sends to such an address.
    #[inline]
    pub fn destined(&mut self, to: SocketAddr, outer: &Outer) -> Option<Destined<'_>> {
        let lanes = if to.is_ipv4() { &mut self.v4 } else { &mut self.v6 };
        let lane = match &mut lanes[..] {
            [] => return None,
            [only] => only,
            lanes => &mut lanes[outer.flow as usize % lanes.len()],
        };
        self.unsent = true;
        Some(Destined {
            lane,
            outgoing: &mut self.outgoing,
            counters: &mut self.counters,
            to,
            traffic_class: outer.traffic_class,
            is_urgent: outer.is_urgent,
        })
    }

    /// Whether datagrams wait.
    #[inline]
    pub fn has_unsent(&self) -> bool {
        self.unsent
    }

    /// Sends what the kernel takes: urgent datagrams of all lanes first.
    pub fn flush(&mut self) {
        if !self.unsent {
            return;
        }
        self.unsent = false;
        for lane in self.v4.iter_mut().chain(&mut self.v6) {
            send(&lane.socket, &mut lane.urgent, &mut self.outgoing, &mut self.counters);
        }
        for lane in self.v4.iter_mut().chain(&mut self.v6) {
            lane.send(&mut self.outgoing, &mut self.counters);
            self.unsent |= !lane.urgent.is_empty() || !lane.others.is_empty();
        }
    }
}

impl Lane {
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
        let trains = if self.is_urgent { &self.lane.urgent } else { &self.lane.others };
        if !trains.has_room(&self.to, self.traffic_class, len) {
            self.lane.send(self.outgoing, self.counters);
        }
        let trains = if self.is_urgent { &mut self.lane.urgent } else { &mut self.lane.others };
        trains.reserve(self.to, self.traffic_class, len)
    }
}
