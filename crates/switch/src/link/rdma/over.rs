//! The end of a queue pair: what it may still write to is freed when the device has destroyed it, and never if it does not.
//!
//! ```text
//!  LocalPair dropped ─▶ queue pair ─┬ destroyed ─▶ over: buffers are the guest's again, memory is freed
//!                                   └ not ─▶ all of it stays, counted: the uplink is broken
//! ```

use super::counters::Counters;
use super::guest::GuestRegions;
use super::landing::Landing;
use super::setup::{Place, Setup};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use tidegate_verbs::{QueuePair, Region};

/// Frees, by its drop, what a queue pair may write to, unless the device did not destroy that. Dropped after the queue pair.
#[derive(Debug)]
pub(super) struct Over {
    is_over: Arc<AtomicBool>,
    undestroyed: Arc<AtomicBool>,
    counters: Arc<Counters>,
    kept: Option<Kept>,
}

/// The memory that its receives name, and its place among the queue pairs.
#[derive(Debug)]
struct Kept {
    _buffers: Arc<Region>,
    _overflow: Option<Arc<Region>>,
    _place: Place,
    landing: OnceLock<(Arc<Landing>, Arc<GuestRegions>)>,
}

impl Over {
    /// Returns that of a queue pair which takes this place, with its receive buffers.
    pub(super) fn new(setup: &Setup, queue_pair: &QueuePair, buffers: &Arc<Region>, place: Place) -> Self {
        let (buffers, overflow) = (buffers.clone(), setup.overflow.clone());
        let kept = Kept { _buffers: buffers, _overflow: overflow, _place: place, landing: OnceLock::new() };
        let undestroyed = queue_pair.undestroyed();
        Self { is_over: Arc::default(), undestroyed, counters: setup.counters.clone(), kept: Some(kept) }
    }

    /// Returns what is set when the device has destroyed it, and what if it does not.
    pub(super) fn flags(&self) -> [Arc<AtomicBool>; 2] {
        [self.is_over.clone(), self.undestroyed.clone()]
    }

    /// Keeps what frames land in as long as the queue pair is there.
    pub(super) fn keep(&self, landing: &Arc<Landing>, guest: &Arc<GuestRegions>) {
        if let Some(kept) = &self.kept {
            // It has one in its life.
            let _ = kept.landing.set((landing.clone(), guest.clone()));
        }
    }
}

impl Drop for Over {
    fn drop(&mut self) {
        if !self.undestroyed.load(Ordering::Acquire) {
            self.is_over.store(true, Ordering::Release);
            return;
        }
        std::mem::forget(self.kept.take());
        if self.counters.undestroyed_pairs.fetch_add(1, Ordering::Relaxed) == 0 {
            tracing::error!(
                "an RDMA device does not destroy a queue pair (ibv_destroy_qp): memory that it may write to, also of guests, stays in \
                 use until this process ends"
            );
        }
    }
}
