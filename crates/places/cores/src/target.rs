//! The values that settings are to have.

use crate::settings::setting::Setting;
use crate::steered::tables::NicTable;
use std::collections::{BTreeMap, BTreeSet};
use tidegate_cores::cpus::Cpus;
use tidegate_cores::directions::Directions;

/// The CPUs of all work, as the agent is to set them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Target {
    /// The value of each setting.
    pub settings: BTreeMap<Setting, String>,
    /// The values of settings on record that hold instead of those before the agent's: another program chose them since.
    pub before: BTreeMap<Setting, String>,
    /// The settings among the wanted ones, of taps' stacks, kept off workers' CPUs.
    pub taps: BTreeSet<Setting>,
    /// CPUs of workers and of other real-time stages, off which the agent's own threads go.
    pub own: Cpus,
    /// Why no CPU is accepted as a worker's, although a deadline wants one.
    pub too_many: Option<String>,
    /// CPUs and workers that the switch is asked to use.
    pub directions: Directions,
    /// NICs whose frames are steered, with the CPUs of flows.
    pub nics: BTreeMap<String, NicTable>,
}
