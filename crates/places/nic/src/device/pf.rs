//! A physical function: the port of a NIC, as the host has it.

use crate::device::vf::Vf;
use std::collections::BTreeMap;
use tidegate_contract::Rate;
pub use tidegate_netlink::devlink::{Mode, Node};

/// A physical function, with its VFs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pf {
    /// Its netdev.
    pub name: String,
    /// Interface index of that.
    pub index: u32,
    /// Administratively up.
    pub up: bool,
    /// A link partner exists. Most drivers refuse rates without one.
    pub carrier: bool,
    /// Link speed, at most 400 Gbit/s; `None` without a link, or if the driver does not report it.
    pub speed: Option<Rate>,
    /// Highest speed of the NIC, whatever the present link speed; `None` if the driver does not report it.
    pub top_speed: Option<Rate>,
    /// Most VFs of the NIC; `None` if the driver does not report it.
    pub total_vfs: Option<u16>,
    /// Number of VFs.
    pub num_vfs: u16,
    /// Name of the driver, for messages only.
    pub driver: String,
    /// Bus and address of the device, such as `pci` and `0000:03:00.0`: its devlink handle.
    pub bus: String,
    /// See [`Self::bus`].
    pub address: String,
    /// PCI vendor and device, where it is one.
    pub pci_id: Option<(u16, u16)>,
    /// Whether the NIC or the host switches between the VFs.
    pub mode: Mode,
    /// Present VFs, by number.
    pub vfs: BTreeMap<u16, Vf>,
    /// devlink rate nodes, which group VFs, by name.
    pub nodes: BTreeMap<String, Node>,
}

impl Pf {
    /// Where the number of VFs is set.
    pub fn numvfs_path(&self) -> String {
        format!("/sys/class/net/{}/device/sriov_numvfs", self.name)
    }
}
