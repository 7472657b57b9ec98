//! vhost-user sockets: listening ones we make, and front ends we dial.

use super::users;
use crate::cut;
use rustix::fs::{FileType as RawType, Mode, OFlags, fstat, open};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};
use serde::{Deserialize, Serialize};
use std::fs::{self, Permissions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use tidegate_contract::SocketOwner;

/// A socket file that we made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inode {
    dev: u64,
    ino: u64,
    /// Inode numbers are used again at once: the time of birth tells files apart, ns since the epoch; absent
    /// where the file system does not keep it.
    born: Option<u64>,
}

/// What stands at a path.
#[derive(Debug, PartialEq, Eq)]
pub enum At {
    /// Nothing.
    Nothing,
    /// The socket with this inode.
    Socket(Inode),
    /// Something that is not a socket.
    Other(&'static str),
}

/// Looks at a path, without following a symbolic link.
pub fn look(path: &Path) -> io::Result<At> {
    match fs::symlink_metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(At::Nothing),
        Err(e) => Err(e),
        Ok(meta) if meta.file_type().is_socket() => {
            Ok(At::Socket(Inode { dev: meta.dev(), ino: meta.ino(), born: born(&meta) }))
        }
        Ok(meta) if meta.is_dir() => Ok(At::Other("a directory")),
        Ok(meta) if meta.is_symlink() => Ok(At::Other("a symbolic link")),
        Ok(meta) if meta.is_file() => Ok(At::Other("a regular file")),
        Ok(_) => Ok(At::Other("a special file")),
    }
}

fn born(meta: &fs::Metadata) -> Option<u64> {
    let since = meta.created().ok()?.duration_since(std::time::UNIX_EPOCH).ok()?;
    u64::try_from(since.as_nanos()).ok()
}

/// What we know of an earlier socket of ours at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Earlier {
    /// Nothing: whatever is there is somebody else's.
    None,
    /// We were about to make one and may have died over it.
    Intended,
    /// We made this one.
    Made(Inode),
}

/// Makes a listening socket. Owner and mode are set before it listens, so nobody connects who may not.
///
/// A socket of ours that is left at the path is replaced; anything else is left alone and an error.
pub fn listen_at(path: &Path, owner: &SocketOwner, earlier: Earlier) -> Result<(OwnedFd, Inode), String> {
    let shown = path.display();
    clear(path, earlier)?;
    let address = SocketAddrUnix::new(path)
        .map_err(|_| format!("the socket path {shown} is too long: at most 107 bytes"))?;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .map_err(|e| format!("cannot make a socket: {e}"))?;
    cut::point();
    bind(&socket, &address).map_err(|e| bind_error(path, e.into()))?;
    cut::point();
    let finish = || -> Result<Inode, String> {
        set_owner(path, owner)?;
        listen(&socket, 64).map_err(|e| format!("cannot listen at {shown}: {e}"))?;
        cut::point();
        match look(path) {
            Ok(At::Socket(inode)) => Ok(inode),
            Ok(other) => Err(format!("the socket {shown} was replaced by {other:?} while it was made")),
            Err(e) => Err(format!("cannot look at {shown}: {e}")),
        }
    };
    match finish() {
        Ok(inode) => Ok((socket, inode)),
        Err(e) => {
            let _ = fs::remove_file(path);
            Err(e)
        }
    }
}

/// That nothing stands at a path where a socket shall be made for the first time.
pub fn free(path: &Path) -> Result<(), String> {
    clear(path, Earlier::None)
}

/// Why a socket cannot be made there, without making it; `None` where it can.
pub fn obstacle(path: &Path, earlier: Earlier) -> Option<String> {
    if path.parent().is_some_and(|folder| !folder.exists()) {
        return Some(bind_error(path, io::ErrorKind::NotFound.into()));
    }
    is_ours(path, earlier).err()
}

fn clear(path: &Path, earlier: Earlier) -> Result<(), String> {
    if is_ours(path, earlier)? {
        fs::remove_file(path)
            .map_err(|e| format!("cannot replace our old socket {}: {e}", path.display()))?;
    }
    Ok(())
}

/// Whether a socket of ours stands at the path; `false` where nothing does.
///
/// # Errors
/// Something else does.
fn is_ours(path: &Path, earlier: Earlier) -> Result<bool, String> {
    let shown = path.display();
    let ours = match look(path).map_err(|e| format!("cannot look at {shown}: {e}"))? {
        At::Nothing => return Ok(false),
        At::Other(what) => {
            return Err(format!(
                "{shown} exists already and is {what}, not a socket of ours: remove it, or choose another path \
                 for the socket"
            ));
        }
        At::Socket(inode) => match earlier {
            Earlier::Made(made) => made == inode,
            Earlier::Intended => !is_live(path),
            Earlier::None => false,
        },
    };
    if ours {
        return Ok(true);
    }
    Err(if is_live(path) {
        format!(
            "{shown} exists already and another program listens there: stop it, or choose another path for the socket"
        )
    } else {
        format!(
            "{shown} exists already, a socket that another program left behind: remove it if nobody needs it (rm {shown})"
        )
    })
}

fn bind_error(path: &Path, e: io::Error) -> String {
    let shown = path.display();
    match e.kind() {
        io::ErrorKind::NotFound => {
            let folder = path.parent().unwrap_or(path).display();
            format!(
                "the folder {folder} of the socket {shown} does not exist: make it first (mkdir -p {folder})"
            )
        }
        _ => format!("cannot make the socket {shown}: {e}"),
    }
}

/// The socket at a path, where somebody listens at it.
pub fn listened_at(path: &Path) -> Option<Inode> {
    match look(path) {
        Ok(At::Socket(inode)) if is_live(path) => Some(inode),
        _ => None,
    }
}

/// Whether somebody listens there.
fn is_live(path: &Path) -> bool {
    matches!(dial(path), Dialled::Connected(_) | Dialled::Busy)
}

/// Owner, group and mode, as the contract says; `0o660` where it says no mode.
pub fn set_owner(path: &Path, owner: &SocketOwner) -> Result<(), String> {
    let shown = path.display();
    let uid =
        owner.user.as_deref().map(users::user).transpose().map_err(|e| format!("socket {shown}: {e}"))?;
    let gid =
        owner.group.as_deref().map(users::group).transpose().map_err(|e| format!("socket {shown}: {e}"))?;
    // Through a descriptor of the socket itself: whoever may write to its folder could put a link
    // to any file in its place meanwhile.
    let here = open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
        .map_err(|e| format!("cannot look at {shown}: {e}"))?;
    let is_socket = fstat(&here).is_ok_and(|stat| RawType::from_raw_mode(stat.st_mode) == RawType::Socket);
    if !is_socket {
        return Err(format!("{shown} is no socket: somebody replaced it"));
    }
    let itself = PathBuf::from(format!("/proc/self/fd/{}", here.as_raw_fd()));
    if uid.is_some() || gid.is_some() {
        chown(&itself, uid, gid).map_err(|e| format!("cannot give the socket {shown} its owner: {e}"))?;
    }
    fs::set_permissions(&itself, Permissions::from_mode(owner.mode.unwrap_or(0o660)))
        .map_err(|e| format!("cannot set the mode of the socket {shown}: {e}"))
}

/// Removes a socket of ours. Whatever else stands at the path is left alone.
pub fn remove(path: &Path, earlier: Earlier) {
    let ours = match (look(path), earlier) {
        (Ok(At::Socket(inode)), Earlier::Made(made)) => inode == made,
        (Ok(At::Socket(_)), Earlier::Intended) => !is_live(path),
        _ => false,
    };
    cut::point();
    if ours && let Err(e) = fs::remove_file(path) {
        tracing::warn!(path = %path.display(), error = %e, "cannot remove our socket");
    }
}

/// What came of dialling.
#[derive(Debug)]
pub enum Dialled {
    /// A front end took the call.
    Connected(OwnedFd),
    /// One listens and has calls waiting.
    Busy,
    /// Nobody does, and why.
    Nobody(String),
}

/// Connects to a front end that listens, without waiting.
pub fn dial(path: &Path) -> Dialled {
    let shown = path.display();
    let connected = || -> rustix::io::Result<OwnedFd> {
        let address = SocketAddrUnix::new(path)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        connect(&socket, &address)?;
        rustix::io::ioctl_fionbio(&socket, false)?;
        Ok(socket)
    };
    match connected() {
        Ok(socket) => Dialled::Connected(socket),
        Err(rustix::io::Errno::AGAIN) => Dialled::Busy,
        Err(rustix::io::Errno::NOENT) => {
            Dialled::Nobody(format!("waiting for the front end to make {shown}"))
        }
        Err(rustix::io::Errno::CONNREFUSED) => {
            Dialled::Nobody(format!("waiting for the front end to listen at {shown}"))
        }
        Err(e) => Dialled::Nobody(format!("cannot connect to {shown}: {e}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::{UnixListener, UnixStream};

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn makes_listens_and_removes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.sock");
        let (_fd, inode) = listen_at(&path, &SocketOwner::default(), Earlier::None).unwrap();
        assert_eq!((look(&path).unwrap(), mode(&path)), (At::Socket(inode), 0o660));
        UnixStream::connect(&path).unwrap();
        let owner = SocketOwner { mode: Some(0o600), ..SocketOwner::default() };
        set_owner(&path, &owner).unwrap();
        assert_eq!(mode(&path), 0o600);
        remove(&path, Earlier::Made(inode));
        assert_eq!(look(&path).unwrap(), At::Nothing);
    }

    #[test]
    fn nothing_of_others_is_unlinked() {
        let dir = tempfile::tempdir().unwrap();
        let error = |path: &Path, earlier| {
            let error = listen_at(path, &SocketOwner::default(), earlier).unwrap_err();
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
        remove(&stale, Earlier::Made(Inode { dev: 0, ino: 0, born: None }));
        assert!(stale.exists());
    }

    #[test]
    fn our_own_stale_socket_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.sock");
        let (fd, first) = listen_at(&path, &SocketOwner::default(), Earlier::None).unwrap();
        drop(fd);
        let (fd, _) = listen_at(&path, &SocketOwner::default(), Earlier::Made(first)).unwrap();
        drop(fd);
        let _fd = listen_at(&path, &SocketOwner::default(), Earlier::Intended).unwrap();
        UnixStream::connect(&path).unwrap();
    }

    #[test]
    fn a_bad_path_says_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("no/a.sock");
        let error = listen_at(&missing, &SocketOwner::default(), Earlier::None).unwrap_err();
        assert!(error.contains("does not exist") && error.contains("mkdir -p"), "{error}");
        let long = dir.path().join("x".repeat(120));
        assert!(listen_at(&long, &SocketOwner::default(), Earlier::None).unwrap_err().contains("too long"));
    }

    #[test]
    fn a_socket_whose_owner_does_not_exist_is_not_left_behind() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.sock");
        let owner = SocketOwner { user: Some("no-such-user".into()), ..SocketOwner::default() };
        assert!(listen_at(&path, &owner, Earlier::None).unwrap_err().contains("no user"));
        assert_eq!(look(&path).unwrap(), At::Nothing);
    }

    #[test]
    fn dialling_says_what_it_waits_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.sock");
        assert!(matches!(dial(&path), Dialled::Nobody(why) if why.contains("to make")));
        let listener = UnixListener::bind(&path).unwrap();
        assert!(matches!(dial(&path), Dialled::Connected(_)));
        drop(listener);
        assert!(matches!(dial(&path), Dialled::Nobody(why) if why.contains("to listen")));
    }

    #[test]
    fn owner_and_mode_never_reach_what_a_link_leads_to() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("file"), dir.path().join("a.sock"));
        fs::write(&file, "").unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let owner = SocketOwner { mode: Some(0o666), ..SocketOwner::default() };
        for path in [&link, &file] {
            assert!(set_owner(path, &owner).unwrap_err().contains("somebody replaced it"));
            assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
        }
    }
}
