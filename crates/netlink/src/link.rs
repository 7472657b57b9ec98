//! Links: numbers of linux/rtnetlink.h and linux/if_link.h, and the header of their messages.

use crate::attribute::Attributes;

/// Message: an interface is there, or shall be.
pub const RTM_NEWLINK: u16 = 16;
/// Message: an interface goes.
pub const RTM_DELLINK: u16 = 17;
/// Message: asks for an interface, or all.
pub const RTM_GETLINK: u16 = 18;
/// Message: an interface changes.
pub const RTM_SETLINK: u16 = 19;

/// Attribute: name.
pub const IFLA_IFNAME: u16 = 3;
/// Attribute: what the answer shall have, or not.
pub const IFLA_EXT_MASK: u16 = 29;
/// Without counters, which are most of a link's message.
pub const RTEXT_FILTER_SKIP_STATS: u32 = 8;

/// Flags of a message that makes something that is not there (linux/netlink.h).
pub const NEW: u16 = 0x200 | 0x400;
/// Attribute: what kind of link it is, and what that kind needs.
pub const IFLA_LINKINFO: u16 = 18;
/// Attribute: the network namespace, by a descriptor.
pub const IFLA_NET_NS_FD: u16 = 28;
/// In `IFLA_LINKINFO`: the name of the kind.
pub const IFLA_INFO_KIND: u16 = 1;
/// In `IFLA_LINKINFO`: what the kind needs.
pub const IFLA_INFO_DATA: u16 = 2;
/// In the data of a veth: the other end (linux/veth.h).
pub const VETH_INFO_PEER: u16 = 1;

/// Flag: administratively up.
pub const IFF_UP: u32 = 1;

/// Length of `struct ifinfomsg`.
pub const HEADER: usize = 16;

/// `struct ifinfomsg`, which begins every message of a link.
pub fn header(index: u32, flags: u32, change: u32) -> Attributes {
    let mut bytes = vec![0; 4];
    for field in [index, flags, change] {
        bytes.extend(field.to_ne_bytes());
    }
    Attributes(bytes)
}

/// Asks for the link with a name, without its counters.
pub fn named(name: &str) -> Vec<u8> {
    let mut body = header(0, 0, 0);
    body.put_str(IFLA_IFNAME, name);
    body.put_u32(IFLA_EXT_MASK, RTEXT_FILTER_SKIP_STATS);
    body.0
}
