//! Options of the sockets of uplinks.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// Bytes that wait in the kernel for the switch: 6 ms at 10 Gbit/s.
const RECEIVE_BUFFER: libc::c_int = 8 << 20;
/// Bytes that wait in the kernel for the device.
const SEND_BUFFER: libc::c_int = 4 << 20;

/// Lets the kernel hold frames that arrive while the switch does something else.
pub(crate) fn receive_buffer(socket: &OwnedFd) -> io::Result<()> {
    buffer(socket, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, RECEIVE_BUFFER)
}

/// Lets the kernel hold frames for the device.
pub(crate) fn send_buffer(socket: &OwnedFd) -> io::Result<()> {
    buffer(socket, libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, SEND_BUFFER)
}

/// Sets the size of a buffer, beyond the limit for all (net.core.rmem_max, wmem_max) if the agent may.
fn buffer(socket: &OwnedFd, forced: libc::c_int, limited: libc::c_int, bytes: libc::c_int) -> io::Result<()> {
    match set(socket, libc::SOL_SOCKET, forced, bytes) {
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
            set(socket, libc::SOL_SOCKET, limited, bytes)
        }
        result => result,
    }
}

pub(crate) fn set(
    socket: &OwnedFd,
    level: libc::c_int,
    name: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    set_bytes(socket, level, name, &value.to_ne_bytes())
}

pub(crate) fn set_bytes(
    socket: &OwnedFd,
    level: libc::c_int,
    name: libc::c_int,
    value: &[u8],
) -> io::Result<()> {
    let len = libc::socklen_t::try_from(value.len()).map_err(io::Error::other)?;
    // SAFETY: the kernel reads `len` bytes of `value`, which lives longer than the call.
    match unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, value.as_ptr().cast(), len) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
