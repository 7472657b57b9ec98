//! A tap: a network interface of the kernel whose other end we are.
//!
//! ```text
//!  kernel ─ read ─▶ pool: frames wait there, since a tap has no ring to wait in ... give back ─▶ free
//!  kernel ◀ write ─┬─ the frame as the kernel takes it
//!                  └─ writer ◀─ a copy: best effort, while the worker has deadlines to keep
//! ```
//!
//! - [`take`]: the sending half
//! - [`post`]: the receiving half
//! - [`writer`]: the thread that writes best effort for a worker
//! - `receiver`: a tap's abilities

pub mod post;
mod receiver;
pub mod take;
pub mod writer;

use super::readiness::Readiness;
use super::store::Store;
use crate::fdb::PortIndex;
use crate::frame::{FRAME_MAX, VnetHdr};
pub use receiver::RECEIVER;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Bytes of a tap's waiting frames.
const POOL: usize = 4 << 20;
/// A tap's frames in flight.
const FRAMES: u16 = 2048;

/// Frames that the kernel sends into a tap.
pub struct Tx {
    /// One for each queue, non-blocking, `IFF_VNET_HDR` with 12-byte headers.
    files: Box<[Arc<OwnedFd>]>,
    /// Which queues may hold frames.
    pub(super) readiness: Readiness,
    /// Frames that were read, and their memory.
    pub(super) store: Store,
    /// The time of the last poll, ns.
    now: u64,
    /// Target of reads while the pool is full: such frames are counted and dropped.
    spill: Box<[u8]>,
}

/// Frames that the kernel receives from a tap.
pub struct Rx {
    files: Box<[Arc<OwnedFd>]>,
    /// Its frames at a writer.
    at_writer: writer::WriterFrames,
}

/// Both halves of a tap.
pub(super) fn halves(files: Vec<OwnedFd>, port: PortIndex, worker: u16, now: u64) -> (Tx, Rx) {
    let files: Box<[_]> = files.into_iter().map(Arc::new).collect();
    let tx = Tx {
        readiness: Readiness::new(files.len(), now),
        files: files.clone(),
        store: Store::new(POOL, FRAMES, port, worker),
        now,
        spill: vec![0; FRAME_MAX + VnetHdr::LEN].into_boxed_slice(),
    };
    (tx, Rx { files, at_writer: writer::WriterFrames::default() })
}
