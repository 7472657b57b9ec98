//! The memory of a region: bytes that their owner and the device use by turns.
//!
//! ```text
//!  new: Pages ─┐
//!              ├─ owner, start, len ─▶ Memory ─ read, write ─▶ device
//!  over ───────┘
//! ```

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::any::Any;
use std::sync::Arc;

/// Regions begin at a page and have whole pages, as mappings do.
const PAGE: usize = 4096;

/// Memory that does not move.
#[derive(Debug)]
pub struct Memory {
    start: *mut u8,
    len: usize,
    _owner: Arc<dyn Any + Send + Sync>,
}

// SAFETY: the bytes are reached only by `read` and `write`, whose caller owns them at that time, and by the owner of a
// buffer (`start`); nothing is tied to a thread.
unsafe impl Send for Memory {}
// SAFETY: the same.
unsafe impl Sync for Memory {}

/// Zeroed memory of its own.
struct Pages {
    start: *mut u8,
    layout: Layout,
}

// SAFETY: nothing but their end is reached by this, which happens once.
unsafe impl Send for Pages {}
// SAFETY: the same.
unsafe impl Sync for Pages {}

impl Memory {
    /// Returns `bytes` of zeroed memory, rounded up to pages; none if there are no such sizes.
    pub fn new(bytes: usize) -> Option<Self> {
        let layout = Layout::from_size_align(bytes.checked_next_multiple_of(PAGE)?.max(PAGE), PAGE).ok()?;
        // SAFETY: the layout has at least one page.
        let start = unsafe { alloc_zeroed(layout) };
        if start.is_null() {
            handle_alloc_error(layout);
        }
        Some(Self { start, len: layout.size(), _owner: Arc::new(Pages { start, layout }) })
    }

    /// Returns memory of others.
    ///
    /// # Safety
    /// The bytes stay mapped while `owner` lives.
    pub unsafe fn over(start: *mut u8, len: usize, owner: Arc<dyn Any + Send + Sync>) -> Self {
        Self { start, len, _owner: owner }
    }

    /// Returns the first byte.
    pub fn start(&self) -> *mut u8 {
        self.start
    }

    /// Returns its size (bytes).
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the bytes are within the region.
    pub fn has(&self, from: usize, len: usize) -> bool {
        from.checked_add(len).is_some_and(|end| end <= self.len())
    }

    /// Returns a copy of the bytes; none if they are not all within the region.
    ///
    /// # Safety
    /// They are not written at the same time by this process.
    pub unsafe fn read(&self, from: usize, len: usize) -> Option<Vec<u8>> {
        if !self.has(from, len) {
            return None;
        }
        let mut bytes = vec![0; len];
        // SAFETY: within the region, which lives, and the copy is of the same size.
        unsafe { std::ptr::copy_nonoverlapping(self.start.add(from), bytes.as_mut_ptr(), len) };
        Some(bytes)
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

impl Drop for Pages {
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
