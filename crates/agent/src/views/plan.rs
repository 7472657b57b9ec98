//! The changes that a set of contracts makes.

use super::host::AdmissionView;
use super::vnic::State;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Query of `plan` and `apply`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub struct ApplyQuery {
    /// File name of the text, for messages.
    #[serde(default)]
    pub origin: Option<String>,
    /// The owner of these contracts: a program that acts for a user or a domain, such as `libvirt:web1`; the API's where
    /// absent. Only their owner changes or removes them.
    #[serde(default)]
    pub owner: Option<String>,
    /// Remove the owner's vNICs, uplinks, remotes and keys that the text does not name.
    #[serde(default)]
    pub prune: bool,
    /// Take over what others made in the way, such as a root qdisc.
    #[serde(default)]
    pub adopt: Adopt,
}

/// Whether what others made in the way of a contract is taken over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub enum Adopt {
    /// It refuses the contract.
    #[default]
    #[serde(rename = "false")]
    No,
    /// Where it can be put back as it was when the contract goes.
    #[serde(rename = "true")]
    Exactly,
    /// Also where it cannot; the vNIC says what is lost.
    #[serde(rename = "anyway")]
    Anyway,
}

/// What a text would change, or has changed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PlanView {
    /// Whether it was applied.
    pub applied: bool,
    /// Whether it can be.
    pub admissible: bool,
    /// Why not, where it cannot.
    pub refusals: Vec<String>,
    /// By vNIC: those of the text, and those that go.
    pub vnics: Vec<VnicChange>,
    /// Of the `[host]` table.
    pub host: Vec<KeyChange>,
    /// Of uplinks, remotes and keys of segments: those that change.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tables: Vec<TableChange>,
    /// What would be promised; empty where it is not admissible.
    pub admission: AdmissionView,
    /// What the places say about the attachments concerned.
    pub notes: Vec<String>,
}

/// What happens to one vNIC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VnicChange {
    /// The vNIC.
    pub vnic: String,
    /// What happens.
    pub action: ChangeAction,
    /// By key, where it changes.
    pub changes: Vec<KeyChange>,
    /// Why its contract is not in force, where it is not; absent where it is, where it is only planned, and of one that goes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_in_force: Option<NotInForce>,
}

/// What happens to one table that is no vNIC's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TableChange {
    /// Such as `uplink.net0`.
    pub table: String,
    /// What happens.
    pub action: ChangeAction,
    /// By key, where it is new or changes.
    pub changes: Vec<KeyChange>,
}

/// Why an accepted contract is not in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NotInForce {
    /// `pending` or `failed`.
    pub state: State,
    /// Why.
    pub reason: String,
    /// Whether its place, such as the switch, cannot be reached.
    pub place_away: bool,
}

/// What happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ChangeAction {
    /// It is new.
    Create,
    /// Its contract changes.
    Change,
    /// It goes.
    Remove,
    /// Nothing.
    None,
}

/// One key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct KeyChange {
    /// Such as `tx.max`.
    pub key: String,
    /// Its value so far; absent where it was not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Its value then; absent where it is not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
}

impl From<Adopt> for tidegate_place::Adopt {
    fn from(adopt: Adopt) -> Self {
        match adopt {
            Adopt::No => Self::No,
            Adopt::Exactly => Self::Exactly,
            Adopt::Anyway => Self::Anyway,
        }
    }
}
