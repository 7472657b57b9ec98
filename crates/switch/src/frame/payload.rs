//! The rest of a frame in guest memory, as a scatter list.
//!
//! ```text
//!  Span, Span, Span ─▶ Payload ─▶ copy_to, copy_to_ptr     the one copy
//!  (guest memory)         │  └──▶ checksum                 through a stack buffer
//!                         └─────▶ sub, slice               a part of it
//! ```
//!
//! The guest may write meanwhile, so no `&[u8]` to its memory ever exists: bytes are copied through raw
//! pointers, and then read from the copy.

use crate::frame::checksum;
pub use crate::virtio::Span;

/// Read-only bytes scattered over guest memory.
#[derive(Clone, Copy, Debug)]
pub struct Payload<'a> {
    spans: &'a [Span],
    /// Bytes of the first span before the payload.
    skip: u32,
    len: u32,
}

/// The spans of a [`Payload`], trimmed to it.
#[derive(Clone, Debug)]
pub struct Spans<'a>(Payload<'a>);

impl<'a> Payload<'a> {
    /// No bytes.
    pub const EMPTY: Payload<'static> = Payload { spans: &[], skip: 0, len: 0 };

    /// Returns the bytes of `spans`, one after the other.
    ///
    /// # Safety
    ///
    /// For `'a`, every span is mapped and readable. Others may write to it at any time, but no Rust reference
    /// to it may exist.
    #[inline]
    pub unsafe fn new(spans: &'a [Span]) -> Self {
        let len = spans.iter().fold(0u32, |sum, s| sum.saturating_add(s.len));
        Self { spans, skip: 0, len }
    }

    /// Returns the number of bytes.
    #[inline]
    pub const fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether there are no bytes.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns `len` bytes from `offset` on, or fewer if there are fewer.
    #[inline]
    pub fn sub(&self, offset: usize, len: usize) -> Self {
        let offset = offset.min(self.len());
        let mut part = Self { spans: self.spans, skip: 0, len: len.min(self.len() - offset) as u32 };
        let mut skip = self.skip as usize + offset;
        while let [first, rest @ ..] = part.spans {
            if skip < first.len as usize {
                break;
            }
            skip -= first.len as usize;
            part.spans = rest;
        }
        part.skip = skip as u32;
        part
    }

    /// Returns the spans of `len` bytes from `offset` on.
    #[inline]
    pub fn slice(&self, offset: usize, len: usize) -> Spans<'a> {
        Spans(self.sub(offset, len))
    }

    /// Copies bytes from `offset` on; returns their number, at most `dst.len()`.
    #[inline]
    pub fn copy_to(&self, offset: usize, dst: &mut [u8]) -> usize {
        // SAFETY: `dst` is writable for its length and exclusive, so it does not overlap guest memory.
        unsafe { self.copy_to_ptr(offset, dst.as_mut_ptr(), dst.len()) }
    }

    /// Copies up to `len` bytes from `offset` on; returns their number. Source and destination may overlap
    /// (two vNICs of one guest).
    ///
    /// # Safety
    ///
    /// `dst` is writable for `len` bytes, and no Rust reference to them is used meanwhile.
    #[inline]
    pub unsafe fn copy_to_ptr(&self, offset: usize, dst: *mut u8, len: usize) -> usize {
        let mut done = 0;
        for span in self.slice(offset, len) {
            let n = span.len as usize;
            // SAFETY: `new` promises a readable `span`; the slices add up to at most `len`, for which `dst`
            // is writable. Bytes have no invalid value, so a guest's race only yields other bytes.
            unsafe { std::ptr::copy(span.ptr, dst.add(done), n) };
            done += n;
        }
        done
    }

    /// Returns the sum ([`checksum`]) of `len` bytes from `offset` on; reads each byte once.
    pub fn checksum(&self, offset: usize, len: usize) -> u16 {
        const CHUNK: usize = 2048;
        let mut buffer = [0u8; CHUNK];
        let mut rest = self.sub(offset, len);
        let mut sum = 0;
        while !rest.is_empty() {
            // All chunks but the last are of even length, so words stay aligned.
            let n = rest.copy_to(0, &mut buffer);
            sum = checksum::add(sum, checksum::sum(&buffer[..n]));
            rest = rest.sub(n, rest.len());
        }
        sum
    }
}

impl Iterator for Spans<'_> {
    type Item = Span;

    #[inline]
    fn next(&mut self) -> Option<Span> {
        let part = &mut self.0;
        while part.len > 0 {
            let [first, rest @ ..] = part.spans else {
                break;
            };
            let len = (first.len - part.skip).min(part.len);
            let ptr = first.ptr.wrapping_add(part.skip as usize);
            part.spans = rest;
            part.skip = 0;
            part.len -= len;
            if len > 0 {
                return Some(Span { ptr, len });
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::testing;
    use proptest::prelude::*;

    fn spans(pieces: &mut [Vec<u8>]) -> Vec<Span> {
        pieces.iter_mut().map(|p| Span { ptr: p.as_mut_ptr(), len: p.len() as u32 }).collect()
    }

    #[test]
    fn lengths_that_wrap_are_cut() {
        let huge = [Span { ptr: std::ptr::null_mut(), len: u32::MAX }; 3];
        // SAFETY: nothing is read.
        let p = unsafe { Payload::new(&huge) };
        assert_eq!(p.len(), u32::MAX as usize);
        assert_eq!(p.sub(usize::MAX, usize::MAX).len(), 0);
        assert_eq!(p.sub(5, usize::MAX).len(), u32::MAX as usize - 5);
    }

    #[test]
    fn copy_may_overlap() {
        let mut memory: Vec<u8> = (0..64).collect();
        let base = memory.as_mut_ptr();
        let list = [Span { ptr: base, len: 48 }];
        // SAFETY: `memory` lives on and is reached only through `base` meanwhile.
        let n = unsafe { Payload::new(&list).copy_to_ptr(0, base.add(16), 48) };
        assert_eq!(n, 48);
        assert_eq!(memory[16..], (0..48).collect::<Vec<u8>>());
    }

    proptest! {
        #[test]
        fn reads_like_one_buffer(
            mut pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..8),
            (a, b) in (0usize..300, 0usize..300), (c, d) in (0usize..300, 0usize..300),
        ) {
            let flat = pieces.concat();
            let list = spans(&mut pieces);
            // SAFETY: `pieces` lives on and is not touched.
            let p = unsafe { Payload::new(&list) };
            prop_assert_eq!(p.len(), flat.len());

            // The model: clamped ranges of the flat buffer, twice nested.
            let clamp = |s: &[u8], o: usize, l: usize| {
                let o = o.min(s.len());
                s[o..o.saturating_add(l).min(s.len())].to_vec()
            };
            let (sub, expected) = (p.sub(a, b), clamp(&flat, a, b));
            prop_assert_eq!(sub.len(), expected.len());
            let expected = clamp(&expected, c, d);
            let mut out = vec![0; d];
            let n = sub.copy_to(c, &mut out);
            prop_assert_eq!(&out[..n], &expected[..]);
            prop_assert_eq!(sub.checksum(c, d), testing::sum(&expected));
            prop_assert_eq!(sub.slice(c, d).map(|s| s.len as usize).sum::<usize>(), n);
            prop_assert!(sub.slice(c, d).all(|s| s.len > 0));
        }
    }

    #[test]
    fn checksum_crosses_chunks() {
        let mut pieces: Vec<Vec<u8>> =
            [2047, 1, 2049, 65_535].map(|n| (0..n).map(|i| (i * 31) as u8).collect()).into();
        let flat = pieces.concat();
        let list = spans(&mut pieces);
        // SAFETY: `pieces` lives on and is not touched.
        let p = unsafe { Payload::new(&list) };
        assert_eq!(p.checksum(0, flat.len()), testing::sum(&flat));
        assert_eq!(p.checksum(3, 60_001), testing::sum(&flat[3..60_004]));
    }
}
