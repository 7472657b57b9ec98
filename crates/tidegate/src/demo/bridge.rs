//! The scene of the kernel place: a Linux bridge, and a veth for each tenant. One end is a port of the
//! bridge, like a VM's tap; the other is the tenant's `eth0`.

use super::contracts::port;
use super::process::Tenant;
use super::tenant::INTERFACE;
use super::{SceneError, interface};
use std::fs::File;
use std::os::fd::AsRawFd;
use tidegate_netlink::attribute::Attributes;
use tidegate_netlink::{Socket, link};

const BRIDGE: &str = "tg-bridge";

/// linux/if_link.h.
const IFLA_MASTER: u16 = 10;

pub fn build(tenants: &[Tenant; 4]) -> Result<(), SceneError> {
    let failed = |what: &str, e: &dyn std::fmt::Display| SceneError::new(format!("cannot make {what}: {e}"));
    let mut socket = Socket::route().map_err(|e| failed("interfaces", &e))?;
    let mut make = |name: &str, body: Attributes| -> Result<(), SceneError> {
        let made = socket.change(link::RTM_NEWLINK, link::NEW, &body.0);
        made.map_err(|e| failed(&format!("interface {name}"), &e))?;
        interface::up(name).map_err(|e| failed(&format!("interface {name}"), &e))
    };
    let mut bridge = link::header(0, 0, 0);
    bridge.put_str(link::IFLA_IFNAME, BRIDGE);
    bridge.nest(link::IFLA_LINKINFO, |info| info.put_str(link::IFLA_INFO_KIND, "bridge"));
    make(BRIDGE, bridge)?;
    let master = interface::index(BRIDGE).map_err(|e| failed("a bridge", &e))?;
    for (index, tenant) in tenants.iter().enumerate() {
        let namespace = File::open(tenant.namespace()).map_err(|e| failed("a tenant's interface", &e))?;
        let name = port(index);
        let mut veth = link::header(0, 0, 0);
        veth.put_str(link::IFLA_IFNAME, &name);
        veth.put_u32(IFLA_MASTER, master);
        let mut peer = link::header(0, 0, 0);
        peer.put_str(link::IFLA_IFNAME, INTERFACE);
        peer.put_u32(link::IFLA_NET_NS_FD, namespace.as_raw_fd().cast_unsigned());
        veth.nest(link::IFLA_LINKINFO, |info| {
            info.put_str(link::IFLA_INFO_KIND, "veth");
            info.nest(link::IFLA_INFO_DATA, |data| data.put(link::VETH_INFO_PEER, &peer.0));
        });
        make(&name, veth)?;
    }
    Ok(())
}
