//! The socket of the agent's API, made with the same care as the sockets of vNICs.
//!
//! ```text
//!  bind NAME.new ─▶ owner and mode ─▶ listen ─▶ rename to NAME
//! ```
//!
//! Between bind and listen the kernel refuses clients. Clients that wait for the name connect as soon as it
//! exists, so it appears only after listen.

use std::os::fd::OwnedFd;
use std::path::Path;
use tidegate_paths::socket::{self, Earlier};
use tidegate_paths::{Entry, Inode};

/// Makes a listening socket for the API; replaces a socket that an earlier agent left.
pub(crate) fn listen_for_api(
    path: &Path,
    owner: &tidegate_contract::SocketOwner,
) -> Result<(OwnedFd, ApiSocket), String> {
    let entry = Entry::trusted(path).map_err(|e| e.to_string())?;
    if let Some(why) = socket::obstacle(&entry, Earlier::Intended) {
        return Err(why);
    }
    let cannot = |what, e| format!("cannot {what} {}: {e}", path.display());
    let staged = entry.beside(".new").map_err(|e| cannot("make the socket", e))?;
    let (listener, inode) = socket::listen_at(&staged, owner, Earlier::Intended)?;
    let place = || {
        // The kernel refuses clients that find no room in this queue.
        rustix::net::listen(&listener, 1024).map_err(|e| cannot("listen at", e.into()))?;
        socket::clear(&entry, Earlier::Intended)?;
        staged.rename(inode, &entry).map_err(|e| cannot("make the socket", e))
    };
    if let Err(why) = place() {
        socket::remove(&staged, Earlier::Made(inode));
        socket::remove(&entry, Earlier::Made(inode));
        return Err(why);
    }
    Ok((listener, ApiSocket { entry, inode }))
}

#[derive(Debug)]
pub(crate) struct ApiSocket {
    entry: Entry,
    inode: Inode,
}

impl ApiSocket {
    /// Removes the file, if it is still the agent's.
    pub(crate) fn remove(&self) {
        socket::remove(&self.entry, Earlier::Made(self.inode));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;
    use std::os::unix::net::{UnixListener, UnixStream};
    use tidegate_contract::SocketOwner;

    fn listen(path: &Path) -> Result<(OwnedFd, ApiSocket), String> {
        listen_for_api(path, &SocketOwner::default())
    }

    #[test]
    fn a_client_that_waits_for_the_socket_is_not_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("api.sock");
        let connect = |path: &Path| loop {
            match UnixStream::connect(path) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => std::hint::spin_loop(),
                other => return other.map(drop),
            }
        };
        for _ in 0..300 {
            std::thread::scope(|scope| {
                let client = scope.spawn(|| connect(&path));
                let (listener, socket) = listen(&path).unwrap();
                client.join().unwrap().unwrap();
                socket.remove();
                drop(listener);
            });
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn only_the_socket_of_a_dead_agent_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("api.sock");
        // A killed agent leaves its socket, or the new one if it dies while it makes that.
        for left in ["api.sock", "api.sock.new"] {
            drop(UnixListener::bind(folder.path().join(left)).unwrap());
        }
        let (listener, socket) = listen(&path).unwrap();
        assert!(listen(&path).unwrap_err().contains("another program listens there"));
        UnixStream::connect(&path).unwrap();
        socket.remove();
        drop(listener);
        std::fs::write(&path, "theirs").unwrap();
        assert!(listen(&path).unwrap_err().contains("a regular file"));
        assert_eq!(std::fs::read(&path).unwrap(), b"theirs");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
