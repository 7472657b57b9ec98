//! Single scenes, each with the expected outcome.

use super::sim::*;

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
        assert!((part - 1.0).abs() < 0.01, "source {id} has {part} of its share");
    }
    // And the rate is used: 4 s at 500 Mbit/s.
    assert!(total.abs_diff(250_000_000) <= 10_000 + 65_536, "{total}");
}

#[test]
fn a_late_worker_still_gives_super_frames_their_rate() {
    // Larger than the burst, so each waits for a full bucket; the worker comes 0.1 to 0.4 ms later. The
    // rate is 500 Mbit/s: 1.1 ms a frame.
    let mut sched = Scheduler::new(egress(Some(500_000_000), 65_536));
    sched.set_source(0, 1, share(1));
    let (mut now, mut sent) = (0, 0u64);
    for lateness in (1..=4).cycle().take(2_000) {
        while sched.backlog(1).frames < 3 {
            sched.enqueue(now, 1, frame(now, 68_506, None)).expect("fits");
        }
        if let Head::WaitUntil(at) = sched.head(now) {
            now = at + lateness * 100_000;
        }
        sent += u64::from(sched.take(now).expect("it conforms").2.bytes);
    }
    let ideal = now / 16;
    assert!(sent <= ideal + 65_536 + 68_506, "{sent} of {ideal}");
    assert!(sent >= ideal - 68_506, "{sent} of {ideal}");
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
    // Half is guaranteed to the first; the rest is shared equally.
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
    let own = sim.sent.iter().filter(|s| s.source == SourceId::Port(500));
    for (n, s) in own.enumerate() {
        let due = start + (n as u64 + 1) * 2 * 1514 * NS_PER_BYTE;
        assert!(s.end <= due + 1514 * NS_PER_BYTE, "frame {n}: {} late", s.end - due);
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
    let first = sim.sent.iter().find(|s| s.source == SourceId::Port(2)).expect("is served");
    // Owed for 10 ms at half the link: made up in another 10 ms.
    assert!(first.start - resumed <= 10_000_000 + 3 * 1514 * NS_PER_BYTE);
    assert!(first.start - resumed > 9_000_000, "what is owed is made up for");
}

#[test]
fn the_source_polled_last_finds_room_in_the_queue() {
    // 40 frames of room, 16 sources that offer 32 at every turn, always in the same order.
    let mut sched = Scheduler::new(EgressConfig { queue: 40 * 1514, ..egress(None, 0) });
    (0..16).for_each(|id| sched.set_source(0, id, share(1)));
    let mut served = [0; 16];
    for now in 0..2000 {
        for id in 0..16 {
            for _ in 0..32 {
                let _ = sched.enqueue(now, id, frame(now, 1514, None));
            }
        }
        let (id, ..) = sched.take(now).expect("frames wait");
        // The first had all of the queue until the others came.
        let SourceId::Port(port) = id else { panic!("{id:?} has no frames") };
        served[usize::from(port)] += u32::from(now >= 400);
    }
    assert!(served.iter().all(|frames| (99..=101).contains(frames)), "{served:?}");
}

#[test]
fn alone_a_source_may_use_all_of_the_queue() {
    let mut sched = Scheduler::new(EgressConfig { queue: 4 * 1514, ..egress(None, 0) });
    (1..=2).for_each(|id| sched.set_source(0, id, share(1)));
    for _ in 0..4 {
        assert_eq!(sched.enqueue(0, 1, frame(0, 1514, None)), Ok(()));
    }
    assert_eq!(sched.enqueue(0, 2, frame(0, 1514, None)), Err(Full::EgressBytes));
    sched.take(0).expect("frames wait");
    assert_eq!(sched.enqueue(0, 2, frame(0, 1514, None)), Ok(()));
    // Not enough beside another: of four it has two, and one remains.
    assert!(sched.drop_tail(1).is_some());
    assert_eq!(sched.enqueue(0, 1, frame(0, 1514, None)), Err(Full::EgressBytes));
}

#[test]
fn no_flood_costs_a_promise_its_place_in_the_queue() {
    let mut sched = Scheduler::new(EgressConfig { queue: 3000, ..egress(Some(1_000_000), 1500) });
    sched.set_source(0, 1, share(1000));
    sched.set_source(0, 2, minimum(100_000, 1500));
    sched.set_source(0, 3, real_time(1_000_000));
    sched.set_source(0, 4, SourceConfig { cap_bytes: 2000, cap_frames: 3, ..share(1) });
    for _ in 0..2 {
        assert_eq!(sched.enqueue(0, 1, frame(0, 1500, None)), Ok(()));
    }
    assert_eq!(sched.enqueue(0, 1, frame(0, 60, None)), Err(Full::EgressBytes));
    assert_eq!(sched.enqueue(0, 2, frame(0, 1500, None)), Ok(()));
    assert_eq!(sched.enqueue(0, 3, frame(0, 1500, Some(1_000_000))), Ok(()));
    assert_eq!(sched.enqueue(0, 4, frame(0, 2001, None)), Err(Full::SourceBytes));
    assert_eq!(sched.enqueue(0, 5, frame(0, 60, None)), Err(Full::NoSource));
    sched.clear_source(1, |_| {});
    for _ in 0..3 {
        assert_eq!(sched.enqueue(0, 4, frame(0, 60, None)), Ok(()));
    }
    assert_eq!(sched.enqueue(0, 4, frame(0, 60, None)), Err(Full::SourceFrames));
    // Without the promise it loses its place.
    sched.set_source(0, 2, share(1));
    assert_eq!(sched.enqueue(0, 1, frame(0, 1500, None)), Err(Full::EgressBytes));
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
        assert_eq!(sched.enqueue(at, id, frame(at, 1500, (id == 2).then_some(1_000))), Ok(()));
    }
    assert_eq!(sched.enqueue(3, 2, frame(3, 60, Some(1_000))), Err(Full::EgressBytes));
    assert!(matches!(sched.take(3), Some((SourceId::Port(1), Tier::Fifo, _))));
    // Charged at its arrival, not when taken.
    assert_eq!(sched.head(3), Head::WaitUntil(1_500_000));
    sched.expire(1_500_003, u64::MAX, |_, _| panic!("a FIFO knows no deadlines"));
    assert!(matches!(sched.take(1_500_003), Some((SourceId::Port(2), Tier::Fifo, _))));
    assert!(sched.take(2_999_999).is_none());
    assert!(matches!(sched.take(3_000_000), Some((SourceId::Port(1), Tier::Fifo, _))));
    assert_eq!(sched.head(3_000_000), Head::Empty);
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

    // Twice the rate, a third of the weight, from now on.
    sim.sched.reconfigure(sim.now, egress(Some(LINK / 5), 1500));
    sim.sched.set_source(sim.now, 1, share(3));
    assert_eq!(sim.sched.backlog_total(), waiting);
    sim.sent.clear();
    sim.run(sim.now + 500_000_000);
    let (one, two) = (sim.bytes_of(1), sim.bytes_of(2));
    assert!((one + two).abs_diff(12_500_000) <= 3000, "{}", one + two);
    assert!(one.abs_diff(3 * two) <= 3 * 3000, "{one} {two}");

    // To FIFO and back: every frame is present once.
    let fifo = EgressConfig { discipline: Discipline::Fifo, ..egress(None, 0) };
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
    assert_eq!(sched.take(200_000).map(|t| (t.0, t.1)), Some((source, Tier::Share)));
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
    let port = SourceId::Port;
    let expired = |sched: &mut Scheduler<()>, now| {
        let mut gone = Vec::new();
        sched.expire(now, 100, |id, q| gone.push((id, q.enqueued)));
        gone
    };
    assert_eq!(expired(&mut sched, 30), []);
    assert_eq!(expired(&mut sched, 31), [(port(2), 0)]);
    assert_eq!(expired(&mut sched, 99), [(port(2), 40)]);
    assert_eq!(expired(&mut sched, 100), [(port(1), 0)]);
    assert_eq!(expired(&mut sched, 200), [(port(2), 80), (port(1), 40), (port(1), 80)]);
    assert_eq!(sched.backlog_total(), Backlog::default());
}

#[test]
fn remote_vnics_that_share_a_link_have_promises_of_their_own() {
    // A port and 300 remote vNICs send to one egress: each remote one is a source.
    let mut sim = Sim::new(egress(None, 0));
    let remote = |number| SourceId::Remote(RemoteVnic::new(number).expect("a small number"));
    for number in 0..300 {
        sim.greedy(remote(number), share(1), &[1514]);
    }
    sim.greedy(0, share(100), &[1514]);
    sim.sched.set_source(sim.now, remote(20_000), real_time(50_000));
    sim.sched.set_source(sim.now, remote(20_001), real_time(20_000));
    let begin = sim.now;
    for at in [begin + 400_000_000, begin + 800_000_000] {
        sim.arrivals.push_back((at, remote(20_000), 200, Some(50_000)));
        sim.arrivals.push_back((at, remote(20_001), 200, Some(20_000)));
    }
    sim.run(begin + 1_000_000_000);
    assert!(sim.bytes_of(0).abs_diff(100 * sim.bytes_of(remote(7))) <= 101 * 1514);
    let urgent: Vec<_> = sim.sent.iter().filter(|s| s.tier == Tier::RealTime).collect();
    assert_eq!(
        urgent.iter().map(|s| s.source).collect::<Vec<_>>(),
        [20_001, 20_000, 20_001, 20_000].map(remote)
    );
    assert!(urgent.iter().all(|s| s.end <= s.queued.deadline));
    // Their waiting frames can be dropped at once; the sources stay known.
    let waiting = sim.sched.backlog_total().frames;
    let mut dropped = 0;
    sim.sched.clear(|_| dropped += 1);
    assert_eq!((dropped, sim.sched.backlog_total()), (waiting, Backlog::default()));
    assert!(sim.sched.knows(0) && sim.sched.knows(remote(20_001)) && !sim.sched.knows(remote(301)));
    sim.sched.remove_source(remote(7), |_| {});
    assert!(!sim.sched.knows(remote(7)) && sim.sched.knows(remote(8)));
}
