//! Pieces of guest memory, as this process addresses them.

use super::RingError;
pub use super::limits::{MAX_CHAIN_BYTES, MAX_SPANS};
use super::walker::MAX_DESCRIPTORS;

/// A piece of guest memory: valid while the [`GuestMemory`](super::GuestMemory) that translated it is
/// mapped. The guest may change the bytes at any time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Span {
    /// First byte, in this process.
    pub ptr: *mut u8,
    /// Length in bytes.
    pub len: u32,
}

impl Span {
    /// No bytes.
    pub const EMPTY: Self = Self { ptr: std::ptr::null_mut(), len: 0 };
}

/// A chain of one buffer, as most are.
#[derive(Clone, Copy, Debug)]
pub struct Single {
    /// First byte, in this process.
    pub ptr: *mut u8,
    /// Length in bytes, not 0.
    pub len: u32,
    /// The token for `complete`.
    pub head: u16,
}

impl Single {
    /// No buffer.
    pub const EMPTY: Self = Self { ptr: std::ptr::null_mut(), len: 0, head: 0 };
}

impl Default for Single {
    fn default() -> Self {
        Self::EMPTY
    }
}

// SAFETY: as for `Chain`.
unsafe impl Send for Single {}

/// The buffers of one descriptor chain, in order (virtio 1.2, 2.7.4 and 2.8.5).
///
/// About 1 KiB: made once and reused. Most chains need only the first cache line: all but the fourth buffer
/// and later.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub struct Chain {
    bytes: u32,
    head: u16,
    count: u16,
    descriptors: u16,
    spans: [Span; MAX_SPANS],
}

// SAFETY: the pointers lead into shared mappings, which no thread owns; code that dereferences them
// guarantees the mapping (see `Span`).
unsafe impl Send for Chain {}

impl Default for Chain {
    fn default() -> Self {
        Self::new()
    }
}

impl Chain {
    /// An empty chain.
    pub const fn new() -> Self {
        Self { bytes: 0, head: 0, count: 0, descriptors: 0, spans: [Span::EMPTY; MAX_SPANS] }
    }

    /// Returns the token for [`Queue::complete`](super::Queue::complete): index of the first descriptor or,
    /// in a packed ring, buffer id or, with VIRTIO_F_IN_ORDER, number of the chain.
    #[inline]
    pub fn head(&self) -> u16 {
        self.head
    }

    /// The buffers, none of them empty.
    #[inline]
    pub fn spans(&self) -> &[Span] {
        &self.spans[..usize::from(self.count)]
    }

    /// Sum of the buffers' lengths, at most [`MAX_CHAIN_BYTES`].
    #[inline]
    pub fn bytes(&self) -> u32 {
        self.bytes
    }

    /// Returns the number of descriptors read for it, empty ones too; of a chain that could not be taken,
    /// those of the longest.
    #[inline]
    pub fn descriptors(&self) -> usize {
        usize::from(self.descriptors)
    }

    #[inline]
    pub(super) fn reset(&mut self, head: u16) {
        self.head = head;
        self.count = 0;
        self.bytes = 0;
        self.descriptors = MAX_DESCRIPTORS;
    }

    #[inline]
    pub(super) fn set_descriptors(&mut self, descriptors: u16) {
        self.descriptors = descriptors;
    }

    #[inline]
    pub(super) fn set_head(&mut self, head: u16) {
        self.head = head;
    }

    #[inline]
    pub(super) fn push(&mut self, span: Span) -> Result<(), RingError> {
        let Some(slot) = self.spans.get_mut(usize::from(self.count)) else {
            return Err(RingError::TooManySpans { head: self.head });
        };
        if span.len > MAX_CHAIN_BYTES - self.bytes {
            return Err(RingError::TooManyBytes { head: self.head });
        }
        *slot = span;
        self.count += 1;
        self.bytes += span.len;
        Ok(())
    }
}
