//! The source ports of real-time pairs: which they have, and which pairs may use theirs.
//!
//! ```text
//!  host switch ── tell: each look, each change ──▶ PairPorts ── port(pair) ───────▶ network
//!  host switch ◀─ granted(uplink) ──────────────── PairPorts ◀─ govern, revoke ── network
//! ```
//!
//! A network with a controller tells a path by its source port and mark. A pair that sends more than its path was granted
//! for takes that from other paths; so it has its port for itself only while a grant covers its contract. Without
//! that, its frames leave from shared ports, and the network's edge clears their mark.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A pair of vNICs between hosts, on one uplink.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pair {
    /// The uplink that leads there.
    pub uplink: String,
    /// The sender, of this host.
    pub vnic: String,
    /// The receiver.
    pub remote: String,
}

impl Pair {
    /// Returns a pair by its names.
    pub fn new(uplink: &str, vnic: &str, remote: &str) -> Self {
        Self { uplink: uplink.into(), vnic: vnic.into(), remote: remote.into() }
    }
}

/// Shared by the places of an agent.
#[derive(Clone, Default)]
pub struct PairPorts {
    tables: Arc<Mutex<Tables>>,
    /// Called when other pairs may use their ports.
    wake: Option<Arc<dyn Fn() + Send + Sync>>,
}

#[derive(Debug, Default)]
struct Tables {
    ports: BTreeMap<Pair, u16>,
    /// Uplinks into a network with a controller, each with the pairs that may use their ports.
    governed: BTreeMap<String, BTreeSet<Pair>>,
}

impl PairPorts {
    /// Returns no ports; `wake` makes the reconciler look at all places.
    pub fn new(wake: Arc<dyn Fn() + Send + Sync>) -> Self {
        Self { wake: Some(wake), ..Self::default() }
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces all ports.
    pub fn tell(&self, all: impl IntoIterator<Item = (Pair, u16)>) {
        self.tables().ports = all.into_iter().collect();
    }

    /// Returns the port of a pair alone, whether it may use it or not; `None` if it has none, or its place did not
    /// tell yet.
    pub fn port(&self, pair: &Pair) -> Option<u16> {
        self.tables().ports.get(pair).copied()
    }

    /// Says which pairs of `uplinks` may use their ports: those of `granted` alone. Pairs of all other uplinks may.
    /// The switch follows at its next look, which this asks for.
    ///
    /// A grant whose lease may have ended still counts: without a path the network clears the mark. One for less than
    /// the contract in force does not.
    pub fn govern<'a>(
        &self,
        uplinks: impl IntoIterator<Item = &'a str>,
        granted: impl IntoIterator<Item = Pair>,
    ) {
        let mut governed: BTreeMap<String, BTreeSet<Pair>> =
            uplinks.into_iter().map(|uplink| (uplink.to_owned(), BTreeSet::new())).collect();
        for pair in granted {
            if let Some(granted) = governed.get_mut(&pair.uplink) {
                granted.insert(pair);
            }
        }
        let mut tables = self.tables();
        let is_new = tables.governed != governed;
        tables.governed = governed;
        drop(tables);
        if let Some(wake) = self.wake.as_ref().filter(|_| is_new) {
            wake();
        }
    }

    /// Takes the port of a pair away until [`Self::govern`] names it again: a change is about to let it send more. The
    /// switch follows before it makes the change.
    pub fn revoke(&self, pair: &Pair) {
        if let Some(granted) = self.tables().governed.get_mut(&pair.uplink) {
            granted.remove(pair);
        }
    }

    /// Returns the pairs of an uplink that may use their ports; `None`: all.
    pub fn granted(&self, uplink: &str) -> Option<BTreeSet<Pair>> {
        self.tables().governed.get(uplink).cloned()
    }
}

impl std::fmt::Debug for PairPorts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.tables().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn pairs_of_governed_uplinks_alone_need_a_grant() {
        let woken = Arc::new(AtomicUsize::new(0));
        let wake = woken.clone();
        let ports = PairPorts::new(Arc::new(move || _ = wake.fetch_add(1, Ordering::Relaxed)));
        let (a, b) = (Pair::new("net0", "a", "x"), Pair::new("net0", "b", "x"));
        assert_eq!(ports.granted("net0"), None);
        ports.govern(["net0"], [a.clone(), Pair::new("net1", "a", "x")]);
        assert_eq!(ports.granted("net0"), Some([a.clone()].into()));
        assert_eq!(ports.granted("net1"), None, "no controller serves it");
        ports.govern(["net0"], [a.clone()]);
        assert_eq!(woken.load(Ordering::Relaxed), 1, "nothing is new");
        ports.govern(["net0"], [a.clone(), b.clone()]);
        ports.revoke(&a);
        assert_eq!(ports.granted("net0"), Some([b].into()));
        ports.govern([], []);
        assert_eq!((ports.granted("net0"), woken.load(Ordering::Relaxed)), (None, 3));
    }

    #[test]
    fn one_pair_on_two_uplinks_has_two_ports() {
        let ports = PairPorts::default();
        let (one, other) = (Pair::new("net0", "a", "x"), Pair::new("net1", "a", "x"));
        ports.tell([(one.clone(), 49_160), (other.clone(), 49_170)]);
        assert_eq!((ports.port(&one), ports.port(&other)), (Some(49_160), Some(49_170)));
    }
}
