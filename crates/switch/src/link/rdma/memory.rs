//! Buffers of one size in registered memory. The only file here that reads and writes them.
//!
//! ```text
//!  Region │ buffer 0 │ buffer 1 │ ... │      a buffer is the device's from a post to its completion, else ours
//! ```

use std::sync::Arc;
use tidegate_verbs::Region;

/// The buffers of a region.
#[derive(Debug)]
pub struct Buffers {
    region: Arc<Region>,
    size: usize,
}

impl Buffers {
    /// Divides a region into buffers of `size` bytes, at least one.
    pub fn new(region: Arc<Region>, size: usize) -> Self {
        Self { region, size: size.max(1) }
    }

    /// Returns the memory.
    #[inline]
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Returns how many there are.
    pub fn count(&self) -> usize {
        self.region.len() / self.size
    }

    /// Returns the bytes of one.
    #[inline]
    pub fn size(&self) -> usize {
        self.size
    }

    /// Returns the place of a buffer in the region (bytes).
    #[inline]
    pub fn place(&self, at: u16) -> usize {
        usize::from(at) * self.size
    }

    /// Returns the first `len` bytes of a buffer; `None` if it has fewer, or is none.
    ///
    /// # Safety
    /// The buffer is not the device's, and no other reference to it exists.
    #[inline]
    pub unsafe fn bytes_mut(&mut self, at: u16, len: usize) -> Option<&mut [u8]> {
        let from = self.checked(at, len)?;
        // SAFETY: inside the region, which lives as long as this; the caller has the buffer alone.
        Some(unsafe { std::slice::from_raw_parts_mut(self.region.start().add(from), len) })
    }

    /// The same, for reading.
    ///
    /// # Safety
    /// The buffer is not the device's while the bytes are read, and no other code writes to it.
    #[inline]
    pub unsafe fn bytes(&self, at: u16, len: usize) -> Option<&[u8]> {
        let from = self.checked(at, len)?;
        // SAFETY: as above, but for reading.
        Some(unsafe { std::slice::from_raw_parts(self.region.start().add(from), len) })
    }

    #[inline]
    fn checked(&self, at: u16, len: usize) -> Option<usize> {
        let from = self.place(at);
        (len <= self.size && from + self.size <= self.region.len()).then_some(from)
    }
}
