//! The switch's own buffers, each freed with the last reference.
//!
//! ```text
//!  take, with the number of receivers ─▶ filled by a copy ─▶ release, once for each receiver ─▶ free
//!                                                             the last one gives it back
//! ```
//!
//! A guest's frame is in the guest's memory. A flooded frame is copied for many receivers, and the last one
//! frees the copy. One thread owns the counts, so they are plain numbers.

use super::leaks::note_leak;
use crate::virtio::Span;

/// A buffer that was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferIndex(u16);

/// A fixed number of buffers of one size.
pub struct Buffers {
    /// All of them, owned; a pointer, since frames in flight point into it.
    memory: *mut u8,
    size: usize,
    /// References to each.
    references: Box<[u16]>,
    free: Vec<u16>,
}

// SAFETY: the memory is owned; nothing in it is tied to a thread.
unsafe impl Send for Buffers {}

impl Buffers {
    /// `count` buffers of `size` bytes. Pages are touched when first used.
    pub fn new(count: u16, size: usize) -> Self {
        let memory = vec![0u8; usize::from(count) * size].into_boxed_slice();
        Self {
            memory: Box::into_raw(memory).cast(),
            size,
            references: vec![0; usize::from(count)].into(),
            free: (0..count).rev().collect(),
        }
    }

    /// Takes a free buffer with `references` references, at least one.
    pub fn take(&mut self, references: u16) -> Option<BufferIndex> {
        debug_assert!(references > 0, "a buffer that nothing refers to is never given back");
        let index = self.free.pop()?;
        self.references[usize::from(index)] = references;
        Some(BufferIndex(index))
    }

    /// The first `len` bytes of a buffer.
    ///
    /// # Panics
    /// If a buffer is shorter than `len`.
    pub fn span(&self, buffer: BufferIndex, len: usize) -> Span {
        assert!(len <= self.size, "{len} bytes of a buffer of {}", self.size);
        Span { ptr: self.memory.wrapping_add(usize::from(buffer.0) * self.size), len: len as u32 }
    }

    /// Removes a reference; `true` if it was the last, and the buffer is free.
    pub fn release(&mut self, buffer: BufferIndex) -> bool {
        let references = &mut self.references[usize::from(buffer.0)];
        debug_assert!(*references > 0, "{buffer:?} was given back before");
        let is_last = *references == 1;
        *references = references.saturating_sub(1);
        if is_last {
            self.free.push(buffer.0);
        }
        is_last
    }

    /// Buffers in use.
    pub fn in_use(&self) -> usize {
        self.references.len() - self.free.len()
    }
}

impl Drop for Buffers {
    fn drop(&mut self) {
        if self.in_use() > 0 {
            // Memory with a living frame is leaked, not freed.
            return note_leak(self.in_use());
        }
        let memory = std::ptr::slice_from_raw_parts_mut(self.memory, self.references.len() * self.size);
        // SAFETY: made by `Box::into_raw` in `new` with this length, and no frame refers to it.
        drop(unsafe { Box::from_raw(memory) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const COUNT: u16 = 6;
    const SIZE: usize = 32;

    /// The model of a buffer in use: its references, and its contents.
    struct Used {
        buffer: BufferIndex,
        references: u16,
        written: u8,
    }

    fn bytes(buffers: &mut Buffers, buffer: BufferIndex) -> &mut [u8] {
        let span = buffers.span(buffer, SIZE);
        // SAFETY: the buffer is in use, by this test alone.
        unsafe { std::slice::from_raw_parts_mut(span.ptr, SIZE) }
    }

    proptest! {
        #[test]
        fn a_buffer_is_one_frames_after_the_other_until_none_refers_to_it(
            steps in prop::collection::vec((any::<bool>(), any::<prop::sample::Index>(), 1..5u16), 1..200),
        ) {
            let mut buffers = Buffers::new(COUNT, SIZE);
            let mut model: Vec<Used> = Vec::new();
            for (n, (take, which, references)) in steps.into_iter().enumerate() {
                if take {
                    let taken = buffers.take(references);
                    prop_assert_eq!(taken.is_some(), model.len() < usize::from(COUNT));
                    if let Some(buffer) = taken {
                        prop_assert!(model.iter().all(|used| used.buffer != buffer), "lent twice");
                        let written = n as u8;
                        bytes(&mut buffers, buffer).fill(written);
                        model.push(Used { buffer, references, written });
                    }
                } else if !model.is_empty() {
                    let at = which.index(model.len());
                    let used = &mut model[at];
                    prop_assert!(bytes(&mut buffers, used.buffer).iter().all(|byte| *byte == used.written));
                    used.references -= 1;
                    prop_assert_eq!(buffers.release(used.buffer), used.references == 0);
                    model.retain(|used| used.references > 0);
                }
                prop_assert_eq!(buffers.in_use(), model.len());
            }
            for used in model {
                (0..used.references).for_each(|_| _ = buffers.release(used.buffer));
            }
            prop_assert_eq!(buffers.in_use(), 0);
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "leaks on purpose, which Miri reports")]
    fn memory_that_a_frame_refers_to_is_not_freed() {
        let before = crate::slots::leaked();
        let mut buffers = Buffers::new(2, SIZE);
        let buffer = buffers.take(2).unwrap();
        let kept = bytes(&mut buffers, buffer).as_mut_ptr();
        assert!(!buffers.release(buffer));
        // As in a release build; a debug build panics.
        let dropped = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(buffers)));
        assert_eq!(dropped.is_err(), cfg!(debug_assertions));
        assert!(crate::slots::leaked() > before);
        // SAFETY: it was leaked.
        assert_eq!(unsafe { kept.read() }, 0);
    }
}
