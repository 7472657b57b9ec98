//! Parts of a frame's body: the bytes after its headers.

use super::slot::Frame;
use crate::virtio::{MAX_SPANS, Span};

/// All spans of a frame's body; the part that was copied with the headers comes first.
pub fn body_spans(frame: &Frame) -> ([Span; MAX_SPANS + 1], usize) {
    let mut spans = [Span::EMPTY; MAX_SPANS + 1];
    let mut count = 0;
    let copied = &frame.head()[frame.headers.len as usize..];
    if !copied.is_empty() {
        spans[0] = Span { ptr: copied.as_ptr().cast_mut(), len: copied.len() as u32 };
        count = 1;
    }
    spans[count..][..frame.payload().len()].copy_from_slice(frame.payload());
    (spans, count + frame.payload().len())
}

/// The part of `spans` from `offset`, `len` bytes long; returns how many spans it has.
pub fn slice_spans(spans: &[Span], offset: usize, len: usize, out: &mut [Span]) -> usize {
    let (mut skip, mut left, mut count) = (offset as u32, len as u32, 0);
    for span in spans {
        if left == 0 {
            break;
        }
        if skip >= span.len {
            skip -= span.len;
            continue;
        }
        let here = (span.len - skip).min(left);
        out[count] = Span { ptr: span.ptr.wrapping_add(skip as usize), len: here };
        count += 1;
        left -= here;
        skip = 0;
    }
    count
}
