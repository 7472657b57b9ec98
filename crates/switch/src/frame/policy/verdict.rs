//! What becomes of a frame that a vNIC sends.

use std::net::Ipv6Addr;

/// Options of neighbour discovery: source and target link-layer address (RFC 4861, 4.6.1).
pub(super) const LINK_LAYER_ADDRESSES: [u8; 2] = [1, 2];

/// The outcome of [`Policy::check`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The frame may be sent.
    Pass,
    /// It may not.
    Drop(Reason),
    /// Not yet: the vNIC has to hold this link-local address. Then the frame is to be checked again.
    Claim(Ipv6Addr),
    /// Not yet: the vNIC has to take these shared addresses. Then the frame is to be checked again.
    Take(Taking),
}

/// Why a frame may not be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Reason {
    /// Neither the vNIC's own MAC nor in `allowed.macs`, or a group address.
    #[error("source MAC is not the vNIC's own and not in allowed.macs")]
    SourceMac,
    /// To an address that bridges do not forward (IEEE 802.1Q, table 8-1).
    #[error("a frame for the link itself, without allowed.control")]
    Control,
    /// A VID not in `allowed.vlans`, a service tag or a second tag.
    #[error("VLAN tag is not in allowed.vlans, or a second tag follows it")]
    Vlan,
    /// IP source outside `allowed.prefixes`.
    #[error("source address is not in allowed.prefixes")]
    SourcePrefix,
    /// ARP or neighbour discovery that says its address has another's MAC.
    #[error("ARP or neighbour discovery names a MAC that is not the vNIC's own and not in allowed.macs")]
    NeighbourMac,
    /// ARP that claims an address outside `allowed.prefixes`.
    #[error("ARP sender address is not one the vNIC may use")]
    ArpSpoof,
    /// Neighbour advertisement for an address outside `allowed.prefixes`.
    #[error("IPv6 neighbour advertisement for an address not in allowed.prefixes")]
    NeighbourSpoof,
    /// A link-local address that is another vNIC's, or one too many.
    #[error("link-local address of another vNIC, or a fifth one")]
    LinkLocal,
    /// A shared address that another vNIC has, in a frame that does not announce it.
    #[error("an address that vNICs share, and another one has")]
    Shared,
    /// Router advertisement or redirect.
    #[error("router advertisement or redirect, without allowed.router")]
    Router,
    /// From a DHCP server or relay.
    #[error("from a DHCP server or relay, without allowed.dhcp-server")]
    DhcpServer,
    /// LLC/SNAP, in which addresses are not checked.
    #[error("LLC/SNAP encapsulation hides the addresses to be checked")]
    Encapsulation,
    /// Extension headers or fragments behind which it cannot be told what a datagram is for.
    #[error("IPv6 extension headers or fragments hide what is to be checked")]
    Hidden,
}

/// Addresses that are to be taken before a frame may be sent: a bit for each of a contract's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taking {
    /// All of them.
    pub(super) own: u64,
    /// Those that the frame announces: they may be taken from another vNIC.
    pub(super) announced: u64,
}

impl Taking {
    /// The addresses, as numbers in the contract's list, and whether they may be taken from another vNIC.
    pub fn iter(self) -> impl Iterator<Item = (usize, bool)> {
        let next = |bits: &u64| Some(bits & (bits - 1)).filter(|rest| *rest != 0);
        let each = std::iter::successors(Some(self.own).filter(|own| *own != 0), next);
        each.map(move |bits| {
            let bit = bits.trailing_zeros() as usize;
            (bit, self.announced >> bit & 1 == 1)
        })
    }
}
