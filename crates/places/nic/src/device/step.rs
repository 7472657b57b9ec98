//! One request to a NIC.

use crate::device::pf::{Node, Pf};
use crate::device::vf::{LinkState, MBIT, Vf};
use std::fmt;
use tidegate_contract::{Mac, Rate};

/// One request to a NIC. Each sets one thing: if a driver refuses a step, all steps before it are known to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The PF's netdev, for messages.
    pub pf: String,
    /// Interface index of that.
    pub index: u32,
    /// Its devlink handle: bus and address.
    pub device: (String, String),
    /// The setting.
    pub set: Set,
}

/// The setting of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "fields are named as in the kernel's interface")]
pub enum Set {
    /// `IFLA_VF_RATE`: guaranteed rate and limit, Mbit/s; 0 is none.
    Rate { vf: u16, min: u32, max: u32 },
    /// `IFLA_VF_MAC`.
    Mac { vf: u16, mac: Mac },
    /// `IFLA_VF_VLAN`: VLAN 1 to 4094, 0 for none; priority 0 to 7.
    Vlan { vf: u16, vlan: u16, qos: u8 },
    /// `IFLA_VF_SPOOFCHK`.
    Spoofcheck { vf: u16, on: bool },
    /// `IFLA_VF_TRUST`.
    Trust { vf: u16, on: bool },
    /// `IFLA_VF_LINK_STATE`.
    LinkState { vf: u16, state: LinkState },
    /// `DEVLINK_CMD_RATE_SET` of a VF: bytes per second; 0 is none.
    Leaf { vf: u16, port: u32, share: u64, max: u64 },
    /// `DEVLINK_CMD_RATE_SET` of a VF: the node that it is part of; `None` is none.
    LeafParent { vf: u16, port: u32, node: Option<String> },
    /// `DEVLINK_CMD_RATE_NEW`.
    NewNode { node: String },
    /// `DEVLINK_CMD_RATE_SET` of a node: bytes per second; 0 is none.
    Node { node: String, share: u64, max: u64 },
    /// `DEVLINK_CMD_RATE_SET` of a node: the node that it is part of; `None` is none.
    NodeParent { node: String, parent: Option<String> },
    /// `DEVLINK_CMD_RATE_DEL`.
    DeleteNode { node: String },
}

impl Step {
    /// A step for this PF.
    pub fn on(pf: &Pf, set: Set) -> Self {
        let device = (pf.bus.clone(), pf.address.clone());
        Self { pf: pf.name.clone(), index: pf.index, device, set }
    }

    /// The VF concerned; `None` for a node.
    pub fn vf(&self) -> Option<u16> {
        match self.set {
            Set::Rate { vf, .. }
            | Set::Mac { vf, .. }
            | Set::Vlan { vf, .. }
            | Set::Spoofcheck { vf, .. }
            | Set::Trust { vf, .. }
            | Set::LinkState { vf, .. }
            | Set::Leaf { vf, .. }
            | Set::LeafParent { vf, .. } => Some(vf),
            Set::NewNode { .. } | Set::Node { .. } | Set::NodeParent { .. } | Set::DeleteNode { .. } => None,
        }
    }

    /// Applies this step to `pf`, as a look would show it.
    pub fn done(&self, pf: &mut Pf) {
        match &self.set {
            Set::NewNode { node } => drop(pf.nodes.insert(node.clone(), Node::default())),
            Set::DeleteNode { node } => drop(pf.nodes.remove(node)),
            Set::Node { node, share, max } => {
                if let Some(node) = pf.nodes.get_mut(node) {
                    (node.share, node.max) = (*share, *max);
                }
            }
            Set::NodeParent { node, parent } => {
                if let Some(node) = pf.nodes.get_mut(node) {
                    node.parent = parent.clone();
                }
            }
            _ => {
                if let Some(vf) = self.vf().and_then(|vf| pf.vfs.get_mut(&vf)) {
                    self.done_to(vf);
                }
            }
        }
    }

    fn done_to(&self, vf: &mut Vf) {
        let megabits = |rate: u32| Rate::from_bits(u64::from(rate) * MBIT);
        match &self.set {
            Set::Rate { min, max, .. } => (vf.tx_min, vf.tx_max) = (megabits(*min), megabits(*max)),
            Set::Mac { mac, .. } => vf.mac = Some(*mac).filter(|mac| mac.0 != [0; 6]),
            Set::Vlan { vlan, qos, .. } => (vf.vlan, vf.qos) = (*vlan, *qos),
            Set::Spoofcheck { on, .. } => vf.spoofchk = Some(*on),
            Set::Trust { on, .. } => vf.trust = Some(*on),
            Set::LinkState { state, .. } => vf.link_state = *state,
            Set::Leaf { share, max, .. } => {
                if let Some(leaf) = &mut vf.leaf {
                    (leaf.share, leaf.max) = (*share, *max);
                }
            }
            Set::LeafParent { node, .. } => {
                if let Some(leaf) = &mut vf.leaf {
                    leaf.parent = node.clone();
                }
            }
            Set::NewNode { .. } | Set::Node { .. } | Set::NodeParent { .. } | Set::DeleteNode { .. } => {}
        }
    }

    /// The step that undoes it, given the PF before; `None` if the former setting is unknown, such as a
    /// setting that the driver does not show.
    pub fn inverse(&self, before: &Pf) -> Option<Self> {
        let vf = self.vf().and_then(|vf| before.vfs.get(&vf));
        let set = match &self.set {
            Set::Rate { vf: index, .. } => {
                let (min, max) = vf?.rates_mbit();
                Set::Rate { vf: *index, min, max }
            }
            Set::Mac { vf: index, .. } => Set::Mac { vf: *index, mac: vf?.mac.unwrap_or(Mac([0; 6])) },
            Set::Vlan { vf: index, .. } => Set::Vlan { vf: *index, vlan: vf?.vlan, qos: vf?.qos },
            Set::Spoofcheck { vf: index, .. } => Set::Spoofcheck { vf: *index, on: vf?.spoofchk? },
            Set::Trust { vf: index, .. } => Set::Trust { vf: *index, on: vf?.trust? },
            Set::LinkState { vf: index, .. } => Set::LinkState { vf: *index, state: vf?.link_state },
            Set::Leaf { vf: index, port, .. } => {
                let leaf = vf?.leaf.as_ref()?;
                Set::Leaf { vf: *index, port: *port, share: leaf.share, max: leaf.max }
            }
            Set::LeafParent { vf: index, port, .. } => {
                let node = vf?.leaf.as_ref()?.parent.clone();
                Set::LeafParent { vf: *index, port: *port, node }
            }
            Set::NewNode { node } => Set::DeleteNode { node: node.clone() },
            Set::Node { node, .. } => {
                let was = before.nodes.get(node)?;
                Set::Node { node: node.clone(), share: was.share, max: was.max }
            }
            Set::NodeParent { node, .. } => {
                Set::NodeParent { node: node.clone(), parent: before.nodes.get(node)?.parent.clone() }
            }
            Set::DeleteNode { node } => Set::NewNode { node: node.clone() },
        };
        Some(Self { set, ..self.clone() })
    }
}

impl fmt::Display for Step {
    /// In the terms of `ip link` and `devlink`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pf = &self.pf;
        let (bus, address) = &self.device;
        let on_off = |on: bool| if on { "on" } else { "off" };
        let parent = |node: &Option<String>| match node {
            Some(node) => format!("parent {node}"),
            None => "noparent".into(),
        };
        let rates = |share: u64, max: u64| format!("tx_share {share}Bps tx_max {max}Bps");
        match &self.set {
            Set::Rate { vf, min, max } => {
                write!(f, "set {pf} vf {vf} min_tx_rate {min} max_tx_rate {max} (Mbit/s)")
            }
            Set::Mac { vf, mac } => write!(f, "set {pf} vf {vf} mac {mac}"),
            Set::Vlan { vf, vlan, qos } => write!(f, "set {pf} vf {vf} vlan {vlan} qos {qos}"),
            Set::Spoofcheck { vf, on } => write!(f, "set {pf} vf {vf} spoofchk {}", on_off(*on)),
            Set::Trust { vf, on } => write!(f, "set {pf} vf {vf} trust {}", on_off(*on)),
            Set::LinkState { vf, state } => write!(f, "set {pf} vf {vf} state {state}"),
            Set::Leaf { vf, port, share, max } => {
                write!(f, "set devlink rate {bus}/{address}/{port} (vf {vf}) {}", rates(*share, *max))
            }
            Set::LeafParent { vf, port, node } => {
                write!(f, "set devlink rate {bus}/{address}/{port} (vf {vf}) {}", parent(node))
            }
            Set::NewNode { node } => write!(f, "add devlink rate node {bus}/{address}/{node}"),
            Set::Node { node, share, max } => {
                write!(f, "set devlink rate node {bus}/{address}/{node} {}", rates(*share, *max))
            }
            Set::NodeParent { node, parent: above } => {
                write!(f, "set devlink rate node {bus}/{address}/{node} {}", parent(above))
            }
            Set::DeleteNode { node } => write!(f, "delete devlink rate node {bus}/{address}/{node}"),
        }
    }
}
