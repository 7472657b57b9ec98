//! One uplink.

use super::vnic::State;
use serde::{Deserialize, Serialize};
use tidegate_contract::Uplink;
use tidegate_evidence::{OnWire, PairStatus, RdmaStatus, SocketCounts, Traffic};
use utoipa::ToSchema;

/// One uplink.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UplinkView {
    /// Its name.
    pub name: String,
    /// `file:PATH`, `api`, or a program.
    pub owner: String,
    /// The place that keeps it; empty where none has it yet.
    pub place: String,
    /// Whether it is in force; one that is broken is failed.
    pub state: State,
    /// Why it is not, or what else a person should know.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The declaration.
    #[schema(value_type = Object)]
    pub contract: Uplink,
    /// vNICs of other hosts behind its peers.
    #[serde(default)]
    pub remotes: Vec<String>,
    /// The worker of the switch that carries its traffic; absent where it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<usize>,
    /// What was counted since it was made; absent where nothing is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stats: Option<UplinkStats>,
    /// Pairs of a vNIC here and a remote whose frames have a deadline: how they left, and how they arrived.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pairs: Vec<PairStatus>,
    /// RDMA of its vNICs; absent without a device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rdma: Option<RdmaStatus>,
    /// Of kind `xdp`: the frames of the NIC's queues to the workers that receive from them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sockets: Vec<SocketCounts>,
    /// What went to other hosts over the last second, bit/s without outer headers; absent where it is not counted yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sent_rate_bps: Option<u64>,
    /// What came from other hosts over the last second, as above.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub received_rate_bps: Option<u64>,
}

#[cfg(test)]
impl UplinkView {
    /// Returns an uplink in force with this RDMA.
    pub fn with_rdma(name: &str, rdma: RdmaStatus) -> Self {
        let contract = serde_json::json!({
            "name": name, "local": "192.0.2.1", "rate": "10gbit", "rdma": "rxe0",
            "peers": [{ "name": "host2", "address": "192.0.2.2" }],
        });
        let view = serde_json::json!({
            "name": name, "owner": "api", "place": "switch", "state": State::InForce, "contract": contract, "rdma": rdma,
        });
        serde_json::from_value(view).expect("its fields")
    }
}

/// What an uplink counted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UplinkStats {
    /// vNICs' frames to other hosts, without outer headers; a flood is one frame.
    #[schema(value_type = Object)]
    pub sent: Traffic,
    /// Frames from other hosts, without outer headers.
    #[schema(value_type = Object)]
    pub received: Traffic,
    /// What that was on the wire: `frames`, their `bytes` with outer headers, and the further `copies` of floods among
    /// the frames.
    #[schema(value_type = Object)]
    pub on_wire: OnWire,
}
