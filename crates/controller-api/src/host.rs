//! What a host announces, and what it is to know.

use crate::Path;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// All that a host announces. Each registration replaces the one before, and holds for one lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registration {
    /// Of the agent's process: totals of misses begin anew with another one. 1 to 64 characters.
    pub run: String,
    /// Uplinks that carry paths, or reach peers of the controller; at most 16.
    pub uplinks: Vec<Uplink>,
    /// vNICs that other hosts may reach; at most 4,096.
    pub vnics: Vec<Announced>,
    /// What this host's admission says about remotes that the controller named; at most 4,096.
    pub arrivals: Vec<Arrival>,
    /// Version of the [`View`] that `arrivals` were made from; 0: of none.
    #[serde(default)]
    pub view: u64,
}

/// An uplink of a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Uplink {
    /// Its name in the agent's configuration.
    pub name: String,
    /// Address of its outer frames; `None` of a plain NIC, whose frames have none.
    pub address: Option<IpAddr>,
    /// UDP port where it receives VXLAN; `None` of a plain NIC.
    pub port: Option<u16>,
    /// What this host needs of a deadline after a frame's arrival, ns.
    pub arrival_budget: u64,
    /// Of a plain NIC: the segments that it carries, each the VLAN id of its frames; at most 1,024.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub vlans: Vec<u16>,
}

/// A vNIC, and what it sends with a deadline.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Announced {
    /// Unique in the network.
    pub name: String,
    /// Its MAC, in lower case.
    pub mac: String,
    /// Segment, a VNI (RFC 7348).
    pub segment: u32,
    /// IP addresses that it has; at most 16.
    pub addresses: Vec<IpAddr>,
    /// `tx.max`, bit/s.
    pub rate: Option<u64>,
    /// `tx.burst`, bytes.
    pub burst: Option<u64>,
    /// Td, ns.
    pub deadline: Option<u64>,
    /// vNICs of other hosts to which its deadline holds; at most 64.
    pub to: Vec<String>,
}

/// Whether frames of a remote are admitted at the egress of the vNICs to which it promises.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Arrival {
    /// The sending vNIC.
    pub remote: String,
    /// Why not; `None`: admitted.
    pub refused: Option<String>,
}

/// What a host is to know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct View {
    /// Another number: something has changed.
    pub version: u64,
    /// Of the controller that leads; a greater one is newer.
    pub term: u64,
    /// The registration ends so long after this answer, ns.
    pub lease: u64,
    /// Hosts with a common segment.
    pub peers: Vec<Peer>,
    /// vNICs of other hosts in segments of this one.
    pub remotes: Vec<Remote>,
    /// Paths from this host.
    pub paths: Vec<Path>,
    /// Announcements that do not count.
    pub refused: Vec<RefusedItem>,
}

/// Another host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    /// Its name.
    pub host: String,
    /// Address of its outer frames.
    pub address: IpAddr,
    /// Its UDP port for VXLAN.
    pub port: u16,
    /// Segments of both hosts.
    pub segments: Vec<u32>,
    /// What it needs of a deadline after arrival, ns.
    pub arrival_budget: u64,
}

/// A vNIC of another host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remote {
    /// The vNIC.
    pub vnic: Announced,
    /// The host where it is.
    pub host: String,
    /// It is behind a plain NIC, as this host is: frames for it have its segment as VLAN, and nothing judges their arrival.
    #[serde(default)]
    pub plain: bool,
}

/// An announcement that does not count.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedItem {
    /// Such as `vnic a1`.
    pub item: String,
    /// What was found, and what was expected.
    pub reason: String,
}

/// Late frames, by totals: a report that is lost, or comes twice, changes nothing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Misses {
    /// As registered.
    pub run: String,
    /// Paths of which frames were late here, or did not arrive; at most 4,096.
    pub paths: Vec<PathMisses>,
}

/// Late frames of one path.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PathMisses {
    /// The path, `VNIC>REMOTE`.
    pub name: String,
    /// Since the agent began.
    pub total: u64,
    /// The longest time beyond the deadline since the agent began, or the host switch if that began before, ns.
    pub worst: u64,
    /// When the last one arrived, Unix time, s.
    pub last: f64,
}

/// A certificate is wanted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Enrolment {
    /// PKCS #10, PEM (RFC 2986); its key stays at the host.
    pub request: String,
}

/// A certificate of the host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Enrolled {
    /// PEM.
    pub certificate: String,
    /// Certificates that sign, PEM.
    pub authority: String,
    /// Unix time, s.
    pub expires: f64,
}

/// Keys of the segments that a host may have.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentKeys {
    /// In order.
    pub segments: Vec<SegmentKey>,
    /// Ask again after this time, ns.
    pub refresh: u64,
}

/// Keys of a segment, for stamps. No `Debug`: a log must not have them.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentKey {
    /// Segment, a VNI.
    pub segment: u32,
    /// 32 hexadecimal digits.
    pub key: String,
    /// Accepted, too: the key to come, or the one before.
    pub next: Option<String>,
}
