//! Copying a frame into a receiver's buffers.
//!
//! ```text
//!   header bytes, payload spans ──▶ write, write_spans ──▶ chain 0 │ chain 1 │ ...
//!                                                     used: head and length of each
//! ```
//!
//! Both sides are scatter lists. With mergeable buffers (virtio 1.2, 5.1.6.4) a frame fills
//! several chains, each but the last wholly.

use super::{Chain, Span};

/// Writes bytes one after the other into the buffers of one or several writable chains.
///
/// Bytes without room are not written: callers check the capacity first, and the returned lengths tell.
#[derive(Debug)]
pub struct SpanWriter<'a> {
    chains: &'a [Chain],
    /// Chain and span being filled.
    chain: usize,
    span: usize,
    /// The rest of that span.
    rest: Span,
    written: u32,
}

impl<'a> SpanWriter<'a> {
    /// A writer at the first byte of the first chain.
    ///
    /// # Safety
    /// Until the last write, the memory the chains were popped from is mapped, and the chains
    /// are not completed.
    pub unsafe fn new(chains: &'a [Chain]) -> Self {
        Self { chains, chain: 0, span: 0, rest: Span::EMPTY, written: 0 }
    }

    /// Bytes written so far.
    #[inline]
    pub fn written(&self) -> u32 {
        self.written
    }

    /// Writes `bytes`; returns how many fitted.
    #[inline]
    pub fn write(&mut self, bytes: &[u8]) -> usize {
        // SAFETY: a slice is readable for its length.
        unsafe { self.write_raw(bytes.as_ptr(), bytes.len()) }
    }

    /// Writes the payload in `spans`; returns how many bytes fitted.
    ///
    /// # Safety
    /// The spans are mapped.
    #[inline]
    pub unsafe fn write_spans(&mut self, spans: &[Span]) -> usize {
        let mut total = 0;
        for span in spans {
            // SAFETY: mapped by contract.
            let written = unsafe { self.write_raw(span.ptr, span.len as usize) };
            total += written;
            if written < span.len as usize {
                break;
            }
        }
        total
    }

    /// Returns the head of each chain and the bytes written into it: the used ring's values.
    pub fn used(&self) -> impl Iterator<Item = (u16, u32)> {
        let mut left = self.written;
        self.chains.iter().map(move |chain| {
            let len = chain.bytes().min(left);
            left -= len;
            (chain.head(), len)
        })
    }

    /// # Safety
    /// `len` bytes at `from` are readable.
    #[inline]
    unsafe fn write_raw(&mut self, from: *const u8, len: usize) -> usize {
        // It mostly fits the span; with a constant `len`, as for a header, the copy is a few moves instead
        // of a call.
        if self.rest.len == 0 {
            self.next_span();
        }
        if len <= self.rest.len as usize {
            // SAFETY: as in `write_pieces`.
            unsafe { std::ptr::copy(from, self.rest.ptr, len) };
            self.advance(len);
            return len;
        }
        // SAFETY: readable by contract.
        unsafe { self.write_pieces(from, len) }
    }

    /// # Safety
    /// `len` bytes at `from` are readable.
    unsafe fn write_pieces(&mut self, mut from: *const u8, len: usize) -> usize {
        let mut left = len;
        while left > 0 {
            if self.rest.len == 0 && !self.next_span() {
                break;
            }
            let piece = left.min(self.rest.len as usize);
            // `copy`, not `copy_nonoverlapping`: a guest may send from the buffer it receives into, and the
            // two cost the same. It gets the result within its own memory.
            // SAFETY: readable by contract; `rest` is inside a span of a chain, writable by the contract of
            // `new`.
            unsafe { std::ptr::copy(from, self.rest.ptr, piece) };
            from = from.wrapping_add(piece);
            left -= piece;
            self.advance(piece);
        }
        len - left
    }

    #[inline]
    fn advance(&mut self, n: usize) {
        self.rest.ptr = self.rest.ptr.wrapping_add(n);
        self.rest.len -= n as u32;
        self.written += n as u32;
    }

    /// Takes the next span of the chains into `rest`; `false` at the end.
    #[inline]
    fn next_span(&mut self) -> bool {
        while let Some(chain) = self.chains.get(self.chain) {
            if let Some(&span) = chain.spans().get(self.span) {
                self.span += 1;
                self.rest = span;
                return true;
            }
            self.chain += 1;
            self.span = 0;
        }
        false
    }
}
