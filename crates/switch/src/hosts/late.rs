//! Frames of other hosts that missed their deadlines, on their way from workers to the thread that tells the senders'
//! hosts.
//!
//! ```text
//!  worker ─ push ─▶ │ bounded │ ─ pop ─▶ thread of notices ─▶ the sender's host
//!                      full: not told; the pair's counters have it
//! ```

use crate::fdb::{PeerIndex, SegmentIndex};
use rtrb::{Consumer, Producer, RingBuffer};
use tidegate_contract::Mac;
use tidegate_evidence::MissCause;

/// Records that wait.
const WAITING: usize = 1024;

/// One frame that arrived with a stamp, and was late or was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Late {
    /// The host that sent it.
    pub peer: PeerIndex,
    /// Its segment.
    pub segment: SegmentIndex,
    /// Its source address: the sending vNIC's.
    pub src: Mac,
    /// Its destination address.
    pub dst: Mac,
    /// Number in its stamp.
    pub sequence: u32,
    /// Td (us).
    pub deadline_us: u32,
    /// Tr - Ts - Td (ns); 0 for a frame that was dropped in time.
    pub late_ns: u64,
    /// The error of the clocks' offset (ns): the frame was perhaps in time if `late_ns` is not larger.
    pub error_ns: u64,
    /// Time in the sending host (ns).
    pub hold_ns: u32,
    /// Time in the network (ns), within the clocks' error.
    pub network_ns: u64,
    /// Time in this host (ns).
    pub here_ns: u64,
    /// Why, as this host sees it.
    pub cause: Where,
    /// It was dropped here.
    pub dropped: bool,
}

/// The part of a frame's way that took longest beyond its share of the deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Where {
    /// The sending host, which knows the cause.
    Sender,
    /// The network between the hosts.
    Network,
    /// The receiving host: its cause.
    Receiver(MissCause),
}

/// Both ends of a queue of [`Late`] records. A full queue loses the newest.
pub fn queue() -> (Producer<Late>, Consumer<Late>) {
    RingBuffer::new(WAITING)
}
