//! The socket of the agent's own API, made with the same care as those of vNICs.

use super::socket::{self, Earlier};
use crate::paths::{Entry, Inode};
use std::os::fd::OwnedFd;
use std::path::Path;

/// A listening socket for the API, in the place of one that an earlier agent left.
pub(crate) fn listen_for_api(
    path: &Path,
    owner: &tidegate_contract::SocketOwner,
) -> Result<(OwnedFd, ApiSocket), String> {
    let entry = Entry::trusted(path).map_err(|e| e.to_string())?;
    let (listener, inode) = socket::listen_at(&entry, owner, Earlier::Intended)?;
    // Clients come at once, and those that find no room in the queue are refused by the kernel.
    rustix::net::listen(&listener, 1024).map_err(|e| format!("cannot listen at {}: {e}", path.display()))?;
    Ok((listener, ApiSocket { entry, inode }))
}

/// The API's socket file.
#[derive(Debug)]
pub(crate) struct ApiSocket {
    entry: Entry,
    inode: Inode,
}

impl ApiSocket {
    /// Removes it, where it still stands there.
    pub(crate) fn remove(&self) {
        socket::remove(&self.entry, Earlier::Made(self.inode));
    }
}
