//! Requests and replies.

use crate::port::talk::PairTraffic;
use crate::vhost_user::saved::{Number, SavedConnection};
use crate::worker::handover::Levels;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use tidegate_contract::{Host, Mac, Remote, Segment, SegmentKey, Uplink, Vnic};
use tidegate_cores::directions::Directions;
use tidegate_evidence::{
    Connection, FarMiss, HeldUp, PairStatus, PeerStatus, RdmaDevice, RdmaStatus, SharedStatus,
};
use tidegate_uplink::stamp::Key;

/// Version of this protocol; both ends must speak the same.
pub const PROTOCOL: u32 = 3;

/// A request of the agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// Asks for the switch's identity. The reply carries the statistics region's descriptor.
    Hello,
    /// Sets host-wide settings.
    SetHost(Host),
    /// Creates a port, or changes the contract of an existing port, live.
    SetPort {
        /// The contract.
        vnic: Box<Vnic>,
        /// The kind of the request's descriptors.
        link: LinkKind,
    },
    /// Removes a port; its frames in flight are dropped.
    RemovePort {
        /// The vNIC.
        name: String,
    },
    /// Asks for all ports with their contracts in force.
    Ports,
    /// Creates an uplink, or changes one, live.
    SetUplink {
        /// Its declaration.
        uplink: Box<Uplink>,
        /// vNICs behind its peers.
        remotes: Vec<Remote>,
        /// The keys of stamps, by segment.
        #[serde(default)]
        keys: Vec<SegmentKey>,
        /// How many of the request's descriptors are sockets that receive; the others send. 0 without
        /// descriptors: the uplink keeps its sockets.
        receive: usize,
        /// How many of those that send are for one pair of vNICs each: the last ones.
        #[serde(default)]
        pairs: usize,
        /// Source ports of these, in order: for [`UplinkStatus::pairs`].
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        ports: Vec<u16>,
        /// Whether the last descriptor is the socket of notices.
        #[serde(default)]
        notices: bool,
        /// Which pairs have which of these ports.
        #[serde(default, skip_serializing_if = "PortOrders::is_default")]
        orders: PortOrders,
    },
    /// Directs CPUs of workers and workers of vNICs, in place of earlier directions. For a switch that is
    /// [`directable`](Hello::directable), as is the next.
    Direct(Directions),
    /// Asks for the directions in force, their outcome, and traffic between ports.
    Work,
    /// Removes an uplink; its frames in flight are dropped.
    RemoveUplink {
        /// The uplink.
        name: String,
    },
    /// Asks for all uplinks.
    Uplinks,
    /// Makes the switch send the state that another process needs to continue, from now on, as
    /// [notes](super::notes) into the request's descriptor, a `SOCK_SEQPACKET` socket.
    #[serde(rename = "keep")]
    Subscribe,
    /// Ends traffic, with nothing in flight, and asks for the final state. The next request of this
    /// connection is [`Release`](Self::Release); anything else, or its end, makes the switch go on.
    Retire,
    /// Ends the switch: its successor goes on.
    Release,
    /// Makes new ports continue the counters in the request's descriptor, the statistics region of a switch
    /// that has ended.
    Inherit,
    /// Sends a copy of a vNIC's frames, both ways, as pcapng into the request's descriptor until its other end closes.
    Capture {
        /// The vNIC.
        name: String,
        /// Bytes captured of each frame.
        snaplen: u32,
    },
}

/// What the agent knows of the source ports of pairs, of one uplink.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortOrders {
    /// Ports that pairs had, at this switch or an earlier one: a pair that is wanted again has its port again, and
    /// another pair has it last. A network with a controller may still know it as theirs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kept: Vec<PairPort>,
    /// vNIC and remote of each pair whose frames leave from its port; those of others leave from shared ports. `None`: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub granted: Option<BTreeSet<(String, String)>>,
}

impl PortOrders {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// The source port of a pair.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PairPort {
    /// The vNIC of this host.
    pub vnic: String,
    /// The other one.
    pub remote: String,
    /// Its port.
    pub port: u16,
}

/// The descriptors of [`Request::SetPort`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LinkKind {
    /// None: the port keeps its connection.
    #[serde(rename = "keep")]
    Unchanged,
    /// One listening vhost-user socket.
    Listener,
    /// One connected vhost-user socket.
    Stream,
    /// One tap descriptor per queue pair.
    Tap,
    /// A listening socket if `listener`, then those of a connection of a switch that has ended.
    Restored {
        /// The switch is the server.
        listener: bool,
        /// State of the connection.
        #[serde(rename = "kept")]
        saved: Box<SavedConnection>,
        /// The numbers of the descriptors in `saved`.
        numbers: Vec<Number>,
    },
}

/// An answer of the switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// Done.
    Done,
    /// To [`Request::Hello`].
    Hello(Hello),
    /// To [`Request::Ports`].
    Ports(Vec<PortStatus>),
    /// To [`Request::Uplinks`].
    Uplinks(Vec<UplinkStatus>),
    /// To [`Request::Work`].
    Work(Box<WorkStatus>),
    /// To [`Request::Retire`], with the control socket that listens.
    Retired(Box<Retired>),
    /// Refused; nothing has changed.
    Refused(String),
}

impl Reply {
    /// Returns the kind of answer, in a word.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Hello(_) => "hello",
            Self::Ports(_) => "ports",
            Self::Uplinks(_) => "uplinks",
            Self::Work(_) => "work",
            Self::Retired(_) => "retired",
            Self::Refused(_) => "refused",
        }
    }
}

/// The final state of a retired switch, beside the connections that it [sent](Request::Subscribe).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retired {
    /// Host-wide settings.
    pub host: Host,
    /// All ports.
    pub ports: Vec<PortStatus>,
    /// Token bucket levels by vNIC.
    pub levels: Vec<(String, Levels)>,
    /// Learned addresses: MAC, vNIC, last time seen (s, CLOCK_MONOTONIC).
    pub learned: Vec<(Mac, String, u32)>,
    /// When the switch last read from ports (ns, CLOCK_MONOTONIC).
    pub stopped: u64,
    /// Frames in flight found no receiver in time.
    pub dropped: bool,
    /// The service manager's watchdog interval (us).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub watchdog_us: Option<u64>,
}

/// The identity of a switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// [`PROTOCOL`].
    pub protocol: u32,
    /// Release.
    pub version: String,
    /// Process id.
    pub pid: u32,
    /// Start (ns since the epoch): distinguishes switch processes.
    pub started: u64,
    /// Worker threads.
    pub workers: usize,
    /// It knows [`Request::Direct`] and [`Request::Work`]; an earlier release would break off the conversation.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub directable: bool,
    /// Several workers may receive from a queue of a plain NIC: it takes several sockets of each.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shares_queues: bool,
    /// It knows [`Uplink::rdma`] and [`Vnic::transport`]; an earlier release would break off the conversation.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub knows_rdma: bool,
    /// It knows [`Vnic::zero_copy`]; an earlier release would break off the conversation.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub knows_zero_copy: bool,
    /// The RDMA devices that it was told to use, as they are now.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rdma: Vec<RdmaDevice>,
}

/// The directions in force, and their outcome.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkStatus {
    /// The last directions.
    pub directions: Directions,
    /// The directions that are not followed.
    pub not_followed: NotFollowed,
    /// The switch chooses its workers' CPUs (`--cpus auto`): otherwise it follows no direction for them.
    pub chooses_cpus: bool,
    /// The switch chooses its vNICs' workers (`--placement auto`).
    pub chooses_workers: bool,
    /// Traffic of pairs of ports, those with most: sender and receiver by [`PortStatus::index`] or
    /// [`UplinkStatus::index`], and [cost](crate::port::talk::PairTraffic) a second. None with one worker.
    pub traffic: Vec<PairTraffic>,
}

/// Directions that are not followed, with the reasons.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotFollowed {
    /// Workers that are not on the CPUs directed.
    pub workers: BTreeMap<usize, String>,
    /// vNICs that are not at the workers directed, after a try.
    pub vnics: BTreeMap<String, String>,
}

/// The state of one uplink.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UplinkStatus {
    /// Its declaration in force.
    pub uplink: Uplink,
    /// vNICs behind its peers.
    pub remotes: Vec<Remote>,
    /// Which keys it has, by segment; not the keys.
    #[serde(default)]
    pub keys: Vec<KeyPrint>,
    /// Its index in the statistics region.
    pub index: usize,
    /// The worker that owns it.
    pub worker: usize,
    /// The workers that receive its frames, each by a socket of each queue of a plain NIC, in the order of these sockets; the owner first.
    #[serde(default)]
    pub sockets: Vec<usize>,
    /// Why it has to be made anew, which the agent does; absent if it has not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broken: Option<String>,
    /// Its peers' clocks and counters.
    #[serde(default)]
    pub peers: Vec<PeerStatus>,
    /// The latest frames that its peers reported as late, oldest first; times are of CLOCK_MONOTONIC.
    #[serde(default)]
    pub far_misses: Vec<FarMiss>,
    /// Its pairs of vNICs between which frames carry stamps.
    #[serde(default)]
    pub pairs: Vec<PairStatus>,
    /// Trailers that looked like stamps and came from no such pair; their frames were delivered unchanged.
    #[serde(default)]
    pub foreign_stamps: u64,
    /// RDMA; absent if the uplink has no device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rdma: Option<Box<RdmaStatus>>,
}

/// Tells the keys of a segment from others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct KeyPrint {
    /// The segment.
    pub segment: Segment,
    /// Fingerprint of the key in use.
    pub key: u64,
    /// Fingerprint of the key that replaces it.
    #[serde(default)]
    pub next: Option<u64>,
}

impl KeyPrint {
    /// Returns the fingerprints of keys.
    pub fn of(keys: &SegmentKey) -> Self {
        let print = |key: tidegate_contract::SecretKey| Key::new(key.bytes()).fingerprint();
        Self { segment: keys.segment, key: print(keys.key), next: keys.next.map(print) }
    }
}

/// The state of one port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortStatus {
    /// The contract in force.
    pub vnic: Vnic,
    /// Its index in the statistics region.
    pub index: usize,
    /// The worker that owns it.
    pub worker: usize,
    /// State of its connection.
    pub connection: Connection,
    /// Virtio features negotiated; 0 while not connected.
    pub features: u64,
    /// Queue pairs in use.
    pub queue_pairs: u16,
    /// Why the contract's deadline is suspended, if it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_suspended: Option<String>,
    /// Why the last front end was disconnected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// Refused front ends: one was connected, and another one waited already.
    pub refused_connections: u64,
    /// A front end waits until the connected one leaves.
    #[serde(default)]
    pub heir: bool,
    /// Front ends disconnected for their behaviour, by [`ThrownOut`](crate::stats::ThrownOut).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub thrown_out: BTreeMap<String, u64>,
    /// Delays of the switch's threads by its front ends' objects.
    #[serde(default)]
    pub held: HeldUp,
    /// The contract's addresses that other vNICs may have, too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shared: Vec<SharedStatus>,
    /// The last front end's memory and descriptors are still being closed; until then, no other is accepted.
    #[serde(default)]
    pub closing: bool,
}
