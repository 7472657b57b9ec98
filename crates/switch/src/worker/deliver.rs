//! One frame into the receiver's buffers, as the receiver can take it.
//!
//! ```text
//!                  ┌ takes it as it is ───────────────▶ header + copied head + payload
//!  Frame ─ form ───┤ no unfinished checksums ─────────▶ checksum finished in a copy of the head
//!                  └ no such super-frames ────────────▶ segmented: all segments or none
//! ```
//!
//! The sender's memory is never written: whatever is finished is finished in
//! our copy of the headers.

use super::ingress::{body_spans, slice_spans};
use crate::frame::offload::receiver_hdr;
use crate::frame::vnet_hdr::GSO_ECN;
use crate::frame::{HEADER_MAX, Headers, Offload, Payload, Segmenter, VnetHdr, finish_checksum};
use crate::port::tap::TapPort;
use crate::port::vhost::{Receiver, Ring, VhostPort};
use crate::port::{Frame, Link};
use crate::stats::DropReason;
use crate::virtio::{Chain, DirtyLog, MAX_SPANS, RingError, Span, SpanWriter};
use rustix::io::Errno;

/// Most chains one frame may fill.
const MAX_CHAINS: usize = 1024;

/// Memory a worker reuses for every frame.
pub struct Scratch {
    /// The transmit chain being looked at.
    pub chain: Chain,
    chains: Box<[Chain]>,
    /// Segments of one super-frame: their chains.
    parts: Vec<Part>,
    /// How many chains the last frame filled.
    pub filled: usize,
}

struct Part {
    first: usize,
    chains: usize,
}

impl Default for Scratch {
    fn default() -> Self {
        Self {
            chain: Chain::new(),
            chains: vec![Chain::new(); MAX_CHAINS].into_boxed_slice(),
            parts: Vec::with_capacity(256),
            filled: 0,
        }
    }
}

/// How an attempt to deliver went.
pub enum Outcome {
    /// It is in the receiver's buffers.
    Delivered,
    /// The receiver gave too few buffers; nothing was written.
    NoBuffers,
    /// It can never be delivered.
    Dropped(DropReason),
    /// The receiver's ring lies.
    Broken(RingError),
}

/// How a receiver takes a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    AsIs,
    FinishChecksum,
    Segments,
}

fn form(frame: &Frame, receiver: &Receiver) -> Form {
    let ecn = frame.vnet.gso_type & GSO_ECN == 0 || receiver.ecn;
    let whole = match frame.offload {
        Offload::None => return Form::AsIs,
        Offload::Checksum if receiver.csum => return Form::AsIs,
        Offload::Checksum => return Form::FinishChecksum,
        Offload::Tso4(_) => receiver.tso4 && ecn,
        Offload::Tso6(_) => receiver.tso6 && ecn,
        Offload::Uso4(_) => receiver.uso4,
        Offload::Uso6(_) => receiver.uso6,
    };
    if whole && receiver.csum { Form::AsIs } else { Form::Segments }
}

/// The frame with its payload in `buffer`, where it fits.
pub fn staged(frame: &Frame, buffer: &mut [u8]) -> Option<Frame> {
    // SAFETY: the source's memory is mapped for as long as its frame is in our hands.
    let payload = unsafe { Payload::new(frame.payload()) };
    if payload.len() > buffer.len() {
        return None;
    }
    let len = payload.copy_to(0, buffer);
    let mut staged = frame.clone();
    staged.spans[0] = Span { ptr: buffer.as_mut_ptr(), len: len as u32 };
    staged.span_count = u16::from(len > 0);
    Some(staged)
}

/// How many chains wait where `frame` would go; `None` where only trying tells whether it can.
pub fn chains_waiting(frame: &Frame, link: &mut Link) -> Option<u16> {
    let Link::Vhost(vhost) = link else { return None };
    let pair = frame.flow as usize % vhost.rx_enabled.len().max(1);
    let pair = *vhost.rx_enabled.get(pair)?;
    vhost.rx[pair as usize].as_mut()?.queue.available().ok()
}

/// Delivers `frame` to a port.
pub fn deliver(frame: &Frame, link: &mut Link, scratch: &mut Scratch) -> Outcome {
    scratch.filled = 0;
    match link {
        Link::Vhost(vhost) => to_rings(frame, vhost, scratch),
        Link::Tap(tap) => to_tap(frame, tap),
    }
}

fn to_rings(frame: &Frame, vhost: &mut VhostPort, scratch: &mut Scratch) -> Outcome {
    let receiver = vhost.receiver;
    if vhost.rx_enabled.is_empty() {
        return Outcome::Dropped(DropReason::ReceiverDown);
    }
    let pair = vhost.rx_enabled[frame.flow as usize % vhost.rx_enabled.len()];
    let Some(ring) = &mut vhost.rx[pair as usize] else { return Outcome::Dropped(DropReason::ReceiverDown) };
    if ring.queue.pending() < 8
        && let Err(error) = ring.queue.available()
    {
        return Outcome::Broken(error);
    }
    let log = vhost.log.as_ref();
    let done = match form(frame, &receiver) {
        Form::AsIs => {
            let vnet = receiver_hdr(&frame.vnet, &frame.headers, frame.offload);
            whole(ring, log, &receiver, scratch, &vnet, frame.head(), frame.payload(), frame.len)
        }
        Form::FinishChecksum => {
            let (head, vnet) = finished(frame);
            let head = &head[..frame.head_len as usize];
            whole(ring, log, &receiver, scratch, &vnet, head, frame.payload(), frame.len)
        }
        Form::Segments => segmented(ring, log, &receiver, scratch, frame),
    };
    match done {
        Ok(()) => {
            ring.dirty = true;
            Outcome::Delivered
        }
        Err(outcome) => outcome,
    }
}

/// The head with its checksum complete, and the header that says so.
fn finished(frame: &Frame) -> ([u8; HEADER_MAX], VnetHdr) {
    let mut head = frame.bytes;
    let mut vnet = receiver_hdr(&frame.vnet, &frame.headers, frame.offload);
    // SAFETY: the source's memory is mapped for as long as its frame is in our hands.
    let payload = unsafe { Payload::new(frame.payload()) };
    finish_checksum(&mut head[..frame.head_len as usize], &mut vnet, &frame.headers, &payload);
    (head, vnet)
}

#[allow(clippy::too_many_arguments, reason = "a frame's parts, and where they go")]
fn whole(
    ring: &mut Ring,
    log: Option<&DirtyLog>,
    receiver: &Receiver,
    scratch: &mut Scratch,
    vnet: &VnetHdr,
    head: &[u8],
    payload: &[Span],
    len: u32,
) -> Result<(), Outcome> {
    let chains = gather(ring, receiver, &mut scratch.chains, len).inspect_err(|(popped, _)| {
        ring.queue.rewind(*popped);
    });
    let chains = chains.map_err(|(_, outcome)| outcome)?;
    scratch.filled = chains;
    write(ring, log, receiver, &scratch.chains[..chains], vnet, head, payload);
    Ok(())
}

/// Takes chains for `len` bytes and their header. On failure: how many were
/// taken, to be put back.
fn gather(
    ring: &mut Ring,
    receiver: &Receiver,
    chains: &mut [Chain],
    len: u32,
) -> Result<usize, (u16, Outcome)> {
    let needed = len as usize + receiver.header_len;
    let mut room = 0;
    let most = chains.len() as u16;
    for (i, chain) in chains.iter_mut().enumerate() {
        let popped = i as u16;
        if ring.queue.pending() == 0
            && let Err(error) = ring.queue.available()
        {
            return Err((popped, Outcome::Broken(error)));
        }
        match ring.queue.pop_writable(chain) {
            Ok(true) => {}
            Ok(false) if popped >= ring.queue.size() => {
                return Err((popped, Outcome::Dropped(DropReason::Unacceptable)));
            }
            Ok(false) => return Err((popped, Outcome::NoBuffers)),
            Err(error) => return Err((popped, Outcome::Broken(error))),
        }
        room += chain.bytes() as usize;
        if room >= needed {
            return Ok(i + 1);
        }
        // A buffer holds a header at least (virtio 1.2, 5.1.6.3.1): fewer bytes are not worth a chain.
        if !receiver.mergeable || (chain.bytes() as usize) < receiver.header_len {
            return Err((popped + 1, Outcome::Dropped(DropReason::Unacceptable)));
        }
    }
    Err((most, Outcome::Dropped(DropReason::Unacceptable)))
}

fn write(
    ring: &mut Ring,
    log: Option<&DirtyLog>,
    receiver: &Receiver,
    chains: &[Chain],
    vnet: &VnetHdr,
    head: &[u8],
    payload: &[Span],
) {
    let vnet = VnetHdr { num_buffers: chains.len() as u16, ..*vnet };
    let mut header = [0; VnetHdr::LEN];
    vnet.write(&mut header);
    // SAFETY: the chains were popped from this ring, whose memory stays mapped while its port
    // runs, and are completed below, after the last write.
    let mut writer = unsafe { SpanWriter::new(chains) };
    writer.write(&header[..receiver.header_len]);
    writer.write(head);
    // SAFETY: the source's memory is mapped for as long as its frame is in our hands.
    unsafe { writer.write_spans(payload) };
    if let Some(log) = log {
        writer.used().zip(chains).for_each(|((_, len), chain)| log.mark_chain(chain, len));
    }
    // At once: a frame over several buffers is shown whole or not at all, whenever we are killed.
    ring.queue.complete_all(writer.used());
}

fn segmented(
    ring: &mut Ring,
    log: Option<&DirtyLog>,
    receiver: &Receiver,
    scratch: &mut Scratch,
    frame: &Frame,
) -> Result<(), Outcome> {
    let header_len = u32::from(frame.headers.len);
    let body = frame.len - header_len;
    let malformed = Outcome::Dropped(DropReason::Malformed);
    let cut = || Segmenter::new(frame.head(), &frame.headers, frame.offload, body as usize);
    let (Some(mut measure), Some(mut segmenter)) = (cut(), cut()) else { return Err(malformed) };

    // Buffers for all segments first: half a super-frame is worth nothing.
    let mut head = [0; HEADER_MAX];
    let mut popped = 0;
    scratch.parts.clear();
    while let Some(part) = measure.next(&mut head) {
        let len = (part.head_len + part.payload_len) as u32;
        match gather(ring, receiver, &mut scratch.chains[popped..], len) {
            Ok(chains) => {
                scratch.parts.push(Part { first: popped, chains });
                popped += chains;
            }
            Err((more, outcome)) => {
                ring.queue.rewind(popped as u16 + more);
                return Err(match outcome {
                    // The ring is smaller than the super-frame has segments.
                    Outcome::NoBuffers if popped as u16 + more >= ring.queue.size() => {
                        Outcome::Dropped(DropReason::Unacceptable)
                    }
                    other => other,
                });
            }
        }
    }
    scratch.filled = popped;
    let (mut spans, count) = body_spans(frame);
    let mut parts = scratch.parts.iter();
    while let (Some(part), Some(chains)) = (segmenter.next(&mut head), parts.next()) {
        let mut piece = [Span::EMPTY; MAX_SPANS + 1];
        let n = slice_spans(&mut spans[..count], part.payload_offset, part.payload_len, &mut piece);
        let mut vnet = part.vnet;
        if !receiver.csum {
            finish_part(&mut head[..part.head_len], &mut vnet, &part.headers, &piece[..n]);
        }
        let chains = &scratch.chains[chains.first..chains.first + chains.chains];
        write(ring, log, receiver, chains, &vnet, &head[..part.head_len], &piece[..n]);
    }
    Ok(())
}

fn finish_part(head: &mut [u8], vnet: &mut VnetHdr, headers: &Headers, spans: &[Span]) {
    // SAFETY: the source's memory, and the frame's own copied bytes, are valid for as long as
    // the frame is in our hands.
    let payload = unsafe { Payload::new(spans) };
    finish_checksum(head, vnet, headers, &payload);
}

fn to_tap(frame: &Frame, tap: &mut TapPort) -> Outcome {
    let queue = tap.queue_for(frame);
    let result = match form(frame, &TapPort::RECEIVER) {
        Form::AsIs => {
            let vnet = receiver_hdr(&frame.vnet, &frame.headers, frame.offload);
            // SAFETY: the source's memory is mapped for as long as its frame is in our hands.
            unsafe { tap.write(queue, &vnet, frame.head(), frame.payload()) }
        }
        Form::FinishChecksum => {
            let (head, vnet) = finished(frame);
            // SAFETY: as above.
            unsafe { tap.write(queue, &vnet, &head[..frame.head_len as usize], frame.payload()) }
        }
        Form::Segments => segments_to_tap(frame, tap, queue),
    };
    match result {
        Ok(()) => Outcome::Delivered,
        Err(Errno::AGAIN | Errno::NOBUFS) => Outcome::NoBuffers,
        // The interface is down: what a cable that is not plugged in does.
        Err(Errno::IO | Errno::BADFD | Errno::NODEV) => Outcome::Dropped(DropReason::ReceiverDown),
        Err(_) => Outcome::Dropped(DropReason::TapRefused),
    }
}

fn segments_to_tap(frame: &Frame, tap: &TapPort, queue: usize) -> Result<(), Errno> {
    let body = frame.len - u32::from(frame.headers.len);
    let Some(mut segmenter) = Segmenter::new(frame.head(), &frame.headers, frame.offload, body as usize)
    else {
        return Err(Errno::INVAL);
    };
    let (mut spans, count) = body_spans(frame);
    let mut head = [0; HEADER_MAX];
    let mut written = false;
    while let Some(part) = segmenter.next(&mut head) {
        let mut piece = [Span::EMPTY; MAX_SPANS + 1];
        let n = slice_spans(&mut spans[..count], part.payload_offset, part.payload_len, &mut piece);
        // SAFETY: the spans lead into the source's memory or the frame's own bytes, both valid for
        // as long as the frame is in our hands.
        match unsafe { tap.write(queue, &part.vnet, &head[..part.head_len], &piece[..n]) } {
            Ok(()) => written = true,
            // Tried again as a whole, the datagrams that went would go twice.
            Err(Errno::AGAIN | Errno::NOBUFS) if written => return Ok(()),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receiver_gets_what_it_negotiated() {
        let mut slots = crate::port::Slots::new(1, 0, 0);
        let reference = slots.take().unwrap();
        let frame = reference.get_mut();
        let nothing = Receiver::default();
        let all = TapPort::RECEIVER;
        let cases = [
            (Offload::None, Form::AsIs, Form::AsIs),
            (Offload::Checksum, Form::FinishChecksum, Form::AsIs),
            (Offload::Tso4(1448), Form::Segments, Form::AsIs),
            (Offload::Tso6(1428), Form::Segments, Form::AsIs),
            (Offload::Uso4(1400), Form::Segments, Form::Segments),
        ];
        for (offload, plain, tap) in cases {
            frame.offload = offload;
            assert_eq!((form(frame, &nothing), form(frame, &all)), (plain, tap), "{offload:?}");
        }
        frame.offload = Offload::Tso4(1448);
        frame.vnet.gso_type = 1 | GSO_ECN;
        assert_eq!(form(frame, &Receiver { ecn: false, ..all }), Form::Segments);
        slots.give(reference);
    }
}
