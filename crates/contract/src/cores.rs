//! CPUs for the work of frames: the `[host.cores]` table, and flows for CPUs: `[host.flow.NAME]`.

use crate::Mac;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
pub use tidegate_cores::cpus;
use tidegate_cores::cpus::Cpus;

/// The `[host.cores]` table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Cores {
    /// Whether the plan is kept.
    pub placement: Placement,
    /// CPUs that the plan may use; all but those of other programs if absent.
    pub cpus: Option<Cpus>,
    /// CPUs for all other work of the host; the plan chooses if absent.
    pub housekeeping: Option<Cpus>,
    /// Whether the plan may move work that another program or setting pinned.
    pub adopt: bool,
    /// NICs whose received frames are steered to CPUs by flow.
    pub steer: Vec<String>,
}

/// Whether the plan of CPUs is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// No; while a deadline is in force at the host switch, its workers' CPUs alone are kept free of other work.
    #[default]
    Off,
    /// Yes.
    Plan,
}

/// Frames of one flow that go to one CPU: the `[host.flow.NAME]` table. Absent fields match all frames.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Flow {
    /// The NIC that receives the frames: one of [`Cores::steer`].
    pub device: String,
    /// Their outer headers. The fields below are those of the inner frame if there is one.
    pub tunnel: Tunnel,
    /// The tunnel's number: VNI of VXLAN and Geneve, key of GRE, SPI of ESP.
    pub id: Option<u32>,
    /// VLAN of the outer frame, 1 to 4094.
    pub vlan: Option<u16>,
    /// Destination MAC of the inner frame, or of the frame if there is no tunnel.
    pub mac: Option<Mac>,
    /// Source address.
    pub from: Option<IpAddr>,
    /// Destination address, of the same family.
    pub to: Option<IpAddr>,
    /// IP protocol, such as 6 (TCP) or 17 (UDP).
    pub protocol: Option<u8>,
    /// Source port.
    pub from_port: Option<u16>,
    /// Destination port.
    pub to_port: Option<u16>,
    /// The CPU; the plan chooses if absent.
    pub cpu: Option<usize>,
}

/// Outer headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tunnel {
    /// None.
    #[default]
    None,
    /// VXLAN (RFC 7348).
    Vxlan,
    /// Geneve (RFC 8926).
    Geneve,
    /// GRE (RFC 2784, 2890), with Ethernet or IP inside.
    Gre,
    /// ESP (RFC 4303), which hides all but its SPI.
    Esp,
}

/// The words of [`Placement`].
pub(crate) const PLACEMENTS: [(&str, Placement); 2] = [("off", Placement::Off), ("plan", Placement::Plan)];

/// The words of [`Tunnel`].
pub(crate) const TUNNELS: [(&str, Tunnel); 5] = [
    ("none", Tunnel::None),
    ("vxlan", Tunnel::Vxlan),
    ("geneve", Tunnel::Geneve),
    ("gre", Tunnel::Gre),
    ("esp", Tunnel::Esp),
];

/// IP protocols with names (IANA, Assigned Internet Protocol Numbers).
pub(crate) const PROTOCOLS: [(&str, u8); 3] = [("tcp", 6), ("udp", 17), ("sctp", 132)];

/// Those with ports in the first four bytes.
pub(crate) const PORT_PROTOCOLS: [u8; 3] = [6, 17, 132];

impl Flow {
    /// Returns the flow of all frames of a device with these outer headers.
    pub fn new(device: impl Into<String>, tunnel: Tunnel) -> Self {
        Self {
            device: device.into(),
            tunnel,
            id: None,
            vlan: None,
            mac: None,
            from: None,
            to: None,
            protocol: None,
            from_port: None,
            to_port: None,
            cpu: None,
        }
    }

    /// Count of the fields that [`Flow::fields`] knows.
    pub const FIELDS: usize = 8;

    /// Returns the keys of the fields that the flow states, beside its device and kind of tunnel.
    pub fn fields(&self) -> Vec<&'static str> {
        let stated: [_; Self::FIELDS] = [
            ("id", self.id.is_some()),
            ("vlan", self.vlan.is_some()),
            ("mac", self.mac.is_some()),
            ("from", self.from.is_some()),
            ("to", self.to.is_some()),
            ("protocol", self.protocol.is_some()),
            ("from-port", self.from_port.is_some()),
            ("to-port", self.to_port.is_some()),
        ];
        stated.into_iter().filter(|(_, stated)| *stated).map(|(key, _)| key).collect()
    }
}
