//! A guest's memory, mapped into this process and reached only through
//! bounds-checked translation.
//!
//! ```text
//!   guest physical   ┌────────┐      ┌─────────────┐
//!                    │region 0│      │  region 1   │   sorted, disjoint
//!                    └───┬────┘      └──────┬──────┘
//!   this process     mmap of its file   mmap of its file
//! ```
//!
//! A file may be cut short after it was mapped, and touching the lost pages then raises SIGBUS. A guest
//! cannot do that; a front end can, unless the file is sealed (F_SEAL_SHRINK, QEMU's default for
//! memory-backend-memfd). Mapping checks all it can; a later loss costs the port its connection
//! ([`sigbus`](super::sigbus)). [`backing`] decides which files can be memory.

use super::Span;
use super::backing::{self, Backing, Unfit};
use super::sigbus::Watch;
use crate::quota::{Charge, MAX_REGIONS};
use rustix::fs::{fstat, fstatfs};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use std::ffi::c_void;
use std::fmt;
use std::os::fd::{AsFd, OwnedFd};

/// One region of a vhost-user memory table (vhost-user, "Memory region description").
#[derive(Clone, Debug)]
pub struct RegionSpec<F = OwnedFd> {
    /// Guest physical address of the first byte.
    pub guest_addr: u64,
    /// Address of the first byte in the front end's own address space; vring addresses are given in it.
    pub user_addr: u64,
    /// Length in bytes.
    pub size: u64,
    /// Offset of the first byte in `fd`.
    pub mmap_offset: u64,
    /// The shared memory.
    pub fd: F,
}

/// Why a memory table cannot be used. Regions are numbered as the front end sent them.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    /// The table is empty, as QEMU sends it when no memory is shared.
    #[error(
        "guest memory is not shared: the front end sent no memory region; give QEMU \
         `-object memory-backend-memfd,id=mem,size=SIZE,share=on -machine memory-backend=mem` \
         with SIZE the guest's memory (-m)"
    )]
    NoRegions,
    /// More than [`MAX_REGIONS`].
    #[error("a memory table of {0} regions: at most {MAX_REGIONS} are supported")]
    TooManyRegions(usize),
    /// A region of no bytes.
    #[error("memory region {0} is empty")]
    Empty(usize),
    /// Address or offset plus size leaves 64 bits.
    #[error("memory region {0}: its address or file offset plus its size overflows")]
    Overflow(usize),
    /// Two regions claim the same guest addresses.
    #[error("memory regions {0} and {1} overlap in guest addresses")]
    Overlap(usize, usize),
    /// Its file cannot be memory.
    #[error("memory region {region}: {reason}")]
    Unfit {
        /// Which region.
        region: usize,
        /// What it is.
        reason: Unfit,
    },
    /// The file ends before the region does; reading there would raise SIGBUS.
    #[error("memory region {region} ends at byte {end} of its file, which has {file} bytes")]
    FileTooSmall {
        /// Which region.
        region: usize,
        /// File offset after its last byte.
        end: u64,
        /// Length of the file.
        file: u64,
    },
    /// All ports together have too many regions.
    #[error("memory region {0}: too many regions are mapped in this process")]
    TooManyMapped(usize),
    /// The kernel refused.
    #[error("memory region {region}: {call} failed: {errno}")]
    System {
        /// Which region.
        region: usize,
        /// The call that failed.
        call: &'static str,
        /// Its error.
        errno: Errno,
    },
}

/// A region as translation needs it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Region {
    guest_addr: u64,
    size: u64,
    host: *mut u8,
}

impl Region {
    /// Contains nothing.
    pub(super) const NONE: Self = Self { guest_addr: 0, size: 0, host: std::ptr::null_mut() };

    /// Where `len` bytes at guest address `addr` are in this process, if all are in this region.
    #[inline]
    pub(super) fn translate(&self, addr: u64, len: u64) -> Option<*mut u8> {
        let offset = addr.wrapping_sub(self.guest_addr);
        // The second half cannot underflow because of the first.
        if offset < self.size && len <= self.size - offset {
            Some(self.host.wrapping_add(offset as usize))
        } else {
            None
        }
    }
}

/// One mmap; unmapped on drop.
#[derive(Debug)]
struct Mapping {
    start: *mut c_void,
    len: usize,
    /// `None` before it is complete, and while it is unmapped.
    watch: Option<Watch>,
}

impl Drop for Mapping {
    fn drop(&mut self) {
        self.watch = None;
        // SAFETY: exactly what mmap returned, owned by this value alone; users of the pointers hold the
        // GuestMemory, or have stopped using them (see `Span`).
        let _ = unsafe { munmap(self.start, self.len) };
    }
}

/// Files of guest memory, kept open.
#[derive(Default)]
struct Files(Vec<Box<dyn AsFd + Send + Sync>>);

impl fmt::Debug for Files {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} files", self.0.len())
    }
}

/// A guest's memory table, mapped. Unmapped on drop.
#[derive(Debug)]
pub struct GuestMemory {
    /// Sorted by guest address, disjoint.
    regions: Vec<Region>,
    /// Front end's address of each of `regions`.
    user_addrs: Vec<u64>,
    preallocated: bool,
    /// File system of the disk that holds some of it.
    disk: Option<&'static str>,
    mappings: Vec<Mapping>,
    /// Those that [`with_files`](GuestMemory::with_files) was told.
    files: Files,
    /// Returned when it is unmapped.
    _charge: Option<Charge>,
}

// SAFETY: the pointers lead into shared mappings that live as long as the value, and belong to
// no thread.
unsafe impl Send for GuestMemory {}
// SAFETY: a shared reference only computes addresses; nothing is changed after `map`.
unsafe impl Sync for GuestMemory {}

impl GuestMemory {
    /// Maps a memory table. The descriptors may be closed afterwards.
    ///
    /// If every page exists already, all are also entered into this process's page tables, so that no
    /// worker waits for a page fault. For a file that is not [memory](backing::is_memory) this asks the
    /// file system, which may take as long as it likes.
    ///
    /// # Errors
    /// A fault of the front end, see [`MapError`]. Nothing stays mapped then.
    pub fn map<F: AsFd>(specs: impl AsRef<[RegionSpec<F>]>) -> Result<Self, MapError> {
        let specs = specs.as_ref();
        check_table(specs)?;

        let mut order: Vec<usize> = (0..specs.len()).collect();
        order.sort_by_key(|&i| specs[i].guest_addr);
        for pair in order.windows(2) {
            let (low, high) = (&specs[pair[0]], &specs[pair[1]]);
            if high.guest_addr - low.guest_addr < low.size {
                return Err(MapError::Overlap(pair[0].min(pair[1]), pair[0].max(pair[1])));
            }
        }

        let mut memory = Self {
            regions: Vec::with_capacity(specs.len()),
            user_addrs: Vec::with_capacity(specs.len()),
            preallocated: false,
            disk: None,
            mappings: Vec::with_capacity(specs.len()),
            files: Files::default(),
            _charge: None,
        };
        let mut all_whole = true;
        for &i in &order {
            let spec = &specs[i];
            let backing =
                backing::inspect(&spec.fd).map_err(|reason| MapError::Unfit { region: i, reason })?;
            if let Backing::Disk(name) = backing {
                memory.disk = Some(name);
            }
            let stat = fstat(&spec.fd).map_err(|errno| system(i, "fstat", errno))?;
            let (file, end) = (stat.st_size as u64, spec.mmap_offset + spec.size);
            if end > file {
                return Err(MapError::FileTooSmall { region: i, end, file });
            }
            all_whole &= backing::is_whole(&stat);

            let (mapping, host) = map_region(i, spec)?;
            memory.regions.push(Region { guest_addr: spec.guest_addr, size: spec.size, host });
            memory.user_addrs.push(spec.user_addr);
            memory.mappings.push(mapping);
        }
        // Pages on a disk may be written back and dropped at any time.
        memory.preallocated = memory.disk.is_none() && all_whole;
        if memory.preallocated {
            memory.populate();
        }
        Ok(memory)
    }

    /// Returns the address of `len` bytes at guest physical address `gpa` in this process; `None` unless
    /// all of them are in one region.
    #[inline]
    pub fn translate(&self, gpa: u64, len: u64) -> Option<*mut u8> {
        self.region(gpa)?.translate(gpa, len)
    }

    /// Returns the region that contains `gpa`. Callers with locality keep it and ask it first.
    #[inline]
    pub(super) fn region(&self, gpa: u64) -> Option<&Region> {
        self.regions.iter().find(|region| gpa.wrapping_sub(region.guest_addr) < region.size)
    }

    /// Like [`translate`](Self::translate), for an address of the front end, as vrings have.
    pub fn translate_user(&self, addr: u64, len: u64) -> Option<*mut u8> {
        self.regions.iter().zip(&self.user_addrs).find_map(|(region, &user_addr)| {
            let offset = addr.checked_sub(user_addr).filter(|&offset| offset < region.size)?;
            region.translate(region.guest_addr + offset, len)
        })
    }

    /// Returns the guest physical address of a byte as it is mapped in this process.
    pub fn guest_addr(&self, ptr: *const u8) -> Option<u64> {
        self.regions.iter().find_map(|region| {
            let offset = ptr.addr().checked_sub(region.host.addr())? as u64;
            (offset < region.size).then_some(region.guest_addr + offset)
        })
    }

    /// Returns the first guest physical address after the last region.
    pub fn end(&self) -> u64 {
        self.regions.last().map_or(0, |region| region.guest_addr + region.size)
    }

    /// Hands `each` the pieces of `len` bytes at guest physical address `gpa`, in order: more
    /// than one where they cross from one region into the next.
    ///
    /// Returns whether all of them are mapped; if not, `each` has seen those before the gap.
    /// Stops at the first error of `each` and returns it.
    pub fn translate_spans<E>(
        &self,
        mut gpa: u64,
        mut len: u32,
        mut each: impl FnMut(Span) -> Result<(), E>,
    ) -> Result<bool, E> {
        while len > 0 {
            let Some(region) = self.region(gpa) else {
                return Ok(false);
            };
            let offset = gpa - region.guest_addr;
            let piece = u64::from(len).min(region.size - offset) as u32;
            each(Span { ptr: region.host.wrapping_add(offset as usize), len: piece })?;
            len -= piece;
            // No region ends at 2^64, so this does not wrap.
            gpa += u64::from(piece);
        }
        Ok(true)
    }

    /// Whether [every page](backing::is_whole) of its files existed when the table was mapped. If not, the
    /// thread that touches a page first waits for the kernel: perhaps a worker, and all its ports with it.
    pub fn preallocated(&self) -> bool {
        self.preallocated
    }

    /// Returns the file system of the disk that holds some of it, if any: a thread that touches a page may
    /// wait for the disk.
    pub fn disk(&self) -> Option<&'static str> {
        self.disk
    }

    /// Holds a charge to its port's [account](crate::quota::Account) until it is unmapped.
    #[must_use]
    pub fn charged(self, charge: Charge) -> Self {
        Self { _charge: Some(charge), ..self }
    }

    /// Keeps its files open until it is unmapped, each once, so that [`blocks`](Self::blocks) can be asked.
    #[must_use]
    pub fn with_files<F: AsFd + Send + Sync + 'static>(self, files: impl IntoIterator<Item = F>) -> Self {
        let files = files.into_iter().map(|file| Box::new(file) as Box<dyn AsFd + Send + Sync>);
        Self { files: Files(files.collect()), ..self }
    }

    /// Returns the blocks that each of its files has now; `None` if one lacks some, is on a disk, or is not known. Fewer blocks
    /// than before are holes: a device that still has the former pages has others than the guest.
    pub fn blocks(&self) -> Option<Vec<i64>> {
        // Memory alone answers at once.
        let is_known = self.disk.is_none() && !self.files.0.is_empty();
        let whole = |file: &Box<dyn AsFd + Send + Sync>| {
            let stat = fstat(file.as_ref()).ok().filter(backing::is_whole)?;
            Some(stat.st_blocks)
        };
        self.files.0.iter().map(whole).collect::<Option<_>>().filter(|_| is_known)
    }

    /// Returns its regions in this process: first byte and length (bytes) of each.
    pub fn regions(&self) -> impl ExactSizeIterator<Item = (*mut u8, usize)> {
        self.regions.iter().map(|region| (region.host, region.size as usize))
    }

    /// Whether a part of it was lost, and replaced by zeros: the port is to be disconnected.
    pub fn is_lost(&self) -> bool {
        self.mappings.iter().any(|mapping| mapping.watch.as_ref().is_some_and(Watch::is_lost))
    }

    /// Enters all pages into this process's page tables. Best effort: kernels before 5.14 cannot. Piece by
    /// piece: a worker's fault would wait for the lock of the address space.
    fn populate(&self) {
        const PIECE: usize = 64 << 20;
        for mapping in &self.mappings {
            for at in (0..mapping.len).step_by(PIECE) {
                let (start, len) = (mapping.start.wrapping_byte_add(at), PIECE.min(mapping.len - at));
                // SAFETY: inside our own mapping; populating changes no byte of it.
                let _ = unsafe { madvise(start, len, Advice::LinuxPopulateWrite) };
            }
        }
    }
}

/// Checks a table before its files.
fn check_table<F>(specs: &[RegionSpec<F>]) -> Result<(), MapError> {
    if specs.is_empty() {
        return Err(MapError::NoRegions);
    }
    if specs.len() > MAX_REGIONS {
        return Err(MapError::TooManyRegions(specs.len()));
    }
    for (i, spec) in specs.iter().enumerate() {
        if spec.size == 0 {
            return Err(MapError::Empty(i));
        }
        let ends = [spec.guest_addr, spec.user_addr, spec.mmap_offset].map(|a| a.checked_add(spec.size));
        let file_end_fits = ends[2].is_some_and(|end| i64::try_from(end).is_ok());
        if ends.contains(&None) || !file_end_fits {
            return Err(MapError::Overflow(i));
        }
    }
    Ok(())
}

/// Maps the pages that hold the region; returns the mapping and the region's first byte in it.
fn map_region<F: AsFd>(i: usize, spec: &RegionSpec<F>) -> Result<(Mapping, *mut u8), MapError> {
    const HUGETLBFS_MAGIC: u32 = 0x9584_58f6;
    let fs = fstatfs(&spec.fd).map_err(|errno| system(i, "fstatfs", errno))?;
    // Files of huge pages are mapped and unmapped in whole huge pages.
    let page = match fs.f_type as u32 {
        HUGETLBFS_MAGIC => fs.f_bsize as u64,
        _ => rustix::param::page_size() as u64,
    };
    let offset = spec.mmap_offset / page * page;
    let before = spec.mmap_offset - offset;
    // Fits: the caller made sure that offset + size is at most the length of a file.
    let len = (before + spec.size).next_multiple_of(page) as usize;
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address the kernel chooses; nothing existing is touched.
    let start = unsafe { mmap(std::ptr::null_mut(), len, protection, MapFlags::SHARED, &spec.fd, offset) }
        .map_err(|errno| system(i, "mmap", errno))?;
    let mut mapping = Mapping { start, len, watch: None };
    mapping.watch = Some(Watch::new(start, len, page as usize).ok_or(MapError::TooManyMapped(i))?);
    // A guest's memory has no place in our core dump; a failure does not matter.
    // SAFETY: our own mapping, made above; no byte of it changes.
    let _ = unsafe { madvise(start, len, Advice::LinuxDontDump) };
    let host = start.cast::<u8>().wrapping_add(before as usize);
    Ok((mapping, host))
}

fn system(region: usize, call: &'static str, errno: Errno) -> MapError {
    MapError::System { region, call, errno }
}
