//! Memory that is taken away while it is read, and memory that is not there at all.

use super::Target;
use crate::driver::Buffer;
use crate::front_end::{FrontEnd, FrontEndError, Options};
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo};

/// Below this, rings and buffers of a guest stay where they are.
const KEPT: u64 = 32 << 20;
/// Transmit queue of a guest with one queue pair.
const TRANSMIT: usize = 1;
/// Bytes of the frame that is sent from a hole.
const FRAME: u32 = 1000;

/// Punches everything above its rings out of `bytes` of memory, again and again, and sends frames
/// from there meanwhile: a thread that reads them waits until the kernel is done.
///
/// # Errors
/// Too little memory on this machine.
pub fn punch_holes(target: &Target<'_>, bytes: u64) -> io::Result<()> {
    punch(target, bytes, 0)
}

/// The same, of a file that has as many pages as it is long all the time: the others are behind its end.
///
/// # Errors
/// Too little memory on this machine.
pub fn punch_holes_unseen(target: &Target<'_>, bytes: u64) -> io::Result<()> {
    punch(target, bytes, bytes)
}

/// Punches holes into a file with `behind` bytes of pages behind its end.
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

/// A file of `bytes` without a page.
///
/// # Errors
/// The kernel does not make it.
pub fn sparse_file(bytes: u64) -> io::Result<OwnedFd> {
    let file = memfd_create("tidegate-sparse", MemfdFlags::CLOEXEC)?;
    ftruncate(&file, bytes)?;
    Ok(file)
}

/// A memory table that takes all address space the switch gives: regions of 8 TiB, then halves, as many as
/// it maps. They stay as long as the switch lets them.
pub(super) fn sparse_regions(target: &Target<'_>) -> io::Result<()> {
    const LARGEST: u64 = 8 << 40;
    const SMALLEST: u64 = 1 << 20;
    /// With that of the guest itself, as many as a message has room for.
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

/// Shares a table of the guest's own memory and, for each of `sizes`, so many bytes of `file`, each region at a
/// guest address of its own.
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
    // Far above what any guest's own memory is at.
    let mut at = 1 << 60;
    for &size in sizes {
        table.push(region(at, size, at, file.as_fd().as_raw_fd()));
        at += size;
    }
    let sent = front.protocol()?.set_mem_table(&table);
    sent.map(drop).map_err(|source| FrontEndError::Protocol { step: "SET_MEM_TABLE", source })
}
