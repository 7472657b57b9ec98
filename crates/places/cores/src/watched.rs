//! The knowledge of all places at one look, for discovery in the background.

use crate::discover::{Discovery, Found, LookInput};
use std::collections::BTreeMap;
use std::time::Instant;
use tidegate_contract::{Host, Vnic};
use tidegate_cores::stage::{Handle, Stage};
use tidegate_evidence::{Evidence, VnicStats};
use tidegate_place::{HostWork, Network, Wanted};

/// What discovery needs to know.
#[derive(Clone, Debug)]
pub struct Watched {
    /// The wanted contracts, and the host's settings.
    pub scope: Scope,
    /// The stages that places report.
    pub reported: Vec<Stage>,
    /// The counters of places: frames of vNICs alone.
    pub evidence: Vec<Evidence>,
    /// Directions that the host switch does not follow, and the reasons.
    pub not_followed: BTreeMap<Handle, String>,
}

/// The wanted contracts, and the host's settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    /// Of all places, sorted by name.
    pub contracts: Vec<Vnic>,
    /// The `[host]` table.
    pub host: Host,
    /// The ways to other hosts, without keys.
    pub network: Network,
}

impl Scope {
    /// Returns that of a plan's question.
    pub fn of(wanted: &Wanted<'_>) -> Self {
        let mut contracts: Vec<Vnic> = wanted.work.contracts.iter().map(|vnic| (*vnic).clone()).collect();
        contracts.sort_by(|a, b| a.name.cmp(&b.name));
        let Network { uplinks, remotes, keys: _, controller: _ } = wanted.network;
        let network = Network { uplinks: uplinks.clone(), remotes: remotes.clone(), ..Network::default() };
        Self { contracts, host: wanted.host.clone(), network }
    }
}

/// Whether a place may report a stage: work of its program. That of the host's interfaces is found by looking at them: no program's word
/// changes their settings.
pub fn may_be_reported(stage: &Stage) -> bool {
    matches!(stage.handle, Handle::Worker(_) | Handle::Port(_) | Handle::Thread { .. })
}

impl Watched {
    /// Returns the knowledge of one look.
    pub fn new(scope: Scope, work: &HostWork<'_>) -> Self {
        let reported = work.stages.iter().filter(|stage| may_be_reported(stage));
        let reported = reported.map(|stage| (*stage).clone()).collect();
        let not_followed =
            work.not_followed.iter().map(|(handle, why)| ((*handle).clone(), (*why).to_owned()));
        Self {
            scope,
            reported,
            evidence: work.evidence.iter().map(|evidence| frames(evidence)).collect(),
            not_followed: not_followed.collect(),
        }
    }
}

/// Returns the counts of frames alone.
fn frames(evidence: &Evidence) -> Evidence {
    let frames =
        |stats: &VnicStats| VnicStats { tx: stats.tx.clone(), rx: stats.rx.clone(), ..VnicStats::default() };
    let vnics = evidence.vnics.iter().map(|(name, stats)| (name.clone(), frames(stats)));
    Evidence {
        taken: evidence.taken,
        vnics: vnics.collect(),
        unknown: evidence.unknown.clone(),
        ..Evidence::empty(&evidence.source)
    }
}

/// What a look found, and the knowledge that it had.
#[derive(Debug)]
pub struct Surveyed {
    /// The wanted contracts, and the host's settings.
    pub scope: Scope,
    /// Directions that the host switch does not follow, and the reasons.
    pub not_followed: BTreeMap<Handle, String>,
    /// The stages, and the machine.
    pub found: Found,
}

/// Looks at the host.
pub fn survey(discovery: &mut Discovery, watched: Watched) -> Surveyed {
    let Watched { scope, reported, evidence, not_followed } = watched;
    let (contracts, reported): (Vec<&Vnic>, Vec<&Stage>) =
        (scope.contracts.iter().collect(), reported.iter().collect());
    let found = discovery.look(&LookInput {
        now: Instant::now(),
        contracts: &contracts,
        host: &scope.host,
        network: &scope.network,
        reported: &reported,
        evidence: &evidence.iter().collect::<Vec<_>>(),
    });
    Surveyed { scope, not_followed, found }
}
