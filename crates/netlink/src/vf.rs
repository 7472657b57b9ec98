//! Messages of links that have virtual functions (VFs), or that represent one (linux/if_link.h).

use crate::attribute::{Attributes, find, read, string, u16_at, u32_at, u64_at};
use crate::link::{HEADER, IFF_UP, IFLA_EXT_MASK, IFLA_IFNAME, RTEXT_FILTER_SKIP_STATS, header};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use tidegate_contract::{Mac, Rate};

/// Attribute: Number of VFs.
pub const IFLA_NUM_VF: u16 = 21;
/// Attribute: The VFs.
pub const IFLA_VFINFO_LIST: u16 = 22;
/// Attribute: Id of the switch that the link is a port of.
pub const IFLA_PHYS_SWITCH_ID: u16 = 36;
/// Attribute: Name of the port there.
pub const IFLA_PHYS_PORT_NAME: u16 = 38;
/// Says `IFLA_VFINFO_LIST` (linux/rtnetlink.h).
const RTEXT_FILTER_VF: u32 = 1;
/// There is a carrier (linux/if.h).
const IFF_LOWER_UP: u32 = 1 << 16;
/// `ifi_type` of Ethernet (linux/if_arp.h).
const ARPHRD_ETHER: u16 = 1;

/// Attribute in the list: one VF.
pub const IFLA_VF_INFO: u16 = 1;
/// Attribute: `struct ifla_vf_mac`.
pub const IFLA_VF_MAC: u16 = 1;
/// Attribute: `struct ifla_vf_vlan`.
pub const IFLA_VF_VLAN: u16 = 2;
/// Attribute: `struct ifla_vf_spoofchk`.
pub const IFLA_VF_SPOOFCHK: u16 = 4;
/// Attribute: `struct ifla_vf_link_state`.
pub const IFLA_VF_LINK_STATE: u16 = 5;
/// Attribute: `struct ifla_vf_rate`.
pub const IFLA_VF_RATE: u16 = 6;
/// Attribute: Nested counters.
pub const IFLA_VF_STATS: u16 = 8;
/// Attribute: `struct ifla_vf_trust`.
pub const IFLA_VF_TRUST: u16 = 9;

/// Message: asks for the counters of links (linux/rtnetlink.h).
pub const RTM_GETSTATS: u16 = 94;
const IFLA_STATS_LINK_64: u16 = 1;
/// Length of `struct if_stats_msg`.
const STATS_HEADER: usize = 12;

/// A link message, with VFs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VfLink {
    /// Interface index.
    pub index: u32,
    /// Interface name.
    pub name: String,
    /// Administratively up.
    pub up: bool,
    /// There is a link partner.
    pub carrier: bool,
    /// Id of the switch that it is a port of, if the host governs that switch.
    pub switch: Option<Vec<u8>>,
    /// Name of the port there, such as `pf0vf1`.
    pub port: Option<String>,
    /// Number of VFs.
    pub num_vfs: u16,
    /// The VFs by number.
    pub vfs: BTreeMap<u16, VfInfo>,
}

/// A VF, as the driver of its physical function reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VfInfo {
    /// The address that the host gave it; `None` if it gave none (all zero) and the VM chooses.
    pub mac: Option<Mac>,
    /// The VLAN of its frames, 1 to 4094; 0 for none.
    pub vlan: u16,
    /// The priority in the VLAN tag, 0 to 7.
    pub qos: u8,
    /// Whether the NIC drops frames that it sends from another address; `None` if the driver does not say.
    pub spoofchk: Option<bool>,
    /// Whether it may ask for privileges, such as receiving all frames; `None` if the driver does not say.
    pub trust: Option<bool>,
    /// The link state that its driver in the VM sees. Drivers that cannot set it report `Auto`.
    pub link_state: LinkState,
    /// Hard limit on its sending rate, whole Mbit/s.
    pub tx_max: Option<Rate>,
    /// Guaranteed sending rate, whole Mbit/s.
    pub tx_min: Option<Rate>,
    /// The driver's counters; `None` if it has none.
    pub statistics: Option<Statistics>,
}

/// The link state that a VF's driver sees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LinkState {
    /// That of the physical function.
    #[default]
    Auto,
    /// Up, also without a link partner: VFs reach each other.
    Enable,
    /// Down.
    Disable,
}

impl fmt::Display for LinkState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Enable => "enable",
            Self::Disable => "disable",
        })
    }
}

/// `IFLA_VF_STATS`, from the VF's side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "as the kernel names them")]
pub struct Statistics {
    pub tx_packets: u64,
    pub tx_bytes: u64,
    pub tx_dropped: u64,
    pub rx_packets: u64,
    pub rx_bytes: u64,
    pub rx_dropped: u64,
    pub rx_broadcast: u64,
    pub rx_multicast: u64,
}

/// Asks for a link with its VFs, with or without their counters.
pub fn with_vfs(index: u32, statistics: bool) -> Vec<u8> {
    let mut body = header(index, 0, 0);
    let skip = if statistics { 0 } else { RTEXT_FILTER_SKIP_STATS };
    body.put_u32(IFLA_EXT_MASK, RTEXT_FILTER_VF | skip);
    body.0
}

/// Asks for all links, without VFs and counters.
pub fn all() -> Vec<u8> {
    let mut body = header(0, 0, 0);
    body.put_u32(IFLA_EXT_MASK, RTEXT_FILTER_SKIP_STATS);
    body.0
}

/// Reads an `RTM_NEWLINK`.
pub fn link(body: &[u8]) -> Option<VfLink> {
    let flags = u32_at(body, 8)?;
    let mut link = VfLink {
        index: u32_at(body, 4)?,
        up: flags & IFF_UP != 0,
        carrier: flags & IFF_LOWER_UP != 0,
        ..VfLink::default()
    };
    let ethernet = u16_at(body, 2) == Some(ARPHRD_ETHER);
    let attributes = body.get(HEADER..)?;
    for (kind, value) in read(attributes) {
        match kind {
            IFLA_IFNAME => link.name = string(value),
            IFLA_NUM_VF => link.num_vfs = number(value),
            IFLA_PHYS_SWITCH_ID => link.switch = Some(value.to_vec()),
            IFLA_PHYS_PORT_NAME => link.port = Some(string(value)),
            // The attributes behind it may be misread; see `vf_list`.
            IFLA_VFINFO_LIST => break,
            _ => {}
        }
    }
    let infos = read(vf_list(attributes)).take_while(|(kind, _)| *kind == IFLA_VF_INFO);
    link.vfs = infos.take(link.num_vfs.into()).filter_map(|(_, info)| vf(info, ethernet)).collect();
    Some(link)
}

/// The list of VFs, and the rest of the message behind it. An attribute's length has 16 bits: the kernel cuts the length of a list
/// of some 200 VFs (`nla_nest_end`, include/net/netlink.h), but sends the whole list.
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
fn vf(info: &[u8], ethernet: bool) -> Option<(u16, VfInfo)> {
    let mut index = None;
    let mut vf = VfInfo::default();
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

/// A rate in Mbit/s; 0 is none.
fn mbit(value: Option<u32>) -> Option<Rate> {
    let bits = u64::from(value?).saturating_mul(1_000_000);
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

/// Asks for the counters of all links.
pub fn all_counters() -> Vec<u8> {
    // struct if_stats_msg: family, padding, ifindex, filter_mask.
    [0, 0, 1 << (IFLA_STATS_LINK_64 - 1)].map(u32::to_ne_bytes).concat()
}

/// Interface index and counters from the link's side (`struct rtnl_link_stats64`).
pub fn link_counters(body: &[u8]) -> Option<(u32, Statistics)> {
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

/// A change of one setting of one VF, as the body of an `RTM_SETLINK`: the attribute `kind`, whose structure has these 32-bit fields.
pub fn set(index: u32, kind: u16, fields: &[u32]) -> Vec<u8> {
    let bytes: Vec<u8> = fields.iter().flat_map(|field| field.to_ne_bytes()).collect();
    set_bytes(index, kind, &bytes)
}

/// A change of the link state of a VF, see [`set`].
pub fn set_link_state(index: u32, vf: u16, state: LinkState) -> Vec<u8> {
    let number = match state {
        LinkState::Auto => 0,
        LinkState::Enable => 1,
        LinkState::Disable => 2,
    };
    set(index, IFLA_VF_LINK_STATE, &[vf.into(), number])
}

/// A change of the address of a VF, see [`set`].
pub fn set_mac(index: u32, vf: u16, mac: Mac) -> Vec<u8> {
    // struct ifla_vf_mac: vf, 32 bytes of address.
    let mut value = [0; 36];
    value[..4].copy_from_slice(&u32::from(vf).to_ne_bytes());
    value[4..10].copy_from_slice(&mac.0);
    set_bytes(index, IFLA_VF_MAC, &value)
}

fn set_bytes(index: u32, kind: u16, value: &[u8]) -> Vec<u8> {
    let mut body: Attributes = header(index, 0, 0);
    body.nest(IFLA_VFINFO_LIST, |list| list.nest(IFLA_VF_INFO, |info| info.put(kind, value)));
    body.0
}
