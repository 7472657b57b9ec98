//! The board: the state that readers see. The reconciler replaces it, and readers never wait for it.
//!
//! ```text
//!  reconciler ── Published ──▶ Board ──▶ API, metrics, guests
//! ```
//!
//! - [`status`]: what of the state needs a person (pure)
//! - `place`: facts that a place reports
//! - [`growth`]: the recent growth of a counter (pure)
//! - [`cores`]: what of the plan of CPUs needs a person (pure)
//! - [`why`]: why frames of a vNIC were late, throttled or dropped (pure)
//! - `changes`: what happened between two states (pure); `events`: the clients that listen
//! - `written`: answers made from a state

pub mod changes;
pub mod cores;
mod events;
pub mod growth;
mod place;
pub mod status;
pub mod why;
mod written;

use crate::views::{HostView, StatusView, UplinkView, VnicView};
pub use events::Events;
pub use place::PlaceFacts;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use tidegate_evidence::{CoresReport, FarMiss, Miss, PeerStatus};
pub use written::Written;

/// The state that readers see.
#[derive(Clone, Debug)]
pub struct Published {
    pub host: HostView,
    /// The host's state, and what needs a person.
    pub status: StatusView,
    pub vnics: BTreeMap<String, VnicView>,
    pub uplinks: BTreeMap<String, UplinkView>,
    pub misses: BTreeMap<String, Vec<Miss>>,
    /// Other hosts.
    pub peers: Vec<PeerStatus>,
    /// The latest frames of each vNIC that other hosts reported as late, the oldest first.
    pub far_misses: BTreeMap<String, Vec<FarMiss>>,
    /// The CPUs and the work on them; `None` if no place reports them.
    pub cores: Option<CoresReport>,
    /// Facts of each place, by its name.
    pub places: BTreeMap<String, PlaceFacts>,
    /// The vNICs of each guest, by its socket.
    pub guests: BTreeMap<PathBuf, Vec<String>>,
    pub written: Written,
}

impl Published {
    /// Returns the state before the first look at the places.
    pub fn starting() -> Self {
        let host = HostView {
            version: env!("CARGO_PKG_VERSION").into(),
            problems: vec!["the agent is starting".into()],
            host: Default::default(),
            uplinks: vec![],
            remotes: vec![],
            places: vec![],
            files: vec![],
            admission: Default::default(),
            workers: vec![],
            denied_calls: 0,
            logs: BTreeMap::new(),
            reconcile_errors: 0,
            drift_repaired: 0,
        };
        Self {
            status: status::status(
                &host,
                &BTreeMap::new(),
                (&BTreeMap::new(), &[]),
                &BTreeMap::new(),
                status::Recent::default(),
            ),
            host,
            vnics: BTreeMap::new(),
            uplinks: BTreeMap::new(),
            misses: BTreeMap::new(),
            peers: vec![],
            far_misses: BTreeMap::new(),
            cores: None,
            places: BTreeMap::new(),
            guests: BTreeMap::new(),
            written: Written::default(),
        }
    }
}

/// The board. Clones are the same board.
#[derive(Clone, Debug)]
pub struct Board {
    published: Arc<RwLock<Arc<Published>>>,
    /// The clients that listen to changes.
    pub events: Events,
}

impl Board {
    pub fn new(published: Published) -> Self {
        Self { published: Arc::new(RwLock::new(Arc::new(published))), events: Events::default() }
    }

    pub fn read(&self) -> Arc<Published> {
        Arc::clone(&self.published.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub fn publish(&self, published: Published) {
        *self.published.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(published);
    }
}
