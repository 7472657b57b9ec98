//! Unix sockets and their other ends, by the kernel's socket diagnosis (sock_diag(7)).

use super::descriptor::SocketFile;
use tidegate_netlink::{Socket, attribute};

/// `SOCK_DIAG_BY_FAMILY` (linux/sock_diag.h).
const BY_FAMILY: u16 = 20;
/// `UDIAG_SHOW_VFS | UDIAG_SHOW_PEER` (linux/unix_diag.h).
const SHOW: u32 = 0x2 | 0x4;
/// `UNIX_DIAG_VFS`, `UNIX_DIAG_PEER`.
const FILE: u16 = 1;
const PEER: u16 = 2;
/// `TCP_ESTABLISHED`, `TCP_LISTEN`, as sets of states.
const ESTABLISHED: u32 = 1 << 1;
const LISTENING: u32 = 1 << 10;
/// Of an answer: family, type, state, padding, inode, cookie.
const HEADER: usize = 16;

/// A Unix socket, as the kernel's socket diagnosis knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnixSocket {
    /// Its inode.
    pub inode: u64,
    /// The file to which it, or the socket that accepted it, is bound, if any.
    pub file: Option<SocketFile>,
    /// The inode of the socket at its other end, if it is connected.
    pub peer: Option<u64>,
}

/// Asks for the connected Unix sockets of this process's network namespace.
///
/// # Errors
/// The kernel has no such diagnosis, or refused; in words.
pub fn connected() -> Result<Vec<UnixSocket>, String> {
    in_states(ESTABLISHED)
}

/// Asks for the listening ones.
///
/// # Errors
/// As [`connected`].
pub fn listening() -> Result<Vec<UnixSocket>, String> {
    in_states(LISTENING)
}

fn in_states(states: u32) -> Result<Vec<UnixSocket>, String> {
    let mut request = vec![libc::AF_UNIX as u8, 0, 0, 0];
    for word in [states, 0, SHOW, u32::MAX, u32::MAX] {
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
    let (mut file, mut peer) = (None, None);
    for (kind, value) in attribute::read(body.get(HEADER..)?) {
        let number = |at| attribute::u32_at(value, at);
        match kind {
            FILE => file = number(0).zip(number(4)).map(|(inode, device)| SocketFile { device, inode }),
            PEER => peer = number(0).map(u64::from),
            _ => {}
        }
    }
    Some(UnixSocket { inode: inode.into(), file, peer })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::ResolveFlags;
    use std::os::unix::net::{UnixListener, UnixStream};

    #[test]
    fn an_accepted_socket_has_the_file_of_the_one_that_listens() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let _connection = (UnixStream::connect(&path).unwrap(), listener.accept().unwrap());
        let (file, _) = SocketFile::at(&path, ResolveFlags::NO_SYMLINKS).unwrap();
        // The kernel may have no socket diagnosis.
        let (Ok(connected), Ok(listening)) = (connected(), listening()) else { return };
        let of = |sockets: &[UnixSocket]| sockets.iter().filter(|socket| socket.file == Some(file)).count();
        assert_eq!((of(&connected), of(&listening)), (1, 1));
        let accepted = connected.iter().find(|socket| socket.file == Some(file)).unwrap();
        assert!(connected.iter().any(|socket| Some(socket.inode) == accepted.peer && socket.file.is_none()));
    }
}
