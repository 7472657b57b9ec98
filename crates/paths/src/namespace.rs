//! Network namespaces, by their path.

use crate::{PathError, Roots};
use rustix::fs::{FsWord, Mode, OFlags, PROC_SUPER_MAGIC, fstatfs, open, openat};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// The file system of namespaces (linux/magic.h).
const NSFS_MAGIC: FsWord = 0x6e73_6673;
/// The kind of a namespace, as clone(2) has it (linux/nsfs.h).
const NS_GET_NSTYPE: libc::c_ulong = 0xb703;

/// Why a network namespace cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NamespaceError {
    /// The path does not exist.
    #[error(
        "network namespace {} does not exist: make it first (ip netns add, or a running container)", .0.display()
    )]
    Missing(PathBuf),
    /// The file is no network namespace, or forbidden; the reason.
    #[error("{0}")]
    Other(String),
}

/// A network namespace, held open.
#[derive(Debug)]
pub struct Namespace {
    file: OwnedFd,
    path: PathBuf,
}

impl Namespace {
    /// Opens the one at `path`, below one of `roots`. The file is opened only once it is known to be a
    /// namespace: a FIFO's writer, or a device, would notice.
    ///
    /// # Errors
    /// It does not exist, is none, or is forbidden.
    pub fn open(roots: &Roots, path: &Path) -> Result<Self, NamespaceError> {
        let shown = path.display();
        let missing = || NamespaceError::Missing(path.into());
        let cannot = |e: io::Error| match e.kind() {
            io::ErrorKind::NotFound => missing(),
            _ => NamespaceError::Other(format!("cannot open network namespace {shown}: {e}")),
        };
        let (folder, name) = roots.folder(path).map_err(|e| match e {
            PathError::Missing { .. } => missing(),
            other => NamespaceError::Other(other.to_string()),
        })?;
        // Links in procfs lead to namespaces, and no user can exchange them.
        let follow = fstatfs(&folder).is_ok_and(|fs| fs.f_type == PROC_SUPER_MAGIC);
        let nofollow = if follow { OFlags::empty() } else { OFlags::NOFOLLOW };
        let there = openat(&folder, name, OFlags::PATH | OFlags::CLOEXEC | nofollow, Mode::empty());
        let there = there.map_err(|e| cannot(e.into()))?;
        let none = || NamespaceError::Other(format!("{shown} is no network namespace"));
        if !fstatfs(&there).is_ok_and(|fs| fs.f_type == NSFS_MAGIC) {
            return Err(none());
        }
        let itself = format!("/proc/self/fd/{}", there.as_raw_fd());
        let file = open(itself, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        let file = file.map_err(|e| cannot(e.into()))?;
        // SAFETY: the request takes no argument, and returns a number.
        let kind = unsafe { libc::ioctl(file.as_raw_fd(), NS_GET_NSTYPE as _) };
        if kind != libc::CLONE_NEWNET {
            return Err(none());
        }
        Ok(Self { file, path: path.into() })
    }

    /// Returns the path as written, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl AsFd for Namespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Runs `work` in a network namespace, on a thread of its own, since entering one is permanent for a
/// thread. Without a namespace it runs here.
///
/// # Errors
/// The namespace cannot be entered, or `work` failed; the reason.
pub fn within<T: Send + 'static>(
    netns: Option<Namespace>,
    work: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    let Some(netns) = netns else { return work() };
    let thread = std::thread::Builder::new().name("netns".into()).spawn(move || {
        let entered = move_into_link_name_space(netns.as_fd(), Some(LinkNameSpaceType::Network));
        entered.map_err(|e| {
            format!("cannot enter network namespace {}: {e} (it needs CAP_SYS_ADMIN)", netns.path().display())
        })?;
        work()
    });
    let thread = thread.map_err(|e| format!("cannot start a thread: {e}"))?;
    thread.join().unwrap_or_else(|_| Err("the thread that entered the network namespace panicked".into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Paths;
    use rustix::fs::{CWD, FileType, mknodat};
    use std::time::Duration;

    fn open(dir: &Path, path: &Path) -> Result<Namespace, String> {
        let namespaces = Paths::new(&[], &[dir.into(), "/proc".into()]).unwrap().namespaces;
        Namespace::open(&namespaces, path).map_err(|e| e.to_string())
    }

    #[test]
    fn only_a_network_namespace_is_opened() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let own = |kind: &str| PathBuf::from(format!("/proc/{}/ns/{kind}", std::process::id()));
        open(dir.path(), &own("net")).unwrap();
        std::fs::write(path("file"), "").unwrap();
        std::os::unix::fs::symlink(own("net"), path("link")).unwrap();
        for wrong in [path("file"), path("link"), own("mnt"), "/proc/version".into()] {
            let why = open(dir.path(), &wrong).unwrap_err();
            assert!(why.ends_with("is no network namespace"), "{why}");
        }
        let why = open(dir.path(), &path("none")).unwrap_err();
        assert!(why.contains("none does not exist: make it first (ip netns add"), "{why}");
        assert!(open(dir.path(), Path::new("/proc/self/ns/net")).unwrap_err().contains("symbolic link"));
        assert!(open(dir.path(), Path::new("/tmp/x")).unwrap_err().contains("is not below /run/netns or"));
    }

    #[test]
    fn a_writer_that_waits_at_a_fifo_is_not_woken() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        mknodat(CWD, &fifo, FileType::Fifo, Mode::RWXU, 0).unwrap();
        let (opened, done) = std::sync::mpsc::channel();
        let writer = fifo.clone();
        std::thread::spawn(move || opened.send(std::fs::OpenOptions::new().write(true).open(writer).is_ok()));
        for _ in 0..50 {
            assert!(open(dir.path(), &fifo).unwrap_err().ends_with("is no network namespace"));
            assert!(done.recv_timeout(Duration::from_millis(2)).is_err(), "its reader came");
        }
        // A reader does come, or the writer would wait for ever.
        drop(std::fs::File::open(&fifo).unwrap());
        assert!(done.recv_timeout(Duration::from_secs(20)).unwrap());
    }
}
