//! In which order, and when, frames leave one egress.
//!
//! ```text
//!              set_source: deadline, min, weight, caps
//!                               │
//!              ┌────────────────▼───────────────────┐
//!  enqueue ───▶│ source 1 ▤▤▤   1 real-time: EDF    │
//!  (source,    │ source 2 ▤     2 minima: due first │──▶ head ──▶ take
//!   frame)     │ source 3 ▤▤▤▤  3 shares: by weight │    Ready, WaitUntil, Empty
//!      │       └──────────┬──────────────▲──────────┘
//!      ▼                  ▼              │
//!  Full: a cap      expire, clear    egress rate and burst
//!                                    (tiers 2 and 3 wait for it)
//! ```
//!
//! A source is one vNIC's traffic to this egress ([`SourceId`]). The frame itself is an opaque
//! handle; the scheduler knows its size on the wire, its deadline and since when
//! it waits. It does no I/O and has no clock: `now` is an argument, nanoseconds
//! of any monotonic clock. The same calls give the same order, always.
//!
//! 1. **Real-time** sources ([`SourceConfig::deadline`]): earliest deadline first.
//!    They are charged to the egress rate. At a [virtual](EgressKind::Virtual) egress they never wait for it.
//! 2. Sources that hold credit of their **minimum** ([`SourceConfig::min`]): of
//!    these the one due first.
//! 3. All sources that are not real-time, by **weight**.
//!
//! A frame goes in the highest tier that its source has a right to at that
//! moment, and is charged to that tier alone. The tiers choose the source; which of its frames goes is the oldest one or,
//! where its [flows] are queued, that of the flow whose turn it is. A [physical](EgressKind::Physical) egress takes a long frame in parts, and
//! each part is a turn of its own.
//!
//! - [`source`]: who sends: ports of this host, vNICs of others
//! - [`token_bucket`]: rate and burst, exact
//! - `heap`, `arena`: sources in order; frames in memory
//! - `edf`, `minima`, `shares`: the three tiers, each with its reasoning
//! - `fifo`: the discipline without tiers, to compare with
//! - [`flows`]: flow queues, for frames that wait for a rate
//! - `flow_queued`: sources whose flows are queued
//! - `caps`: how much may wait
//! - [`hold`]: how long a frame may be held
//! - `physical`: what a wire can promise
//! - `run`: frames of one source, taken together
//! - [`scheduler`]: what puts them together; `take`: what leaves

mod arena;
mod caps;
mod edf;
mod fifo;
mod flow_queued;
pub mod flows;
mod heap;
pub mod hold;
mod minima;
mod physical;
mod queued;
mod run;
pub mod scheduler;
mod shares;
pub mod source;
mod take;
pub mod token_bucket;

#[cfg(test)]
mod agreement;
#[cfg(test)]
mod model;
#[cfg(test)]
mod promises;
#[cfg(test)]
mod scenarios;
#[cfg(test)]
mod sim;

pub use flows::{FlowConfig, Flows, Keyed, Verdict};
pub use hold::hold_limit;
pub use queued::{Backlog, Queued};
pub use scheduler::Scheduler;
pub use source::{RemoteVnic, SourceId};
pub use token_bucket::TokenBucket;

use tidegate_contract::{Bytes, Discipline, Rate, SUPER_FRAME};

/// Into what the frames of an egress leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EgressKind {
    /// Into memory, as another VM's: a frame takes no time on a wire. Real-time frames never wait for the rate,
    /// and frames are taken whole.
    Virtual,
    /// Onto a wire of the rate of the egress. Real-time frames, too, wait for the rate, and a frame is taken in
    /// parts, between which a more urgent one has its turn.
    Physical {
        /// Most bytes taken at once; 0 counts as 1. At least the largest frame that is not cut, so that only super-frames
        /// are taken in parts.
        quantum: u32,
    },
}

impl EgressKind {
    /// How many bytes of a frame of `bytes` may be taken at once.
    #[inline]
    fn part(self, bytes: u32) -> u32 {
        match self {
            Self::Virtual => bytes,
            Self::Physical { quantum } => bytes.min(quantum.max(1)),
        }
    }
}

/// What an egress may carry, and in which order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EgressConfig {
    /// Rate limit; `None`: as fast as frames are taken.
    pub rate: Option<Rate>,
    /// Burst of `rate`.
    pub burst: Bytes,
    /// Into what frames leave.
    pub kind: EgressKind,
    /// The three tiers, or plain FIFO.
    pub discipline: Discipline,
    /// Most bytes that may wait.
    ///
    /// With [`Discipline::Fifo`] of all frames: the tail-drop limit. With
    /// [`Discipline::Contract`] of the sources without a promise, that is
    /// without deadline and without `min`; where several wait, none holds more than is
    /// left, so that there is room for who has least. Those with a promise are bounded by their own
    /// caps, so that no one else's flood costs them a frame.
    pub queue: u64,
    /// How the flows of each source that is not real-time are queued, where it is not in one queue. Only with
    /// [`Discipline::Contract`] and at a [virtual](EgressKind::Virtual) egress with a rate.
    pub flows: Option<FlowConfig>,
}

impl EgressConfig {
    /// How the flows of a source are queued here, if they are.
    fn flows_of(&self, source: &SourceConfig) -> Option<FlowConfig> {
        let may = self.discipline == Discipline::Contract
            && self.kind == EgressKind::Virtual
            && self.rate.is_some();
        self.flows.filter(|_| may && source.deadline.is_none())
    }

    /// Most bytes of a frame that may be taken at once of a source whose flows are queued.
    #[inline]
    fn flow_part(&self) -> u64 {
        self.rate.map_or(u64::MAX, flows::part)
    }

    /// Most bytes that the link of the egress may hold, or one frame that is longer: a frame with a deadline finds them
    /// before it, and no scheduler takes them back. What a loop delivers, or, on a wire, the burst that
    /// [admission reckons with](physical).
    pub fn most_outstanding(&self) -> u64 {
        match self.kind {
            EgressKind::Virtual => SUPER_FRAME,
            EgressKind::Physical { .. } => self.burst.get(),
        }
    }
}

/// What one source was promised at this egress, and how much of it may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceConfig {
    /// Relative deadline in nanoseconds: makes the source real-time.
    pub deadline: Option<u64>,
    /// Guaranteed rate; without effect on a real-time source.
    pub min: Option<Rate>,
    /// Credit, in bytes, that an idle source keeps of its `min`.
    pub min_burst: u64,
    /// Share of what is left over; 0 counts as 1.
    pub weight: u32,
    /// Most bytes of this source that may wait.
    pub cap_bytes: u64,
    /// Most frames of this source that may wait.
    pub cap_frames: u32,
}

impl SourceConfig {
    /// Whether anything is promised beyond a share of the rest.
    #[inline]
    pub(crate) fn promised(&self) -> bool {
        self.deadline.is_some() || self.min.is_some()
    }
}

/// Why a frame was given its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tier {
    /// Its deadline was the earliest.
    RealTime,
    /// Its source held credit of its `min`.
    Minimum,
    /// Its source's share of what is left over.
    Share,
    /// It arrived first ([`Discipline::Fifo`]).
    Fifo,
}

/// What an egress has to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Head<F> {
    /// This frame, now.
    Ready {
        /// Whose it is.
        source: SourceId,
        /// Why it is its turn.
        tier: Tier,
        /// The frame.
        queued: Queued<F>,
        /// How many of its bytes may be taken now: all, at a [virtual](EgressKind::Virtual) egress, of a source whose flows
        /// are not queued.
        part: u32,
    },
    /// Nothing before this time, ns, unless something is enqueued. Ask again then.
    WaitUntil(u64),
    /// Nothing waits.
    Empty,
}

/// A frame was not accepted: the cap that it would have exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Full {
    /// [`SourceConfig::cap_bytes`].
    #[error("the source has as many bytes waiting as it may")]
    SourceBytes,
    /// [`SourceConfig::cap_frames`].
    #[error("the source has as many frames waiting as it may")]
    SourceFrames,
    /// [`EgressConfig::queue`].
    #[error("the egress has as many bytes waiting as it may")]
    EgressBytes,
    /// The source was never set, or was removed.
    #[error("the egress has no such source")]
    NoSource,
}
