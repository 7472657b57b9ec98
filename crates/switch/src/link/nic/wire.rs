//! A frame with its VLAN tag (IEEE 802.1Q, 9.6), as the device takes it. Pure.
//!
//! ```text
//!  frame, super-frame ─▶ │ virtio header │ addresses │ 0x8100, VLAN │ type, rest of the head │ body │
//!                          if offloads      12           4
//! ```

use crate::frame::headers::ETHERTYPE_VLAN;
use crate::frame::{HEADER_MAX, Segmenter, VnetHdr, receiver_hdr};
use crate::link::Receiver;
use crate::link::delivery::payload;
use crate::link::receiver::{Form, copy_body, finish_part, finished};
use crate::slots::{Frame, body_spans, slice_spans};
use crate::virtio::{MAX_SPANS, Span};

/// Length of a tag (bytes).
pub const TAG: usize = 4;
/// Length of the addresses before it (bytes).
pub const ADDRESSES: usize = 12;
/// Where the priority is in a tag (bits).
const PRIORITY: u16 = 13;

/// What a device does with frames.
#[derive(Clone, Copy, Debug)]
pub struct Device {
    /// Its abilities; other frames are finished for it.
    pub receiver: Receiver,
    /// A virtio header asks it for offloads.
    pub has_header: bool,
}

/// The kernel, behind a packet socket: it finishes checksums, and cuts what the NIC does not. UDP super-frames it
/// refuses before Linux 6.2.
pub const PACKET: Device = Device { receiver: crate::link::tap::RECEIVER, has_header: true };

/// A NIC, behind AF_XDP: it gets finished frames.
pub const XDP: Device = Device {
    receiver: Receiver {
        csum: false,
        tso4: false,
        tso6: false,
        ecn: false,
        uso4: false,
        uso6: false,
        mergeable: true,
        header_len: 0,
    },
    has_header: false,
};

/// Frames and bytes on the wire, without tags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    /// Frames.
    pub frames: u32,
    /// Their bytes.
    pub bytes: u32,
}

/// Memory for tagged frames.
pub trait Room {
    /// Returns room for the next one, of `len` bytes, all of which are then written; on the wire it is `size`.
    /// `None` without room.
    fn room(&mut self, len: usize, size: Size) -> Option<&mut [u8]>;
}

/// The result of writing a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// All of it.
    All,
    /// So many bytes of a super-frame's payload: there was no room for more segments.
    Part(u32),
    /// Nothing, without room.
    NoRoom,
    /// Nothing: it contradicts its offload request.
    Malformed,
}

/// The priority and the VLAN in a frame's tag (TCI, IEEE 802.1Q, 9.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tci(u16);

impl Tci {
    /// Returns the tag of a VLAN, 1 to 4094, with a priority, 0 to 7. It is the host's: no guest chooses a class of the network.
    #[inline]
    pub const fn new(vlan: u16, priority: u8) -> Self {
        Self((priority as u16) << PRIORITY | vlan)
    }
}

/// Writes a frame with a tag, as `device` takes it.
pub fn write(frame: &Frame, tci: Tci, device: &Device, room: &mut impl Room) -> Written {
    let to = Target { device, tci };
    let size = Size { frames: frame.wire_frames, bytes: frame.wire_bytes };
    let body_len = (frame.len as usize).saturating_sub(usize::from(frame.head_len));
    let written = match device.receiver.form(frame) {
        Form::AsIs => {
            let vnet = receiver_hdr(&frame.vnet, &frame.headers, frame.offload);
            to.write(room, &vnet, frame.head(), frame.payload(), body_len, size)
        }
        Form::FinishChecksum => {
            let (head, vnet) = finished(frame);
            to.write(room, &vnet, &head[..usize::from(frame.head_len)], frame.payload(), body_len, size)
        }
        Form::Segments => return segments(frame, &to, room),
    };
    if written.is_some() { Written::All } else { Written::NoRoom }
}

fn segments(frame: &Frame, to: &Target<'_>, room: &mut impl Room) -> Written {
    let body = payload(frame) as usize;
    let Some(mut segmenter) = Segmenter::new(frame.head(), &frame.headers, frame.offload, body) else {
        return Written::Malformed;
    };
    let (spans, count) = body_spans(frame);
    let mut head = [0; HEADER_MAX];
    while let Some(mut part) = segmenter.next(&mut head) {
        let mut piece = [Span::EMPTY; MAX_SPANS + 1];
        let n = slice_spans(&spans[..count], part.payload_offset, part.payload_len, &mut piece);
        let head = &mut head[..part.head_len];
        if !to.device.receiver.csum {
            finish_part(head, &mut part.vnet, &part.headers, &piece[..n]);
        }
        let size = Size { frames: 1, bytes: (part.head_len + part.payload_len) as u32 };
        if to.write(room, &part.vnet, head, &piece[..n], part.payload_len, size).is_none() {
            return match part.payload_offset as u32 {
                0 => Written::NoRoom,
                offset => Written::Part(offset),
            };
        }
    }
    Written::All
}

/// Where frames go.
struct Target<'a> {
    device: &'a Device,
    tci: Tci,
}

impl Target<'_> {
    /// Writes one frame, whose head has at least its addresses; `None` without room.
    #[inline]
    fn write(
        &self,
        room: &mut impl Room,
        vnet: &VnetHdr,
        head: &[u8],
        body: &[Span],
        body_len: usize,
        size: Size,
    ) -> Option<()> {
        let header = if self.device.has_header { VnetHdr::LEGACY_LEN } else { 0 };
        let out = room.room(header + TAG + head.len() + body_len, size)?;
        let (to, mut out) = out.split_at_mut(header);
        if let Some(to) = to.first_chunk_mut() {
            tagged(vnet).write_legacy(to);
        }
        let (addresses, rest) = head.split_at(head.len().min(ADDRESSES));
        for part in [addresses, &tag(self.tci), rest] {
            let (to, behind) = out.split_at_mut(part.len());
            to.copy_from_slice(part);
            out = behind;
        }
        let copied = copy_body(body, out);
        debug_assert_eq!(copied, body_len, "the spans of a frame add up to its length");
        // Own memory, with an earlier frame's bytes.
        out[copied..].fill(0);
        Some(())
    }
}

/// Returns the bytes of a tag.
#[inline]
fn tag(Tci(tci): Tci) -> [u8; TAG] {
    let ([t0, t1], [v0, v1]) = (ETHERTYPE_VLAN.to_be_bytes(), tci.to_be_bytes());
    [t0, t1, v0, v1]
}

/// Returns a frame's requests with a tag put in before what they refer to.
#[inline]
fn tagged(vnet: &VnetHdr) -> VnetHdr {
    let moved = |place: u16| if place == 0 { 0 } else { place.saturating_add(TAG as u16) };
    VnetHdr { hdr_len: moved(vnet.hdr_len), csum_start: moved(vnet.csum_start), ..*vnet }
}
