//! What is known about a port's connection, to be shown.

use crate::stats::ThrownOut;
use serde::Serialize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How far a front end has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// No front end.
    #[default]
    Waiting,
    /// A front end is there; its driver does not run yet, or no more.
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
    /// Whether the guest's memory was there in full when it was mapped; `None`
    /// without memory.
    pub memory_preallocated: Option<bool>,
    /// Closing what the last front end shared takes long; no other is taken meanwhile.
    pub closing: bool,
    /// Why the last front end that was thrown out was; kept when another connects.
    pub last_error: Option<String>,
    /// A front end waits for the one that is served to leave.
    pub heir: bool,
    /// Front ends served since the port was made.
    pub connects: u64,
    /// Front ends turned away: one was connected and another one waited, or waiting ended badly, or the port was in
    /// quarantine.
    pub refused: u64,
    /// Front ends thrown out for what they sent or did.
    pub protocol_errors: u64,
    /// Of those, how many for each [`ThrownOut`].
    pub thrown_out: [u64; ThrownOut::COUNT],
}

/// The shared, current [`Snapshot`] of a port.
#[derive(Debug, Default)]
pub struct ConnectionStatus {
    now: Mutex<Snapshot>,
    changed: Condvar,
    deadline: AtomicBool,
}

impl ConnectionStatus {
    /// The state of affairs.
    pub fn snapshot(&self) -> Snapshot {
        self.lock().clone()
    }

    /// Waits until `wanted` holds and returns the snapshot it held for, or
    /// `None` after `timeout`.
    pub fn wait(&self, timeout: Duration, wanted: impl Fn(&Snapshot) -> bool) -> Option<Snapshot> {
        let (now, waited) = self
            .changed
            .wait_timeout_while(self.lock(), timeout, |now| !wanted(now))
            .unwrap_or_else(PoisonError::into_inner);
        (!waited.timed_out()).then(|| now.clone())
    }

    /// The contract has a deadline, or none any more. Front ends that connect while it has one are not offered
    /// VIRTIO_F_IN_ORDER, and may not have their memory on a disk.
    pub fn set_deadline(&self, deadline: bool) {
        self.deadline.store(deadline, Ordering::Relaxed);
    }

    pub(super) fn has_deadline(&self) -> bool {
        self.deadline.load(Ordering::Relaxed)
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
