//! The clock exchange with one peer: when it is asked, and what its answers say.
//!
//! ```text
//!  is_due(now) ─▶ request, t1 ── asked ──▶ peer ── t1, t2, t3 ──▶ answered at t4 ─▶ Offset ─▶ Estimate, published
//!      ▲ 16 times 10 ms apart, then 250 ms                             │
//!      └───────────────────────────────────────────────────────────────┘
//! ```
//!
//! A peer that is silent for 20 intervals keeps its estimate, whose error grows, until it has grown by [`GROWTH_MAX`].
//! Many peers are asked less often, so that the work is bounded.

use std::collections::VecDeque;
use tidegate_evidence::RoundTrip;
use tidegate_uplink::clock::{Estimate, Exchange as Times, ExchangeError, Offset, Outlook, WINDOW};

/// Time between requests (ns).
const INTERVAL: u64 = 250_000_000;
/// Time between the first requests (ns).
const FIRST_INTERVAL: u64 = 10_000_000;
/// How many answers are fetched fast.
const FIRST: u32 = 16;
/// Requests without an answer from which on the peer is asked at the slow pace.
const PATIENCE: u32 = 32;
/// Requests without an answer after which another key is tried.
const TRIES: u32 = 8;
/// A request without an answer for so long (ns) is counted as missing.
const ANSWER_WITHIN: u64 = 2_000_000_000;
/// Most requests that wait for an answer.
const OUTSTANDING: usize = 256;
/// Intervals without an answer after which a peer is silent.
const SILENT_AFTER: u64 = 20;
/// Growth of the error (ns) from which on the estimate of a silent peer is withdrawn.
const GROWTH_MAX: u64 = 1_000_000;

/// A request that waits for its answer.
#[derive(Clone, Copy, Debug)]
struct Asked {
    number: u32,
    t1: u64,
}

/// The exchange with one peer.
#[derive(Debug, Default)]
pub(super) struct Exchange {
    offset: Offset,
    /// The last round trips (ns), the oldest first.
    round_trips: VecDeque<u64>,
    outstanding: VecDeque<Asked>,
    /// When the next request leaves (ns).
    next: u64,
    /// Answers since the start, or since the peer's restart.
    answers: u32,
    /// Requests without an answer since the last one.
    unanswered: u32,
    /// How often so many requests had no answer that another key is to be tried.
    turns: usize,
    /// When the last answer came (ns).
    answered_at: Option<u64>,
    /// What is published.
    published: Option<Outlook>,
    pub(super) exchanges: u64,
    pub(super) missing: u64,
    pub(super) contradictions: u64,
    pub(super) withdrawn: u64,
}

impl Exchange {
    /// Returns when the next request leaves (ns).
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// Notes a request that leaves at `t1`. `jitter`, 0 to 255, spreads the next one over a quarter of the interval.
    /// `peers`: how many are asked.
    pub(super) fn asked(&mut self, number: u32, t1: u64, jitter: u8, peers: usize) {
        while self.outstanding.len() >= OUTSTANDING
            || self.outstanding.front().is_some_and(|asked| t1.saturating_sub(asked.t1) > ANSWER_WITHIN)
        {
            self.outstanding.pop_front();
            self.missing += 1;
        }
        self.outstanding.push_back(Asked { number, t1 });
        self.unanswered = self.unanswered.saturating_add(1);
        if self.unanswered.is_multiple_of(TRIES) {
            self.turns = self.turns.wrapping_add(1);
        }
        let is_fast = self.answers < FIRST && self.unanswered < PATIENCE;
        let interval = if is_fast { FIRST_INTERVAL.max(pause(peers) / 8) } else { pause(peers) };
        self.next = t1 + interval - interval / 4 * u64::from(jitter) / 256;
    }

    /// Returns which of `keys` segments is asked with: the next one after some requests without an answer, since the
    /// peer may lack a key.
    pub(super) fn key(&self, keys: usize) -> usize {
        self.turns % keys.max(1)
    }

    /// Makes the next request leave soon: the peer has perhaps restarted.
    pub(super) fn hurry(&mut self, now: u64) {
        self.next = self.next.min(now + FIRST_INTERVAL);
    }

    /// Whether an answer belongs to a request that waits; if so, that one waits no more.
    pub(super) fn take_asked(&mut self, number: u32, t1: u64) -> bool {
        let at = self.outstanding.iter().position(|asked| asked.number == number && asked.t1 == t1);
        at.is_some_and(|at| self.outstanding.remove(at).is_some())
    }

    /// Takes the times of an answer into account; returns the new outlook.
    ///
    /// # Errors
    /// The times contradict each other, or are older than those of the last answer.
    pub(super) fn answered(&mut self, times: Times) -> Result<Outlook, ExchangeError> {
        let Times { t1, t2, t3, t4 } = times;
        if let Err(error) = self.offset.exchanged(times) {
            self.contradictions += u64::from(error == ExchangeError::Contradiction);
            return Err(error);
        }
        self.exchanges += 1;
        self.answers = self.answers.saturating_add(1);
        self.unanswered = 0;
        self.answered_at = Some(t4);
        if self.round_trips.len() == WINDOW {
            self.round_trips.pop_front();
        }
        self.round_trips.push_back((t4 - t1).saturating_sub(t3 - t2));
        let outlook = self.offset.outlook(t4).ok_or(ExchangeError::Contradiction)?;
        self.published = Some(outlook);
        Ok(outlook)
    }

    /// Forgets the peer's clock: another process answers, perhaps after a start of the machine.
    pub(super) fn restart(&mut self, now: u64) {
        self.offset = Offset::default();
        self.round_trips.clear();
        // An answer of the former process that is still under way would pass for a restart.
        self.outstanding.clear();
        (self.answers, self.unanswered, self.published) = (0, 0, None);
        self.hurry(now);
    }

    /// Withdraws the estimate of a peer that has been silent for too long; whether it was withdrawn now.
    pub(super) fn withdraw(&mut self, now: u64, peers: usize) -> bool {
        let Some(outlook) = self.published else { return false };
        let growth = outlook.estimate(now).error_ns.saturating_sub(outlook.now.error_ns);
        if self.is_reachable(now, peers) || growth < GROWTH_MAX {
            return false;
        }
        self.published = None;
        self.withdrawn += 1;
        true
    }

    /// Whether the peer has answered lately.
    pub(super) fn is_reachable(&self, now: u64, peers: usize) -> bool {
        self.answered_at.is_some_and(|at| now.saturating_sub(at) < SILENT_AFTER * pause(peers))
    }

    /// Returns the estimate with its present error, and its age (ns).
    pub(super) fn estimate(&self, now: u64) -> Option<(Estimate, u64)> {
        let outlook = self.published?;
        Some((outlook.estimate(now), now.saturating_sub(outlook.at)))
    }

    /// Returns the least and the last round trip.
    pub(super) fn round_trip(&self) -> Option<RoundTrip> {
        let (least_ns, last_ns) = (*self.round_trips.iter().min()?, *self.round_trips.back()?);
        Some(RoundTrip { least_ns, last_ns })
    }
}

/// Returns the time between two requests to each of so many peers (ns): at most 256 requests a second.
fn pause(peers: usize) -> u64 {
    INTERVAL * (peers as u64).div_ceil(64).max(1)
}
