//! One change at a place. Each place has its own kinds of change; this is what they have in common.

use std::fmt::Debug;
use tidegate_contract::Vnic;

/// One change at a place, wholly done or not at all.
pub trait Action: Clone + Debug + Send + 'static {
    /// The vNIC concerned; `None` for the settings of the host.
    fn vnic(&self) -> Option<&str>;

    /// The effect on what is in force.
    fn effect(&self) -> Effect;

    /// A verb for logs and messages, such as `take over`.
    fn label(&self) -> &'static str;

    /// The action that undoes this one; `None` if nothing has to be undone.
    fn inverse(&self) -> Option<Self>;
}

/// The effect of an action on what is in force, for logs and counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// A contract comes into force.
    Create,
    /// Another contract comes into force in place of one.
    Change,
    /// The contract in force is enforced again, after other software changed its settings.
    Repair,
    /// A contract ends.
    Remove,
    /// The contracts in force stay as they are.
    Upkeep,
}

/// The change of one contract: the kinds of change that every place has.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "short-lived, a handful at a time")]
pub enum ContractChange {
    /// The vNIC comes into force.
    Create(Vnic),
    /// The contract changes, live. `from` and `to` are equal if other software changed the settings of the vNIC.
    Change {
        /// In force.
        from: Vnic,
        /// Wanted.
        to: Vnic,
    },
    /// The vNIC goes, and everything that was made for it.
    Remove(Vnic),
}

impl Action for ContractChange {
    fn vnic(&self) -> Option<&str> {
        let (Self::Create(vnic) | Self::Change { to: vnic, .. } | Self::Remove(vnic)) = self;
        Some(&vnic.name)
    }

    fn effect(&self) -> Effect {
        match self {
            Self::Create(_) => Effect::Create,
            Self::Change { from, to } if from == to => Effect::Repair,
            Self::Change { .. } => Effect::Change,
            Self::Remove(_) => Effect::Remove,
        }
    }

    fn label(&self) -> &'static str {
        match self {
            Self::Create(_) => "create",
            Self::Change { .. } => "change",
            Self::Remove(_) => "remove",
        }
    }

    fn inverse(&self) -> Option<Self> {
        Some(match self {
            Self::Create(vnic) => Self::Remove(vnic.clone()),
            Self::Change { from, to } => Self::Change { from: to.clone(), to: from.clone() },
            Self::Remove(vnic) => Self::Create(vnic.clone()),
        })
    }
}
