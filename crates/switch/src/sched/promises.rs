//! What the scheduler is for, as properties of a simulated egress.
//!
//! The link sends 1 Gbit/s, so that a byte takes exactly 8 ns, and one frame at a
//! time, to its end.

use super::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, VecDeque};

const LINK: u64 = 1_000_000_000;
const NS_PER_BYTE: u64 = 8;

fn rate(bits: u64) -> Rate {
    Rate::from_bits(bits).expect("in range")
}

fn egress(bits: Option<u64>, burst: u64) -> EgressConfig {
    EgressConfig {
        rate: bits.map(rate),
        burst: Bytes::new(burst),
        discipline: Discipline::Contract,
        queue: u64::MAX,
    }
}

fn share(weight: u32) -> SourceConfig {
    SourceConfig {
        deadline: None,
        min: None,
        min_burst: 0,
        weight,
        cap_bytes: u64::MAX,
        cap_frames: u32::MAX,
    }
}

fn minimum(bits: u64, min_burst: u64) -> SourceConfig {
    SourceConfig {
        min: Some(rate(bits)),
        min_burst,
        ..share(1)
    }
}

fn real_time(deadline: u64) -> SourceConfig {
    SourceConfig {
        deadline: Some(deadline),
        ..share(1)
    }
}

fn frame(now: u64, bytes: u32, deadline: Option<u64>) -> Queued<()> {
    Queued {
        frame: (),
        bytes,
        deadline: deadline.map_or(u64::MAX, |d| now + d),
        enqueued: now,
    }
}

/// One frame that was sent.
#[derive(Clone, Copy, Debug)]
struct Sent {
    start: u64,
    end: u64,
    source: SourceId,
    tier: Tier,
    queued: Queued<()>,
}

/// An egress, the link behind it, and who sends to it.
struct Sim {
    sched: Scheduler<()>,
    now: u64,
    /// Frames still to come: time, source, bytes, relative deadline; in order.
    arrivals: VecDeque<(u64, SourceId, u32, Option<u64>)>,
    /// Always have a frame waiting; the sizes go round.
    greedy: BTreeMap<SourceId, Vec<u32>>,
    /// Whether frames take time on the link.
    link: bool,
    sent: Vec<Sent>,
}

impl Sim {
    fn new(config: EgressConfig) -> Self {
        Self {
            sched: Scheduler::new(config),
            now: 1_000_000_000,
            arrivals: VecDeque::new(),
            greedy: BTreeMap::new(),
            link: true,
            sent: Vec::new(),
        }
    }

    fn greedy(&mut self, source: SourceId, config: SourceConfig, sizes: &[u32]) {
        self.sched.set_source(self.now, source, config);
        self.greedy.insert(source, sizes.to_vec());
        self.feed(source);
        self.feed(source);
    }

    fn feed(&mut self, source: SourceId) {
        if let Some(sizes) = self.greedy.get_mut(&source) {
            let queued = frame(self.now, sizes[0], None);
            sizes.rotate_left(1);
            assert_eq!(self.sched.enqueue(self.now, source, queued), Ok(()));
        }
    }

    fn arrive(&mut self) {
        while let Some(&(at, source, bytes, deadline)) = self.arrivals.front()
            && at <= self.now
        {
            self.arrivals.pop_front();
            let queued = frame(at, bytes, deadline);
            assert_eq!(self.sched.enqueue(at, source, queued), Ok(()));
        }
    }

    /// Runs until `end`, or until nothing is left to happen.
    fn run(&mut self, end: u64) {
        while self.now < end {
            self.arrive();
            let next = self.arrivals.front().map(|a| a.0);
            match self.sched.head(self.now) {
                Head::Ready { .. } => {
                    let (source, tier, queued) = self.sched.take(self.now).expect("is ready");
                    let start = self.now;
                    self.feed(source);
                    if self.link {
                        self.now += u64::from(queued.bytes) * NS_PER_BYTE;
                    }
                    self.sent.push(Sent {
                        start,
                        end: self.now,
                        source,
                        tier,
                        queued,
                    });
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

    fn bytes_of(&self, source: SourceId) -> u64 {
        let own = self.sent.iter().filter(|s| s.source == source);
        own.map(|s| u64::from(s.queued.bytes)).sum()
    }
}

fn size() -> impl Strategy<Value = u32> {
    prop_oneof![3 => 60..1515u32, 1 => 1515..65_550u32]
}

fn sizes() -> impl Strategy<Value = Vec<u32>> {
    prop::collection::vec(size(), 1..6)
}

fn largest(sizes: &[u32]) -> u64 {
    sizes.iter().copied().max().unwrap_or(0).into()
}

/// A real-time vNIC's envelope and how it uses it.
#[derive(Clone, Debug)]
struct Flow {
    bytes: u32,
    burst: u64,
    bits: u64,
    deadline: u64,
    pauses: Vec<u64>,
}

impl Flow {
    /// Its frames, each as early as the envelope allows after a pause.
    fn frames(&self, source: SourceId, from: u64) -> Vec<(u64, SourceId, u32, Option<u64>)> {
        let mut bucket = TokenBucket::new(rate(self.bits), Bytes::new(self.burst));
        let mut now = from;
        let mut frames = Vec::new();
        for &pause in &self.pauses {
            now = bucket.conforms_at(now + pause, self.bytes.into());
            bucket.charge(now, self.bytes.into());
            frames.push((now, source, self.bytes, Some(self.deadline)));
        }
        frames
    }
}

fn flow() -> impl Strategy<Value = Flow> {
    let pause = prop_oneof![5 => Just(0u64), 1 => 0..3_000_000u64];
    (
        60..1515u32,
        1..10u64,
        1_000_000..400_000_000u64,
        prop::collection::vec(pause, 1..60),
    )
        .prop_map(|(bytes, frames, bits, pauses)| Flow {
            bytes,
            burst: frames * u64::from(bytes),
            bits,
            deadline: 0,
            pauses,
        })
}

/// Bytes that `flows` may demand within `t` ns of an instant, plus `blocking`:
/// with at most this carried in `t`, no deadline is missed. In nanoseconds of link.
fn demand(flows: &[Flow], blocking: u64, t: u64) -> u64 {
    let due = flows.iter().filter(|f| f.deadline <= t);
    let bytes: u128 = due
        .map(|f| {
            let earned = u128::from(f.bits) * u128::from(t - f.deadline);
            u128::from(f.burst) + earned.div_ceil(8_000_000_000)
        })
        .sum();
    (bytes as u64 + blocking) * NS_PER_BYTE
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Deadlines are given as tightly as admission allows, or nearly; then
    /// all flows start at once, against bulk senders that never pause.
    #[test]
    fn every_admitted_real_time_set_meets_its_deadlines(
        mut flows in prop::collection::vec((flow(), 0..1_000_000u64), 1..6),
        bulk in prop::collection::vec((sizes(), any::<bool>()), 0..3),
        limited in any::<bool>(),
    ) {
        let blocking = bulk.iter().map(|(s, _)| largest(s)).max().unwrap_or(0);
        // Not real-time to each other: any one of them may block once, too.
        let blocking = flows.iter().map(|(f, _)| u64::from(f.bytes)).max().unwrap_or(0).max(blocking);
        let mut admitted: Vec<Flow> = Vec::new();
        for (mut flow, spare) in flows.drain(..) {
            if admitted.iter().map(|f| f.bits).sum::<u64>() + flow.bits > LINK {
                continue;
            }
            let latest = admitted.iter().map(|f| f.deadline).max().unwrap_or(0);
            // Later than all: the condition is then decided at this deadline.
            flow.deadline = latest + spare;
            let mut with = admitted.clone();
            with.push(flow);
            loop {
                let d = with[with.len() - 1].deadline;
                let needed = demand(&with, blocking, d);
                if needed <= d {
                    break;
                }
                let last = with.len() - 1;
                with[last].deadline = needed;
            }
            admitted = with;
        }
        for f in &admitted {
            prop_assert!(demand(&admitted, blocking, f.deadline) <= f.deadline);
        }

        // Bulk fills the link; or the limit is far below it, and real-time
        // traffic must not feel that.
        let mut sim = Sim::new(egress(limited.then_some(LINK / 50), 1500));
        for (id, (sizes, promised)) in (100..).zip(&bulk) {
            let config = if *promised { minimum(LINK / 100, 3000) } else { share(1000) };
            sim.greedy(id, config, sizes);
        }
        let start = sim.now + 1_000_000;
        let mut arrivals = Vec::new();
        for (id, flow) in (1..).zip(&admitted) {
            sim.sched.set_source(sim.now, id, real_time(flow.deadline));
            arrivals.extend(flow.frames(id, start));
        }
        arrivals.sort_by_key(|a| a.0);
        let count = arrivals.len();
        let end = arrivals.last().map_or(0, |a| a.0) + 1_000_000_000;
        sim.arrivals = arrivals.into();
        sim.run(end);

        let urgent: Vec<_> = sim.sent.iter().filter(|s| s.tier == Tier::RealTime).collect();
        prop_assert_eq!(urgent.len(), count);
        for s in urgent {
            prop_assert!(s.end <= s.queued.deadline + 6, "{} ns late", s.end - s.queued.deadline);
        }
    }

    #[test]
    fn real_time_is_first_and_earliest_deadline_first(
        arrivals in prop::collection::vec((0..50_000u64, 0..8u16, size()), 1..200),
        deadlines in prop::collection::vec(1_000..5_000_000u64, 4),
        bits in prop::option::of(1_000_000..LINK),
    ) {
        let mut sim = Sim::new(egress(bits, 1500));
        for id in 0..8 {
            let config = match deadlines.get(usize::from(id)) {
                Some(&d) => real_time(d),
                None if id % 2 == 0 => minimum(10_000_000, 1500),
                None => share(id.into()),
            };
            sim.sched.set_source(sim.now, id, config);
        }
        let mut at = sim.now;
        for (pause, id, bytes) in arrivals {
            at += pause;
            sim.arrivals.push_back((at, id, bytes, deadlines.get(usize::from(id)).copied()));
        }
        let all = sim.arrivals.clone();
        sim.run(u64::MAX);

        let mut waiting: Vec<_> = all.iter().filter(|a| a.3.is_some()).collect();
        for s in &sim.sent {
            let present = waiting.iter().filter(|a| a.0 <= s.start);
            let first = present.map(|a| a.0 + a.3.unwrap_or(0)).min();
            prop_assert_eq!(s.tier == Tier::RealTime, first.is_some());
            if let Some(first) = first {
                prop_assert_eq!(s.queued.deadline, first);
                let i = waiting.iter().position(|a| a.1 == s.source).expect("waits");
                waiting.remove(i);
            }
        }
        prop_assert!(waiting.is_empty());
    }

    /// Minima that add up to the whole link, under overload from everyone, some
    /// of it real-time, some with all the weight.
    #[test]
    fn every_minimum_is_met_to_within_a_frame(
        parts in prop::collection::vec((1..1000u64, sizes(), prop_oneof![Just(0u64), 60..100_000u64]), 1..12),
        bulk in sizes(),
        urgent in prop::option::of(Just(())),
        limited in any::<bool>(),
    ) {
        let bits = if limited { LINK / 4 } else { LINK };
        let mut sim = Sim::new(egress(limited.then_some(bits), 3000));
        sim.link = !limited;
        let voice = Flow {
            bytes: 200,
            burst: 2000,
            bits: if urgent.is_some() { bits / 10 } else { 0 },
            deadline: 10_000_000,
            pauses: vec![0; 2000],
        };
        let whole: u64 = parts.iter().map(|p| p.0).sum();
        let mut largest_of_all = largest(&bulk);
        let mut minima = Vec::new();
        for (id, (part, sizes, burst)) in (1..).zip(&parts) {
            let min = (bits - voice.bits) * part / whole;
            minima.push((id, min.max(1), *burst, largest(sizes)));
            largest_of_all = largest_of_all.max(largest(sizes));
            sim.greedy(id, minimum(min.max(1), *burst), sizes);
        }
        sim.greedy(100, share(1_000_000), &bulk);
        if urgent.is_some() {
            sim.sched.set_source(sim.now, 101, real_time(voice.deadline));
            sim.arrivals = voice.frames(101, sim.now).into();
        }
        let start = sim.now;
        sim.run(start + 50_000_000);

        for (id, min, burst, own) in minima {
            // In bits * ns, the unit in which all of this is exact. A frame of
            // its own, and the rate times what may block: one frame and the
            // real-time burst. The bucket may leave a further frame of debt.
            let byte = 8_000_000_000i128;
            let blocked = i128::from(2 * largest_of_all + voice.burst) * byte * i128::from(min) / i128::from(bits);
            let within = i128::from(own) * byte + blocked + byte;
            let anywhere = within + i128::from(own.max(burst)) * byte;
            let (mut served, mut highest) = (0i128, 0i128);
            let mut end = start;
            for s in &sim.sent {
                end = s.end;
                let over = served - i128::from(s.end - start) * i128::from(min);
                prop_assert!(over >= -within, "source {id}: {} bytes behind", -over / byte);
                prop_assert!(over - highest >= -anywhere, "source {id}: {} bytes behind", (highest - over) / byte);
                if s.source == id {
                    served += i128::from(s.queued.bytes) * byte;
                }
                highest = highest.max(served - i128::from(s.end - start) * i128::from(min));
            }
            prop_assert!(end > start);
        }
    }

    /// The bound of start-time fair queueing, over every interval.
    #[test]
    fn shares_of_any_two_differ_by_a_frame_of_each_at_most(
        senders in prop::collection::vec((1..1000u32, sizes()), 2..6),
    ) {
        let mut sim = Sim::new(egress(None, 0));
        for (id, (weight, sizes)) in (0..).zip(&senders) {
            sim.greedy(id, share(*weight), sizes);
        }
        sim.run(sim.now + 50_000_000);
        for a in 0..senders.len() {
            for b in 0..a {
                let (wa, wb) = (i64::from(senders[a].0), i64::from(senders[b].0));
                // Multiplied by both weights.
                let bound = largest(&senders[a].1) as i64 * wb + largest(&senders[b].1) as i64 * wa;
                let (mut gap, mut least, mut most) = (0i64, 0i64, 0i64);
                for s in &sim.sent {
                    let bytes = i64::from(s.queued.bytes);
                    gap += match usize::from(s.source) {
                        id if id == a => bytes * wb,
                        id if id == b => -bytes * wa,
                        _ => 0,
                    };
                    (least, most) = (least.min(gap), most.max(gap));
                }
                // One byte for the fraction of a tag.
                prop_assert!(most - least <= bound + wa * wb, "{} > {bound}", most - least);
            }
        }
    }

    /// What leaves in any interval, and that nothing is held back without need.
    #[test]
    fn the_rate_is_kept_and_used(
        bits in 1_000_000..LINK,
        burst in 0..100_000u64,
        arrivals in prop::collection::vec((prop_oneof![Just(0), 0..3_000_000u64], 0..6u16, size()), 1..150),
    ) {
        let mut sim = Sim::new(egress(Some(bits), burst));
        sim.link = false; // another VM's memory: frames take no time
        for id in 0..6 {
            let config = match id {
                0 => real_time(1_000_000),
                1 | 2 => minimum(bits / 3, 1500),
                _ => share(1),
            };
            sim.sched.set_source(sim.now, id, config);
        }
        let mut at = sim.now;
        for (pause, id, bytes) in arrivals {
            at += pause;
            sim.arrivals.push_back((at, id, bytes, (id == 0).then_some(1_000_000)));
        }
        let all = sim.arrivals.clone();
        sim.run(u64::MAX);
        prop_assert_eq!(sim.sent.len(), all.len());
        prop_assert_eq!(sim.sched.backlog_total(), Backlog::default());

        for i in 0..sim.sent.len() {
            let (mut total, mut urgent, mut largest) = (0i128, 0i128, 0i128);
            for s in &sim.sent[i..] {
                let bytes = i128::from(s.queued.bytes) * 8_000_000_000;
                total += bytes;
                if s.tier == Tier::RealTime {
                    urgent += bytes;
                } else {
                    largest = largest.max(bytes);
                }
                let span = i128::from(s.start - sim.sent[i].start) + 1;
                let burst = i128::from(burst) * 8_000_000_000;
                prop_assert!(total - urgent <= burst.max(largest) + span * i128::from(bits));
            }
        }
        // Work conservation, by a bucket of the same shape: since it came and the
        // one before it went, a frame has waited until the bucket allowed it, and
        // at most until it allowed the largest (which may have had its turn before).
        let mut bucket = TokenBucket::new(rate(bits), Bytes::new(burst));
        let mut before = 0;
        let largest = all.iter().map(|a| a.2).max().unwrap_or(0);
        for s in &sim.sent {
            let free = before.max(s.queued.enqueued);
            if s.tier == Tier::RealTime {
                prop_assert_eq!(s.start, free);
            } else {
                let from = bucket.conforms_at(free, s.queued.bytes.into());
                let until = bucket.conforms_at(free, largest.into());
                prop_assert!((from..=until).contains(&s.start), "{s:?}: {from} to {until}");
            }
            bucket.charge(s.start, s.queued.bytes.into());
            before = s.start;
        }
    }
}

#[test]
fn weights_hold_for_mixed_frame_sizes() {
    let mut sim = Sim::new(egress(Some(LINK / 2), 10_000));
    sim.greedy(1, share(1), &[65_536, 60]);
    sim.greedy(2, share(2), &[60]);
    sim.greedy(3, share(4), &[1514]);
    sim.greedy(4, share(8), &[9000, 60, 1514, 65_536]);
    sim.link = false;
    sim.run(sim.now + 4_000_000_000);
    let total: u64 = (1..=4).map(|id| sim.bytes_of(id)).sum();
    for (id, weight) in [(1, 1), (2, 2), (3, 4), (4, 8)] {
        let part = sim.bytes_of(id) as f64 / total as f64 * 15.0 / f64::from(weight);
        assert!(
            (part - 1.0).abs() < 0.01,
            "source {id} has {part} of its share"
        );
    }
    // And the rate is used: 4 s at 500 Mbit/s.
    assert!(total.abs_diff(250_000_000) <= 10_000 + 65_536, "{total}");
}

#[test]
fn sixty_four_equal_senders_are_equal() {
    let mut sim = Sim::new(egress(None, 0));
    for id in 0..64 {
        let sizes: &[u32] = if id % 2 == 0 { &[1514] } else { &[200, 65_536] };
        sim.greedy(id, share(1), sizes);
    }
    sim.run(sim.now + 5_000_000_000);
    let got: Vec<f64> = (0..64).map(|id| sim.bytes_of(id) as f64).collect();
    let sum: f64 = got.iter().sum();
    let jain = sum * sum / (64.0 * got.iter().map(|x| x * x).sum::<f64>());
    assert!(jain >= 0.999, "{jain}");
}

#[test]
fn tier_three_comes_on_top_of_the_minimum() {
    let mut sim = Sim::new(egress(None, 0));
    sim.greedy(1, minimum(LINK / 2, 1514), &[1514]);
    sim.greedy(2, share(1), &[1514]);
    sim.run(sim.now + 1_000_000_000);
    // Half is guaranteed to the first; the other half is shared equally.
    let part = sim.bytes_of(1) as f64 / (sim.bytes_of(1) + sim.bytes_of(2)) as f64;
    assert!((part - 0.75).abs() < 0.001, "{part}");
}

#[test]
fn a_fast_minimum_does_not_wait_for_many_slow_ones() {
    let mut sim = Sim::new(egress(None, 0));
    for id in 0..500 {
        sim.greedy(id, minimum(LINK / 1000, 1514), &[1514]);
    }
    sim.greedy(500, minimum(LINK / 2, 1514), &[1514]);
    let start = sim.now;
    sim.run(start + 20_000_000);
    let own = sim.sent.iter().filter(|s| s.source == 500);
    for (n, s) in own.enumerate() {
        let due = start + (n as u64 + 1) * 2 * 1514 * NS_PER_BYTE;
        assert!(
            s.end <= due + 1514 * NS_PER_BYTE,
            "frame {n}: {} late",
            s.end - due
        );
    }
}

#[test]
fn a_stalled_receiver_does_not_shut_tier_three_out_afterwards() {
    let mut sim = Sim::new(egress(None, 0));
    sim.greedy(1, minimum(LINK / 2, 1514), &[1514]);
    sim.greedy(2, share(1), &[1514]);
    sim.run(sim.now + 1_000_000);
    sim.now += 60_000_000_000;
    let resumed = sim.now;
    sim.sent.clear();
    sim.run(resumed + 100_000_000);
    let first = sim.sent.iter().find(|s| s.source == 2).expect("is served");
    // Owed for 10 ms at half the link: made up for in another 10 ms.
    assert!(first.start - resumed <= 10_000_000 + 3 * 1514 * NS_PER_BYTE);
    assert!(
        first.start - resumed > 9_000_000,
        "what is owed is made up for"
    );
}

#[test]
fn no_flood_costs_a_promise_its_place_in_the_queue() {
    let mut sched = Scheduler::new(EgressConfig {
        queue: 3000,
        ..egress(Some(1_000_000), 1500)
    });
    sched.set_source(0, 1, share(1000));
    sched.set_source(0, 2, minimum(100_000, 1500));
    sched.set_source(0, 3, real_time(1_000_000));
    sched.set_source(
        0,
        4,
        SourceConfig {
            cap_bytes: 2000,
            cap_frames: 3,
            ..share(1)
        },
    );
    for _ in 0..2 {
        assert_eq!(sched.enqueue(0, 1, frame(0, 1500, None)), Ok(()));
    }
    assert_eq!(
        sched.enqueue(0, 1, frame(0, 60, None)),
        Err(Full::EgressBytes)
    );
    assert_eq!(sched.enqueue(0, 2, frame(0, 1500, None)), Ok(()));
    assert_eq!(sched.enqueue(0, 3, frame(0, 1500, Some(1_000_000))), Ok(()));
    assert_eq!(
        sched.enqueue(0, 4, frame(0, 2001, None)),
        Err(Full::SourceBytes)
    );
    assert_eq!(sched.enqueue(0, 5, frame(0, 60, None)), Err(Full::NoSource));
    sched.clear_source(1, |_| {});
    for _ in 0..3 {
        assert_eq!(sched.enqueue(0, 4, frame(0, 60, None)), Ok(()));
    }
    assert_eq!(
        sched.enqueue(0, 4, frame(0, 60, None)),
        Err(Full::SourceFrames)
    );
    // Giving up the promise gives up the place.
    sched.set_source(0, 2, share(1));
    assert_eq!(
        sched.enqueue(0, 1, frame(0, 1500, None)),
        Err(Full::EgressBytes)
    );
    assert_eq!(sched.enqueue(0, 1, frame(0, 1320, None)), Ok(()));
}

#[test]
fn fifo_is_in_order_of_arrival_drops_its_tail_and_holds_real_time_to_the_rate() {
    let mut sched = Scheduler::new(EgressConfig {
        discipline: Discipline::Fifo,
        queue: 4500,
        ..egress(Some(8_000_000), 1500)
    });
    sched.set_source(0, 1, share(1));
    sched.set_source(0, 2, real_time(1_000));
    for (at, id) in [(0, 1), (1, 2), (2, 1)] {
        assert_eq!(
            sched.enqueue(at, id, frame(at, 1500, (id == 2).then_some(1_000))),
            Ok(())
        );
    }
    assert_eq!(
        sched.enqueue(3, 2, frame(3, 60, Some(1_000))),
        Err(Full::EgressBytes)
    );
    assert!(matches!(sched.take(3), Some((1, Tier::Fifo, _))));
    assert_eq!(sched.head(3), Head::WaitUntil(1_500_003));
    sched.expire(1_500_003, u64::MAX, |_, _| {
        panic!("a FIFO knows no deadlines")
    });
    assert!(matches!(sched.take(1_500_003), Some((2, Tier::Fifo, _))));
    assert!(sched.take(2_999_999).is_none());
    assert!(matches!(sched.take(3_000_003), Some((1, Tier::Fifo, _))));
    assert_eq!(sched.head(3_000_003), Head::Empty);
}

#[test]
fn a_live_change_keeps_frames_and_takes_effect_at_once() {
    let mut sim = Sim::new(egress(Some(LINK / 10), 1500));
    sim.link = false;
    sim.greedy(1, share(1), &[1500]);
    sim.greedy(2, share(1), &[1500]);
    sim.run(sim.now + 500_000_000);
    let waiting = sim.sched.backlog_total();
    let half = sim.bytes_of(1);
    assert!(sim.bytes_of(2).abs_diff(half) <= 1500);

    // Twice the rate, a third of the weight: from here on, from one side.
    sim.sched.reconfigure(sim.now, egress(Some(LINK / 5), 1500));
    sim.sched.set_source(sim.now, 1, share(3));
    assert_eq!(sim.sched.backlog_total(), waiting);
    sim.sent.clear();
    sim.run(sim.now + 500_000_000);
    let (one, two) = (sim.bytes_of(1), sim.bytes_of(2));
    assert!((one + two).abs_diff(12_500_000) <= 3000, "{}", one + two);
    assert!(one.abs_diff(3 * two) <= 3 * 3000, "{one} {two}");

    // To FIFO and back: every frame is still there, once.
    let fifo = EgressConfig {
        discipline: Discipline::Fifo,
        ..egress(None, 0)
    };
    sim.sched.reconfigure(sim.now, fifo);
    sim.sched.reconfigure(sim.now, egress(None, 0));
    assert_eq!(sim.sched.backlog_total(), waiting);
    sim.greedy.clear();
    sim.sent.clear();
    sim.run(u64::MAX);
    assert_eq!(sim.sent.len(), waiting.frames as usize);
    assert_eq!(sim.sched.backlog_total(), Backlog::default());
}

#[test]
fn take_takes_what_head_said_even_later() {
    let mut sched = Scheduler::new(egress(None, 0));
    sched.set_source(0, 1, minimum(8_000_000, 100));
    sched.set_source(0, 2, share(1));
    sched.enqueue(0, 1, frame(0, 100, None)).expect("fits");
    sched.take(0);
    sched.enqueue(0, 2, frame(0, 60, None)).expect("fits");
    sched.enqueue(0, 1, frame(0, 100, None)).expect("fits");
    let Head::Ready { source, tier, .. } = sched.head(10) else {
        panic!("there is no rate to wait for");
    };
    assert_eq!(tier, Tier::Share);
    // By then source 1 is eligible in tier 2.
    assert_eq!(
        sched.take(200_000).map(|t| (t.0, t.1)),
        Some((source, Tier::Share))
    );
}

#[test]
fn frames_expire_by_hold_and_by_deadline() {
    let mut sched = Scheduler::new(egress(Some(1), 0));
    sched.set_source(0, 1, share(1));
    sched.set_source(0, 2, real_time(30));
    for at in [0, 40, 80] {
        sched.enqueue(at, 1, frame(at, 60, None)).expect("fits");
        sched.enqueue(at, 2, frame(at, 60, Some(30))).expect("fits");
    }
    let expired = |sched: &mut Scheduler<()>, now| {
        let mut gone = Vec::new();
        sched.expire(now, 100, |id, q| gone.push((id, q.enqueued)));
        gone
    };
    assert_eq!(expired(&mut sched, 30), []);
    assert_eq!(expired(&mut sched, 31), [(2, 0)]);
    assert_eq!(expired(&mut sched, 99), [(2, 40)]);
    assert_eq!(expired(&mut sched, 100), [(1, 0)]);
    assert_eq!(expired(&mut sched, 200), [(2, 80), (1, 40), (1, 80)]);
    assert_eq!(sched.backlog_total(), Backlog::default());
}
