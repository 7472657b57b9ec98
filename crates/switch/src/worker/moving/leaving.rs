//! A port on its way: at the worker that it leaves, and at the one that it comes to.

use crate::fdb::PortIndex;
use crate::moved::Outcome;
use crate::vhost_user::kick::Kick;
use crate::worker::crossing::{Fate, Sent};
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
    /// Workers that have yet to be told.
    pub(super) untold: AtomicUsize,
    /// When it was left alone, and when it was expected first, ns.
    pub(super) left: AtomicU64,
    pub(super) expected: AtomicU64,
    pub(super) done: SyncSender<Outcome>,
}

/// A port that is about to leave.
pub struct Leaving<W> {
    pub(super) course: Arc<Move<W>>,
    /// What its driver kicks the new worker by.
    pub(super) kicks: Vec<(u16, Kick)>,
    /// What was sent to each other worker when it was left alone.
    pub(super) sent: Vec<Option<Sent>>,
    /// When it stays after all, because others have not taken that; `None` once they have.
    pub(super) until: Option<u64>,
}

/// A port that is about to arrive, or that has arrived with frames under way to it.
pub struct Arrival {
    pub(super) port: PortIndex,
    pub(super) is_here: bool,
    pub(super) frames: UnderWay,
    /// Of frames that it sent.
    pub(super) fates: Vec<Fate>,
}
