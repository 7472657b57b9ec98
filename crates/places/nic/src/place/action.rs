//! The changes at this place.

use tidegate_contract::Host;
use tidegate_place::{Action, ContractChange, Effect};

/// One change of the NIC place.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "short-lived, a handful at a time")]
pub enum NicAction {
    /// The change of one contract.
    Contract(ContractChange),
    /// The settings `[host.nic.NAME]` of all NICs.
    SetHost {
        /// The settings in force, if known.
        from: Option<Host>,
        /// The wanted settings.
        to: Host,
    },
}

impl Action for NicAction {
    fn vnic(&self) -> Option<&str> {
        match self {
            Self::Contract(change) => change.vnic(),
            Self::SetHost { .. } => None,
        }
    }

    fn effect(&self) -> Effect {
        match self {
            Self::Contract(change) => change.effect(),
            Self::SetHost { .. } => Effect::Upkeep,
        }
    }

    fn label(&self) -> &'static str {
        match self {
            Self::Contract(change) => change.label(),
            Self::SetHost { .. } => "set host",
        }
    }

    fn inverse(&self) -> Option<Self> {
        match self {
            Self::Contract(change) => change.inverse().map(Self::Contract),
            Self::SetHost { from, to } => {
                from.clone().map(|from| Self::SetHost { from: Some(to.clone()), to: from })
            }
        }
    }
}
