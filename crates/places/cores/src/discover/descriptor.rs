//! Descriptors of other processes, and socket files, as the kernel knows them.
//!
//! ```text
//!  /proc/PID/fd/N ─ statx ─▶ Device
//!  its copy ─ TUNGETIFF, TUNGETDEVNETNS ─▶ name of a tap of this network namespace
//!  path ─ openat2, statx ─▶ SocketFile, as sock_diag(7) names it
//! ```
//!
//! The text of a path says nothing: each user can mount a folder of his own at `/dev` or `/run`, in a namespace of his own, and has
//! taps of any name there. Numbers of devices and of files are the kernel's. No call here waits for a file system's server (FUSE).

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, Statx, StatxFlags, openat2, statx};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use std::ffi::CStr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;

/// The number of a character device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Device {
    /// Of the driver.
    pub major: u32,
    /// Of the device.
    pub minor: u32,
}

impl Device {
    /// `/dev/net/tun` (Documentation/admin-guide/devices.txt).
    pub const TUN: Self = Self { major: 10, minor: 200 };

    /// Parses a file `dev` of sysfs, such as `10:200`.
    pub fn parse(text: &str) -> Option<Self> {
        let (major, minor) = text.split_once(':')?;
        Some(Self { major: major.parse().ok()?, minor: minor.parse().ok()? })
    }

    /// Returns the character device that a descriptor, such as `/proc/1/fd/2`, is open at; `None` if it is none.
    pub fn of_descriptor(path: &Path) -> Option<Self> {
        let found = statx(CWD, path, AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE).ok()?;
        let is_device = file_type(&found) == FileType::CharacterDevice;
        is_device.then_some(Self { major: found.stx_rdev_major, minor: found.stx_rdev_minor })
    }
}

/// The file of a Unix socket, as the kernel's socket diagnosis names it (`struct unix_diag_vfs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SocketFile {
    /// The file system's device, as the kernel has it inside: 12 bits of major, 20 of minor number.
    pub device: u32,
    /// The low 32 bits of the inode's number.
    pub inode: u32,
}

impl SocketFile {
    /// Returns the file that stands at a path, and its descriptor (`O_PATH`); `None` if it is no socket, or if the kernel would have
    /// to ask a file system's server: the names above a socket that is open are in memory (RESOLVE_CACHED).
    pub fn at(path: &Path, resolve: ResolveFlags) -> Option<(Self, OwnedFd)> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let resolve = resolve | ResolveFlags::CACHED | ResolveFlags::NO_MAGICLINKS;
        let file = openat2(CWD, path, flags, Mode::empty(), resolve).ok()?;
        let how = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let found = statx(&file, "", how, StatxFlags::TYPE | StatxFlags::INO).ok()?;
        let device = found.stx_dev_major << 20 | found.stx_dev_minor;
        let inode = (found.stx_ino & u64::from(u32::MAX)) as u32;
        (file_type(&found) == FileType::Socket).then_some((Self { device, inode }, file))
    }
}

fn file_type(found: &Statx) -> FileType {
    FileType::from_raw_mode(found.stx_mode.into())
}

/// Returns the interface at which a process's descriptor of `/dev/net/tun` is, if it is in this thread's network namespace. Needs the
/// right to copy the descriptor (CAP_SYS_PTRACE).
pub fn tap(process: u32, descriptor: i32) -> Option<String> {
    let process = pidfd_open(Pid::from_raw(process.try_into().ok()?)?, PidfdFlags::empty()).ok()?;
    // All questions are asked of one copy: the process may put another file in its place meanwhile.
    let copy = pidfd_getfd(process, descriptor, PidfdGetfdFlags::empty()).ok()?;
    // It may be any file by now, whose driver has other meanings for these numbers.
    let is_tun = Device::of_descriptor(Path::new(&format!("/proc/self/fd/{}", copy.as_raw_fd())));
    if is_tun != Some(Device::TUN) || namespace_of(&copy)? != namespace()? {
        return None;
    }
    name_of(&copy)
}

/// Returns the network namespace of a tap's device, by device and inode of its file.
fn namespace_of(tap: &OwnedFd) -> Option<(u32, u32, u64)> {
    // SAFETY: the call takes no argument, and `tap` is open.
    let opened = unsafe { libc::ioctl(tap.as_raw_fd(), libc::TUNGETDEVNETNS) };
    if opened < 0 {
        return None;
    }
    // SAFETY: the kernel has just opened it for this process, and nothing else knows it.
    let opened = unsafe { OwnedFd::from_raw_fd(opened) };
    identity(statx(&opened, "", AtFlags::EMPTY_PATH, StatxFlags::INO).ok()?)
}

/// Returns this thread's network namespace.
fn namespace() -> Option<(u32, u32, u64)> {
    identity(statx(CWD, "/proc/thread-self/ns/net", AtFlags::empty(), StatxFlags::INO).ok()?)
}

fn identity(found: Statx) -> Option<(u32, u32, u64)> {
    Some((found.stx_dev_major, found.stx_dev_minor, found.stx_ino))
}

/// Returns the name of a tap's device.
fn name_of(tap: &OwnedFd) -> Option<String> {
    // SAFETY: all zeros are a valid request of plain numbers.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes one `ifreq`, which outlives the call.
    if unsafe { libc::ioctl(tap.as_raw_fd(), libc::TUNGETIFF, &raw mut request) } < 0 {
        return None;
    }
    let name = request.ifr_name.map(|byte| byte.to_ne_bytes()[0]);
    Some(CStr::from_bytes_until_nul(&name).ok()?.to_str().ok()?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn a_device_is_known_by_its_number_not_by_its_path() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("null");
        let [null, file] = [Path::new("/dev/null"), &path].map(|path| {
            std::fs::OpenOptions::new().write(true).create(true).truncate(false).open(path).unwrap()
        });
        let device = |file: &std::fs::File| {
            Device::of_descriptor(Path::new(&format!("/proc/self/fd/{}", file.as_raw_fd())))
        };
        assert_eq!((device(&null), device(&file)), (Some(Device { major: 1, minor: 3 }), None));
        assert_eq!(Device::parse("10:200"), Some(Device::TUN));
        assert_eq!([Device::parse("10"), Device::parse("a:1"), Device::parse("")], [None; 3]);
        // Neither is a tap.
        let process = std::process::id();
        assert_eq!([&null, &file].map(|file| tap(process, file.as_raw_fd())), [None, None]);
        assert_eq!(tap(0, 0), None);
    }

    #[test]
    fn a_tap_of_this_name_in_another_network_namespace_is_none() {
        let own_network = || {
            // SAFETY: descriptors stay shared, and only this thread changes its network namespace.
            unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) }
        };
        let scene = move || {
            let own = own_network();
            let device = std::fs::OpenOptions::new().read(true).write(true).open("/dev/net/tun");
            let may = own.is_ok() && device.is_ok();
            if !tidegate_testkit::need("no taps, or not root", may) {
                return;
            }
            let device = OwnedFd::from(device.unwrap());
            assert_eq!(tap(std::process::id(), device.as_raw_fd()), None, "not attached yet");
            // SAFETY: all zeros are a valid request of plain numbers.
            let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
            for (to, from) in request.ifr_name.iter_mut().zip(c"vnet7".to_bytes()) {
                *to = libc::c_char::from_ne_bytes([*from]);
            }
            request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI) as libc::c_short;
            // SAFETY: the kernel reads and writes one `ifreq`, which outlives the call.
            let made = unsafe { libc::ioctl(device.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
            assert_eq!(made, 0, "{}", std::io::Error::last_os_error());
            let found = || tap(std::process::id(), device.as_raw_fd());
            assert_eq!(found().as_deref(), Some("vnet7"));
            own_network().unwrap();
            assert_eq!(found(), None);
        };
        std::thread::spawn(scene).join().unwrap();
    }

    #[test]
    fn the_file_of_a_socket_that_stands_at_a_path() {
        let folder = tempfile::tempdir().unwrap();
        let [path, link, file] = ["socket", "link", "file"].map(|name| folder.path().join(name));
        let _listener = UnixListener::bind(&path).unwrap();
        std::os::unix::fs::symlink(folder.path(), &link).unwrap();
        std::fs::write(&file, "").unwrap();
        let at = |path: &Path, how| SocketFile::at(path, how).map(|(file, _)| file);
        let found = at(&path, ResolveFlags::NO_SYMLINKS);
        assert!(found.is_some());
        let linked = link.join("socket");
        let both = [ResolveFlags::empty(), ResolveFlags::NO_SYMLINKS].map(|how| at(&linked, how));
        assert_eq!(both, [found, None]);
        assert_eq!(at(&file, ResolveFlags::empty()), None);
    }
}
