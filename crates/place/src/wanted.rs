//! The state that the contracts ask for.

use crate::host::Claim;
use tidegate_contract::{Host, Vnic};

/// What a place is to bring about.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// Host-wide settings.
    pub host: &'a Host,
    /// The contracts of this place's attachments, sorted by name.
    pub vnics: &'a [Vnic],
    /// Whether the place may take over foreign settings that are in the way of a contract.
    pub adopt: Adopt,
    /// The host resources that the places before this one take.
    pub claims: &'a [Claim],
}

/// Whether a place may take over foreign settings, such as a qdisc that other software made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Adopt {
    /// No: foreign settings in the way of a contract refuse it.
    #[default]
    No,
    /// Yes, if the place can restore them exactly when the contract goes.
    Exactly,
    /// Yes, also if the place cannot restore them.
    Anyway,
}
