//! Distinguishes shared memory from a private copy of it.
//!
//! ```text
//!  share=on    guest writes ──▶ file ◀── we map
//!  share=off   guest writes ──▶ its own copy      file: zeros for ever ◀── we map
//! ```
//!
//! QEMU passes the file of a `memory-backend-memfd` even with `share=off`. All would seem to work, but no
//! frame would ever move.

use crate::virtio::memory::RegionSpec;
use rustix::io::pread;
use std::os::fd::AsFd;

/// Bytes of each region to check: past the places that firmware and kernels write first.
const LOOK: u64 = 16 << 20;

/// Whether no process has written to the file where the guest must have: at the beginning of every region,
/// and in the given parts (user address, length).
///
/// A guest whose driver has set up a queue has written something; only its private copy can hide it.
pub fn is_blank<F: AsFd>(regions: &[RegionSpec<F>], parts: &[(u64, u64)]) -> bool {
    let beginnings = regions.iter().map(|region| (region, region.mmap_offset, region.size.min(LOOK)));
    let parts = parts.iter().filter_map(|&(addr, len)| {
        let inside = |region: &&RegionSpec<F>| addr.wrapping_sub(region.user_addr) < region.size;
        let region = regions.iter().find(inside)?;
        let at = addr - region.user_addr;
        Some((region, region.mmap_offset + at, len.min(region.size - at)))
    });
    parts.chain(beginnings).all(|(region, offset, len)| is_zero(&region.fd, offset, len))
}

/// Also false if the file cannot be read: then nothing is known.
fn is_zero(fd: &impl AsFd, mut offset: u64, mut len: u64) -> bool {
    const PIECE: usize = 64 << 10;
    static ZEROS: [u8; PIECE] = [0; PIECE];
    let mut buffer = vec![0; len.min(PIECE as u64) as usize];
    while len > 0 {
        let want = len.min(buffer.len() as u64) as usize;
        let Ok(got @ 1..) = pread(fd, &mut buffer[..want], offset) else {
            return false;
        };
        if buffer[..got] != ZEROS[..got] {
            return false;
        }
        offset += got as u64;
        len -= got as u64;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Seek, SeekFrom, Write};

    /// Two regions of one file: bytes 4096 to 12287 and 16384 to the end.
    fn regions(file: &std::fs::File) -> [RegionSpec; 2] {
        let region = |user_addr, mmap_offset, size| RegionSpec {
            guest_addr: 0,
            user_addr,
            size,
            mmap_offset,
            fd: file.try_clone().unwrap().into(),
        };
        [region(0x1000, 4096, 8192), region(0x10_0000, 16384, LOOK + 8192)]
    }

    #[test]
    fn one_matching_byte_is_enough() {
        let far = 16384 + LOOK + 5;
        let part = (0x10_0000 + LOOK, 4096);
        for (at, parts, blank) in [
            (None, &[part][..], true),
            (Some(0), &[part], true),
            (Some(4096), &[], false),
            (Some(12287), &[], false),
            (Some(12288), &[part], true),
            (Some(16384 + LOOK - 1), &[], false),
            (Some(far), &[], true),
            (Some(far), &[part], false),
            // Reaches beyond its region, or lies in none.
            (Some(far), &[(part.0, u64::MAX), (7, 7)], false),
        ] {
            let mut file = tempfile::tempfile().unwrap();
            file.set_len(16384 + LOOK + 8192).unwrap();
            if let Some(at) = at {
                file.seek(SeekFrom::Start(at)).unwrap();
                file.write_all(&[1]).unwrap();
            }
            assert_eq!(is_blank(&regions(&file), parts), blank, "byte {at:?}");
        }
    }

    #[test]
    fn unreadable_memory_is_not_judged() {
        let (unreadable, _other) = std::io::pipe().unwrap();
        let region = RegionSpec { guest_addr: 0, user_addr: 0, size: 4096, mmap_offset: 0, fd: unreadable };
        assert!(!is_blank(&[region], &[]));
    }
}
