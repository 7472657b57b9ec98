//! Waiting frames and their number.

/// A waiting frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queued<F> {
    /// The caller's handle.
    pub frame: F,
    /// Size on the wire (bytes); of a super-frame, all its segments. After a part was taken, the rest.
    pub bytes: u32,
    /// When it is due (ns); `u64::MAX` without a deadline. Must not decrease from frame to frame of one
    /// source.
    pub deadline: u64,
    /// Since when it waits (ns). Must not decrease from frame to frame of one source.
    pub enqueued: u64,
}

/// An amount of waiting frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Frames.
    pub frames: u32,
    /// Their bytes.
    pub bytes: u64,
}
