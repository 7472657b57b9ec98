//! A port's chains in flight, recorded in memory that outlives the process.
//!
//! ```text
//!               ┌── memfd, one for a port; the agent or the front end holds it as well ──┐
//!               │ header │ queue 0: rx │ queue 1: tx │ ...                               │
//!               └───────────────┬────────────────────────────────────────────────────────┘
//!                               │   standing: unused, in service, stopped at a base
//!    Queue: pop, complete ──────┤   commit:   what is completed, in one store
//!    stores only                │   journal:  completed, not shown yet (packed)
//!                               │   places:   what each buffer in flight takes (tx)
//!    kill -9                    ▼
//!    Queue::new ◀── recovery: this and the ring ──▶ tx in flight: completed, unsent
//!                                                   rx in flight: available again
//! ```
//!
//! A killed thread stops between two instructions: every store before has happened, none after. So the
//! order counts in which the compiler emits the stores: release stores keep a store from moving before one
//! that precedes it in the program.
//!
//! A queue reads the region only once, when it starts, and trusts none of it: a front end may have given us
//! the region (vhost-user, VHOST_USER_SET_INFLIGHT_FD) and write to it at any time. That can only harm its
//! own rings.
//!
//! The format is ours: the standard's (vhost-user, "Inflight I/O tracking") is a suggestion, and
//! would cost more; see docs/decisions/inflight.md.

#[cfg(test)]
pub(super) mod cut;
mod memory;
mod queue;

use memory::Memory;
pub use queue::{QueueInflight, QueueState};
pub(super) use queue::{Record, Snapshot, stored};

use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, fstatfs, ftruncate, memfd_create,
};
use rustix::io::{Errno, pread, pwrite};
use rustix::mm::{MapFlags, ProtFlags, mmap};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// First bytes of a region; the last one is the version of the format.
const MAGIC: [u8; 8] = *b"TGinfl\0\x01";
/// Magic, queues, entries: 4 bytes each after the first 8.
const HEADER: usize = 128;
/// File system of memfds without huge pages (linux/magic.h).
pub(super) const TMPFS_MAGIC: u32 = 0x0102_1994;
/// Most entries of a queue: the largest ring (virtio 1.2, 2.7 and 2.8).
pub const MAX_ENTRIES: u16 = 1 << 15;
/// Most queues of a port: a kick message has 8 bits for them, so 128 pairs.
const MAX_QUEUES: u16 = 256;

/// Why a region cannot be used. The front end or agent that gave it expects another format.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum InflightError {
    /// The file could lose pages; a memfd of ours cannot.
    #[error(
        "the in-flight region is not sealed against shrinking; give back the descriptor of GET_INFLIGHT_FD"
    )]
    NotSealed,
    /// Touching a page can fail: only plain shared memory always has one.
    #[error(
        "the in-flight region is not in plain shared memory but on a file system of type {0:#x} (hugetlbfs is \
         0x958458f6), where a page may be missing when it is needed; give back the descriptor of GET_INFLIGHT_FD"
    )]
    NotPlain(u32),
    /// It does not begin with this version's magic.
    #[error("the in-flight region has another format; ask for a new one with GET_INFLIGHT_FD")]
    Format,
    /// It is for no queue, for more than a port can have, or for rings of impossible size.
    #[error(
        "an in-flight region of {queues} queues of {entries} entries, expected 1 to {MAX_QUEUES} of 1 to {MAX_ENTRIES}"
    )]
    Dimensions {
        /// Queues.
        queues: u32,
        /// Entries of each.
        entries: u32,
    },
    /// It is shorter than its queues need.
    #[error("the in-flight region has {has} bytes, its queues need {needs}")]
    Short {
        /// Bytes of the file.
        has: u64,
        /// Bytes needed.
        needs: u64,
    },
    /// The kernel refused.
    #[error("in-flight region: {0}")]
    System(Errno),
}

/// The region of a port, mapped.
#[derive(Clone, Debug)]
pub struct Inflight {
    memory: Arc<Memory>,
    fd: Arc<OwnedFd>,
    queues: u16,
    entries: u16,
}

impl Inflight {
    /// Returns a new region in a sealed memfd: for `queues` virtqueues of at most `entries` entries, none
    /// in service. Only written pages take memory.
    ///
    /// # Errors
    /// The kernel's; `InvalidInput` for no queue or more than 256, and for no entries or more than
    /// [`MAX_ENTRIES`].
    pub fn create(queues: u16, entries: u16) -> io::Result<Self> {
        let bytes = check(queues.into(), entries.into())
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let fd = memfd_create("tidegate-inflight", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&fd, bytes)?;
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let mut header = MAGIC.to_vec();
        header.extend(u32::from(queues).to_le_bytes());
        header.extend(u32::from(entries).to_le_bytes());
        pwrite(&fd, &header, 0)?;
        Ok(Self::map(fd, queues, entries, bytes)?)
    }

    /// Maps a region that [`create`](Self::create) made, in this process or another. The region states its
    /// own numbers of queues and entries.
    ///
    /// # Errors
    /// Any fault of the region.
    pub fn open(fd: OwnedFd) -> Result<Self, InflightError> {
        // First: an unsealed file can change its length at any time.
        let seals = fcntl_get_seals(&fd).map_err(|_| InflightError::NotSealed)?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err(InflightError::NotSealed);
        }
        // Huge pages are sealed as well, but a punched one comes back only from the pool; if that is empty,
        // a store raises SIGBUS, and this region is not watched as guest memory is.
        let kind = fstatfs(&fd).map_err(InflightError::System)?.f_type as u32;
        if kind != TMPFS_MAGIC {
            return Err(InflightError::NotPlain(kind));
        }
        let has = fstat(&fd).map_err(InflightError::System)?.st_size as u64;
        let mut header = [0; 16];
        let read = pread(&fd, &mut header, 0).map_err(InflightError::System)?;
        if read < header.len() || header[..8] != MAGIC {
            return Err(InflightError::Format);
        }
        let word = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("4 bytes"));
        let (queues, entries) = (word(8), word(12));
        let needs = check(queues, entries)?;
        if has < needs {
            return Err(InflightError::Short { has, needs });
        }
        Self::map(fd, queues as u16, entries as u16, needs).map_err(InflightError::System)
    }

    fn map(fd: OwnedFd, queues: u16, entries: u16, bytes: u64) -> Result<Self, Errno> {
        let (len, protection) = (bytes as usize, ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: a new mapping at an address the kernel chooses; nothing existing is touched.
        let start = unsafe { mmap(std::ptr::null_mut(), len, protection, MapFlags::SHARED, &fd, 0) }?;
        Ok(Self { memory: Arc::new(Memory::Mapped { start, len }), fd: Arc::new(fd), queues, entries })
    }

    /// The memfd, for the process after this one.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Length of the region in bytes.
    pub fn bytes(&self) -> u64 {
        size(self.queues, self.entries)
    }

    /// Virtqueues it is for.
    pub fn queues(&self) -> u16 {
        self.queues
    }

    /// Most entries that each of them may have.
    pub fn entries(&self) -> u16 {
        self.entries
    }

    /// Returns the part of virtqueue `index`, in the order of the protocol: even ones receive (in the VM's
    /// view), odd ones transmit. `None` if the region has no such queue.
    pub fn queue(&self, index: u16) -> Option<QueueInflight> {
        if index >= self.queues {
            return None;
        }
        let at = HEADER + usize::from(index) * QueueInflight::bytes(self.entries);
        // SAFETY: below the region's length, so in the mapping, and at a multiple of 128 of it.
        Some(unsafe { QueueInflight::at(self.memory.clone(), at, self.entries, !index.is_multiple_of(2)) })
    }
}

/// Returns the bytes of a region for so many queues, if it is possible.
fn check(queues: u32, entries: u32) -> Result<u64, InflightError> {
    match (u16::try_from(queues), u16::try_from(entries)) {
        (Ok(q @ 1..=MAX_QUEUES), Ok(e @ 1..=MAX_ENTRIES)) => Ok(size(q, e)),
        _ => Err(InflightError::Dimensions { queues, entries }),
    }
}

fn size(queues: u16, entries: u16) -> u64 {
    let bytes = HEADER + usize::from(queues) * QueueInflight::bytes(entries);
    bytes.next_multiple_of(rustix::param::page_size()) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sealed(flags: MemfdFlags, seals: SealFlags) -> Result<OwnedFd, Errno> {
        let fd = memfd_create("region", flags | MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&fd, 2 << 20)?;
        fcntl_add_seals(&fd, seals)?;
        Ok(fd)
    }

    #[test]
    fn a_file_that_can_lose_pages_is_refused() {
        let open = |fd: OwnedFd| Inflight::open(fd).unwrap_err();
        let shrinks = sealed(MemfdFlags::empty(), SealFlags::GROW).unwrap();
        assert_eq!(open(shrinks), InflightError::NotSealed);
        assert_eq!(open(tempfile::tempfile().unwrap().into()), InflightError::NotSealed);
        // Sealed, but of huge pages, which the machine may lack.
        match sealed(MemfdFlags::HUGETLB, SealFlags::SHRINK | SealFlags::GROW) {
            Ok(huge) => assert_eq!(open(huge), InflightError::NotPlain(0x9584_58f6)),
            Err(error) => eprintln!("not tested with huge pages: this kernel has none: {error}"),
        }
        let plain = sealed(MemfdFlags::empty(), SealFlags::SHRINK).unwrap();
        assert_eq!(open(plain), InflightError::Format);
        let ours = Inflight::create(2, 256).unwrap();
        assert!(Inflight::open(ours.fd().try_clone_to_owned().unwrap()).is_ok());
    }
}
