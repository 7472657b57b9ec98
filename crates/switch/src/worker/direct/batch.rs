//! A worker's memory for the frames of one batch, and for the receiving queues that they go to.

use crate::fdb::PortIndex;
use crate::frame::VnetHdr;
use crate::link::Receiver;
use crate::link::vhost::copy::{COMPLETE, HEAD};
use crate::virtio::Single;
use crate::worker::lending::Lent;
use crate::worker::turns::BATCH;

/// The queue of a receiver that has one.
pub(super) const ONLY: u16 = u16::MAX;
/// In place of a number of one of a batch's [halves](Batch::halves): the receiver is this worker's, and has it.
pub(super) const HOME: u8 = u8::MAX;
/// Receiving queues that the frames of one batch may go to.
const GROUPS: usize = 8;

/// One frame of a batch, decided on.
#[derive(Clone, Copy)]
pub(super) struct Sent {
    /// Its receiving queue, and which of the batch's frames there it is.
    pub(super) group: u8,
    pub(super) rank: u8,
    pub(super) len: u32,
    /// Ts, ns.
    pub(super) started: u64,
    /// The virtio header to deliver.
    pub(super) vnet: [u8; VnetHdr::LEN],
}

/// What a batch has for one receiving queue.
#[derive(Clone, Copy)]
pub(super) struct Group {
    pub(super) egress: PortIndex,
    pub(super) queue: u16,
    /// Which of the batch's halves it is of, or [`HOME`].
    pub(super) half: u8,
    pub(super) receiver: Receiver,
    /// Td of what is sent there, ns.
    pub(super) deadline: Option<u64>,
    /// Bytes the egress may carry now.
    pub(super) tokens: i64,
    pub(super) frames: u8,
    pub(super) bytes: u64,
    pub(super) longest: u32,
    /// Where its buffers are among the batch's, and how many were there.
    pub(super) first: u8,
    pub(super) buffers: u8,
}

/// A worker's memory for batches.
pub(in crate::worker) struct Batch {
    pub(super) tx: [Single; BATCH],
    pub(super) rx: [Single; BATCH],
    pub(super) heads: [Head; BATCH],
    pub(super) frames: [Sent; BATCH],
    pub(super) groups: [Group; GROUPS],
    pub(super) group_count: usize,
    /// Receiving halves that were lent, and are this batch's until it is over.
    pub(super) halves: Vec<(PortIndex, Box<Lent>)>,
    /// The first frame that was not decided on waits for frames before it, which are at another worker.
    pub(super) waits: bool,
    /// As [`Port::lull`](crate::port::Port::lull), where that begins.
    pub(super) lull: (PortIndex, u64),
    /// All its frames started at the same time.
    pub(super) together: bool,
    /// When its first frame arrived.
    pub(super) arrival: u64,
}

#[derive(Clone, Copy)]
#[repr(align(64))]
pub(super) struct Head(pub(super) [u8; HEAD]);

impl Batch {
    /// Which of its halves a port's is.
    pub(super) fn half_of(&self, port: PortIndex) -> Option<u8> {
        self.halves.iter().position(|(of, _)| *of == port).map(|place| place as u8)
    }
}

impl Default for Batch {
    fn default() -> Self {
        let group = Group {
            egress: 0,
            queue: 0,
            half: HOME,
            receiver: Receiver::default(),
            deadline: None,
            tokens: 0,
            frames: 0,
            bytes: 0,
            longest: 0,
            first: 0,
            buffers: 0,
        };
        Self {
            tx: [Single::EMPTY; BATCH],
            rx: [Single::EMPTY; BATCH],
            heads: [Head([0; HEAD]); BATCH],
            frames: [Sent { group: 0, rank: 0, len: 0, started: 0, vnet: COMPLETE }; BATCH],
            groups: [group; GROUPS],
            group_count: 0,
            halves: Vec::with_capacity(GROUPS),
            waits: false,
            lull: (0, 0),
            together: true,
            arrival: 0,
        }
    }
}
