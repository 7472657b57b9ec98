//! What a link did with a frame that was posted.

use crate::virtio::RingError;
use tidegate_evidence::DropReason;

/// What came of posting one frame.
#[derive(Debug, PartialEq, Eq)]
pub enum Posted {
    /// It is in the receiver's buffers. A link that holds a frame does not answer this, unless this one has a deadline and
    /// [passes](Rx::lets_pass): the later frame would overtake.
    Done,
    /// So many bytes of its payload, whole segments of those that were to be delivered, are in the receiver's buffers. There were
    /// too few for the next one.
    Part(u32),
    /// The link holds it, and [may read](Rx::lends_memory) the sender's memory until the frame is
    /// [completed](Rx::completed) or [cancelled](Rx::cancel).
    Later,
    /// The receiver gave too few buffers, for a single segment of a super-frame even; nothing was written.
    NoBuffers,
    /// It can never be delivered.
    Dropped(DropReason),
    /// The receiver's ring lies.
    Broken(RingError),
}

/// What became of the oldest frame that a link held. It does not say which: no frame can overtake another.
#[derive(Debug, PartialEq, Eq)]
pub enum Completed {
    /// It is with the receiver.
    Done,
    /// It was not delivered.
    Dropped(DropReason),
    /// The link is gone, with all that it held: why.
    Broken(String),
}
