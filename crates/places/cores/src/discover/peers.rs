//! Unix sockets and their other ends, by the kernel's socket diagnosis (sock_diag(7)).

use super::key::UnixSocket;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use tidegate_netlink::{Socket, attribute};

/// `SOCK_DIAG_BY_FAMILY` (linux/sock_diag.h).
const BY_FAMILY: u16 = 20;
/// `UDIAG_SHOW_NAME | UDIAG_SHOW_PEER` (linux/unix_diag.h).
const SHOW: u32 = 0x1 | 0x4;
/// `UNIX_DIAG_NAME`, `UNIX_DIAG_PEER`.
const NAME: u16 = 0;
const PEER: u16 = 2;
/// `TCP_ESTABLISHED`, as a set of states.
const ESTABLISHED: u32 = 1 << 1;
/// Of an answer: family, type, state, padding, inode, cookie.
const HEADER: usize = 16;

/// Asks for the connected Unix sockets of this process's network namespace.
///
/// # Errors
/// The kernel has no such diagnosis, or refused; in words.
pub fn connected() -> Result<Vec<UnixSocket>, String> {
    let mut request = vec![libc::AF_UNIX as u8, 0, 0, 0];
    for word in [ESTABLISHED, 0, SHOW, u32::MAX, u32::MAX] {
        request.extend(word.to_ne_bytes());
    }
    let cannot =
        |e: &dyn std::fmt::Display| format!("the kernel does not tell who is connected to Unix sockets: {e}");
    let mut socket = Socket::diagnosis().map_err(|e| cannot(&e))?;
    socket.dump(BY_FAMILY, &request, |_, body| answer(body)).map_err(|e| cannot(&e))
}

/// Reads one answer (`struct unix_diag_msg`).
fn answer(body: &[u8]) -> Option<UnixSocket> {
    let inode = u32::from_ne_bytes(body.get(4..8)?.try_into().ok()?);
    let (mut path, mut peer) = (None, None);
    for (kind, value) in attribute::read(body.get(HEADER..)?) {
        match kind {
            // Abstract names begin with a zero byte; no contract names one.
            NAME if value.first().is_some_and(|first| *first != 0) => {
                let end = value.iter().position(|byte| *byte == 0).unwrap_or(value.len());
                path = Some(OsStr::from_bytes(&value[..end]).into());
            }
            PEER => {
                peer = value
                    .get(..4)
                    .map(|inode| u32::from_ne_bytes(inode.try_into().expect("four bytes")).into())
            }
            _ => {}
        }
    }
    Some(UnixSocket { inode: inode.into(), path, peer })
}
