//! The way to other hosts: the `[uplink.NAME]` table, its peers, and the keys of segments.
//!
//! ```text
//!  vNIC ─▶ frame ─┬▶ │ Ethernet │ IP │ UDP │ VXLAN │ frame, stamp │ ─┬▶ rate ─▶ network ─▶ peer
//!                 │       14     20/40   8     8        ≤ mtu - …    │           latency   arrival budget
//!                 └▶ │ addresses │ VLAN tag │ type, payload │ ────────┘
//!                         12         4         ≤ mtu + 2
//! ```

use crate::frame::{ETHERNET, IPV4, IPV6, STAMP, UDP, VLAN_TAG, VXLAN};
use crate::{Nanos, Rate, Segment};
use serde::{Deserialize, Serialize};
use std::{net::IpAddr, ops::Not, path::PathBuf};

/// How frames leave this host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UplinkKind {
    /// As VXLAN (RFC 7348) between two IP addresses.
    #[default]
    Vxlan,
    /// With a VLAN tag (IEEE 802.1Q) whose number is the segment, by a packet socket on a device (packet(7)).
    Packet,
    /// The same, by AF_XDP: past the kernel's network stack.
    Xdp,
}

/// A way to other hosts, and a physical egress.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Uplink {
    /// Name, as a vNIC's; unique among vNICs, uplinks and remotes.
    pub name: String,
    /// How frames leave.
    #[serde(default, skip_serializing_if = "UplinkKind::is_vxlan")]
    pub kind: UplinkKind,
    /// Outer source address: of VXLAN alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local: Option<IpAddr>,
    /// Network device; absent where the kernel routes VXLAN.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// UDP port of VXLAN: 1024 to 65535, default 4789.
    #[serde(default = "default_port")]
    pub port: u16,
    /// UDP port of notices between hosts, the same at all peers: 1024 to 65535, default 29796.
    #[serde(default = "default_notice_port")]
    pub notice_port: u16,
    /// Capacity towards the network: bits per second of outer Ethernet frames.
    pub rate: Rate,
    /// MTU of the path to the peers (bytes of an outer IP packet; of a plain NIC, the device's): 576 to 9216, IPv6
    /// 1280 to 9216, AF_XDP 576 to 3500, default 1500.
    #[serde(default = "default_mtu")]
    pub mtu: u16,
    /// Declared latency of the network: the longest time from leaving this host to arriving at a peer, 0 to 1 s.
    /// Without it no deadline is promised over this uplink.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency: Option<Nanos>,
    /// Time from the arrival of a frame at a host to its delivery there: 10 us to 1 s, default 500 us. This host's, and
    /// that of peers without their own.
    #[serde(default = "default_arrival_budget")]
    pub arrival_budget: Nanos,
    /// The other hosts, at most 64; of a plain NIC one, the network behind it.
    #[serde(default)]
    pub peers: Vec<Peer>,
    /// RDMA device by which vNICs with [`crate::Transport::Rdma`] send: of VXLAN alone. It has a RoCE v2 GID of
    /// [`Self::local`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rdma: Option<String>,
    /// Whether a controller admits paths over it: [`crate::Controller`] names it. No key of its table.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub controlled: bool,
}

/// Another host that an uplink leads to: the `[uplink.NAME.peer.NAME]` table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Peer {
    /// Name, unique among the peers of all uplinks.
    pub name: String,
    /// Outer destination address, of the family of [`Uplink::local`]: of VXLAN alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    /// Segments that reach it; all if absent. Behind a plain NIC they are listed, each a VLAN from 1 to 4094.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub segments: Option<Vec<Segment>>,
    /// Latency of the network to it, instead of the uplink's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency: Option<Nanos>,
    /// Its arrival budget, instead of the uplink's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arrival_budget: Option<Nanos>,
    /// Whether it is a Tidegate host: frames with a deadline carry a stamp.
    #[serde(default = "yes")]
    pub stamps: bool,
}

/// Where the keys of a segment's stamps are: the `[segment.ID]` table. A key is 16 bytes, written as 32 hex digits, in
/// a file of mode 0600; or the network's controller gives it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SegmentKeys {
    /// The segment.
    pub segment: Segment,
    /// File of the key in use, absolute; `None` if the controller gives it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_file: Option<PathBuf>,
    /// File of the key that replaces it, absolute; stamps of both are valid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_key_file: Option<PathBuf>,
}

/// Least port: those below are of the host's services (RFC 6335, section 6), which a user of the API must not take.
pub(crate) const FIRST_PORT: u16 = 1024;

/// UDP port of VXLAN (RFC 7348, 5).
pub(crate) const fn default_port() -> u16 {
    4789
}

/// UDP port of notices: 0x7464, the first bytes of a stamp.
pub(crate) const fn default_notice_port() -> u16 {
    29_796
}

pub(crate) const fn default_mtu() -> u16 {
    1500
}

pub(crate) const fn default_arrival_budget() -> Nanos {
    Nanos::new(500_000)
}

const fn yes() -> bool {
    true
}

impl UplinkKind {
    /// All kinds, with their names in contracts.
    pub const ALL: [(&'static str, Self); 3] =
        [("vxlan", Self::Vxlan), ("packet", Self::Packet), ("xdp", Self::Xdp)];

    /// Returns whether frames travel as VXLAN.
    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks by reference")]
    pub fn is_vxlan(&self) -> bool {
        *self == Self::Vxlan
    }

    /// Returns its name in contracts.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, kind)| *kind == self).map_or("", |(name, _)| name)
    }
}

/// What one uplink of a host can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Exclusive<'a> {
    /// A UDP port of an address.
    Port(Option<IpAddr>, u16),
    /// The VLANs of a network device.
    Device(Option<&'a str>),
}

impl Uplink {
    /// Returns whether frames leave with a VLAN tag, without outer headers.
    pub fn is_plain(&self) -> bool {
        !self.kind.is_vxlan()
    }

    /// Returns what it does not share with another uplink.
    pub fn exclusive(&self) -> Exclusive<'_> {
        if self.is_plain() {
            Exclusive::Device(self.device.as_deref())
        } else {
            Exclusive::Port(self.local, self.port)
        }
    }

    /// Returns the declared latency to `peer`.
    pub fn latency_to(&self, peer: &Peer) -> Option<Nanos> {
        peer.latency.or(self.latency)
    }

    /// Returns what the network may take of a `deadline` on the way to `peer` or from it, if the receiving host needs
    /// `arrival` of it: the declared latency, or half of what is left, which is asked from a controller. `None` if
    /// there is neither.
    pub fn network_budget(&self, peer: &Peer, deadline: Nanos, arrival: Nanos) -> Option<Nanos> {
        let asked = || Nanos::new(deadline.get().saturating_sub(arrival.get()) / 2);
        self.latency_to(peer).or_else(|| self.controlled.then(asked))
    }

    /// Returns the arrival budget of `peer`.
    pub fn arrival_budget_of(&self, peer: &Peer) -> Nanos {
        peer.arrival_budget.unwrap_or(self.arrival_budget)
    }

    /// Returns the bytes that a frame grows by on the wire, without a stamp: 50 over IPv4, 70 over IPv6, 4 with a VLAN
    /// tag.
    pub fn encapsulation(&self) -> u64 {
        if self.is_plain() { VLAN_TAG } else { ETHERNET + self.within_packet() }
    }

    /// Returns the largest frame on the wire (bytes without FCS).
    pub fn largest_frame(&self) -> u64 {
        let tag = if self.is_plain() { VLAN_TAG } else { 0 };
        ETHERNET + tag + u64::from(self.mtu)
    }

    /// Returns the largest frame of a vNIC that fits (bytes without FCS).
    pub fn largest_inner_frame(&self) -> u64 {
        self.largest_frame().saturating_sub(self.encapsulation())
    }

    /// Returns the largest `mtu` of a vNIC that fits: `tagged` if it sends VLAN tags, `stamped` if its frames carry a
    /// stamp. 0 if nothing fits.
    pub fn guest_mtu(&self, tagged: bool, stamped: bool) -> u16 {
        let left = u64::from(self.mtu).saturating_sub(self.around_guest_packet(tagged, stamped));
        u16::try_from(left).unwrap_or(u16::MAX)
    }

    /// Returns the bytes of an outer IP packet besides the guest's IP packet; of a plain NIC, of the device's MTU.
    pub(crate) fn around_guest_packet(&self, tagged: bool, stamped: bool) -> u64 {
        let tag = if tagged { VLAN_TAG } else { 0 };
        let stamp = if stamped { STAMP } else { 0 };
        if self.is_plain() { tag + stamp } else { self.within_packet() + ETHERNET + tag + stamp }
    }

    /// Returns the bytes of an outer IP packet besides the vNIC's frame.
    fn within_packet(&self) -> u64 {
        (if self.is_ipv6() { IPV6 } else { IPV4 }) + UDP + VXLAN
    }

    /// Returns whether outer headers are those of IPv6.
    pub fn is_ipv6(&self) -> bool {
        self.local.is_some_and(|local| local.is_ipv6())
    }
}

impl Peer {
    /// Returns whether frames of `segment` reach it.
    pub fn carries(&self, segment: Segment) -> bool {
        self.segments.as_ref().is_none_or(|segments| segments.contains(&segment))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn what_fits_into_the_mtu_of_the_path() {
        let mut uplink = testing::uplink("net0");
        assert_eq!(
            (uplink.encapsulation(), uplink.largest_frame(), uplink.largest_inner_frame()),
            (50, 1514, 1464)
        );
        let fits = |uplink: &Uplink| {
            [(false, false), (true, false), (false, true), (true, true)]
                .map(|(tagged, stamped)| uplink.guest_mtu(tagged, stamped))
        };
        assert_eq!(fits(&uplink), [1450, 1446, 1418, 1414]);
        uplink.local = Some("2001:db8::1".parse().expect("an address"));
        assert_eq!((uplink.encapsulation(), uplink.largest_inner_frame()), (70, 1444));
        assert_eq!(fits(&uplink), [1430, 1426, 1398, 1394]);
        uplink.mtu = 40;
        assert_eq!(fits(&uplink), [0; 4], "unchecked, and no panic");
    }

    #[test]
    fn a_tag_is_outside_of_a_devices_mtu() {
        let uplink = Uplink { kind: UplinkKind::Packet, local: None, ..testing::uplink("net0") };
        assert_eq!(
            (uplink.encapsulation(), uplink.largest_frame(), uplink.largest_inner_frame()),
            (4, 1518, 1514)
        );
        assert_eq!((uplink.guest_mtu(false, false), uplink.guest_mtu(false, true)), (1500, 1468));
    }

    #[test]
    fn defaults_need_not_be_written() {
        let text = r#"{"name":"net0","local":"192.0.2.1","rate":"10gbit","peers":[{"name":"b","address":"192.0.2.2"}]}"#;
        let uplink: Uplink = serde_json::from_str(text).expect("parses");
        assert_eq!((uplink.port, uplink.mtu, uplink.arrival_budget), (4789, 1500, Nanos::new(500_000)));
        assert_eq!(uplink.notice_port, 29_796);
        assert!(uplink.peers[0].stamps && uplink.peers[0].carries(Segment::new(7).expect("in range")));
        let written = serde_json::to_string(&uplink).expect("serialises");
        assert_eq!(serde_json::from_str::<Uplink>(&written).expect("parses"), uplink);
        assert!(serde_json::from_str::<Peer>(r#"{"name":"b","address":"192.0.2.2","stamp":true}"#).is_err());
    }
}
