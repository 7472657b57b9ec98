//! Frames taken from a link.

use crate::slots::Arrival;
use crate::slots::FrameRef;
use tidegate_evidence::DropReason;

/// A frame that was taken and waits for tokens.
#[derive(Clone, Copy, Debug)]
pub struct Pending {
    /// The frame.
    pub frame: FrameRef,
    /// When it arrived.
    pub arrival: Arrival,
    /// Payload sent in pieces (bytes).
    pub sent: u32,
    /// Its number in the order of taking from its ring, counted while frames wait: its place when it is
    /// [put back](Tx::untake).
    pub number: u64,
}

/// Result of taking one frame.
#[derive(Debug)]
pub enum Taken {
    /// A new frame, and its number of descriptors.
    New(Pending, usize),
    /// The frame that was [put back](Tx::put_back).
    PutBack(Pending),
    /// No frame, or one without room: dropped, and its number of descriptors.
    Dropped(DropReason, usize),
    /// No frame.
    Nothing,
    /// As many frames are in flight as allowed.
    Full,
    /// The link is invalid or gone; the reason.
    Broken(String),
}

/// Frames taken into own memory while earlier ones waited.
#[derive(Debug)]
pub struct Absorbed {
    /// Frames that wait now, or were dropped.
    pub frames: usize,
    /// Bytes of those that wait.
    pub bytes: usize,
    /// Frames that were dropped, by reason.
    pub dropped: [u64; DropReason::COUNT],
    /// The link is gone; the reason.
    pub broken: Option<String>,
}

impl Default for Absorbed {
    fn default() -> Self {
        Self { frames: 0, bytes: 0, dropped: [0; DropReason::COUNT], broken: None }
    }
}
