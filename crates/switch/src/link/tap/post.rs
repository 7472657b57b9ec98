//! Into the kernel, by a write for each frame or segment.

use super::super::delivery::payload;
use super::super::receiver::{Form, finished};
use super::super::{Posted, Scratch};
use super::{RECEIVER, Rx};
use crate::frame::offload::receiver_hdr;
use crate::frame::{HEADER_MAX, Segmenter, VnetHdr};
use crate::slots::{Frame, body_spans, slice_spans};
use crate::virtio::{MAX_SPANS, Span};
use rustix::io::Errno;
use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use tidegate_evidence::DropReason;

/// Header, head, and a frame's most pieces: its spans and the payload part of the copied bytes.
const MAX_PARTS: usize = MAX_SPANS + 3;

impl Rx {
    /// Writes frames beginning with `head`: all have a deadline, or none.
    pub(in crate::link) fn post_run<'a>(
        &self,
        head: &Frame,
        frames: impl Iterator<Item = &'a Frame>,
        hands_over: bool,
    ) -> (u32, Option<Posted>) {
        if !head.is_realtime() && (hands_over || self.at_writer.any()) {
            // One by one.
            return (0, None);
        }
        let mut done = 0;
        for frame in frames {
            match self.write(frame) {
                Posted::Done => done += 1,
                other => return (done, Some(other)),
            }
        }
        (done, None)
    }

    pub(in crate::link) fn post(&mut self, frame: &Frame, scratch: &mut Scratch) -> Posted {
        let hand = scratch.writer.as_mut().filter(|_| scratch.hands_over);
        if !frame.is_realtime()
            && (hand.is_some() || self.at_writer.any())
            && let Some(posted) = self.hand_over(frame, hand)
        {
            return posted;
        }
        self.write(frame)
    }

    pub(super) fn file(&self, frame: &Frame) -> &Arc<OwnedFd> {
        match &self.files[..] {
            [only] => only,
            files => &files[frame.flow() as usize % files.len()],
        }
    }

    fn write(&self, frame: &Frame) -> Posted {
        let file = self.file(frame);
        let written = match RECEIVER.form(frame) {
            Form::AsIs => {
                let vnet = receiver_hdr(&frame.vnet, &frame.headers, frame.offload);
                // SAFETY: the source's memory stays mapped while this worker holds its frame.
                unsafe { write(file, &vnet, frame.head(), frame.payload()) }
            }
            Form::FinishChecksum => {
                let (head, vnet) = finished(frame);
                // SAFETY: as above.
                unsafe { write(file, &vnet, &head[..frame.head_len as usize], frame.payload()) }
            }
            Form::Segments => match segments(frame, file) {
                Ok(None) => Ok(()),
                Ok(Some(payload)) => return Posted::Part(payload),
                Err(error) => Err(error),
            },
        };
        match written {
            Ok(()) => Posted::Done,
            Err(Errno::AGAIN | Errno::NOBUFS) => Posted::NoBuffers,
            // The interface is down, like an unplugged cable.
            Err(Errno::IO | Errno::BADFD | Errno::NODEV) => Posted::Dropped(DropReason::ReceiverDown),
            Err(_) => Posted::Dropped(DropReason::TapRefused),
        }
    }
}

/// Writes the segments of a super-frame one by one; returns the written payload if some could not be
/// written.
fn segments(frame: &Frame, file: &OwnedFd) -> Result<Option<u32>, Errno> {
    let body = payload(frame) as usize;
    let Some(mut segmenter) = Segmenter::new(frame.head(), &frame.headers, frame.offload, body) else {
        return Err(Errno::INVAL);
    };
    let (spans, count) = body_spans(frame);
    let mut head = [0; HEADER_MAX];
    while let Some(part) = segmenter.next(&mut head) {
        let mut piece = [Span::EMPTY; MAX_SPANS + 1];
        let n = slice_spans(&spans[..count], part.payload_offset, part.payload_len, &mut piece);
        // SAFETY: the spans point into the source's memory or the frame's own bytes, both valid while this
        // worker holds the frame.
        match unsafe { write(file, &part.vnet, &head[..part.head_len], &piece[..n]) } {
            Ok(()) => {}
            Err(Errno::AGAIN | Errno::NOBUFS) if part.payload_offset > 0 => {
                return Ok(Some(part.payload_offset as u32));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// Writes one frame: `head`, then what `spans` point to.
///
/// # Safety
/// The spans are mapped.
unsafe fn write(file: &OwnedFd, vnet: &VnetHdr, head: &[u8], spans: &[Span]) -> Result<(), Errno> {
    let mut header = [0u8; VnetHdr::LEN];
    vnet.write(&mut header);
    let mut buffers = [IoSlice::new(&[]); MAX_PARTS];
    buffers[0] = IoSlice::new(&header);
    buffers[1] = IoSlice::new(head);
    for (buffer, span) in buffers[2..].iter_mut().zip(spans) {
        // SAFETY: mapped by contract. A guest may change the bytes meanwhile; the kernel copies
        // them once and nothing here reads them.
        *buffer = IoSlice::new(unsafe { std::slice::from_raw_parts(span.ptr, span.len as usize) });
    }
    rustix::io::retry_on_intr(|| rustix::io::writev(file, &buffers[..2 + spans.len()])).map(|_| ())
}
