//! devlink (linux/devlink.h): who switches between VFs, their ports, their rates.

use super::set::Request;
use crate::pf::{Mode, Node};
use tidegate_netlink::Attributes;
use tidegate_netlink::attribute::{find, string, u16_at, u32_at, u64_at};

/// Name and version of the family.
pub const FAMILY: (&str, u8) = ("devlink", 1);

pub const PORT_GET: u8 = 5;
pub const ESWITCH_GET: u8 = 29;
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

/// Names a device.
pub fn device(device: &(String, String)) -> Attributes {
    let mut attributes = Attributes::default();
    attributes.put_str(BUS_NAME, &device.0);
    attributes.put_str(DEV_NAME, &device.1);
    attributes
}

/// What an answer to [`ESWITCH_GET`] says.
pub fn mode(attributes: &[u8]) -> Option<Mode> {
    let mode = u16_at(find(attributes, ESWITCH_MODE)?, 0)?;
    Some(if mode == SWITCHDEV { Mode::Switchdev } else { Mode::Legacy })
}

/// The port of a VF.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    pub device: (String, String),
    pub index: u32,
    pub vf: u16,
    /// Interface index and name of the representor.
    pub netdev: Option<(u32, String)>,
}

fn device_of(attributes: &[u8]) -> Option<(String, String)> {
    Some((string(find(attributes, BUS_NAME)?), string(find(attributes, DEV_NAME)?)))
}

/// What a port of an answer to [`PORT_GET`] is, where it is a VF's of this host.
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

/// A rate object: of the port with this number, or a node with this name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Object {
    Leaf(u32),
    Node(String),
}

/// A rate object of an answer to [`RATE_GET`], and its device.
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

/// What to send to set the rates of an object.
pub fn set_rates(of: &(String, String), object: &Object, share: u64, max: u64) -> Request {
    let mut attributes = named(of, object);
    attributes.put_u64(RATE_TX_SHARE, share);
    attributes.put_u64(RATE_TX_MAX, max);
    Request::Devlink(RATE_SET, attributes)
}

/// What to send to make an object part of a node, or of none.
pub fn set_parent(of: &(String, String), object: &Object, node: Option<&str>) -> Request {
    let mut attributes = named(of, object);
    // An empty name is no parent.
    attributes.put_str(RATE_PARENT_NODE_NAME, node.unwrap_or_default());
    Request::Devlink(RATE_SET, attributes)
}

/// What to send to make a node.
pub fn new_node(of: &(String, String), name: &str) -> Request {
    Request::Devlink(RATE_NEW, named(of, &Object::Node(name.into())))
}

/// What to send to delete one.
pub fn delete_node(of: &(String, String), name: &str) -> Request {
    Request::Devlink(RATE_DEL, named(of, &Object::Node(name.into())))
}

fn named(of: &(String, String), object: &Object) -> Attributes {
    let mut attributes = device(of);
    match object {
        Object::Leaf(port) => attributes.put_u32(PORT_INDEX, *port),
        Object::Node(name) => attributes.put_str(RATE_NODE_NAME, name),
    }
    attributes
}
