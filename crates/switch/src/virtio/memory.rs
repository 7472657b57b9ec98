//! A guest's memory, mapped into this process and reached only through
//! bounds-checked translation.

use std::os::fd::OwnedFd;

/// One region of a vhost-user memory table (vhost-user, "Memory region description").
#[derive(Debug)]
pub struct RegionSpec {
    /// Guest physical address of the first byte.
    pub guest_addr: u64,
    /// Address of the first byte in the front end's own address space; vring addresses are given in it.
    pub user_addr: u64,
    /// Length in bytes.
    pub size: u64,
    /// Offset of the first byte in `fd`.
    pub mmap_offset: u64,
    /// The shared memory.
    pub fd: OwnedFd,
}

/// A guest's memory table, mapped. Unmapped on drop.
#[derive(Debug)]
pub struct GuestMemory {}
