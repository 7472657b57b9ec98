//! The changes at this place. None of them changes a contract, and none fails: a setting that cannot be set is reported.

use crate::sight::Sight;
use crate::target::Target;
use crate::watched::Watched;
use std::sync::Arc;
use tidegate_cores::problem::Problem;
use tidegate_place::{Action, Effect};

/// One change.
#[derive(Clone, Debug)]
pub enum CoresAction {
    /// Notes whether the switch answers, and how many real-time frames it has delivered.
    See(Sight),
    /// Looks at the host, in the background.
    Look(Box<Watched>),
    /// Plans, in the background.
    Consider(Arc<Problem>),
    /// Brings settings about, and puts back all others.
    Keep(Target),
}

impl Action for CoresAction {
    fn vnic(&self) -> Option<&str> {
        None
    }

    fn effect(&self) -> Effect {
        Effect::Upkeep
    }

    fn label(&self) -> &'static str {
        match self {
            Self::See(_) => "note the switch's state",
            Self::Look(_) => "look for the work of vNICs",
            Self::Consider(_) => "plan CPUs",
            Self::Keep(_) => "set the CPUs of work",
        }
    }

    /// None: the next plan sets CPUs by the contracts that are in force then.
    fn inverse(&self) -> Option<Self> {
        None
    }
}
