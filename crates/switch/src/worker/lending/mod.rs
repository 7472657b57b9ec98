//! Receiving halves that workers lend each other, so that frames between vNICs of different workers go
//! directly, too.
//!
//! ```text
//!  owner ── lend ──▶ place, open ── take ──▶ a worker with a batch for it: copies, charges, calls the driver
//!    ▲                │   ▲                      │
//!    └── take back ───┘   └────── put back ──────┘
//! ```
//!
//! A worker lends what the [direct way](super::direct) needs of a receiver: rings, tokens, counters. It is
//! one box, so one worker at a time has it, for a batch: one atomic swap takes it, one store puts it back.
//! No worker waits for another one: a frame that finds the place closed goes by
//! [crossing](super::crossing).
//!
//! - *Lent*: a half that other workers' frames asked for by crossing, or that served its queue. Only if no
//!   source has a deadline and nothing has to see each frame (captures, dirty logs, watched memory); at the
//!   end of the first loop after which its queue is empty.
//! - *Taken back* before the owner uses it otherwise: to serve its queue, to change its rings or memory, to
//!   move or remove it. The owner closes the place first, so it waits for one batch of each worker at most;
//!   until then frames stay queued, and calls of other threads are [put off](Worker::call_when_returned).
//! - *Order*: a source's frames go directly only while none of its frames or their copies is crossing or
//!   queued. While the place is open, or will be soon, they wait in the sender's ring: a [lull](lull).
//!
//! The model tries every order of these steps.

mod exchange;
mod lull;
#[cfg(test)]
mod model;

use super::Worker;
use crate::capacity::VNICS;
use crate::fdb::PortIndex;
use crate::port::Lent;
use crate::port::{Port, PortInfo, PortSet};
use crate::sched::EgressKind;
use crate::slots::{Frame, NEVER, Owner};
use exchange::Exchange;
pub use lull::Lull;
use std::sync::atomic::{AtomicU8, Ordering};

/// Where the receiving half of an own port is.
pub(super) enum HalfLocation {
    /// The port has it.
    Home,
    /// It is lent, and no worker has it now.
    Lent(Box<Lent>),
    /// Another worker has it.
    Away,
}

/// The places of all ports.
pub struct Lending(Box<[PortPlace]>);

/// The place of one port.
#[repr(align(64))]
struct PortPlace {
    half: Exchange<Lent>,
    /// `CLOSED`, `SOON` or `OPEN`.
    state: AtomicU8,
}

/// Only the owner may take the half.
const CLOSED: u8 = 0;
/// The same, and it opens when the port's queue is empty: senders should wait.
const SOON: u8 = 1;
/// Any worker may take the half.
const OPEN: u8 = 2;

impl Default for Lending {
    fn default() -> Self {
        let place = || PortPlace { half: Exchange::empty(), state: AtomicU8::new(CLOSED) };
        Self((0..VNICS).map(|_| place()).collect())
    }
}

impl Lending {
    /// Whether a port's receiving half is lent to a worker, or will be once its queue is empty.
    #[inline]
    pub(super) fn is_offered(&self, port: PortIndex) -> bool {
        self.0[usize::from(port)].state.load(Ordering::Relaxed) != CLOSED
    }

    /// Announces that an own port, which no other worker can take now, is lent soon or not.
    fn offer(&self, port: PortIndex, soon: bool) {
        let state = if soon { SOON } else { CLOSED };
        self.0[usize::from(port)].state.store(state, Ordering::Relaxed);
    }

    /// Closes the place; by its owner. The worker that has the half puts it back, and no other takes it.
    #[inline]
    pub(super) fn close(&self, port: PortIndex) {
        let state = &self.0[usize::from(port)].state;
        if state.load(Ordering::Relaxed) == OPEN {
            state.store(CLOSED, Ordering::Release);
        }
    }

    /// Takes a port's half for a batch; `None` while another worker has it, or if it is not lent.
    #[inline]
    pub(super) fn take(&self, port: PortIndex) -> Option<Box<Lent>> {
        let place = &self.0[usize::from(port)];
        // A closed half is its owner's.
        (place.state.load(Ordering::Relaxed) == OPEN).then(|| place.half.take())?
    }

    /// Shows the driver the new ring entries, and puts the half back.
    #[inline]
    pub(super) fn put_back(&self, port: PortIndex, mut half: Box<Lent>, by_owner: bool) {
        half.flush();
        half.by_others |= !by_owner;
        self.0[usize::from(port)].half.put(half);
    }

    /// Takes an own port's lent half for a batch of the owner. The port has it again if no other worker has
    /// used it since the last batch.
    #[inline(never)]
    pub(super) fn reach(&self, port: &mut Port) -> HalfLocation {
        match self.take(port.index) {
            Some(mut half) if half.by_others => {
                half.by_others = false;
                return HalfLocation::Lent(half);
            }
            Some(half) => self.bring_home(port, half),
            None if self.take_back(port) => {}
            None => return HalfLocation::Away,
        }
        HalfLocation::Home
    }

    /// Lends the receiving half that the port has.
    fn lend(&self, port: &mut Port) {
        let Some(mut half) = port.egress.lendable.take() else { return };
        std::mem::swap(&mut half.rx, &mut port.link.rx);
        half.tokens = port.egress.scheduler.bucket_mut().cloned();
        (half.segment, half.last_sent, half.by_others) = (port.segment, (port.index, 0), false);
        let place = &self.0[usize::from(port.index)];
        place.half.put(half);
        place.state.store(OPEN, Ordering::Release);
    }

    /// Takes back a lent half. `false` while a worker has it: the place is then closed, and the owner tries
    /// after that batch.
    #[inline]
    pub(super) fn take_back(&self, port: &mut Port) -> bool {
        port.egress.lendable.is_some() || self.end(port)
    }

    #[inline(never)]
    fn end(&self, port: &mut Port) -> bool {
        let place = &self.0[usize::from(port.index)];
        place.state.store(CLOSED, Ordering::Relaxed);
        let Some(half) = place.half.take() else { return false };
        self.bring_home(port, half);
        true
    }

    /// Gives a half back to its port.
    pub(super) fn bring_home(&self, port: &mut Port, mut half: Box<Lent>) {
        self.close(port.index);
        std::mem::swap(&mut half.rx, &mut port.link.rx);
        if port.broken {
            port.link.rx.refuse_posts();
        }
        if let (Some(left), Some(bucket)) = (half.tokens.take(), port.egress.scheduler.bucket_mut()) {
            *bucket = left;
        }
        if half.last_sent.1 > 0 {
            port.egress.last_sent = half.last_sent;
        }
        port.egress.lendable = Some(half);
    }
}

impl Worker {
    /// Notes a crossing frame for an own port that it could have reached directly: the half is lent when
    /// this loop ends.
    #[inline]
    pub(super) fn ask_to_lend(&mut self, egress: PortIndex, frame: &Frame) {
        if matches!(frame.owner, Owner::Ring { .. }) && frame.offload.gso_size().is_none() {
            self.lending_wanted.insert(egress);
        }
    }

    /// Takes back a lent half to serve its queue; it is lent again when that is empty. `false` while
    /// another worker has it.
    #[inline]
    pub(super) fn take_back_to_serve(&mut self, port: &mut Port) -> bool {
        if port.egress.lendable.is_some() {
            return true;
        }
        self.lending_wanted.insert(port.index);
        let is_home = self.lending.end(port);
        self.lending.offer(port.index, true);
        is_home
    }

    /// Lends the halves that frames asked for, where nothing prevents it. Others wait until their queue is
    /// empty or the worker that has the half puts it back.
    pub(super) fn lend_asked(&mut self) {
        for index in std::mem::replace(&mut self.lending_wanted, PortSet::EMPTY).iter() {
            let Some(mut port) = self.ports[usize::from(index)].take() else { continue };
            let (backlog, may_lend) = (port.egress.scheduler.backlog_total(), self.may_lend(&port));
            if !self.lending.take_back(&mut port) {
                self.lending_wanted.insert(index);
            } else if may_lend && backlog.frames > 0 {
                self.lending_wanted.insert(index);
                let drains = port.egress.blocked_since == NEVER
                    && port.egress.scheduler.tokens(self.now) >= backlog.bytes as i64;
                self.lending.offer(index, drains);
            } else if may_lend {
                self.lending.lend(&mut port);
            } else {
                self.lending.offer(index, false);
            }
            self.ports[usize::from(index)] = Some(port);
        }
    }

    /// Whether a port with an empty queue may be lent.
    fn may_lend(&self, port: &Port) -> bool {
        let is_seen = port.capture.is_some() || self.watch.covers(port.index);
        let changes = port.pauses > 0 || port.broken || self.is_arriving(port.index);
        let is_wire = port.contract.egress.kind != EgressKind::Virtual;
        !(is_seen || changes || is_wire || self.promised.contains(port.index)) && port.link.rx.is_plain()
    }

    /// Takes back an own port's half. `false` while another worker has it.
    pub(super) fn take_back(&mut self, index: PortIndex) -> bool {
        self.ports[usize::from(index)].as_mut().is_none_or(|port| self.lending.take_back(port))
    }

    /// Finds the ports with promised deadlines: none of them is lent from now on.
    pub(super) fn note_promised(&mut self) {
        self.promised = PortSet::EMPTY;
        let promises = |info: &&PortInfo| info.deadline.is_some() || info.arrivals.is_some();
        for info in self.infos.iter().flatten().filter(promises) {
            info.to.iter().for_each(|port| self.promised.insert(port));
        }
        for index in self.promised.clone().iter() {
            // A half that another worker has comes back after its batch, and stays.
            self.take_back(index);
        }
    }
}
