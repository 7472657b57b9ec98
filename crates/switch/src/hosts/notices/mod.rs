//! The thread of notices: what hosts tell each other beside frames, over sockets of its own.
//!
//! ```text
//!  table of ports: uplinks, keys ─▶ Setup ─┐                      ┌▶ Clocks ─▶ workers
//!  vNICs that come and go ───────▶ Local ──┼▶ engine ◀─ sockets ──┼▶ PeerStatus, FarMiss ─▶ agent
//!  workers ── Late, by queues ─────────────┘   └─ thread          ├▶ Moved ─▶ pins of the FDB
//!                                                                 └▶ Heard: members ─▶ tables of RDMA
//! ```
//!
//! One thread, so that a flood of notices takes nothing from workers: it takes a bounded number of messages in a turn,
//! and then sleeps. Reasons: `docs/decisions/clock.md`, `docs/decisions/rdma-members.md`.
//!
//! - [`setup`]: what the thread has to know
//! - [`engine`]: takes and sends notices
//! - `peer`: one other host
//! - `exchange`: the clock exchange with it
//! - `hearing`: whether it hears this host
//! - `reports`: late frames that it is told
//! - `far`: late frames that it told
//! - `present`: vNICs that it is told
//! - `own`: queue pairs of vNICs that it is told
//! - `rounds`: what of these it has still to be told
//! - `members`: vNICs of other hosts that RDMA reaches
//! - `bucket`: a limit on messages a second
//! - `socket`: one message in, one out

mod bucket;
pub mod engine;
mod exchange;
mod far;
mod hearing;
mod members;
mod own;
mod peer;
mod present;
mod reports;
mod rounds;
pub mod setup;
mod socket;
#[cfg(test)]
mod tests;

pub use engine::{Engine, Moved};
pub use members::Heard;
pub use setup::{KeyedSegment, LinkSetup, Local, PeerSetup, Setup};

use crate::clock::raw_clock;
use crate::fdb::PortIndex;
use crate::hosts::{Clocks, Late};
use rtrb::Consumer;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tidegate_evidence::{FarMiss, PeerStatus};
use tidegate_service::housekeeping;

/// Pause after a turn that left messages behind.
const PAUSE: Duration = Duration::from_millis(1);
/// Turns without a pause in each [`SPAN`]: a flood of single messages takes no CPU from others.
const TURNS: u32 = 100;
/// See [`TURNS`] (ns).
const SPAN: u64 = 100_000_000;
/// Looks at the vNICs after one may have come (ns): its front end's state follows its first queue.
const LOOKS: [u64; 3] = [0, 20_000_000, 200_000_000];
/// Time between two looks at the vNICs (ns), if there are peers.
const LOOK_EVERY: u64 = 1_000_000_000;
/// Longest wait for the thread to close a socket.
const CLOSE_WITHIN: Duration = Duration::from_secs(1);

/// The thread of notices, as others see it.
#[derive(Clone)]
pub struct Notices(Arc<Shared>);

struct Shared {
    engine: Mutex<Engine>,
    /// Wakes the thread.
    bell: OwnedFd,
    state: Mutex<State>,
    turned: Condvar,
}

#[derive(Default)]
struct State {
    /// When to look at the vNICs (ns), in order.
    looks: Vec<u64>,
    /// How often the engine was set, and how often when the thread last took the sockets.
    set: u64,
    seen: u64,
}

impl Notices {
    /// Returns a handle of a thread that is to be [spawned](Self::spawn).
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn new(clocks: Arc<Clocks>) -> io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let engine = Mutex::new(Engine::new(Box::new(raw_clock), clocks));
        Ok(Self(Arc::new(Shared { engine, bell, state: Mutex::default(), turned: Condvar::new() })))
    }

    /// Starts the thread. `look` returns the vNICs of this host, `moved` is told of vNICs at others, `members` of all that
    /// RDMA reaches there whenever they have changed. All may take locks under which this handle is used.
    ///
    /// # Errors
    /// The thread cannot start.
    pub fn spawn(
        &self,
        look: impl Fn() -> Vec<Local> + Send + 'static,
        moved: impl Fn(Moved) + Send + 'static,
        members: impl Fn(Vec<Heard>) + Send + 'static,
    ) -> io::Result<()> {
        let shared = self.0.clone();
        std::thread::Builder::new()
            .name("notices".into())
            .spawn(move || {
                let mut pace = Pace::default();
                loop {
                    shared.turn(&look, &moved, &members);
                    if pace.is_too_fast(raw_clock()) {
                        std::thread::sleep(PAUSE);
                    }
                }
            })
            .map(drop)
    }

    /// Sets links, peers and keys.
    pub fn set(&self, setup: Setup) {
        self.0.engine().set(setup);
        self.0.state().set += 1;
        self.look();
    }

    /// Waits until the thread has closed the sockets of links that were taken away, or for a second.
    pub fn wait_for_close(&self) {
        let state = self.0.state();
        let wanted = state.set;
        let is_open = |state: &mut State| state.seen < wanted;
        drop(self.0.turned.wait_timeout_while(state, CLOSE_WITHIN, is_open));
    }

    /// Makes the thread look at the vNICs: one may have come or gone.
    pub fn look(&self) {
        let now = raw_clock();
        self.0.state().looks = LOOKS.map(|after| now + after).to_vec();
        self.0.ring();
    }

    /// Takes late frames from a worker's queue from now on.
    pub fn attach(&self, late: Consumer<Late>) {
        self.0.engine().attach(late);
        self.0.ring();
    }

    /// Returns the state of an uplink's peers, and the latest late frames that they reported.
    pub fn status(&self, link: PortIndex) -> (Vec<PeerStatus>, Vec<FarMiss>) {
        self.0.engine().status(link)
    }
}

/// Turns since a moment.
#[derive(Default)]
struct Pace {
    since: u64,
    turns: u32,
}

impl Pace {
    /// Counts a turn that ended at `now` (ns); whether there were too many.
    fn is_too_fast(&mut self, now: u64) -> bool {
        if now.saturating_sub(self.since) >= SPAN {
            (self.since, self.turns) = (now, 0);
        }
        self.turns += 1;
        self.turns > TURNS
    }
}

impl Shared {
    fn engine(&self) -> MutexGuard<'_, Engine> {
        self.engine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ring(&self) {
        // A full counter wakes the thread as well.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    /// Does what is due, and waits for more. No lock is held while others' functions run.
    fn turn(&self, look: &impl Fn() -> Vec<Local>, moved: &impl Fn(Moved), members: &impl Fn(Vec<Heard>)) {
        housekeeping::follow();
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        if self.is_time_to_look() {
            let locals = look();
            self.engine().set_locals(locals);
        }
        let mut engine = self.engine();
        let set = self.state().set;
        let is_more = engine.receive();
        engine.send();
        let now = engine.now();
        let (moves, heard) = (engine.take_moved(), engine.take_members());
        let (due, has_peers) = (engine.due(now), engine.has_peers());
        let sockets = engine.sockets();
        drop(engine);
        heard.into_iter().for_each(members);
        moves.into_iter().for_each(moved);
        self.state().seen = set;
        self.turned.notify_all();
        if is_more {
            // What exceeds this waits in the kernel, which drops it.
            std::thread::sleep(PAUSE);
            return;
        }
        let next_look = self.next_look(has_peers, now);
        let wait = due.into_iter().chain(next_look).min().map(|at| at.saturating_sub(now).max(1));
        let timeout = wait.and_then(|wait| Timespec::try_from(Duration::from_nanos(wait)).ok());
        let mut all = vec![PollFd::new(&self.bell, PollFlags::IN)];
        all.extend(sockets.iter().map(|socket| PollFd::new(socket, PollFlags::IN)));
        let _ = poll(&mut all, timeout.as_ref());
    }

    fn is_time_to_look(&self) -> bool {
        let mut state = self.state();
        let now = raw_clock();
        let due = state.looks.iter().take_while(|at| **at <= now).count();
        state.looks.drain(..due);
        due > 0
    }

    /// Returns when to look at the vNICs next (ns).
    fn next_look(&self, has_peers: bool, now: u64) -> Option<u64> {
        let mut state = self.state();
        if state.looks.is_empty() && has_peers {
            state.looks.push(now + LOOK_EVERY);
        }
        state.looks.first().copied()
    }
}
