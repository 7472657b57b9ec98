//! Attacks of a hostile front end with shared objects, for tests and benchmarks.
//!
//! ```text
//!  Attack::run ─▶ connects to a port's socket, shares objects, makes the switch work on them,
//!                 and connects again when it is thrown out, until it is told to stop
//! ```
//!
//! - [`counters`]: event counters with many waiters, floods of signals
//! - [`memory`]: memory with holes, and endless memory
//! - [`sockets`]: sockets in place of memory, and endless connections
//! - `target`: the target of an attack

pub mod counters;
pub mod memory;
pub mod sockets;
mod target;

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64};
use target::REFUSED_PAUSE;
pub use target::{Target, dial};

/// One kind of attack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attack {
    /// 300,000 waiters on the call eventfd.
    CallWaiters,
    /// 300,000 waiters on the kick eventfd, which is passed repeatedly.
    KickWaiters,
    /// Holes punched into the memory's file while the switch reads it.
    PunchHoles,
    /// Regions of up to 8 TiB, in a file without pages, until the switch maps no more.
    SparseRegions,
    /// Sockets with data to send (SO_LINGER) in place of memory.
    LingeringSockets,
    /// Kicks at the full speed of two threads.
    KickFlood,
    /// Connections and first messages as fast as the switch accepts them.
    ConnectionStorm,
}

impl Attack {
    /// Every attack.
    pub const ALL: [Self; 7] = [
        Self::CallWaiters,
        Self::KickWaiters,
        Self::PunchHoles,
        Self::SparseRegions,
        Self::LingeringSockets,
        Self::KickFlood,
        Self::ConnectionStorm,
    ];

    /// Returns a short description.
    pub fn name(self) -> &'static str {
        match self {
            Self::CallWaiters => "300,000 epoll waiters on the call eventfd",
            Self::KickWaiters => "300,000 epoll waiters on the kick eventfd",
            Self::PunchHoles => "holes punched into 2 GiB of memory",
            Self::SparseRegions => "sparse regions, as many as fit",
            Self::LingeringSockets => "sockets that linger, as memory",
            Self::KickFlood => "a flood of kicks",
            Self::ConnectionStorm => "a storm of connections",
        }
    }

    /// Attacks the port behind `socket` until `stop`, and counts `steps`: requested signals, holes, tables,
    /// sockets, kicks, connections.
    ///
    /// # Errors
    /// This machine has too few descriptors or too little memory. A refusal by the switch is no error.
    pub fn run(self, socket: &Path, stop: &AtomicBool, steps: &AtomicU64) -> io::Result<()> {
        let target = Target { socket, stop, steps };
        match self {
            Self::CallWaiters => counters::call_waiters(&target, counters::WAITERS),
            Self::KickWaiters => counters::kick_waiters(&target, counters::WAITERS),
            Self::PunchHoles => memory::punch_holes(&target, 2 << 30),
            Self::SparseRegions => memory::sparse_regions(&target),
            Self::LingeringSockets => sockets::lingering(&target),
            Self::KickFlood => counters::kick_flood(&target),
            Self::ConnectionStorm => sockets::storm(&target),
        }
    }
}
