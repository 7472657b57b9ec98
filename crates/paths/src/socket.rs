//! vhost-user sockets: listening ones we make, and front ends we dial.
//!
//! Their folders may belong to others: see [`crate::Roots`].

use crate::users;
use crate::{At, Entry, Inode, SocketFile};
use rustix::net::{
    AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType, connect, listen, shutdown, socket_with,
};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use tidegate_contract::SocketOwner;
use tidegate_durable::cut;

/// The record of an earlier socket of ours at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Earlier {
    /// None: a file there belongs to another program.
    None,
    /// The agent was about to make one, and may have died before it knew the file.
    Intended,
    /// The agent made this file.
    Made(Inode),
}

/// Makes a listening socket. Owner and mode are set before it listens, so no forbidden user connects.
///
/// A leftover socket of ours is replaced; any other object stays, with an error.
pub fn listen_at(entry: &Entry, owner: &SocketOwner, earlier: Earlier) -> Result<(OwnedFd, Inode), String> {
    let shown = entry.path().display();
    clear(entry, earlier)?;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .map_err(|e| format!("cannot make a socket: {e}"))?;
    cut::point();
    entry.bind(&socket).map_err(|e| match e.kind() {
        io::ErrorKind::InvalidInput => {
            format!("the name of the socket {shown} is too long: at most 80 bytes")
        }
        _ => format!("cannot make the socket {shown}: {e}"),
    })?;
    cut::point();
    let made = entry.bound(&socket).map_err(|e| format!("cannot look at {shown}: {e}"))?;
    let finish = || -> Result<(), String> {
        give(entry, &made, owner)?;
        listen(&socket, 64).map_err(|e| format!("cannot listen at {shown}: {e}"))?;
        cut::point();
        match entry.look() {
            Ok(there) if there.inode() == Some(made.inode) => Ok(()),
            Ok(_) => Err(format!("the socket {shown} was replaced while it was made")),
            Err(e) => Err(format!("cannot look at {shown}: {e}")),
        }
    };
    match finish() {
        Ok(()) => Ok((socket, made.inode)),
        Err(why) => {
            let _ = entry.unlink(made.inode);
            Err(why)
        }
    }
}

/// Whether a name is unused, before a first socket.
pub fn free(entry: &Entry) -> Result<(), String> {
    clear(entry, Earlier::None)
}

/// Returns why a socket cannot be made there, without making it; `None` if it can.
pub fn obstacle(entry: &Entry, earlier: Earlier) -> Option<String> {
    ours(entry, earlier).err()
}

/// Removes a socket of ours at the name, if any.
///
/// # Errors
/// Another object has the name.
pub fn clear(entry: &Entry, earlier: Earlier) -> Result<(), String> {
    if let Some(old) = ours(entry, earlier)? {
        let gone = entry.unlink(old.inode);
        gone.map_err(|e| format!("cannot replace our old socket {}: {e}", entry.path().display()))?;
    }
    Ok(())
}

/// Returns the socket of ours at the name; `None` if the name is unused.
///
/// # Errors
/// Another object has the name.
fn ours(entry: &Entry, earlier: Earlier) -> Result<Option<SocketFile>, String> {
    let shown = entry.path().display();
    let there = match entry.look().map_err(|e| format!("cannot look at {shown}: {e}"))? {
        At::Nothing => return Ok(None),
        At::Other(what) => {
            return Err(format!(
                "{shown} exists already and is {what}, not a socket of ours: remove it, or choose another path \
                 for the socket"
            ));
        }
        At::Socket(there) => there,
    };
    let is_ours = match earlier {
        Earlier::Made(made) => made == there.inode,
        Earlier::Intended => !is_live(&there),
        Earlier::None => false,
    };
    if is_ours {
        return Ok(Some(there));
    }
    Err(if is_live(&there) {
        format!(
            "{shown} exists already and another program listens there: stop it, or choose another path for the socket"
        )
    } else {
        format!(
            "{shown} exists already, a socket that another program left behind: remove it if no program needs it (rm {shown})"
        )
    })
}

/// Returns the socket at this path, if a process listens at it.
pub fn listened_at(entry: &Entry) -> Option<Inode> {
    match entry.look() {
        Ok(At::Socket(there)) if is_live(&there) => Some(there.inode),
        _ => None,
    }
}

/// Makes a listening socket refuse connections from now on. Another thread may close it much later; until
/// then it would accept a front end, or an agent that checks whether it is in use.
pub fn stop_listening(socket: impl AsFd) {
    if let Err(error) = shutdown(socket, Shutdown::Both) {
        tracing::warn!(%error, "cannot stop listening at a socket");
    }
}

/// Whether a process listens at it.
fn is_live(socket: &SocketFile) -> bool {
    match call(socket) {
        Ok(stream) => {
            // Its front end may have sent descriptors.
            tidegate_service::foreign::close(stream);
            true
        }
        Err(e) => e == rustix::io::Errno::AGAIN,
    }
}

/// Gives our `socket` its owner, group and mode by the contract.
///
/// # Errors
/// It no longer has the name.
pub fn set_owner(entry: &Entry, socket: Inode, owner: &SocketOwner) -> Result<(), String> {
    let shown = entry.path().display();
    match entry.look() {
        Ok(At::Socket(there)) if there.inode == socket => give(entry, &there, owner),
        Ok(_) => Err(format!("{shown} is no socket of ours: another program replaced it")),
        Err(e) => Err(format!("cannot look at {shown}: {e}")),
    }
}

/// Sets owner, group and mode; `0o660` if the contract has no mode.
fn give(entry: &Entry, socket: &SocketFile, owner: &SocketOwner) -> Result<(), String> {
    let said = |e: io::Error| format!("socket {}: {e}", entry.path().display());
    let user = owner.user.as_deref().map(users::user).transpose().map_err(said)?;
    let group = owner.group.as_deref().map(users::group).transpose().map_err(said)?;
    let result = socket.give(user, group, owner.mode.unwrap_or(0o660));
    result.map_err(|e| format!("cannot give the socket {} its owner and mode: {e}", entry.path().display()))
}

/// Removes a socket of ours. Any other object stays.
pub fn remove(entry: &Entry, earlier: Earlier) {
    let ours = match (entry.look(), earlier) {
        (Ok(At::Socket(_)), Earlier::Made(made)) => Some(made),
        (Ok(At::Socket(there)), Earlier::Intended) if !is_live(&there) => Some(there.inode),
        _ => None,
    };
    cut::point();
    if let Some(Err(error)) = ours.map(|ours| entry.unlink(ours)) {
        tracing::warn!(path = %entry.path().display(), %error, "cannot remove our socket");
    }
}

/// The result of a dial.
#[derive(Debug)]
pub enum Dialled {
    /// The front end accepted the connection.
    Connected(OwnedFd),
    /// A front end listens, and its backlog is full.
    Busy,
    /// No front end listens; the reason, for a message.
    NotListening(String),
}

/// Connects to a listening front end, without waiting.
pub fn dial(entry: &Entry) -> Dialled {
    let shown = entry.path().display();
    let there = match entry.look() {
        Ok(At::Socket(there)) => there,
        Ok(At::Nothing) => {
            return Dialled::NotListening(format!("waiting for the front end to make {shown}"));
        }
        Ok(At::Other(what)) => {
            return Dialled::NotListening(format!("{shown} is {what}, no socket of a front end"));
        }
        Err(e) => return Dialled::NotListening(format!("cannot look at {shown}: {e}")),
    };
    match call(&there) {
        Ok(socket) => Dialled::Connected(socket),
        Err(rustix::io::Errno::AGAIN) => Dialled::Busy,
        Err(rustix::io::Errno::CONNREFUSED) => {
            Dialled::NotListening(format!("waiting for the front end to listen at {shown}"))
        }
        Err(e) => Dialled::NotListening(format!("cannot connect to {shown}: {e}")),
    }
}

fn call(there: &SocketFile) -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(there.path())?)?;
    rustix::io::ioctl_fionbio(&socket, false)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::path::{Path, PathBuf};

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    fn entry(path: &Path) -> Entry {
        Entry::trusted(path).unwrap()
    }

    /// Returns a folder, and a path in it.
    fn at(name: &str) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(name);
        (dir, path)
    }

    #[test]
    fn a_socket_is_made_listens_and_is_removed() {
        let (_dir, path) = at("a.sock");
        let entry = entry(&path);
        let (_fd, inode) = listen_at(&entry, &SocketOwner::default(), Earlier::None).unwrap();
        assert_eq!((entry.look().unwrap().inode(), mode(&path)), (Some(inode), 0o660));
        UnixStream::connect(&path).unwrap();
        let owner = SocketOwner { mode: Some(0o600), ..SocketOwner::default() };
        set_owner(&entry, inode, &owner).unwrap();
        assert_eq!(mode(&path), 0o600);
        remove(&entry, Earlier::Made(inode));
        assert!(!path.exists());
    }

    #[test]
    fn a_socket_that_is_closed_later_is_out_of_use_at_once() {
        let (_dir, path) = at("a.sock");
        let entry = entry(&path);
        let (fd, _) = listen_at(&entry, &SocketOwner::default(), Earlier::None).unwrap();
        remove(&entry, Earlier::Intended);
        assert!(UnixStream::connect(&path).is_ok(), "it was removed although it is in use");
        stop_listening(&fd);
        assert!(UnixStream::connect(&path).is_err());
        remove(&entry, Earlier::Intended);
        assert!(!path.exists());
    }

    #[test]
    fn foreign_files_are_not_unlinked() {
        let dir = tempfile::tempdir().unwrap();
        let error = |path: &Path, earlier| {
            let error = listen_at(&entry(path), &SocketOwner::default(), earlier).unwrap_err();
            assert!(fs::symlink_metadata(path).is_ok(), "it was removed");
            error
        };
        let file = dir.path().join("file");
        fs::write(&file, "precious").unwrap();
        assert!(error(&file, Earlier::Intended).contains("a regular file"));

        let live = dir.path().join("live.sock");
        let _listener = UnixListener::bind(&live).unwrap();
        for earlier in [Earlier::None, Earlier::Intended] {
            assert!(error(&live, earlier).contains("another program listens"));
        }
        let stale = dir.path().join("stale.sock");
        drop(UnixListener::bind(&stale).unwrap());
        assert!(error(&stale, Earlier::None).contains("left behind"));
        let another = entry(&live).look().unwrap().inode().unwrap();
        remove(&entry(&stale), Earlier::Made(another));
        assert!(stale.exists());
    }

    #[test]
    fn our_own_stale_socket_is_replaced() {
        let (_dir, path) = at("a.sock");
        let entry = entry(&path);
        let (fd, first) = listen_at(&entry, &SocketOwner::default(), Earlier::None).unwrap();
        drop(fd);
        let (fd, _) = listen_at(&entry, &SocketOwner::default(), Earlier::Made(first)).unwrap();
        drop(fd);
        let _fd = listen_at(&entry, &SocketOwner::default(), Earlier::Intended).unwrap();
        UnixStream::connect(&path).unwrap();
    }

    #[test]
    fn a_name_that_is_too_long_says_so() {
        let (_dir, path) = at(&"x".repeat(120));
        let error = listen_at(&entry(&path), &SocketOwner::default(), Earlier::None).unwrap_err();
        assert!(error.contains("too long: at most 80 bytes"), "{error}");
    }

    #[test]
    fn a_socket_whose_owner_does_not_exist_is_not_left_behind() {
        let (_dir, path) = at("a.sock");
        let owner = SocketOwner { user: Some("no-such-user".into()), ..SocketOwner::default() };
        assert!(listen_at(&entry(&path), &owner, Earlier::None).unwrap_err().contains("no user"));
        assert!(!path.exists());
    }

    #[test]
    fn a_failed_dial_names_what_it_waits_for() {
        let (_dir, path) = at("a.sock");
        let entry = entry(&path);
        assert!(matches!(dial(&entry), Dialled::NotListening(why) if why.contains("to make")));
        let listener = UnixListener::bind(&path).unwrap();
        assert!(matches!(dial(&entry), Dialled::Connected(_)));
        drop(listener);
        assert!(matches!(dial(&entry), Dialled::NotListening(why) if why.contains("to listen")));
        fs::remove_file(&path).unwrap();
        fs::write(&path, "").unwrap();
        assert!(matches!(dial(&entry), Dialled::NotListening(why) if why.contains("a regular file")));
    }

    #[test]
    fn a_file_in_the_place_of_a_socket_keeps_its_owner_and_mode() {
        let (dir, path) = at("a.sock");
        let (_fd, inode) = listen_at(&entry(&path), &SocketOwner::default(), Earlier::None).unwrap();
        let (file, theirs) = (dir.path().join("file"), dir.path().join("theirs"));
        fs::write(&file, "").unwrap();
        drop(UnixListener::bind(&theirs).unwrap());
        let owner = SocketOwner { mode: Some(0o666), ..SocketOwner::default() };
        for other in [&file, &theirs] {
            fs::set_permissions(other, fs::Permissions::from_mode(0o600)).unwrap();
            for link in [true, false] {
                fs::remove_file(&path).unwrap();
                if link {
                    std::os::unix::fs::symlink(other, &path).unwrap();
                } else {
                    fs::hard_link(other, &path).unwrap();
                }
                assert!(
                    set_owner(&entry(&path), inode, &owner)
                        .unwrap_err()
                        .contains("another program replaced it")
                );
                assert_eq!(mode(other), 0o600);
            }
        }
    }
}
