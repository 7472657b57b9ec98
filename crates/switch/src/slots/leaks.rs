//! Slots and buffers that were never given back.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Slots that were never given back: a bug, and lost memory.
pub(super) static LEAKED: AtomicU64 = AtomicU64::new(0);

/// Notes that so many frames or buffers were in flight when their pool was dropped.
pub(crate) fn note_leak(in_flight: usize) {
    LEAKED.fetch_add(in_flight as u64, Relaxed);
    debug_assert!(std::thread::panicking(), "{in_flight} still in flight");
}

/// Returns how many slots were dropped with frames in flight since the process started.
pub fn leaked() -> u64 {
    LEAKED.load(Relaxed)
}
