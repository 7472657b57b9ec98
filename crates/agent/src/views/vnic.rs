//! One vNIC.

use super::host::{Promise, RefusedBy};
use super::window::WindowView;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use tidegate_contract::{Mac, Rate, Vnic};
use tidegate_evidence::{
    Connection, Figure, HeldUp, NetworkPath, RdmaCounts, SharedStatus, Unknown, VnicStats, ZeroCopyStatus,
};
use utoipa::ToSchema;

/// Whether a contract is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub enum State {
    /// Its place says so.
    #[serde(rename = "in force")]
    InForce,
    /// Its place cannot be reached, or has not got to it.
    #[serde(rename = "pending")]
    Pending,
    /// It was tried and did not work; the agent tries again.
    #[serde(rename = "failed")]
    Failed,
    /// There is none: the file that names the vNIC is refused, and nothing else does.
    #[serde(rename = "refused")]
    Refused,
}

/// One vNIC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VnicView {
    /// Its name.
    pub name: String,
    /// The contract; of one that is refused what its file says, absent where that cannot be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub contract: Option<Vnic>,
    /// `file:PATH`, `api`, or a program such as `libvirt:web1`.
    pub owner: String,
    /// The place that keeps it.
    pub place: String,
    /// Whether it is kept.
    pub state: State,
    /// Why it is not, or what else a person should know.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The refused file that names it, or owns it, where there is one: all else is as it was before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<RefusedBy>,
    /// Why its deadline is not promised right now; absent where it is, and where it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_suspended: Option<String>,
    /// How it is connected; absent where that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub connection: Option<Connection>,
    /// Why the last front end was disconnected, where one was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// The worker of the switch that carries its traffic; absent at other places.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<usize>,
    /// The addresses that it shares with other vNICs of its segment, who has each, how often it went from one to another
    /// (`moves`), and how often it did not because that was too often (`refused`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<Object>)]
    pub shared: Vec<SharedStatus>,
    /// Front ends turned away because one was connected already, and another one waited.
    #[serde(default)]
    pub refused_connections: u64,
    /// A front end waits for the one that is connected to leave.
    #[serde(default)]
    pub heir: bool,
    /// Front ends disconnected for what they did, by reason; those that happened.
    #[serde(default)]
    pub thrown_out: BTreeMap<String, u64>,
    /// How often its front ends' objects held a thread of the switch up, its quarantines for that, and the one that
    /// lasts.
    #[serde(default)]
    #[schema(value_type = Object)]
    pub held: HeldUp,
    /// The window that `stats` are of; absent where they are since the port was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<WindowView>,
    /// What was counted; absent where nothing is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub stats: Option<VnicStats>,
    /// What held the worker up when frames missed their deadlines for it: how often, by kind, since the agent was started.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub culprits: BTreeMap<String, u64>,
    /// Parts of `stats` that its place does not count, each with the reason: their values mean nothing.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(value_type = BTreeMap<String, String>)]
    pub unknown: Unknown,
    /// Each figure with where it was read; also those that are not counted.
    #[serde(default)]
    pub figures: Vec<Figure>,
    /// What the VM sent over the last second, bit/s on the wire; absent where that is not counted, or not yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tx_rate_bps: Option<u64>,
    /// What the VM received over the last second, bit/s on the wire; absent as above.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rx_rate_bps: Option<u64>,
    /// The limits in effect.
    pub limits: Limits,
    /// The limit that the guest itself has set on what the VM sends, such as `400mbit`; absent where it has set none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub soft: Option<Rate>,
    /// The limit on what the VM sends that its place keeps right now; absent where there is none, or no vNIC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub tx_in_force: Option<Rate>,
    /// For a real-time vNIC: what is promised at each egress.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub promises: Vec<Promise>,
    /// For a real-time vNIC whose network has a controller: its paths there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<NetworkPath>,
    /// With `transport = "rdma"`: its queue pair, and which way its frames go.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rdma: Option<VnicRdma>,
}

/// RDMA of one vNIC.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VnicRdma {
    /// Its queue pairs, by uplink.
    pub pairs: Vec<VnicQueuePair>,
    /// The vNICs of other hosts in its segment that are declared or have a queue pair.
    pub ways: Vec<RdmaWay>,
    /// The switch tells so many members of an uplink, and has more: vNICs that are not among them are missing in `ways`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cut: bool,
}

/// A vNIC's queue pair at one uplink.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VnicQueuePair {
    /// The uplink.
    pub uplink: String,
    /// The device.
    pub device: String,
    /// Its number; absent while there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<u32>,
    /// Why there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Queue pairs that failed, and were replaced.
    pub failures: u64,
    /// With `zero-copy = true`, while there is a queue pair: whether it is in force, or why frames are copied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zero_copy: Option<ZeroCopyStatus>,
    /// With `zero-copy = true`: counters of the uplink's RDMA, of all its vNICs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counts: Option<RdmaCounts>,
}

/// The way of frames to one vNIC of another host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RdmaWay {
    /// Its name, if a contract declares it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote: Option<String>,
    /// Its MAC.
    #[schema(value_type = String)]
    pub mac: Mac,
    /// Its host.
    pub peer: String,
    /// Why frames go as VXLAN; absent if they go by RDMA.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vxlan_because: Option<String>,
    /// Longest packet (bytes of IP) that goes by RDMA, where it is less than the vNIC's `mtu`: longer ones go as VXLAN.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub longest: Option<u16>,
}

/// The limits in effect; absent means unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Limits {
    /// What the VM may send, bit/s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tx_bps: Option<u64>,
    /// Its token bucket, bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tx_burst_bytes: Option<u64>,
    /// What the VM is promised to be able to send, bit/s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tx_min_bps: Option<u64>,
    /// What the VM may receive, bit/s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rx_bps: Option<u64>,
}

/// Body of a change of single keys.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetBody {
    /// Keys as in the file, such as `tx.max`, with their values; `none` removes a key.
    pub set: BTreeMap<String, String>,
}

/// Query of `capture`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub struct CaptureQuery {
    /// Bytes kept of each frame: 64 to 65535, 65535 unless said otherwise.
    #[serde(default)]
    pub snaplen: Option<u32>,
}

impl VnicView {
    /// Makes the view of a vNIC that only a refused file names.
    pub fn refused(name: String, by: RefusedBy, contract: Option<Vnic>, place: String) -> Self {
        let of_it = contract.as_ref();
        Self {
            name,
            owner: format!("file:{}", by.file),
            place,
            state: State::Refused,
            reason: Some(by.to_string()),
            refused: Some(by),
            deadline_suspended: of_it.and_then(|c| c.deadline).map(|_| "its contract is refused".into()),
            connection: None,
            last_error: None,
            worker: None,
            shared: vec![],
            refused_connections: 0,
            heir: false,
            thrown_out: BTreeMap::new(),
            held: Default::default(),
            window: None,
            stats: None,
            culprits: BTreeMap::new(),
            unknown: BTreeMap::new(),
            figures: vec![],
            tx_rate_bps: None,
            rx_rate_bps: None,
            limits: Limits::default(),
            soft: None,
            tx_in_force: None,
            promises: vec![],
            paths: vec![],
            rdma: None,
            contract,
        }
    }
}

impl Limits {
    /// Returns the limits of a contract.
    pub fn of(vnic: &Vnic) -> Self {
        Self {
            tx_bps: vnic.tx.max.map(|r| r.bits()),
            tx_burst_bytes: vnic.tx.max.map(|r| vnic.tx.burst_or_default(r).get()),
            tx_min_bps: vnic.tx.min.map(|r| r.bits()),
            rx_bps: vnic.rx.max.map(|r| r.bits()),
        }
    }
}
