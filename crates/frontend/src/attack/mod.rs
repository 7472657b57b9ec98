//! What a front end that means harm does with the objects it shares, for tests and benchmarks.
//!
//! ```text
//!  Attack::run ─▶ connects to a port's socket, shares objects, makes the switch work on them,
//!                 and connects again when it is thrown out, until it is told to stop
//! ```
//!
//! - [`counters`]: event counters: waiters on them, floods of them
//! - [`memory`]: memory with holes, and memory without end
//! - [`sockets`]: sockets where memory is expected, and connections without end

pub mod counters;
pub mod memory;
pub mod sockets;
mod target;

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64};
use target::REFUSED_PAUSE;
pub use target::{Target, dial};

/// One way to do harm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attack {
    /// 300,000 waiters on the counter that the switch calls the driver by.
    CallWaiters,
    /// The same on the counter that the driver kicks by, passed again and again.
    KickWaiters,
    /// Memory is punched out of its file while the switch reads it.
    PunchHoles,
    /// Regions of up to 8 TiB, in a file without pages, until no more are mapped.
    SparseRegions,
    /// Sockets with data to send (SO_LINGER) where memory is expected.
    LingeringSockets,
    /// Kicks as fast as two threads can.
    KickFlood,
    /// Connections and first messages as fast as they are taken.
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

    /// In a few words.
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

    /// Attacks the port behind `socket` until `stop`. Counts in `steps` what it did: signals asked for,
    /// holes punched, tables sent, sockets passed, kicks, connections.
    ///
    /// # Errors
    /// This machine does not let it: too few descriptors, too little memory. What the switch refuses is no error.
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
