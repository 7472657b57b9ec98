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
//! - [`control`]: what a front end changes
//! - [`ring`]: one virtqueue and its notifications
//! - [`arrivals`]: when a ring's entries arrived

pub mod arrivals;
pub mod control;
pub mod copy;
mod fill;
pub mod post;
pub mod ring;
pub mod take;

pub use control::{Control, Gone};
pub use ring::Ring;

use super::{Pending, Receiver};
use crate::slots::Slots;
use crate::virtio::{DirtyLog, GuestMemory};
use arrivals::Arrivals;
use fill::Fill;
use smallvec::SmallVec;
use std::sync::Arc;

/// What a guest sends. In memory as written here: what a turn needs comes first.
#[derive(Default)]
#[repr(C)]
pub struct Tx {
    /// Transmit queues by queue pair.
    pub queues: Vec<Option<TxQueue>>,
    /// Of the virtio header before each frame, 10 or 12.
    header_len: usize,
    /// Where it is noted which pages we write, while the guest migrates.
    log: Option<DirtyLog>,
    /// The memory the rings of both halves lie in.
    memory: Option<Arc<GuestMemory>>,
    /// Negotiated features.
    features: u64,
}

/// One transmit queue. In memory as written here: what a turn needs comes first.
#[repr(C)]
pub struct TxQueue {
    /// How many frames are tried by the batch.
    pub direct: u8,
    /// The frame that waits for tokens, and how far it was cut.
    pub pending: Option<Pending>,
    /// When entries arrived.
    pub arrivals: Arrivals,
    /// The ring.
    pub ring: Ring,
    /// How it is looked ahead in.
    ahead: Ahead,
    /// Frames in flight: at most half the ring were sent and are not back.
    pub slots: Slots,
    /// Entries taken until a frame was last taken alone.
    taken: u64,
}

/// How far a ring is looked ahead in, where frames wait by flow.
#[derive(Clone, Copy, Debug)]
struct Ahead {
    /// Most chains that were popped and are not given back.
    popped: u16,
    /// Most frames that have slots, their pieces not counted.
    frames: u16,
    /// The ring's share of the frames that all rings of its port may have.
    share: u16,
    /// Most pieces of those frames.
    pieces: u16,
}

/// What a guest receives.
#[derive(Default)]
pub struct Rx {
    /// What the guest takes as it is.
    pub receiver: Receiver,
    /// Receive queues by queue pair.
    pub rings: Vec<Option<Ring>>,
    /// Receive queues that are started and enabled, for spreading flows.
    pub enabled: SmallVec<[u16; 8]>,
    /// Buffers of one of them, while frames are posted.
    fill: Box<Fill>,
    /// As in [`Tx`].
    log: Option<DirtyLog>,
}
