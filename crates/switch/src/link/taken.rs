//! Frames as a link was asked for them.

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
    /// Payload bytes already sent in pieces.
    pub sent: u32,
    /// Its number in the order in which frames were taken from its ring, counted while frames wait: where it is
    /// [put back](Tx::untake) to.
    pub number: u64,
}

/// What came of taking one frame.
#[derive(Debug)]
pub enum Taken {
    /// A frame that was not looked at yet, and how many descriptors it was in.
    New(Pending, usize),
    /// The frame that was [put back](Tx::put_back).
    Again(Pending),
    /// Not a frame, or one there is no room for: dropped, and how many descriptors it was in.
    Dropped(DropReason, usize),
    /// There is none.
    Nothing,
    /// As many are in flight as may be.
    Full,
    /// The link lies, or is gone: why.
    Broken(String),
}

/// What was taken into own memory while frames before it waited.
#[derive(Debug, Default)]
pub struct Absorbed {
    /// Frames that wait now, or were dropped.
    pub frames: usize,
    /// Bytes of those that wait.
    pub bytes: usize,
    /// How many there was no room for.
    pub full: u64,
    /// How many were no frames.
    pub malformed: u64,
    /// The link is gone: why.
    pub broken: Option<String>,
}
