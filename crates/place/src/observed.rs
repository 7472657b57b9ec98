//! The state that a place observed.

use std::collections::BTreeMap;
use tidegate_contract::{Host, Uplink, Vnic};
use tidegate_cores::directions::Directions;
use tidegate_cores::stage::{Handle, Link, Stage};
use tidegate_evidence::{Connection, CoresReport, Evidence, FrontEnds, OwnCpus, SharedStatus};

/// The state in force at one place.
#[derive(Clone, Debug)]
pub struct Observed {
    /// Host-wide settings; `None` if the place has none, or does not know them.
    pub host: Option<Host>,
    /// The vNICs that are in force, and those that this agent made and that are gone.
    pub vnics: BTreeMap<String, ObservedVnic>,
    /// The uplinks that are in force.
    pub uplinks: BTreeMap<String, ObservedUplink>,
    /// Obstacles to vNICs that are to come, such as a file at a socket's path.
    pub obstacles: BTreeMap<String, String>,
    /// vNICs of other places whose deadline this place does not keep its part of, each with the reason.
    pub unpromised: BTreeMap<String, String>,
    /// The counters.
    pub evidence: Evidence,
    /// The program that keeps the contracts.
    pub program: PlaceProgram,
    /// Work that is kept off the CPUs of the place's workers.
    pub own_cpus: OwnCpus,
    /// Work for frames that the place knows of, for the plan of CPUs.
    pub stages: Vec<Stage>,
    /// Frames between these stages.
    pub links: Vec<Link>,
    /// Directions that the place does not follow, and the reasons.
    pub not_followed: BTreeMap<Handle, String>,
    /// CPUs and workers that the place asks the host switch to use; `None` leaves the switch as it is.
    pub directions: Option<Directions>,
    /// The plan of CPUs, if the place makes it.
    pub cores: Option<CoresReport>,
    /// A fault of the place as a whole, such as a disk on which it cannot write its record.
    pub problem: Option<String>,
}

impl Observed {
    /// Nothing in force, at a place whose counters are read from `source`.
    pub fn nothing(source: &str) -> Self {
        Self {
            host: None,
            vnics: BTreeMap::new(),
            uplinks: BTreeMap::new(),
            obstacles: BTreeMap::new(),
            unpromised: BTreeMap::new(),
            evidence: Evidence::empty(source),
            program: PlaceProgram::default(),
            own_cpus: OwnCpus::default(),
            stages: vec![],
            links: vec![],
            not_followed: BTreeMap::new(),
            directions: None,
            cores: None,
            problem: None,
        }
    }
}

/// The program that keeps the contracts of a place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlaceProgram {
    /// Release.
    pub version: String,
    /// Process id.
    pub pid: u32,
    /// Start, nanoseconds since the epoch.
    pub started: u64,
}

/// One uplink in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedUplink {
    /// The declaration in force.
    pub uplink: Uplink,
    /// The worker that carries its frames; `None` if the place has no workers.
    pub worker: Option<usize>,
    /// Why no frame passes until it is made anew.
    pub broken: Option<String>,
    /// Facts that a person would want to know.
    pub notes: Vec<String>,
}

/// One vNIC in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedVnic {
    /// The contract in force; the last one if the vNIC is not present.
    pub vnic: Vnic,
    /// Whether the vNIC exists.
    pub present: bool,
    /// Whether this agent, or a predecessor with the same state folder, made it.
    pub ours: bool,
    /// How it is connected.
    pub connection: Connection,
    /// The event that its contract waits for, if it is not in force although nothing can be done.
    pub pending: Option<String>,
    /// The reason for which its deadline is not promised although its contract is in force.
    pub suspended: Option<String>,
    /// The reason for which it has to be repaired: other software changed it, or its connection ended.
    pub broken: Option<String>,
    /// The worker that carries its frames; `None` if the place has no workers.
    pub worker: Option<usize>,
    /// The holders of the addresses that it shares with others.
    pub shared: Vec<SharedStatus>,
    /// The front ends that came to its socket.
    pub front_ends: FrontEnds,
    /// Facts that a person would want to know, such as why no front end is connected.
    pub notes: Vec<String>,
}

impl ObservedVnic {
    /// A present vNIC of ours, without faults and notes.
    pub fn of(vnic: &Vnic, connection: Connection) -> Self {
        Self {
            vnic: vnic.clone(),
            present: true,
            ours: true,
            connection,
            pending: None,
            suspended: None,
            broken: None,
            worker: None,
            shared: vec![],
            front_ends: FrontEnds::default(),
            notes: vec![],
        }
    }
}
