//! A virtual function, as the PF's driver shows it to the host.

use tidegate_contract::{Mac, Rate};
use tidegate_netlink::vf::VfInfo;
pub use tidegate_netlink::vf::{LinkState, Statistics};

/// A virtual function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Vf {
    /// MAC address that the host set; `None` if the host set none (all zero) and the VM chooses.
    pub mac: Option<Mac>,
    /// VLAN that the NIC puts its frames into, 1 to 4094; 0 for none.
    pub vlan: u16,
    /// Priority in the VLAN tag, 0 to 7.
    pub qos: u8,
    /// Whether the NIC drops frames from it with another source address; `None` if the driver does not report it.
    pub spoofchk: Option<bool>,
    /// Whether it may ask for privileges, such as promiscuous mode; `None` if the driver does not report it.
    pub trust: Option<bool>,
    /// The link state that its driver in the VM sees. Drivers that cannot set it report `Auto`.
    pub link_state: LinkState,
    /// Hard limit of the frames it sends, whole Mbit/s; `None`: no limit.
    pub tx_max: Option<Rate>,
    /// Guaranteed rate, whole Mbit/s; `None`: none.
    pub tx_min: Option<Rate>,
    /// PCI address of the VF itself, where it is a PCI function.
    pub address: Option<String>,
    /// Counters of the driver; `None` if the driver has none.
    pub statistics: Option<Statistics>,
    /// Its representor in switchdev mode.
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
    /// Guaranteed rate (`tx_share`), bytes per second; 0: none.
    pub share: u64,
    /// Limit (`tx_max`), bytes per second; 0: none.
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
    /// The hard limit in force, by `IFLA_VF_RATE` or by devlink.
    pub fn limit(&self) -> Option<Rate> {
        self.leaf.as_ref().map_or(self.tx_max, |leaf| rate_of_bytes(leaf.max))
    }

    /// The guaranteed rate in force, by `IFLA_VF_RATE` or by devlink.
    pub fn guarantee(&self) -> Option<Rate> {
        self.leaf.as_ref().map_or(self.tx_min, |leaf| rate_of_bytes(leaf.share))
    }

    /// Guaranteed rate and limit as `IFLA_VF_RATE` has them: Mbit/s, 0 for none.
    pub(crate) fn rates_mbit(&self) -> (u32, u32) {
        let mbit = |rate: Option<Rate>| rate.map_or(0, |r| (r.bits() / MBIT) as u32);
        (mbit(self.tx_min), mbit(self.tx_max))
    }
}

/// 1 Mbit/s in bit/s: the unit in which NICs count.
pub(crate) const MBIT: u64 = 1_000_000;

/// devlink's bytes per second as a rate; `None` for 0, which is no limit. Capped at the highest rate of a contract.
fn rate_of_bytes(bytes: u64) -> Option<Rate> {
    Rate::from_bits(bytes.saturating_mul(8).min(Rate::MAX.bits()))
}
