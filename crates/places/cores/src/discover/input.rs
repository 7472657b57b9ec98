//! A question to discovery, and its answer.

use std::collections::BTreeMap;
use std::time::Instant;
use tidegate_contract::{Host, Vnic};
use tidegate_cores::cpus::Cpus;
use tidegate_cores::machine::Machine;
use tidegate_cores::stage::{Link, Stage, Thread};
use tidegate_evidence::{ConflictReport, Evidence};
use tidegate_place::Network;

/// What a look needs to know.
#[derive(Clone, Copy, Debug)]
pub struct LookInput<'a> {
    /// The time of the look.
    pub now: Instant,
    /// The contracts of all places.
    pub contracts: &'a [&'a Vnic],
    /// The `[host]` table.
    pub host: &'a Host,
    /// The ways to other hosts.
    pub network: &'a Network,
    /// The stages that places report.
    pub reported: &'a [&'a Stage],
    /// The counters of places.
    pub evidence: &'a [&'a Evidence],
}

/// What a look found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// The machine.
    pub machine: Machine,
    /// Online CPUs that a plan may use if the administrator names none: those of `machine.slice` without those that Kubernetes gave to
    /// containers alone.
    pub usable: Cpus,
    /// The stages, reported and found; handles are unique. A thread that the agent placed counts as pinned here: `choice` knows better.
    pub stages: Vec<Stage>,
    /// The CPUs that libvirt gives threads, whatever they have now; those of which it does not say which are missing.
    pub of_libvirt: BTreeMap<Thread, Cpus>,
    /// Frames between them.
    pub links: Vec<Link>,
    /// What contradicts a plan.
    pub conflicts: Vec<ConflictReport>,
    /// Busy time of CPUs over the last minute, millionths; a CPU is missing until it was looked at twice.
    pub cpu_busy: BTreeMap<usize, u32>,
    /// What could not be found, and the consequence.
    pub notes: Vec<String>,
}
