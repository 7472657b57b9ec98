//! A place where frames wait, as the agent sees it: one trait.
//!
//! ```text
//!   capabilities(attachment) ─▶ what it can promise there
//!   plan(wanted, observed)   ─▶ actions, or why not          (pure)
//!   prepare(actions)         ─▶ on disk: what must be there before the first of them
//!   apply(action)            ─▶ done, or what went wrong
//!   observe(coming)          ─▶ what is in force, the evidence, and obstacles
//!   capture()                ─▶ frames of one vNIC, where the place can copy them
//! ```

use crate::api::status::OwnCpus;
use crate::api::types::Adopt;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;
use tidegate_contract::{Attach, Host, Rate, Vnic};
use tidegate_evidence::{Connection, HeldUp, SharedStatus};
use tidegate_evidence::{Figure, Unknown};
use tidegate_evidence::{LogStats, Miss, VnicStats, WorkerStats};
use tidegate_switch::control::SwitchError;

/// One place.
pub trait Place: Send {
    /// Name for logs and messages, such as `switch`.
    fn name(&self) -> &'static str;

    /// What it can promise for an attachment; `None` where the attachment is not its own.
    fn capabilities(&self, attach: &Attach) -> Option<Capabilities>;

    /// What a reader of a plan should know of a contract here, such as how its limits are kept.
    fn notes(&self, vnic: &Vnic) -> Vec<String> {
        self.capabilities(&vnic.attach).map(|capabilities| capabilities.notes).unwrap_or_default()
    }

    /// What to do so that `observed` becomes `wanted`. No I/O, no memory: the same question gets the same
    /// answer. Nothing to do is an empty list.
    ///
    /// # Errors
    /// Every reason for which `wanted` cannot be had here.
    fn plan(&self, wanted: &Wanted<'_>, observed: &Observed) -> Result<Vec<Action>, Vec<Refusal>>;

    /// Called before the first of `actions` is done: puts on disk what must be there for all of them.
    ///
    /// # Errors
    /// It cannot; nothing was touched.
    fn prepare(&mut self, _actions: &[&Action]) -> Result<(), PlaceError> {
        Ok(())
    }

    /// Does one thing, wholly or not at all.
    fn apply(&mut self, action: &Action) -> Result<(), PlaceError>;

    /// What is in force, the evidence, and what stands in the way of attachments that are `coming`.
    fn observe(&mut self, coming: &[Vnic]) -> Result<Observed, PlaceError>;

    /// For capturing frames, where the place can.
    fn capture(&self) -> Option<Arc<dyn Capture>> {
        None
    }
}

/// Copies the frames of one vNIC.
pub trait Capture: Send + Sync {
    /// Starts writing pcapng into `into`, `snaplen` bytes of each frame, until its other end closes.
    fn capture(&self, vnic: &str, snaplen: u32, into: OwnedFd) -> Result<(), PlaceError>;
}

/// What a place can promise for one attachment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Deadlines.
    pub deadline: bool,
    /// Guaranteed rates.
    pub min: bool,
    /// Promises towards the uplink.
    pub uplink: bool,
    /// What a reader of a plan should know of each contract of such an attachment.
    pub notes: Vec<String>,
}

/// What should be in force at one place.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// Host-wide settings.
    pub host: &'a Host,
    /// The contracts of this place's attachments, in the order of their names.
    pub vnics: &'a [Vnic],
    /// Whether what others made in the way of one may be taken over, where the place can.
    pub adopt: Adopt,
}

/// What is in force at one place.
#[derive(Clone, Debug)]
pub struct Observed {
    /// Host-wide settings; `None` where the place cannot tell.
    pub host: Option<Host>,
    /// Every vNIC that is there, or that this agent made and that is gone.
    pub vnics: BTreeMap<String, ObservedVnic>,
    /// What stands in the way of an attachment that is not there yet, such as a file at its socket's path.
    pub obstacles: BTreeMap<String, String>,
    /// What others made in the way of an attachment, and that can be taken over.
    pub in_the_way: BTreeMap<String, InTheWay>,
    /// The links that SR-IOV functions share, by the NIC's name.
    pub links: BTreeMap<String, SharedLink>,
    /// What was counted.
    pub evidence: Evidence,
    /// The program that keeps the promises.
    pub keeper: Keeper,
    /// What is steered off the CPUs of its workers.
    pub own_cpus: OwnCpus,
    /// What is wrong with the place as a whole, such as a disk on which it can keep no record.
    pub problem: Option<String>,
}

/// The link that the functions of one NIC share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SharedLink {
    /// The fastest that it can be; `None` where that is not known.
    pub speed: Option<Rate>,
    /// Why the NIC keeps no minimum by itself, where it does not.
    pub lacks_min: Option<String>,
    /// Whether the NIC keeps what several functions may send together.
    pub groups: bool,
}

impl Observed {
    /// Nothing at all, of a place whose counters are read at `source`.
    pub fn nothing(source: &str) -> Self {
        Self {
            host: None,
            vnics: BTreeMap::new(),
            obstacles: BTreeMap::new(),
            in_the_way: BTreeMap::new(),
            links: BTreeMap::new(),
            evidence: Evidence {
                taken: Instant::now(),
                vnics: BTreeMap::new(),
                source: source.into(),
                figures: BTreeMap::new(),
                unknown: BTreeMap::new(),
                misses: BTreeMap::new(),
                culprits: BTreeMap::new(),
                unobserved: None,
                workers: vec![],
                counts_latency: false,
                denied_calls: 0,
                log: None,
            },
            keeper: Keeper::default(),
            own_cpus: OwnCpus::default(),
            problem: None,
        }
    }
}

impl ObservedVnic {
    /// One of ours that is there, with nothing to say of it.
    pub fn of(vnic: &Vnic, connection: Connection) -> Self {
        Self {
            vnic: vnic.clone(),
            present: true,
            ours: true,
            found: None,
            connection,
            pending: None,
            suspended: None,
            broken: None,
            last_error: None,
            worker: None,
            shared: vec![],
            refused_connections: 0,
            heir: false,
            thrown_out: BTreeMap::new(),
            held: HeldUp::default(),
            notes: vec![],
        }
    }
}

/// What others made where a contract shall be kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InTheWay {
    /// It, such as `qdisc tbf 1: at its root`.
    pub what: String,
    /// What is wrong with that, and what to do.
    pub reason: String,
    /// Why it could not be put back as it was, where it could not.
    pub lost: Option<String>,
}

/// The program that keeps the promises of a place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keeper {
    /// Release.
    pub version: String,
    /// Process id.
    pub pid: u32,
    /// Start, nanoseconds since the epoch.
    pub started: u64,
}

/// One vNIC, as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedVnic {
    /// The contract in force, or last in force where it is not present.
    pub vnic: Vnic,
    /// Whether it is there.
    pub present: bool,
    /// Whether this agent (or one before it, on the same state) made it.
    pub ours: bool,
    /// As somebody else left it, while taking it over is not settled: [`Action::Own`] or [`Action::Release`]
    /// comes next.
    pub found: Option<Vnic>,
    /// How it is connected.
    pub connection: Connection,
    /// Why its contract is not in force yet although there is nothing to do: what it waits for.
    pub pending: Option<String>,
    /// Why its deadline is not promised although its contract is in force.
    pub suspended: Option<String>,
    /// Why its connection has to be made anew, where it has.
    pub broken: Option<String>,
    /// Why the last front end was disconnected.
    pub last_error: Option<String>,
    /// The worker of the switch that carries its traffic; none at other places.
    pub worker: Option<usize>,
    /// Who has the addresses that it shares with others.
    pub shared: Vec<SharedStatus>,
    /// Front ends turned away because one was connected already, and another one waited.
    pub refused_connections: u64,
    /// A front end waits for the one that is connected to leave.
    pub heir: bool,
    /// Front ends disconnected for what they did, by reason.
    pub thrown_out: BTreeMap<String, u64>,
    /// What its front ends' objects did to threads of the switch.
    pub held: HeldUp,
    /// What a person would want to know, such as why no front end is connected.
    pub notes: Vec<String>,
}

/// What was counted.
#[derive(Clone, Debug)]
pub struct Evidence {
    /// When.
    pub taken: Instant,
    /// Counters by vNIC.
    pub vnics: BTreeMap<String, VnicStats>,
    /// Where these were read.
    pub source: String,
    /// Figures by vNIC, of a place that reads them here and there.
    pub figures: BTreeMap<String, Vec<Figure>>,
    /// What of `vnics` is not counted, by vNIC; those of which all is are left out.
    pub unknown: BTreeMap<String, Unknown>,
    /// The latest misses by vNIC, oldest first; vNICs without any are left out.
    pub misses: BTreeMap<String, Vec<Miss>>,
    /// What held the worker up when frames missed their deadlines: how often, by vNIC and kind.
    pub culprits: BTreeMap<String, BTreeMap<String, u64>>,
    /// Why what keeps workers from their CPUs is not observed, where it is not.
    pub unobserved: Option<String>,
    /// The workers' accounts.
    pub workers: Vec<WorkerStats>,
    /// Whether somebody counts there how often the host's latency is more than declared.
    pub counts_latency: bool,
    /// System calls denied to the place's process.
    pub denied_calls: u64,
    /// What the log of the place's process does not tell, where it has one.
    pub log: Option<LogStats>,
}

/// One change at a place.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "short-lived, a handful at a time")]
pub enum Action {
    /// Host-wide settings.
    SetHost {
        /// What was in force, where known.
        from: Option<Host>,
        /// What shall be.
        to: Host,
    },
    /// A vNIC that is not there.
    Create(Vnic),
    /// A contract changes, live.
    Change {
        /// In force.
        from: Vnic,
        /// Wanted.
        to: Vnic,
    },
    /// As [`Action::Create`], or where `from` was in force [`Action::Change`]; and what others made in its way is
    /// remembered, and put back when the contract goes.
    TakeOver {
        /// In force.
        from: Option<Vnic>,
        /// Wanted.
        to: Vnic,
        /// Also where it cannot be put back as it was.
        anyway: bool,
    },
    /// A vNIC of another agent becomes ours, as it is and until further notice: where the change that names it
    /// fails, or the agent dies over it, it is given back. Nothing changes for its traffic.
    Adopt(Vnic),
    /// What was adopted is ours for good: the change that names it was accepted.
    Own(Vnic),
    /// What was adopted is somebody else's again.
    Release(Vnic),
    /// Its connection is made anew; the contract stays.
    Reconnect(Vnic),
    /// A vNIC goes, and what was made for it.
    Remove(Vnic),
}

impl Action {
    /// What takes it back; `None` where there is nothing to take back.
    pub fn inverse(&self) -> Option<Self> {
        Some(match self {
            Self::SetHost { from: Some(from), to } => {
                Self::SetHost { from: Some(to.clone()), to: from.clone() }
            }
            Self::Create(vnic) | Self::TakeOver { from: None, to: vnic, .. } => Self::Remove(vnic.clone()),
            Self::Change { from, to } | Self::TakeOver { from: Some(from), to, .. } => {
                Self::Change { from: to.clone(), to: from.clone() }
            }
            Self::Remove(vnic) => Self::Create(vnic.clone()),
            Self::Adopt(vnic) => Self::Release(vnic.clone()),
            Self::SetHost { from: None, .. } | Self::Own(_) | Self::Release(_) | Self::Reconnect(_) => {
                return None;
            }
        })
    }

    /// The vNIC concerned.
    pub fn vnic(&self) -> Option<&str> {
        match self {
            Self::SetHost { .. } => None,
            Self::Create(v)
            | Self::Adopt(v)
            | Self::Own(v)
            | Self::Release(v)
            | Self::Reconnect(v)
            | Self::Remove(v)
            | Self::Change { to: v, .. }
            | Self::TakeOver { to: v, .. } => Some(&v.name),
        }
    }

    /// For logs and messages.
    pub fn label(&self) -> &'static str {
        match self {
            Self::SetHost { .. } => "set host",
            Self::Create(_) => "create",
            Self::Change { .. } => "change",
            Self::TakeOver { .. } => "take over",
            Self::Adopt(_) => "adopt",
            Self::Own(_) => "own",
            Self::Release(_) => "release",
            Self::Reconnect(_) => "reconnect",
            Self::Remove(_) => "remove",
        }
    }
}

/// Why a contract cannot be had at a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The vNIC.
    pub vnic: String,
    /// Why, and what to do.
    pub reason: String,
}

/// Why an action or an observation failed.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// The place cannot be reached, or stopped answering: the next observation shows what is in force.
    #[error("{0}")]
    Unreachable(String),
    /// It was refused or went wrong; nothing was changed.
    #[error("{0}")]
    Failed(String),
}

impl From<SwitchError> for PlaceError {
    fn from(error: SwitchError) -> Self {
        match error {
            SwitchError::Refused(why) => Self::Failed(format!("the switch refused: {why}")),
            other => Self::Unreachable(other.to_string()),
        }
    }
}
