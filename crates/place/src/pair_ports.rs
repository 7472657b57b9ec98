//! The source ports of real-time pairs, from the place that has the sockets to the one that asks for paths.
//!
//! ```text
//!  host switch ── tell: each look, each change ──▶ PairPorts ── port(vNIC, remote) ──▶ network
//! ```

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Shared by the places of an agent.
#[derive(Clone, Debug, Default)]
pub struct PairPorts(Arc<Mutex<BTreeMap<(String, String), u16>>>);

impl PairPorts {
    /// Replaces all ports: each with its vNIC and remote.
    pub fn tell(&self, all: impl IntoIterator<Item = ((String, String), u16)>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = all.into_iter().collect();
    }

    /// Returns the port that frames of a pair alone have; `None` if it has none, or its place did not tell yet.
    pub fn port(&self, vnic: &str, remote: &str) -> Option<u16> {
        let ports = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        ports.get(&(vnic.to_owned(), remote.to_owned())).copied()
    }
}
