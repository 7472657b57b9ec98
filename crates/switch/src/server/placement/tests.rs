use super::plan::*;
use super::*;
use proptest::prelude::*;

fn places(workers: usize, at: &[usize], talk: &[(PortIndex, PortIndex, u64)]) -> Placement {
    let place = |worker: &usize| Placed { worker: *worker, ..Placed::default() };
    Placement {
        workers,
        vnics: (0..).zip(at.iter().map(place)).collect(),
        talk: talk.iter().map(|(a, b, talk)| ((*a, *b), *talk)).collect(),
    }
}

fn seat(worker: usize, role: Role) -> VnicDemand {
    VnicDemand { worker, role, realtime: if role == Role::RealTime { 10_000 } else { 0 }, directed: None }
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

fn workers(places: &Placement) -> Vec<usize> {
    places.vnics.values().map(|vnic| vnic.worker).collect()
}

#[test]
fn pairs_that_alternate_come_together_and_both_workers_stay_busy() {
    let talk = WHOLE / 2;
    let mut places = places(2, &[0, 1, 0, 1], &[(0, 1, talk), (2, 3, talk)]);
    assert_eq!(places.loads(), [WHOLE, WHOLE]);
    let steps = settle(&mut places);
    assert_eq!((places.crossing(), places.loads()), (0, vec![talk, talk]));
    assert_eq!(steps.len(), 2, "{steps:?}");
}

#[test]
fn eight_pairs_on_four_workers_come_together_and_are_shared_out() {
    let at: Vec<_> = (0..16).map(|n| n % 4).collect();
    let talk: Vec<_> = (0..8).map(|pair| (2 * pair, 2 * pair + 1, WHOLE / 4)).collect();
    let mut places = places(4, &at, &talk);
    settle(&mut places);
    assert_eq!((places.crossing(), places.loads()), (0, vec![WHOLE / 2; 4]));
}

#[test]
fn traffic_that_one_worker_carries_easily_is_at_one_worker() {
    let talk: Vec<_> = (1..8).map(|client| (0, client, 30_000)).collect();
    let at: Vec<_> = (0..8).map(|n| n % 2).collect();
    let mut places = places(2, &at, &talk);
    settle(&mut places);
    assert_eq!(places.crossing(), 0, "{places:?}");
}

#[test]
fn deadlines_outrank_traffic_between_vnics() {
    let mut places = places(2, &[0, 0, 0], &[(0, 1, 80_000), (1, 2, 80_000)]);
    for port in [0, 1] {
        places.vnics.get_mut(&port).unwrap().realtime = 8_000;
    }
    let steps = settle(&mut places);
    assert_eq!(steps[0].reason, MoveReason::Deadlines);
    assert_eq!(places.worst_loops(), [8_000, 8_000], "{:?}", workers(&places));
    assert!(steps[1..].iter().all(|step| step.reason != MoveReason::Deadlines), "{steps:?}");
}

#[test]
fn a_step_is_taken_after_it_was_the_best_for_a_while() {
    let mut placer = Placer::default();
    let mut seen = Measurement {
        time: 1_000_000_000,
        busy: vec![400_000_000; 2],
        vnics: [(0, seat(0, Role::BestEffort)), (1, seat(1, Role::BestEffort))].into(),
        talk: vec![(0, 1, 1_000_000), (1, 0, 1_000)],
    };
    // Occasional bursts cause no move.
    let quiet = Measurement { talk: vec![(0, 1, 1)], busy: vec![1_000; 2], ..seen.clone() };
    for n in 0..40 {
        assert_eq!(placer.evaluate(if n % 10 == 0 { &seen } else { &quiet }), None, "{n}");
    }
    let step = (0..2 * PATIENCE).find_map(|_| placer.evaluate(&seen)).expect("they talk");
    assert_eq!((step.moves.len(), step.reason), (1, MoveReason::Together));
    let (port, to) = step.moves[0];
    seen.vnics.get_mut(&port).unwrap().worker = to;
    seen.busy[1 - to] = 0;
    assert!((0..100).all(|_| placer.evaluate(&seen).is_none()));
    // A vNIC that could not move rests for a while.
    seen.vnics.get_mut(&port).unwrap().worker = 1 - to;
    seen.busy = vec![400_000_000; 2];
    placer.rest(0);
    placer.rest(1);
    let looks = (1..100).find(|_| placer.evaluate(&seen).is_some());
    assert!(looks.is_some_and(|looks| looks >= REST), "{looks:?}");
}

/// At each look, a different one of many similar pairs has most traffic.
#[test]
fn loads_that_vary_come_together() {
    let mut placer = Placer::default();
    let mut at: Vec<usize> = (0..16).map(|n| n % 2).collect();
    let mut random = 1u64;
    let looks = (1..=300).find(|_| {
        let mut talk = Vec::new();
        for pair in 0..8 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            talk.push((2 * pair, 2 * pair + 1, 800_000 + (random >> 33) % 400_000));
        }
        let vnics = (0..).zip(&at).map(|(port, worker)| (port, seat(*worker, Role::BestEffort))).collect();
        let seen = Measurement { time: 1_000_000_000, busy: vec![900_000_000; 2], vnics, talk };
        for (port, worker) in placer.evaluate(&seen).into_iter().flat_map(|step| step.moves) {
            at[usize::from(port)] = worker;
        }
        at.chunks(2).all(|pair| pair[0] == pair[1])
    });
    assert!(looks.is_some_and(|looks| looks <= 8 * 2 * PATIENCE), "{looks:?}: {at:?}");
}

fn any_places() -> impl Strategy<Value = Placement> {
    (2usize..6, 1u16..24).prop_flat_map(|(workers, count)| {
        let role = prop::sample::select(vec![
            Role::RealTime,
            Role::BestEffortTap,
            Role::BestEffort,
            Role::BestEffort,
        ]);
        let vnic = (0..workers, role, 0u64..20_000, prop::bool::weighted(0.1));
        let vnics = prop::collection::vec(vnic, usize::from(count));
        let talk = prop::collection::btree_map((0..count, 0..count), 0u64..300_000, 0..40);
        (Just(workers), vnics, talk).prop_map(|(workers, vnics, talk)| Placement {
            workers,
            vnics: (0..)
                .zip(vnics)
                .map(|(port, (worker, role, burst, fixed))| {
                    let realtime = if role == Role::RealTime { burst } else { 0 };
                    (port, Placed { worker, realtime, role, fixed })
                })
                .collect(),
            talk: talk.into_iter().filter(|((a, b), _)| a < b).collect(),
        })
    })
}

/// Evaluates constant demands and loads until nothing has moved for long; returns the workers.
fn rest(mut measurement: Measurement, refused: &[PortIndex]) -> Vec<usize> {
    let (mut placer, mut quiet) = (Placer::default(), 0);
    for _ in 0..2000 {
        match placer.evaluate(&measurement) {
            None => quiet += 1,
            Some(step) => {
                let mut moved = false;
                for (port, to) in step.moves {
                    let vnic = measurement.vnics.get_mut(&port).unwrap();
                    assert!(vnic.directed.is_none_or(|worker| worker == to), "{port} is directed elsewhere");
                    if !refused.contains(&port) {
                        (vnic.worker, moved) = (to, true);
                    }
                }
                quiet = if moved { 0 } else { quiet + 1 };
            }
        }
        if quiet > 4 * REST {
            return measurement.vnics.values().map(|vnic| vnic.worker).collect();
        }
    }
    panic!("no end")
}

fn measurement(
    workers: usize,
    vnics: &[(usize, Option<usize>)],
    talk: &[(PortIndex, PortIndex, u64)],
) -> Measurement {
    let demand = |(worker, directed): &(usize, Option<usize>)| VnicDemand {
        worker: *worker,
        directed: *directed,
        ..VnicDemand::default()
    };
    Measurement {
        time: 1_000_000_000,
        busy: vec![400_000_000; workers],
        vnics: (0..).zip(vnics.iter().map(demand)).collect(),
        talk: talk.to_vec(),
    }
}

#[test]
fn directed_vnics_go_to_their_workers_and_the_others_are_still_placed() {
    // Without directions, 0 and 1 would come together, as 2 and 3 do.
    let vnics = [(0, Some(0)), (1, Some(1)), (0, None), (1, None)];
    let talk = [(0, 1, 1000), (2, 3, 1000)];
    let after = rest(measurement(2, &vnics, &talk), &[]);
    assert_eq!((after[0], after[1], after[2] == after[3]), (0, 1, true));
    assert_eq!(rest(measurement(2, &[(0, Some(1)), (1, Some(0))], &[]), &[]), [1, 0]);
    // No such worker; a move that is refused.
    assert_eq!(rest(measurement(2, &[(0, Some(2)), (0, Some(1)), (0, Some(1))], &[]), &[1]), [0, 0, 1]);
}

#[test]
fn a_refused_direction_is_tried_again_after_its_rest() {
    let measurement = measurement(2, &[(0, Some(1))], &[]);
    let mut placer = Placer::default();
    let tries = (0..3 * REST).filter(|_| placer.evaluate(&measurement).is_some()).count();
    assert_eq!(tries, 3);
}

#[test]
fn at_most_16_directed_vnics_move_at_a_look() {
    let measurement = measurement(2, &[(0, Some(1)); 40], &[]);
    let mut placer = Placer::default();
    let mut moved = std::collections::BTreeSet::new();
    for expected in [16, 16, 8] {
        let step = placer.evaluate(&measurement).unwrap();
        assert_eq!((step.moves.len(), step.reason), (expected, MoveReason::Directed));
        moved.extend(step.moves.into_iter().map(|(port, _)| port));
    }
    assert_eq!((moved.len(), placer.evaluate(&measurement)), (40, None));
}

proptest! {
    #[test]
    fn constant_directions_come_to_rest(
        vnics in prop::collection::vec((0..3usize, prop::option::of(0..3usize)), 1..12),
        talk in prop::collection::vec((0..12u16, 0..12u16, 1..1000u64), 0..20),
    ) {
        let after = rest(measurement(3, &vnics, &talk), &[]);
        for (worker, (_, directed)) in after.iter().zip(&vnics) {
            prop_assert!(directed.is_none_or(|directed| directed == *worker));
        }
    }

    /// A constant load comes to rest, and each step on the way is allowed.
    #[test]
    fn every_load_comes_to_rest(mut places in any_places()) {
        let mut steps = 0;
        while let Some(step) = places.next() {
            let before = places.clone();
            places.take(&step);
            steps += 1;
            prop_assert!(steps < 200, "no end: {step:?}");
            let makes_room = |port| before.vnics[port].role == Role::RealTime && step.reason == MoveReason::Apart;
            prop_assert!(step.moves.len() <= MOST_MOVED || step.moves.iter().all(|(port, _)| makes_room(port)));
            prop_assert!(places.sharing() <= before.sharing(), "{step:?}");
            prop_assert!(before.is_worthwhile(&step), "{step:?}");
            for (port, to) in &step.moves {
                prop_assert!(!before.vnics[port].fixed && before.vnics[port].worker != *to);
            }
            let longest = |places: &Placement| places.worst_loops().into_iter().max().unwrap();
            let busiest = |places: &Placement| places.loads().into_iter().max().unwrap();
            match step.reason {
                MoveReason::Directed => prop_assert!(false, "{step:?}"),
                MoveReason::Apart => prop_assert!(places.sharing() < before.sharing()),
                // Of two equally long loops, one may stay.
                MoveReason::Deadlines => {
                    let most = longest(&before);
                    let longest_loops = |places: &Placement| {
                        places.worst_loops().into_iter().filter(|length| *length == most).count()
                    };
                    prop_assert!(longest(&places) <= most && longest_loops(&places) < longest_loops(&before));
                }
                MoveReason::Together => prop_assert!(places.crossing() + WORTH <= before.crossing()),
                MoveReason::Balance => prop_assert!(places.crossing() <= before.crossing()),
            }
            if [MoveReason::Together, MoveReason::Balance].contains(&step.reason) {
                prop_assert!(longest(&places) <= longest(&before), "{step:?}");
                prop_assert!(busiest(&places) <= busiest(&before).max(HALF), "{step:?}");
            }
        }
        // At rest, no movable group could make the busiest worker much less busy.
        let (loads, crossing) = (places.loads(), places.crossing());
        let busiest = *loads.iter().max().unwrap();
        let idlest = loads.iter().position(|load| Some(load) == loads.iter().min()).unwrap();
        for (port, vnic) in &places.vnics {
            if vnic.fixed || vnic.realtime > 0 || loads[vnic.worker] < busiest.max(HALF + 1) {
                continue;
            }
            let mut moved = places.clone();
            moved.take(&Step { moves: vec![(*port, idlest)], reason: MoveReason::Balance });
            let after = moved.loads()[vnic.worker].max(moved.loads()[idlest]);
            let is_worse = moved.crossing() > crossing || moved.sharing() > places.sharing();
            prop_assert!(is_worse || after + 2 * WORTH > busiest, "{port} could go to {idlest}");
        }
    }
}
