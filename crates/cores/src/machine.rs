//! CPUs, and how far they are from each other.

use crate::cpus::Cpus;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The CPUs of a host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// The online CPUs, by the kernel's number.
    pub cpus: BTreeMap<usize, Cpu>,
    /// The memory node of each physical NIC, by interface; without an entry the node is unknown.
    pub nics: BTreeMap<String, u32>,
}

/// One online CPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cpu {
    /// The core: CPUs with equal numbers are SMT siblings. Unique on the host.
    pub core: u32,
    /// The group of CPUs that share the last level of cache. Unique on the host.
    pub cache: u32,
    /// The NUMA node.
    pub node: u32,
    /// Whether the administrator set it apart at boot (`isolcpus=`, `nohz_full=`): the kernel gives it no work by itself.
    pub isolated: bool,
}

/// How far two CPUs are from each other, nearest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Distance {
    /// One CPU.
    Same,
    /// SMT siblings: two CPUs of one core.
    Sibling,
    /// Two cores that share the last level of cache.
    Cache,
    /// Two caches of one NUMA node.
    Node,
    /// Two NUMA nodes.
    Remote,
}

impl Distance {
    /// All distances, nearest first.
    pub const ALL: [Self; 5] = [Self::Same, Self::Sibling, Self::Cache, Self::Node, Self::Remote];
}

impl Machine {
    /// Returns the distance of two CPUs; [`Distance::Remote`] if one is not online.
    pub fn distance(&self, one: usize, other: usize) -> Distance {
        let (Some(a), Some(b)) = (self.cpus.get(&one), self.cpus.get(&other)) else {
            return Distance::Remote;
        };
        match () {
            () if one == other => Distance::Same,
            () if a.core == b.core => Distance::Sibling,
            () if a.cache == b.cache => Distance::Cache,
            () if a.node == b.node => Distance::Node,
            () => Distance::Remote,
        }
    }

    /// Returns the online CPUs.
    pub fn online(&self) -> Cpus {
        self.cpus.keys().copied().collect()
    }

    /// Returns the CPUs that were set apart at boot.
    pub fn isolated(&self) -> Cpus {
        self.cpus.iter().filter(|(_, cpu)| cpu.isolated).map(|(number, _)| *number).collect()
    }
}
