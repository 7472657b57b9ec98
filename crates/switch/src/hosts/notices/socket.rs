//! One message in, one message out.
//!
//! ```text
//!  socket ─ recvfrom ─▶ bytes, source        message, destination ─ sendmsg ─▶ socket
//! ```

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, SocketAddrAny, recvfrom, sendmsg_addr};
use std::io::IoSlice;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;

/// Receives one message into `buffer`: its length and its source, without the port. A longer message is cut off.
///
/// # Errors
/// There is none (`EAGAIN`), or the kernel's reason, such as an ICMP message about an earlier one.
pub(super) fn receive(socket: impl AsFd, buffer: &mut [u8]) -> Result<(usize, Option<IpAddr>), Errno> {
    let (len, _, source) = recvfrom(socket, buffer, RecvFlags::DONTWAIT)?;
    Ok((len, source.and_then(ip)))
}

/// Sends one message.
///
/// # Errors
/// The kernel's reason.
pub(super) fn send(socket: impl AsFd, message: &[u8], to: SocketAddr) -> Result<(), Errno> {
    // Not sendto: the confined process may not name an address there.
    let mut nothing = SendAncillaryBuffer::default();
    sendmsg_addr(socket, &to, &[IoSlice::new(message)], &mut nothing, SendFlags::DONTWAIT).map(drop)
}

fn ip(source: SocketAddrAny) -> Option<IpAddr> {
    SocketAddr::try_from(source).ok().map(|source| source.ip())
}
