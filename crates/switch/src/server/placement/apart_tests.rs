use super::plan::*;
use super::role::TAP_WRITE;
use super::*;
use proptest::prelude::*;

/// A voice vNIC, the sink of its deadline, and two taps that talk with the sink, on alternating workers as created.
fn demo(busy: u64) -> Placement {
    let [voice, sink, bulk] = [(Role::RealTime, 10_000), (Role::RealTime, 0), (Role::BestEffortTap, 0)];
    let vnics = [(0, bulk), (1, bulk), (0, sink), (1, voice)];
    let place = |(worker, (role, realtime))| Placed { worker, realtime, role, fixed: false };
    Placement {
        workers: 2,
        vnics: (0..).zip(vnics.map(place)).collect(),
        talk: [((0, 2), busy / 2), ((1, 2), busy / 2), ((2, 3), busy / 100)].into(),
    }
}

fn settle(places: &mut Placement) -> Vec<Step> {
    let mut steps = Vec::new();
    while let Some(step) = places.next() {
        places.take(&step);
        steps.push(step);
        assert!(steps.len() < 10_000, "no end: {:?}", &steps[..20]);
    }
    steps
}

#[test]
fn a_real_time_frame_waits_for_no_write_into_a_best_effort_tap() {
    for busy in [0, WHOLE / 10, WHOLE / 2, WHOLE] {
        let mut places = demo(busy);
        assert_eq!(places.sharing(), 2);
        let steps = settle(&mut places);
        let at = |port| places.vnics[&port].worker;
        assert_eq!((at(2), at(0)), (at(3), at(1)), "voice and sink, and both bulks: {places:?}");
        assert_ne!(at(2), at(0), "{places:?}");
        assert!(steps.iter().all(|step| step.reason == MoveReason::Apart), "{steps:?}");
    }
}

#[test]
fn one_worker_and_real_time_vnics_alone_stay() {
    let mut one = demo(WHOLE / 2);
    one.workers = 1;
    one.vnics.values_mut().for_each(|vnic| vnic.worker = 0);
    assert_eq!(one.next(), None);
    let mut alone = demo(0);
    alone.vnics.values_mut().for_each(|vnic| vnic.role = Role::RealTime);
    assert_eq!((alone.sharing(), alone.next()), (0, None));
    // Copies into guests take too little time to matter.
    let mut guests = demo(0);
    guests.vnics.values_mut().filter(|vnic| vnic.role == Role::BestEffortTap).for_each(|vnic| {
        vnic.role = Role::BestEffort;
    });
    assert_eq!((guests.sharing(), guests.next()), (0, None));
}

#[test]
fn many_real_time_vnics_make_room_at_once() {
    let place = |n: u16| {
        let role = if n < 80 { Role::RealTime } else { Role::BestEffortTap };
        (n, Placed { worker: usize::from(n % 2), realtime: u64::from(n < 80) * 10_000, role, fixed: false })
    };
    let mut places = Placement { workers: 2, vnics: (0..120).map(place).collect(), ..Placement::default() };
    let steps = settle(&mut places);
    assert_eq!(places.sharing(), 0, "{steps:?}");
    assert_eq!(steps[0].moves.len(), 40, "all of one worker: {steps:?}");
    assert!(steps[1..].iter().all(|step| step.moves.len() <= MOST_MOVED), "{steps:?}");
}

#[test]
fn a_loop_of_bursts_that_takes_longer_than_a_write_is_not_made() {
    let mut places = demo(0);
    for port in [2, 3] {
        places.vnics.get_mut(&port).unwrap().realtime = TAP_WRITE / 8 * 7;
    }
    assert_eq!(places.next(), None);
    places.vnics.get_mut(&2).unwrap().realtime = TAP_WRITE / 8;
    assert_eq!(places.next().map(|step| step.reason), Some(MoveReason::Apart));
}

#[test]
fn taps_stay_if_the_other_worker_has_no_time() {
    let tap = Role::BestEffortTap;
    let vnics = [(0, Role::RealTime), (0, tap), (0, tap), (0, tap), (0, tap), (1, tap), (1, tap)];
    let place = |(worker, role)| Placed { worker, role, ..Placed::default() };
    // Three pairs; one has the other worker alone.
    let mut places = Placement {
        workers: 2,
        vnics: (0..).zip(vnics.map(place)).collect(),
        talk: [((1, 2), WHOLE / 2), ((3, 4), WHOLE / 4), ((5, 6), WHOLE / 2)].into(),
    };
    settle(&mut places);
    let at: Vec<_> = places.vnics.values().map(|vnic| vnic.worker).collect();
    assert_eq!(at, [0, 0, 0, 1, 1, 1, 1], "{:?}", places.loads());
}

/// A contract changes under load: the taps leave at the first look, none returns, and none moves twice within a rest.
#[test]
fn a_new_deadline_separates_taps_at_once_and_for_good() {
    let role = |port: PortIndex| if port < 2 { Role::BestEffortTap } else { Role::RealTime };
    let mut at = [0usize; 4];
    let mut moved = [None; 4];
    let mut placer = Placer::default();
    for look in 0..100u32 {
        let role = |port| if look < 20 { Role::BestEffortTap } else { role(port) };
        let seat = |port: PortIndex| {
            let realtime = if role(port) == Role::RealTime { 10_000 } else { 0 };
            (port, VnicDemand { worker: at[usize::from(port)], realtime, role: role(port), directed: None })
        };
        let seen = Measurement {
            time: 1_000_000_000,
            busy: vec![600_000_000, 0],
            vnics: (0..4).map(seat).collect(),
            talk: vec![(0, 2, 400_000), (1, 2, 400_000), (2, 0, 20_000), (2, 1, 20_000), (3, 2, 10_000)],
        };
        for (port, to) in placer.evaluate(&seen).into_iter().flat_map(|step| step.moves) {
            let last = moved[usize::from(port)].replace(look);
            assert!(last.is_none_or(|last| look - last >= REST), "port {port} moves at {last:?} and {look}");
            at[usize::from(port)] = to;
        }
        let apart = at[0] == at[1] && at[2] == at[3] && at[0] != at[2];
        assert_eq!(apart, look >= 20, "look {look}: {at:?}");
    }
}

fn least_sharing(places: &Placement) -> usize {
    let ports: Vec<_> = places.vnics.iter().filter(|(_, vnic)| !vnic.fixed).map(|(port, _)| *port).collect();
    let ways = places.workers.pow(ports.len() as u32);
    let shares = |mut way: usize| {
        let mut tried = places.clone();
        for port in &ports {
            tried.vnics.get_mut(port).unwrap().worker = way % places.workers;
            way /= places.workers;
        }
        // Counts each tap once that has a real-time vNIC on its worker.
        let all = || tried.vnics.values();
        let realtime = |at| all().any(|vnic| vnic.worker == at && vnic.role == Role::RealTime);
        all().filter(|vnic| vnic.role == Role::BestEffortTap && realtime(vnic.worker)).count()
    };
    (0..ways).map(shares).min().unwrap()
}

fn few(fixed: f64) -> impl Strategy<Value = Placement> {
    let role = prop::sample::select(vec![Role::RealTime, Role::BestEffortTap, Role::BestEffort]);
    (1usize..4, prop::collection::vec((0usize..3, role, 0u64..20_000, prop::bool::weighted(fixed)), 1..7))
        .prop_map(|(workers, vnics)| {
            let place = |(worker, role, burst, fixed)| {
                let realtime = if role == Role::RealTime { burst } else { 0 };
                Placed { worker: worker % workers, realtime, role, fixed }
            };
            Placement {
                workers,
                vnics: (0..).zip(vnics.into_iter().map(place)).collect(),
                ..Placement::default()
            }
        })
}

proptest! {
    /// As few taps share a worker with real-time vNICs as in the best placement.
    #[test]
    fn no_placement_parts_more(mut places in few(0.0)) {
        settle(&mut places);
        prop_assert_eq!(places.sharing(), least_sharing(&places));
    }

    /// Fixed vNICs may be in the way, but no tap shares a worker that it could leave.
    #[test]
    fn each_tap_that_can_leave_leaves(mut places in few(0.3)) {
        settle(&mut places);
        prop_assert!(places.sharing() >= least_sharing(&places));
        let movable = places.vnics.iter().filter(|(_, vnic)| !vnic.fixed && vnic.role == Role::BestEffortTap);
        for (port, vnic) in movable {
            for to in (0..places.workers).filter(|to| *to != vnic.worker) {
                let mut tried = places.clone();
                tried.take(&Step { moves: vec![(*port, to)], reason: MoveReason::Apart });
                prop_assert!(tried.sharing() >= places.sharing(), "{port} could go to {to}");
            }
        }
    }
}
