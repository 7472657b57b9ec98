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
//! A source is one vNIC's traffic to this egress ([`SourceId`]). The frame is an opaque handle; the
//! scheduler knows its size on the wire, its deadline and since when it waits. It does no I/O and has no
//! clock: `now` is an argument, nanoseconds of any monotonic clock. The same calls always give the same
//! order.
//!
//! 1. **Real-time** sources ([`SourceConfig::deadline`]): earliest deadline first.
//!    They are charged to the egress rate. At a [virtual](EgressKind::Virtual) egress they never wait for it.
//! 2. Sources that hold credit of their **minimum** ([`SourceConfig::min`]): of
//!    these the one due first.
//! 3. All sources that are not real-time, by **weight**.
//!
//! A frame goes in the highest tier to which its source is entitled at that moment, and is charged to that
//! tier alone. The tiers choose the source; its oldest frame goes or, with [flow queues](flows), that of
//! the flow whose turn it is. A [physical](EgressKind::Physical) egress takes a long frame in parts, and
//! each part is a turn of its own.
//!
//! - [`source`]: senders: ports of this host, vNICs of other hosts
//! - `queued`: waiting frames, and their number
//! - [`token_bucket`]: rate and burst, exact
//! - `heap`, `arena`: sources in order; frames in memory
//! - `edf`, `minima`, `shares`: the three tiers, each with its reasoning
//! - `fifo`: the discipline without tiers, for comparison
//! - [`flows`]: flow queues, for frames that wait for a rate
//! - `flow_queued`: sources with flow queues
//! - `caps`: limits on waiting frames
//! - [`hold`]: how long a frame may be held
//! - `physical`: what a wire can promise
//! - `run`: frames of one source, taken together
//! - [`scheduler`]: combines them; `take`: departures

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

/// The medium behind an egress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EgressKind {
    /// Memory, such as another VM's: a frame takes no time on a wire. Real-time frames never wait for the
    /// rate, and frames are taken whole.
    Virtual,
    /// A wire of the egress's rate. Real-time frames, too, wait for the rate, and a frame is taken in
    /// parts, between which a more urgent one has its turn.
    Physical {
        /// Most bytes taken at once; 0 counts as 1. At least the largest uncut frame, so that only
        /// super-frames are taken in parts.
        quantum: u32,
        /// The same for sources without deadline and without `min`, if it is more.
        train: u32,
    },
}

impl EgressKind {
    /// Returns how many bytes of a frame of `bytes` may be taken at once from a source.
    #[inline]
    fn part(self, bytes: u32, source: &SourceConfig) -> u32 {
        match self {
            Self::Virtual => bytes,
            Self::Physical { quantum, .. } if source.promised() => bytes.min(quantum.max(1)),
            Self::Physical { quantum, train } => bytes.min(quantum.max(train).max(1)),
        }
    }
}

/// An egress's limit and order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EgressConfig {
    /// Rate limit; `None`: frames leave as fast as they are taken.
    pub rate: Option<Rate>,
    /// Burst of `rate`.
    pub burst: Bytes,
    /// The medium.
    pub kind: EgressKind,
    /// The three tiers, or plain FIFO.
    pub discipline: Discipline,
    /// Most waiting bytes.
    ///
    /// With [`Discipline::Fifo`] of all frames: the tail-drop limit. With [`Discipline::Contract`] of the
    /// sources without a promise, that is without deadline and without `min`; among several, none holds
    /// more than what remains, so that the smallest finds room. Sources with a promise have caps of their
    /// own, so that another's flood costs them no frame.
    pub queue: u64,
    /// Flow queues of each source that is not real-time. Only with [`Discipline::Contract`] and at a
    /// [virtual](EgressKind::Virtual) egress with a rate.
    pub flows: Option<FlowConfig>,
}

impl EgressConfig {
    /// Returns a source's flow settings here, if it has flow queues.
    fn flows_of(&self, source: &SourceConfig) -> Option<FlowConfig> {
        let may = self.discipline == Discipline::Contract
            && self.kind == EgressKind::Virtual
            && self.rate.is_some();
        self.flows.filter(|_| may && source.deadline.is_none())
    }

    /// Returns the most bytes of a frame taken at once from a source with flow queues.
    #[inline]
    fn flow_part(&self) -> u64 {
        self.rate.map_or(u64::MAX, flows::part)
    }

    /// Returns the most bytes that the egress's link may hold, or one longer frame: a frame with a deadline
    /// finds them before it, and no scheduler takes them back. The work of a loop, or, on a wire, the burst
    /// in [admission](physical).
    pub fn most_outstanding(&self) -> u64 {
        match self.kind {
            EgressKind::Virtual => SUPER_FRAME,
            EgressKind::Physical { .. } => self.burst.get(),
        }
    }
}

/// A source's promise at this egress, and its caps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceConfig {
    /// Relative deadline (ns): makes the source real-time.
    pub deadline: Option<u64>,
    /// Guaranteed rate; without effect for a real-time source.
    pub min: Option<Rate>,
    /// Credit of an idle source for its `min` (bytes).
    pub min_burst: u64,
    /// Weight; 0 counts as 1.
    pub weight: u32,
    /// Most waiting bytes of this source.
    pub cap_bytes: u64,
    /// Most waiting frames of this source.
    pub cap_frames: u32,
}

impl SourceConfig {
    /// Whether it has a promise beyond a share of the rest.
    #[inline]
    pub(crate) fn promised(&self) -> bool {
        self.deadline.is_some() || self.min.is_some()
    }
}

/// Why it is a frame's turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tier {
    /// Its deadline was the earliest.
    RealTime,
    /// Its source held credit of its `min`.
    Minimum,
    /// Its source's share of the rest.
    Share,
    /// It arrived first ([`Discipline::Fifo`]).
    Fifo,
}

/// The next frame of an egress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Head<F> {
    /// This frame, now.
    Ready {
        /// Its source.
        source: SourceId,
        /// Its tier.
        tier: Tier,
        /// The frame.
        queued: Queued<F>,
        /// How many of its bytes may be taken now: all at a [virtual](EgressKind::Virtual) egress without
        /// flow queues.
        part: u32,
    },
    /// No frame before this time (ns), unless one is enqueued. Ask then.
    WaitUntil(u64),
    /// Nothing waits.
    Empty,
}

/// The cap that a refused frame would have exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Full {
    /// [`SourceConfig::cap_bytes`].
    #[error("the source has reached its limit of waiting bytes")]
    SourceBytes,
    /// [`SourceConfig::cap_frames`].
    #[error("the source has reached its limit of waiting frames")]
    SourceFrames,
    /// [`EgressConfig::queue`].
    #[error("the egress has reached its limit of waiting bytes")]
    EgressBytes,
    /// The source is unknown, or was removed.
    #[error("the egress has no such source")]
    NoSource,
}
