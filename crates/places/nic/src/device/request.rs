//! The netlink message of a step.

use super::step::{Set, Step};
use tidegate_netlink::devlink::{self, Object};
use tidegate_netlink::vf::{self, IFLA_VF_RATE, IFLA_VF_SPOOFCHK, IFLA_VF_TRUST, IFLA_VF_VLAN};

/// A message.
#[derive(Clone, Debug)]
pub enum Request {
    /// The body of an `RTM_SETLINK`.
    Link(Vec<u8>),
    /// A command of devlink.
    Devlink(devlink::Command),
}

/// The message that asks for a step.
pub fn request(step: &Step) -> Request {
    let (index, device) = (step.index, &step.device);
    let link = |kind, fields: &[u32]| Request::Link(vf::set(index, kind, fields));
    match &step.set {
        Set::Rate { vf, min, max } => link(IFLA_VF_RATE, &[(*vf).into(), *min, *max]),
        Set::Vlan { vf, vlan, qos } => link(IFLA_VF_VLAN, &[(*vf).into(), (*vlan).into(), (*qos).into()]),
        Set::Spoofcheck { vf, on } => link(IFLA_VF_SPOOFCHK, &[(*vf).into(), (*on).into()]),
        Set::Trust { vf, on } => link(IFLA_VF_TRUST, &[(*vf).into(), (*on).into()]),
        Set::LinkState { vf, state } => Request::Link(vf::set_link_state(index, *vf, *state)),
        Set::Mac { vf, mac } => Request::Link(vf::set_mac(index, *vf, *mac)),
        Set::Leaf { port, share, max, .. } => {
            Request::Devlink(devlink::set_rates(device, &Object::Leaf(*port), *share, *max))
        }
        Set::LeafParent { port, node, .. } => {
            Request::Devlink(devlink::set_parent(device, &Object::Leaf(*port), node.as_deref()))
        }
        Set::NewNode { node } => Request::Devlink(devlink::new_node(device, node)),
        Set::Node { node, share, max } => {
            Request::Devlink(devlink::set_rates(device, &Object::Node(node.clone()), *share, *max))
        }
        Set::NodeParent { node, parent } => {
            Request::Devlink(devlink::set_parent(device, &Object::Node(node.clone()), parent.as_deref()))
        }
        Set::DeleteNode { node } => Request::Devlink(devlink::delete_node(device, node)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::pf::{Node, Pf};
    use crate::device::vf::{LinkState, Vf};
    use proptest::prelude::*;
    use tidegate_contract::Mac;
    use tidegate_netlink::attribute::{find, read, u32_at};
    use tidegate_netlink::link::{HEADER, header};
    use tidegate_netlink::vf::{IFLA_NUM_VF, IFLA_VFINFO_LIST};

    fn settings() -> impl Strategy<Value = Set> {
        let states = prop_oneof![Just(LinkState::Auto), Just(LinkState::Enable), Just(LinkState::Disable)];
        let vf = any::<u16>();
        prop_oneof![
            (vf, 0..400_000_u32, 0..400_000_u32).prop_map(|(vf, min, max)| Set::Rate { vf, min, max }),
            (vf, any::<[u8; 6]>()).prop_map(|(vf, mac)| Set::Mac { vf, mac: Mac(mac) }),
            (vf, 0..4095_u16, 0..8_u8).prop_map(|(vf, vlan, qos)| Set::Vlan { vf, vlan, qos }),
            (vf, any::<bool>()).prop_map(|(vf, on)| Set::Spoofcheck { vf, on }),
            (vf, any::<bool>()).prop_map(|(vf, on)| Set::Trust { vf, on }),
            (vf, states).prop_map(|(vf, state)| Set::LinkState { vf, state }),
        ]
    }

    proptest! {
        /// The driver's answer has the attributes of the request.
        #[test]
        fn settings_of_vfs_read_back(set in settings()) {
            let pf = Pf { index: 7, ..Pf::default() };
            let Request::Link(body) = request(&Step::on(&pf, set.clone())) else { panic!("not a link's") };
            let list = find(&body[HEADER..], IFLA_VFINFO_LIST).expect("a list");
            // The kernel sends the number of VFs first.
            let mut answer = header(7, 0, 0);
            answer.0[2] = 1;
            answer.put_u32(IFLA_NUM_VF, 1);
            answer.put(IFLA_VFINFO_LIST, list);
            let link = vf::link(&answer.0).expect("a link");
            let (index, info) = link.vfs.first_key_value().expect("one");
            let vf = Vf::from(info.clone());
            let read = match &set {
                Set::Rate { .. } => {
                    let (min, max) = vf.rates_mbit();
                    Set::Rate { vf: *index, min, max }
                }
                Set::Mac { .. } => Set::Mac { vf: *index, mac: vf.mac.unwrap_or(Mac([0; 6])) },
                Set::Vlan { .. } => Set::Vlan { vf: *index, vlan: vf.vlan, qos: vf.qos },
                Set::Spoofcheck { .. } => Set::Spoofcheck { vf: *index, on: vf.spoofchk.expect("reported") },
                Set::Trust { .. } => Set::Trust { vf: *index, on: vf.trust.expect("reported") },
                Set::LinkState { .. } => Set::LinkState { vf: *index, state: vf.link_state },
                other => panic!("{other:?}"),
            };
            prop_assert_eq!(read, set);
        }

        #[test]
        fn rates_of_devlink_read_back(port: u32, share: u64, max: u64, name in "[a-z]{1,9}") {
            let device = ("pci".to_owned(), "0000:03:00.0".to_owned());
            let pf = Pf { bus: device.0.clone(), address: device.1.clone(), ..Pf::default() };
            let answer = |set, kind: u16| {
                let Request::Devlink(mut command) = request(&Step::on(&pf, set)) else { panic!("not devlink's") };
                // The kernel adds the kind of the object (DEVLINK_ATTR_RATE_TYPE).
                command.attributes.put(165, &kind.to_ne_bytes());
                devlink::rate(&command.attributes.0)
            };
            let rates = Node { share, max, parent: None };
            let leaf = answer(Set::Leaf { vf: 0, port, share, max }, 0);
            prop_assert_eq!(leaf, Some((device.clone(), Object::Leaf(port), rates.clone())));
            let node = answer(Set::Node { node: name.clone(), share, max }, 1);
            prop_assert_eq!(node, Some((device.clone(), Object::Node(name.clone()), rates)));
            let part = answer(Set::LeafParent { vf: 0, port, node: Some(name.clone()) }, 0).expect("a leaf").2;
            prop_assert_eq!(part.parent, Some(name));
        }
    }

    #[test]
    fn a_step_is_one_setting_of_one_vf() {
        let pf = Pf { index: 7, ..Pf::default() };
        let Request::Link(body) = request(&Step::on(&pf, Set::Trust { vf: 3, on: true })) else { panic!() };
        assert_eq!(u32_at(&body, 4), Some(7));
        let list: Vec<_> = read(find(&body[HEADER..], IFLA_VFINFO_LIST).expect("a list")).collect();
        assert_eq!(list.len(), 1);
        assert_eq!(read(list[0].1).count(), 1);
    }
}
