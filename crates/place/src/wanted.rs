//! The state that the contracts ask for.

use crate::host::Claim;
use tidegate_contract::{Host, Remote, SegmentKey, Uplink, Vnic};

/// What a place is to bring about.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// Host-wide settings.
    pub host: &'a Host,
    /// The ways to other hosts.
    pub network: &'a Network,
    /// The contracts of this place's attachments, sorted by name.
    pub vnics: &'a [Vnic],
    /// Whether the place may take over foreign settings that are in the way of a contract.
    pub adopt: Adopt,
    /// The host resources that the places before this one take.
    pub claims: &'a [Claim],
}

/// The ways to other hosts, and the vNICs there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Network {
    /// Sorted by name.
    pub uplinks: Vec<Uplink>,
    /// Sorted by name.
    pub remotes: Vec<Remote>,
    /// The keys of segments, sorted by segment.
    pub keys: Vec<SegmentKey>,
}

impl Network {
    /// No other host.
    pub const NONE: &'static Self = &Self { uplinks: Vec::new(), remotes: Vec::new(), keys: Vec::new() };
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
