//! A name in a folder that is held open, and the socket file with that name.

use rustix::fs::{
    AtFlags, Gid, Mode, OFlags, RenameFlags, ResolveFlags, Uid, chmod, chownat, openat2, renameat_with,
    unlinkat,
};
use rustix::io::Errno;
use rustix::net::{SocketAddrUnix, bind};
use serde::{Deserialize, Serialize};
use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use tidegate_contract::check::LONGEST_SOCKET_NAME;

/// The file that a socket is bound to, as a descriptor (linux/un.h, Linux 4.14; unix(7) does not have it).
const SIOCUNIXFILE: libc::c_ulong = 0x89e0;

/// The identity of a file, whatever its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inode {
    dev: u64,
    ino: u64,
    /// Inode numbers are reused at once: the birth time distinguishes files (ns since the epoch); absent if
    /// the file system lacks it.
    born: Option<u64>,
}

impl Inode {
    fn of(file: &Metadata) -> Self {
        let born = || {
            let since = file.created().ok()?.duration_since(std::time::UNIX_EPOCH).ok()?;
            u64::try_from(since.as_nanos()).ok()
        };
        Self { dev: file.dev(), ino: file.ino(), born: born() }
    }
}

/// The object at a name.
#[derive(Debug)]
pub enum At {
    /// Nothing.
    Nothing,
    /// A socket, held.
    Socket(SocketFile),
    /// Something else.
    Other(&'static str),
}

impl At {
    /// Returns the socket's identity, if it is a socket.
    pub fn inode(&self) -> Option<Inode> {
        match self {
            Self::Socket(socket) => Some(socket.inode),
            Self::Nothing | Self::Other(_) => None,
        }
    }
}

/// A name in a folder that is held open: all operations affect that folder, wherever it moves and whatever
/// replaces it.
#[derive(Debug)]
pub struct Entry {
    folder: OwnedFd,
    name: OsString,
    /// As written, for messages.
    path: PathBuf,
}

impl Entry {
    pub(super) fn new(folder: OwnedFd, name: &OsStr, path: &Path) -> Self {
        Self { folder, name: name.into(), path: path.into() }
    }

    /// Returns the path as written, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns another name in the same folder: this one with `suffix`.
    pub fn beside(&self, suffix: &str) -> io::Result<Self> {
        let longer = |name: &OsStr| {
            let mut name = name.to_owned();
            name.push(suffix);
            name
        };
        let path = PathBuf::from(longer(self.path.as_os_str()));
        Ok(Self { folder: self.folder.try_clone()?, name: longer(&self.name), path })
    }

    /// Renames `file`, which has this name, to an unused name.
    ///
    /// # Errors
    /// The new name is used; or another file has this name, or the new one afterwards.
    pub fn rename(&self, file: Inode, to: &Self) -> io::Result<()> {
        let is_it = |at: io::Result<At>| match at?.inode() == Some(file) {
            true => Ok(()),
            false => Err(io::Error::other("another program replaced it while it was made")),
        };
        is_it(self.look())?;
        renameat_with(&self.folder, &self.name, &to.folder, &to.name, RenameFlags::NOREPLACE)?;
        is_it(to.look())
    }

    /// Finds the object without opening it: the other end of a FIFO, or a device, would notice that.
    pub fn look(&self) -> io::Result<At> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // An object mounted over a name is not queried: its server may never answer.
        let file = match openat2(&self.folder, &self.name, flags, Mode::empty(), ResolveFlags::NO_XDEV) {
            Err(Errno::NOENT) => return Ok(At::Nothing),
            Err(Errno::XDEV) => return Ok(At::Other("a mount point")),
            file => File::from(file?),
        };
        let there = file.metadata()?;
        let kind = there.file_type();
        Ok(if kind.is_socket() && there.nlink() > 1 {
            // Perhaps a hard link to another user's socket: a change of owner or mode would change that
            // socket.
            At::Other("a socket with several names")
        } else if kind.is_socket() {
            At::Socket(SocketFile { inode: Inode::of(&there), file })
        } else if kind.is_dir() {
            At::Other("a directory")
        } else if kind.is_symlink() {
            At::Other("a symbolic link")
        } else if kind.is_file() {
            At::Other("a regular file")
        } else {
            At::Other("a special file")
        })
    }

    /// Binds `socket` to this name.
    ///
    /// # Errors
    /// `InvalidInput` if the name is too long; otherwise errors of bind(2).
    pub fn bind(&self, socket: &OwnedFd) -> io::Result<()> {
        // With the folder's descriptor in front, of any number, it fits an address (108 bytes).
        if self.name.len() > LONGEST_SOCKET_NAME {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut path = PathBuf::from(format!("/proc/self/fd/{}", self.folder.as_raw_fd()));
        path.push(&self.name);
        let address = SocketAddrUnix::new(&path).map_err(|_| io::ErrorKind::InvalidInput)?;
        Ok(bind(socket, &address)?)
    }

    /// Returns the file that [`Entry::bind`] made for `socket`, not one that has replaced it.
    pub fn bound(&self, socket: &OwnedFd) -> io::Result<SocketFile> {
        match SocketFile::of(socket.as_fd()) {
            // Without CAP_NET_ADMIN the kernel does not tell. Such a process is not root: it could only
            // give away its own files.
            Err(e) if e.raw_os_error() == Some(libc::EPERM) => match self.look()? {
                At::Socket(file) if file.owner()? == rustix::process::geteuid().as_raw() => Ok(file),
                _ => Err(io::Error::other("another program replaced it while it was made")),
            },
            file => file,
        }
    }

    /// Removes the name if it is `file`'s; whether it was.
    pub fn unlink(&self, file: Inode) -> io::Result<bool> {
        let is_it = self.look()?.inode() == Some(file);
        if is_it {
            unlinkat(&self.folder, &self.name, AtFlags::empty())?;
        }
        Ok(is_it)
    }
}

/// A socket's file, held open, wherever its name leads.
#[derive(Debug)]
pub struct SocketFile {
    /// Which it is.
    pub inode: Inode,
    /// Opened with O_PATH.
    file: File,
}

impl SocketFile {
    /// Returns the file that a Unix socket is bound to, or at which a connection was accepted.
    ///
    /// # Errors
    /// There is none, or EPERM without CAP_NET_ADMIN.
    pub fn of(socket: BorrowedFd<'_>) -> io::Result<Self> {
        // SAFETY: the request takes no argument and returns an error or a new descriptor, which no other
        // code owns.
        let file = unsafe {
            match libc::ioctl(socket.as_raw_fd(), SIOCUNIXFILE as _) {
                -1 => return Err(io::Error::last_os_error()),
                file => File::from_raw_fd(file),
            }
        };
        Ok(Self { inode: Inode::of(&file.metadata()?), file })
    }

    /// Returns a path that leads to this file only, while it is held.
    pub fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.file.as_raw_fd()).into()
    }

    fn owner(&self) -> io::Result<u32> {
        Ok(self.file.metadata()?.uid())
    }

    /// Gives it to a user and a group, if named, and sets its permission bits.
    pub fn give(&self, user: Option<u32>, group: Option<u32>, mode: u32) -> io::Result<()> {
        if user.is_some() || group.is_some() {
            let (user, group) = (user.map(Uid::from_raw), group.map(Gid::from_raw));
            chownat(&self.file, "", user, group, AtFlags::EMPTY_PATH)?;
        }
        // fchmodat2(2), which takes the descriptor itself, came with Linux 6.6.
        Ok(chmod(self.path(), Mode::from_raw_mode(mode))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketType, socket};
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    fn entry(dir: &tempfile::TempDir, name: &str) -> Entry {
        Entry::trusted(&dir.path().join(name)).unwrap()
    }

    fn unbound() -> OwnedFd {
        socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap()
    }

    #[test]
    fn the_kind_of_an_entry_is_reported_without_opening_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        std::fs::write(path("file"), "").unwrap();
        std::fs::create_dir(path("folder")).unwrap();
        let _socket = UnixListener::bind(path("socket")).unwrap();
        symlink("socket", path("link")).unwrap();
        let pipe =
            rustix::fs::mknodat(rustix::fs::CWD, path("fifo"), rustix::fs::FileType::Fifo, Mode::RWXU, 0);
        pipe.unwrap();
        let what = |name: &str| match entry(&dir, name).look().unwrap() {
            At::Nothing => "nothing",
            At::Socket(_) => "a socket",
            At::Other(what) => what,
        };
        let names = ["none", "socket", "file", "folder", "link", "fifo"];
        let expected =
            ["nothing", "a socket", "a regular file", "a directory", "a symbolic link", "a special file"];
        assert_eq!(names.map(what), expected);
        // A second name of another program's socket is not taken for ours.
        std::fs::hard_link(path("socket"), path("other")).unwrap();
        assert_eq!(["socket", "other"].map(what), ["a socket with several names"; 2]);
    }

    /// Between bind and the next step the folder's owner exchanges the file and the folder.
    #[test]
    fn the_file_of_a_socket_is_found_after_a_rename() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        std::fs::create_dir(path("yard")).unwrap();
        let ours = entry(&dir, "yard/a");
        let made = unbound();
        ours.bind(&made).unwrap();
        std::fs::rename(path("yard/a"), path("yard/moved")).unwrap();
        let _theirs = UnixListener::bind(path("yard/a")).unwrap();
        let file = ours.bound(&made).unwrap();
        // The kernel tells only a process with CAP_NET_ADMIN.
        if SocketFile::of(made.as_fd()).is_ok() {
            file.give(None, None, 0o604).unwrap();
            let mode = |name: &str| path(name).metadata().unwrap().mode() & 0o777;
            assert_eq!((mode("yard/moved"), mode("yard/a") == 0o604), (0o604, false));
            assert!(!ours.unlink(file.inode).unwrap(), "another's file was removed");
        }
        // A moved folder takes its changes along.
        std::fs::rename(path("yard"), path("elsewhere")).unwrap();
        std::fs::create_dir(path("yard")).unwrap();
        let there = ours.look().unwrap().inode().unwrap();
        assert!(ours.unlink(there).unwrap());
        assert!(!path("elsewhere/a").exists() && path("elsewhere/moved").exists());
    }

    #[test]
    fn a_name_that_is_too_long_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let error = entry(&dir, &"x".repeat(81)).bind(&unbound()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }
}
