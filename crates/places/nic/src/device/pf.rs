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
    /// There is a link partner. Most drivers take no rate without.
    pub carrier: bool,
    /// Link speed; `None` without a link, or where the driver does not say. Above 400 Gbit/s it is said as that.
    pub speed: Option<Rate>,
    /// The fastest that the NIC can do, whatever the link is at now; `None` where the driver does not say.
    pub top_speed: Option<Rate>,
    /// The most VFs that the NIC can have; `None` where the driver does not say.
    pub total_vfs: Option<u16>,
    /// How many there are.
    pub num_vfs: u16,
    /// Name of the driver, for messages: nothing is decided by it.
    pub driver: String,
    /// Bus and address of the device, such as `pci` and `0000:03:00.0`: its devlink handle.
    pub bus: String,
    /// See [`Self::bus`].
    pub address: String,
    /// PCI vendor and device, where it is one.
    pub pci_id: Option<(u16, u16)>,
    /// Who switches between the VFs.
    pub mode: Mode,
    /// VFs that are there, by number.
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
