//! Real-time paths.

use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// What switches see of a flow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Key {
    /// Of VXLAN.
    Udp(UdpKey),
    /// Of frames of a plain NIC.
    Ethernet(EthernetKey),
}

/// Outer addresses and ports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UdpKey {
    /// Address of the sending uplink.
    pub source: IpAddr,
    /// Address of the receiving uplink.
    pub target: IpAddr,
    /// Outer UDP source port, of this flow alone.
    pub source_port: u16,
    /// VXLAN's port (RFC 7348, section 5).
    pub target_port: u16,
}

/// Tag and addresses of frames without outer headers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EthernetKey {
    /// VLAN id of the frames at both hosts, 1 to 4,094: their segment.
    pub vlan: u16,
    /// Priority in their tag (PCP, IEEE 802.1Q), 1 to 7: the host gives it to frames of the path alone.
    pub priority: u8,
    /// MAC of the sending vNIC, in lower case.
    pub source_mac: String,
    /// MAC of the receiving vNIC.
    pub target_mac: String,
}

impl Key {
    /// Returns the key of VXLAN; `None` of a plain NIC.
    pub fn udp(&self) -> Option<&UdpKey> {
        match self {
            Self::Udp(key) => Some(key),
            Self::Ethernet(_) => None,
        }
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Udp(key) => {
                write!(
                    f,
                    "UDP, {} port {} to {} port {}",
                    key.source, key.source_port, key.target, key.target_port
                )
            }
            Self::Ethernet(key) => {
                write!(
                    f,
                    "VLAN {} priority {}, {} to {}",
                    key.vlan, key.priority, key.source_mac, key.target_mac
                )
            }
        }
    }
}

/// A path that is wanted. Sizes and rates are those on the host's wire.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathRequest {
    /// The sender.
    pub vnic: String,
    /// The receiver.
    pub remote: String,
    /// The sender's host.
    pub source: String,
    /// The receiver's host.
    pub target: String,
    /// What switches see.
    pub key: Key,
    /// The mark of its frames as the host sends them, 0 to 63 (RFC 2474); 0 with an Ethernet key.
    pub dscp: u8,
    /// bit/s.
    pub rate: u64,
    /// As it leaves the host, bytes.
    pub burst: u64,
    /// Bytes.
    pub smallest_frame: u64,
    /// Bytes.
    pub largest_frame: u64,
    /// What the network may take of the deadline, ns.
    pub budget: u64,
}

impl PathRequest {
    /// Returns the path's name, `VNIC>REMOTE`: it stays the same when either one moves to another host.
    pub fn name(&self) -> String {
        format!("{}>{}", self.vnic, self.remote)
    }
}

/// How a path is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PathState {
    /// Switches do not have it yet.
    Installing,
    /// Frames take it.
    Active,
    /// Frames take it, and soon another way.
    Moving,
    /// No way fits: its frames are best effort.
    Broken,
    /// Frames take it and are late, and nothing helps.
    Violated,
}

/// An admitted path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Path {
    /// `VNIC>REMOTE`.
    pub name: String,
    /// What was asked for.
    pub request: PathRequest,
    /// How it is.
    pub state: PathState,
    /// Priority level, 0 is the most urgent.
    pub level: u8,
    /// In order, the host's own first.
    pub links: Vec<String>,
    /// 1, and one more for each change.
    pub generation: u64,
    /// VLAN id between the edges, 1 to 4,094.
    pub tag: u16,
    /// Longest time in the network, ns.
    pub bound: u64,
    /// Burst at the receiving host, bytes.
    pub far_burst: u64,
    /// Late frames that hosts have reported.
    pub misses: u64,
    /// Why it is in this state.
    pub reasons: Vec<String>,
    /// An operator asked for it: it does not end with its host's lease, and hosts leave it alone.
    pub lasting: bool,
}

/// All paths.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Paths {
    /// In order of their names.
    pub paths: Vec<Path>,
}
