//! Where frames land in guests' buffers: the landings of one link.

use crate::fdb::PortIndex;
use crate::link::rdma::{GuestRegions, Landing};
use std::collections::BTreeMap;
use std::sync::Arc;
use tidegate_evidence::LandingStatus;

/// Frames that are still on their way so long after nothing more is posted are dropped (ns).
pub(super) const LINGER: u64 = 50_000_000;
/// Time between two tries at a port whose guest takes none (ns).
pub(super) const TRY_EVERY: u64 = 1_000_000_000;
/// The same, after its driver began to receive in another way (ns).
pub(super) const UNFIT: u64 = 10_000_000_000;

/// The landings of one uplink's link.
#[derive(Default)]
pub(super) struct Landings {
    pub(super) by_port: BTreeMap<PortIndex, Entry>,
    /// When those without are looked at again (ns).
    pub(super) try_at: BTreeMap<PortIndex, u64>,
    /// Why there is none at ports whose guests' memory is lent.
    pub(super) why: BTreeMap<PortIndex, String>,
    /// Numbers of those that ended, and that the link still knows.
    pub(super) ended: Vec<u32>,
}

/// One of them.
pub(super) struct Entry {
    pub(super) landing: Arc<Landing>,
    /// The number of its queue pair.
    pub(super) queue_pair: u32,
    /// Its end is the use's.
    pub(super) guest: Arc<GuestRegions>,
    /// Since when nothing more is posted (ns).
    pub(super) closed_at: Option<u64>,
    /// When frames to the port were dropped last (ns).
    pub(super) cleared_at: u64,
}

impl Landings {
    /// Returns how many there are.
    pub(super) fn count(&self) -> usize {
        self.by_port.len()
    }

    /// Whether frames of a port land, or why not.
    pub(super) fn status(&self, port: PortIndex) -> LandingStatus {
        let why = match self.by_port.get(&port) {
            Some(entry) if entry.closed_at.is_none() => None,
            Some(_) => Some("another queue pair takes the place of the one by which frames landed".into()),
            None => Some(self.why.get(&port).cloned().unwrap_or_else(|| "it begins soon".into())),
        };
        LandingStatus { copied_because: why }
    }

    /// Whether some are being ended.
    pub(super) fn are_ending(&self) -> bool {
        self.by_port.values().any(|entry| entry.closed_at.is_some())
    }
}
