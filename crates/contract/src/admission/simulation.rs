//! Compares the bounds with simulated packets: a server by deadline or priority, conforming senders, a network that
//! bunches their frames, a wire where they grow, and the slowest permitted host.

use super::egress::{Egress, Order, Source};
use super::priority::priorities;
use proptest::{collection::vec, prelude::*};
use std::{cmp::Reverse, collections::BinaryHeap};

/// Largest frame (bytes), and L.
const LARGEST: u64 = crate::frame::TAGGED_FRAME;

struct Arrival {
    at: u64,
    source: usize,
    bytes: u64,
}

/// How one source sends.
#[derive(Clone, Debug)]
struct Sender {
    start: u64,
    /// Frame sizes, bytes, repeated.
    sizes: Vec<u64>,
    /// Waits besides those for tokens (ns), repeated. Empty: every frame comes as early as it conforms.
    gaps: Vec<u64>,
    frames: usize,
    /// Times on the way of a source with jitter (ns), repeated, at most the jitter. Empty: frames come together.
    ways: Vec<u64>,
}

/// Returns the frames of `sender`, sent at the earliest times that its token bucket allows. A bucket that may owe lets a
/// frame through while it owes nothing.
fn arrivals(i: usize, source: &Source, sender: &Sender, may_owe: bool) -> Vec<Arrival> {
    let nano = 1_000_000_000u128;
    // The debt is the largest frame, so a bucket that may owe is like one that is deeper by it.
    let depth = (source.burst + if may_owe { u128::from(LARGEST * 8) } else { 0 }) * nano;
    let (mut tokens, mut now) = (depth, sender.start);
    let mut arrivals = Vec::new();
    for n in 0..sender.frames {
        let gap = if sender.gaps.is_empty() { 0 } else { sender.gaps[n % sender.gaps.len()] };
        let bytes = sender.sizes[n % sender.sizes.len()];
        let needed = u128::from(bytes) * 8 * nano;
        tokens = depth.min(tokens + u128::from(source.rate) * u128::from(gap));
        let wait = needed.saturating_sub(tokens).div_ceil(u128::from(source.rate));
        tokens = depth.min(tokens + u128::from(source.rate) * wait) - needed;
        now += gap + u64::try_from(wait).expect("small");
        let way = match sender.ways.as_slice() {
            [] => now.next_multiple_of(source.jitter.max(1)) - now,
            ways => ways[n % ways.len()].min(source.jitter),
        };
        arrivals.push(Arrival { at: now + way, source: i, bytes: bytes + source.added });
    }
    arrivals
}

/// Returns the worst delay of each source. Whenever real-time traffic arrives at a server without any, a best-effort
/// frame has just begun (its length from `blockers` by turns, bytes), and the host then sleeps for its whole budget.
fn worst_delays(egress: &Egress, senders: &[Sender], blockers: &[u64]) -> Vec<u64> {
    let bits_per_ns = egress.capacity / 1_000_000_000;
    let mut all: Vec<Arrival> = Vec::new();
    for (i, sender) in senders.iter().enumerate() {
        all.extend(arrivals(i, &egress.sources[i], sender, egress.order == Order::Priority));
    }
    all.sort_by_key(|arrival| arrival.at);
    let mut worst = vec![0; egress.sources.len()];
    let levels = priorities(&egress.sources.iter().map(|s| s.deadline).collect::<Vec<_>>());
    let mut waiting = BinaryHeap::new();
    let (mut now, mut next, mut idle) = (0u64, 0, 0);
    while next < all.len() || !waiting.is_empty() {
        if waiting.is_empty() && all[next].at >= now {
            now = all[next].at + blockers[idle % blockers.len()] * 8 / bits_per_ns + egress.host_latency;
            idle += 1;
        }
        while next < all.len() && all[next].at <= now {
            let Arrival { at, source, .. } = all[next];
            let first = match egress.order {
                Order::Edf => (at + egress.sources[source].deadline, 0),
                // Within a level the bound holds for any order: here the last source first.
                Order::Priority => (levels[source].into(), egress.sources.len() - source),
            };
            waiting.push(Reverse((first, next)));
            next += 1;
        }
        let Some(Reverse((_, n))) = waiting.pop() else {
            continue;
        };
        let Arrival { at, source, bytes } = all[n];
        now += bytes * 8 / bits_per_ns;
        worst[source] = worst[source].max(now - at);
    }
    worst
}

prop_compose! {
    fn any_sender()(
        start in prop_oneof![Just(0u64), 0u64..300_000],
        sizes in prop_oneof![Just(vec![LARGEST]), Just(vec![60]), vec(60..=LARGEST, 1..8)],
        gaps in prop_oneof![Just(Vec::new()), vec(prop_oneof![Just(0u64), 0u64..200_000], 1..8)],
        frames in 1usize..120,
        ways in prop_oneof![Just(Vec::new()), vec(prop_oneof![Just(0u64), Just(u64::MAX), 0u64..200_000], 1..8)],
    ) -> Sender {
        Sender { start, sizes, gaps, frames, ways }
    }
}

prop_compose! {
    /// Makes an egress that fits: raises deadlines until it does.
    fn fitting_egress()(
        // Whole bits per nanosecond, so that the server keeps exact time.
        gbits in prop_oneof![Just(1u64), Just(2), Just(4), Just(8)],
        host_latency in prop_oneof![Just(0u64), 0u64..100_000],
        order in prop_oneof![Just(Order::Edf), Just(Order::Priority)],
        // Some deadlines are the same.
        envelopes in vec((
            1_000_000u64..330_000_000, LARGEST..20_000, prop_oneof![Just(100_000), 10_000u64..400_000],
            // Of this host, of a remote, over an uplink.
            prop_oneof![Just((0, 0)), (1u64..300_000).prop_map(|jitter| (jitter, 0)), Just((0, 50)), Just((0, 102))],
        ), 1..6),
    ) -> Egress {
        let source = |(i, (rate, burst, deadline, way)): (usize, (u64, u64, u64, (u64, u64)))| {
            // The kernel serves frames of this host only.
            let (jitter, added) = if order == Order::Edf { way } else { (0, 0) };
            Source {
                name: format!("rt{i}"), table: "vnic", burst: u128::from(burst) * 8, rate, deadline, jitter, added,
                away: None, smallest_rate: 1, smallest_burst: LARGEST,
            }
        };
        let mut egress = Egress {
            name: "sink".into(), order, capacity_key: String::new(), capacity: gbits * 1_000_000_000,
            blocking: LARGEST * 8, host_latency,
            sources: envelopes.into_iter().enumerate().map(source).collect(), minima: Vec::new(),
            senders: Vec::new(),
        };
        egress.blocking += egress.sources.iter().map(|s| s.added * 8).max().unwrap_or(0);
        while egress.promised_rate() > u128::from(egress.capacity) {
            egress.sources.pop();
        }
        // Small steps end near the limit, where a wrong bound would show.
        while !egress.fits() {
            for source in &mut egress.sources {
                source.deadline += source.deadline / 64;
            }
        }
        egress
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn no_frame_is_later_than_its_bound(
        egress in fitting_egress(), senders in vec(any_sender(), 5),
        blockers in prop_oneof![Just(vec![LARGEST]), vec(0..=LARGEST, 1..8)],
    ) {
        let worst = worst_delays(&egress, &senders[..egress.sources.len()], &blockers);
        for ((source, (bound, _)), worst) in egress.sources.iter().zip(egress.bounds()).zip(worst) {
            prop_assert!(bound <= source.deadline);
            prop_assert!(worst <= bound, "{}: {} ns, bound {} ns", source.name, worst, bound);
        }
    }

    /// The last frame of a lone burst reaches the bound.
    #[test]
    fn a_lone_burst_takes_exactly_its_bound(
        mut egress in fitting_egress(), frames in 2u64..20, bytes in 760..=LARGEST,
    ) {
        egress.order = Order::Edf;
        egress.sources.truncate(1);
        // On a wire the smallest frames grow most.
        let bytes = if egress.sources[0].added > 0 { 60 } else { bytes };
        egress.sources[0].burst = u128::from(frames * bytes * 8);
        egress.sources[0].deadline = 10_000_000;
        egress.sources[0].jitter = 0;
        egress.blocking = LARGEST * 8;
        prop_assert!(egress.fits());
        let sender = Sender { start: 0, sizes: vec![bytes], gaps: Vec::new(), frames: 60, ways: Vec::new() };
        let (bound, _) = egress.bounds()[0];
        prop_assert_eq!(worst_delays(&egress, &[sender], &[LARGEST]), [bound]);
    }
}
