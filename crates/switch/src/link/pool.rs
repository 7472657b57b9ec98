//! A byte pool: the bounded memory in which frames of a tap or of other hosts wait.
//!
//! ```text
//!  free ─▶ chunk ─▶ chunk ─▶ ...          peek, read into, take;  or store: copied from another buffer
//!  used    chunk ─▶ chunk: one frame      give: back to the free ones
//! ```
//!
//! Neither has a ring to wait in: the kernel drops frames that are not read. So frames are put into chunks of
//! this pool, and dropped and counted only when the pool is full.

use crate::virtio::Span;

/// Bytes of one chunk: an ordinary frame fills one.
pub const CHUNK: usize = 2048;
const END: u32 = u32::MAX;

/// Chunks of memory, linked into free and used lists.
pub struct Pool {
    /// `next.len()` chunks, owned; a pointer, since frames in flight point into it.
    memory: *mut u8,
    next: Box<[u32]>,
    free: u32,
    free_count: usize,
}

// SAFETY: the memory is owned; nothing in it is tied to a thread.
unsafe impl Send for Pool {}

impl Pool {
    /// A pool of `bytes`, rounded down to chunks. Pages are touched when first used.
    pub fn new(bytes: usize) -> Self {
        let chunks = (bytes / CHUNK).max(1);
        let next = (0..chunks as u32).map(|i| if i as usize + 1 < chunks { i + 1 } else { END }).collect();
        let memory = Box::into_raw(vec![0u8; chunks * CHUNK].into_boxed_slice()).cast();
        Self { memory, next, free: 0, free_count: chunks }
    }

    /// All chunks.
    pub fn size(&self) -> usize {
        self.next.len()
    }

    /// Chunks not in use.
    pub fn free(&self) -> usize {
        self.free_count
    }

    /// The first `count` free chunks, to read into; they stay free until [`Pool::take`].
    pub fn peek(&mut self, count: usize) -> impl Iterator<Item = *mut u8> {
        let base = self.memory;
        let next = &self.next;
        std::iter::successors((self.free != END).then_some(self.free), |i| {
            let following = next[*i as usize];
            (following != END).then_some(following)
        })
        .take(count)
        .map(move |i| base.wrapping_add(i as usize * CHUNK))
    }

    /// Takes the first free chunks for `len` bytes just read into them; returns the first chunk and their
    /// number, and fills `spans` with the places of the bytes from `skip` on.
    ///
    /// # Panics
    /// If fewer chunks are free than [`Pool::peek`] gave for this length.
    pub fn take(&mut self, len: usize, skip: usize, spans: &mut [Span]) -> (u32, u16, u16) {
        let first = self.free;
        let chunks = len.div_ceil(CHUNK);
        let base = self.memory;
        let mut last = END;
        let mut count = 0;
        for i in 0..chunks {
            last = self.free;
            self.free = self.next[last as usize];
            let from = if i == 0 { skip } else { 0 };
            let to = (len - i * CHUNK).min(CHUNK);
            if to > from {
                let ptr = base.wrapping_add(last as usize * CHUNK + from);
                spans[count] = Span { ptr, len: (to - from) as u32 };
                count += 1;
            }
        }
        self.next[last as usize] = END;
        self.free_count -= chunks;
        (first, chunks as u16, count as u16)
    }

    /// Copies `parts`, one after the other, into free chunks; returns the first chunk and the number of chunks,
    /// and fills `spans`. No bytes need no chunk.
    ///
    /// # Panics
    /// If fewer chunks are free.
    pub fn store<'a>(
        &mut self,
        parts: impl Iterator<Item = &'a [u8]> + Clone,
        spans: &mut [Span],
    ) -> (u32, u16, u16) {
        let len = parts.clone().map(<[u8]>::len).sum();
        if len == 0 {
            return (END, 0, 0);
        }
        let mut chunks = self.peek(usize::MAX);
        let (mut chunk, mut room) = (std::ptr::null_mut(), 0);
        for part in parts {
            let mut rest = part;
            while !rest.is_empty() {
                if room == 0 {
                    (chunk, room) = (chunks.next().expect("enough chunks are free"), CHUNK);
                }
                let (now, later) = rest.split_at(rest.len().min(room));
                // SAFETY: a free chunk of the pool, which no other code uses, with `room` bytes left.
                unsafe { std::ptr::copy_nonoverlapping(now.as_ptr(), chunk.add(CHUNK - room), now.len()) };
                room -= now.len();
                rest = later;
            }
        }
        drop(chunks);
        self.take(len, 0, spans)
    }

    /// Takes back the `chunks` chunks linked from `first`.
    pub fn give(&mut self, first: u32, chunks: u16) {
        if chunks == 0 {
            return;
        }
        let mut last = first;
        while self.next[last as usize] != END {
            last = self.next[last as usize];
        }
        self.next[last as usize] = self.free;
        self.free = first;
        self.free_count += chunks as usize;
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let memory = std::ptr::slice_from_raw_parts_mut(self.memory, self.next.len() * CHUNK);
        // SAFETY: made by `Box::into_raw` in `new` with this length; the port that owns the pool
        // is dropped only once all its frames came back.
        drop(unsafe { Box::from_raw(memory) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn chunks_are_lent_once_and_come_back(lens in prop::collection::vec(1usize..9000, 1..60), returned in any::<u64>()) {
            let mut pool = Pool::new(64 * CHUNK);
            let mut lent = Vec::new();
            for (i, len) in lens.into_iter().enumerate() {
                let needed = len.div_ceil(CHUNK);
                if pool.free() < needed {
                    continue;
                }
                let expected: Vec<_> = pool.peek(needed).collect();
                let mut spans = [Span::EMPTY; 64];
                let skip = len.min(100);
                let (first, chunks, count) = pool.take(len, skip, &mut spans);
                let spans = spans[..count as usize].to_vec();
                prop_assert_eq!(spans.iter().map(|s| s.len as usize).sum::<usize>(), len - skip);
                for span in &spans {
                    prop_assert!(expected.iter().any(|e| *e <= span.ptr && span.ptr < e.wrapping_add(CHUNK)));
                }
                lent.push((first, chunks, spans));
                if returned >> (i % 64) & 1 == 1 {
                    let (first, chunks, _) = lent.remove(0);
                    pool.give(first, chunks);
                }
                let mut ranges: Vec<_> = lent
                    .iter()
                    .flat_map(|l: &(u32, u16, Vec<Span>)| &l.2)
                    .map(|s| (s.ptr as usize, s.ptr as usize + s.len as usize))
                    .collect();
                ranges.sort_unstable();
                prop_assert!(ranges.windows(2).all(|w| w[0].1 <= w[1].0), "memory lent twice");
            }
            for (first, chunks, _) in lent {
                pool.give(first, chunks);
            }
            prop_assert_eq!(pool.free(), 64);
            prop_assert_eq!(pool.peek(64).count(), 64);
        }

        #[test]
        fn stored_bytes_are_read_back(
            frames in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..5000), 1..8), part in 1..5000usize,
        ) {
            let mut pool = Pool::new(64 * CHUNK);
            let stored: Vec<_> = frames
                .iter()
                .map(|bytes| {
                    let mut spans = [Span::EMPTY; 8];
                    let (first, chunks, count) = pool.store(bytes.chunks(part), &mut spans);
                    (first, chunks, spans[..count as usize].to_vec())
                })
                .collect();
            for (bytes, (first, chunks, spans)) in frames.iter().zip(stored) {
                // SAFETY: the chunks are this frame's until they are given back.
                let parts = spans.iter().map(|s| unsafe { std::slice::from_raw_parts(s.ptr, s.len as usize) });
                prop_assert_eq!(&parts.collect::<Vec<_>>().concat(), bytes);
                prop_assert_eq!(usize::from(chunks), bytes.len().div_ceil(CHUNK));
                pool.give(first, chunks);
            }
            prop_assert_eq!(pool.free(), 64);
        }
    }
}
