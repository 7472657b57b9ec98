//! The frames that a receiver takes unchanged; others are finished for it.
//!
//! ```text
//!                  ┌ takes it as it is ───────────────▶ header + copied head + payload
//!  Frame ─ form ───┤ no unfinished checksums ─────────▶ checksum finished in a copy of the head
//!                  └ no such super-frames ────────────▶ segmented: as many segments as there are buffers for
//! ```
//!
//! The sender's memory is never written: a copy of the headers is finished.

use crate::frame::offload::receiver_hdr;
use crate::frame::vnet_hdr::GSO_ECN;
use crate::frame::{HEADER_MAX, Headers, Offload, Payload, VnetHdr, finish_checksum};
use crate::slots::Frame;
use crate::vhost_user::features::{
    NET_F_GUEST_CSUM, NET_F_GUEST_ECN, NET_F_GUEST_TSO4, NET_F_GUEST_TSO6, NET_F_GUEST_USO4,
    NET_F_GUEST_USO6, NET_F_MRG_RXBUF, header_len,
};
use crate::virtio::Span;

/// A receiver's abilities; other frames are finished for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Receiver {
    /// Unfinished checksums.
    pub csum: bool,
    /// TCP super-frames over IPv4.
    pub tso4: bool,
    /// TCP super-frames over IPv6.
    pub tso6: bool,
    /// Super-frames with congestion marks.
    pub ecn: bool,
    /// UDP super-frames over IPv4.
    pub uso4: bool,
    /// UDP super-frames over IPv6.
    pub uso6: bool,
    /// A frame over several buffers.
    pub mergeable: bool,
    /// Length of the virtio header, 10 or 12.
    pub header_len: usize,
}

/// The form in which a receiver takes a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// As sent.
    AsIs,
    /// With its checksum complete.
    FinishChecksum,
    /// As segments that the switch cuts.
    Segments,
}

impl Receiver {
    /// Returns the abilities of negotiated features.
    pub fn negotiated(features: u64) -> Self {
        let has = |feature| features & feature != 0;
        Self {
            csum: has(NET_F_GUEST_CSUM),
            tso4: has(NET_F_GUEST_TSO4),
            tso6: has(NET_F_GUEST_TSO6),
            ecn: has(NET_F_GUEST_ECN),
            uso4: has(NET_F_GUEST_USO4),
            uso6: has(NET_F_GUEST_USO6),
            mergeable: has(NET_F_MRG_RXBUF),
            header_len: header_len(features),
        }
    }

    /// Returns the form in which it takes a frame.
    pub fn form(&self, frame: &Frame) -> Form {
        let ecn = frame.vnet.gso_type & GSO_ECN == 0 || self.ecn;
        let whole = match frame.offload {
            Offload::None => return Form::AsIs,
            Offload::Checksum if self.csum => return Form::AsIs,
            Offload::Checksum => return Form::FinishChecksum,
            Offload::Tso4(_) => self.tso4 && ecn,
            Offload::Tso6(_) => self.tso6 && ecn,
            Offload::Uso4(_) => self.uso4,
            Offload::Uso6(_) => self.uso6,
        };
        if whole && self.csum { Form::AsIs } else { Form::Segments }
    }
}

/// Returns the head with its checksum complete, and its virtio header.
pub(super) fn finished(frame: &Frame) -> ([u8; HEADER_MAX], VnetHdr) {
    let mut head = frame.bytes;
    let mut vnet = receiver_hdr(&frame.vnet, &frame.headers, frame.offload);
    // SAFETY: the source's memory stays mapped while this worker holds its frame.
    let payload = unsafe { Payload::new(frame.payload()) };
    finish_checksum(&mut head[..frame.head_len as usize], &mut vnet, &frame.headers, &payload);
    (head, vnet)
}

/// Copies what `spans` point to; returns the number of bytes, at most `out.len()`.
pub(super) fn copy_body(spans: &[Span], out: &mut [u8]) -> usize {
    // SAFETY: as for `finished`.
    unsafe { Payload::new(spans) }.copy_to(0, out)
}

/// Completes the checksum of one segment.
pub(super) fn finish_part(head: &mut [u8], vnet: &mut VnetHdr, headers: &Headers, spans: &[Span]) {
    // SAFETY: the source's memory, and the frame's own copied bytes, are valid while this worker holds the
    // frame.
    let payload = unsafe { Payload::new(spans) };
    finish_checksum(head, vnet, headers, &payload);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::tap;

    #[test]
    fn a_receiver_gets_what_it_negotiated() {
        let mut slots = crate::slots::Slots::new(1, 0, 0);
        let reference = slots.take().unwrap();
        let frame = reference.get_mut();
        let nothing = Receiver::default();
        let all = tap::RECEIVER;
        let cases = [
            (Offload::None, Form::AsIs, Form::AsIs),
            (Offload::Checksum, Form::FinishChecksum, Form::AsIs),
            (Offload::Tso4(1448), Form::Segments, Form::AsIs),
            (Offload::Tso6(1428), Form::Segments, Form::AsIs),
            (Offload::Uso4(1400), Form::Segments, Form::Segments),
        ];
        for (offload, plain, tap) in cases {
            frame.offload = offload;
            assert_eq!((nothing.form(frame), all.form(frame)), (plain, tap), "{offload:?}");
        }
        frame.offload = Offload::Tso4(1448);
        frame.vnet.gso_type = 1 | GSO_ECN;
        assert_eq!(Receiver { ecn: false, ..all }.form(frame), Form::Segments);
        slots.give(reference);
    }
}
