//! Real-time super-frames are cut: a piece is as long as the burst allows, and waits for its tokens alone.

use super::Worker;
use super::send::{count_sent, note_tokens};
use crate::frame::{HEADER_MAX, Offload, Segmenter};
use crate::link::Pending;
use crate::port::{Owner, Port, body_spans, slice_spans};

/// What came of sending a piece.
pub(super) enum Piece {
    Last,
    More,
    /// Tokens are there at this time.
    At(u64),
    NoSlot,
}

impl Worker {
    /// Sends the next piece of a real-time super-frame, at most `burst` bytes on the wire.
    pub(super) fn send_piece(&mut self, port: &mut Port, pending: &mut Pending, burst: u32) -> Piece {
        let whole = pending.frame.get();
        let header = u32::from(whole.headers.len);
        let size = u32::from(whole.offload.gso_size().unwrap_or(1));
        let per_piece = (burst / (header + size)).max(1) * size;
        let body = whole.len - header;
        let (spans, count) = body_spans(whole);
        let segmenter = Segmenter::new(whole.head(), &whole.headers, whole.offload, body as usize);
        let mut head = [0; HEADER_MAX];
        let part = segmenter.and_then(|segmenter| {
            segmenter.with_size(per_piece as usize).starting_at(pending.sent as usize).next(&mut head)
        });
        let Some(part) = part else { return Piece::Last };
        let offload = if part.segments > 1 { whole.offload } else { Offload::Checksum };
        let wire = header * part.segments + part.payload_len as u32;
        let started = match port.conform(pending.arrival.earliest, wire, self.now) {
            Ok(started) => started,
            Err(at) => return Piece::At(at),
        };
        let Some(reference) = port.link.tx.slot_for_piece(whole) else { return Piece::NoSlot };
        if pending.sent == 0 {
            whole.shares.set(1);
            count_sent(port, whole);
        }
        let piece = reference.get_mut();
        piece.owner = Owner::Piece { whole: pending.frame };
        piece.segment = whole.segment;
        piece.len = header + part.payload_len as u32;
        piece.wire_bytes = wire;
        piece.wire_frames = part.segments;
        piece.offload = offload;
        piece.vnet = part.vnet;
        piece.headers = part.headers;
        piece.head_len = part.head_len as u16;
        piece.bytes = head;
        piece.span_count =
            slice_spans(&spans[..count], part.payload_offset, part.payload_len, &mut piece.spans) as u16;
        whole.shares.set(whole.shares.get() + 1);
        pending.sent += part.payload_len as u32;
        let last = pending.sent >= body;
        self.dispatch(port, reference, pending.arrival, started);
        if last {
            note_tokens(port, &pending.arrival, started);
            // The share that stood for "not yet cut to the end".
            if whole.release() {
                port.link.tx.give_back(pending.frame);
            }
            Piece::Last
        } else {
            Piece::More
        }
    }
}
