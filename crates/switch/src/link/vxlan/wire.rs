//! Bytes on the wire of posted frames: more than their own. Pure.
//!
//! ```text
//!  posted ─▶ datagrams, copies of floods ─▶ OnWire ─ beyond(own bytes) ─▶ charged to the uplink's rate
//! ```

use crate::sched::Backlog;

/// Shortest frame (bytes without FCS): a shorter one is padded.
const SHORTEST: usize = 60;

/// Frames that a link put on the wire since the last look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OnWire {
    /// How many.
    pub frames: u64,
    /// Their bytes without outer headers.
    pub bytes: u64,
    /// Copies of floods among them, beyond the first of each.
    pub copies: Backlog,
}

impl OnWire {
    /// Adds a frame of `len` bytes.
    #[inline]
    pub fn add(&mut self, len: usize) {
        self.frames += 1;
        self.bytes += len.max(SHORTEST) as u64;
    }

    /// Adds the frames of a super-frame, `bytes` in all, which the device cuts; or one.
    #[inline]
    pub fn add_frames(&mut self, frames: u32, bytes: u32) {
        self.frames += u64::from(frames);
        self.bytes += u64::from(bytes.max(frames * SHORTEST as u32));
    }

    /// Notes that an added frame of `len` bytes is a further copy.
    #[inline]
    pub fn note_copy(&mut self, len: usize) {
        self.copies.frames += 1;
        self.copies.bytes += len as u64;
    }

    /// Returns all bytes: each frame has `overhead` bytes of outer headers.
    #[inline]
    pub fn all_bytes(&self, overhead: u32) -> u64 {
        self.bytes + self.frames * u64::from(overhead)
    }

    /// Returns the bytes beyond `own`, the posted frames' lengths: each frame on the wire has `overhead` bytes
    /// of outer headers.
    #[inline]
    pub fn beyond(&self, own: u64, overhead: u32) -> u64 {
        self.all_bytes(overhead).saturating_sub(own)
    }
}
