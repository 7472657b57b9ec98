//! Tables that a place learns elsewhere, such as vNICs of other hosts: given to the agent, which has them as an owner's.
//!
//! ```text
//!  place ── Offer ──▶ Offers ──▶ agent: as much as fits comes into force, tables of others stay
//!        ◀── Taken: what did not, and why ──
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;
use tidegate_contract::Document;

/// Who knows the network, in the name of an owner of tables: `controller:HOST`.
pub const CONTROLLER: &str = "controller";

/// Tables for the agent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offer {
    /// This host's name at the network's controller.
    pub host: String,
    /// Peers and remotes.
    pub document: Document,
    /// Whether these are all: then earlier ones that are missing go.
    pub is_complete: bool,
    /// What was learnt and cannot be used, with the reasons: nothing for the agent, but for readers.
    pub left_out: BTreeMap<String, String>,
}

/// What became of an offer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// Tables such as `[remote.b1]` that did not come into force as offered, with the reasons. Of a remote it may be the
    /// promise alone.
    pub declined: BTreeMap<String, String>,
    /// Where tables of other owners say something else, and stay.
    pub differences: Vec<String>,
}

type Offering = dyn Fn(Offer) -> Result<Taken, String> + Send + Sync;

/// Gives offers to the agent, from threads of places; not from within a method of a place, for which the agent waits.
#[derive(Clone)]
pub struct Offers(Arc<Offering>);

impl Offers {
    /// Makes one that hands them to `offering`.
    pub fn new(offering: impl Fn(Offer) -> Result<Taken, String> + Send + Sync + 'static) -> Self {
        Self(Arc::new(offering))
    }

    /// Returns what became of the offer.
    ///
    /// # Errors
    /// Nothing could be changed now, with the reason.
    pub fn offer(&self, offer: Offer) -> Result<Taken, String> {
        (self.0)(offer)
    }
}

impl Default for Offers {
    /// Takes everything, and does nothing.
    fn default() -> Self {
        Self::new(|_| Ok(Taken::default()))
    }
}
