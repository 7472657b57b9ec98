//! The registers of a PCI device, read by mapping its first resource (Documentation/PCI/sysfs-pci.rst). Nothing is written: the
//! mapping is read-only.

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::path::Path;
use std::ptr;

/// A mapping, for as long as one look takes: the file of a device that is removed takes its mappings along, and reading them
/// would be fatal then.
pub struct Registers {
    start: *mut c_void,
    length: usize,
}

impl Registers {
    /// Maps the registers.
    ///
    /// # Errors
    /// No such device, no right, or a kernel that refuses every process (`CONFIG_IO_STRICT_DEVMEM`, lockdown).
    pub fn open(file: &Path) -> io::Result<Self> {
        let file = File::open(file)?;
        let length = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
        // SAFETY: the kernel chooses an address where nothing is, and the mapping is private to this value.
        let start = unsafe { mmap(ptr::null_mut(), length, ProtFlags::READ, MapFlags::SHARED, &file, 0) }?;
        Ok(Self { start, length })
    }

    /// The register at an offset; `None` beyond the mapping.
    pub fn read(&self, offset: u32) -> Option<u32> {
        let offset = usize::try_from(offset).ok()?;
        if !offset.is_multiple_of(4) || offset.checked_add(4)? > self.length {
            return None;
        }
        // SAFETY: within the mapping, which lives as long as `self`, and aligned: it begins at a page. Volatile, since the
        // device changes it; reading these registers has no effect on it.
        let value = unsafe { ptr::read_volatile(self.start.byte_add(offset).cast::<u32>()) };
        Some(u32::from_le(value))
    }
}

impl Drop for Registers {
    fn drop(&mut self) {
        // SAFETY: mapped by `open`, with this length, and nothing refers to it any more.
        let _ = unsafe { munmap(self.start, self.length) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn registers_are_read_within_their_file_alone() {
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        file.write_all(&[1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]).expect("written");
        let registers = Registers::open(file.path()).expect("mapped");
        assert_eq!([0, 4].map(|offset| registers.read(offset)), [Some(1), Some(u32::MAX)]);
        assert_eq!([2, 6, 8, u32::MAX - 3].map(|offset| registers.read(offset)), [None; 4]);
    }

    #[test]
    fn registers_that_cannot_be_mapped_are_an_error() {
        let missing = Registers::open(Path::new("/nonexistent/resource0")).err().expect("an error");
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
        let empty = tempfile::NamedTempFile::new().expect("a file");
        assert!(Registers::open(empty.path()).is_err(), "nothing to map");
    }
}
