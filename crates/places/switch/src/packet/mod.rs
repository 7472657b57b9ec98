//! The packet socket of a plain NIC (packet(7)): made here, since the switch may not, and handed to it.
//!
//! ```text
//!  device ─ promiscuous ─▶ filter: VLANs of the contract ─▶ socket ─▶ switch
//!  device ◀──────────────────────────────────────────────── socket ◀─ switch
//! ```
//!
//! The filter is locked: no holder of the socket can take it off. A frame is queued with the offloads that the kernel left undone
//! (`PACKET_VNET_HDR`) and with its tag (`PACKET_AUXDATA`); frames that this host sends are not.

mod filter;

use crate::options::{receive_buffer, send_buffer, set, set_bytes};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use tidegate_contract::{Segment, Uplink};

/// Options of packet sockets (linux/if_packet.h).
const PACKET_IGNORE_OUTGOING: libc::c_int = 23;

/// Makes the socket of a plain NIC.
///
/// # Errors
/// The device does not exist, is no Ethernet device, or has a smaller MTU: what to do.
pub(crate) fn open(uplink: &Uplink) -> Result<OwnedFd, String> {
    let name = &uplink.name;
    let device = uplink.device.as_deref().ok_or_else(|| format!("uplink {name}: it has no device"))?;
    let socket = packet_socket().map_err(|error| {
        format!(
            "uplink {name}: no packet socket: {error} (the agent's unit needs CapabilityBoundingSet=CAP_NET_RAW and \
             RestrictAddressFamilies=AF_PACKET)"
        )
    })?;
    let index = rustix::net::netdevice::name_to_index(&socket, device).map_err(|_| {
        format!("uplink {name}: there is no network device {device}: make it, or correct the contract")
    })?;
    let request = |option, what| {
        ask(&socket, device, option).map_err(|error| format!("uplink {name}: {what} of {device}: {error}"))
    };
    // SAFETY: the kernel filled the address, whose family is its first field.
    let family = unsafe { request(libc::SIOCGIFHWADDR, "the type")?.ifr_ifru.ifru_hwaddr.sa_family };
    if family != libc::ARPHRD_ETHER {
        return Err(format!("uplink {name}: {device} is no Ethernet device (type {family})"));
    }
    // SAFETY: the kernel filled the MTU.
    let mtu = unsafe { request(libc::SIOCGIFMTU, "the MTU")?.ifr_ifru.ifru_mtu };
    if i64::from(mtu) < i64::from(uplink.mtu) {
        return Err(format!(
            "uplink {name}: {device} has an MTU of {mtu} bytes, and mtu = {} there: write mtu = {mtu}, or set the \
             device's (ip link set {device} mtu {})",
            uplink.mtu, uplink.mtu
        ));
    }
    prepare(&socket, index, &filter::filter(&vlans(uplink)))
        .map_err(|error| format!("uplink {name}: no packet socket at {device}: {error}"))?;
    Ok(socket)
}

/// Returns the VLANs of a plain NIC, in order.
pub(crate) fn vlans(uplink: &Uplink) -> Vec<u16> {
    let listed = uplink.peers.iter().flat_map(|peer| peer.segments.iter().flatten());
    let mut vlans: Vec<u16> =
        listed.copied().map(Segment::id).filter_map(|id| u16::try_from(id).ok()).collect();
    vlans.sort_unstable();
    vlans.dedup();
    vlans
}

/// Returns a packet socket of no device, which receives nothing.
fn packet_socket() -> io::Result<OwnedFd> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    Ok(socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None)?)
}

/// Sets all options, then binds the socket to the device: from then on it receives.
fn prepare(socket: &OwnedFd, index: u32, filter: &[libc::sock_filter]) -> io::Result<()> {
    attach(socket, filter)?;
    set(socket, libc::SOL_SOCKET, libc::SO_LOCK_FILTER, 1)?;
    for option in [libc::PACKET_VNET_HDR, libc::PACKET_AUXDATA, PACKET_IGNORE_OUTGOING] {
        set(socket, libc::SOL_PACKET, option, 1)?;
    }
    receive_buffer(socket)?;
    send_buffer(socket)?;
    // struct packet_mreq: index, type, length of the address, address.
    let kind = (libc::PACKET_MR_PROMISC as u16).to_ne_bytes();
    let membership = [&index.to_ne_bytes()[..], &kind, &[0; 10]].concat();
    set_bytes(socket, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &membership)?;
    // SAFETY: sockaddr_ll is plain integers; all zero is a valid value.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    address.sll_ifindex = index as libc::c_int;
    let len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: the kernel reads `len` bytes of `address`, which lives longer than the call.
    match unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn attach(socket: &OwnedFd, filter: &[libc::sock_filter]) -> io::Result<()> {
    let len = u16::try_from(filter.len()).map_err(io::Error::other)?;
    let program = libc::sock_fprog { len, filter: filter.as_ptr().cast_mut() };
    let size = size_of::<libc::sock_fprog>() as libc::socklen_t;
    let (level, name) = (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER);
    // SAFETY: the kernel copies the program of that length, which lives longer than the call.
    match unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const program).cast(), size) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Asks for a property of a device (netdevice(7)).
fn ask(socket: &OwnedFd, device: &str, option: libc::Ioctl) -> io::Result<libc::ifreq> {
    // SAFETY: ifreq is plain integers and pointers; all zero is a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // One byte is left for the NUL.
    for (to, byte) in request.ifr_name[..libc::IFNAMSIZ - 1].iter_mut().zip(device.bytes()) {
        *to = byte as libc::c_char;
    }
    // SAFETY: the kernel reads the name and writes the property; `request` lives longer than the call.
    match unsafe { libc::ioctl(socket.as_raw_fd(), option, &raw mut request) } {
        0 => Ok(request),
        _ => Err(io::Error::last_os_error()),
    }
}
