//! The folders below which contracts may name sockets and namespaces.

use crate::{At, Entry, SocketFile};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, open, openat2};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::Metadata;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

/// Folder of vhost-user sockets, and possibly guests'.
const SOCKETS: &str = "/run/tidegate/vm";
/// Folders of libvirt's sockets of a domain's channels; which one depends on its release.
const CHANNELS: [&str; 2] = ["/run/libvirt/qemu/channel", "/var/lib/libvirt/qemu/channel"];
/// Folder of network namespaces of ip-netns(8) and podman.
const NAMESPACES: &str = "/run/netns";
/// Most links in a path (path_resolution(7)).
const LINKS: usize = 40;
/// Folders that the agent's unit hides from it, or replaces by its own (`ProtectHome=`, `PrivateTmp=`).
const HIDDEN: [&str; 5] = ["/home", "/root", "/run/user", "/tmp", "/var/tmp"];
const SOCKET_OPTION: &str = "--socket-root";
const NAMESPACE_OPTION: &str = "--netns-root";

/// Folders below which contracts may name objects.
#[derive(Clone, Debug)]
pub struct Paths {
    /// vhost-user sockets: made, given to their owner, connected to and removed.
    pub sockets: Roots,
    /// Guests' sockets: connected to.
    pub guests: Roots,
    /// Network namespaces: entered.
    pub namespaces: Roots,
}

impl Paths {
    /// Returns the standard folders and these further ones.
    ///
    /// # Errors
    /// One of these is not an absolute path.
    pub fn new(sockets: &[PathBuf], namespaces: &[PathBuf]) -> Result<Self, String> {
        let guests = CHANNELS.map(PathBuf::from).into_iter().chain(sockets.iter().cloned());
        Ok(Self {
            sockets: Roots::new(SOCKETS, sockets, SOCKET_OPTION)?,
            guests: Roots::new(SOCKETS, &guests.collect::<Vec<_>>(), SOCKET_OPTION)?,
            namespaces: Roots::new(NAMESPACES, namespaces, NAMESPACE_OPTION)?,
        })
    }
}

/// Folders of the administrator's, below which contracts may name files.
#[derive(Clone, Debug)]
pub struct Roots {
    folders: Vec<PathBuf>,
    /// The agent's option that adds folders.
    option: &'static str,
}

/// Why a path is refused. Nothing was done there.
#[derive(Debug, thiserror::Error)]
pub enum PathError {
    /// It is below none of the roots.
    #[error("{path} is not below {roots}: choose a path there{}", or_allow(folder, option))]
    Outside {
        /// The path.
        path: PathBuf,
        /// Its folder.
        folder: PathBuf,
        /// The roots, in words.
        roots: String,
        /// The agent's option that adds folders.
        option: &'static str,
    },
    /// Its folder does not exist.
    #[error("the folder {folder} of {path} does not exist: make it first (mkdir -p {folder})")]
    Missing {
        /// The path.
        path: PathBuf,
        /// Its folder.
        folder: PathBuf,
    },
    /// A component is a link.
    #[error(
        "{path} leads over a symbolic link, which is not followed: name the folder that the link leads to"
    )]
    Link {
        /// The path.
        path: PathBuf,
    },
    /// A file system is mounted on the path.
    #[error(
        "another file system is mounted on the way from {root} to {path}, and the agent enters no file system that \
         users could have mounted: let the agent use the folder where it is mounted (tidegate agent {option} DIR)"
    )]
    Mount {
        /// The path.
        path: PathBuf,
        /// The root above it.
        root: PathBuf,
        /// The agent's option that adds folders.
        option: &'static str,
    },
    /// The operating system refused.
    #[error("cannot open the folder of {path}: {source}")]
    Io {
        /// The path.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
}

/// Advice to let the agent use `folder`; empty if its service cannot see users' files there.
fn or_allow(folder: &Path, option: &str) -> String {
    if HIDDEN.iter().any(|hidden| folder.starts_with(hidden)) {
        return String::new();
    }
    format!(
        ", or let the agent use its folder by {option} {} (systemctl edit tidegate-agent)",
        folder.display()
    )
}

impl Roots {
    fn new(always: &str, more: &[PathBuf], option: &'static str) -> Result<Self, String> {
        if let Some(folder) = more.iter().find(|folder| !is_plain(folder)) {
            let shown = folder.display();
            return Err(format!("{option} {shown}: expected the absolute path of a folder, without \"..\""));
        }
        let folders = [PathBuf::from(always)].into_iter().chain(more.iter().cloned());
        Ok(Self { folders: folders.collect(), option })
    }

    /// Returns why a contract may not name `path`, by its spelling alone; `None` if it may.
    pub fn refuse(&self, path: &Path) -> Option<String> {
        self.below(path).err().map(|e| e.to_string())
    }

    /// Returns why a user other than root and the agent's could replace a root by another folder; `None` if
    /// no user can. Files below a root may belong to any user.
    pub fn exposed(&self) -> Option<String> {
        self.folders.iter().find_map(|folder| {
            let why = exposed_way(folder)?;
            Some(format!("contracts may name paths below {}, and {why}", folder.display()))
        })
    }

    /// Returns the last name of `path`, in its folder: resolved once, without links, and held from then on.
    pub fn entry(&self, path: &Path) -> Result<Entry, PathError> {
        let (folder, name) = self.folder(path)?;
        Ok(Entry::new(folder, name, path))
    }

    /// Opens the folder of `path`; returns it with the name.
    pub(super) fn folder<'a>(&self, path: &'a Path) -> Result<(OwnedFd, &'a OsStr), PathError> {
        let (root, rest) = self.below(path)?;
        let outside = || self.outside(path);
        let name = rest.file_name().ok_or_else(outside)?;
        let folder = rest.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        // Links on the path to a root are the administrator's, like the root itself.
        let root_folder = open(root, flags, Mode::empty()).map_err(|e| failed(path, e))?;
        // A user may mount a file system in his folder (fusermount3(1)), and its server may never answer.
        let resolve = ResolveFlags::BENEATH
            | ResolveFlags::NO_SYMLINKS
            | ResolveFlags::NO_MAGICLINKS
            | ResolveFlags::NO_XDEV;
        let folder = openat2(&root_folder, folder, flags, Mode::empty(), resolve).map_err(|e| match e {
            // Paths are plain, so `..` is not the cause.
            Errno::XDEV => PathError::Mount { path: path.into(), root: root.into(), option: self.option },
            e => failed(path, e),
        })?;
        Ok((folder, name))
    }

    /// Returns the root above `path`, and the rest of the path.
    fn below<'a>(&self, path: &'a Path) -> Result<(&Path, &'a Path), PathError> {
        let way = |root: &'_ PathBuf| path.strip_prefix(root).ok().filter(|way| !way.as_os_str().is_empty());
        // The nearest: another one's path to it may differ.
        let roots = self.folders.iter().filter_map(|root| Some((root.as_path(), way(root)?)));
        let nearest = roots.min_by_key(|(_, way)| way.components().count());
        nearest.filter(|_| is_plain(path)).ok_or_else(|| self.outside(path))
    }

    fn outside(&self, path: &Path) -> PathError {
        let roots: Vec<String> = self.folders.iter().map(|root| root.display().to_string()).collect();
        PathError::Outside {
            path: path.into(),
            folder: path.parent().unwrap_or(path).into(),
            roots: roots.join(" or "),
            option: self.option,
        }
    }
}

impl Entry {
    /// Returns the last name of an administrator's path, in its folder. Links are followed.
    ///
    /// # Errors
    /// The path has no last name, or its folder cannot be opened.
    pub fn trusted(path: &Path) -> Result<Self, PathError> {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let name = path.file_name().ok_or_else(|| failed(path, Errno::ISDIR))?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::openat(CWD, folder, flags, Mode::empty()).map_err(|e| failed(path, e))?;
        Ok(Self::new(folder, name, path))
    }
}

impl SocketFile {
    /// Returns the socket file at `path`, below one of `roots`.
    ///
    /// # Errors
    /// `NotFound` without a file; `Other`, with the reason, if the path is refused or the file is no
    /// socket.
    pub fn at(roots: &Roots, path: &Path) -> io::Result<Self> {
        let entry = roots.entry(path).map_err(|e| match e {
            PathError::Missing { .. } => io::ErrorKind::NotFound.into(),
            other => io::Error::other(other),
        })?;
        match entry.look()? {
            At::Socket(file) => Ok(file),
            At::Nothing => Err(io::ErrorKind::NotFound.into()),
            At::Other(what) => Err(io::Error::other(format!("this is {what}, no socket"))),
        }
    }
}

/// Returns why users other than root and this agent's could replace `folder`: they can exchange it, a link
/// in its path, or a folder above it.
pub fn exposed_way(folder: &Path) -> Option<String> {
    let (mut at, mut links) = (PathBuf::from("/"), 0);
    let parts =
        |path: &Path| path.components().rev().map(|part| part.as_os_str().to_owned()).collect::<Vec<_>>();
    // The next one is the last element.
    let mut way = parts(folder);
    while let Some(part) = way.pop() {
        match Path::new(&part).components().next() {
            Some(Component::RootDir) => at = "/".into(),
            Some(Component::ParentDir) => drop(at.pop()),
            Some(Component::Normal(name)) => {
                let child = at.join(name);
                if let Some(why) = exposed(&at).or_else(|| exposed_name(&at, &child)) {
                    return Some(why);
                }
                match std::fs::read_link(&child) {
                    Ok(target) if links < LINKS => {
                        links += 1;
                        way.extend(parts(&target));
                    }
                    _ => at = child,
                }
            }
            _ => {}
        }
    }
    None
}

/// Returns why users other than root and this agent's can replace names in `folder`.
pub fn exposed(folder: &Path) -> Option<String> {
    let there = folder.metadata().ok()?;
    let who = if !is_trusted(&there) {
        format!("belongs to user {}", there.uid())
    } else if there.mode() & 0o022 != 0 && there.mode() & 0o1000 == 0 {
        format!("may be written by others (mode {:04o})", there.mode() & 0o7777)
    } else {
        return None;
    };
    let shown = folder.display();
    Some(format!(
        "{shown} {who}, so a user can replace a folder in it by another one: give it to root (chown root {shown}; \
         chmod go-w {shown})"
    ))
}

/// Returns why another user may rename `child` in `folder`, where all may write and rename their own files
/// (sticky).
fn exposed_name(folder: &Path, child: &Path) -> Option<String> {
    let owner = child.symlink_metadata().ok().filter(|child| !is_trusted(child))?.uid();
    let shown = child.display();
    (folder.metadata().ok()?.mode() & 0o022 != 0).then(|| {
        format!(
            "{shown} belongs to user {owner}, who can rename it and put another folder in its place, because {} may \
             be written by others: give it to root (chown -h root {shown})",
            folder.display()
        )
    })
}

/// Whether a file belongs to root or this agent's user.
fn is_trusted(file: &Metadata) -> bool {
    // In a user namespace root is a stranger.
    let root = Path::new("/").metadata().map_or(0, |root| root.uid());
    [root, 0, rustix::process::geteuid().as_raw()].contains(&file.uid())
}

/// Whether a path is absolute, and spelt so that every file below a folder begins with the folder's path.
fn is_plain(path: &Path) -> bool {
    let mut parts = path.components();
    path.is_absolute() && parts.all(|part| matches!(part, Component::RootDir | Component::Normal(_)))
}

fn failed(path: &Path, error: Errno) -> PathError {
    let path = path.to_owned();
    match error {
        Errno::NOENT => PathError::Missing { folder: path.parent().unwrap_or(&path).into(), path },
        Errno::LOOP => PathError::Link { path },
        e => PathError::Io { path, source: e.into() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::At;
    use rustix::mount::MountFlags;
    use std::os::unix::fs::symlink;
    use tidegate_testkit::own_mounts_or_skip;

    fn roots(more: &[&Path]) -> Roots {
        let more: Vec<PathBuf> = more.iter().map(|p| (*p).into()).collect();
        Paths::new(&more, &[]).unwrap().sockets
    }

    #[test]
    fn only_paths_below_a_root_are_used() {
        let roots = roots(&[Path::new("/srv/vm")]);
        for path in ["/run/tidegate/vm/a", "/run/tidegate/vm/x/y/a", "/srv/vm/a", "/run/tidegate/vm/..a"] {
            assert_eq!(roots.refuse(Path::new(path)), None, "{path}");
        }
        for path in [
            "/run/tidegate/vm",
            "/run/tidegate/a",
            "/run/tidegate/vmx/a",
            "/run/tidegate/vm/../a",
            "/run/tidegate/vm/x/../a",
            "/srv/vm/../../etc/shadow",
            "/etc/a",
            "srv/vm/a",
            "",
        ] {
            let why = roots.refuse(Path::new(path)).unwrap_or_else(|| panic!("{path} is allowed"));
            assert!(why.contains("is not below /run/tidegate/vm or /srv/vm"), "{why}");
        }
        let why = roots.refuse(Path::new("/run/vm/a")).unwrap();
        assert!(why.ends_with("by --socket-root /run/vm (systemctl edit tidegate-agent)"), "{why}");
    }

    #[test]
    fn channels_may_be_in_the_folders_of_libvirt() {
        let paths = Paths::new(&[], &[]).unwrap();
        let channel = Path::new("/run/libvirt/qemu/channel/1-web/org.tidegate.limit.0");
        assert_eq!(paths.guests.refuse(channel), None);
        assert!(paths.sockets.refuse(channel).is_some());
        assert!(paths.namespaces.refuse(Path::new("/proc/1/ns/net")).unwrap().contains("--netns-root /proc"));
        for wrong in ["vm", "/srv/../vm", ""] {
            assert!(Paths::new(&[wrong.into()], &[]).unwrap_err().contains("--socket-root"), "{wrong}");
        }
    }

    #[test]
    fn a_mount_below_a_root_is_not_entered() {
        if !own_mounts_or_skip() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        for folder in ["root", "root/mounted"] {
            std::fs::create_dir(path(folder)).unwrap();
        }
        std::fs::write(path("root/socket"), "").unwrap();
        let (root, mounted) = (path("root"), path("root/mounted"));
        rustix::mount::mount("none", &mounted, "tmpfs", MountFlags::empty(), None).unwrap();
        std::fs::create_dir(path("root/mounted/deep")).unwrap();
        rustix::mount::mount_bind("/proc/self/stat", path("root/socket")).unwrap();
        for entered in ["root/mounted/a", "root/mounted/deep/a"] {
            let error = roots(&[&root]).entry(&path(entered)).unwrap_err().to_string();
            assert!(error.contains("another file system is mounted on the way"), "{error}");
        }
        let there = |name: &str| roots(&[&root]).entry(&path(name)).unwrap().look().unwrap();
        for over in ["root/mounted", "root/socket"] {
            assert!(matches!(there(over), At::Other("a mount point")), "{over}: {:?}", there(over));
        }
        // The administrator may name any folder.
        assert!(roots(&[&root, &mounted]).entry(&path("root/mounted/a")).is_ok());
    }

    #[test]
    fn a_root_in_a_folder_that_others_may_change_is_reported() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let (above, root) = (dir.path().join("above"), dir.path().join("above/root"));
        std::fs::create_dir_all(&root).unwrap();
        let roots = |root: &Path| Roots { folders: vec![root.into()], option: SOCKET_OPTION };
        let mode = |path: &Path, mode| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap()
        };
        // All may write to the root itself, and to a folder where names belong to their owners.
        for (folder, bits) in [(&root, 0o777), (&above, 0o1777)] {
            mode(folder, bits);
            assert_eq!(roots(&root).exposed(), None);
        }
        mode(&above, 0o775);
        let why = roots(&root).exposed().unwrap();
        assert!(why.contains("/above may be written by others (mode 0775)"), "{why}");
        mode(&above, 0o755);
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&above, Some(4242), None).unwrap();
            assert!(roots(&root).exposed().unwrap().contains("/above belongs to user 4242"));
            std::os::unix::fs::chown(&above, Some(0), None).unwrap();
            // Where all may write, a folder's owner may rename it.
            std::os::unix::fs::chown(&root, Some(4242), None).unwrap();
            assert_eq!(roots(&root).exposed(), None);
            mode(&above, 0o1777);
            assert!(roots(&root).exposed().unwrap().contains("/above/root belongs to user 4242"));
        }
    }

    #[test]
    fn an_exposed_folder_on_a_way_over_links_is_reported() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        for folder in ["yard", "yard/root", "plain"] {
            std::fs::create_dir(path(folder)).unwrap();
        }
        symlink("yard/root", path("link")).unwrap();
        symlink("../plain", path("yard/back")).unwrap();
        assert_eq!(exposed_way(&path("link")), None);
        std::fs::set_permissions(path("yard"), std::fs::Permissions::from_mode(0o777)).unwrap();
        // The link's own folder is safe, its target is not; and the other way round.
        for link in ["link", "yard/back"] {
            let why = exposed_way(&path(link)).unwrap_or_else(|| panic!("{link} is taken"));
            assert!(why.contains("/yard may be written by others"), "{why}");
        }
        symlink("loop", path("loop")).unwrap();
        assert_eq!(exposed_way(&path("loop")), None, "it leads nowhere, and is looked at for a time");
    }

    #[test]
    fn no_advice_names_a_folder_that_the_service_cannot_see() {
        let refused = |path: &str| roots(&[]).refuse(Path::new(path)).unwrap();
        assert_eq!(refused("/tmp/x.sock"), "/tmp/x.sock is not below /run/tidegate/vm: choose a path there");
        assert!(!refused("/home/ann/vm/x.sock").contains("let the agent"));
        assert_eq!(
            refused("/srv/vm/x.sock"),
            "/srv/vm/x.sock is not below /run/tidegate/vm: choose a path there, or let the agent use its folder by \
             --socket-root /srv/vm (systemctl edit tidegate-agent)"
        );
    }

    #[test]
    fn no_link_is_followed() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        for folder in ["root", "root/yard", "away"] {
            std::fs::create_dir(path(folder)).unwrap();
        }
        symlink(path("away"), path("root/link")).unwrap();
        symlink("yard", path("root/inside")).unwrap();
        symlink("/proc/self/root", path("root/magic")).unwrap();
        symlink(path("root"), path("alias")).unwrap();
        let (real, alias) = (path("root"), path("alias"));
        let roots = roots(&[&real, &alias]);
        assert!(roots.entry(&path("root/yard/a")).is_ok());
        for link in ["root/link/a", "root/inside/a", "root/magic/etc/a"] {
            let error = roots.entry(&path(link)).unwrap_err();
            assert!(matches!(error, PathError::Link { .. }), "{link}: {error}");
        }
        assert!(roots.entry(&path("alias/yard/a")).is_ok(), "the administrator's own links are followed");
        let error = roots.entry(&path("root/none/a")).unwrap_err().to_string();
        assert!(error.contains("does not exist: make it first (mkdir -p "), "{error}");
    }
}
