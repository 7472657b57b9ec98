//! The state of a port's connection, for readers.

use crate::stats::ThrownOut;
use serde::Serialize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The progress of a front end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// No front end.
    #[default]
    Waiting,
    /// A front end is connected; its driver does not run yet, or no longer.
    Connected,
    /// At least one queue pair carries frames.
    Ready,
}

/// A connection at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Snapshot {
    /// How far the front end has come.
    pub state: State,
    /// Negotiated virtio features; 0 before negotiation.
    pub features: u64,
    /// Negotiated vhost-user protocol features; 0 before negotiation.
    pub protocol_features: u64,
    /// Queue pairs started and enabled.
    pub queue_pairs: u16,
    /// Whether all of the guest's memory existed when it was mapped; `None` without memory.
    pub memory_preallocated: Option<bool>,
    /// Closing the last front end's descriptors takes long; no other is accepted meanwhile.
    pub closing: bool,
    /// Why the last disconnected front end was; stays when another connects.
    pub last_error: Option<String>,
    /// A front end waits for the served one to leave.
    pub heir: bool,
    /// Front ends served since the port was made.
    pub connects: u64,
    /// Refused front ends: one was connected and another one waited, or the wait ended badly, or the port
    /// was in quarantine.
    pub refused: u64,
    /// Front ends disconnected for what they sent or did.
    pub protocol_errors: u64,
    /// Their number for each [`ThrownOut`].
    pub thrown_out: [u64; ThrownOut::COUNT],
}

/// The shared, current [`Snapshot`] of a port.
#[derive(Debug, Default)]
pub struct ConnectionStatus {
    now: Mutex<Snapshot>,
    changed: Condvar,
    deadline: AtomicBool,
    zero_copy: AtomicBool,
}

impl ConnectionStatus {
    /// Returns the present state.
    pub fn snapshot(&self) -> Snapshot {
        self.lock().clone()
    }

    /// Waits until `wanted` holds and returns that snapshot, or `None` after `timeout`.
    pub fn wait(&self, timeout: Duration, wanted: impl Fn(&Snapshot) -> bool) -> Option<Snapshot> {
        let (now, waited) = self
            .changed
            .wait_timeout_while(self.lock(), timeout, |now| !wanted(now))
            .unwrap_or_else(PoisonError::into_inner);
        (!waited.timed_out()).then(|| now.clone())
    }

    /// Sets whether the contract has a deadline. Front ends that connect during one are not offered
    /// VIRTIO_F_IN_ORDER, and may not have their memory on a disk.
    pub fn set_deadline(&self, deadline: bool) {
        self.deadline.store(deadline, Ordering::Relaxed);
    }

    pub(super) fn has_deadline(&self) -> bool {
        self.deadline.load(Ordering::Relaxed)
    }

    /// Sets whether the contract has zero copy. Front ends that connect meanwhile are not offered VIRTIO_F_IN_ORDER.
    pub fn set_zero_copy(&self, zero_copy: bool) {
        self.zero_copy.store(zero_copy, Ordering::Relaxed);
    }

    /// Whether the contract excludes VIRTIO_F_IN_ORDER.
    pub(super) fn excludes_in_order(&self) -> bool {
        self.has_deadline() || self.zero_copy.load(Ordering::Relaxed)
    }

    pub(super) fn update(&self, change: impl FnOnce(&mut Snapshot)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, Snapshot> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn wait_sees_a_change_made_elsewhere() {
        let status = Arc::new(ConnectionStatus::default());
        let other = status.clone();
        let thread = std::thread::spawn(move || other.update(|now| now.connects = 3));
        let seen = status.wait(Duration::from_secs(20), |now| now.connects == 3);
        assert_eq!(seen.map(|now| now.connects), Some(3));
        thread.join().unwrap();
        assert_eq!(status.wait(Duration::from_millis(1), |now| now.connects == 4), None);
    }
}
