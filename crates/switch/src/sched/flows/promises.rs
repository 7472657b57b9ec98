//! Promises of flow queues under any traffic: fairness, sparse flows first, bounds.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

const CONFIG: FlowConfig = FlowConfig {
    target: 5_000_000,
    interval: 100_000_000,
    per_host: false,
    quantum: 1514,
    frame: 1514,
    turn: 600_000,
};

fn key(flow: u32, host: u32) -> FlowKey {
    let hash = |n: u32| n.wrapping_mul(0x9e37_79b1).rotate_left(11).wrapping_mul(0x85eb_ca6b);
    FlowKey { flow: hash(flow), host: hash(host) }
}

fn queued(frame: u32, bytes: u32) -> Queued<u32> {
    Queued { frame, bytes, deadline: u64::MAX, enqueued: 0 }
}

proptest! {
    /// Busy flows have sent equally at every moment, except for a quantum and a frame.
    #[test]
    fn busy_flows_have_equal_parts(sizes in prop::collection::vec(60..1515u32, 2..20), takes in 1..800usize) {
        let mut flows = Flows::new(CONFIG);
        let mut sent = vec![0u64; sizes.len()];
        for (flow, bytes) in (0..).zip(&sizes) {
            flows.push(key(flow, 0), queued(flow, *bytes));
            flows.push(key(flow, 0), queued(flow, *bytes));
        }
        for _ in 0..takes {
            let taken = flows.take(u32::MAX).unwrap();
            sent[taken.frame as usize] += u64::from(taken.bytes);
            flows.push(key(taken.frame, 0), taken);
            let (least, most) = (sent.iter().min().unwrap(), sent.iter().max().unwrap());
            prop_assert!(most - least <= 2 * 1514 + 1514, "{sent:?}");
        }
    }

    /// However many flows a host has, even of one frame each, it sends as much as one with a single flow.
    #[test]
    fn hosts_have_equal_parts(many in 2..60u32, one_frame: bool, takes in 200..800usize) {
        let mut flows = Flows::new(FlowConfig { per_host: true, ..CONFIG });
        let mut sent = [0u64; 2];
        let mut next = 0;
        let mut push = |flows: &mut Flows<u32>, host: u32| {
            next += 1;
            let flow = match host {
                0 => 0,
                _ if one_frame => next,
                _ => 1 + next % many,
            };
            flows.push(key(flow, host), queued(host, 1000));
        };
        for _ in 0..3 * many {
            push(&mut flows, 0);
            push(&mut flows, 1);
        }
        for _ in 0..takes {
            let taken = flows.take(u32::MAX).unwrap();
            sent[taken.frame as usize] += 1000;
            push(&mut flows, taken.frame);
            prop_assert!(sent[0].abs_diff(sent[1]) <= 4 * 1514, "{sent:?}");
        }
    }

    /// A flow below its share has the next turn beside any number of busy ones: only the rest of another
    /// new flow's turn comes first.
    #[test]
    fn a_sparse_flow_goes_first(busy in 1..100u32, rounds in 1..30u32, bytes in 60..1515u32) {
        let mut flows = Flows::new(CONFIG);
        for flow in 1..=busy {
            for _ in 0..4 {
                flows.push(key(flow, 0), queued(flow, 1500));
            }
        }
        // All had their first turns, so they are old.
        for _ in 0..2 * busy {
            let taken = flows.take(u32::MAX).unwrap();
            flows.push(key(taken.frame, 0), taken);
        }
        for _ in 0..rounds {
            flows.push(key(0, 0), queued(0, bytes));
            prop_assert_eq!(flows.take(u32::MAX).unwrap().frame, 0);
            // A round, after which it is idle.
            for _ in 0..2 * busy {
                let taken = flows.take(u32::MAX).unwrap();
                prop_assert!(taken.frame > 0);
                flows.push(key(taken.frame, 0), taken);
            }
        }
    }

    /// Frames of a flow leave in order of arrival, whatever happens.
    #[test]
    fn a_flow_keeps_its_order(steps in prop::collection::vec((0..12u32, 0..4u8), 1..500)) {
        let mut flows = Flows::new(CONFIG);
        let mut last = BTreeMap::new();
        for (number, (flow, what)) in (0..).zip(steps) {
            flows.push(key(flow, 0), queued(number * 12 + flow, 700));
            let left = match what {
                0 => flows.take(u32::MAX),
                1 => flows.drop_longest(),
                2 => flows.pop_oldest(),
                _ => None,
            };
            if let Some(queued) = left {
                prop_assert!(last.insert(queued.frame % 12, queued.frame) < Some(queued.frame));
            }
        }
    }

    /// Each frame knows whether its flow was empty when it came.
    #[test]
    fn a_frame_that_found_an_empty_queue_is_known(steps in prop::collection::vec((0..6u32, 0..5u8), 1..500)) {
        let mut flows = Flows::new(CONFIG);
        let mut waiting = [0; 6];
        for (flow, what) in steps {
            flows.push(key(flow, 0), queued(flow * 2 + u32::from(waiting[flow as usize] == 0), 700));
            waiting[flow as usize] += 1;
            prop_assert_eq!(flows.is_sparse(), flows.head().is_some_and(|head| head.frame % 2 == 1));
            let is_last = flows.head().is_some_and(|head| head.bytes <= 100);
            let left = match what {
                // The rest of a frame is like the whole.
                0 => flows.take(100).filter(|_| is_last),
                1 => flows.take(u32::MAX),
                2 => flows.drop_head(u32::MAX),
                3 => flows.drop_longest(),
                _ => flows.pop_oldest(),
            };
            if let Some(left) = left {
                waiting[left.frame as usize / 2] -= 1;
            }
            prop_assert_eq!(flows.is_sparse(), flows.head().is_some_and(|head| head.frame % 2 == 1));
        }
    }

    /// The longest flow loses frames.
    #[test]
    fn the_longest_flow_gives_way(lengths in prop::collection::vec(1..50u32, 1..200), drops in 1..400usize) {
        let mut flows = Flows::new(CONFIG);
        let mut waits: Vec<u32> = lengths.clone();
        for (flow, frames) in (0..).zip(&lengths) {
            (0..*frames).for_each(|_| flows.push(key(flow, 0), queued(flow, 100)));
        }
        for _ in 0..drops {
            let most = *waits.iter().max().unwrap();
            let Some(dropped) = flows.drop_longest() else { break };
            prop_assert_eq!(waits[dropped.frame as usize], most);
            waits[dropped.frame as usize] -= 1;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// However much longer than a quantum frames are, and whichever flows ran out of frames: no operation
    /// looks at a flow or a host more than a few times.
    #[test]
    fn a_turn_is_found_in_few_steps(
        config in (300..9_100u32, 1514..65_536u32, any::<bool>()),
        busy in 1..1000u32,
        sizes in (60..65_536u32, 60..65_536u32),
        what in prop::collection::vec(0..12u8, 1..2000),
    ) {
        let (quantum, frame, per_host) = config;
        let mut flows = Flows::new(FlowConfig { quantum, frame, per_host, ..CONFIG });
        for n in 0..3 * busy {
            let bytes = if n % 3 == 0 { sizes.0 } else { sizes.1 };
            flows.push(key(n % busy, n % busy % 300), queued(n, bytes));
        }
        for (n, what) in (0..3 * busy).zip(what.iter().cycle()) {
            flows.rounds.visits.set(0);
            match what {
                0..9 => drop(flows.take(u32::MAX)),
                9 => drop(flows.pop_oldest()),
                10 => drop(flows.drop_longest()),
                _ => flows.push(key(n % busy, n % busy % 300), queued(n, sizes.0)),
            }
            let (all, hosts) = (flows.rounds.flows.len(), flows.rounds.hosts.len());
            let visits = flows.rounds.visits.get();
            prop_assert!(visits <= 6 * all + 5 * hosts, "{visits} looks at {all} flows of {hosts} hosts");
        }
    }
}

/// The rest of a long frame stays, and each part is a turn: flows of super-frames get equal shares, too.
#[test]
fn long_frames_leave_in_parts() {
    let mut flows = Flows::new(CONFIG);
    for flow in 0..4 {
        flows.push(key(flow, 0), queued(flow, 60_000));
    }
    let mut sent = [0; 4];
    while let Some(part) = flows.part(2_500) {
        assert!(part <= 1514);
        let taken = flows.take(part).unwrap();
        sent[taken.frame as usize] += taken.bytes;
        let most = sent.iter().max().unwrap();
        assert!(sent.iter().all(|bytes| most - bytes <= 3 * 1514), "{sent:?}");
    }
    assert_eq!(sent, [60_000; 4]);
}

#[test]
fn a_part_is_longer_where_fewer_flows_wait() {
    let mut flows = Flows::new(CONFIG);
    flows.push(key(0, 0), queued(0, 60_000));
    assert_eq!(flows.part(25_000), Some(25_000));
    assert_eq!(flows.part(u64::MAX), Some(60_000));
    for flow in 1..10 {
        flows.push(key(flow, 0), queued(flow, 60_000));
    }
    assert_eq!(flows.part(25_000), Some(2_500));
    assert_eq!(flows.part(0), Some(1514), "a frame of the largest size at least");
}

/// A million flows of one frame each, few at a time, and a busy one: memory and order stay bounded.
#[test]
fn a_million_flows_of_one_frame() {
    let mut flows = Flows::new(CONFIG);
    let mut busy = 0;
    flows.push(key(0, 0), queued(0, 1500));
    for flow in 1..1_000_000 {
        flows.push(key(flow, 0), queued(flow, 60));
        if flow % 8 == 0 {
            flows.push(key(0, 0), queued(0, 1500));
        }
        while flows.backlog().frames > 2_000 {
            busy += u32::from(flows.drop_longest().unwrap().frame == 0);
        }
        if flow % 2 == 0 {
            busy += u32::from(flows.take(u32::MAX).unwrap().frame == 0);
        }
    }
    assert!(busy > 0, "the busy one has its turns");
    assert!(flows.rounds.flows.len() <= 1024 && flows.rounds.hosts.len() == 1);
    assert!(flows.active() <= 1024);
    let (mut left, mut total) = (0, flows.backlog().frames);
    while flows.take(u32::MAX).is_some() {
        left += 1;
        total -= 1;
        assert_eq!(flows.backlog().frames, total);
    }
    assert!(left <= 2_000);
}

/// A flow that ignores marks and drops has a queue of its own; the others' frames pass at once.
#[test]
fn a_flood_harms_itself_alone() {
    let mut flows = Flows::new(CONFIG);
    let (mut dropped, mut waited) = (0, 0);
    // One frame of 1500 bytes leaves each 0.6 ms, 20 Mbit/s; the flood sends three, and a ping comes each
    // 10 ms.
    for tick in 0..10_000u64 {
        let now = 1_000_000 + tick * 600_000;
        for _ in 0..3 {
            flows.push(key(1, 0), Queued { enqueued: now, ..queued(1, 1500) });
        }
        if tick % 16 == 0 {
            flows.push(key(2, 0), Queued { enqueued: now, ..queued(2, 98) });
        }
        while flows.backlog().bytes > 136_000 {
            assert_eq!(flows.drop_longest().unwrap().frame, 1);
        }
        while flows.judge(now, || false) == Verdict::Drop {
            assert_eq!(flows.drop_head(u32::MAX).unwrap().frame, 1);
            dropped += 1;
        }
        let gone = flows.take(u32::MAX).unwrap();
        if gone.frame == 2 {
            waited = waited.max(now - gone.enqueued);
        }
    }
    assert!(dropped > 100, "{dropped}");
    // The very first waits for the turn of the flood, which is new, too.
    assert!(waited <= 1_200_000, "{waited} ns");
}

#[test]
fn a_change_of_grouping_loses_nothing() {
    let mut flows = Flows::new(CONFIG);
    for n in 0..100 {
        flows.push(key(n % 9, n % 4), queued(n, 500 + n));
    }
    flows.take(2_000);
    for per_host in [true, false, true] {
        flows.set_config(FlowConfig { per_host, ..CONFIG });
        assert_eq!(flows.backlog().frames, 99);
        flows.take(1);
    }
    let mut left = Vec::new();
    flows.drain(|queued| left.push(queued.frame));
    assert!(left.is_sorted() && left.len() == 99);
}

/// A flow that returns before all others had their turns is old.
#[test]
fn a_small_frame_does_not_wait_for_a_full_frame_of_each_other_flow() {
    let median = |quantum| {
        let mut flows = Flows::new(FlowConfig { quantum, ..CONFIG });
        (0..8 * 200).for_each(|n| flows.push(key(n % 8, 0), queued(n, 1514)));
        let (mut waits, mut since) = (Vec::new(), None);
        for at in 0..1000 {
            if at % 6 == 0 && since.is_none() {
                flows.push(key(99, 0), queued(at, 100));
                since = Some(at);
            }
            if flows.take(u32::MAX).unwrap().bytes == 100 {
                waits.extend(since.take().map(|since| at - since));
            }
        }
        waits.sort_unstable();
        waits[waits.len() / 2]
    };
    let [small, full] = [300, 1514].map(median);
    assert!(full >= 2 && small * 2 <= full, "{small} and {full} frames");
}
