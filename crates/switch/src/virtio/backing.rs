//! Decides whether a file can be guest memory, by its file system.
//!
//! ```text
//!  memfd, tmpfs, hugetlbfs ──▶ memory: a page is there, or the kernel makes one at once
//!  ext4, xfs, btrfs, ... ────▶ a disk: a thread that touches a page may wait for the disk
//!  FUSE, NFS, overlays, ... ─▶ refused: a thread that touches a page may wait for another process, for ever
//!  sockets, pipes, devices ──▶ refused
//! ```
//!
//! The kernel itself answers [`is_memory`]. All other questions go to the file system, whose process may
//! answer as late as it likes: a [thread](crate::vhost_user::errands) asks them for which no worker waits.

use rustix::fs::{FileType, Stat, fcntl_get_seals, fstat, fstatfs};
use rustix::io::Errno;
use std::fmt;
use std::os::fd::AsFd;

/// File systems of linux/magic.h on a disk of this machine, not served by a process.
const DISKS: [(u32, &str); 6] = [
    (0x0000_ef53, "ext4"),
    (0x5846_5342, "xfs"),
    (0x9123_683e, "btrfs"),
    (0xf2f5_2010, "f2fs"),
    (0xca45_1a4e, "bcachefs"),
    (0x2fc1_2fc1, "zfs"),
];

/// Types of objects that are no files: sockets, pipes, event counters and their like, devices and folders
/// of tmpfs.
const NO_FILES: [u32; 4] = [0x534f_434b, 0x5049_5045, 0x0904_1934, 0x0102_1994];

/// Some refused file systems, for messages.
const OTHERS: [(u32, &str); 8] = [
    (0x6573_5546, "FUSE"),
    (0x0000_6969, "NFS"),
    (0xff53_4d42, "CIFS"),
    (0xfe53_4d42, "SMB"),
    (0x0102_1997, "9p"),
    (0x794c_7630, "overlayfs"),
    (0x00c3_6400, "ceph"),
    (0x5345_434d, "secretmem"),
];

/// The file system of a file that can be memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// Memory: tmpfs, a memfd, hugetlbfs.
    Memory,
    /// A disk, by this file system.
    Disk(&'static str),
}

/// Why a file cannot be memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfit {
    /// It is a socket, a pipe, a device or a folder.
    NotAFile,
    /// It is on a file system of this type (linux/magic.h).
    FileSystem(u32),
    /// The kernel does not answer.
    System(Errno),
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAFile => write!(f, "not a file")?,
            Self::FileSystem(kind) => {
                match OTHERS.iter().find(|(magic, _)| magic == kind) {
                    Some((_, name)) => write!(f, "not memory but on {name}")?,
                    None => write!(f, "not memory but on a file system of type {kind:#x}")?,
                }
                write!(f, ", which could delay the switch")?;
            }
            Self::System(errno) => return write!(f, "the kernel does not report its file system: {errno}"),
        }
        write!(f, " (use memory-backend-memfd, or memory-backend-file on tmpfs or hugetlbfs)")
    }
}

/// Whether `file` is on tmpfs or hugetlbfs, as memfds are. The kernel itself answers, at once: only these
/// know seals (memfd_get_seals()).
pub fn is_memory(file: impl AsFd) -> bool {
    fcntl_get_seals(file).is_ok()
}

/// Returns the file system of `file`. If it is not [memory](is_memory), this asks the file system, which
/// may take as long as it likes.
///
/// # Errors
/// The file cannot be memory.
pub fn inspect(file: impl AsFd) -> Result<Backing, Unfit> {
    let backing = match is_memory(&file) {
        true => Backing::Memory,
        false => {
            let kind = fstatfs(&file).map_err(Unfit::System)?.f_type as u32;
            let disk = DISKS.iter().find(|(magic, _)| *magic == kind);
            match disk {
                Some((_, name)) => Backing::Disk(name),
                None if NO_FILES.contains(&kind) => return Err(Unfit::NotAFile),
                None => return Err(Unfit::FileSystem(kind)),
            }
        }
    };
    let mode = fstat(&file).map_err(Unfit::System)?.st_mode;
    match FileType::from_raw_mode(mode) {
        FileType::RegularFile => Ok(backing),
        _ => Err(Unfit::NotAFile),
    }
}

/// Whether a file has all of its pages, by its number of blocks, also beyond the mapped part: pages there
/// could make up for holes. Seeking for a hole would wait for a thread that is punching one.
///
/// A file with pages behind its end, which a front end can allocate, may look whole and have holes. That
/// costs only time: if memory keeps holding a worker up, [all ports are watched](crate::worker).
pub fn is_whole(stat: &Stat) -> bool {
    let bytes = (stat.st_blocks as u64).saturating_mul(512);
    bytes >= stat.st_size as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, memfd_create};
    use std::fs::File;
    use std::os::fd::OwnedFd;

    #[test]
    fn memory_is_distinguished_from_disks_and_other_files() {
        let memfd = memfd_create("memory", MemfdFlags::CLOEXEC).unwrap();
        assert_eq!((is_memory(&memfd), inspect(&memfd)), (true, Ok(Backing::Memory)));
        match memfd_create("memory", MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB) {
            Ok(huge) => assert_eq!((is_memory(&huge), inspect(&huge)), (true, Ok(Backing::Memory))),
            Err(error) => eprintln!("not tested with huge pages: this kernel has none: {error}"),
        }
        let shm = tempfile::tempfile_in("/dev/shm").unwrap();
        assert_eq!(inspect(&shm), Ok(Backing::Memory));
        // A folder of tmpfs has no seals.
        assert_eq!(inspect(File::open("/dev/shm").unwrap()), Err(Unfit::NotAFile));
        let (reader, _writer) = std::io::pipe().unwrap();
        let socket = std::os::unix::net::UnixStream::pair().unwrap().0;
        let maps = File::open("/proc/self/maps").unwrap();
        assert_eq!(inspect(&maps), Err(Unfit::FileSystem(0x9fa0)));
        let files: [(&str, OwnedFd); 3] = [
            ("/dev/null", File::open("/dev/null").unwrap().into()),
            ("a pipe", reader.into()),
            ("a socket", socket.into()),
        ];
        for (what, file) in files {
            assert_eq!((is_memory(&file), inspect(&file)), (false, Err(Unfit::NotAFile)), "{what}");
        }
    }

    #[test]
    fn a_file_on_a_disk_is_recognised() {
        // Programs are usually on a disk.
        let here = File::open(std::env::current_exe().unwrap()).unwrap();
        let kind = fstatfs(&here).unwrap().f_type as u32;
        match DISKS.iter().find(|(magic, _)| *magic == kind) {
            Some((_, name)) => assert_eq!(inspect(&here), Ok(Backing::Disk(name))),
            None => eprintln!("not tested with a disk: the build is on a file system of type {kind:#x}"),
        }
    }

    #[test]
    fn a_refusal_says_what_to_use() {
        assert_eq!(
            Unfit::FileSystem(0x6573_5546).to_string(),
            "not memory but on FUSE, which could delay the switch (use memory-backend-memfd, or \
             memory-backend-file on tmpfs or hugetlbfs)"
        );
        assert!(Unfit::FileSystem(0x1234).to_string().contains("of type 0x1234"));
    }
}
