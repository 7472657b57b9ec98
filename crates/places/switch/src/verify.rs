//! What a switch that is gone has left: is each descriptor what it was said to be?
//!
//! The next switch goes on with it. An attacker with the switch may have left a socket or a tap of his own, by which he
//! would go on being another tenant's vNIC.

use rustix::fs::{FileType, makedev};
use rustix::net::{
    AddressFamily, SocketAddrAny, SocketAddrUnix, SocketType, getpeername, getsockname, sockopt,
};
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use tidegate_paths::{Entry, Namespace, SocketFile};
use tidegate_service::foreign::Foreign;

/// Asks a tap for its network namespace (linux/if_tun.h, Linux 5.4).
const TUNGETDEVNETNS: libc::c_ulong = 0x54e3;

/// Whether it is a socket that listens at `entry`, as this user made it to.
pub fn is_listener(fd: impl AsFd, entry: &Entry) -> bool {
    let fd = fd.as_fd();
    sockopt::socket_acceptconn(fd) == Ok(true)
        // Of who called listen(2).
        && sockopt::socket_peercred(fd).is_ok_and(|maker| maker.uid == rustix::process::geteuid())
        && is_accepted(fd, entry)
}

/// Whether it is a connection that was accepted at `entry`.
pub fn is_accepted(fd: impl AsFd, entry: &Entry) -> bool {
    let fd = fd.as_fd();
    is_unix_stream(fd)
        && match SocketFile::of(fd) {
            Ok(file) => entry.look().is_ok_and(|there| there.inode() == Some(file.inode)),
            // A socket knows the path it was bound by, which need not be the one in the contract.
            Err(_) => {
                file_name(getsockname(fd).ok()).is_some_and(|name| entry.path().file_name() == Some(&name))
            }
        }
}

/// Whether it is a connection to a socket whose path has the file name of `path`: the kernel tells no more.
pub fn is_dialled(fd: impl AsFd, path: &Path) -> bool {
    let peer = getpeername(fd.as_fd()).ok().flatten();
    is_unix_stream(fd.as_fd()) && file_name(peer).is_some_and(|name| path.file_name() == Some(&name))
}

fn is_unix_stream(fd: BorrowedFd<'_>) -> bool {
    sockopt::socket_domain(fd) == Ok(AddressFamily::UNIX)
        && sockopt::socket_type(fd) == Ok(SocketType::STREAM)
}

fn file_name(address: Option<SocketAddrAny>) -> Option<std::ffi::OsString> {
    let address = SocketAddrUnix::try_from(address?).ok()?;
    let path = Path::new(OsStr::from_bytes(address.path_bytes()?)).to_owned();
    path.file_name().map(OsStr::to_owned)
}

/// The queues of the tap `name` in a network namespace, ours where none is given; nothing where one is another's.
pub fn taps(queues: Vec<Foreign>, name: &str, netns: Option<&Namespace>) -> Option<Vec<OwnedFd>> {
    let here = match netns {
        Some(netns) => identity(netns)?,
        None => identity(std::fs::File::open("/proc/thread-self/ns/net").ok()?)?,
    };
    let is_it = |queue: &Foreign| {
        is_tun(queue) && interface_of(queue).is_some_and(|of| of == name) && namespace_of(queue) == Some(here)
    };
    let all = !queues.is_empty() && queues.iter().all(is_it);
    all.then(|| queues.into_iter().map(Foreign::into_own).collect())
}

/// Whether it is the device of taps: another one could answer what follows with any number.
fn is_tun(queue: &Foreign) -> bool {
    let stat = rustix::fs::fstat(queue);
    stat.is_ok_and(|stat| {
        FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice && stat.st_rdev == makedev(10, 200)
    })
}

/// The interface of a tap.
fn interface_of(queue: &Foreign) -> Option<String> {
    // SAFETY: ifreq is plain integers and pointers; all zero is a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    let argument = std::ptr::from_mut(&mut request).cast();
    ioctl(queue, libc::TUNGETIFF, argument).ok()?;
    let name = request.ifr_name.iter().map(|c| *c as u8).take_while(|byte| *byte != 0);
    String::from_utf8(name.collect()).ok()
}

/// Device and inode of a tap's network namespace.
fn namespace_of(queue: &Foreign) -> Option<(u64, u64)> {
    identity(opened(queue, TUNGETDEVNETNS).ok()?)
}

fn identity(file: impl AsFd) -> Option<(u64, u64)> {
    rustix::fs::fstat(file).ok().map(|stat| (stat.st_dev, stat.st_ino))
}

/// What an ioctl opens that takes no argument.
fn opened(fd: impl AsFd, code: libc::c_ulong) -> io::Result<OwnedFd> {
    let opened = ioctl(fd, code, std::ptr::null_mut())?;
    // SAFETY: the kernel has just opened it for this process, and no other code knows its number.
    Ok(unsafe { OwnedFd::from_raw_fd(opened) })
}

fn ioctl(fd: impl AsFd, code: libc::c_ulong, argument: *mut libc::c_void) -> io::Result<i32> {
    // SAFETY: callers pass a live ifreq where the code asks for one, and the other codes take no argument.
    match unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), code as _, argument) } {
        -1 => Err(io::Error::last_os_error()),
        value => Ok(value),
    }
}

/// Verifies everything that a switch reported, for vNICs at paths of their names.
#[cfg(feature = "fuzzing")]
pub fn check_inherited(handover: tidegate_switch::control::handover::Handover) {
    let entry = |name: &str| Entry::trusted(&Path::new("/run").join(name)).expect("/run exists");
    for (name, connected) in &handover.connections {
        if let Some(stream) = connected.as_ref().and_then(|c| c.descriptors.get(&c.saved.stream)) {
            let _ = (is_accepted(stream, &entry(name)), is_dialled(stream, Path::new(name)));
        }
    }
    for (name, links) in handover.links {
        let _ = links.iter().all(|fd| is_listener(fd, &entry(&name)));
        drop(taps(links, &name, None));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
    use tidegate_service::foreign::Budget;

    #[test]
    fn an_inherited_socket_is_checked_for_its_kind_and_path() {
        let dir = tempfile::tempdir().unwrap();
        let (path, other) = (dir.path().join("a.sock"), dir.path().join("b.sock"));
        let [at, elsewhere] = [&path, &other].map(|path| Entry::trusted(path).unwrap());
        let (listener, others) = (UnixListener::bind(&path).unwrap(), UnixListener::bind(&other).unwrap());
        let dialled = UnixStream::connect(&path).unwrap();
        let accepted = listener.accept().unwrap().0;
        let datagram = UnixDatagram::bind(dir.path().join("c.sock")).unwrap();
        assert!(is_listener(&listener, &at) && !is_listener(&listener, &elsewhere));
        assert!(!is_listener(&others, &at) && !is_listener(&accepted, &at));
        assert!(is_accepted(&accepted, &at) && !is_accepted(&accepted, &elsewhere));
        assert!(is_dialled(&dialled, &path) && !is_dialled(&dialled, &other));
        // Its name is right, and not itself.
        std::fs::rename(&path, dir.path().join("moved")).unwrap();
        let _impostor = UnixListener::bind(&path).unwrap();
        if rustix::process::geteuid().is_root() {
            assert!(!is_listener(&listener, &at) && !is_accepted(&accepted, &at));
        }
        let unnamed = UnixStream::pair().unwrap().0;
        for wrong in [datagram.as_fd(), unnamed.as_fd(), std::fs::File::open("/dev/null").unwrap().as_fd()] {
            assert!(!is_listener(wrong, &at) && !is_accepted(wrong, &at) && !is_dialled(wrong, &path));
        }
    }

    #[test]
    fn a_descriptor_that_is_no_tap_is_rejected() {
        let budget = Budget::new(10);
        let file = || Foreign::new(std::fs::File::open("/dev/null").unwrap().into(), &budget);
        assert!(taps(vec![file(), file()], "tg0", None).is_none());
        assert!(taps(vec![], "tg0", None).is_none());
    }
}
