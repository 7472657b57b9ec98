//! The dirty log: the guest pages that the switch wrote during a migration (vhost-user, "Migration").
//!
//! ```text
//!  write ─▶ guest memory      page n of guest physical memory: bit n % 8 of byte n / 8
//!    └────▶ mark ──atomic or──▶ ┌───────────┐
//!                               │ log, a    │ ◀── the front end takes the bits away and
//!                               │ memory fd │     sends those pages (again)
//!                               └───────────┘
//! ```
//!
//! A bit is set after the write it stands for. The front end clears a bit before it reads the page:
//! so it either reads what was written, or finds the bit set again.

use super::inflight::TMPFS_MAGIC;
use super::sigbus::Watch;
use super::{Chain, GuestMemory};
use crate::quota::Charge;
use rustix::fs::{FileType, fstat, fstatfs};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// Bytes of one bit, whatever the page sizes of guest and host.
pub const PAGE: u64 = 4096;

/// Why a log cannot be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum LogError {
    /// No bytes, or offset plus size leaves what a file can have.
    #[error("a log of {size} bytes at offset {offset} of its file")]
    Size {
        /// Bytes of the log.
        size: u64,
        /// Where it begins.
        offset: u64,
    },
    /// Not something whose length can be known.
    #[error("the log is not a file; give a memfd")]
    NotAFile,
    /// On another file system. Huge pages that go missing cannot be replaced one by one, and a file system
    /// of the front end's own delays a thread that writes.
    #[error(
        "the log is not in plain shared memory but on a file system of type {0:#x}; give a memfd without huge pages"
    )]
    NotPlain(u32),
    /// The file ends before the log does; writing there would raise SIGBUS.
    #[error("the log ends at byte {end} of its file, which has {file} bytes")]
    FileTooSmall {
        /// File offset after its last byte.
        end: u64,
        /// Length of the file.
        file: u64,
    },
    /// It has no bit for some of the guest's pages.
    #[error("the log has bits for {log:#x} bytes of guest memory, which ends at {memory:#x}")]
    TooSmall {
        /// First guest address without a bit.
        log: u64,
        /// First guest address after the memory.
        memory: u64,
    },
    /// No more mappings can be watched.
    #[error("the switch has as many mappings as it can watch")]
    TooManyMapped,
    /// The kernel refused.
    #[error("mapping the log: {0}")]
    System(Errno),
}

/// A log, mapped. Unmapped on drop.
#[derive(Debug)]
pub struct LogArea {
    mapping: *mut u8,
    mapped: usize,
    /// First byte of the log in the mapping.
    before: usize,
    size: u64,
    /// `None` while it is unmapped.
    watch: Option<Watch>,
    /// Returned when it is unmapped.
    _charge: Option<Charge>,
}

// SAFETY: the pointer leads into a shared mapping that lives as long as the value, and belongs to no
// thread.
unsafe impl Send for LogArea {}
// SAFETY: a shared reference only sets bits, atomically.
unsafe impl Sync for LogArea {}

impl LogArea {
    /// Maps `size` bytes at `offset` of `fd` (SET_LOG_BASE). The descriptor may be closed afterwards.
    ///
    /// # Errors
    /// What a front end can get wrong, see [`LogError`].
    pub fn map(fd: impl AsFd, size: u64, offset: u64) -> Result<Self, LogError> {
        let wrong = LogError::Size { size, offset };
        let end = offset.checked_add(size).filter(|end| size > 0 && i64::try_from(*end).is_ok());
        let Some(end) = end else { return Err(wrong) };
        let stat = fstat(&fd).map_err(LogError::System)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(LogError::NotAFile);
        }
        let kind = fstatfs(&fd).map_err(LogError::System)?.f_type as u32;
        if kind != TMPFS_MAGIC {
            return Err(LogError::NotPlain(kind));
        }
        let file = stat.st_size as u64;
        if end > file {
            return Err(LogError::FileTooSmall { end, file });
        }
        let page = rustix::param::page_size() as u64;
        let from = offset / page * page;
        let before = (offset - from) as usize;
        let mapped = (before + size as usize).next_multiple_of(page as usize);
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address the kernel chooses; nothing existing is touched.
        let start = unsafe { mmap(std::ptr::null_mut(), mapped, protection, MapFlags::SHARED, &fd, from) }
            .map_err(LogError::System)?;
        let mut area = Self { mapping: start.cast(), mapped, before, size, watch: None, _charge: None };
        area.watch = Some(Watch::new(start, mapped, page as usize).ok_or(LogError::TooManyMapped)?);
        // A core dump has no use for it.
        // SAFETY: our own mapping, made above.
        let _ = unsafe { madvise(start, mapped, Advice::LinuxDontDump) };
        // Maps existing pages now, so that no worker waits for the kernel. Missing pages are not made, or a
        // front end could fill the machine's memory. QEMU clears its log first.
        if stat.st_blocks as u64 * 512 >= end {
            // SAFETY: as above; populating changes no byte of it.
            let _ = unsafe { madvise(start, mapped, Advice::LinuxPopulateWrite) };
        }
        Ok(area)
    }

    /// Holds a charge to its port's [account](crate::quota::Account) until it is unmapped.
    #[must_use]
    pub fn charged(mut self, charge: Charge) -> Self {
        self._charge = Some(charge);
        self
    }

    /// The first guest address without a bit.
    fn end(&self) -> u64 {
        self.size.saturating_mul(8 * PAGE)
    }

    /// Sets the bit of page `page`, if there is one.
    #[inline]
    fn set(&self, page: u64) {
        let byte = page / 8;
        if byte < self.size {
            // SAFETY: inside the mapping, which has at least `before + size` bytes; atomic, as the front
            // end takes bits away meanwhile.
            let bits = unsafe { AtomicU8::from_ptr(self.mapping.add(self.before + byte as usize)) };
            // Release: what was written is there before its bit. Always written: a bit seen set may
            // have been taken away before our write arrives.
            bits.fetch_or(1 << (page % 8), Ordering::Release);
        }
    }
}

impl Drop for LogArea {
    fn drop(&mut self) {
        self.watch = None;
        // SAFETY: exactly what mmap returned, owned by this value alone.
        let _ = unsafe { munmap(self.mapping.cast(), self.mapped) };
    }
}

/// A log and its memory.
#[derive(Clone, Debug)]
pub struct DirtyLog {
    area: Arc<LogArea>,
    memory: Arc<GuestMemory>,
}

impl DirtyLog {
    /// Returns a log with a bit for every page of the memory.
    ///
    /// # Errors
    /// [`LogError::TooSmall`].
    pub fn new(area: Arc<LogArea>, memory: Arc<GuestMemory>) -> Result<Self, LogError> {
        if memory.end() > area.end() {
            return Err(LogError::TooSmall { log: area.end(), memory: memory.end() });
        }
        Ok(Self { area, memory })
    }

    /// Whether it has bits for `len` bytes at guest address `at`.
    ///
    /// # Errors
    /// [`LogError::TooSmall`].
    pub fn covers(&self, at: u64, len: u64) -> Result<(), LogError> {
        let (log, memory) = (self.area.end(), at.saturating_add(len));
        if memory > log { Err(LogError::TooSmall { log, memory }) } else { Ok(()) }
    }

    /// Whether a part of the log was lost: its bits are unknown, and the port is to be disconnected.
    pub fn is_lost(&self) -> bool {
        self.area.watch.as_ref().is_some_and(Watch::is_lost)
    }

    /// Returns the same log for another memory table.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_memory(&self, memory: Arc<GuestMemory>) -> Result<Self, LogError> {
        Self::new(self.area.clone(), memory)
    }

    /// Marks `len` written bytes at `ptr`, in one region of the guest's memory as it is mapped here.
    pub fn mark(&self, ptr: *const u8, len: u64) {
        if let Some(first) = self.memory.guest_addr(ptr) {
            self.mark_guest(first, len);
        }
    }

    /// Marks `len` written bytes at a guest address.
    pub fn mark_guest(&self, first: u64, len: u64) {
        if len > 0 {
            let last = first.saturating_add(len - 1);
            (first / PAGE..=last / PAGE).for_each(|page| self.area.set(page));
        }
    }

    /// Marks the first `len` bytes of a chain's buffers.
    pub fn mark_chain(&self, chain: &Chain, len: u32) {
        let mut left = len;
        for span in chain.spans() {
            let here = span.len.min(left);
            self.mark(span.ptr, here.into());
            left -= here;
        }
    }

    /// Marks `len` written bytes at an address of the front end.
    pub fn mark_user(&self, addr: u64, len: u64) {
        if let Some(ptr) = self.memory.translate_user(addr, len) {
            self.mark(ptr, len);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::virtio::Span;
    use crate::virtio::memory::RegionSpec;
    use proptest::prelude::*;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use std::os::fd::OwnedFd;
    use std::os::unix::fs::FileExt;

    fn file(size: u64) -> OwnedFd {
        let fd = memfd_create("log", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&fd, size).unwrap();
        fd
    }

    /// Two regions with a gap: 64 pages from 0, 16 from 16 MiB on.
    const HIGH: u64 = 16 << 20;

    fn memory() -> Arc<GuestMemory> {
        let region = |guest_addr, user_addr, pages: u64| RegionSpec {
            guest_addr,
            user_addr,
            size: pages * PAGE,
            mmap_offset: 0,
            fd: file(pages * PAGE),
        };
        Arc::new(GuestMemory::map(vec![region(HIGH, 0x10_0000, 16), region(0, 0x70_0000, 64)]).unwrap())
    }

    fn bits(fd: &std::fs::File, offset: u64, size: u64) -> Vec<u64> {
        let mut bytes = vec![0; size as usize];
        fd.read_exact_at(&mut bytes, offset).unwrap();
        (0..8 * size).filter(|page| bytes[(page / 8) as usize] >> (page % 8) & 1 == 1).collect()
    }

    proptest! {
        /// Exactly the written pages are marked.
        #[test]
        fn only_written_pages_are_marked(
            writes in prop::collection::vec((any::<bool>(), 0u64..16 * PAGE, 1u64..3 * PAGE, any::<bool>()), 1..20),
            offset in prop_oneof![Just(0u64), Just(8192), Just(24)],
        ) {
            let size = (HIGH / PAGE + 16).div_ceil(8);
            let log = file(offset + size);
            let reader = std::fs::File::from(log.try_clone().unwrap());
            let memory = memory();
            let area = Arc::new(LogArea::map(log, size, offset).unwrap());
            let dirty = DirtyLog::new(area, memory.clone()).unwrap();
            let mut expected = std::collections::BTreeSet::new();
            for (high, at, len, by_user) in writes {
                let len = len.min(16 * PAGE - at);
                let (guest, user) = if high { (HIGH, 0x10_0000) } else { (0, 0x70_0000) };
                if by_user {
                    dirty.mark_user(user + at, len);
                } else {
                    dirty.mark(memory.translate(guest + at, len).unwrap(), len);
                }
                expected.extend((guest + at..guest + at + len).map(|addr| addr / PAGE));
            }
            prop_assert_eq!(bits(&reader, offset, size), expected.into_iter().collect::<Vec<_>>());
        }
    }

    /// A frame may end anywhere in its buffers, which may be in any regions.
    #[test]
    fn only_the_written_part_of_a_chain_is_marked() {
        let memory = memory();
        let size = (HIGH / PAGE + 16).div_ceil(8);
        let spans = [(0, 12), (2 * PAGE, 100), (HIGH + PAGE, 2 * PAGE as u32), (9 * PAGE, 50)];
        let mut chain = Chain::new();
        for (at, len) in spans {
            chain.push(Span { ptr: memory.translate(at, len.into()).unwrap(), len }).unwrap();
        }
        let high = HIGH / PAGE;
        for (len, expected) in [
            (0, vec![]),
            (12, vec![0]),
            (13, vec![0, 2]),
            (113, vec![0, 2, high + 1]),
            (112 + PAGE as u32 + 1, vec![0, 2, high + 1, high + 2]),
            (chain.bytes(), vec![0, 2, 9, high + 1, high + 2]),
        ] {
            let log = file(size);
            let reader = std::fs::File::from(log.try_clone().unwrap());
            let area = Arc::new(LogArea::map(log, size, 0).unwrap());
            DirtyLog::new(area, memory.clone()).unwrap().mark_chain(&chain, len);
            assert_eq!(bits(&reader, 0, size), expected, "{len} bytes");
        }
    }

    #[test]
    fn a_log_that_does_not_fit_is_refused() {
        let map = |fd, size, offset| LogArea::map(fd, size, offset).map(drop);
        assert_eq!(map(file(4096), 0, 0), Err(LogError::Size { size: 0, offset: 0 }));
        assert_eq!(map(file(4096), 8, u64::MAX - 7), Err(LogError::Size { size: 8, offset: u64::MAX - 7 }));
        assert_eq!(map(file(4096), 4096, 1), Err(LogError::FileTooSmall { end: 4097, file: 4096 }));
        let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        assert_eq!(map(socket.into(), 8, 0), Err(LogError::NotAFile));
        let area = Arc::new(LogArea::map(file(4096), 64, 0).unwrap());
        let small = DirtyLog::new(area, memory()).map(drop);
        assert_eq!(small, Err(LogError::TooSmall { log: 8 * 64 * PAGE, memory: HIGH + 16 * PAGE }));
    }

    #[test]
    fn a_page_without_a_bit_is_left_alone() {
        let area = LogArea::map(file(4096), 1, 0).unwrap();
        (0..64).for_each(|page| area.set(page));
        // SAFETY: the first page of the mapping, which lives to the end of the test.
        let bytes = unsafe { std::slice::from_raw_parts(area.mapping, 8) };
        assert_eq!(bytes, [255, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn a_log_that_is_not_plain_memory_is_refused_and_one_without_pages_is_not_filled() {
        // The machine may have no huge pages.
        match memfd_create("log", MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB) {
            Ok(huge) => {
                ftruncate(&huge, 2 << 20).unwrap();
                assert_eq!(LogArea::map(huge, 4096, 0).unwrap_err(), LogError::NotPlain(0x9584_58f6));
            }
            Err(error) => eprintln!("not tested with huge pages: this kernel has none: {error}"),
        }
        let sparse = file(1 << 30);
        let looked_at = sparse.try_clone().unwrap();
        let area = LogArea::map(sparse, 1 << 30, 0).unwrap();
        assert_eq!(fstat(&looked_at).unwrap().st_blocks, 0);
        area.set(9);
        assert_eq!(fstat(&looked_at).unwrap().st_blocks * 512, 4096);
    }
}
