//! A port on its way: at the worker that it leaves, and at the one that it comes to.

use super::Move;
use crate::fdb::PortIndex;
use crate::vhost_user::kick::Kick;
use crate::worker::crossing::{Fate, Sent};
use crate::worker::under_way::UnderWay;
use std::sync::Arc;

/// A port that is about to leave.
pub struct Leaving {
    pub(super) course: Arc<Move>,
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
