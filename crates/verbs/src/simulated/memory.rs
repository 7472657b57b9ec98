//! The memory of a region: bytes that their owner and the device use by turns.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};

/// Regions begin at a page and have whole pages, as mappings do.
const PAGE: usize = 4096;

/// Zeroed memory that does not move.
#[derive(Debug)]
pub struct Memory {
    start: *mut u8,
    layout: Layout,
}

// SAFETY: the bytes are reached only by `read` and `write`, whose caller owns them at that time, and by the owner of a
// buffer (`start`); nothing is tied to a thread.
unsafe impl Send for Memory {}
// SAFETY: the same.
unsafe impl Sync for Memory {}

impl Memory {
    /// Returns `bytes` of memory, rounded up to pages; none if there are no such sizes.
    pub fn new(bytes: usize) -> Option<Self> {
        let layout = Layout::from_size_align(bytes.checked_next_multiple_of(PAGE)?.max(PAGE), PAGE).ok()?;
        // SAFETY: the layout has at least one page.
        let start = unsafe { alloc_zeroed(layout) };
        if start.is_null() {
            handle_alloc_error(layout);
        }
        Some(Self { start, layout })
    }

    /// Returns the first byte.
    pub fn start(&self) -> *mut u8 {
        self.start
    }

    /// Returns its size (bytes).
    pub fn len(&self) -> usize {
        self.layout.size()
    }

    /// Returns whether the bytes are within the region.
    pub fn has(&self, from: usize, len: usize) -> bool {
        from.checked_add(len).is_some_and(|end| end <= self.len())
    }

    /// Returns a copy of the bytes; none if they are not all within the region.
    ///
    /// # Safety
    /// They are not written at the same time.
    pub unsafe fn read(&self, from: usize, len: usize) -> Option<Vec<u8>> {
        // SAFETY: within the region, and not written at the same time.
        self.has(from, len).then(|| unsafe { std::slice::from_raw_parts(self.start.add(from), len) }.to_vec())
    }

    /// Writes bytes. Returns whether they are within the region; else writes none.
    ///
    /// # Safety
    /// They are not used at the same time.
    pub unsafe fn write(&self, from: usize, bytes: &[u8]) -> bool {
        let has = self.has(from, bytes.len());
        if has {
            // SAFETY: within the region, and not used at the same time.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.add(from), bytes.len()) };
        }
        has
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and freed once.
        unsafe { dealloc(self.start, self.layout) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_beyond_the_end_are_neither_read_nor_written() {
        let memory = Memory::new(1).unwrap();
        assert_eq!(memory.len(), PAGE);
        // SAFETY: one thread.
        unsafe {
            assert!(memory.write(PAGE - 2, &[1, 2]));
            assert!(!memory.write(PAGE - 1, &[3, 4]) && !memory.write(usize::MAX, &[5]));
            assert_eq!(memory.read(PAGE - 3, 3).unwrap(), [0, 1, 2]);
            assert_eq!(memory.read(PAGE - 1, 2), None);
            assert_eq!(memory.read(usize::MAX, 2), None);
        }
        assert!(Memory::new(usize::MAX).is_none());
    }
}
