//! A bridge port's VLANs before a contract. Pure.

use crate::tc::network::Netdev;
use crate::tc::plan::lead;
use crate::tc::step::{Device, Step};
use crate::tc::vlan::Vlans;
use serde::{Deserialize, Serialize};

/// A bridge port's former state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BridgePort {
    /// Interface index.
    pub index: u32,
    /// Interface index of its bridge: the kernel forgets the VLANs of a port that leaves it.
    pub bridge: u32,
    /// Its VLANs.
    pub vlans: Vlans,
}

impl BridgePort {
    /// Returns its present state; `None` without a bridge, or if its VLANs were not read.
    pub fn now(index: u32, link: &Netdev) -> Option<Self> {
        Some(Self { index, bridge: link.master?, vlans: link.vlans.clone()? })
    }

    /// Whether it describes the link's present port.
    pub fn is(&self, index: u32, link: &Netdev) -> bool {
        self.index == index && Some(self.bridge) == link.master
    }

    /// Returns the steps that restore it; none if it is another port now.
    pub fn restore(&self, link: &Netdev) -> Vec<Step> {
        let device = Device::Netdev { index: self.index, name: link.name.clone() };
        let now = link.vlans.as_ref().filter(|_| self.is(self.index, link));
        now.map(|now| lead(&device, now, &self.vlans)).unwrap_or_default()
    }
}
