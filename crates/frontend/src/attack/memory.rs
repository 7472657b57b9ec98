//! Memory that disappears while it is read, or does not exist.

use super::Target;
use crate::driver::Buffer;
use crate::front_end::{FrontEnd, FrontEndError, Options};
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo};

/// Bytes below which the guest's rings and buffers stay.
const KEPT: u64 = 32 << 20;
/// Transmit queue of a guest with one queue pair.
const TRANSMIT: usize = 1;
/// Length of the frame sent from a hole (bytes).
const FRAME: u32 = 1000;

/// Repeatedly punches out everything above the rings, and meanwhile sends frames from there: a thread that
/// reads them waits for the kernel.
///
/// # Errors
/// This machine has too little memory.
pub fn punch_holes(target: &Target<'_>, bytes: u64) -> io::Result<()> {
    punch(target, bytes, 0)
}

/// As `punch_holes`, but the file always has as many pages as its length needs: further pages are behind
/// its end.
///
/// # Errors
/// This machine has too little memory.
pub fn punch_holes_unseen(target: &Target<'_>, bytes: u64) -> io::Result<()> {
    punch(target, bytes, bytes)
}

fn punch(target: &Target<'_>, bytes: u64, behind: u64) -> io::Result<()> {
    let options = Options { memory_size: bytes, ..Options::default() };
    target.repeat(|| {
        let mut front = target.connect(options.clone())?;
        let memory = Arc::clone(front.memory());
        if behind > 0 {
            fallocate(memory.fd(), FallocateFlags::KEEP_SIZE, bytes, behind).map_err(io::Error::from)?;
        }
        let punching = AtomicBool::new(true);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while punching.load(Ordering::Relaxed) {
                    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                    let _ = fallocate(memory.fd(), flags, KEPT, bytes - KEPT);
                    target.step();
                    let _ = memory.preallocate();
                }
            });
            let mut n = 0;
            while !target.is_over() && front.is_connected() {
                n += 1;
                let at = KEPT + n * 4096 * 129 % (bytes - KEPT - 4096);
                let ring = front.ring(TRANSMIT);
                while ring.reap().is_some() {}
                if ring.add(&[Buffer::readable(at, FRAME)]).is_some() && ring.publish() {
                    let _ = front.kick(TRANSMIT);
                }
                std::thread::sleep(std::time::Duration::from_micros(200));
            }
            punching.store(false, Ordering::Relaxed);
        });
        Ok(())
    });
    Ok(())
}

/// Makes a file of `bytes` without a page.
///
/// # Errors
/// The kernel refuses.
pub fn sparse_file(bytes: u64) -> io::Result<OwnedFd> {
    let file = memfd_create("tidegate-sparse", MemfdFlags::CLOEXEC)?;
    ftruncate(&file, bytes)?;
    Ok(file)
}

/// Passes a table that uses all the address space that the switch gives: regions of 8 TiB, then halves.
/// They stay as long as the switch allows.
pub(super) fn sparse_regions(target: &Target<'_>) -> io::Result<()> {
    const LARGEST: u64 = 8 << 40;
    const SMALLEST: u64 = 1 << 20;
    /// With the guest's own region, as many as a message can carry.
    const MOST: usize = 31;
    let file = sparse_file(LARGEST)?;
    let (mut sizes, mut next) = (Vec::new(), LARGEST);
    target.repeat(|| {
        let mut front = target.connect(Options::default())?;
        let wanted: Vec<u64> = sizes.iter().copied().chain((next >= SMALLEST).then_some(next)).collect();
        if let Err(refused) = share_sparse(&mut front, file.as_fd(), &wanted) {
            next /= 2;
            return Err(refused);
        }
        target.step();
        let is_all = wanted.len() == sizes.len() || wanted.len() == MOST;
        sizes = wanted;
        while is_all && !target.is_over() && front.is_connected() {
            std::thread::sleep(super::REFUSED_PAUSE);
        }
        Ok(())
    });
    Ok(())
}

/// Passes a table of the guest's own memory and, for each of `sizes` (bytes), a region of `file` at its own
/// guest address.
///
/// # Errors
/// The switch refused.
pub fn share_sparse(front: &mut FrontEnd, file: impl AsFd, sizes: &[u64]) -> Result<(), FrontEndError> {
    let memory = Arc::clone(front.memory());
    let region = |at: u64, size: u64, user: u64, file: i32| VhostUserMemoryRegionInfo {
        guest_phys_addr: at,
        memory_size: size,
        userspace_addr: user,
        mmap_offset: 0,
        mmap_handle: file,
    };
    let mut table = vec![region(0, memory.size(), memory.user_addr(), memory.fd().as_raw_fd())];
    // Far above every guest's own memory.
    let mut at = 1 << 60;
    for &size in sizes {
        table.push(region(at, size, at, file.as_fd().as_raw_fd()));
        at += size;
    }
    let sent = front.protocol()?.set_mem_table(&table);
    sent.map(drop).map_err(|source| FrontEndError::Protocol { step: "SET_MEM_TABLE", source })
}
