//! Memory of whole pages, of this process alone.

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use rustix::param::page_size;
use std::io;
use std::ptr::{NonNull, null_mut};

/// Anonymous pages, zeroed. A child does not get them: copy on write would part the device from one of the two.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the pages belong to no thread; who reads and writes them is the owners' business, by raw pointers.
unsafe impl Send for Mapping {}
// SAFETY: the same.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `bytes`, rounded up to pages.
    ///
    /// # Errors
    /// None asked for, or no memory.
    pub(crate) fn new(bytes: usize) -> io::Result<Self> {
        let len = bytes.checked_next_multiple_of(page_size()).filter(|len| *len > 0);
        let len = len.ok_or(io::ErrorKind::InvalidInput)?;
        // SAFETY: new pages, at no given address.
        let start = unsafe {
            mmap_anonymous(null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
        }?;
        let mapping = Self { start: NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?, len };
        // SAFETY: exactly those pages, which no child knows of yet.
        unsafe { madvise(start, len, Advice::LinuxDontFork) }?;
        Ok(mapping)
    }

    /// Returns the first byte.
    pub(crate) fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Returns the size (bytes).
    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly the pages mapped; pointers into them are not used after their owner.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_pages_of_zeros() {
        let mapping = Mapping::new(1).unwrap();
        assert_eq!(mapping.len(), page_size());
        // SAFETY: within the pages, which are this test's alone.
        let bytes = unsafe { std::slice::from_raw_parts(mapping.start(), mapping.len()) };
        assert!(bytes.iter().all(|b| *b == 0));
    }

    #[test]
    fn no_bytes_and_too_many_are_refused() {
        for bytes in [0, usize::MAX, usize::MAX / 2] {
            assert!(Mapping::new(bytes).is_err(), "{bytes}");
        }
    }
}
