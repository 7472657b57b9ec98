//! The changes at this place.

use crate::own_cpus::Target;
use tidegate_contract::{Host, Vnic};
use tidegate_place::{Action, ContractChange, Effect};

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "short-lived, a handful at a time")]
pub enum SwitchAction {
    /// The change of one contract.
    Contract(ContractChange),
    /// Host-wide settings.
    SetHost {
        /// In force, if known.
        from: Option<Host>,
        /// Wanted.
        to: Host,
    },
    /// A vNIC of another agent becomes ours, unchanged, without an effect on its traffic. The change that
    /// names it makes that permanent when accepted; if the change fails, or the agent dies before, the vNIC
    /// is released.
    Adopt(Vnic),
    /// An adopted vNIC returns to the other agent.
    Release(Vnic),
    /// The vNIC's connection is made anew; the contract stays.
    Reconnect(Vnic),
    /// Other work is kept off the workers' CPUs, or comes back to them.
    OwnCpus(Target),
}

impl Action for SwitchAction {
    fn vnic(&self) -> Option<&str> {
        match self {
            Self::Contract(change) => change.vnic(),
            Self::SetHost { .. } | Self::OwnCpus(_) => None,
            Self::Adopt(vnic) | Self::Release(vnic) | Self::Reconnect(vnic) => Some(&vnic.name),
        }
    }

    fn effect(&self) -> Effect {
        match self {
            Self::Contract(change) => change.effect(),
            Self::SetHost { .. }
            | Self::Adopt(_)
            | Self::Release(_)
            | Self::Reconnect(_)
            | Self::OwnCpus(_) => Effect::Upkeep,
        }
    }

    fn label(&self) -> &'static str {
        match self {
            Self::Contract(change) => change.label(),
            Self::SetHost { .. } => "set host",
            Self::Adopt(_) => "adopt",
            Self::Release(_) => "release",
            Self::Reconnect(_) => "reconnect",
            Self::OwnCpus(_) => "set the work of workers' CPUs",
        }
    }

    fn inverse(&self) -> Option<Self> {
        match self {
            Self::Contract(change) => change.inverse().map(Self::Contract),
            Self::SetHost { from, to } => {
                from.clone().map(|from| Self::SetHost { from: Some(to.clone()), to: from })
            }
            Self::Adopt(vnic) => Some(Self::Release(vnic.clone())),
            // The next plan sets the CPUs by the contracts that stay.
            Self::Release(_) | Self::Reconnect(_) | Self::OwnCpus(_) => None,
        }
    }
}
