//! A simulated egress for tests of promises.
//!
//! The link sends 1 Gbit/s, so a byte takes exactly 8 ns, and one frame at a time, to its end.

pub(super) use super::*;
use crate::frame::FlowKey;
use proptest::prelude::*;
use std::collections::{BTreeMap, VecDeque};

pub(super) const LINK: u64 = 1_000_000_000;
pub(super) const NS_PER_BYTE: u64 = 8;

pub(super) fn rate(bits: u64) -> Rate {
    Rate::from_bits(bits).expect("in range")
}

/// Returns the source of that number: every other one is a remote vNIC.
pub(super) fn source(number: u16) -> SourceId {
    match number % 2 {
        0 => SourceId::Port(number),
        _ => SourceId::Remote(RemoteVnic::new(number).expect("a small number")),
    }
}

pub(super) fn egress(bits: Option<u64>, burst: u64) -> EgressConfig {
    EgressConfig {
        rate: bits.map(rate),
        burst: Bytes::new(burst),
        kind: EgressKind::Virtual,
        discipline: Discipline::Contract,
        queue: u64::MAX,
        flows: None,
    }
}

pub(super) fn share(weight: u32) -> SourceConfig {
    SourceConfig {
        deadline: None,
        min: None,
        min_burst: 0,
        weight,
        cap_bytes: u64::MAX,
        cap_frames: u32::MAX,
    }
}

pub(super) fn minimum(bits: u64, min_burst: u64) -> SourceConfig {
    SourceConfig { min: Some(rate(bits)), min_burst, ..share(1) }
}

pub(super) fn real_time(deadline: u64) -> SourceConfig {
    SourceConfig { deadline: Some(deadline), ..share(1) }
}

pub(super) fn frame(now: u64, bytes: u32, deadline: Option<u64>) -> Queued<()> {
    Queued { frame: (), bytes, deadline: deadline.map_or(u64::MAX, |d| now + d), enqueued: now }
}

impl Keyed for () {
    fn flow_key(&self) -> FlowKey {
        FlowKey { flow: 0, host: 0 }
    }
}

/// The flow is one of sixteen: the smallest table has a place for each.
impl Keyed for u32 {
    fn flow_key(&self) -> FlowKey {
        FlowKey { flow: self % 16, host: self % 3 }
    }
}

/// Sizes of frames and super-frames (bytes).
pub(super) fn size() -> impl Strategy<Value = u32> {
    prop_oneof![3 => 60..1515u32, 1 => 1515..65_550u32]
}

/// One sent frame, or a part of one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) source: SourceId,
    pub(super) tier: Tier,
    pub(super) queued: Queued<()>,
    /// Nothing of it remains.
    pub(super) last: bool,
}

/// An egress, the link behind it, and its senders.
pub(super) struct Sim {
    pub(super) sched: Scheduler<()>,
    pub(super) now: u64,
    /// Future frames: time, source, bytes, relative deadline; in order.
    pub(super) arrivals: VecDeque<(u64, SourceId, u32, Option<u64>)>,
    /// Sources that always have a waiting frame; the sizes repeat.
    pub(super) greedy: BTreeMap<SourceId, Vec<u32>>,
    /// Whether frames take time on the link.
    pub(super) link: bool,
    /// Bytes of a segment: a part is as many as fit, at least one.
    pub(super) segment: u32,
    /// Times without departures: from, until; in order.
    pub(super) away: VecDeque<(u64, u64)>,
    pub(super) sent: Vec<Sent>,
}

impl Sim {
    pub(super) fn new(config: EgressConfig) -> Self {
        Self {
            sched: Scheduler::new(config),
            now: 1_000_000_000,
            arrivals: VecDeque::new(),
            greedy: BTreeMap::new(),
            link: true,
            segment: 1,
            away: VecDeque::new(),
            sent: Vec::new(),
        }
    }

    pub(super) fn greedy(&mut self, source: impl Into<SourceId>, config: SourceConfig, sizes: &[u32]) {
        let source = source.into();
        self.sched.set_source(self.now, source, config);
        self.greedy.insert(source, sizes.to_vec());
        self.feed(source);
        self.feed(source);
    }

    pub(super) fn feed(&mut self, source: SourceId) {
        if let Some(sizes) = self.greedy.get_mut(&source) {
            let queued = frame(self.now, sizes[0], None);
            sizes.rotate_left(1);
            assert_eq!(self.sched.enqueue(self.now, source, queued), Ok(()));
        }
    }

    pub(super) fn arrive(&mut self) {
        while let Some(&(at, source, bytes, deadline)) = self.arrivals.front()
            && at <= self.now
        {
            self.arrivals.pop_front();
            let queued = frame(at, bytes, deadline);
            assert_eq!(self.sched.enqueue(at, source, queued), Ok(()));
        }
    }

    /// Runs until `end`, or until no event remains.
    pub(super) fn run(&mut self, end: u64) {
        while self.now < end {
            self.skip_absence();
            self.arrive();
            let next = self.arrivals.front().map(|a| a.0);
            match self.sched.head(self.now) {
                Head::Ready { queued: head, part, .. } => {
                    let bytes = (part / self.segment).max(1).saturating_mul(self.segment);
                    let (source, tier, queued) = self.sched.take_part(self.now, bytes).expect("is ready");
                    let (start, last) = (self.now, queued.bytes == head.bytes);
                    if last {
                        self.feed(source);
                    }
                    if self.link {
                        self.now += u64::from(queued.bytes) * NS_PER_BYTE;
                    }
                    self.sent.push(Sent { start, end: self.now, source, tier, queued, last });
                }
                Head::WaitUntil(t) => {
                    assert!(t > self.now, "time goes on");
                    self.now = t.min(next.unwrap_or(u64::MAX));
                }
                Head::Empty => match next {
                    Some(t) => self.now = t,
                    None => return,
                },
            }
        }
    }

    fn skip_absence(&mut self) {
        while let Some(&(from, until)) = self.away.front()
            && from <= self.now
        {
            self.away.pop_front();
            self.now = self.now.max(until);
        }
    }

    pub(super) fn bytes_of(&self, source: impl Into<SourceId>) -> u64 {
        let source = source.into();
        let own = self.sent.iter().filter(|s| s.source == source);
        own.map(|s| u64::from(s.queued.bytes)).sum()
    }
}
