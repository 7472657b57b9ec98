//! The changes at this place.

use tidegate_contract::Vnic;
use tidegate_place::{Action, ContractChange, Effect};

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "short-lived, a handful at a time")]
pub enum KernelAction {
    /// The change of one contract.
    Contract(ContractChange),
    /// As [`ContractChange::Create`], or [`ContractChange::Change`] if `from` was in force; and the foreign objects in its way are
    /// remembered, and restored when the contract goes.
    TakeOver {
        /// In force.
        from: Option<Vnic>,
        /// Wanted.
        to: Vnic,
        /// Also if the objects cannot be restored.
        anyway: bool,
    },
    /// The netdev has just appeared, or our objects on it are incomplete: its contract is enforced there.
    Enforce(Vnic),
}

impl Action for KernelAction {
    fn vnic(&self) -> Option<&str> {
        match self {
            Self::Contract(change) => change.vnic(),
            Self::TakeOver { to: vnic, .. } | Self::Enforce(vnic) => Some(&vnic.name),
        }
    }

    fn effect(&self) -> Effect {
        match self {
            Self::Contract(change) => change.effect(),
            Self::TakeOver { .. } | Self::Enforce(_) => Effect::Upkeep,
        }
    }

    fn label(&self) -> &'static str {
        match self {
            Self::Contract(change) => change.label(),
            Self::TakeOver { .. } => "take over",
            Self::Enforce(_) => "enforce",
        }
    }

    fn inverse(&self) -> Option<Self> {
        let change = match self {
            Self::Contract(change) => change.inverse()?,
            Self::TakeOver { from: None, to, .. } => ContractChange::Remove(to.clone()),
            Self::TakeOver { from: Some(from), to, .. } => {
                ContractChange::Change { from: to.clone(), to: from.clone() }
            }
            Self::Enforce(_) => return None,
        };
        Some(Self::Contract(change))
    }
}
