//! Requests and replies.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use tidegate_contract::{Host, Vnic};

/// Version of this protocol; both ends must speak the same.
pub const PROTOCOL: u32 = 1;

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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
    /// Refused; nothing was changed.
    Refused(String),
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

/// How a port is connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Connection {
    /// Nobody has connected (vhost-user server).
    Waiting,
    /// The stream ended; the agent should dial again (vhost-user client).
    Disconnected,
    /// A front end is connected and has not enabled its queues.
    Connected,
    /// Frames can flow.
    Up,
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
    /// Front ends refused because one was connected already.
    pub refused_connections: u64,
    /// Front ends disconnected for what they did, by [`ThrownOut`](crate::stats::ThrownOut).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub thrown_out: BTreeMap<String, u64>,
}
