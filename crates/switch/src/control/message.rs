//! Requests and replies.

use crate::vhost_user::saved::{Number, SavedConnection};
use crate::worker::handover::Levels;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use tidegate_contract::{Host, Mac, Vnic};
use tidegate_evidence::{Connection, HeldUp, SharedStatus};

/// Version of this protocol; both ends must speak the same.
pub const PROTOCOL: u32 = 3;

/// What the agent asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// Who are you? The reply carries the statistics region's descriptor.
    Hello,
    /// Host-wide settings.
    SetHost(Host),
    /// Makes a port, or changes the contract of a port that is there, live.
    SetPort {
        /// The contract.
        vnic: Box<Vnic>,
        /// What the request's descriptors are.
        link: LinkKind,
    },
    /// Removes a port; its frames in flight are dropped.
    RemovePort {
        /// The vNIC.
        name: String,
    },
    /// All ports with their contracts in force.
    Ports,
    /// Tells, from now on, what it takes for another process to go on in this one's place, as
    /// [notes](super::notes) into the request's descriptor, a `SOCK_SEQPACKET` socket.
    Keep,
    /// Ends traffic, with nothing in flight, and tells what is left: for a process that goes on with it. The
    /// next request of this connection is [`Release`](Self::Release); whatever else comes, and its end, takes
    /// this back.
    Retire,
    /// End: another process goes on.
    Release,
    /// Ports that are made from now on go on counting where they stood in the statistics region that is the
    /// request's descriptor: one of a switch that is gone.
    Inherit,
    /// Sends a copy of a vNIC's frames, both ways, as pcapng into the
    /// request's descriptor until its other end closes.
    Capture {
        /// The vNIC.
        name: String,
        /// Bytes kept of each frame.
        snaplen: u32,
    },
}

/// What the descriptors of [`Request::SetPort`] are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LinkKind {
    /// None: the port keeps what it has.
    Keep,
    /// One listening vhost-user socket.
    Listener,
    /// One connected vhost-user socket.
    Stream,
    /// One tap descriptor per queue pair.
    Tap,
    /// A listening socket where `listener`, then those of a connection to a switch that is gone.
    Restored {
        /// We are the server.
        listener: bool,
        /// What the front end has said.
        kept: Box<SavedConnection>,
        /// The numbers, in `kept`, of the descriptors.
        numbers: Vec<Number>,
    },
}

/// What the switch answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// Done.
    Done,
    /// To [`Request::Hello`].
    Hello(Hello),
    /// To [`Request::Ports`].
    Ports(Vec<PortStatus>),
    /// To [`Request::Retire`], with the control socket that listens.
    Retired(Box<Retired>),
    /// Refused; nothing was changed.
    Refused(String),
}

impl Reply {
    /// What kind of answer it is, in a word.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Hello(_) => "hello",
            Self::Ports(_) => "ports",
            Self::Retired(_) => "retired",
            Self::Refused(_) => "refused",
        }
    }
}

/// What a switch that has retired leaves, beside the connections that it [told](Request::Keep) of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retired {
    /// Host-wide settings.
    pub host: Host,
    /// All ports.
    pub ports: Vec<PortStatus>,
    /// Tokens by vNIC.
    pub levels: Vec<(String, Levels)>,
    /// Addresses learned: which, behind which vNIC, when it was seen last (s of CLOCK_MONOTONIC).
    pub learned: Vec<(Mac, String, u32)>,
    /// When ports were last read, ns of CLOCK_MONOTONIC.
    pub stopped: u64,
    /// Frames that were in flight and found no receiver in time.
    pub dropped: bool,
    /// Within which time the service manager wants to hear that the switch is alive, us.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub watchdog_us: Option<u64>,
}

/// A switch, introduced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// [`PROTOCOL`].
    pub protocol: u32,
    /// Release.
    pub version: String,
    /// Process id.
    pub pid: u32,
    /// Start, nanoseconds since the epoch: tells one switch process from the next.
    pub started: u64,
    /// Worker threads.
    pub workers: usize,
}

/// One port, as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortStatus {
    /// The contract in force.
    pub vnic: Vnic,
    /// Its index in the statistics region.
    pub index: usize,
    /// The worker that owns it.
    pub worker: usize,
    /// How it is connected.
    pub connection: Connection,
    /// Virtio features negotiated; 0 while not connected.
    pub features: u64,
    /// Queue pairs in use.
    pub queue_pairs: u16,
    /// Why the contract's deadline is not promised right now, where it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_suspended: Option<String>,
    /// Why the last front end was disconnected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// Front ends turned away: one was connected already, and another one waited.
    pub refused_connections: u64,
    /// A front end waits for the one that is connected to leave.
    #[serde(default)]
    pub heir: bool,
    /// Front ends disconnected for what they did, by [`ThrownOut`](crate::stats::ThrownOut).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub thrown_out: BTreeMap<String, u64>,
    /// What its front ends' objects did to threads of the switch.
    #[serde(default)]
    pub held: HeldUp,
    /// Addresses of its contract that other vNICs may have, too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shared: Vec<SharedStatus>,
    /// Closing what the last front end shared takes long: no other is taken until it is done.
    #[serde(default)]
    pub closing: bool,
}
