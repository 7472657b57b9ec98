//! The sockets of an uplink: made here, since the switch may not, and handed to it.
//!
//! ```text
//!  Uplink ─┬▶ receive: local address, VXLAN's port ─┐
//!          ├▶ send: 4 source ports of its own ──────┤
//!          ├▶ pairs: 64 source ports ───────────────┼─▶ switch
//!          ├▶ notices: local address, their port ───┤
//!          └▶ plain NIC: packet or AF_XDP sockets ──┘
//! ```
//!
//! Several sockets send, so that the network can spread flows by the outer source port (RFC 7348, section 5), and further
//! ones for one pair of vNICs with a deadline each, so that it can tell these. None
//! fragments: a datagram beyond the device's MTU is refused to the switch, which counts it. Nor does a socket believe
//! ICMP messages about the path (RFC 8899, section 1.1): any host could send these, and cut the path for all
//! tenants; the contract declares the path's MTU.

use crate::device;
use crate::options::{receive_buffer, send_buffer, set, set_bytes};
use crate::packet;
use crate::peers_only::Group;
use crate::xdp::direct::Direct;
use crate::xdp::{self, Xdp};
use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use tidegate_contract::{Uplink, UplinkKind};

/// Sockets that send.
const SENDING: usize = 4;
/// Sockets that send for one pair of vNICs each.
const PAIRS: usize = tidegate_switch::link::vxlan::lanes::PAIR_LANES;
/// First source port: the dynamic ones (RFC 6335, section 6), as RFC 7348 recommends.
const FIRST_PORT: u16 = 49_152;

/// The sockets of one uplink.
pub struct Sockets {
    /// Bound to the uplink's port, or device.
    pub receive: Vec<OwnedFd>,
    /// Each with a source port of its own; of AF_XDP the memory of each queue, and the program's link.
    pub send: Vec<OwnedFd>,
    /// The same, each for one pair of vNICs.
    pub pairs: Vec<OwnedFd>,
    /// Sends and receives notices, bound to their port; none of a plain NIC.
    pub notices: Option<OwnedFd>,
    /// Of AF_XDP, what is not for the switch.
    pub(crate) xdp: Option<(Direct, Option<String>)>,
}

/// Sockets that the switch has, too, kept for the next switch.
pub(crate) struct KeptSockets {
    /// The uplink that they were made for.
    pub(crate) uplink: Uplink,
    pub(crate) sockets: Sockets,
    /// Where they reach; `None` without a filter.
    pub(crate) group: Option<Group>,
}

impl KeptSockets {
    /// Returns where the sockets reach; nothing if no filter limits them.
    pub(crate) fn destinations(&self) -> BTreeSet<SocketAddr> {
        self.group.as_ref().map(|group| group.destinations().clone()).unwrap_or_default()
    }
}

impl Sockets {
    /// Returns all of them.
    pub(crate) fn all(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.receive.iter().chain(&self.send).chain(&self.pairs).chain(&self.notices).map(AsFd::as_fd)
    }
}

/// Whether the sockets of one uplink serve the other.
pub(crate) fn same_sockets(a: &Uplink, b: &Uplink) -> bool {
    // The filter of a plain NIC's socket has its VLANs, and the link knows its longest frame.
    let vlans = |uplink: &Uplink| uplink.is_plain().then(|| (device::vlans(uplink), uplink.mtu));
    (&a.name, a.kind, a.local, a.port, &a.device) == (&b.name, b.kind, b.local, b.port, &b.device)
        && a.notice_port == b.notice_port
        && vlans(a) == vlans(b)
}

/// Returns the device that these sockets are bound to, if it is gone: a device that is made under its name is another
/// one to them. Of a plain NIC the link itself tells.
pub(crate) fn lost_device(kept: &KeptSockets) -> Option<&str> {
    let device = kept.uplink.device.as_deref().filter(|_| !kept.uplink.is_plain())?;
    let socket = kept.sockets.receive.first()?;
    (!has_device(socket)).then_some(device)
}

/// Whether the device that a socket is bound to exists, under whatever name.
fn has_device(socket: &OwnedFd) -> bool {
    let mut name = [0u8; libc::IFNAMSIZ];
    let mut len = name.len() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes, the size of `name`.
    let done = unsafe {
        let at = name.as_mut_ptr().cast();
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_BINDTODEVICE, at, &raw mut len)
    };
    done == 0 && name[0] != 0
}

/// Makes the sockets of an uplink, for a switch of which so many workers may receive from a queue of a NIC.
///
/// # Errors
/// The address is not this host's, the port is taken, or the device does not exist: what to do.
pub fn open(uplink: &Uplink, workers: usize) -> Result<Sockets, String> {
    match uplink.kind {
        UplinkKind::Vxlan => vxlan(uplink),
        UplinkKind::Packet => {
            let socket = packet::open(uplink)?;
            let send = socket.try_clone().map_err(|error| format!("uplink {}: {error}", uplink.name))?;
            Ok(Sockets { receive: vec![socket], send: vec![send], pairs: vec![], notices: None, xdp: None })
        }
        UplinkKind::Xdp => {
            let Xdp { sockets, mut memories, program, direct, note } = xdp::open(uplink, workers)?;
            memories.push(program);
            let xdp = Some((direct, note));
            Ok(Sockets { receive: sockets, send: memories, pairs: vec![], notices: None, xdp })
        }
    }
}

fn vxlan(uplink: &Uplink) -> Result<Sockets, String> {
    let name = &uplink.name;
    let local = uplink.local.ok_or_else(|| format!("uplink {name}: it has no local address"))?;
    let explained = |port| move |error: io::Error| explain(uplink, local, port, &error);
    let receive = receiving(uplink, local).map_err(explained(uplink.port))?;
    let notices = noticing(uplink, local).map_err(explained(uplink.notice_port))?;
    let mut ports = FIRST_PORT..=u16::MAX;
    let mut open = |count| (0..count).map(|_| sending(uplink, local, &mut ports)).collect::<io::Result<_>>();
    let send = open(SENDING).and_then(|send| Ok((send, open(PAIRS)?)));
    let (send, pairs) = send.map_err(|error| format!("uplink {name}: no socket to send from: {error}"))?;
    Ok(Sockets { receive: vec![receive], send, pairs, notices: Some(notices), xdp: None })
}

fn receiving(uplink: &Uplink, local: IpAddr) -> io::Result<OwnedFd> {
    let socket = socket(uplink, local)?;
    set(&socket, libc::SOL_UDP, libc::UDP_GRO, 1)?;
    // A switch that sleeps does not see when frames arrive; the kernel does.
    set(&socket, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1)?;
    match local {
        IpAddr::V4(_) => set(&socket, libc::IPPROTO_IP, libc::IP_RECVTOS, 1)?,
        IpAddr::V6(_) => set(&socket, libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, 1)?,
    }
    receive_buffer(&socket)?;
    rustix::net::bind(&socket, &SocketAddr::new(local, uplink.port))?;
    Ok(socket)
}

/// Makes the socket of notices: small messages, which any path carries.
fn noticing(uplink: &Uplink, local: IpAddr) -> io::Result<OwnedFd> {
    let socket = socket(uplink, local)?;
    rustix::net::bind(&socket, &SocketAddr::new(local, uplink.notice_port))?;
    Ok(socket)
}

/// Makes a socket on the next free one of `ports`.
fn sending(uplink: &Uplink, local: IpAddr, ports: &mut impl Iterator<Item = u16>) -> io::Result<OwnedFd> {
    let socket = socket(uplink, local)?;
    match local {
        IpAddr::V4(_) => set(&socket, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE)?,
        IpAddr::V6(_) => {
            set(&socket, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_PROBE)?;
        }
    }
    send_buffer(&socket)?;
    for port in ports {
        match rustix::net::bind(&socket, &SocketAddr::new(local, port)) {
            Ok(()) => return Ok(socket),
            Err(rustix::io::Errno::ADDRINUSE) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(io::Error::other(format!("all ports from {FIRST_PORT} on are in use")))
}

/// Makes a socket of the uplink's family, bound to its device if it names one.
fn socket(uplink: &Uplink, local: IpAddr) -> io::Result<OwnedFd> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with, sockopt};
    let family = if local.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(family, SocketType::DGRAM, flags, None)?;
    if family == AddressFamily::INET6 {
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    if let Some(device) = &uplink.device {
        let name = device.as_bytes();
        set_bytes(&socket, libc::SOL_SOCKET, libc::SO_BINDTODEVICE, name)?;
    }
    Ok(socket)
}

fn explain(uplink: &Uplink, local: IpAddr, port: u16, error: &io::Error) -> String {
    let Uplink { name, .. } = uplink;
    match error.raw_os_error() {
        Some(libc::EADDRINUSE) if port == uplink.notice_port => format!(
            "uplink {name}: UDP port {port} of {local}, for notices between hosts, is in use by another program (ss \
             -ulnp sport = {port}): end that program, or give the uplink another notice-port, here and at its peers"
        ),
        Some(libc::EADDRINUSE) => format!(
            "uplink {name}: UDP port {port} of {local} is in use, by a vxlan interface of the kernel, Open vSwitch or \
             another program (ss -ulnp sport = {port}): end that use, or give the uplink another port"
        ),
        Some(libc::EADDRNOTAVAIL) => format!(
            "uplink {name}: local = {local} is no address of this host (ip address): add it, or correct the contract"
        ),
        Some(libc::ENODEV) => format!(
            "uplink {name}: there is no network device {}: make it, or correct the contract",
            uplink.device.as_deref().unwrap_or_default()
        ),
        _ => format!("uplink {name}: no socket at {local}, port {port}: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;

    fn uplink(local: &str, port: u16) -> Uplink {
        let notices = port ^ 0x4000;
        let text = format!(
            r#"{{"name":"net0","local":"{local}","port":{port},"notice_port":{notices},"rate":"10gbit","peers":[]}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn each_sending_socket_has_a_port_of_its_own() {
        for local in ["127.0.0.1", "::1"] {
            let Sockets { receive, send, pairs, notices, .. } = open(&uplink(local, 14_789), 1).unwrap();
            let address = |socket: OwnedFd| UdpSocket::from(socket).local_addr().unwrap();
            let receive: Vec<_> = receive.into_iter().map(address).collect();
            assert_eq!(receive, [SocketAddr::new(local.parse().unwrap(), 14_789)]);
            assert_eq!(address(notices.unwrap()), SocketAddr::new(local.parse().unwrap(), 14_789 ^ 0x4000));
            let mut ports: Vec<_> =
                send.into_iter().chain(pairs).map(|socket| address(socket).port()).collect();
            ports.dedup();
            assert_eq!(ports.len(), SENDING + PAIRS);
            assert!(ports.iter().all(|port| *port >= FIRST_PORT));
        }
    }

    #[test]
    fn a_refusal_says_what_to_do() {
        let taken = UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        let refused = |uplink: &Uplink| open(uplink, 1).map(drop).unwrap_err();
        assert!(refused(&uplink("127.0.0.1", port)).contains("is in use, by a vxlan interface"));
        let why = refused(&Uplink { notice_port: port, ..uplink("127.0.0.1", 14_791) });
        assert!(why.contains("for notices between hosts, is in use by another program"), "{why}");
        assert!(refused(&uplink("192.0.2.77", 4789)).contains("is no address of this host"));
        let device = Some("none0".into());
        let why = refused(&Uplink { device, ..uplink("127.0.0.1", 14_790) });
        assert!(why.contains("there is no network device none0"), "{why}");
    }
}
