//! Settings that are files of sysfs. A network namespace has a view of sysfs that is not mounted: a thread in the
//! namespace opens it (fsopen(2)), and files are reached from there. Without that right, `/sys` remains for
//! the agent's own namespace.

use crate::settings::setting::Setting;
use crate::settings::step::Found;
use rustix::fs::{Mode, OFlags, open, openat};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use tidegate_cores::cpus;
use tidegate_paths::{Namespace, NamespaceError, Roots, within};

/// Longest setting: a mask of 8192 CPUs has 2303 characters.
const LONGEST: u64 = 4096;

/// For one look: a namespace's path may lead to another one at the next.
pub struct Sysfs<'a> {
    /// Folders of network namespaces that contracts may name.
    roots: &'a Roots,
    open: HashMap<Option<PathBuf>, Result<OwnedFd, NamespaceError>>,
}

impl<'a> Sysfs<'a> {
    /// Opens nothing yet.
    pub fn new(roots: &'a Roots) -> Self {
        Self { roots, open: HashMap::new() }
    }

    /// Returns the root of a namespace's sysfs, and a file's path below it.
    fn file(&mut self, setting: &Setting) -> Result<(&OwnedFd, String), String> {
        let (netns, path) = match setting {
            Setting::Rps { netns, device, queue } => {
                (netns.clone(), format!("{}/queues/rx-{queue}/rps_cpus", folder(device)?))
            }
            Setting::Xps { netns, device, queue } => {
                (netns.clone(), format!("{}/queues/tx-{queue}/xps_cpus", folder(device)?))
            }
            Setting::Resume { cpu } => {
                (None, format!("devices/system/cpu/cpu{cpu}/power/pm_qos_resume_latency_us"))
            }
            other => return Err(format!("{other} is no file of sysfs: this is a bug of the agent")),
        };
        let roots = self.roots;
        let opened = self.open.entry(netns.clone()).or_insert_with(|| root(roots, netns));
        opened.as_ref().map(|root| (root, path)).map_err(|e| e.to_string())
    }

    /// Returns a setting's state; `None` if it is gone.
    ///
    /// # Errors
    /// It cannot be read; the reason.
    pub fn read(&mut self, setting: &Setting) -> Result<Option<Found>, String> {
        let (root, path) = self.file(setting)?;
        let cannot = |e: io::Error| format!("cannot read {path} of sysfs: {e}");
        let Some(value) = read(root, &path).map_err(cannot)? else { return Ok(None) };
        let (Setting::Rps { device, .. } | Setting::Xps { device, .. }) = setting else {
            return Ok(Some(Found { index: 0, value }));
        };
        let value =
            cpus::same_mask(&value).ok_or_else(|| format!("{path} of sysfs is no mask: {value:?}"))?;
        let index = read(root, &format!("{}/ifindex", folder(device)?)).map_err(cannot)?;
        Ok(index.and_then(|index| index.parse().ok()).map(|index| Found { index, value }))
    }

    /// Sets it.
    ///
    /// # Errors
    /// It cannot be written; the reason.
    pub fn write(&mut self, setting: &Setting, value: &str) -> Result<(), String> {
        let (root, path) = self.file(setting)?;
        write_file(root, &path, value)
            .map_err(|e| format!("cannot write {value} to {path} of sysfs: {e}{}", advice(&e)))
    }

    /// Whether a setting could not be read because its network namespace is gone.
    pub fn is_gone(&self, setting: &Setting) -> bool {
        let (Setting::Rps { netns, .. } | Setting::Xps { netns, .. }) = setting else { return false };
        matches!(self.open.get(netns), Some(Err(NamespaceError::Missing(_))))
    }
}

/// Returns an interface's folder; interface names have no slash: contracts are checked for that, a record on disk is not.
fn folder(device: &str) -> Result<String, String> {
    let good = !device.is_empty() && !device.contains('/') && device != "." && device != "..";
    if good { Ok(format!("class/net/{device}")) } else { Err(format!("{device:?} is no interface's name")) }
}

fn root(roots: &Roots, netns: Option<PathBuf>) -> Result<OwnedFd, NamespaceError> {
    let Some(path) = netns else {
        let mounted = || open("/sys", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        let opened = own_view().or_else(|_| mounted());
        return opened.map_err(|e| NamespaceError::Other(format!("cannot open sysfs: {e}")));
    };
    let namespace = Namespace::open(roots, &path)?;
    let cannot = move |e: io::Error| {
        format!("cannot open the sysfs of network namespace {}: {e}{}", path.display(), advice(&e))
    };
    within(Some(namespace), move || own_view().map_err(|e| cannot(e.into()))).map_err(NamespaceError::Other)
}

/// Writes a file of sysfs below its root.
pub(crate) fn write_file(root: &OwnedFd, path: &str, value: &str) -> io::Result<()> {
    let file = openat(root, path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    File::from(file).write_all(value.as_bytes())
}

/// Returns the sysfs in the view of the calling thread's network namespace.
pub(crate) fn own_view() -> rustix::io::Result<OwnedFd> {
    let context = fsopen("sysfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(context.as_fd())?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}

/// Returns a file's text without trailing white space; `None` without such a file or device.
fn read(root: &OwnedFd, path: &str) -> io::Result<Option<String>> {
    let file = match openat(root, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) {
        Err(Errno::NOENT | Errno::NODEV) => return Ok(None),
        other => File::from(other?),
    };
    let mut text = String::new();
    match file.take(LONGEST).read_to_string(&mut text) {
        // It went meanwhile; or `xps_cpus` of an interface with one queue.
        Err(e) if matches!(e.raw_os_error(), Some(libc::ENODEV | libc::ENOENT)) => Ok(None),
        other => other.map(|_| Some(text.trim_end().to_owned())),
    }
}

fn advice(e: &io::Error) -> &'static str {
    match e.kind() {
        io::ErrorKind::PermissionDenied => {
            " (it needs CAP_SYS_ADMIN and CAP_NET_ADMIN outside of user namespaces)"
        }
        io::ErrorKind::ReadOnlyFilesystem => " (the packaged agent needs the drop-in cores.conf)",
        _ => "",
    }
}
