//! The state that the contracts ask for.

use crate::host::Claim;
use std::collections::BTreeSet;
use tidegate_contract::{Controller, Host, Remote, SegmentKey, Uplink, Vnic};
use tidegate_cores::directions::Directions;
use tidegate_cores::stage::{Handle, Link, Stage};
use tidegate_evidence::Evidence;

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
    /// The work of all places.
    pub work: &'a HostWork<'a>,
}

/// The work for frames on the whole host, as all places reported it at this look.
#[derive(Clone, Debug, Default)]
pub struct HostWork<'a> {
    /// The wanted contracts of all places.
    pub contracts: Vec<&'a Vnic>,
    /// The same as written, without the limits that guests set themselves.
    pub written: Vec<&'a Vnic>,
    /// The stages of work that places reported.
    pub stages: Vec<&'a Stage>,
    /// Frames between these stages.
    pub links: Vec<&'a Link>,
    /// Directions that the host switch does not follow, and the reasons.
    pub not_followed: Vec<(&'a Handle, &'a str)>,
    /// The evidence of each place.
    pub evidence: Vec<&'a Evidence>,
    /// Start of the host switch (ns since the epoch), if it answers: its counters begin then.
    pub switch_started: Option<u64>,
    /// Contracts that the place refused in this round: it plans for them what can be had nevertheless.
    pub refused: BTreeSet<&'a str>,
    /// CPUs and workers that a place asks the host switch to use; `None` leaves the switch as it is.
    pub directions: Option<Directions>,
}

impl HostWork<'_> {
    /// No work.
    pub const NONE: &'static HostWork<'static> = &HostWork {
        contracts: Vec::new(),
        written: Vec::new(),
        stages: Vec::new(),
        links: Vec::new(),
        not_followed: Vec::new(),
        evidence: Vec::new(),
        switch_started: None,
        refused: BTreeSet::new(),
        directions: None,
    };
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
    /// The controller of the network behind uplinks that are [`Uplink::controlled`].
    pub controller: Option<Controller>,
}

impl Network {
    /// No other host.
    pub const NONE: &'static Self =
        &Self { uplinks: Vec::new(), remotes: Vec::new(), keys: Vec::new(), controller: None };
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
