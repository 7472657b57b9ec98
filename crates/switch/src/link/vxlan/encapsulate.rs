//! A frame as datagrams: VXLAN header and complete wire frame, in the order of bytes.
//!
//! ```text
//!  frame, super-frame ─▶ wire frames, checksums finished ─▶ │ VXLAN header │ head │ body │   one datagram each
//! ```

use crate::frame::dscp::EF;
use crate::frame::offload::receiver_hdr;
use crate::frame::{HEADER_MAX, Headers, Payload, Segmenter, VnetHdr, ecn, finish_checksum, flow_of, parse};
use crate::link::Receiver;
use crate::link::delivery::payload;
use crate::link::receiver::{Form, copy_body};
use crate::slots::{Frame, NEVER, body_spans, slice_spans};
use crate::virtio::{MAX_SPANS, Span};
use tidegate_uplink::vxlan;

/// Another host's abilities: none is known.
const RECEIVER: Receiver = Receiver {
    csum: false,
    tso4: false,
    tso6: false,
    ecn: false,
    uso4: false,
    uso6: false,
    mergeable: true,
    header_len: 0,
};

/// Memory for datagrams.
pub trait Room {
    /// Returns room for the next datagram, of `len` bytes, all of which are then written; `None` without room.
    fn room(&mut self, len: usize) -> Option<&mut [u8]>;
}

/// The result of encapsulating a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encapsulated {
    /// All of it.
    All,
    /// So many bytes of a super-frame's payload: there was no room for more segments.
    Part(u32),
    /// Nothing, without room.
    NoRoom,
    /// Nothing: it contradicts its offload request.
    Malformed,
}

/// What a frame's outer headers have of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outer {
    /// DSCP: expedited forwarding for a deadline, else none, since the network between hosts is not the
    /// guests' to divide; and the inner ECN (RFC 6040, 4.1, normal mode).
    pub traffic_class: u8,
    /// Equal for all frames of a flow.
    pub flow: u32,
    /// When it must have left (ns): it goes before others; [`NEVER`] without a deadline.
    pub deadline: u64,
}

impl Outer {
    /// Reads them from a frame.
    #[inline]
    pub fn of(frame: &Frame) -> Self {
        let head = frame.head();
        let (mark, flow) = match parse(head, frame.len as usize) {
            Ok(headers) => (ecn(head, &headers).unwrap_or(0), flow_of(head, &headers)),
            Err(_) => (0, 0),
        };
        let dscp = if frame.is_realtime() { EF } else { 0 };
        Self { traffic_class: dscp << 2 | mark, flow, deadline: frame.deadline }
    }

    /// Whether it goes before others.
    #[inline]
    pub fn is_urgent(&self) -> bool {
        self.deadline != NEVER
    }
}

/// Writes a frame of segment `vni` as datagrams.
pub fn encapsulate(frame: &Frame, vni: u32, room: &mut impl Room) -> Encapsulated {
    let header = vxlan::header(vni);
    let written = match RECEIVER.form(frame) {
        Form::AsIs => write(room, &header, frame.head(), frame.payload(), body_len(frame)).map(|_| ()),
        Form::FinishChecksum => {
            let vnet = receiver_hdr(&frame.vnet, &frame.headers, frame.offload);
            write(room, &header, frame.head(), frame.payload(), body_len(frame)).map(|copied| {
                finish(copied, vnet, &frame.headers);
            })
        }
        Form::Segments => return segments(frame, &header, room),
    };
    if written.is_some() { Encapsulated::All } else { Encapsulated::NoRoom }
}

/// Returns the bytes behind a frame's copied head.
fn body_len(frame: &Frame) -> usize {
    (frame.len as usize).saturating_sub(usize::from(frame.head_len))
}

fn segments(frame: &Frame, header: &[u8; vxlan::LEN], room: &mut impl Room) -> Encapsulated {
    let body = payload(frame) as usize;
    let Some(mut segmenter) = Segmenter::new(frame.head(), &frame.headers, frame.offload, body) else {
        return Encapsulated::Malformed;
    };
    let (spans, count) = body_spans(frame);
    let mut head = [0; HEADER_MAX];
    while let Some(part) = segmenter.next(&mut head) {
        let mut piece = [Span::EMPTY; MAX_SPANS + 1];
        let n = slice_spans(&spans[..count], part.payload_offset, part.payload_len, &mut piece);
        match write(room, header, &head[..part.head_len], &piece[..n], part.payload_len) {
            Some(copied) => finish(copied, part.vnet, &part.headers),
            None if part.payload_offset == 0 => return Encapsulated::NoRoom,
            None => return Encapsulated::Part(part.payload_offset as u32),
        }
    }
    Encapsulated::All
}

/// Completes the checksum of a frame in its datagram: a guest that changes its memory meanwhile does not change what is
/// summed, and the bytes are in the cache.
#[inline]
fn finish(copied: &mut [u8], mut vnet: VnetHdr, headers: &Headers) {
    finish_checksum(copied, &mut vnet, headers, &Payload::EMPTY);
}

/// Writes one datagram, and returns its frame; `None` without room. A stamp's place is behind the body: its bytes then
/// add to the length.
#[inline]
fn write<'a>(
    room: &'a mut impl Room,
    header: &[u8; vxlan::LEN],
    head: &[u8],
    body: &[Span],
    body_len: usize,
) -> Option<&'a mut [u8]> {
    let datagram = room.room(header.len() + head.len() + body_len)?;
    let (to, frame) = datagram.split_at_mut(header.len());
    to.copy_from_slice(header);
    let (to, rest) = frame.split_at_mut(head.len());
    to.copy_from_slice(head);
    let copied = copy_body(body, rest);
    debug_assert_eq!(copied, body_len, "the spans of a frame add up to its length");
    // Own memory, with an earlier frame's bytes.
    rest[copied..].fill(0);
    Some(frame)
}
