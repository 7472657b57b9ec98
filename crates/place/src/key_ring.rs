//! Keys of segments that the network's controller gives, from the place that asks it to the agent.
//!
//! ```text
//!  agent ── want: [segment.ID] in force ──▶ KeyRing ──▶ network: asks, keeps them in its folder
//!        ◀─ key(segment), at each look ───         ◀── tell
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tidegate_contract::{Segment, SegmentKey};

/// Shared by an agent and its places. The keys are in memory.
#[derive(Clone, Debug, Default)]
pub struct KeyRing(Arc<Mutex<Ring>>);

#[derive(Debug, Default)]
struct Ring {
    wanted: BTreeSet<Segment>,
    keys: BTreeMap<Segment, SegmentKey>,
}

impl KeyRing {
    fn lock(&self) -> MutexGuard<'_, Ring> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wants the keys of these segments, and of no others.
    pub fn want(&self, segments: BTreeSet<Segment>) {
        self.lock().wanted = segments;
    }

    /// Returns the segments whose keys are wanted.
    pub fn wanted(&self) -> BTreeSet<Segment> {
        self.lock().wanted.clone()
    }

    /// Replaces all keys.
    pub fn tell(&self, keys: impl IntoIterator<Item = SegmentKey>) {
        self.lock().keys = keys.into_iter().map(|key| (key.segment, key)).collect();
    }

    /// Returns the keys of a segment; `None` before they are known.
    pub fn key(&self, segment: Segment) -> Option<SegmentKey> {
        self.lock().keys.get(&segment).copied()
    }
}
