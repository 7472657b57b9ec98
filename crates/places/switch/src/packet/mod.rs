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

use crate::device;
use crate::options::{receive_buffer, send_buffer, set, set_bytes};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use tidegate_contract::Uplink;

/// Options of packet sockets (linux/if_packet.h).
const PACKET_IGNORE_OUTGOING: libc::c_int = 23;

/// Makes the socket of a plain NIC.
///
/// # Errors
/// The device does not exist, is no Ethernet device, or has a smaller MTU: what to do.
pub(crate) fn open(uplink: &Uplink) -> Result<OwnedFd, String> {
    let name = &uplink.name;
    let socket = packet_socket().map_err(|error| {
        format!(
            "uplink {name}: no packet socket: {error} (the agent's unit needs CapabilityBoundingSet=CAP_NET_RAW and \
             RestrictAddressFamilies=AF_PACKET)"
        )
    })?;
    let index = device::index(uplink)?;
    prepare(&socket, index, &filter::filter(&device::vlans(uplink)))
        .map_err(|error| format!("uplink {name}: no packet socket at its device: {error}"))?;
    Ok(socket)
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
