//! Address and state of a network interface, by the ioctls of netdevice(7): the demo needs no `ip` program.

use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};
use std::{io, thread};

pub fn up(name: &str) -> io::Result<()> {
    let mut request = Request::new(name)?;
    request.ioctl(libc::SIOCGIFFLAGS)?;
    // SAFETY: SIOCGIFFLAGS has just filled in the flags of the union.
    let flags = unsafe { request.raw.ifr_ifru.ifru_flags };
    request.raw.ifr_ifru.ifru_flags = flags | libc::IFF_UP as libc::c_short;
    request.ioctl(libc::SIOCSIFFLAGS)
}

/// Gives the interface an address with a prefix of `prefix` bits, and sets it up.
pub fn assign(name: &str, address: Ipv4Addr, prefix: u8) -> io::Result<()> {
    let mask = Ipv4Addr::from_bits(u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0));
    for (operation, value) in [(libc::SIOCSIFADDR, address), (libc::SIOCSIFNETMASK, mask)] {
        let mut request = Request::new(name)?;
        request.raw.ifr_ifru.ifru_addr = socket_address(value);
        request.ioctl(operation)?;
    }
    up(name)
}

pub fn index(name: &str) -> io::Result<u32> {
    let mut request = Request::new(name)?;
    request.ioctl(libc::SIOCGIFINDEX)?;
    // SAFETY: SIOCGIFINDEX has just filled in the index of the union.
    Ok(unsafe { request.raw.ifr_ifru.ifru_ifindex }.cast_unsigned())
}

/// Waits until the interface exists.
///
/// # Errors
/// It does not exist after `patience`.
pub fn wait_for(name: &str, patience: Duration) -> io::Result<()> {
    let end = Instant::now() + patience;
    loop {
        match Request::new(name)?.ioctl(libc::SIOCGIFFLAGS) {
            Err(e) if e.raw_os_error() == Some(libc::ENODEV) && Instant::now() < end => {
                thread::sleep(Duration::from_millis(5));
            }
            Err(e) if e.raw_os_error() == Some(libc::ENODEV) => {
                return Err(io::Error::other(format!("interface {name} did not appear within {patience:?}")));
            }
            other => return other,
        }
    }
}

/// A `struct ifreq`, and a socket for its ioctls.
struct Request {
    raw: libc::ifreq,
    socket: UdpSocket,
}

impl Request {
    fn new(name: &str) -> io::Result<Self> {
        // SAFETY: all-zero is a valid ifreq: plain integers and a union of integers.
        let mut raw: libc::ifreq = unsafe { std::mem::zeroed() };
        if name.is_empty() || name.len() >= raw.ifr_name.len() {
            return Err(io::Error::other(format!("`{name}` is not an interface name (1 to 15 bytes)")));
        }
        for (cell, byte) in raw.ifr_name.iter_mut().zip(name.bytes()) {
            *cell = byte as libc::c_char;
        }
        Ok(Self { raw, socket: UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))? })
    }

    fn ioctl(&mut self, operation: libc::c_ulong) -> io::Result<()> {
        // SAFETY: the operations used here read and write one ifreq, which outlives the call.
        let result = unsafe { libc::ioctl(self.socket.as_raw_fd(), operation as _, &raw mut self.raw) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

fn socket_address(address: Ipv4Addr) -> libc::sockaddr {
    let mut data = [0; 14];
    for (cell, byte) in data[2..6].iter_mut().zip(address.octets()) {
        *cell = byte as libc::c_char;
    }
    libc::sockaddr { sa_family: libc::AF_INET as libc::sa_family_t, sa_data: data }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_exists_and_a_missing_interface_is_an_error() {
        wait_for("lo", Duration::ZERO).unwrap();
        assert_eq!(index("lo").unwrap(), 1);
        let missing = wait_for("tg-missing0", Duration::from_millis(20)).unwrap_err();
        assert!(missing.to_string().contains("did not appear"), "{missing}");
        assert!(wait_for("a-name-longer-than-15", Duration::ZERO).is_err());
    }
}
