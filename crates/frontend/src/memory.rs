//! A synthetic guest's memory: a memfd, mapped here and passed to the device.

use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};

/// Shared guest memory with an allocator that never frees.
///
/// Every access outside it panics: a test lies by what it writes, not where. The device may access it at
/// the same time.
#[derive(Debug)]
pub struct SharedMemory {
    fd: OwnedFd,
    start: *mut u8,
    size: usize,
    huge: bool,
    guest_addr: u64,
    allocated: AtomicU64,
}

/// Size of a huge page (bytes).
const HUGE_PAGE: usize = 2 << 20;

// SAFETY: no thread owns the mapping, which lives as long as the value; guest memory allows racing
// accesses.
unsafe impl Send for SharedMemory {}
// SAFETY: as above; the allocator is atomic.
unsafe impl Sync for SharedMemory {}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: the mapping of mmap, owned by this value alone.
        let _ = unsafe { munmap(self.start.cast(), self.size) };
    }
}

impl SharedMemory {
    /// Makes `size` zero bytes (whole pages) at guest physical address `guest_addr`.
    ///
    /// # Errors
    /// The kernel cannot make or map the memfd.
    pub fn new(guest_addr: u64, size: usize) -> io::Result<Self> {
        Self::of(guest_addr, size, false)
    }

    /// As [`new`](Self::new), in pages of 2 MB, with `size` rounded up.
    ///
    /// # Errors
    /// As there, or too few huge pages are free.
    pub fn in_huge_pages(guest_addr: u64, size: usize) -> io::Result<Self> {
        let memory = Self::of(guest_addr, size.next_multiple_of(HUGE_PAGE), true)?;
        memory.preallocate()?;
        Ok(memory)
    }

    fn of(guest_addr: u64, size: usize, huge: bool) -> io::Result<Self> {
        let pages = if huge { MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB } else { MemfdFlags::empty() };
        let fd = memfd_create("tidegate-guest", MemfdFlags::CLOEXEC | pages)?;
        ftruncate(&fd, size as u64)?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let start = unsafe { mmap(std::ptr::null_mut(), size, protection, MapFlags::SHARED, &fd, 0) }?;
        Ok(Self { fd, start: start.cast(), size, huge, guest_addr, allocated: AtomicU64::new(0) })
    }

    /// Allocates every page now, like QEMU's `prealloc=on`.
    ///
    /// # Errors
    /// The kernel lacks the memory.
    pub fn preallocate(&self) -> io::Result<()> {
        Ok(fallocate(&self.fd, FallocateFlags::empty(), 0, self.size as u64)?)
    }

    /// Whether the pages have 2 MB.
    pub fn is_huge(&self) -> bool {
        self.huge
    }

    /// Returns the memory's file, to pass to the device.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Returns the guest physical address of the first byte.
    pub fn guest_addr(&self) -> u64 {
        self.guest_addr
    }

    /// Returns the first byte's address in this process: the front end's "user address".
    pub fn user_addr(&self) -> u64 {
        self.start.addr() as u64
    }

    /// Returns the length (bytes).
    pub fn size(&self) -> u64 {
        self.size as u64
    }

    /// Returns the user address of guest address `gpa`.
    pub fn to_user(&self, gpa: u64) -> u64 {
        self.ptr(gpa, 0).addr() as u64
    }

    /// Allocates `len` bytes, aligned to `align` (a power of two). Returns their guest address.
    ///
    /// # Panics
    /// The region is full.
    pub fn alloc(&self, len: u64, align: u64) -> u64 {
        let take = |used: u64| {
            let start = (self.guest_addr + used).next_multiple_of(align) - self.guest_addr;
            Some(start + len).filter(|&end| end <= self.size()).map(|end| (start, end))
        };
        let before = self
            .allocated
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| take(used).map(|(_, end)| end))
            .unwrap_or_else(|used| panic!("{len} bytes do not fit: {used} of {} are taken", self.size));
        self.guest_addr + take(before).expect("it just fitted").0
    }

    /// Copies `bytes` to guest address `gpa`.
    ///
    /// # Panics
    /// Outside the region, as all accesses.
    #[inline]
    pub fn write(&self, gpa: u64, bytes: &[u8]) {
        let to = self.ptr(gpa, bytes.len());
        // SAFETY: `to` is in the mapping for the length; a slice of ours is not.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) }
    }

    /// Copies from guest address `gpa` into `bytes`.
    #[inline]
    pub fn read(&self, gpa: u64, bytes: &mut [u8]) {
        let from = self.ptr(gpa, bytes.len());
        // SAFETY: `from` is in the mapping for the length; a slice of ours is not.
        unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) }
    }

    /// Copies `len` bytes from guest address `from` to `to` in `other`, as memmove(3).
    ///
    /// # Panics
    /// Outside either region.
    pub fn copy_to(&self, from: u64, other: &Self, to: u64, len: usize) {
        let (from, to) = (self.ptr(from, len), other.ptr(to, len));
        // SAFETY: both are in their mappings for the length; they may overlap.
        unsafe { std::ptr::copy(from, to, len) }
    }

    /// Returns the `len` bytes at guest address `gpa`.
    pub fn bytes(&self, gpa: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.read(gpa, &mut bytes);
        bytes
    }

    /// Returns the 16-bit word at guest address `gpa`, for indices that both sides use at once.
    ///
    /// # Panics
    /// Outside the region, or at an odd address.
    #[inline]
    pub fn word(&self, gpa: u64) -> &AtomicU16 {
        let ptr = self.ptr(gpa, 2).cast::<u16>();
        assert!(ptr.is_aligned(), "a word at odd guest address {gpa:#x}");
        // SAFETY: two mapped, aligned bytes; the mapping lives as long as the borrow of `self`.
        unsafe { AtomicU16::from_ptr(ptr) }
    }

    #[inline]
    fn ptr(&self, gpa: u64, len: usize) -> *mut u8 {
        let offset = gpa.wrapping_sub(self.guest_addr);
        assert!(
            offset <= self.size() && len as u64 <= self.size() - offset,
            "{len} bytes at guest address {gpa:#x} are not in the region"
        );
        self.start.wrapping_add(offset as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_bytes_are_read_from_memory_and_from_its_file() {
        let memory = SharedMemory::new(0x10_0000, 0x2000).unwrap();
        memory.write(0x10_1ffc, b"last");
        assert_eq!(memory.bytes(0x10_1ffc, 4), b"last");
        let mut file = [0; 4];
        assert_eq!(rustix::io::pread(memory.fd(), &mut file, 0x1ffc).unwrap(), 4);
        assert_eq!(&file, b"last");
        assert_eq!(memory.to_user(0x10_0010), memory.user_addr() + 0x10);
    }

    #[test]
    fn copies_go_from_one_memory_to_another() {
        let (a, b) = (SharedMemory::new(0, 0x1000).unwrap(), SharedMemory::new(0x4000, 0x1000).unwrap());
        a.write(0x10, b"payload");
        a.copy_to(0x12, &b, 0x4ffb, 5);
        assert_eq!(b.bytes(0x4ffa, 6), b"\0yload");
    }

    #[test]
    #[should_panic(expected = "not in the region")]
    fn no_copy_goes_past_the_end_of_the_other() {
        let (a, b) = (SharedMemory::new(0, 0x2000).unwrap(), SharedMemory::new(0, 0x1000).unwrap());
        a.copy_to(0, &b, 0x0ff0, 17);
    }

    #[test]
    fn allocations_are_aligned_in_guest_addresses_and_disjoint() {
        let memory = SharedMemory::new(0x1008, 0x1000).unwrap();
        assert_eq!(memory.alloc(3, 1), 0x1008);
        assert_eq!(memory.alloc(1, 64), 0x1040);
        assert_eq!(memory.alloc(2, 2), 0x1042);
    }

    #[test]
    #[should_panic(expected = "do not fit")]
    fn a_full_region_is_reported() {
        SharedMemory::new(0, 0x1000).unwrap().alloc(0x1001, 1);
    }

    #[test]
    #[should_panic(expected = "not in the region")]
    fn an_access_past_the_end_panics() {
        SharedMemory::new(0x1000, 0x1000).unwrap().write(0x1fff, &[1, 2]);
    }
}
