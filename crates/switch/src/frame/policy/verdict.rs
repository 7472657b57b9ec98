//! The verdict on a frame from a vNIC.

use std::net::Ipv6Addr;

/// Options of neighbour discovery: source and target link-layer address (RFC 4861, 4.6.1).
pub(super) const LINK_LAYER_ADDRESSES: [u8; 2] = [1, 2];

/// The outcome of [`Policy::check`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The frame may be sent.
    Pass,
    /// The frame must not be sent.
    Drop(Reason),
    /// The vNIC must first hold this link-local address; then check the frame once more.
    Claim(Ipv6Addr),
    /// The vNIC must first take these shared addresses; then check the frame once more.
    Take(Taking),
}

/// The reason why a frame must not be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Reason {
    /// The source is neither the vNIC's MAC nor in `allowed.macs`, or is a group address.
    #[error("source MAC is not the vNIC's own and not in allowed.macs")]
    SourceMac,
    /// A destination that bridges do not forward (IEEE 802.1Q, table 8-1).
    #[error("the frame is for the link itself, and the contract lacks allowed.control")]
    Control,
    /// A VID not in `allowed.vlans`, a service tag or a second tag.
    #[error("VLAN tag is not in allowed.vlans, or a second tag follows it")]
    Vlan,
    /// IP source outside `allowed.prefixes`.
    #[error("source address is not in allowed.prefixes")]
    SourcePrefix,
    /// ARP or neighbour discovery that claims another vNIC's MAC for its address.
    #[error("ARP or neighbour discovery names a MAC that is not the vNIC's own and not in allowed.macs")]
    NeighbourMac,
    /// ARP that claims an address outside `allowed.prefixes`.
    #[error("the vNIC may not use the ARP sender address")]
    ArpSpoof,
    /// Neighbour advertisement for an address outside `allowed.prefixes`.
    #[error("IPv6 neighbour advertisement for an address not in allowed.prefixes")]
    NeighbourSpoof,
    /// A link-local address of another vNIC, or above the limit.
    #[error("the link-local address belongs to another vNIC, or is the fifth of this vNIC")]
    LinkLocal,
    /// A shared address of another vNIC, in a frame that does not announce it.
    #[error("another vNIC has the shared address now")]
    Shared,
    /// Router advertisement or redirect.
    #[error("the frame is a router advertisement or redirect, and the contract lacks allowed.router")]
    Router,
    /// From a DHCP server or relay.
    #[error("the frame is from a DHCP server or relay, and the contract lacks allowed.dhcp-server")]
    DhcpServer,
    /// LLC/SNAP, whose addresses are not checked.
    #[error("LLC/SNAP encapsulation hides the addresses that the switch has to check")]
    Encapsulation,
    /// Extension headers or fragments that hide the purpose of a datagram.
    #[error("IPv6 extension headers or fragments hide the headers that the switch has to check")]
    Hidden,
}

/// Addresses to take before the frame is sent: a bit for each address of a contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taking {
    pub(super) own: u64,
    /// Addresses that the frame announces: they may be taken from another vNIC.
    pub(super) announced: u64,
}

impl Taking {
    /// Iterates over the addresses: number in the contract's list, and whether it may be taken from another vNIC.
    pub fn iter(self) -> impl Iterator<Item = (usize, bool)> {
        let next = |bits: &u64| Some(bits & (bits - 1)).filter(|rest| *rest != 0);
        let each = std::iter::successors(Some(self.own).filter(|own| *own != 0), next);
        each.map(move |bits| {
            let bit = bits.trailing_zeros() as usize;
            (bit, self.announced >> bit & 1 == 1)
        })
    }
}
