//! The installation of a place at an agent.
//!
//! ```text
//!  agent: Site ─▶ a place crate's `install` ─▶ Installation ─▶ agent
//! ```

use crate::{Capture, Installed, KeyRing, Offers, PairPorts};
use std::path::Path;
use std::sync::Arc;
use tidegate_durable::Damage;
use tidegate_paths::Paths;

/// The agent's resources for the places that it installs.
pub struct Site<'a> {
    /// The state folder, which this agent has locked.
    pub state: &'a Path,
    /// The folders below which contracts may name sockets and namespaces.
    pub paths: &'a Paths,
    /// Makes the reconciler look at all places now. A place calls it when something that it waited for appears.
    pub wake: Arc<dyn Fn() + Send + Sync>,
    /// Source ports of real-time pairs.
    pub pair_ports: PairPorts,
    /// Keys of segments that the network's controller gives.
    pub key_ring: KeyRing,
    /// Takes tables that a place learns elsewhere.
    pub offers: Offers,
}

/// An installed place.
pub struct Installation {
    /// The place.
    pub place: Box<dyn Installed>,
    /// The capture of its frames, if the place offers it.
    pub capture: Option<Arc<dyn Capture>>,
    /// Damage that the place found in its records.
    pub damage: Vec<Damage>,
}

impl Installation {
    /// An installation without capture; `damage` is that of the record whose problem is called `record`.
    pub fn new(place: impl Installed + 'static, record: &'static str, damage: Option<String>) -> Self {
        let damage = damage.map(|what| (record, what)).into_iter().collect();
        Self { place: Box::new(place), capture: None, damage }
    }
}
