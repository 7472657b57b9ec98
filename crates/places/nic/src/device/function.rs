//! What one VF shall be, or was.

use crate::device::vf::{LinkState, Vf};
use serde::{Deserialize, Serialize};
use tidegate_contract::{Mac, Rate};

/// The wanted settings of one VF. A setting that is `None` stays, except rates.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Function {
    /// Number of the VF on its PF.
    pub index: u16,
    /// MAC address; all zero: the VM chooses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<Mac>,
    /// VLAN, 1 to 4094; 0 for none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlan: Option<u16>,
    /// Priority in the VLAN tag, 0 to 7.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub qos: Option<u8>,
    /// Spoof check.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spoofchk: Option<bool>,
    /// Trust.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trust: Option<bool>,
    /// Link state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_state: Option<LinkState>,
    /// Hard limit of the frames it sends; `None`: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tx_max: Option<Rate>,
    /// Guaranteed rate of the frames it sends; `None`: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tx_min: Option<Rate>,
}

impl Function {
    /// The present values of the settings that `self` changes: recorded before, and restored when the contract ends. A setting
    /// that `self` does not change is not recorded.
    pub fn before(&self, vf: &Vf) -> Self {
        Self {
            index: self.index,
            mac: self.mac.map(|_| vf.mac.unwrap_or(Mac([0; 6]))),
            vlan: self.vlan.map(|_| vf.vlan),
            qos: self.qos.map(|_| vf.qos),
            spoofchk: self.spoofchk.and(vf.spoofchk),
            trust: self.trust.and(vf.trust),
            link_state: self.link_state.map(|_| vf.link_state),
            tx_max: vf.limit(),
            tx_min: vf.guarantee(),
        }
    }
}
