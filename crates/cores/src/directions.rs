//! The part of a plan that the host switch carries out: it places its workers and ports itself.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// CPUs of workers, and workers of vNICs. The default leaves all to the switch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Directions {
    /// The CPU of each directed worker; the switch chooses those of the others.
    pub workers: BTreeMap<usize, usize>,
    /// The worker of each directed vNIC; the switch chooses those of the others.
    pub vnics: BTreeMap<String, usize>,
}
