//! The device of a plain NIC, as its contract needs it.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use tidegate_contract::{Segment, Uplink};

/// Asks for a device's flags, and the one of tags that are taken out (linux/ethtool.h).
const ETHTOOL_GFLAGS: u32 = 0x25;
const ETH_FLAG_RXVLAN: u32 = 1 << 8;

/// `struct ethtool_value`.
#[repr(C)]
struct EthtoolValue {
    command: u32,
    value: u32,
}

/// Returns the number of an uplink's device.
///
/// # Errors
/// The device does not exist, is no Ethernet device, or has a smaller MTU: what to do.
pub(crate) fn index(uplink: &Uplink) -> Result<u32, String> {
    let name = &uplink.name;
    let device = name_of(uplink)?;
    let socket = datagram().map_err(|error| format!("uplink {name}: no socket: {error}"))?;
    let index = rustix::net::netdevice::name_to_index(&socket, device).map_err(|_| {
        format!("uplink {name}: there is no network device {device}: make it, or correct the contract")
    })?;
    let property = |option, what| {
        ask(&socket, device, option).map_err(|error| format!("uplink {name}: {what} of {device}: {error}"))
    };
    // SAFETY: the kernel filled the address, whose family is its first field.
    let family = unsafe { property(libc::SIOCGIFHWADDR, "the type")?.ifr_ifru.ifru_hwaddr.sa_family };
    if family != libc::ARPHRD_ETHER {
        return Err(format!("uplink {name}: {device} is no Ethernet device (type {family})"));
    }
    // SAFETY: the kernel filled the MTU.
    let mtu = unsafe { property(libc::SIOCGIFMTU, "the MTU")?.ifr_ifru.ifru_mtu };
    if i64::from(mtu) < i64::from(uplink.mtu) {
        return Err(format!(
            "uplink {name}: {device} has an MTU of {mtu} bytes, and mtu = {} there: write mtu = {mtu}, or set the \
             device's (ip link set {device} mtu {})",
            uplink.mtu, uplink.mtu
        ));
    }
    Ok(index)
}

/// Checks that an XDP program sees what it needs: frames to all addresses, with their tags. These are settings of the
/// administrator, since others may use the device.
///
/// # Errors
/// It does not: what to do.
pub(crate) fn shows_all(uplink: &Uplink) -> Result<(), String> {
    let (name, device) = (&uplink.name, name_of(uplink)?);
    let failed = |error| format!("uplink {name}: the settings of {device}: {error}");
    let socket = datagram().map_err(failed)?;
    let mut tags = EthtoolValue { command: ETHTOOL_GFLAGS, value: 0 };
    // SAFETY: the kernel filled the flags.
    let flags = unsafe { ask(&socket, device, libc::SIOCGIFFLAGS).map_err(failed)?.ifr_ifru.ifru_flags };
    if libc::c_int::from(flags) & libc::IFF_PROMISC == 0 {
        return Err(format!(
            "uplink {name}: {device} takes only frames to its own address, and vNICs have others: \
             ip link set {device} promisc on"
        ));
    }
    let mut request = request(device);
    request.ifr_ifru.ifru_data = (&raw mut tags).cast();
    // SAFETY: the kernel reads the name and the command, and writes the value; both live longer than the call.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL, &raw mut request) };
    if result == 0 && tags.value & ETH_FLAG_RXVLAN != 0 {
        return Err(format!(
            "uplink {name}: {device} takes VLAN tags out of frames before an XDP program sees them: \
             ethtool -K {device} rxvlan off"
        ));
    }
    Ok(())
}

/// Returns the name of an uplink's device.
///
/// # Errors
/// It has none.
pub(crate) fn name_of(uplink: &Uplink) -> Result<&str, String> {
    uplink.device.as_deref().ok_or_else(|| format!("uplink {}: it has no device", uplink.name))
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

/// Asks for a property of a device (netdevice(7)).
fn ask(socket: &OwnedFd, device: &str, option: libc::Ioctl) -> io::Result<libc::ifreq> {
    let mut request = request(device);
    // SAFETY: the kernel reads the name and writes the property; `request` lives longer than the call.
    match unsafe { libc::ioctl(socket.as_raw_fd(), option, &raw mut request) } {
        0 => Ok(request),
        _ => Err(io::Error::last_os_error()),
    }
}

fn request(device: &str) -> libc::ifreq {
    // SAFETY: ifreq is plain integers and pointers; all zero is a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // One byte is left for the NUL.
    for (to, byte) in request.ifr_name[..libc::IFNAMSIZ - 1].iter_mut().zip(device.bytes()) {
        *to = byte as libc::c_char;
    }
    request
}

/// Any socket will do to ask about devices. One that reaches no network: the agent may have no other.
pub(crate) fn datagram() -> io::Result<OwnedFd> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
    Ok(socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?)
}
