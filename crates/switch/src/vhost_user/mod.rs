//! The vhost-user protocol: one thread per port, between a front end's socket
//! and the workers.
//!
//! ```text
//!  QEMU ──socket──▶ wire ─▶ door ─▶ request ─▶ connection ──PortControl──▶ workers
//!            ▲     (whole) (descriptors) (values)     │
//!            └─────────────── reply ──────────────────┘   session: one front end, message by message
//!                                                          listener: accept, let a second front end wait, reconnect
//! ```
//!
//! - [`listener`]: the port's thread: who may speak
//! - `entrance`: who comes in: one is served, one may wait, all others are turned away
//! - [`heir`]: the one that waits
//! - [`session`]: one front end: when it may speak, and what ends it
//! - [`exchange`]: one message of it: taken, looked at, obeyed, answered
//! - [`wire`]: messages on its socket
//! - [`door`]: what may come with a message
//! - [`request`]: which messages there are, what each looks like, and what it asks
//! - [`connection`]: what a front end said, and what it means
//! - [`notifier`]: how drivers are called
//! - [`kick`]: how drivers call
//! - [`errands`]: work that may take long, in threads that no other thread waits for
//! - [`conduct`]: what a port's objects did to others, and its quarantine
//! - [`service`]: these, for one port
//! - [`config`]: what its thread needs to know about it
//! - [`saved`]: what a front end has said, for another process to keep
//! - [`features`]: the feature bits, offered and named
//! - [`status`]: what is known about the connection, for others to read

pub mod conduct;
pub mod config;
pub mod connection;
mod door;
mod end;
mod entrance;
pub mod errands;
pub mod exchange;
pub mod features;
mod gate;
pub mod heir;
pub mod kick;
pub mod listener;
mod logging;
mod mailbox;
pub mod notifier;
mod reply;
mod request;
pub mod saved;
pub mod service;
pub mod session;
mod shared;
pub mod status;
#[cfg(test)]
mod tests;
mod wire;

use crate::moved::Outcome;
use crate::virtio::memory::GuestMemory;
use crate::virtio::{DirtyLog, QueueInflight};
use kick::Kick;
use notifier::Call;
use saved::{Numbered, SavedConnection};
use std::sync::Arc;
use tidegate_contract::Mac;

/// For the person who started a VM whose memory no other process can map.
pub const NOT_SHARED: &str = "guest memory is not shared; add share=on: \
    `-object memory-backend-memfd,id=mem,size=...,share=on -machine memory-backend=mem`, \
    in libvirt's XML `<memoryBacking><access mode='shared'/></memoryBacking>`";

/// What it takes to start one virtqueue. Addresses are the front end's
/// (user) addresses, to be translated by [`GuestMemory`].
#[derive(Debug)]
pub struct VringSetup {
    /// Entries, 1 to 32768; of a split ring a power of two (virtio 1.2, 2.7 and 2.8).
    pub size: u16,
    /// Descriptor table or ring.
    pub desc: u64,
    /// Available ring; packed: driver event suppression.
    pub avail: u64,
    /// Used ring; packed: device event suppression.
    pub used: u64,
    /// First available index to be read; packed: both places and wrap counters
    /// ([`Queue::new`](crate::virtio::Queue::new)).
    pub base: u32,
    /// Guest address of the used ring in the dirty log, if the front end says one (VHOST_VRING_F_LOG).
    pub log: Option<u64>,
    /// The driver's notification; `None` means the ring is polled.
    pub kick: Option<Kick>,
    /// Our notification; `None` means the driver polls.
    pub call: Option<Call>,
    /// What outlives this process: if it says that the queue was in service at this place, the queue
    /// goes on there and `base` means nothing. `None` for a queue that no later process recovers.
    pub inflight: Option<QueueInflight>,
}

/// Bytes of what the device writes at a ring's `used` address: the used ring of `size` entries
/// (virtio 1.2, 2.7.8), or its event suppression (2.8.10).
pub fn used_bytes(packed: bool, size: u16) -> u64 {
    if packed { 4 } else { 6 + 8 * u64::from(size) }
}

/// What a connection asks of the data plane. Every call returns only once the
/// workers obey it, so a reply sent afterwards is true.
///
/// Queue indices are the protocol's: even is the driver's receive queue (rx in
/// the VM's view), odd its transmit queue.
pub trait PortControl {
    /// The negotiated virtio features. Called before any queue starts.
    fn set_features(&mut self, features: u64);
    /// A new memory table: frames in flight from this port are dropped before
    /// this returns, running queues go on in the new table (their addresses are
    /// translated again). `Err` says which ring no longer fits.
    fn set_memory(&mut self, memory: Arc<GuestMemory>) -> Result<(), String>;
    /// From now on every page of guest memory that is written is noted there, or not any more.
    fn set_log(&mut self, log: Option<DirtyLog>);
    /// Where else a running queue's used ring is in that log.
    fn set_used_log(&mut self, index: u16, log: Option<u64>);
    /// Tells the segment that an address lives here; `false` where it is not the contract's.
    fn announce(&mut self, mac: Mac) -> bool;
    /// Listens to what a queue's driver is to kick by, which is yet to [hear](Kick::hear) it. `Err` says why not.
    fn listen(&mut self, kick: &Kick) -> Result<(), String>;
    /// As [`listen`](Self::listen), for another worker: the port is about to go there.
    fn listen_at(&mut self, worker: usize, kick: &Kick) -> Result<(), String>;
    /// Moves the port to another worker; `kicks` are what its queues' drivers kick that one by. `Err` says why it stays.
    fn move_to(&mut self, worker: usize, kicks: Vec<(u16, Kick)>) -> Outcome;
    /// Takes back what [`listen`](Self::listen) did, of a kick that no queue has.
    fn forget(&mut self, kick: &Kick);
    /// Starts a queue; it carries frames once enabled. Its kick is listened to already.
    fn start_queue(&mut self, index: u16, setup: VringSetup) -> Result<(), String>;
    /// Stops a queue, having dropped its frames in flight; returns the base to
    /// start it from again.
    fn stop_queue(&mut self, index: u16) -> Option<u32>;
    /// SET_VRING_ENABLE.
    fn enable_queue(&mut self, index: u16, enabled: bool);
    /// Replaces our notification of a running queue.
    fn set_call(&mut self, index: u16, call: Option<Call>);
    /// Replaces the driver's notification of a running queue by one that is listened to.
    fn set_kick(&mut self, index: u16, kick: Option<Kick>);
    /// The front end went away (or is thrown out): all queues stop, memory is released.
    fn disconnect(&mut self, reason: &str);
}

/// Keeps what a front end says, for the process after this one.
pub trait Keeper: Send {
    /// A message is about to be read. Until [`said`](Self::said), what is kept is not what the front end
    /// knows: after a crash it would wait for an answer.
    fn listening(&mut self);
    /// What it has said by now; the last message was answered.
    fn said(&mut self, kept: SavedConnection, descriptors: Vec<Numbered>);
    /// Passes everything to the keeper again: it is another one, or a note could not be passed on.
    fn renew(&mut self);
    /// Something could not be passed on.
    fn is_behind(&self) -> bool;
    /// The connection is over.
    fn gone(&mut self);
}

/// Keeps nothing.
pub struct NoKeeper;

impl Keeper for NoKeeper {
    fn listening(&mut self) {}
    fn said(&mut self, _: SavedConnection, _: Vec<Numbered>) {}
    fn renew(&mut self) {}
    fn is_behind(&self) -> bool {
        false
    }
    fn gone(&mut self) {}
}
