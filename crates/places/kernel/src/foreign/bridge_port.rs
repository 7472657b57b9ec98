//! The VLANs that a bridge port had before a contract put it into one. Pure.

use crate::tc::network::Netdev;
use crate::tc::plan::lead;
use crate::tc::step::{Device, Step};
use crate::tc::vlan::Vlans;
use serde::{Deserialize, Serialize};

/// A bridge port, as it was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BridgePort {
    /// Interface index.
    pub index: u32,
    /// Interface index of its bridge: of a port that leaves it, the kernel forgets the VLANs.
    pub bridge: u32,
    /// Its VLANs.
    pub vlans: Vlans,
}

impl BridgePort {
    /// As it is now; `None` where it is on no bridge, or its VLANs were not read.
    pub fn now(index: u32, link: &Netdev) -> Option<Self> {
        Some(Self { index, bridge: link.master?, vlans: link.vlans.clone()? })
    }

    /// Whether this is about the port that a link is now.
    pub fn is(&self, index: u32, link: &Netdev) -> bool {
        self.index == index && Some(self.bridge) == link.master
    }

    /// What makes it again as it was; nothing where it is another port by now.
    pub fn restore(&self, link: &Netdev) -> Vec<Step> {
        let device = Device::Netdev { index: self.index, name: link.name.clone() };
        let now = link.vlans.as_ref().filter(|_| self.is(self.index, link));
        now.map(|now| lead(&device, now, &self.vlans)).unwrap_or_default()
    }
}
