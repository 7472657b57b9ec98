//! A worker's end of a capture: copies a port's frames for the thread that writes them.

use crate::slots::Frame;
use rtrb::Producer;
use rustix::time::{ClockId, clock_gettime};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// time (8), captured length (4), original length (4), direction (1)
pub(crate) const HEADER: usize = 17;

/// Direction of a frame, in the VM's view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The VM sent it (tx).
    FromVm,
    /// The VM received it (rx).
    ToVm,
}

/// The worker's end.
pub struct CaptureTap {
    pub(crate) ring: Producer<u8>,
    pub(crate) snaplen: usize,
    pub(crate) lost: Arc<AtomicU64>,
}

impl CaptureTap {
    /// The reader is gone.
    pub fn is_over(&self) -> bool {
        self.ring.is_abandoned()
    }

    /// Copies a frame, or counts it as lost if the ring is full.
    pub fn record(&mut self, frame: &Frame, direction: Direction) {
        let captured = (frame.len as usize).min(self.snaplen);
        let Ok(mut chunk) = self.ring.write_chunk(HEADER + captured) else {
            self.lost.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let wall = clock_gettime(ClockId::Realtime);
        let mut header = [0; HEADER];
        let time = wall.tv_sec as u64 * 1_000_000_000 + wall.tv_nsec as u64;
        header[..8].copy_from_slice(&time.to_ne_bytes());
        header[8..12].copy_from_slice(&(captured as u32).to_ne_bytes());
        header[12..16].copy_from_slice(&frame.len.to_ne_bytes());
        header[16] = u8::from(direction == Direction::ToVm);

        let (first, second) = chunk.as_mut_slices();
        let mut out = Scatter { parts: [first, second] };
        out.put(header.as_ptr(), HEADER);
        let head = captured.min(frame.head_len as usize);
        out.put(frame.bytes.as_ptr(), head);
        let mut left = captured - head;
        for span in frame.payload() {
            let here = left.min(span.len as usize);
            out.put(span.ptr, here);
            left -= here;
        }
        chunk.commit_all();
    }
}

/// Two slices, filled one after the other.
pub(crate) struct Scatter<'a> {
    pub(crate) parts: [&'a mut [u8]; 2],
}

impl Scatter<'_> {
    pub(crate) fn put(&mut self, mut from: *const u8, mut len: usize) {
        for part in &mut self.parts {
            let here = len.min(part.len());
            // SAFETY: `from` is in a frame's own bytes or in the source's memory, which stays mapped while
            // this worker holds the frame; `here` fits the destination.
            unsafe { std::ptr::copy_nonoverlapping(from, part.as_mut_ptr(), here) };
            *part = &mut std::mem::take(part)[here..];
            from = from.wrapping_add(here);
            len -= here;
        }
    }
}
