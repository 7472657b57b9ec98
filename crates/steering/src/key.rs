//! Flows of frames as the program sees them, and which of their fields an entry compares. Pure.

use std::net::IpAddr;
use tidegate_contract::Flow;
use tidegate_contract::cores::Tunnel;

/// Length of `union key` of `flow.h`, bytes.
pub(crate) const LENGTH: usize = 56;
/// Where `union key` has the number of the mask, and how long that is.
const MASK: std::ops::Range<usize> = 36..40;

/// A flow, or the fields that are compared (`struct flow` of `flow.h`). Absent fields are 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fields {
    /// Source address; IPv4 has the first four bytes.
    pub from: [u8; 16],
    pub to: [u8; 16],
    pub id: u32,
    pub vlan: u16,
    pub from_port: u16,
    pub to_port: u16,
    pub mac: [u8; 6],
    pub tunnel: u8,
    pub protocol: u8,
    /// 4 or 6.
    pub family: u8,
    /// 1 if the outer addresses of VXLAN are those of a peer.
    pub peer: u8,
}

impl Fields {
    /// Returns the key of a map: this flow, compared with this mask (0: exactly).
    pub fn key(&self, mask: u32) -> [u8; LENGTH] {
        let mut key = [0; LENGTH];
        key[..16].copy_from_slice(&self.from);
        key[16..32].copy_from_slice(&self.to);
        key[32..36].copy_from_slice(&self.id.to_ne_bytes());
        key[MASK].copy_from_slice(&mask.to_ne_bytes());
        for (at, number) in (40..).step_by(2).zip([self.vlan, self.from_port, self.to_port]) {
            key[at..at + 2].copy_from_slice(&number.to_ne_bytes());
        }
        key[46..52].copy_from_slice(&self.mac);
        key[52..].copy_from_slice(&[self.tunnel, self.protocol, self.family, self.peer]);
        key
    }

    /// Returns the fields that a mask compares.
    pub fn masked(&self, mask: &Self) -> Self {
        fn both<const N: usize>(value: [u8; N], mask: [u8; N]) -> [u8; N] {
            std::array::from_fn(|at| value[at] & mask[at])
        }
        Self {
            from: both(self.from, mask.from),
            to: both(self.to, mask.to),
            id: self.id & mask.id,
            vlan: self.vlan & mask.vlan,
            from_port: self.from_port & mask.from_port,
            to_port: self.to_port & mask.to_port,
            mac: both(self.mac, mask.mac),
            tunnel: self.tunnel & mask.tunnel,
            protocol: self.protocol & mask.protocol,
            family: self.family & mask.family,
            peer: self.peer & mask.peer,
        }
    }
}

/// Returns the number of the mask in a key of a map.
pub(crate) fn mask_of(key: &[u8; LENGTH]) -> u32 {
    u32::from_ne_bytes([key[36], key[37], key[38], key[39]])
}

/// Which frames an entry is for: a flow, and which of its fields are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pattern {
    pub(crate) flow: Fields,
    /// All ones where a field is compared.
    pub(crate) mask: Fields,
}

impl From<&Flow> for Pattern {
    fn from(contract: &Flow) -> Self {
        let (mut flow, mut mask) = (Fields::default(), Fields::default());
        (flow.tunnel, mask.tunnel) = (number(contract.tunnel), u8::MAX);
        if let Some(id) = contract.id {
            (flow.id, mask.id) = (id, u32::MAX);
        }
        if let Some(vlan) = contract.vlan {
            (flow.vlan, mask.vlan) = (vlan, u16::MAX);
        }
        if let Some(mac) = contract.mac {
            (flow.mac, mask.mac) = (mac.0, [u8::MAX; 6]);
        }
        if let Some(from) = contract.from {
            (flow.from, mask.from) = (address(from), [u8::MAX; 16]);
        }
        if let Some(to) = contract.to {
            (flow.to, mask.to) = (address(to), [u8::MAX; 16]);
        }
        if let Some(address) = contract.from.or(contract.to) {
            (flow.family, mask.family) = (if address.is_ipv4() { 4 } else { 6 }, u8::MAX);
        }
        if let Some(protocol) = contract.protocol {
            (flow.protocol, mask.protocol) = (protocol, u8::MAX);
        }
        if let Some(port) = contract.from_port {
            (flow.from_port, mask.from_port) = (port, u16::MAX);
        }
        if let Some(port) = contract.to_port {
            (flow.to_port, mask.to_port) = (port, u16::MAX);
        }
        Self { flow, mask }
    }
}

/// All fields: an exact entry.
pub(crate) const EXACT: Fields = Fields {
    from: [u8::MAX; 16],
    to: [u8::MAX; 16],
    id: u32::MAX,
    vlan: u16::MAX,
    from_port: u16::MAX,
    to_port: u16::MAX,
    mac: [u8::MAX; 6],
    tunnel: u8::MAX,
    protocol: u8::MAX,
    family: u8::MAX,
    // Of all senders.
    peer: 0,
};

impl Pattern {
    /// Returns it for frames of VXLAN whose outer addresses are among [`crate::Table::with_peers`].
    #[must_use]
    pub fn of_peers(mut self) -> Self {
        (self.flow.peer, self.mask.peer) = (1, u8::MAX);
        self
    }

    /// Whether each frame without a tunnel matches: no field is compared.
    pub(crate) fn is_everything(&self) -> bool {
        let tunnel = Fields { tunnel: u8::MAX, ..Fields::default() };
        self.mask == tunnel && self.flow.tunnel == number(Tunnel::None)
    }

    /// Returns the names of the compared fields, as contracts have them.
    pub(crate) fn compared(&self) -> String {
        let mask = &self.mask;
        let fields = [
            ("id", mask.id != 0),
            ("vlan", mask.vlan != 0),
            ("mac", mask.mac != [0; 6]),
            ("from", mask.from != [0; 16]),
            ("to", mask.to != [0; 16]),
            ("protocol", mask.protocol != 0),
            ("from_port", mask.from_port != 0),
            ("to_port", mask.to_port != 0),
            ("peer", mask.peer != 0),
        ];
        let names: Vec<&str> = std::iter::once("tunnel")
            .chain(fields.iter().filter(|(_, is)| *is).map(|(name, _)| *name))
            .collect();
        names.join(" + ")
    }
}

/// `enum tunnel` of `flow.h`.
pub(crate) fn number(tunnel: Tunnel) -> u8 {
    match tunnel {
        Tunnel::None => 0,
        Tunnel::Vxlan => 1,
        Tunnel::Geneve => 2,
        Tunnel::Gre => 3,
        Tunnel::Esp => 4,
    }
}

/// An address as `struct flow` has it.
pub(crate) fn address(address: IpAddr) -> [u8; 16] {
    let mut bytes = [0; 16];
    match address {
        IpAddr::V4(v4) => bytes[..4].copy_from_slice(&v4.octets()),
        IpAddr::V6(v6) => bytes = v6.octets(),
    }
    bytes
}
