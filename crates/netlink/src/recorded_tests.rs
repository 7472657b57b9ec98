//! Messages that kernels sent (`recorded/README.md`), and malformed ones.

use crate::attribute::Attributes;
use crate::devlink::{self, Mode, Node};
use crate::ethtool;
use crate::link::header;
use crate::vf::{self, LinkState, VfInfo};
use proptest::prelude::*;
use tidegate_contract::{Mac, Rate};

fn recorded(name: &str) -> Vec<u8> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/recorded");
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
fn the_vfs_of_an_igb_are_read() {
    let link = vf::link(&recorded("igb-link")).expect("a link");
    assert_eq!((link.name.as_str(), link.up, link.carrier, link.num_vfs), ("eth0", true, true, 2));
    assert_eq!(link.switch, None);
    let info = |index: u16| VfInfo { statistics: None, ..link.vfs[&index].clone() };
    let mac = |last| Some(Mac([0x52, 0x54, 0, 0, 0, last]));
    let plain = VfInfo { mac: mac(0x10), spoofchk: Some(true), trust: Some(false), ..VfInfo::default() };
    assert_eq!(info(0), plain);
    let set = VfInfo {
        mac: mac(0x11),
        vlan: 7,
        qos: 3,
        spoofchk: Some(false),
        trust: Some(true),
        tx_max: mbit(100),
        ..VfInfo::default()
    };
    assert_eq!(info(1), set);
    assert_eq!(link.vfs[&1].statistics, Some(Default::default()), "there, and 0 whatever was sent");
}

#[test]
fn the_speeds_of_an_igb_are_read() {
    assert_eq!(ethtool::speeds(&recorded("igb-link-modes")[GENERIC..]), (mbit(1000), mbit(1000)));
    assert_eq!(ethtool::speeds(&[]), (None, None));
}

#[test]
fn the_vfs_ports_and_rates_of_a_netdevsim_are_read() {
    let link = vf::link(&recorded("netdevsim-link")).expect("a link");
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
fn the_counters_of_a_link_are_read() {
    let (index, statistics) = vf::link_counters(&recorded("netdevsim-statistics")).expect("counted");
    assert_eq!((index, statistics.tx_packets, statistics.tx_bytes, statistics.rx_packets), (2, 2, 140, 0));
}

#[test]
fn representors_are_known_by_their_ports() {
    for (name, vf) in
        [("pf0vf1", Some(1)), ("c1pf12vf255", Some(255)), ("p0", None), ("pf0", None), ("pf0vf", None)]
    {
        assert_eq!(vf::represented(name), vf, "{name}");
    }
    for name in ["pf0sf1", "vf1", "pfvf1", "pf0vf1x", "pf0vf99999"] {
        assert_eq!(vf::represented(name), None, "{name}");
    }
}

/// The message of a PF with so many VFs, as the kernel writes it: the length of the list is cut to 16 bits.
fn pf_with(vfs: u16) -> Vec<u8> {
    let mut list = Attributes::default();
    for index in 0..vfs {
        list.nest(vf::IFLA_VF_INFO, |info| {
            let fields = [u32::from(index), 0, u32::from(index) + 1];
            info.put(vf::IFLA_VF_RATE, &fields.map(u32::to_ne_bytes).concat());
            info.put(vf::IFLA_VF_STATS, &[0; 208]);
        });
    }
    let mut body = header(7, 0, 0);
    body.put_u32(vf::IFLA_NUM_VF, vfs.into());
    body.0.extend((list.0.len() as u16).wrapping_add(4).to_ne_bytes());
    body.0.extend(vf::IFLA_VFINFO_LIST.to_ne_bytes());
    body.0.extend(&list.0);
    body.put_str(vf::IFLA_PHYS_PORT_NAME, "p0");
    body.0
}

#[test]
fn a_list_of_vfs_that_is_longer_than_its_length_can_say_is_read_whole() {
    let most = 600;
    assert!(pf_with(most).len() > usize::from(u16::MAX));
    for vfs in [0, 1, 250, 256, 270, 271, 272, most] {
        let link = vf::link(&pf_with(vfs)).expect("a link");
        assert_eq!(link.vfs.len(), usize::from(vfs));
        assert!(link.vfs.iter().all(|(index, vf)| vf.tx_max == mbit(u64::from(*index) + 1)));
    }
}

proptest! {
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
            let _ = (vf::link(&message), vf::link_counters(&message), ethtool::speeds(&message));
            let _ = (devlink::mode(&message), devlink::port(&message), devlink::rate(&message));
        }
    }
}
