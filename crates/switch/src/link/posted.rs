//! The result of posting a frame to a link.

use crate::virtio::RingError;
use tidegate_evidence::DropReason;

/// Longest time that a link may hold a frame (ns) before all its frames are cancelled, if the link names no other: as long
/// as a receiver without buffers delays one. A low egress rate does not extend it: the link may send all it has.
pub const LONGEST: u64 = 10_000_000;

/// The result of posting one frame.
#[derive(Debug, PartialEq, Eq)]
pub enum Posted {
    /// It is in the receiver's buffers, or sent. A link that holds frames in front of its receiver answers this only for a
    /// frame with a deadline that [passes](Rx::lets_realtime_pass) them: otherwise a later frame would overtake.
    Done,
    /// This many bytes of its payload, whole segments of the part to deliver, are in the receiver's
    /// buffers, which were too few for the next.
    Part(u32),
    /// The link holds it, and [may read](Rx::lends_memory) the sender's memory until the frame is
    /// [completed](Rx::completed) or [cancelled](Rx::cancel).
    Later,
    /// As [`Part`](Self::Part), and the link holds this part.
    LaterPart(u32),
    /// The receiver has too few buffers even for a single segment of a super-frame; nothing was written.
    NoBuffers,
    /// It can never be delivered.
    Dropped(DropReason),
    /// The receiver's ring is invalid.
    Broken(RingError),
}

/// The end of the oldest frame or part that a link held. It is not named: no held frame can overtake another.
#[derive(Debug, PartialEq, Eq)]
pub enum Completed {
    /// The receiver has it.
    Done,
    /// It was not delivered.
    Dropped(DropReason),
    /// The link is gone with all its frames; the reason.
    Broken(String),
}
