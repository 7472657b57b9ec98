//! A port on its way: at its old worker, and at its new one.

use crate::fdb::PortIndex;
use crate::moved::Outcome;
use crate::vhost_user::kick::Kick;
use crate::worker::crossing::{Fate, SentCounts};
use crate::worker::handle::Handle;
use crate::worker::under_way::UnderWay;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::mpsc::SyncSender;

/// One move, as the workers pass it on.
pub struct Move<W> {
    pub(super) port: PortIndex,
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) workers: Arc<[Handle<W>]>,
    /// Workers that do not know of the move yet.
    pub(super) unaware_workers: AtomicUsize,
    /// When the old worker stopped taking its frames, and when the new worker first expected it (ns).
    pub(super) stopped_at: AtomicU64,
    pub(super) expected_at: AtomicU64,
    pub(super) done: SyncSender<Outcome>,
}

/// A port that is about to leave.
pub struct Leaving<W> {
    pub(super) port_move: Arc<Move<W>>,
    /// Kicks by which its driver will wake the new worker.
    pub(super) kicks: Vec<(u16, Kick)>,
    /// Frames sent to each other worker before it stopped.
    pub(super) sent: Vec<Option<SentCounts>>,
    /// When it stays after all, because other workers have not taken those frames (ns); `None` once they
    /// have.
    pub(super) until: Option<u64>,
}

/// A port that is about to arrive, or has arrived with frames still under way to it.
pub struct Arrival {
    pub(super) port: PortIndex,
    pub(super) is_here: bool,
    pub(super) frames: UnderWay,
    /// Fates of frames that it sent.
    pub(super) fates: Vec<Fate>,
}
