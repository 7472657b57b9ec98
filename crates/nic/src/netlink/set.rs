//! The message of a step.

use super::devlink::{self, Object};
use super::link::*;
use crate::step::{Set, Step};
use crate::vf::LinkState;
use tidegate_netlink::Attributes;
use tidegate_netlink::link::header;

/// What to send.
#[derive(Clone, Debug)]
pub enum Request {
    /// The body of an `RTM_SETLINK`.
    Link(Vec<u8>),
    /// A command of devlink, and its attributes.
    Devlink(u8, Attributes),
}

/// What to send for a step.
pub fn request(step: &Step) -> Request {
    let index = step.index;
    let on = |on: bool| u32::from(on);
    match &step.set {
        Set::Rate { vf, min, max } => link(index, IFLA_VF_RATE, &[(*vf).into(), *min, *max]),
        Set::Vlan { vf, vlan, qos } => {
            link(index, IFLA_VF_VLAN, &[(*vf).into(), (*vlan).into(), (*qos).into()])
        }
        Set::Spoofcheck { vf, on: is } => link(index, IFLA_VF_SPOOFCHK, &[(*vf).into(), on(*is)]),
        Set::Trust { vf, on: is } => link(index, IFLA_VF_TRUST, &[(*vf).into(), on(*is)]),
        Set::LinkState { vf, state } => {
            let state = match state {
                LinkState::Auto => 0,
                LinkState::Enable => 1,
                LinkState::Disable => 2,
            };
            link(index, IFLA_VF_LINK_STATE, &[(*vf).into(), state])
        }
        Set::Mac { vf, mac } => {
            // struct ifla_vf_mac: vf, 32 bytes of address.
            let mut value = [0; 36];
            value[..4].copy_from_slice(&u32::from(*vf).to_ne_bytes());
            value[4..10].copy_from_slice(&mac.0);
            link_bytes(index, IFLA_VF_MAC, &value)
        }
        Set::Leaf { port, share, max, .. } => {
            devlink::set_rates(&step.device, &Object::Leaf(*port), *share, *max)
        }
        Set::LeafParent { port, node, .. } => {
            devlink::set_parent(&step.device, &Object::Leaf(*port), node.as_deref())
        }
        Set::NewNode { node } => devlink::new_node(&step.device, node),
        Set::Node { node, share, max } => {
            devlink::set_rates(&step.device, &Object::Node(node.clone()), *share, *max)
        }
        Set::NodeParent { node, parent } => {
            devlink::set_parent(&step.device, &Object::Node(node.clone()), parent.as_deref())
        }
        Set::DeleteNode { node } => devlink::delete_node(&step.device, node),
    }
}

fn link(index: u32, kind: u16, fields: &[u32]) -> Request {
    let bytes: Vec<u8> = fields.iter().flat_map(|field| field.to_ne_bytes()).collect();
    link_bytes(index, kind, &bytes)
}

fn link_bytes(index: u32, kind: u16, value: &[u8]) -> Request {
    let mut body: Attributes = header(index, 0, 0);
    body.nest(IFLA_VFINFO_LIST, |list| list.nest(IFLA_VF_INFO, |info| info.put(kind, value)));
    Request::Link(body.0)
}
