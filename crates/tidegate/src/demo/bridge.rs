//! The scene of the kernel place: a Linux bridge, and a veth for each tenant. One end is a port of the
//! bridge, like a VM's tap; the other is the tenant's `eth0`.

use super::contracts::port;
use super::process::Tenant;
use super::tenant::INTERFACE;
use super::{SceneError, interface};
use std::fs::File;
use std::os::fd::AsRawFd;
use tidegate_netlink::attribute::Attributes;
use tidegate_netlink::{Socket, link::header as link_header};

const BRIDGE: &str = "tg-bridge";

/// Numbers of rtnetlink (linux/rtnetlink.h, if_link.h, veth.h).
const RTM_NEWLINK: u16 = 16;
const NLM_F_EXCL: u16 = 0x200;
const NLM_F_CREATE: u16 = 0x400;
const IFLA_IFNAME: u16 = 3;
const IFLA_MASTER: u16 = 10;
const IFLA_LINKINFO: u16 = 18;
const IFLA_NET_NS_FD: u16 = 28;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const VETH_INFO_PEER: u16 = 1;

pub fn build(tenants: &[Tenant; 4]) -> Result<(), SceneError> {
    let failed = |what: &str, e: &dyn std::fmt::Display| SceneError::new(format!("cannot make {what}: {e}"));
    let mut socket = Socket::route().map_err(|e| failed("interfaces", &e))?;
    let mut make = |name: &str, body: Attributes| -> Result<(), SceneError> {
        let made = socket.change(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, &body.0);
        made.map_err(|e| failed(&format!("interface {name}"), &e))?;
        interface::up(name).map_err(|e| failed(&format!("interface {name}"), &e))
    };
    let mut bridge = link_header(0, 0, 0);
    bridge.put_str(IFLA_IFNAME, BRIDGE);
    bridge.nest(IFLA_LINKINFO, |info| info.put_str(IFLA_INFO_KIND, "bridge"));
    make(BRIDGE, bridge)?;
    let master = interface::index(BRIDGE).map_err(|e| failed("a bridge", &e))?;
    for (index, tenant) in tenants.iter().enumerate() {
        let namespace = File::open(tenant.namespace()).map_err(|e| failed("a tenant's interface", &e))?;
        let name = port(index);
        let mut veth = link_header(0, 0, 0);
        veth.put_str(IFLA_IFNAME, &name);
        veth.put_u32(IFLA_MASTER, master);
        let mut peer = link_header(0, 0, 0);
        peer.put_str(IFLA_IFNAME, INTERFACE);
        peer.put_u32(IFLA_NET_NS_FD, namespace.as_raw_fd().cast_unsigned());
        veth.nest(IFLA_LINKINFO, |info| {
            info.put_str(IFLA_INFO_KIND, "veth");
            info.nest(IFLA_INFO_DATA, |data| data.put(VETH_INFO_PEER, &peer.0));
        });
        make(&name, veth)?;
    }
    Ok(())
}
