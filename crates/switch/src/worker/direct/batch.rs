//! A worker's memory for the frames of one batch, and for the receiving queues that they go to.

use crate::fdb::PortIndex;
use crate::frame::{Headers, Offload, VnetHdr};
use crate::link::Receiver;
use crate::link::vhost::copy::{COMPLETE, HEAD};
use crate::port::Lent;
use crate::slots::Arrival;
use crate::slots::FrameRef;
use crate::virtio::Single;
use crate::worker::decide::Decision;
use crate::worker::turns::BATCH;

/// The queue of a receiver with a single one.
pub(super) const ONLY: u16 = u16::MAX;
/// Instead of a number of the batch's [halves](Batch::halves): this worker's own receiver.
pub(super) const HOME: u8 = u8::MAX;
/// Most receiving queues of one batch.
const GROUPS: usize = 8;

/// A frame of a batch, decided on.
#[derive(Clone, Copy)]
pub(super) struct BatchFrame {
    pub(super) egress: PortIndex,
    /// For a direct frame: its receiving queue, and its place among the batch's frames there.
    pub(super) group: u8,
    pub(super) rank: u8,
    /// Not plain: for a queued frame, its [decision](Batch::decisions) is kept.
    pub(super) has_decision: bool,
    pub(super) len: u32,
    /// Ts of a direct frame (ns).
    pub(super) started: u64,
    /// The virtio header of a direct frame.
    pub(super) vnet: [u8; VnetHdr::LEN],
}

/// The decision on a frame that is not plain, and its request.
#[derive(Clone, Copy)]
pub(super) struct StoredDecision {
    pub(super) decision: Decision,
    pub(super) vnet: VnetHdr,
}

/// A batch's state for one receiving queue.
#[derive(Clone, Copy)]
pub(super) struct Group {
    pub(super) egress: PortIndex,
    pub(super) queue: u16,
    /// A VLAN whose frames the receiver takes; 0 if no frame was tagged.
    pub(super) vid: u16,
    /// The number of the batch's half, or [`HOME`].
    pub(super) half: u8,
    pub(super) receiver: Receiver,
    /// Td of frames to it (ns).
    pub(super) deadline: Option<u64>,
    /// Bytes that the egress may carry now.
    pub(super) tokens: i64,
    pub(super) frames: u8,
    pub(super) bytes: u64,
    pub(super) longest: u32,
    /// Its first buffer among the batch's, and their number.
    pub(super) first: u8,
    pub(super) buffers: u8,
}

/// A worker's memory for batches.
pub(in crate::worker) struct Batch {
    pub(super) tx: [Single; BATCH],
    pub(super) rx: [Single; BATCH],
    pub(super) heads: [Head; BATCH],
    pub(super) frames: [BatchFrame; BATCH],
    pub(super) decisions: [StoredDecision; BATCH],
    /// How many of the first frames may go directly.
    pub(super) direct: usize,
    /// Frames that are queued together.
    pub(super) queued: Vec<FrameRef>,
    pub(super) groups: [Group; GROUPS],
    pub(super) group_count: usize,
    /// Lent receiving halves that the batch has until its end.
    pub(super) halves: Vec<(PortIndex, Box<Lent>)>,
    /// The first remaining frame is for a port of another worker, or for a lent one.
    pub(super) crosses: bool,
    /// The first undecided frame waits for earlier ones, which are at another worker.
    pub(super) waits: bool,
    /// All frames started at the same time.
    pub(super) together: bool,
    pub(super) arrivals: BatchArrival,
}

/// Arrival of a batch's frames.
pub(super) struct BatchArrival {
    /// The first frame's. The others count as no later, at the earliest.
    pub(super) first: Arrival,
    /// One poll was the first to show all of them.
    pub(super) together: bool,
    /// When each was first seen (ns), if not by one poll.
    pub(super) latest: [u64; BATCH],
}

impl BatchArrival {
    /// Returns when frame number `frame` arrived.
    #[inline]
    pub(super) fn of(&self, frame: usize) -> Arrival {
        let latest = if self.together { self.first.latest } else { self.latest[frame] };
        Arrival { latest, ..self.first }
    }
}

#[derive(Clone, Copy)]
#[repr(align(64))]
pub(super) struct Head(pub(super) [u8; HEAD]);

impl Batch {
    /// Returns the bytes of the first `count` frames, all direct.
    pub(super) fn bytes(&self, count: usize) -> u64 {
        let groups = &self.groups[..self.group_count];
        if groups.iter().map(|group| usize::from(group.frames)).sum::<usize>() == count {
            return groups.iter().map(|group| group.bytes).sum();
        }
        self.frames[..count].iter().map(|frame| u64::from(frame.len)).sum()
    }

    /// Returns the end of the queued frames among `decided` ones, from `first` on, which does not go
    /// directly. A frame that lacks only room or tokens is looked at alone if it is for a lent half, or has
    /// no kept decision.
    pub(super) fn queued_end(&mut self, first: usize, decided: usize) -> usize {
        for (i, frame) in (first..).zip(&self.frames[first..self.direct.max(first)]) {
            let is_lent = self.groups[usize::from(frame.group)].half != HOME;
            if is_lent || frame.has_decision {
                self.crosses = is_lent;
                return i;
            }
        }
        decided
    }

    /// Returns the number of a port's half.
    pub(super) fn half_of(&self, port: PortIndex) -> Option<u8> {
        self.halves.iter().position(|(of, _)| *of == port).map(|place| place as u8)
    }
}

impl Default for Batch {
    fn default() -> Self {
        let group = Group {
            egress: 0,
            queue: 0,
            vid: 0,
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
        let sent = BatchFrame {
            egress: 0,
            group: 0,
            rank: 0,
            has_decision: false,
            len: 0,
            started: 0,
            vnet: COMPLETE,
        };
        let decision =
            Decision { headers: Headers::NONE, offload: Offload::None, wire_frames: 0, wire_bytes: 0 };
        let seen = StoredDecision { decision, vnet: VnetHdr::default() };
        Self {
            tx: [Single::EMPTY; BATCH],
            rx: [Single::EMPTY; BATCH],
            heads: [Head([0; HEAD]); BATCH],
            frames: [sent; BATCH],
            decisions: [seen; BATCH],
            direct: 0,
            queued: Vec::with_capacity(BATCH),
            groups: [group; GROUPS],
            group_count: 0,
            halves: Vec::with_capacity(GROUPS),
            crosses: false,
            waits: false,
            together: true,
            arrivals: BatchArrival { first: Arrival::default(), together: true, latest: [0; BATCH] },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Four frames are decided on: of three that could go directly, two have no room.
    fn queued_end(of_second: BatchFrame, half_of_second: u8) -> usize {
        let mut batch = Batch { direct: 3, group_count: 2, ..Batch::default() };
        (batch.frames[1], batch.groups[1].half) = (of_second, half_of_second);
        batch.queued_end(1, 4)
    }

    #[test]
    fn a_plain_frame_for_a_port_that_lends_nothing_is_queued() {
        let plain = BatchFrame { group: 1, ..Batch::default().frames[0] };
        assert_eq!(queued_end(plain, HOME), 4);
        assert_eq!(queued_end(plain, 0), 1, "for a lent half");
        assert_eq!(
            queued_end(BatchFrame { has_decision: true, ..plain }, HOME),
            1,
            "what was decided is not kept"
        );
    }
}
