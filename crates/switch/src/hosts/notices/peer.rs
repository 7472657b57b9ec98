//! One other host: what it may send, what it was sent, and the counters of both.
//!
//! ```text
//!  tag ─┬▶ request ─▶ a token? ─▶ taken
//!       └▶ report, announcement ─▶ the process that answered us last? ─▶ not seen before? ─▶ a token? ─▶ taken
//! ```
//!
//! Only an answer to a request of ours tells the start of the peer's process: it repeats that request's time, so it is
//! no replay. Reports and announcements of another process are refused, also those recorded before a start of the
//! peer's machine, whose clock then counts from 0 again.

use super::bucket::Bucket;
use super::exchange::Exchange;
use super::hearing::Hearing;
use super::own::Telling;
use super::present::Told;
use super::reports::Reports;
use super::setup::PeerSetup;
use std::collections::BTreeMap;
use tidegate_contract::Segment;
use tidegate_evidence::{NoticeRefusal, PeerClock, PeerCounts, PeerStatus};
use tidegate_uplink::clock::Estimate;
use tidegate_uplink::notice::{Notice, Refused};
use tidegate_uplink::replay::Window;

/// Requests a second that are taken from one peer, as many of processes that are not known, and as many other messages.
const RATE: u64 = 200;

/// Returns why a message that is no notice for this host is not taken.
pub(super) fn refusal(refused: Refused) -> NoticeRefusal {
    match refused {
        Refused::Malformed => NoticeRefusal::Malformed,
        Refused::Version(_) => NoticeRefusal::Version,
        Refused::NoKey(_) => NoticeRefusal::NoKey,
        Refused::Forged => NoticeRefusal::Forged,
    }
}

/// One other host.
pub(super) struct Peer {
    pub(super) setup: PeerSetup,
    /// The segments with a key that reach it, by id; none if it is no Tidegate host.
    pub(super) keyed: Vec<Segment>,
    /// The start of its process, as its last answer says (ns, its clock).
    started: Option<u64>,
    /// By the id of the segment whose key a notice is tagged with: a host that has one key uses up no numbers of others.
    windows: BTreeMap<u32, Window>,
    /// Of the process that has answered.
    requests: Bucket,
    /// Requests of other processes may be recorded ones, and use up no other's tokens.
    unknown: Bucket,
    others: Bucket,
    /// Number of the last notice to it.
    number: u32,
    pub(super) exchange: Exchange,
    pub(super) hearing: Hearing,
    pub(super) reports: Reports,
    pub(super) told: Told,
    pub(super) telling: Telling,
    pub(super) counts: PeerCounts,
    refused: BTreeMap<NoticeRefusal, u64>,
}

impl Peer {
    /// Returns a peer from which nothing came yet.
    pub(super) fn new(setup: PeerSetup, now: u64) -> Self {
        Self {
            setup,
            keyed: vec![],
            started: None,
            windows: BTreeMap::new(),
            requests: Bucket::new(RATE),
            unknown: Bucket::new(RATE),
            others: Bucket::new(RATE),
            number: 0,
            exchange: Exchange::default(),
            hearing: Hearing::new(now),
            reports: Reports::default(),
            told: Told::nothing(now),
            telling: Telling::nothing(now),
            counts: PeerCounts::default(),
            refused: BTreeMap::new(),
        }
    }

    /// Whether keys of a segment are valid between it and this host.
    pub(super) fn keys_reach(&self, segment: Segment) -> bool {
        self.setup.stamps && self.setup.carries(segment)
    }

    /// Returns a time of the peer's clock by this host's at `now` (ns), within the clocks' error; `None` if the peer's
    /// clock is not known.
    pub(super) fn since(&self, since_ns: u64, now: u64) -> Option<i128> {
        let (estimate, _) = self.exchange.estimate(now)?;
        let since = i128::from(since_ns) - i128::from(estimate.offset_ns);
        // A time to come would keep the vNIC there for ever.
        Some(since.min(i128::from(now)))
    }

    /// Returns the segment whose key serves for its clock; `None` if it shares no key.
    pub(super) fn asked_with(&self) -> Option<Segment> {
        self.keyed.get(self.exchange.key(self.keyed.len())).copied()
    }

    /// Returns the number of the next notice to it.
    pub(super) fn next_number(&mut self) -> u32 {
        self.number = self.number.wrapping_add(1);
        self.number
    }

    /// Whether an authentic notice is no recorded one.
    fn is_new(&mut self, notice: &Notice) -> bool {
        let window = self.windows.entry(notice.vni).or_default();
        window.arrive(notice.number, notice.sent_ns).is_accepted()
    }

    /// Forgets what segments used that have no key now.
    pub(super) fn keep_windows(&mut self, has_key: impl Fn(u32) -> bool) {
        self.windows.retain(|vni, _| has_key(*vni));
    }

    /// Checks a request against those before it. Recorded ones of the process that has answered are refused: they would use up what
    /// that may ask, and it would take this host for deaf.
    pub(super) fn admit_request(&mut self, notice: &Notice, now: u64) -> Result<(), NoticeRefusal> {
        let is_known = self.started == Some(notice.started_ns);
        if is_known && !self.is_new(notice) {
            return Err(NoticeRefusal::Replayed);
        }
        let bucket = if is_known { &mut self.requests } else { &mut self.unknown };
        if !bucket.take(now) {
            return Err(NoticeRefusal::TooMany);
        }
        if !is_known {
            // Perhaps a new process: its answer will tell.
            self.exchange.hurry(now);
        }
        Ok(())
    }

    /// Counts a message that is not taken.
    pub(super) fn refuse(&mut self, why: NoticeRefusal) {
        *self.refused.entry(why).or_default() += 1;
    }

    /// Notes the process that has answered a request; whether it is another one than before.
    pub(super) fn is_restarted(&mut self, started: u64, now: u64) -> bool {
        let before = self.started.replace(started);
        if before == Some(started) {
            return false;
        }
        self.windows.clear();
        self.told = Told::nothing(now);
        self.telling = Telling::nothing(now);
        if before.is_some() {
            self.counts.restarts += 1;
            self.exchange.restart(now);
        }
        before.is_some()
    }

    /// Checks a report or an announcement against those before it.
    pub(super) fn admit(&mut self, notice: &Notice, now: u64) -> Result<(), NoticeRefusal> {
        if self.started != Some(notice.started_ns) {
            // Perhaps a new process: its answer will tell.
            self.exchange.hurry(now);
            return Err(NoticeRefusal::OtherProcess);
        }
        if !self.is_new(notice) {
            return Err(NoticeRefusal::Replayed);
        }
        if self.others.take(now) { Ok(()) } else { Err(NoticeRefusal::TooMany) }
    }

    /// Returns its state. `peers`: how many hosts are asked.
    pub(super) fn status(&self, uplink: &str, now: u64, peers: usize) -> PeerStatus {
        let unasked = match self.asked_with() {
            Some(_) => None,
            None if !self.setup.stamps => Some("it is no Tidegate host (stamps = false)"),
            None => Some("no segment that reaches it has a key ([segment.ID] key-file)"),
        };
        let clock = |(Estimate { offset_ns, error_ns }, age_ns)| PeerClock { offset_ns, error_ns, age_ns };
        let Exchange { exchanges, missing, contradictions, withdrawn, .. } = self.exchange;
        let refused = self.refused.iter().map(|(why, count)| (why.label().to_owned(), *count)).collect();
        let counts =
            PeerCounts { exchanges, missing, contradictions, withdrawn, refused, ..self.counts.clone() };
        PeerStatus {
            name: self.setup.name.clone(),
            uplink: uplink.to_owned(),
            address: self.setup.address,
            unasked: unasked.map(str::to_owned),
            reachable: self.exchange.is_reachable(now, peers),
            clock: self.exchange.estimate(now).map(clock),
            round_trip: self.exchange.round_trip(),
            counts,
        }
    }
}
