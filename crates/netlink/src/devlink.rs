//! devlink (linux/devlink.h): the switch between VFs, their ports, their rates.

use crate::attribute::{Attributes, find, string, u16_at, u32_at, u64_at};

/// Name and version of the generic netlink family.
pub const FAMILY: (&str, u8) = ("devlink", 1);

/// Asks for ports.
pub const PORT_GET: u8 = 5;
/// Asks for the switch mode of a device.
pub const ESWITCH_GET: u8 = 29;
/// Asks for rate objects.
pub const RATE_GET: u8 = 74;
const RATE_SET: u8 = 75;
const RATE_NEW: u8 = 76;
const RATE_DEL: u8 = 77;

const BUS_NAME: u16 = 1;
const DEV_NAME: u16 = 2;
const PORT_INDEX: u16 = 3;
const PORT_NETDEV_IFINDEX: u16 = 6;
const PORT_NETDEV_NAME: u16 = 7;
const ESWITCH_MODE: u16 = 25;
const PORT_FLAVOUR: u16 = 77;
const PORT_PCI_VF_NUMBER: u16 = 128;
const PORT_EXTERNAL: u16 = 149;
const RATE_TYPE: u16 = 165;
const RATE_TX_SHARE: u16 = 166;
const RATE_TX_MAX: u16 = 167;
const RATE_NODE_NAME: u16 = 168;
const RATE_PARENT_NODE_NAME: u16 = 169;

const SWITCHDEV: u16 = 1;
const FLAVOUR_PCI_VF: u16 = 4;
const TYPE_LEAF: u16 = 0;
const TYPE_NODE: u16 = 1;

/// The switch between the VFs (`devlink dev eswitch show`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// The NIC switches, by MAC address and VLAN. Also the mode of drivers without devlink.
    #[default]
    Legacy,
    /// The host switches, by rules for representors.
    Switchdev,
}

/// The rates of a rate object. A rate node is a group of VFs that share a rate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// Guaranteed rate (`tx_share`), bytes per second; 0 if there is none.
    pub share: u64,
    /// Maximum (`tx_max`), bytes per second; 0 if there is no limit.
    pub max: u64,
    /// The node that it is part of.
    pub parent: Option<String>,
}

/// A request that changes something.
#[derive(Clone, Debug)]
pub struct Command {
    /// Its number in the family.
    pub number: u8,
    /// Its attributes.
    pub attributes: Attributes,
}

/// Names a device by bus and address, such as `pci` and `0000:03:00.0`.
pub fn device(device: &(String, String)) -> Attributes {
    let mut attributes = Attributes::default();
    attributes.put_str(BUS_NAME, &device.0);
    attributes.put_str(DEV_NAME, &device.1);
    attributes
}

/// The mode, from an answer to [`ESWITCH_GET`].
pub fn mode(attributes: &[u8]) -> Option<Mode> {
    let mode = u16_at(find(attributes, ESWITCH_MODE)?, 0)?;
    Some(if mode == SWITCHDEV { Mode::Switchdev } else { Mode::Legacy })
}

/// The port of a VF.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Bus and address of its device.
    pub device: (String, String),
    /// devlink's number of the port.
    pub index: u32,
    /// The VF's number.
    pub vf: u16,
    /// Interface index and name of the representor.
    pub netdev: Option<(u32, String)>,
}

fn device_of(attributes: &[u8]) -> Option<(String, String)> {
    Some((string(find(attributes, BUS_NAME)?), string(find(attributes, DEV_NAME)?)))
}

/// The port of a VF of this host, from an answer to [`PORT_GET`]; `None` for other ports.
pub fn port(attributes: &[u8]) -> Option<Port> {
    let external = find(attributes, PORT_EXTERNAL).and_then(<[u8]>::first).is_some_and(|is| *is != 0);
    if u16_at(find(attributes, PORT_FLAVOUR)?, 0)? != FLAVOUR_PCI_VF || external {
        return None;
    }
    let netdev = find(attributes, PORT_NETDEV_IFINDEX).and_then(|value| u32_at(value, 0));
    let name = find(attributes, PORT_NETDEV_NAME).map(string);
    Some(Port {
        device: device_of(attributes)?,
        index: u32_at(find(attributes, PORT_INDEX)?, 0)?,
        vf: u16_at(find(attributes, PORT_PCI_VF_NUMBER)?, 0)?,
        netdev: netdev.zip(name),
    })
}

/// The name of a rate object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Object {
    /// Of the port with this number.
    Leaf(u32),
    /// The node with this name.
    Node(String),
}

/// Device, name and rates of a rate object, from an answer to [`RATE_GET`].
pub fn rate(attributes: &[u8]) -> Option<((String, String), Object, Node)> {
    let number = |kind| find(attributes, kind).and_then(|value| u64_at(value, 0)).unwrap_or_default();
    let object = match u16_at(find(attributes, RATE_TYPE)?, 0)? {
        TYPE_LEAF => Object::Leaf(u32_at(find(attributes, PORT_INDEX)?, 0)?),
        TYPE_NODE => Object::Node(string(find(attributes, RATE_NODE_NAME)?)),
        _ => return None,
    };
    let node = Node {
        share: number(RATE_TX_SHARE),
        max: number(RATE_TX_MAX),
        parent: find(attributes, RATE_PARENT_NODE_NAME).map(string),
    };
    Some((device_of(attributes)?, object, node))
}

/// Sets the rates of an object, bytes per second.
pub fn set_rates(of: &(String, String), object: &Object, share: u64, max: u64) -> Command {
    let mut attributes = named(of, object);
    attributes.put_u64(RATE_TX_SHARE, share);
    attributes.put_u64(RATE_TX_MAX, max);
    Command { number: RATE_SET, attributes }
}

/// Makes an object part of a node, or of none.
pub fn set_parent(of: &(String, String), object: &Object, node: Option<&str>) -> Command {
    let mut attributes = named(of, object);
    // An empty name is no parent.
    attributes.put_str(RATE_PARENT_NODE_NAME, node.unwrap_or_default());
    Command { number: RATE_SET, attributes }
}

/// Makes a node.
pub fn new_node(of: &(String, String), name: &str) -> Command {
    Command { number: RATE_NEW, attributes: named(of, &Object::Node(name.into())) }
}

/// Deletes a node.
pub fn delete_node(of: &(String, String), name: &str) -> Command {
    Command { number: RATE_DEL, attributes: named(of, &Object::Node(name.into())) }
}

fn named(of: &(String, String), object: &Object) -> Attributes {
    let mut attributes = device(of);
    match object {
        Object::Leaf(port) => attributes.put_u32(PORT_INDEX, *port),
        Object::Node(name) => attributes.put_str(RATE_NODE_NAME, name),
    }
    attributes
}
