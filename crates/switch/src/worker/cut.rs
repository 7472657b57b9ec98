//! Super-frames that leave in parts: each as long as a burst, or a short time at the rate, with tokens of
//! its own.
//!
//! ```text
//!  super-frame │ sent │ part │ left ............ │      whole segments: a segment is never cut
//!                        └─▶ piece: a frame of its own, whose payload stays where it is
//! ```
//!
//! A part of a real-time frame is a burst; of a frame that [waits by flow](super::waiting), a millisecond
//! of the rate.

use super::Worker;
use super::count::{count_sent, note_tokens};
use crate::frame::{HEADER_MAX, Offload, Segmenter};
use crate::link::Pending;
use crate::port::Port;
use crate::slots::{Frame, FrameRef, NOWHERE, Owner, body_spans, slice_spans};

/// Result of sending a piece.
pub(super) enum Piece {
    Last,
    More,
    /// Tokens are available at this time (ns).
    At(u64),
    NoSlot,
}

/// A part of a frame: all of it, or whole segments of a super-frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    /// Start of its payload, bytes from the end of the super-frame's headers.
    pub(super) from: u32,
    /// Payload (bytes).
    pub(super) payload: u32,
    pub(super) segments: u32,
    /// Bytes on the wire: each segment with its headers.
    pub(super) wire: u32,
}

impl Part {
    /// Returns the next part of a frame with `left` bytes on the wire: as many segments as fit `most`
    /// bytes, at least one. A frame that is no super-frame is one part.
    pub(super) fn next(frame: &Frame, left: u32, most: u32) -> Self {
        let header = u32::from(frame.headers.len);
        let body = frame.len.saturating_sub(header);
        let Some(size) = frame.offload.gso_size().filter(|size| *size > 0 && body > 0) else {
            return Self { from: 0, payload: body, segments: 1, wire: left };
        };
        let size = u32::from(size);
        let full = header + size;
        let from = (frame.wire_bytes.saturating_sub(left) / full * size).min(body);
        let payload = (most / full).max(1).saturating_mul(size).min(body - from);
        let segments = payload.div_ceil(size);
        Self { from, payload, segments, wire: header * segments + payload }
    }

    /// Whether it is the last part of the frame.
    pub(super) fn is_last(&self, frame: &Frame) -> bool {
        self.from + self.payload >= frame.len.saturating_sub(u32::from(frame.headers.len))
    }
}

/// Returns the remaining bytes on the wire after `sent` payload bytes, whole segments.
pub(super) fn unsent_bytes(frame: &Frame, sent: u32) -> u32 {
    let segments = frame.offload.gso_size().map_or(0, |size| sent / u32::from(size).max(1));
    frame.wire_bytes.saturating_sub(segments * u32::from(frame.headers.len) + sent)
}

/// Makes `piece` this part of a super-frame, which gains a share. `false` if the frame is none: the caller
/// gives the piece back.
pub(super) fn cut(whole: FrameRef, part: Part, piece: FrameRef) -> bool {
    let of = whole.get();
    let body = of.len.saturating_sub(u32::from(of.headers.len));
    let (spans, count) = body_spans(of);
    let piece = piece.get_mut();
    piece.owner = Owner::Piece { whole };
    of.shares.set(of.shares.get() + 1);
    // The last segment may be shorter.
    let size = part.segments * u32::from(of.offload.gso_size().unwrap_or(1));
    let segmenter = Segmenter::new(of.head(), &of.headers, of.offload, body as usize);
    let mut head = [0; HEADER_MAX];
    let made = segmenter.and_then(|segmenter| {
        segmenter.with_size(size as usize).starting_at(part.from as usize).next(&mut head)
    });
    let Some(made) = made else { return false };
    debug_assert_eq!((made.payload_len, made.segments), (part.payload as usize, part.segments));
    (piece.segment, piece.peer, piece.stamp) = (of.segment, of.peer, None);
    piece.len = u32::from(of.headers.len) + part.payload;
    piece.wire_bytes = part.wire;
    piece.wire_frames = part.segments;
    piece.offload = if part.segments > 1 { of.offload } else { Offload::Checksum };
    piece.vnet = made.vnet;
    piece.headers = made.headers;
    piece.head_len = made.head_len as u16;
    piece.bytes = head;
    piece.span_count =
        slice_spans(&spans[..count], made.payload_offset, part.payload as usize, &mut piece.spans) as u16;
    true
}

impl Worker {
    /// Sends the next piece of a real-time super-frame, at most `burst` bytes on the wire.
    pub(super) fn send_piece(&mut self, port: &mut Port, pending: &mut Pending, burst: u32) -> Piece {
        let whole = pending.frame.get();
        let part = Part::next(whole, unsent_bytes(whole, pending.sent), burst);
        let counted = self.counted_bytes(port, part.wire, part.segments);
        let started = match port.conform(pending.arrival.earliest, counted, self.now) {
            Ok(started) => started,
            Err(at) => return Piece::At(at),
        };
        let Some(piece) = port.link.tx.slot_for_piece(whole) else { return Piece::NoSlot };
        if pending.sent == 0 {
            // This share stands for "not yet cut to the end".
            whole.shares.set(1);
            // No receiver is asked to drop a part of it.
            pending.frame.get_mut().egress = NOWHERE;
            count_sent(port, whole);
        }
        pending.sent += part.payload;
        if cut(pending.frame, part, piece) {
            self.dispatch(port, piece, pending.arrival, started);
        } else {
            debug_assert!(false, "a super-frame that was checked can be cut");
            port.link.tx.give_back(piece);
        }
        if !part.is_last(whole) {
            return Piece::More;
        }
        note_tokens(port, &pending.arrival, started);
        if whole.release() {
            port.link.tx.give_back(pending.frame);
        }
        Piece::Last
    }
}
