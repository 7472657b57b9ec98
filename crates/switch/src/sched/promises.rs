//! The scheduler's promises as properties: kept under any traffic.

use super::sim::*;
use proptest::prelude::*;

fn sizes() -> impl Strategy<Value = Vec<u32>> {
    prop::collection::vec(size(), 1..6)
}

/// Returns the egress, or a wire with parts of at most so many bytes.
fn in_parts(config: EgressConfig, quantum: Option<u32>) -> EgressConfig {
    EgressConfig {
        kind: quantum.map_or(config.kind, |quantum| EgressKind::Physical { quantum, train: 0 }),
        ..config
    }
}

fn quantum() -> impl Strategy<Value = Option<u32>> {
    prop::option::of(prop_oneof![60..1515u32, 1515..10_000u32])
}

fn largest(sizes: &[u32]) -> u64 {
    sizes.iter().copied().max().unwrap_or(0).into()
}

/// A real-time vNIC's envelope and its use.
#[derive(Clone, Debug)]
struct Flow {
    bytes: u32,
    burst: u64,
    bits: u64,
    deadline: u64,
    pauses: Vec<u64>,
}

impl Flow {
    /// Returns its frames, each as early as the envelope allows after a pause.
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
    (60..1515u32, 1..10u64, 1_000_000..400_000_000u64, prop::collection::vec(pause, 1..60)).prop_map(
        |(bytes, frames, bits, pauses)| Flow {
            bytes,
            burst: frames * u64::from(bytes),
            bits,
            deadline: 0,
            pauses,
        },
    )
}

/// Returns the demand of `flows` within `t` ns of an instant, plus `blocking`: if at most that much is
/// carried in `t`, no deadline is missed. In nanoseconds of link.
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

    /// Deadlines are as tight as admission allows, or nearly; then all flows start at once, against bulk
    /// senders that never pause.
    #[test]
    fn every_admitted_real_time_set_meets_its_deadlines(
        mut flows in prop::collection::vec((flow(), 0..1_000_000u64), 1..6),
        bulk in prop::collection::vec((sizes(), any::<bool>()), 0..3),
        limited in any::<bool>(),
    ) {
        let blocking = bulk.iter().map(|(s, _)| largest(s)).max().unwrap_or(0);
        // Any one real-time frame may block others once, too.
        let blocking = flows.iter().map(|(f, _)| u64::from(f.bytes)).max().unwrap_or(0).max(blocking);
        let mut admitted: Vec<Flow> = Vec::new();
        for (mut flow, spare) in flows.drain(..) {
            if admitted.iter().map(|f| f.bits).sum::<u64>() + flow.bits > LINK {
                continue;
            }
            let latest = admitted.iter().map(|f| f.deadline).max().unwrap_or(0);
            // Later than all others: the condition is then decided at this deadline.
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

        // Bulk fills the link; or the limit is far below it, and must not affect real-time traffic.
        let mut sim = Sim::new(egress(limited.then_some(LINK / 50), 1500));
        for (id, (sizes, promised)) in (100..).map(source).zip(&bulk) {
            let config = if *promised { minimum(LINK / 100, 3000) } else { share(1000) };
            sim.greedy(id, config, sizes);
        }
        let start = sim.now + 1_000_000;
        let mut arrivals = Vec::new();
        for (id, flow) in (1..).map(source).zip(&admitted) {
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
        for number in 0..8 {
            let config = match deadlines.get(usize::from(number)) {
                Some(&d) => real_time(d),
                None if number % 2 == 0 => minimum(10_000_000, 1500),
                None => share(number.into()),
            };
            sim.sched.set_source(sim.now, source(number), config);
        }
        let mut at = sim.now;
        for (pause, number, bytes) in arrivals {
            at += pause;
            let deadline = deadlines.get(usize::from(number)).copied();
            sim.arrivals.push_back((at, source(number), bytes, deadline));
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

    /// Minima that add up to the whole link, under overload by all, some of it real-time, some with all the
    /// weight.
    #[test]
    fn every_minimum_is_met_to_within_a_frame(
        parts in prop::collection::vec((1..1000u64, sizes(), prop_oneof![Just(0u64), 60..100_000u64]), 1..12),
        bulk in sizes(),
        urgent in prop::option::of(Just(())),
        limited in any::<bool>(),
        quantum in quantum(),
    ) {
        let bits = if limited { LINK / 4 } else { LINK };
        let largest = |sizes: &[u32]| largest(sizes).min(quantum.unwrap_or(u32::MAX).into());
        let mut sim = Sim::new(in_parts(egress(limited.then_some(bits), 3000), quantum));
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
        for (id, (part, sizes, burst)) in (1..).map(source).zip(&parts) {
            let min = (bits - voice.bits) * part / whole;
            minima.push((id, min.max(1), *burst, largest(sizes)));
            largest_of_all = largest_of_all.max(largest(sizes));
            sim.greedy(id, minimum(min.max(1), *burst), sizes);
        }
        sim.greedy(100, share(1_000_000), &bulk);
        if urgent.is_some() {
            sim.sched.set_source(sim.now, source(101), real_time(voice.deadline));
            sim.arrivals = voice.frames(source(101), sim.now).into();
        }
        let start = sim.now;
        sim.run(start + 50_000_000);

        // While the real-time burst is sent, more of it conforms.
        let urgent_run = (voice.burst * bits).div_ceil(bits - voice.bits);
        for (id, min, burst, own) in minima {
            // In bits * ns, the exact unit here. A frame of its own, and the rate times the blocking: one
            // frame and the real-time burst. The bucket may leave one more frame of debt.
            let byte = 8_000_000_000i128;
            let blocked = i128::from(2 * largest_of_all + urgent_run) * byte * i128::from(min) / i128::from(bits);
            let within = i128::from(own) * byte + blocked + byte;
            let anywhere = within + i128::from(own.max(burst)) * byte;
            let (mut served, mut highest) = (0i128, 0i128);
            let mut end = start;
            for s in &sim.sent {
                end = s.end;
                let over = served - i128::from(s.end - start) * i128::from(min);
                prop_assert!(over >= -within, "{id:?}: {} bytes behind", -over / byte);
                prop_assert!(over - highest >= -anywhere, "{id:?}: {} bytes behind", (highest - over) / byte);
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
        quantum in quantum(),
    ) {
        let largest = |sizes: &[u32]| largest(sizes).min(quantum.unwrap_or(u32::MAX).into());
        let mut sim = Sim::new(in_parts(egress(None, 0), quantum));
        for (id, (weight, sizes)) in (0..).map(source).zip(&senders) {
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
                    gap += match s.source {
                        id if id == source(a as u16) => bytes * wb,
                        id if id == source(b as u16) => -bytes * wa,
                        _ => 0,
                    };
                    (least, most) = (least.min(gap), most.max(gap));
                }
                // One byte for the fraction of a tag.
                prop_assert!(most - least <= bound + wa * wb, "{} > {bound}", most - least);
            }
        }
    }

    /// Departures in any interval; and no frame is delayed without need.
    #[test]
    fn the_rate_is_kept_and_used(
        bits in 1_000_000..LINK,
        burst in 0..100_000u64,
        arrivals in prop::collection::vec((prop_oneof![Just(0), 0..3_000_000u64], 0..6u16, size()), 1..150),
    ) {
        let mut sim = Sim::new(egress(Some(bits), burst));
        sim.link = false; // another VM's memory: frames take no time
        for number in 0..6 {
            let config = match number {
                0 => real_time(1_000_000),
                1 | 2 => minimum(bits / 3, 1500),
                _ => share(1),
            };
            sim.sched.set_source(sim.now, source(number), config);
        }
        let mut at = sim.now;
        for (pause, number, bytes) in arrivals {
            at += pause;
            let deadline = (number == 0).then_some(1_000_000);
            sim.arrivals.push_back((at, source(number), bytes, deadline));
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
        // Work conservation, by a bucket of the same shape: since its arrival and the departure before it,
        // a frame has waited until the bucket allowed it, and at most until it allowed the largest (which
        // may have had its turn before).
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
