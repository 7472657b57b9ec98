//! Frames of a port that wait for its `tx.max`, each flow by itself.
//!
//! ```text
//!  rings, tap ─ looked ahead in ─▶ push ─▶ ▤▤▤▤ a flow      ┐
//!                                         ▤    a new flow  ├─▶ head ─▶ tokens ─▶ judge ─▶ part ─▶ sent
//!                                         ▤▤▤  another     ┘              Drop ◀─┘└─▶ Mark
//! ```
//!
//! Frames are not copied: each has a slot, and its payload stays in the guest's ring or the tap's pool. It
//! leaves in parts: a super-frame of 64 kB takes 26 ms at 20 Mbit/s, and frames of other flows must not
//! wait for that.

use super::PortContract;
use crate::frame::{FlowKey, HostEnd, parse};
use crate::link::Pending;
use crate::sched::flows::{FlowConfig, Flows, Verdict};
use crate::sched::{Backlog, Queued};
use crate::slots::Frame;
use tidegate_contract::{Queueing, SUPER_FRAME};

/// Parts per second of the rate: one is a millisecond.
const PARTS: u64 = 1000;
/// Frames in own memory are at most one part in this many of a second of the rate (10 ms), and
/// always two super-frames.
const ROOMS: u64 = 100;

/// Settings of a room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoomConfig {
    flows: FlowConfig,
    /// Most bytes on the wire that leave before another flow's turn, except for a longer segment.
    part: u64,
    /// Longest frame that leaves whole while nothing waits (bytes on the wire).
    whole: u64,
    /// Bytes that the rate carries within the target.
    target: u64,
    /// Most waiting bytes of a link whose frames wait in own memory.
    most: u64,
}

impl RoomConfig {
    /// Makes it from a contract with a limit and flows, without a deadline; `None` for other contracts,
    /// whose frames wait one behind the other.
    pub fn of(contract: &PortContract) -> Option<Self> {
        let (rate, burst) = contract.tx_limit.filter(|_| contract.deadline.is_none())?;
        let Queueing::Flows(flows) = contract.queueing else { return None };
        let bytes = rate.bits() / 8;
        Some(Self {
            flows: FlowConfig::new(&flows, contract.frame_max, rate),
            part: (bytes / PARTS).min(burst.get()),
            whole: burst.get(),
            target: (u128::from(bytes) * u128::from(flows.target.get()) / 1_000_000_000) as u64,
            // With less, a sender of super-frames runs dry between two of them.
            most: (bytes / ROOMS).max(2 * SUPER_FRAME),
        })
    }
}

/// Frames of one port that wait for its limit.
pub struct Room {
    flows: Flows<Pending>,
    config: RoomConfig,
    /// Since when it has frames (ns).
    since: u64,
    /// The contract has no flows any more: frames leave, none enter.
    closing: bool,
}

impl Room {
    /// Returns an empty room. Allocates.
    pub fn new(config: RoomConfig) -> Self {
        Self { flows: Flows::new(config.flows), config, since: 0, closing: false }
    }

    /// Returns the room of a port with new `config`: waiting frames continue at the new rate.
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

    /// Whether it is useless now.
    pub fn is_over(&self) -> bool {
        self.closing && self.is_empty()
    }

    /// Returns the waiting frames and bytes.
    pub fn backlog(&self) -> Backlog {
        self.flows.backlog()
    }

    /// Returns the number of flows with frames.
    pub fn active(&self) -> u32 {
        self.flows.active()
    }

    /// Whether more waits than own memory allows.
    pub fn is_over_full(&self) -> bool {
        self.flows.backlog().bytes > self.config.most
    }

    /// Whether a frame leaves in parts although nothing waits: as a whole it would leave a debt that delays
    /// another flow.
    #[inline]
    pub fn cuts(&self, frame: &Frame) -> bool {
        u64::from(frame.wire_bytes) > self.config.whole && frame.offload.gso_size().is_some()
    }

    /// Whether a frame without tokens may wait in a ring of so many entries, in front of all others: with
    /// equally long frames, the ring would be sent within the target. Thus many small frames at a
    /// high rate leave in one batch.
    pub fn is_brief(&self, frame: &Frame, entries: u16) -> bool {
        u64::from(frame.wire_bytes) * u64::from(entries) <= self.config.target
    }

    /// Returns since when it has frames (ns).
    pub fn since(&self) -> u64 {
        self.since
    }

    /// Adds a decided frame with `left` bytes on the wire, from `now` on. Its flow and mark are read from
    /// its [headers](Frame::headers), which must all be parsed, unlike those of a direct frame.
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

    /// Returns the frame whose turn it is, with its remaining bytes on the wire, and how many may leave at
    /// once. The same until a change.
    pub fn head(&mut self) -> Option<(Queued<Pending>, u32)> {
        let most = self.flows.part(self.config.part)?;
        self.flows.head().map(|head| (*head, most))
    }

    /// Judges the next part of the [head](Self::head), which has tokens at `now`; `ect`: whether its sender
    /// understands marks.
    pub fn judge(&mut self, now: u64, ect: impl FnOnce() -> bool) -> Verdict {
        self.flows.judge(now, ect)
    }

    /// Whether the [head](Self::head) came when its flow had no frames.
    pub fn is_sparse(&self) -> bool {
        self.flows.is_sparse()
    }

    /// Removes so many bytes of the [head](Self::head), which leave.
    pub fn take(&mut self, bytes: u32) {
        self.flows.take(bytes);
    }

    /// Lets other flows go before the [head](Self::head), which cannot leave now.
    pub fn yield_turn(&mut self) {
        self.flows.yield_turn();
    }

    /// Drops so many bytes of the [head](Self::head), as [judged](Self::judge).
    pub fn drop_head(&mut self, bytes: u32) {
        self.flows.drop_head(bytes);
    }

    /// Takes the oldest frame of the longest flow.
    pub fn drop_longest(&mut self) -> Option<Queued<Pending>> {
        self.flows.drop_longest()
    }

    /// Takes all out in their order of arrival.
    pub fn drain(&mut self, out: impl FnMut(Queued<Pending>)) {
        self.flows.drain(out);
    }
}
