//! The changes at this place.

use tidegate_contract::{Host, Remote, SegmentKey, Uplink, Vnic};
use tidegate_cores::directions::Directions;
use tidegate_place::{Action, ContractChange, Effect};
use tidegate_switch::control::KeyPrint;

/// An uplink, with the vNICs behind its peers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Declared {
    /// Its declaration.
    pub uplink: Uplink,
    /// Sorted by name.
    pub remotes: Vec<Remote>,
    /// The keys of segments, sorted by segment.
    pub keys: Vec<DeclaredKey>,
}

/// The keys of a segment; of those that only the switch knows, what tells them from others. Never saved.
#[derive(Clone, Debug)]
pub struct DeclaredKey {
    /// Tells these keys from others.
    pub print: KeyPrint,
    /// The keys, if this agent read them.
    pub keys: Option<SegmentKey>,
}

impl DeclaredKey {
    /// Returns keys that this agent read.
    pub fn read(keys: &SegmentKey) -> Self {
        Self { print: KeyPrint::of(keys), keys: Some(*keys) }
    }
}

impl PartialEq for DeclaredKey {
    fn eq(&self, other: &Self) -> bool {
        self.print == other.print
    }
}

impl Eq for DeclaredKey {}

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
    /// An uplink is made, or its declaration or its remotes change.
    SetUplink {
        /// In force, if this agent declared it, or the contract does; the switch's word alone opens no socket.
        from: Option<Box<Declared>>,
        /// Wanted.
        to: Box<Declared>,
    },
    /// An uplink goes.
    RemoveUplink {
        /// The uplink.
        name: String,
        /// Its declaration, if this agent made it: the way back.
        from: Option<Box<Declared>>,
    },
    /// A vNIC of another agent becomes ours, unchanged, without an effect on its traffic. The change that
    /// names it makes that permanent when accepted; if the change fails, or the agent dies before, the vNIC
    /// is released.
    Adopt(Vnic),
    /// An adopted vNIC returns to the other agent.
    Release(Vnic),
    /// The vNIC's connection is made anew; the contract stays.
    Reconnect(Vnic),
    /// The switch is told the plan's CPUs of workers and workers of vNICs.
    Direct(Directions),
}

impl SwitchAction {
    /// Whether it may make pairs of vNICs with ports of their own.
    pub(crate) fn may_make_pairs(&self) -> bool {
        match self {
            Self::SetUplink { .. } => true,
            Self::Contract(ContractChange::Create(vnic) | ContractChange::Change { to: vnic, .. }) => {
                vnic.is_realtime()
            }
            _ => false,
        }
    }
}

impl Action for SwitchAction {
    fn vnic(&self) -> Option<&str> {
        match self {
            Self::Contract(change) => change.vnic(),
            Self::SetHost { .. } | Self::Direct(_) => None,
            Self::SetUplink { to, .. } => Some(&to.uplink.name),
            Self::RemoveUplink { name, .. } => Some(name),
            Self::Adopt(vnic) | Self::Release(vnic) | Self::Reconnect(vnic) => Some(&vnic.name),
        }
    }

    fn effect(&self) -> Effect {
        match self {
            Self::Contract(change) => change.effect(),
            Self::SetHost { .. }
            | Self::SetUplink { .. }
            | Self::RemoveUplink { .. }
            | Self::Adopt(_)
            | Self::Release(_)
            | Self::Reconnect(_)
            | Self::Direct(_) => Effect::Upkeep,
        }
    }

    fn label(&self) -> &'static str {
        match self {
            Self::Contract(change) => change.label(),
            Self::SetHost { .. } => "set host",
            Self::SetUplink { .. } => "set uplink",
            Self::RemoveUplink { .. } => "remove uplink",
            Self::Adopt(_) => "adopt",
            Self::Release(_) => "release",
            Self::Reconnect(_) => "reconnect",
            Self::Direct(_) => "direct workers",
        }
    }

    fn inverse(&self) -> Option<Self> {
        match self {
            Self::Contract(change) => change.inverse().map(Self::Contract),
            Self::SetHost { from, to } => {
                from.clone().map(|from| Self::SetHost { from: Some(to.clone()), to: from })
            }
            Self::SetUplink { from: None, to } => {
                Some(Self::RemoveUplink { name: to.uplink.name.clone(), from: Some(to.clone()) })
            }
            Self::SetUplink { from: Some(from), to } => {
                Some(Self::SetUplink { from: Some(to.clone()), to: from.clone() })
            }
            Self::RemoveUplink { from, .. } => from.clone().map(|to| Self::SetUplink { from: None, to }),
            Self::Adopt(vnic) => Some(Self::Release(vnic.clone())),
            // The next plan directs by the plan of CPUs.
            Self::Release(_) | Self::Reconnect(_) | Self::Direct(_) => None,
        }
    }
}
