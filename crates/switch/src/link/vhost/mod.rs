//! The rings of a guest that a vhost-user front end serves.
//!
//! ```text
//!  tx rings ─ take ─▶ slot: headers copied, payload stays in the guest's memory ... give back ─▶ used
//!  rx rings ◀ post ── the payload is copied once, from the sender's memory
//!
//!  front end ─▶ Control: features, memory, rings, kicks, calls, the log of a migration
//! ```
//!
//! - [`take`]: the sending half
//! - [`post`]: the receiving half
//! - [`copy`]: frames that lie in one buffer each
//! - `fill`: receive buffers that are filled together
//! - [`land`]: receive buffers that an RDMA device fills
//! - [`control`]: a front end's changes
//! - [`ring`]: one virtqueue and its notifications
//! - [`arrivals`]: when a ring's entries arrived

pub mod arrivals;
pub mod control;
pub mod copy;
mod fill;
pub mod land;
pub mod post;
pub mod ring;
pub mod take;

pub use control::{Control, ReleasedHalves};
pub use ring::Ring;

use super::{Pending, Receiver};
use crate::slots::Slots;
use crate::virtio::{DirtyLog, GuestMemory};
use arrivals::Arrivals;
use fill::Fill;
use land::Land;
use smallvec::SmallVec;
use std::sync::Arc;

/// Frames that a guest sends. Fields in this order: a turn needs the first ones.
#[derive(Default)]
#[repr(C)]
pub struct Tx {
    /// Transmit queues by queue pair.
    pub queues: Vec<Option<TxQueue>>,
    /// Length of the virtio header before each frame, 10 or 12.
    header_len: usize,
    /// The log of written pages during a migration.
    log: Option<DirtyLog>,
    /// The memory of both halves' rings.
    memory: Option<Arc<GuestMemory>>,
    /// Negotiated features.
    features: u64,
}

/// One transmit queue. Fields in this order: a turn needs the first ones.
#[repr(C)]
pub struct TxQueue {
    /// How many frames are tried as a batch.
    pub direct: u8,
    /// The frame that waits for tokens, and its sent part.
    pub pending: Option<Pending>,
    /// When entries arrived.
    pub arrivals: Arrivals,
    /// The ring.
    pub ring: Ring,
    /// Limits of looking ahead.
    limits: LookAheadLimits,
    /// Frames taken and not completed: waiting ones, and sent ones (see `most_sent`).
    pub slots: Slots,
    /// Entries taken until the last frame that was taken alone.
    taken: u64,
}

/// Limits of looking ahead in a ring while frames wait by flow.
#[derive(Clone, Copy, Debug)]
struct LookAheadLimits {
    /// Most chains popped and not given back.
    popped: u16,
    /// Most frames with slots, pieces not counted.
    frames: u16,
    /// The ring's share of its port's frames.
    share: u16,
    /// Most pieces of those frames.
    pieces: u16,
}

/// Frames that a guest receives.
#[derive(Default)]
pub struct Rx {
    /// The guest's abilities.
    pub receiver: Receiver,
    /// Receive queues by queue pair.
    pub rings: Vec<Option<Ring>>,
    /// Receive queues that are started and enabled, for spreading flows.
    pub enabled: SmallVec<[u16; 8]>,
    /// Buffers of one of them, during posts.
    fill: Box<Fill>,
    /// As in [`Tx`].
    log: Option<DirtyLog>,
    /// Buffers that an RDMA device fills.
    land: Option<Box<Land>>,
}
