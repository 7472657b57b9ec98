//! Where frames of a port wait for its `tx.max`, each flow for itself.
//!
//! ```text
//!  rings, tap ─ looked ahead in ─▶ push ─▶ ▤▤▤▤ a flow      ┐
//!                                         ▤    a new flow  ├─▶ head ─▶ tokens ─▶ judge ─▶ part ─▶ sent
//!                                         ▤▤▤  another     ┘              Drop ◀─┘└─▶ Mark
//! ```
//!
//! Nothing of a frame is buffered: it is a slot, whose payload stays in the guest's ring or in the tap's pool. It leaves in
//! parts: a super-frame of 64 kB takes 26 ms at 20 Mbit/s, and a frame of another flow is not to wait for that.

use super::PortContract;
use crate::frame::{FlowKey, HostEnd, parse};
use crate::link::Pending;
use crate::sched::flows::{FlowConfig, Flows, Verdict};
use crate::sched::{Backlog, Queued};
use crate::slots::Frame;
use tidegate_contract::{Queueing, SUPER_FRAME};

/// How many parts a second of the rate has: one is a millisecond of it.
const PARTS: u64 = 1000;
/// How many times what waits in own memory fits into a second of the rate: it is 10 ms of it at most.
const ROOMS: u64 = 100;

/// What a room is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoomConfig {
    flows: FlowConfig,
    /// Most bytes on the wire that leave before another flow has its turn, but for a segment that is longer.
    part: u64,
    /// Longest frame on the wire that leaves whole while nothing waits, bytes.
    whole: u64,
    /// Bytes that the rate carries within the target.
    target: u64,
    /// Most bytes that wait of a link whose frames wait in own memory.
    most: u64,
}

impl RoomConfig {
    /// Of a contract with a limit, without a deadline, and with flows; `None` for any other: its frames wait one behind the
    /// other.
    pub fn of(contract: &PortContract) -> Option<Self> {
        let (rate, burst) = contract.tx_limit.filter(|_| contract.deadline.is_none())?;
        let Queueing::Flows(flows) = contract.queueing else { return None };
        let bytes = rate.bits() / 8;
        Some(Self {
            flows: FlowConfig::new(&flows, contract.frame_max, rate),
            part: (bytes / PARTS).min(burst.get()),
            whole: burst.get(),
            target: (u128::from(bytes) * u128::from(flows.target.get()) / 1_000_000_000) as u64,
            // Less, and a sender of super-frames runs dry between two of them.
            most: (bytes / ROOMS).max(2 * SUPER_FRAME),
        })
    }
}

/// Frames of one port that wait for its limit.
pub struct Room {
    flows: Flows<Pending>,
    config: RoomConfig,
    /// Since when it is not empty, ns.
    since: u64,
    /// The contract has no flows any more: what waits leaves, and nothing comes.
    closing: bool,
}

impl Room {
    /// An empty one. Allocates.
    pub fn new(config: RoomConfig) -> Self {
        Self { flows: Flows::new(config.flows), config, since: 0, closing: false }
    }

    /// What becomes of the room of a port that has `config` from now on: what waits goes on waiting, at the new rate.
    pub fn changed(room: Option<Box<Self>>, config: Option<RoomConfig>) -> Option<Box<Self>> {
        let Some(mut room) = room else { return config.map(|config| Box::new(Self::new(config))) };
        room.closing = config.is_none();
        if let Some(config) = config {
            room.flows.set_config(config.flows);
            room.config = config;
        }
        (!room.is_over()).then_some(room)
    }

    /// Whether nothing waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.flows.backlog().frames == 0
    }

    /// Whether it takes no more frames.
    pub fn is_closing(&self) -> bool {
        self.closing
    }

    /// Whether it is of no use any more.
    pub fn is_over(&self) -> bool {
        self.closing && self.is_empty()
    }

    /// How much waits.
    pub fn backlog(&self) -> Backlog {
        self.flows.backlog()
    }

    /// Of how many flows frames wait.
    pub fn active(&self) -> u32 {
        self.flows.active()
    }

    /// Whether more waits than may in own memory.
    pub fn is_over_full(&self) -> bool {
        self.flows.backlog().bytes > self.config.most
    }

    /// Whether a frame is to leave in parts although nothing waits: as a whole it would leave a debt, for which a frame of
    /// another flow had to wait.
    #[inline]
    pub fn cuts(&self, frame: &Frame) -> bool {
        u64::from(frame.wire_bytes) > self.config.whole && frame.offload.gso_size().is_some()
    }

    /// Whether a frame that finds no tokens may wait in a ring of so many entries, before all behind it: were all of them
    /// as long, the ring would be sent within the target. Many small frames at a high rate so go by the batch.
    pub fn is_brief(&self, frame: &Frame, entries: u16) -> bool {
        u64::from(frame.wire_bytes) * u64::from(entries) <= self.config.target
    }

    /// Since when it is not empty, ns.
    pub fn since(&self) -> u64 {
        self.since
    }

    /// A frame that was decided on waits from `now` on, of which `left` bytes on the wire are left. Its flow, and whether it may
    /// be marked and where, is read from its [headers](Frame::headers): all of them are parsed, not its addresses alone as
    /// those of a frame that was sent directly.
    pub fn push(&mut self, pending: Pending, left: u32, now: u64) {
        let arrived = pending.arrival.earliest.min(now);
        if self.is_empty() {
            self.since = arrived;
        }
        let frame = pending.frame.get();
        debug_assert_eq!(parse(frame.head(), frame.len as usize), Ok(frame.headers), "they are its own");
        let key = FlowKey::parsed(frame.head(), &frame.headers, HostEnd::Source);
        let queued = Queued { frame: pending, bytes: left, deadline: super::NEVER, enqueued: arrived };
        self.flows.push(key, queued);
    }

    /// The frame whose turn it is, with the bytes on the wire that are left of it, and how many of these may leave at once. The
    /// same until something changes.
    pub fn head(&mut self) -> Option<(Queued<Pending>, u32)> {
        let most = self.flows.part(self.config.part)?;
        self.flows.head().map(|head| (*head, most))
    }

    /// What is to become of the next part of the [head](Self::head), which has tokens at `now`; `ect`: whether its sender
    /// understands marks.
    pub fn judge(&mut self, now: u64, ect: impl FnOnce() -> bool) -> Verdict {
        self.flows.judge(now, ect)
    }

    /// Whether the [head](Self::head) found no frame of its flow before it when it came.
    pub fn is_sparse(&self) -> bool {
        self.flows.is_sparse()
    }

    /// So many bytes of the [head](Self::head) leave.
    pub fn take(&mut self, bytes: u32) {
        self.flows.take(bytes);
    }

    /// The [head](Self::head) cannot leave now: frames of other flows go first.
    pub fn yield_turn(&mut self) {
        self.flows.yield_turn();
    }

    /// So many bytes of the [head](Self::head) are dropped, as [judged](Self::judge).
    pub fn drop_head(&mut self, bytes: u32) {
        self.flows.drop_head(bytes);
    }

    /// Takes the oldest frame of the flow of which most waits.
    pub fn drop_longest(&mut self) -> Option<Queued<Pending>> {
        self.flows.drop_longest()
    }

    /// Takes all out, in the order in which they came.
    pub fn drain(&mut self, out: impl FnMut(Queued<Pending>)) {
        self.flows.drain(out);
    }
}
