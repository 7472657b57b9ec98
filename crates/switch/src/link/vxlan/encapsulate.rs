//! A frame as datagrams: a header and the wire frame, in the order of bytes.
//!
//! ```text
//!  frame, super-frame ─▶ wire frames ─▶ │ header │ head │ body │ stamp │   one datagram each
//!                             │                         └ stays where it is, if the room can gather it from there
//!                             └ checksums finished, if the header cannot tell that they are not
//! ```

use super::pairs::Outgoing;
use crate::frame::dscp::EF;
use crate::frame::offload::receiver_hdr;
use crate::frame::{HEADER_MAX, Headers, Payload, Segmenter, VnetHdr, ecn, finish_checksum, flow_of, parse};
use crate::link::Receiver;
use crate::link::delivery::payload;
use crate::link::rdma::outgoing::Gathered;
use crate::link::receiver::{Form, copy_body};
use crate::slots::{Frame, NEVER, body_spans, slice_spans};
use crate::virtio::{MAX_SPANS, Span};
use tidegate_uplink::{stamp, vxlan};

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

    /// Returns room for the beginning of the next datagram, all of which is then written, if the rest can be read where it is:
    /// `head` bytes, and perhaps first ones of the body, whose `len` bytes are in `body`.
    #[inline]
    fn gather(&mut self, _head: usize, _body: &[Span], _len: usize) -> Gathered<'_> {
        Gathered::Whole
    }
}

/// What stands before each frame.
pub trait Before {
    /// Its bytes.
    const LEN: usize;
    /// Whether it tells that a frame's checksum is unfinished.
    const TELLS_UNFINISHED: bool;

    /// Writes the header of the next datagram, whose checksum is complete or `unfinished`, to `out` of that length.
    fn write(&mut self, out: &mut [u8], unfinished: Option<&VnetHdr>);
}

/// VXLAN's header.
pub struct Vxlan([u8; vxlan::LEN]);

impl Vxlan {
    /// Returns that of segment `vni`.
    #[inline]
    pub fn of(vni: u32) -> Self {
        Self(vxlan::header(vni))
    }
}

impl Before for Vxlan {
    const LEN: usize = vxlan::LEN;
    const TELLS_UNFINISHED: bool = false;

    #[inline]
    fn write(&mut self, out: &mut [u8], _unfinished: Option<&VnetHdr>) {
        out.copy_from_slice(&self.0);
    }
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

/// The stamps of a frame's datagrams.
pub struct Stamping<'a> {
    /// Its pair.
    pub pair: &'a mut Outgoing,
    /// Ts (ns, raw).
    pub sent: u64,
    /// The time (ns, raw).
    pub now: u64,
}

/// What a frame's outer headers have of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outer {
    /// DSCP: expedited forwarding for a deadline, else none, since the network between hosts is not the
    /// guests' to divide; and the inner ECN (RFC 6040, 4.1, normal mode).
    pub traffic_class: u8,
    /// Equal for all frames of a flow.
    pub flow: u32,
    /// The lane of its pair of vNICs, if that has one.
    pub lane: Option<u8>,
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
        Self { traffic_class: dscp << 2 | mark, flow, lane: None, deadline: frame.deadline }
    }

    /// Whether it goes before others.
    #[inline]
    pub fn is_urgent(&self) -> bool {
        self.deadline != NEVER
    }
}

/// Writes a frame as datagrams, each behind a `header`. With `stamping`, each gets a stamp, and nothing remains behind
/// its IP packet.
pub fn encapsulate<B: Before>(
    frame: &Frame,
    header: &mut B,
    room: &mut impl Room,
    mut stamping: Option<Stamping<'_>>,
) -> Encapsulated {
    let unfinished = match RECEIVER.form(frame) {
        Form::AsIs => None,
        Form::FinishChecksum => {
            Some((receiver_hdr(&frame.vnet, &frame.headers, frame.offload), &frame.headers))
        }
        Form::Segments => return segments(frame, header, room, stamping),
    };
    let (mut head, mut body) = (frame.head(), body_len(frame));
    if stamping.is_some() {
        let end = end_of_packet(head, head.len() + body);
        head = &head[..head.len().min(end)];
        body = end - head.len();
    }
    let written = write(room, header, head, (frame.payload(), body), unfinished, &mut stamping);
    if written.is_some() { Encapsulated::All } else { Encapsulated::NoRoom }
}

/// Returns the end of a frame's IP packet (bytes), of at most `len`: its own bytes beyond it could look like a stamp.
/// `len` for other frames, and for packets whose length is wrong.
fn end_of_packet(head: &[u8], len: usize) -> usize {
    let word = |at: usize| head.get(at..)?.first_chunk::<2>().map(|bytes| u16::from_be_bytes(*bytes));
    let l3 = if word(12) == Some(0x8100) { 18 } else { 14 };
    let (length, least) = match word(l3 - 2) {
        Some(0x0800) => (word(l3 + 2).map(usize::from), 20),
        // A payload of 0 is a jumbogram's (RFC 2675, 3): the length is elsewhere.
        Some(0x86dd) => {
            (word(l3 + 4).filter(|length| *length > 0).map(|length| usize::from(length) + 40), 41)
        }
        _ => return len,
    };
    length.filter(|length| *length >= least).map_or(len, |length| len.min(l3 + length))
}

/// Returns the bytes behind a frame's copied head.
fn body_len(frame: &Frame) -> usize {
    (frame.len as usize).saturating_sub(usize::from(frame.head_len))
}

fn segments<B: Before>(
    frame: &Frame,
    header: &mut B,
    room: &mut impl Room,
    mut stamping: Option<Stamping<'_>>,
) -> Encapsulated {
    let body = payload(frame) as usize;
    let Some(mut segmenter) = Segmenter::new(frame.head(), &frame.headers, frame.offload, body) else {
        return Encapsulated::Malformed;
    };
    let (spans, count) = body_spans(frame);
    let mut head = [0; HEADER_MAX];
    while let Some(part) = segmenter.next(&mut head) {
        let mut piece = [Span::EMPTY; MAX_SPANS + 1];
        let n = slice_spans(&spans[..count], part.payload_offset, part.payload_len, &mut piece);
        let (head, body) = (&head[..part.head_len], (&piece[..n], part.payload_len));
        let unfinished = Some((part.vnet, &part.headers));
        if write(room, header, head, body, unfinished, &mut stamping).is_none() {
            return match part.payload_offset as u32 {
                0 => Encapsulated::NoRoom,
                offset => Encapsulated::Part(offset),
            };
        }
    }
    Encapsulated::All
}

/// Writes one datagram: head and body (spans, bytes); `None` without room. A checksum that is `unfinished` is completed
/// in the datagram, whose bytes are in the cache, and then it is stamped: what a guest writes later makes neither a wrong
/// checksum nor a forgery. If the header tells of it, the receiver does that; not of a stamped frame, as no stamp covers
/// the header.
#[inline]
fn write<B: Before>(
    room: &mut impl Room,
    header: &mut B,
    head: &[u8],
    (body, body_len): (&[Span], usize),
    unfinished: Option<(VnetHdr, &Headers)>,
    stamping: &mut Option<Stamping<'_>>,
) -> Option<()> {
    if stamping.is_none() && (B::TELLS_UNFINISHED || unfinished.is_none()) {
        match room.gather(B::LEN + head.len(), body, body_len) {
            Gathered::Begin(begin) => {
                let (before, rest) = begin.split_at_mut(B::LEN);
                header.write(before, unfinished.as_ref().map(|(vnet, _)| vnet));
                let (to, more) = rest.split_at_mut(head.len());
                to.copy_from_slice(head);
                let copied = copy_body(body, more);
                debug_assert_eq!(copied, more.len(), "the body has as many");
                return Some(());
            }
            Gathered::Full => return None,
            Gathered::Whole => {}
        }
    }
    let trailer = if stamping.is_some() { stamp::LEN } else { 0 };
    let datagram = room.room(B::LEN + head.len() + body_len + trailer)?;
    let (before, frame) = datagram.split_at_mut(B::LEN);
    let left = unfinished.as_ref().filter(|_| B::TELLS_UNFINISHED && stamping.is_none());
    header.write(before, left.map(|(vnet, _)| vnet));
    let (to, rest) = frame.split_at_mut(head.len());
    to.copy_from_slice(head);
    let rest = &mut rest[..body_len];
    let copied = copy_body(body, rest);
    debug_assert_eq!(copied, body_len, "the spans of a frame add up to its length");
    // Own memory, with an earlier frame's bytes.
    rest[copied..].fill(0);
    if left.is_none()
        && let Some((mut vnet, headers)) = unfinished
    {
        finish_checksum(&mut frame[..head.len() + body_len], &mut vnet, headers, &Payload::EMPTY);
    }
    if let Some(Stamping { pair, sent, now }) = stamping {
        pair.stamp(frame, *sent, *now);
    }
    Some(())
}
