//! Receiving halves that workers lend each other: frames between vNICs of different workers go directly, too.
//!
//! ```text
//!  owner ── lend ──▶ place, open ── take ──▶ a worker with a batch for it: copies, charges, calls the driver
//!    ▲                │   ▲                      │
//!    └── take back ───┘   └────── put back ──────┘
//! ```
//!
//! What is lent is what the [direct way](super::direct) needs of a receiver: its rings, its tokens, its counters. It is
//! one box that changes hands, so one worker at a time has it, for a batch: one atomic swap to take it, one store to put it
//! back. No worker waits for another one: a frame that finds the place closed is sent by [crossing](super::crossing).
//!
//! - *Lent* is what other workers' frames asked for by crossing, and what was taken back to serve a queue, where no source
//!   has a deadline and nothing has to see each frame (captures, dirty logs, watched memory): at the end of the first loop
//!   after which nothing waits there.
//! - *Taken back* before the owner uses it otherwise: to serve what was queued there, to change its rings or memory, to move
//!   or remove it. The place is closed first, so the owner waits for one batch of each worker at most; until then
//!   frames stay queued, and calls of other threads are [put off](Worker::when_back).
//! - *Order*: a source's frames go directly only while none of its frames, nor of their copies, is crossing or queued.
//!   While the place is open, or is to be soon, they wait for that in the sender's ring: a [lull](lull).
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
use crate::port::{Port, PortSet};
use crate::sched::EgressKind;
use crate::slots::{Frame, NEVER, Owner};
use exchange::Exchange;
pub use lull::Lull;
use std::sync::atomic::{AtomicU8, Ordering};

/// Where the receiving half of an own port is.
pub(super) enum Reach {
    /// With the port.
    Home,
    /// It is lent; here it is.
    Lent(Box<Lent>),
    /// Another worker has it.
    Away,
}

/// The places of all ports.
pub struct Lending(Box<[PortPlace]>);

/// One port's.
#[repr(align(64))]
struct PortPlace {
    half: Exchange<Lent>,
    /// One of the next three.
    state: AtomicU8,
}

/// What lies there is its owner's.
const CLOSED: u8 = 0;
/// So it is, until the queue of the port is empty: those who send do well to wait for that.
const SOON: u8 = 1;
/// It may be taken by others than its owner.
const OPEN: u8 = 2;

impl Default for Lending {
    fn default() -> Self {
        let place = || PortPlace { half: Exchange::empty(), state: AtomicU8::new(CLOSED) };
        Self((0..VNICS).map(|_| place()).collect())
    }
}

impl Lending {
    /// Whether a port's receiving half is lent, to whomever, or will be once its queue is empty.
    #[inline]
    pub(super) fn is_offered(&self, port: PortIndex) -> bool {
        self.0[usize::from(port)].state.load(Ordering::Relaxed) != CLOSED
    }

    /// Whether an own port, which no other worker takes, is to be lent soon.
    fn offer(&self, port: PortIndex, soon: bool) {
        let state = if soon { SOON } else { CLOSED };
        self.0[usize::from(port)].state.store(state, Ordering::Relaxed);
    }

    /// By its owner: the worker that has it puts it back, and no other worker takes it any more.
    #[inline]
    pub(super) fn close(&self, port: PortIndex) {
        let state = &self.0[usize::from(port)].state;
        if state.load(Ordering::Relaxed) == OPEN {
            state.store(CLOSED, Ordering::Release);
        }
    }

    /// Takes what a port lends, for a batch; `None` where a worker has it, or it is not lent.
    #[inline]
    pub(super) fn take(&self, port: PortIndex) -> Option<Box<Lent>> {
        let place = &self.0[usize::from(port)];
        // One that is closed is its owner's.
        (place.state.load(Ordering::Relaxed) == OPEN).then(|| place.half.take())?
    }

    /// Shows the driver what was put into its rings, and puts it back.
    #[inline]
    pub(super) fn put_back(&self, port: PortIndex, mut half: Box<Lent>, by_owner: bool) {
        half.flush();
        half.by_others |= !by_owner;
        self.0[usize::from(port)].half.put(half);
    }

    /// What an own port lends, for a batch of the owner. Where no other worker has used it since the last one, the port has
    /// it again.
    #[inline(never)]
    pub(super) fn reach(&self, port: &mut Port) -> Reach {
        match self.take(port.index) {
            Some(mut half) if half.by_others => {
                half.by_others = false;
                return Reach::Lent(half);
            }
            Some(half) => self.bring_home(port, half),
            None if self.take_back(port) => {}
            None => return Reach::Away,
        }
        Reach::Home
    }

    /// Lends the receiving half of a port that has it.
    fn lend(&self, port: &mut Port) {
        let Some(mut half) = port.egress.lendable.take() else { return };
        std::mem::swap(&mut half.rx, &mut port.link.rx);
        half.tokens = port.egress.scheduler.bucket_mut().cloned();
        (half.segment, half.last, half.by_others) = (port.segment, (port.index, 0), false);
        let place = &self.0[usize::from(port.index)];
        place.half.put(half);
        place.state.store(OPEN, Ordering::Release);
    }

    /// Takes back what a port lends. `false` where a worker has it: then it is closed, and can be taken back when the
    /// batch is over.
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

    /// What a port lent is the port's again.
    pub(super) fn bring_home(&self, port: &mut Port, mut half: Box<Lent>) {
        self.close(port.index);
        std::mem::swap(&mut half.rx, &mut port.link.rx);
        if port.broken {
            port.link.rx.shut();
        }
        if let (Some(left), Some(bucket)) = (half.tokens.take(), port.egress.scheduler.bucket_mut()) {
            *bucket = left;
        }
        if half.last.1 > 0 {
            port.egress.last = half.last;
        }
        port.egress.lendable = Some(half);
    }
}

impl Worker {
    /// A frame came by crossing for an own port that could go directly: its receiving half is lent when this loop ends.
    #[inline]
    pub(super) fn ask_to_lend(&mut self, egress: PortIndex, frame: &Frame) {
        if matches!(frame.owner, Owner::Ring { .. }) && frame.offload.gso_size().is_none() {
            self.asked.insert(egress);
        }
    }

    /// Takes back what a port lends, to serve its queue: it is lent again when that is empty. `false` while another worker
    /// has it.
    #[inline]
    pub(super) fn take_back_to_serve(&mut self, port: &mut Port) -> bool {
        if port.egress.lendable.is_some() {
            return true;
        }
        self.asked.insert(port.index);
        let is_home = self.lending.end(port);
        self.lending.offer(port.index, true);
        is_home
    }

    /// Lends what was asked for, where nothing is in the way. What waits there is waited for, as is a worker that has it.
    pub(super) fn lend_asked(&mut self) {
        for index in std::mem::replace(&mut self.asked, PortSet::EMPTY).iter() {
            let Some(mut port) = self.ports[usize::from(index)].take() else { continue };
            let (backlog, may_lend) = (port.egress.scheduler.backlog_total(), self.may_lend(&port));
            if !self.lending.take_back(&mut port) {
                self.asked.insert(index);
            } else if may_lend && backlog.frames > 0 {
                self.asked.insert(index);
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

    /// Whether a port in front of which nothing waits may be lent.
    fn may_lend(&self, port: &Port) -> bool {
        let is_seen = port.capture.is_some() || self.watch.covers(port.index);
        let changes = port.pauses > 0 || port.broken || self.is_arriving(port.index);
        let is_wire = port.contract.egress.kind != EgressKind::Virtual;
        !(is_seen || changes || is_wire || self.promised.contains(port.index)) && port.link.rx.is_plain()
    }

    /// Takes back what an own port lends. `false` while another worker has it.
    pub(super) fn take_back(&mut self, index: PortIndex) -> bool {
        self.ports[usize::from(index)].as_mut().is_none_or(|port| self.lending.take_back(port))
    }

    /// Takes stock of the ports that deadlines hold towards: nothing of them is lent from now on.
    pub(super) fn note_promised(&mut self) {
        self.promised = PortSet::EMPTY;
        for info in self.infos.iter().flatten().filter(|info| info.deadline.is_some()) {
            info.to.iter().for_each(|port| self.promised.insert(port));
        }
        for index in self.promised.clone().iter() {
            // What a worker has is back after its batch, and not lent again.
            self.take_back(index);
        }
    }
}
