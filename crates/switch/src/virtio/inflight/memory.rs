//! The memory of the in-flight records, shared with the front end.

use rustix::mm::munmap;
use std::ffi::c_void;
use std::sync::Arc;

/// The place of a region.
#[derive(Debug)]
pub(super) enum Memory {
    /// Shared with others.
    Mapped { start: *mut c_void, len: usize },
    /// Of this process only: for a queue that no later process recovers.
    Private(Box<[std::cell::UnsafeCell<u64>]>),
}

// SAFETY: plain memory, accessed only through atomics; no thread owns it.
unsafe impl Send for Memory {}

// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    pub(super) fn private(bytes: usize) -> Arc<Self> {
        let words = (0..bytes.div_ceil(8)).map(|_| std::cell::UnsafeCell::new(0));
        Arc::new(Self::Private(words.collect()))
    }

    pub(super) fn start(&self) -> *mut u8 {
        match self {
            Self::Mapped { start, .. } => start.cast(),
            Self::Private(words) => words.as_ptr().cast_mut().cast(),
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Self::Mapped { start, len } = *self {
            // SAFETY: exactly what mmap returned, owned by this value alone; users of its pointers
            // hold it.
            let _ = unsafe { munmap(start, len) };
        }
    }
}
