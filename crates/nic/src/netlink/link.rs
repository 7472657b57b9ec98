//! What the kernel says of links: VFs, names of ports, counters (linux/if_link.h).

use crate::vf::{LinkState, MBIT, Statistics, Vf};
use std::collections::BTreeMap;
use tidegate_contract::{Mac, Rate};
use tidegate_netlink::attribute::{find, read, string, u16_at, u32_at, u64_at};
use tidegate_netlink::link::{
    HEADER, IFF_UP, IFLA_EXT_MASK, IFLA_IFNAME, RTEXT_FILTER_SKIP_STATS, header, named,
};

pub const IFLA_NUM_VF: u16 = 21;
pub const IFLA_VFINFO_LIST: u16 = 22;
pub const IFLA_PHYS_SWITCH_ID: u16 = 36;
pub const IFLA_PHYS_PORT_NAME: u16 = 38;
/// Says `IFLA_VFINFO_LIST` (linux/rtnetlink.h).
const RTEXT_FILTER_VF: u32 = 1;
/// There is a carrier (linux/if.h).
const IFF_LOWER_UP: u32 = 1 << 16;
/// `ifi_type` of Ethernet (linux/if_arp.h).
const ARPHRD_ETHER: u16 = 1;

/// Of `IFLA_VFINFO_LIST`.
pub const IFLA_VF_INFO: u16 = 1;
pub const IFLA_VF_MAC: u16 = 1;
pub const IFLA_VF_VLAN: u16 = 2;
pub const IFLA_VF_SPOOFCHK: u16 = 4;
pub const IFLA_VF_LINK_STATE: u16 = 5;
pub const IFLA_VF_RATE: u16 = 6;
pub const IFLA_VF_STATS: u16 = 8;
pub const IFLA_VF_TRUST: u16 = 9;

/// Counters of links (linux/if_link.h, linux/rtnetlink.h).
pub const RTM_GETSTATS: u16 = 94;
const IFLA_STATS_LINK_64: u16 = 1;
/// Length of `struct if_stats_msg`.
const STATS_HEADER: usize = 12;

/// A netdev.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Link {
    pub index: u32,
    pub name: String,
    pub up: bool,
    pub carrier: bool,
    /// Of a port of a switch that the host governs: which switch.
    pub switch: Option<Vec<u8>>,
    /// Name of the port there, such as `pf0vf1`.
    pub port: Option<String>,
    pub num_vfs: u16,
    pub vfs: BTreeMap<u16, Vf>,
}

/// Asks for a netdev with its VFs; with or without what is counted.
pub fn with_vfs(index: u32, statistics: bool) -> Vec<u8> {
    let mut body = header(index, 0, 0);
    let skip = if statistics { 0 } else { RTEXT_FILTER_SKIP_STATS };
    body.put_u32(IFLA_EXT_MASK, RTEXT_FILTER_VF | skip);
    body.0
}

/// Asks for the netdev with a name.
pub fn by_name(name: &str) -> Vec<u8> {
    named(name)
}

/// Asks for all, without VFs and counters.
pub fn all() -> Vec<u8> {
    let mut body = header(0, 0, 0);
    body.put_u32(IFLA_EXT_MASK, RTEXT_FILTER_SKIP_STATS);
    body.0
}

/// What an `RTM_NEWLINK` says.
pub fn link(body: &[u8]) -> Option<Link> {
    let flags = u32_at(body, 8)?;
    let mut link = Link {
        index: u32_at(body, 4)?,
        up: flags & IFF_UP != 0,
        carrier: flags & IFF_LOWER_UP != 0,
        ..Link::default()
    };
    let ethernet = u16_at(body, 2) == Some(ARPHRD_ETHER);
    let attributes = body.get(HEADER..)?;
    for (kind, value) in read(attributes) {
        match kind {
            IFLA_IFNAME => link.name = string(value),
            IFLA_NUM_VF => link.num_vfs = number(value),
            IFLA_PHYS_SWITCH_ID => link.switch = Some(value.to_vec()),
            IFLA_PHYS_PORT_NAME => link.port = Some(string(value)),
            // What follows may be misread; see `vf_list`.
            IFLA_VFINFO_LIST => break,
            _ => {}
        }
    }
    let infos = read(vf_list(attributes)).take_while(|(kind, _)| *kind == IFLA_VF_INFO);
    link.vfs = infos.take(link.num_vfs.into()).filter_map(|(_, info)| vf(info, ethernet)).collect();
    Some(link)
}

/// The list of VFs, and what follows it in the message: an attribute's length has 16 bits, and the kernel cuts that of a list
/// of some 200 VFs short (`nla_nest_end`, include/net/netlink.h), while all of the list is there.
fn vf_list(mut attributes: &[u8]) -> &[u8] {
    while let (Some(length), Some(kind)) = (u16_at(attributes, 0), u16_at(attributes, 2)) {
        if kind & NLA_TYPE_MASK == IFLA_VFINFO_LIST {
            return attributes.get(4..).unwrap_or_default();
        }
        if length < 4 {
            break;
        }
        attributes = attributes.get(usize::from(length).next_multiple_of(4)..).unwrap_or_default();
    }
    &[]
}

/// Without the flags of nested attributes and of byte order (linux/netlink.h).
const NLA_TYPE_MASK: u16 = 0x3fff;

/// Number and state of a VF. Each attribute begins with the number.
fn vf(info: &[u8], ethernet: bool) -> Option<(u16, Vf)> {
    let mut index = None;
    let mut vf = Vf::default();
    for (kind, value) in read(info) {
        if kind != IFLA_VF_STATS {
            index = index.or_else(|| u32_at(value, 0)?.try_into().ok());
        }
        match kind {
            // struct ifla_vf_mac: vf, 32 bytes of address.
            IFLA_VF_MAC if ethernet => {
                let bytes: Option<[u8; 6]> = value.get(4..10).and_then(|bytes| bytes.try_into().ok());
                vf.mac = bytes.filter(|bytes| *bytes != [0; 6]).map(Mac);
            }
            // struct ifla_vf_vlan: vf, vlan, qos.
            IFLA_VF_VLAN => {
                vf.vlan = u32_at(value, 4).and_then(|v| v.try_into().ok()).unwrap_or_default();
                vf.qos = u32_at(value, 8).and_then(|v| v.try_into().ok()).unwrap_or_default();
            }
            // struct ifla_vf_rate: vf, min, max.
            IFLA_VF_RATE => (vf.tx_min, vf.tx_max) = (mbit(u32_at(value, 4)), mbit(u32_at(value, 8))),
            IFLA_VF_SPOOFCHK => vf.spoofchk = setting(value),
            IFLA_VF_TRUST => vf.trust = setting(value),
            IFLA_VF_LINK_STATE => {
                vf.link_state = match u32_at(value, 4) {
                    Some(1) => LinkState::Enable,
                    Some(2) => LinkState::Disable,
                    _ => LinkState::Auto,
                };
            }
            IFLA_VF_STATS => vf.statistics = Some(statistics(value)),
            _ => {}
        }
    }
    Some((index?, vf))
}

/// Mbit/s; 0 is none.
fn mbit(value: Option<u32>) -> Option<Rate> {
    let bits = u64::from(value?).saturating_mul(MBIT);
    Rate::from_bits(bits.min(Rate::MAX.bits()))
}

/// On or off; all ones where the driver does not say (`rtnl_fill_vfinfo`, net/core/rtnetlink.c).
fn setting(value: &[u8]) -> Option<bool> {
    u32_at(value, 4).filter(|setting| *setting != u32::MAX).map(|setting| setting != 0)
}

fn number(value: &[u8]) -> u16 {
    u32_at(value, 0).map_or(0, |n| n.try_into().unwrap_or(u16::MAX))
}

fn statistics(value: &[u8]) -> Statistics {
    let mut statistics = Statistics::default();
    for (kind, value) in read(value) {
        let field = match kind {
            0 => &mut statistics.rx_packets,
            1 => &mut statistics.tx_packets,
            2 => &mut statistics.rx_bytes,
            3 => &mut statistics.tx_bytes,
            4 => &mut statistics.rx_broadcast,
            5 => &mut statistics.rx_multicast,
            7 => &mut statistics.rx_dropped,
            8 => &mut statistics.tx_dropped,
            _ => continue,
        };
        *field = u64_at(value, 0).unwrap_or_default();
    }
    statistics
}

/// The VF whose representor has this port name: `pf0vf1`, or `c1pf0vf1` (`devlink_compat_phys_port_name_get`).
pub fn represented(port: &str) -> Option<u16> {
    let (pf, vf) = port.rsplit_once("vf")?;
    let (_, number) = pf.rsplit_once("pf")?;
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    (digits(number) && digits(vf)).then(|| vf.parse().ok()).flatten()
}

/// Asks for what all links counted.
pub fn counted() -> Vec<u8> {
    // struct if_stats_msg: family, padding, ifindex, filter_mask.
    [0, 0, 1 << (IFLA_STATS_LINK_64 - 1)].map(u32::to_ne_bytes).concat()
}

/// Interface index, and what it counted, from the netdev's side: `struct rtnl_link_stats64`.
pub fn link_statistics(body: &[u8]) -> Option<(u32, Statistics)> {
    let value = find(body.get(STATS_HEADER..)?, IFLA_STATS_LINK_64)?;
    let field = |index: usize| u64_at(value, index * 8).unwrap_or_default();
    let statistics = Statistics {
        rx_packets: field(0),
        tx_packets: field(1),
        rx_bytes: field(2),
        tx_bytes: field(3),
        rx_dropped: field(6),
        tx_dropped: field(7),
        rx_multicast: field(8),
        rx_broadcast: 0,
    };
    Some((u32_at(body, 4)?, statistics))
}
