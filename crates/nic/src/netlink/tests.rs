//! Messages that kernels sent (`recorded/README.md`), and ones that none should.

use super::set::{Request, request};
use super::{devlink, ethtool, link};
use crate::pf::{Mode, Node, Pf};
use crate::step::{Set, Step};
use crate::vf::{LinkState, Vf};
use proptest::prelude::*;
use tidegate_contract::{Mac, Rate};
use tidegate_netlink::attribute::{Attributes, find, read, u32_at};
use tidegate_netlink::link::{HEADER, header};

fn recorded(name: &str) -> Vec<u8> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/netlink/recorded");
    let text = std::fs::read_to_string(format!("{folder}/{name}.hex")).expect("recorded");
    let digits: Vec<u8> = text.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).expect("text"), 16).expect("hex");
    digits.chunks(2).map(byte).collect()
}

const GENERIC: usize = 4;

fn mbit(n: u64) -> Option<Rate> {
    Rate::from_bits(n * 1_000_000)
}

#[test]
fn an_igb_says_its_vfs() {
    let link = link::link(&recorded("igb-link")).expect("a link");
    assert_eq!((link.name.as_str(), link.up, link.carrier, link.num_vfs), ("eth0", true, true, 2));
    assert_eq!(link.switch, None);
    let vf = |index: u16| Vf { statistics: None, ..link.vfs[&index].clone() };
    let mac = |last| Some(Mac([0x52, 0x54, 0, 0, 0, last]));
    let plain = Vf { mac: mac(0x10), spoofchk: Some(true), trust: Some(false), ..Vf::default() };
    assert_eq!(vf(0), plain);
    let set = Vf {
        mac: mac(0x11),
        vlan: 7,
        qos: 3,
        spoofchk: Some(false),
        trust: Some(true),
        tx_max: mbit(100),
        ..Vf::default()
    };
    assert_eq!(vf(1), set);
    assert_eq!(link.vfs[&1].statistics, Some(Default::default()), "there, and 0 whatever was sent");
}

#[test]
fn an_igb_says_its_speeds() {
    assert_eq!(ethtool::speeds(&recorded("igb-link-modes")[GENERIC..]), (mbit(1000), mbit(1000)));
    assert_eq!(ethtool::speeds(&[]), (None, None));
}

#[test]
fn a_netdevsim_says_its_vfs_ports_and_rates() {
    let link = link::link(&recorded("netdevsim-link")).expect("a link");
    assert!(link.switch.is_some(), "a port of a switch");
    assert_eq!(link.vfs[&0].link_state, LinkState::Enable);
    assert_eq!(link.vfs[&1].link_state, LinkState::Disable);
    assert_eq!((link.vfs[&0].tx_min, link.vfs[&0].tx_max), (mbit(100), mbit(1000)), "what the leaf was told");
    assert_eq!(link.vfs[&0].mac, None, "given none");

    let said = |name| recorded(name)[GENERIC..].to_vec();
    assert_eq!(devlink::mode(&said("netdevsim-eswitch")), Some(Mode::Switchdev));
    assert_eq!(devlink::port(&said("netdevsim-port-physical")), None);
    let device = ("netdevsim".to_owned(), "netdevsim1".to_owned());
    let port = devlink::Port { device: device.clone(), index: 128, vf: 0, netdev: Some((3, "eth1".into())) };
    assert_eq!(devlink::port(&said("netdevsim-port-vf0")), Some(port));
    let leaf = Node { share: 12_500_000, max: 125_000_000, parent: Some("tenant".into()) };
    assert_eq!(
        devlink::rate(&said("netdevsim-rate-leaf")),
        Some((device.clone(), devlink::Object::Leaf(128), leaf))
    );
    let node = Node { share: 0, max: 250_000_000, parent: None };
    let tenant = devlink::Object::Node("tenant".into());
    assert_eq!(devlink::rate(&said("netdevsim-rate-node")), Some((device, tenant, node)));
}

#[test]
fn a_link_says_what_it_counted() {
    let (index, statistics) = link::link_statistics(&recorded("netdevsim-statistics")).expect("counted");
    assert_eq!((index, statistics.tx_packets, statistics.tx_bytes, statistics.rx_packets), (2, 2, 140, 0));
}

#[test]
fn representors_are_known_by_their_ports() {
    for (name, vf) in
        [("pf0vf1", Some(1)), ("c1pf12vf255", Some(255)), ("p0", None), ("pf0", None), ("pf0vf", None)]
    {
        assert_eq!(link::represented(name), vf, "{name}");
    }
    for name in ["pf0sf1", "vf1", "pfvf1", "pf0vf1x", "pf0vf99999"] {
        assert_eq!(link::represented(name), None, "{name}");
    }
}

/// The message of a PF with so many VFs, as the kernel writes it: the length of the list is cut to 16 bits.
fn pf_with(vfs: u16) -> Vec<u8> {
    let mut list = Attributes::default();
    for index in 0..vfs {
        list.nest(link::IFLA_VF_INFO, |info| {
            let fields = [u32::from(index), 0, u32::from(index) + 1];
            info.put(link::IFLA_VF_RATE, &fields.map(u32::to_ne_bytes).concat());
            info.put(link::IFLA_VF_STATS, &[0; 208]);
        });
    }
    let mut body = header(7, 0, 0);
    body.put_u32(link::IFLA_NUM_VF, vfs.into());
    body.0.extend((list.0.len() as u16).wrapping_add(4).to_ne_bytes());
    body.0.extend(link::IFLA_VFINFO_LIST.to_ne_bytes());
    body.0.extend(&list.0);
    body.put_str(link::IFLA_PHYS_PORT_NAME, "p0");
    body.0
}

#[test]
fn a_list_of_vfs_that_is_longer_than_its_length_can_say_is_read_whole() {
    let most = 600;
    assert!(pf_with(most).len() > usize::from(u16::MAX));
    for vfs in [0, 1, 250, 256, 270, 271, 272, most] {
        let link = link::link(&pf_with(vfs)).expect("a link");
        assert_eq!(link.vfs.len(), usize::from(vfs));
        assert!(link.vfs.iter().all(|(index, vf)| vf.tx_max == mbit(u64::from(*index) + 1)));
    }
}

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
    /// What a driver is told is what it says then: both are the same attributes.
    #[test]
    fn settings_of_vfs_read_back(set in settings()) {
        let pf = Pf { index: 7, ..Pf::default() };
        let Request::Link(body) = request(&Step::on(&pf, set.clone())) else { panic!("not a link's") };
        let list = find(&body[HEADER..], link::IFLA_VFINFO_LIST).expect("a list");
        // As the kernel sends it: with the number of VFs before.
        let mut said = header(7, 0, 0);
        said.0[2] = 1;
        said.put_u32(link::IFLA_NUM_VF, 1);
        said.put(link::IFLA_VFINFO_LIST, list);
        let link = link::link(&said.0).expect("a link");
        let (index, vf) = link.vfs.first_key_value().expect("one");
        let again = match &set {
            Set::Rate { .. } => {
                let (min, max) = vf.rates_mbit();
                Set::Rate { vf: *index, min, max }
            }
            Set::Mac { .. } => Set::Mac { vf: *index, mac: vf.mac.unwrap_or(Mac([0; 6])) },
            Set::Vlan { .. } => Set::Vlan { vf: *index, vlan: vf.vlan, qos: vf.qos },
            Set::Spoofcheck { .. } => Set::Spoofcheck { vf: *index, on: vf.spoofchk.expect("said") },
            Set::Trust { .. } => Set::Trust { vf: *index, on: vf.trust.expect("said") },
            Set::LinkState { .. } => Set::LinkState { vf: *index, state: vf.link_state },
            other => panic!("{other:?}"),
        };
        prop_assert_eq!(again, set);
    }

    #[test]
    fn rates_of_devlink_read_back(port: u32, share: u64, max: u64, name in "[a-z]{1,9}") {
        let device = ("pci".to_owned(), "0000:03:00.0".to_owned());
        let pf = Pf { bus: device.0.clone(), address: device.1.clone(), ..Pf::default() };
        let said = |set, kind: u16| {
            let Request::Devlink(_, mut body) = request(&Step::on(&pf, set)) else { panic!("not devlink's") };
            // The kernel says the kind of the object besides.
            body.put(165, &kind.to_ne_bytes());
            devlink::rate(&body.0)
        };
        let rates = Node { share, max, parent: None };
        let leaf = said(Set::Leaf { vf: 0, port, share, max }, 0);
        prop_assert_eq!(leaf, Some((device.clone(), devlink::Object::Leaf(port), rates.clone())));
        let node = said(Set::Node { node: name.clone(), share, max }, 1);
        prop_assert_eq!(node, Some((device.clone(), devlink::Object::Node(name.clone()), rates)));
        let part = said(Set::LeafParent { vf: 0, port, node: Some(name.clone()) }, 0).expect("a leaf").2;
        prop_assert_eq!(part.parent, Some(name));
    }

    #[test]
    fn no_message_panics(bytes: Vec<u8>, changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8)) {
        let names = ["igb-link", "igb-link-modes", "netdevsim-link", "netdevsim-statistics", "netdevsim-rate-leaf"];
        let messages = names.map(recorded).into_iter().map(|mut message| {
            for (index, byte) in &changes {
                *index.get_mut(&mut message) = *byte;
            }
            message
        });
        for message in messages.chain([bytes]) {
            let _ = (link::link(&message), link::link_statistics(&message), ethtool::speeds(&message));
            let _ = (devlink::mode(&message), devlink::port(&message), devlink::rate(&message));
        }
    }
}

#[test]
fn a_step_is_one_setting_of_one_vf() {
    let pf = Pf { index: 7, ..Pf::default() };
    let Request::Link(body) = request(&Step::on(&pf, Set::Trust { vf: 3, on: true })) else { panic!() };
    assert_eq!(u32_at(&body, 4), Some(7));
    let list: Vec<_> = read(find(&body[HEADER..], link::IFLA_VFINFO_LIST).expect("a list")).collect();
    assert_eq!(list.len(), 1);
    assert_eq!(read(list[0].1).count(), 1);
}
