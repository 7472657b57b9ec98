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
//! - [`listener`]: the port's thread, and which front end it serves
//! - `entrance`: accepts front ends: one is served, one may wait, others are refused
//! - [`heir`]: the front end that waits
//! - [`session`]: one front end: when it may speak, and the end of its connection
//! - `end`: reasons for the end of a connection
//! - `gate`: holds a restored connection back until its queues may start
//! - `mailbox`: orders of the port's owner to its thread
//! - [`exchange`]: one message: taken, checked, obeyed, answered
//! - [`wire`]: messages on its socket
//! - [`door`]: checks descriptors of messages
//! - [`request`]: the messages, their forms and requests
//! - `reply`: the result of a request
//! - [`connection`]: a front end's state
//! - `shared`: distinguishes shared memory from a private copy
//! - `logging`: the dirty log
//! - [`notifier`]: calls drivers
//! - [`kick`]: hears drivers
//! - [`errands`]: slow work, in threads that no other thread waits for
//! - [`conduct`]: how a port's objects delayed others, and its quarantine
//! - [`service`]: these, for one port
//! - [`config`]: settings of a port's thread
//! - [`saved`]: a front end's state in a form for another process
//! - [`features`]: the feature bits, offered and named
//! - [`status`]: the connection's state for readers

pub mod conduct;
pub mod config;
pub mod connection;
mod door;
mod end;
mod entrance;
pub mod errands;
pub mod exchange;
pub mod features;
pub mod gate;
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

/// For a user who started a VM whose memory no other process can map.
pub const NOT_SHARED: &str = "guest memory is not shared; add share=on: \
    `-object memory-backend-memfd,id=mem,size=...,share=on -machine memory-backend=mem`, \
    in libvirt's XML `<memoryBacking><access mode='shared'/></memoryBacking>`";

/// Settings of one virtqueue to start. Addresses are the front end's (user) addresses, to be translated by
/// [`GuestMemory`].
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
    /// Guest address of the used ring in the dirty log, if the front end names one (VHOST_VRING_F_LOG).
    pub log: Option<u64>,
    /// The driver's notification; `None` means the ring is polled.
    pub kick: Option<Kick>,
    /// Our notification; `None` means the driver polls.
    pub call: Option<Call>,
    /// The record that outlives this process: if it says that the queue was in service at this place, the
    /// queue continues there and `base` means nothing. `None` for a queue that no later process recovers.
    pub inflight: Option<QueueInflight>,
}

/// Returns the bytes that the device writes at a ring's `used` address: the used ring of `size` entries
/// (virtio 1.2, 2.7.8), or its event suppression (2.8.10).
pub fn used_bytes(packed: bool, size: u16) -> u64 {
    if packed { 4 } else { 6 + 8 * u64::from(size) }
}

/// A connection's calls to the data plane. Each returns only when the workers obey it, so a later reply is
/// true.
///
/// Queue indices are the protocol's: even is the driver's receive queue (rx in the VM's view), odd its
/// transmit queue.
pub trait PortControl {
    /// Sets the negotiated virtio features. Called before any queue starts.
    fn set_features(&mut self, features: u64);
    /// Sets a new memory table: frames in flight from this port are dropped before this returns, running
    /// queues continue in the new table (their addresses are translated anew). `Err` names a ring that no
    /// longer fits.
    fn set_memory(&mut self, memory: Arc<GuestMemory>) -> Result<(), String>;
    /// Begins or ends noting written pages of guest memory.
    fn set_log(&mut self, log: Option<DirtyLog>);
    /// Sets where that log also has a running queue's used ring.
    fn set_used_log(&mut self, index: u16, log: Option<u64>);
    /// Announces an address to the segment; `false` if it is not the contract's.
    fn announce(&mut self, mac: Mac) -> bool;
    /// Lets the worker listen to a queue's kick, which does not [hear](Kick::listen_to_driver) its driver yet. `Err`
    /// has the reason.
    fn listen(&mut self, kick: &Kick) -> Result<(), String>;
    /// Like [`listen`](Self::listen), for another worker: the port is about to move there.
    fn listen_at(&mut self, worker: usize, kick: &Kick) -> Result<(), String>;
    /// Moves the port to another worker; its drivers kick that one by `kicks`. `Err` has the reason why it
    /// stays.
    fn move_to(&mut self, worker: usize, kicks: Vec<(u16, Kick)>) -> Outcome;
    /// Reverts [`listen`](Self::listen) for a kick that no queue has.
    fn forget(&mut self, kick: &Kick);
    /// Starts a queue; it carries frames once enabled. The worker listens to its kick already.
    fn start_queue(&mut self, index: u16, setup: VringSetup) -> Result<(), String>;
    /// Stops a queue after dropping its frames in flight; returns the base to start it from.
    fn stop_queue(&mut self, index: u16) -> Option<u32>;
    /// SET_VRING_ENABLE.
    fn enable_queue(&mut self, index: u16, enabled: bool);
    /// Replaces our notification of a running queue.
    fn set_call(&mut self, index: u16, call: Option<Call>);
    /// Replaces the driver's notification of a running queue by one that the worker listens to.
    fn set_kick(&mut self, index: u16, kick: Option<Kick>);
    /// The front end went away or is disconnected: stops all queues, releases memory.
    fn disconnect(&mut self, reason: &str);
}

/// Stores a front end's state for the next process.
pub trait StateStore: Send {
    /// A message is about to be read. Until [`store_state`](Self::store_state), the stored state is not what the front
    /// end expects: after a crash it would wait for an answer.
    fn listening(&mut self);
    /// Stores the front end's state after the last message was answered.
    fn store_state(&mut self, saved: SavedConnection, descriptors: Vec<Numbered>);
    /// Sends the whole state again: a subscriber is new, or a note was lost.
    fn resend(&mut self);
    /// Whether a note could not be sent.
    fn is_behind(&self) -> bool;
    /// The connection has ended.
    fn end_connection(&mut self);
}

/// Stores nothing.
pub struct NoStateStore;

impl StateStore for NoStateStore {
    fn listening(&mut self) {}
    fn store_state(&mut self, _: SavedConnection, _: Vec<Numbered>) {}
    fn resend(&mut self) {}
    fn is_behind(&self) -> bool {
        false
    }
    fn end_connection(&mut self) {}
}
