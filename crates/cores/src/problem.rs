//! A question to the planner, and its answer.

use crate::costs::Costs;
use crate::cpus::Cpus;
use crate::machine::Machine;
use crate::stage::{Handle, Link, Stage};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The machine, the work, and what is known of their costs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// The CPUs.
    pub machine: Machine,
    /// The work. Handles are unique.
    pub stages: Vec<Stage>,
    /// Frames between stages. vNICs of the host switch that talk with each other have links between their ports.
    pub links: Vec<Link>,
    /// The cost model's numbers.
    pub costs: Costs,
    /// CPUs that the plan may give to stages; others keep their present work.
    pub usable: Cpus,
    /// CPUs for all other work of the host, on which no real-time stage runs; the planner chooses one if empty.
    pub housekeeping: Cpus,
    /// Whether stages that another program pinned may move.
    pub adopt: bool,
    /// The assignment in force, which another one has to beat by more than its moves cost; empty at first.
    pub in_force: Assignment,
}

/// A CPU for each stage, and a worker for each vNIC of the host switch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Assignment {
    /// CPUs of the stages that the plan places; of a port, that of its worker.
    pub cpus: BTreeMap<Handle, usize>,
    /// Workers of vNICs of the host switch.
    pub workers: BTreeMap<String, usize>,
}

/// The planner's answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The assignment.
    pub assignment: Assignment,
    /// CPUs that one real-time stage has for itself.
    pub own: Cpus,
    /// CPUs for all other work of the host.
    pub housekeeping: Cpus,
    /// Why each stage is on its CPU, or why it is left alone; in words.
    pub reasons: BTreeMap<Handle, String>,
    /// Cost of the assignment, ns of CPU time lost a second.
    pub cost: u64,
    /// Cost of the present placement by the same model: each stage on the idlest of its present CPUs, as a scheduler spreads them.
    pub present_cost: u64,
    /// No assignment that gives deadlines the same isolation costs less, ns a second.
    pub lower_bound: u64,
    /// Whether no such assignment costs less than `cost`.
    pub exact: bool,
    /// Deadlines whose needs cannot be met.
    pub impossible: Vec<Impossible>,
}

/// A vNIC whose deadline's needs cannot be met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Impossible {
    /// The vNIC.
    pub vnic: String,
    /// The missing thing, and the consequence.
    pub reason: String,
}
