//! What the place has to know of the wanted contracts while it observes.

use std::collections::BTreeMap;
use tidegate_contract::{Cores, Vnic};
use tidegate_cores::stage::Handle;
use tidegate_place::Wanted;

/// Contracts and settings, as the last plan was asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Watched {
    /// The wanted contracts of all places, sorted by name.
    pub contracts: Vec<Vnic>,
    /// The `[host.cores]` table.
    pub cores: Cores,
    /// Directions that the host switch does not follow, and the reasons.
    pub not_followed: BTreeMap<Handle, String>,
}

impl Watched {
    /// Returns those of a plan's question.
    pub fn of(wanted: &Wanted<'_>) -> Self {
        let mut contracts: Vec<Vnic> = wanted.work.contracts.iter().map(|vnic| (*vnic).clone()).collect();
        contracts.sort_by(|a, b| a.name.cmp(&b.name));
        Self { contracts, cores: wanted.host.cores.clone(), not_followed: BTreeMap::new() }
    }
}
