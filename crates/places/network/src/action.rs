//! The changes at this place.

use crate::book::WantedPath;
use crate::misses::Look;
use std::collections::BTreeMap;
use tidegate_contract::Controller;
use tidegate_controller_api::Registration;
use tidegate_place::{Action, Effect, Offer};

/// Why pairs of a vNIC have no path, by vNIC.
pub type Faults = BTreeMap<String, Vec<String>>;

/// One change.
#[derive(Clone, Debug)]
pub enum NetworkAction {
    /// Another controller is asked, or none.
    Configure {
        /// Before.
        from: Option<Box<Controller>>,
        /// From now on.
        to: Option<Box<Controller>>,
    },
    /// This host announces something else.
    Announce {
        /// Before.
        from: Option<Box<Registration>>,
        /// From now on.
        to: Box<Registration>,
    },
    /// The controller tells something else of other hosts.
    Offer {
        /// Before.
        from: Option<Box<Offer>>,
        /// From now on.
        to: Box<Offer>,
    },
    /// A path is wanted, or other terms of one.
    Ask {
        /// Before.
        from: Option<Box<WantedPath>>,
        /// From now on.
        to: Box<WantedPath>,
        /// Whether this undoes another action: then nothing is waited for, and nothing refused.
        back: bool,
    },
    /// A path is wanted no more.
    Release {
        /// Before.
        from: Box<WantedPath>,
    },
    /// These pairs have no path, and their contracts are in force.
    Note(Faults),
    /// These frames were late here.
    Count(Look),
}

impl Action for NetworkAction {
    fn vnic(&self) -> Option<&str> {
        match self {
            Self::Ask { to: path, .. } | Self::Release { from: path } => Some(&path.terms.vnic),
            _ => None,
        }
    }

    fn effect(&self) -> Effect {
        Effect::Upkeep
    }

    fn label(&self) -> &'static str {
        match self {
            Self::Configure { .. } => "use controller",
            Self::Announce { .. } => "announce to controller",
            Self::Offer { .. } => "follow controller",
            Self::Ask { .. } => "ask for path",
            Self::Release { .. } => "release path",
            Self::Note(_) => "note pairs without path",
            Self::Count(_) => "count late frames",
        }
    }

    fn inverse(&self) -> Option<Self> {
        match self {
            Self::Configure { from, to } => Some(Self::Configure { from: to.clone(), to: from.clone() }),
            Self::Announce { from: Some(from), to } => {
                Some(Self::Announce { from: Some(to.clone()), to: from.clone() })
            }
            Self::Ask { from: Some(from), to, .. } => {
                Some(Self::Ask { from: Some(to.clone()), to: from.clone(), back: true })
            }
            Self::Ask { from: None, to, .. } => Some(Self::Release { from: to.clone() }),
            Self::Release { from } => Some(Self::Ask { from: None, to: from.clone(), back: true }),
            Self::Offer { from: Some(from), to } => {
                Some(Self::Offer { from: Some(to.clone()), to: from.clone() })
            }
            Self::Announce { from: None, .. }
            | Self::Offer { from: None, .. }
            | Self::Note(_)
            | Self::Count(_) => None,
        }
    }
}
