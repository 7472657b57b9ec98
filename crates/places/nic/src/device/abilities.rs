//! What a NIC takes, found by asking ([`crate::probe`]).

use super::source::Source;
use serde::Serialize;

/// Whether a NIC accepts one kind of request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase", tag = "is", content = "why")]
pub enum Ability {
    /// The NIC accepts it.
    Has,
    /// The NIC refuses it for good; the kernel's words.
    Lacks(String),
    /// Unknown, with the reason: the NIC could not be asked, or its answer may be temporary. A contract tries the request, and
    /// the next probe asks again.
    Unknown(String),
}

impl Default for Ability {
    fn default() -> Self {
        Self::Unknown("not asked yet".into())
    }
}

impl Ability {
    /// The kernel's words, if the NIC refuses for good.
    pub fn lacks(&self) -> Option<&str> {
        match self {
            Self::Lacks(why) => Some(why),
            _ => None,
        }
    }
}

/// The abilities of a NIC.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Abilities {
    /// A hard limit for a VF, by `IFLA_VF_RATE` or, in switchdev mode, its devlink leaf.
    pub max_rate: Ability,
    /// A guaranteed rate for a VF.
    pub min_rate: Ability,
    /// VLAN and priority.
    pub vlan: Ability,
    /// MAC address.
    pub mac: Ability,
    /// Spoof check.
    pub spoofchk: Ability,
    /// Trust.
    pub trust: Ability,
    /// Link state.
    pub link_state: Ability,
    /// devlink rate objects of VFs.
    pub leaf: Ability,
    /// devlink rate nodes, which group them.
    pub node: Ability,
    /// Each source of statistics.
    pub statistics: Vec<(Source, Ability)>,
}
