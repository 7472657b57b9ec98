//! Paths through the network that real-time frames take, as its controller granted them.

use serde::{Deserialize, Serialize};

/// One real-time pair that needs a path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct NetworkPath {
    /// The path, `VNIC>REMOTE`.
    pub name: String,
    /// The vNIC of this host.
    pub vnic: String,
    /// The other one.
    pub remote: String,
    /// How it is: `asked`, `waiting`, `refused`, `unreachable`, or as the controller says, such as `active`.
    pub state: String,
    /// Whether the deadline holds over the network.
    pub promised: bool,
    /// Why it does not, or what the controller says of it.
    pub reasons: Vec<String>,
    /// What the network may take (ns).
    pub budget_ns: u64,
    /// The longest time in the network (ns); absent if there is no path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bound_ns: Option<u64>,
    /// Priority level, 0 is the most urgent; absent as above.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub level: Option<u8>,
    /// Its links, in order.
    pub links: Vec<String>,
    /// Its outer UDP source port; absent if it has none yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// Late frames that hosts reported to the controller.
    pub misses: u64,
    /// Whether its promise ends at the far host's NIC, a plain one: nothing there judges the arrival.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ends_at_nic: bool,
}
