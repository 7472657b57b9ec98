//! A vNIC of another host: the `[remote.NAME]` table.

use crate::{Bytes, Mac, Nanos, Rate, Segment};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// A vNIC of another host: vNICs of this host may promise towards it, and it may send to them with a deadline.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Remote {
    /// Name, as a vNIC's; unique among vNICs, uplinks and remotes.
    pub name: String,
    /// Its own MAC; unique in its segment.
    pub mac: Mac,
    /// Tenant network.
    pub segment: Segment,
    /// The peer where it is.
    pub peer: String,
    /// Its IP addresses, at most 16: the switch answers ARP and neighbour discovery for them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<IpAddr>,
    /// What it sends with a deadline.
    #[serde(default)]
    pub tx: Envelope,
    /// Bound of Tr - Ts of what it sends to `to`: 10 us to 10 s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Nanos>,
    /// vNICs of this host where its deadline holds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub to: Vec<String>,
}

/// A token bucket that frames conform to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Envelope {
    /// Rate.
    pub max: Option<Rate>,
    /// Bucket depth.
    pub burst: Option<Bytes>,
}
