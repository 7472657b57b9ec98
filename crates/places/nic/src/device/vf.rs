//! A virtual function, as the PF's driver shows it to the host.

use tidegate_contract::{Mac, Rate};
use tidegate_netlink::vf::VfInfo;
pub use tidegate_netlink::vf::{LinkState, Statistics};

/// A virtual function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Vf {
    /// Address that the host gave it; `None` where it gave none (all zero) and the VM chooses.
    pub mac: Option<Mac>,
    /// VLAN that the NIC puts its frames into, 1 to 4094; 0 for none.
    pub vlan: u16,
    /// Priority in the VLAN tag, 0 to 7.
    pub qos: u8,
    /// Whether the NIC drops what it sends with another source address; `None` where the driver does not say.
    pub spoofchk: Option<bool>,
    /// Whether it may ask for privileges, such as receiving everything; `None` where the driver does not say.
    pub trust: Option<bool>,
    /// What its driver in the VM is told of the link. Drivers that cannot set it say `Auto`.
    pub link_state: LinkState,
    /// Hard limit of what it sends; `None` without. Whole Mbit/s.
    pub tx_max: Option<Rate>,
    /// Rate that it is guaranteed; `None` without. Whole Mbit/s.
    pub tx_min: Option<Rate>,
    /// PCI address of the VF itself, where it is a PCI function.
    pub address: Option<String>,
    /// What the driver counts for it; `None` where it has no such thing.
    pub statistics: Option<Statistics>,
    /// Its other end in switchdev mode.
    pub representor: Option<Representor>,
    /// Its devlink rate object.
    pub leaf: Option<Leaf>,
}

/// The netdev that stands for a VF in the host's switch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Representor {
    /// Its netdev.
    pub name: String,
    /// Interface index of that.
    pub index: u32,
}

/// The devlink rate object of a VF.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leaf {
    /// devlink's number of its port.
    pub port: u32,
    /// Guaranteed (`tx_share`), bytes per second; 0 is nothing.
    pub share: u64,
    /// Most (`tx_max`), bytes per second; 0 is no limit.
    pub max: u64,
    /// The node that it is part of.
    pub parent: Option<String>,
}

impl From<VfInfo> for Vf {
    fn from(info: VfInfo) -> Self {
        let VfInfo { mac, vlan, qos, spoofchk, trust, link_state, tx_max, tx_min, statistics } = info;
        Self {
            mac,
            vlan,
            qos,
            spoofchk,
            trust,
            link_state,
            tx_max,
            tx_min,
            statistics,
            address: None,
            representor: None,
            leaf: None,
        }
    }
}

impl Vf {
    /// The hard limit in force, by whichever way the NIC has it.
    pub fn limit(&self) -> Option<Rate> {
        self.leaf.as_ref().map_or(self.tx_max, |leaf| rate_of_bytes(leaf.max))
    }

    /// The guaranteed rate in force, by whichever way the NIC has it.
    pub fn guarantee(&self) -> Option<Rate> {
        self.leaf.as_ref().map_or(self.tx_min, |leaf| rate_of_bytes(leaf.share))
    }

    /// Guaranteed rate and limit as `IFLA_VF_RATE` has them: Mbit/s, 0 for none.
    pub(crate) fn rates_mbit(&self) -> (u32, u32) {
        let mbit = |rate: Option<Rate>| rate.map_or(0, |r| (r.bits() / MBIT) as u32);
        (mbit(self.tx_min), mbit(self.tx_max))
    }
}

/// Bits per second, what a NIC counts in.
pub(crate) const MBIT: u64 = 1_000_000;

/// devlink's bytes per second; `None` for 0, which is no limit. What is more than a contract can name is said as that.
fn rate_of_bytes(bytes: u64) -> Option<Rate> {
    Rate::from_bits(bytes.saturating_mul(8).min(Rate::MAX.bits()))
}
