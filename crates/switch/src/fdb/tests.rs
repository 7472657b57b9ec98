//! The table against a simple model, its bounds, and threads with all operations at once.

use super::*;
use proptest::prelude::*;
use std::collections::HashMap;

fn mac(n: u32) -> Mac {
    let b = n.to_be_bytes();
    Mac([0x02, 0, b[0], b[1], b[2], b[3]])
}

fn peer(link: PortIndex, number: u16) -> Destination {
    Destination::Peer { link, peer: PeerIndex::new(number).expect("a small number") }
}

/// Four ports, the last of which leads to three peers.
fn any_destination() -> impl Strategy<Value = Destination> {
    prop_oneof![(0u16..4).prop_map(Destination::Port), (0u16..3).prop_map(|number| peer(3, number))]
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Known {
    Pinned(Destination),
    Learned(Destination, u32),
}

#[derive(Clone, Debug)]
enum Step {
    Learn(u16, u32, Destination),
    Pin(u16, u32, Destination),
    Unpin(u16, u32, Destination),
    Lookup(u16, u32),
    /// This many seconds pass.
    Pass(u32),
    /// Addresses older than so many seconds go.
    Sweep(u32),
    Forget(Destination),
}

fn step() -> impl Strategy<Value = Step> {
    let address = || (0u16..3, 0u32..30);
    // Forgetting goes through the whole table.
    prop_oneof![
        16 => (address(), any_destination()).prop_map(|((s, m), to)| Step::Learn(s, m, to)),
        4 => (address(), any_destination()).prop_map(|((s, m), to)| Step::Pin(s, m, to)),
        4 => (address(), any_destination()).prop_map(|((s, m), to)| Step::Unpin(s, m, to)),
        16 => address().prop_map(|(s, m)| Step::Lookup(s, m)),
        4 => (1..100u32).prop_map(Step::Pass),
        1 => (0..200u32).prop_map(Step::Sweep),
        1 => any_destination().prop_map(Step::Forget),
    ]
}

proptest! {
    #[test]
    fn behaves_like_a_map(steps in prop::collection::vec(step(), 1..300)) {
        let fdb = Fdb::new();
        let mut model: HashMap<(u16, u32), Known> = HashMap::new();
        let mut now = 1000;
        for step in steps {
            match step {
                Step::Learn(s, m, from) => {
                    let expected = match model.get(&(s, m)) {
                        Some(Known::Pinned(to)) if *to == from => Ok(()),
                        Some(Known::Pinned(_)) => Err(NotLearned::Pinned),
                        _ => {
                            model.insert((s, m), Known::Learned(from, now));
                            Ok(())
                        }
                    };
                    prop_assert_eq!(fdb.learn(SegmentIndex(s), mac(m), from, now), expected);
                }
                Step::Pin(s, m, to) => {
                    let expected = match (model.get(&(s, m)), to) {
                        (Some(Known::Pinned(Destination::Port(_))), Destination::Peer { .. }) => {
                            Err(NotLearned::Pinned)
                        }
                        _ => {
                            model.insert((s, m), Known::Pinned(to));
                            Ok(())
                        }
                    };
                    prop_assert_eq!(fdb.pin(SegmentIndex(s), mac(m), to), expected);
                }
                Step::Unpin(s, m, to) => {
                    fdb.unpin(SegmentIndex(s), mac(m), to);
                    if model.get(&(s, m)) == Some(&Known::Pinned(to)) {
                        model.remove(&(s, m));
                    }
                }
                Step::Lookup(s, m) => {
                    let known = model.get(&(s, m)).copied();
                    let to = known.map(|(Known::Pinned(to) | Known::Learned(to, _))| to);
                    let (segment, mac) = (SegmentIndex(s), mac(m));
                    prop_assert_eq!(fdb.destination(segment, mac), to);
                    prop_assert_eq!(fdb.lookup(segment, mac), to.map(Destination::egress));
                    let pinned = matches!(known, Some(Known::Pinned(_)));
                    prop_assert_eq!(fdb.pinned(segment, mac), to.filter(|_| pinned));
                }
                Step::Pass(seconds) => now += seconds,
                Step::Sweep(age) => {
                    fdb.sweep(now - age);
                    model.retain(|_, known| !matches!(known, Known::Learned(_, seen) if *seen < now - age));
                }
                Step::Forget(gone) => {
                    fdb.forget(gone);
                    let goes = |to: Destination| to == gone || gone == Destination::Port(to.egress());
                    model.retain(|_, known| !matches!(known, Known::Learned(to, _) if goes(*to)));
                }
            }
            let learned = |which: &dyn Fn(Destination) -> bool| {
                let is = |known: &&Known| matches!(known, Known::Learned(to, _) if which(*to));
                model.values().filter(is).count() as u32
            };
            for port in 0..4 {
                prop_assert_eq!(fdb.learned(port), learned(&|to| to.egress() == port));
            }
            for number in 0..3 {
                prop_assert_eq!(fdb.learned(peer(3, number)), learned(&|to| to == peer(3, number)));
            }
        }
    }
}

#[test]
fn a_contract_of_this_host_outranks_addresses_from_other_hosts() {
    let fdb = Fdb::new();
    let segment = SegmentIndex(0);
    // Behind a peer by its frames; then by its contract, which a guest here cannot take.
    fdb.learn(segment, mac(1), peer(9, 4), 1).unwrap();
    fdb.pin(segment, mac(1), peer(9, 4)).unwrap();
    assert_eq!((fdb.learned(peer(9, 4)), fdb.learned(9)), (0, 0));
    assert_eq!(fdb.learn(segment, mac(1), 5, 1), Err(NotLearned::Pinned));
    assert_eq!((fdb.lookup(segment, mac(1)), fdb.destination(segment, mac(1))), (Some(9), Some(peer(9, 4))));
    // A vNIC of this host has it: no peer gets it, by frames or by a contract.
    fdb.pin(segment, mac(1), 5).unwrap();
    assert_eq!(fdb.learn(segment, mac(1), peer(9, 4), 1), Err(NotLearned::Pinned));
    assert_eq!(fdb.pin(segment, mac(1), peer(9, 4)), Err(NotLearned::Pinned));
    fdb.unpin(segment, mac(1), peer(9, 4));
    assert_eq!(fdb.pinned(segment, mac(1)), Some(Destination::Port(5)));
    fdb.unpin(segment, mac(1), 5);
    assert_eq!(fdb.destination(segment, mac(1)), None);
}

#[test]
fn no_peer_fills_the_table_nor_do_all_of_a_link() {
    let fdb = Fdb::new();
    let segment = SegmentIndex(0);
    fdb.learn(segment, mac(u32::MAX), 2, 1).unwrap();
    let learned = |number: u16| {
        let learn = |n: u32| {
            let address = mac(u32::from(number) << 16 | n);
            fdb.learn(SegmentIndex((n % 20) as u16), address, peer(9, number), 1)
        };
        (0..20_000).filter(|n| learn(*n).is_ok()).count() as u32
    };
    for number in 0..6 {
        let learned = learned(number);
        let left = LEARNED_PER_LINK - fdb.learned(9) + learned;
        assert!(learned <= LEARNED_PER_PEER.min(left) && learned >= LEARNED_PER_PEER.min(left) * 9 / 10);
        assert_eq!(fdb.learned(peer(9, number)), learned);
    }
    assert_eq!((fdb.learned(9), fdb.learned(2)), (LEARNED_PER_LINK, 1));
    // One of them goes, and makes room for the others; then all go with their link.
    fdb.forget(peer(9, 1));
    assert_eq!(fdb.learned(peer(9, 1)), 0);
    assert!(learned(7) > 0);
    fdb.forget(9);
    assert_eq!((fdb.learned(9), fdb.learned(peer(9, 0)), fdb.learned(2)), (0, 0, 1));
}

#[test]
fn a_segment_leaves_room_for_others_behind_its_peer() {
    let fdb = Fdb::new();
    let bound = u32::from(LEARNED_PER_PEER_AND_SEGMENT);
    let learned = |segment: u16, number: u16| {
        let addresses = (0..20_000u32).map(|n| mac(u32::from(number) << 16 | n));
        addresses.filter(|mac| fdb.learn(SegmentIndex(segment), *mac, peer(9, number), 1).is_ok()).count()
            as u32
    };
    assert_eq!((learned(3, 1), learned(4, 1), learned(3, 2)), (bound, bound, bound));
    assert_eq!((fdb.learned(peer(9, 1)), fdb.learned(9)), (2 * bound, 3 * bound));
    // What moves away, grows old or becomes a contract's makes room.
    fdb.learn(SegmentIndex(3), mac(1 << 16), 7, 2).unwrap();
    fdb.pin(SegmentIndex(3), mac(1 << 16 | 1), 8).unwrap();
    assert_eq!(learned(3, 1), bound, "it moves back, and one other comes");
    fdb.sweep(2);
    assert_eq!((learned(3, 1), learned(4, 1)), (bound, bound));
}

#[test]
fn a_segment_is_forgotten_as_a_whole() {
    let fdb = Fdb::new();
    for segment in [3, 4].map(SegmentIndex) {
        fdb.learn(segment, mac(1), peer(9, 1), 1).unwrap();
        fdb.learn(segment, mac(2), 5, 1).unwrap();
        fdb.pin(segment, mac(3), 6).unwrap();
    }
    fdb.forget_segment(SegmentIndex(3));
    let known = |segment| [1, 2, 3].map(|n| fdb.lookup(SegmentIndex(segment), mac(n)));
    assert_eq!((known(3), known(4)), ([None, None, Some(6)], [Some(9), Some(5), Some(6)]));
    assert_eq!((fdb.learned(9), fdb.learned(5), fdb.learned(peer(9, 1))), (1, 1, 1));
}

/// Workers learn the same addresses in turn, old ones go at once, and a contract comes and goes.
#[test]
fn a_contract_holds_while_others_learn_and_sweep() {
    use std::sync::atomic::AtomicBool;
    let rounds = if cfg!(miri) { 20 } else { 200_000 };
    let (fdb, segment, done) = (Fdb::new(), SegmentIndex(7), AtomicBool::new(false));
    let (own, others) = (mac(1), [mac(1), mac(2), mac(3)]);
    std::thread::scope(|scope| {
        let learns = |from: Destination| {
            for now in 0.. {
                if done.load(Ordering::Relaxed) {
                    break;
                }
                for address in others {
                    let _ = fdb.learn(segment, address, from, now);
                    let at = fdb.destination(segment, address);
                    let known = [Destination::Port(1), Destination::Port(2), peer(9, 4)];
                    assert!(at.is_none_or(|at| known.contains(&at)), "{at:?}");
                    assert!(at != Some(Destination::Port(1)) || address == own, "another's destination");
                }
            }
        };
        scope.spawn(move || learns(Destination::Port(2)));
        scope.spawn(move || learns(peer(9, 4)));
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                // The whole table takes long: only possible addresses are checked.
                for address in others {
                    fdb.probes(key(segment, address))
                        .for_each(|entry| fdb.remove_if_learned(entry, |_, _| true));
                }
            }
        });
        for round in 0..rounds {
            fdb.pin(segment, own, 1).unwrap();
            for _ in 0..20 {
                assert_eq!(fdb.pinned(segment, own), Some(Destination::Port(1)), "round {round}");
            }
            fdb.unpin(segment, own, 1);
        }
        done.store(true, Ordering::Relaxed);
    });
    fdb.sweep(u32::MAX);
    assert_eq!([fdb.learned(1), fdb.learned(2), fdb.learned(9), fdb.learned(peer(9, 4))], [0; 4]);
    assert_eq!(others.map(|address| fdb.destination(segment, address)), [None; 3]);
}

#[test]
fn a_segment_never_sees_another() {
    let fdb = Fdb::new();
    fdb.pin(SegmentIndex(0), mac(1), 5).unwrap();
    assert_eq!(fdb.lookup(SegmentIndex(0), mac(1)), Some(5));
    assert_eq!(fdb.lookup(SegmentIndex(1), mac(1)), None);
}

#[test]
fn learning_never_moves_a_pinned_address() {
    let fdb = Fdb::new();
    fdb.pin(SegmentIndex(0), mac(1), 5).unwrap();
    assert_eq!(fdb.learn(SegmentIndex(0), mac(1), 6, 1), Err(NotLearned::Pinned));
    fdb.learn(SegmentIndex(0), mac(2), 6, 1).unwrap();
    let pinned = [1, 2, 3].map(|n| fdb.pinned(SegmentIndex(0), mac(n)));
    assert_eq!(pinned, [Some(Destination::Port(5)), None, None]);
    fdb.sweep(u32::MAX);
    assert_eq!(fdb.lookup(SegmentIndex(0), mac(1)), Some(5));
    fdb.unpin(SegmentIndex(0), mac(1), 5);
    assert_eq!(fdb.lookup(SegmentIndex(0), mac(1)), None);
}

#[test]
fn a_flood_of_addresses_is_bounded_and_leaves_others_alone() {
    let fdb = Fdb::new();
    fdb.pin(SegmentIndex(0), mac(1 << 24), 1).unwrap();
    let refused = (0..20_000u32).filter(|n| fdb.learn(SegmentIndex(0), mac(*n), 2, 1).is_err()).count();
    assert!(fdb.learned(2) <= LEARNED_PER_PORT && refused >= 20_000 - LEARNED_PER_PORT as usize);
    assert_eq!(fdb.lookup(SegmentIndex(0), mac(1 << 24)), Some(1));
    fdb.pin(SegmentIndex(0), mac(5 << 24), 3).unwrap();
    assert_eq!(fdb.lookup(SegmentIndex(0), mac(5 << 24)), Some(3));
}

#[test]
fn learned_addresses_make_room_for_a_contract() {
    let fdb = Fdb::new();
    let segment = SegmentIndex(0);
    let own = mac(7);
    // A guest behind a trunk fills every entry that the address could have.
    let around = |n: &u32| (slot(key(segment, mac(*n))) + SLOTS - slot(key(segment, own))) % SLOTS < PROBES;
    let chosen: Vec<u32> = (1 << 24..u32::MAX).filter(around).take(4 * PROBES).collect();
    for n in &chosen {
        let _ = fdb.learn(segment, mac(*n), 2, 1);
    }
    assert!(fdb.claim(key(segment, own)).is_none(), "not full around it");
    fdb.pin(segment, own, 5).unwrap();
    assert_eq!(fdb.lookup(segment, own), Some(5));
    let left = chosen.iter().filter(|n| fdb.lookup(segment, mac(**n)).is_some()).count();
    assert_eq!(left as u32, fdb.learned(2));
}

#[test]
fn learned_addresses_can_be_listed() {
    let fdb = Fdb::new();
    fdb.pin(SegmentIndex(0), mac(9), 1).unwrap();
    let known = [
        (SegmentIndex(0), mac(1), Destination::Port(2), 100),
        (SegmentIndex(7), mac(u32::MAX), Destination::Port(1023), 400),
        (SegmentIndex(9), mac(3), peer(4, PeerIndex::MOST - 1), 300),
    ];
    for (segment, mac, from, seconds) in known {
        fdb.learn(segment, mac, from, seconds).unwrap();
    }
    fdb.learn(SegmentIndex(1), mac(5), 2, 1).unwrap();
    fdb.sweep(50);
    let mut told = fdb.learned_addresses();
    told.sort_by_key(|(segment, ..)| segment.0);
    assert_eq!(told, known);
}

#[test]
fn an_address_that_is_not_seen_again_is_forgotten() {
    let fdb = Fdb::new();
    fdb.learn(SegmentIndex(0), mac(1), 2, 100).unwrap();
    fdb.learn(SegmentIndex(0), mac(2), 2, 100).unwrap();
    fdb.learn(SegmentIndex(0), mac(1), 2, 400).unwrap();
    fdb.sweep(200);
    assert_eq!(fdb.lookup(SegmentIndex(0), mac(1)), Some(2));
    assert_eq!(fdb.lookup(SegmentIndex(0), mac(2)), None);
    assert_eq!(fdb.learned(2), 1);
}

#[test]
fn a_reserved_address_leads_to_its_holder() {
    let (fdb, segment, shared) = (Fdb::new(), SegmentIndex(3), Mac([0, 0, 0x5e, 0, 1, 9]));
    fdb.learn(segment, shared, 5, 1).unwrap();
    fdb.lead(segment, shared, Some(6));
    assert_eq!(fdb.lookup(segment, shared), Some(5), "only what is reserved is led");
    fdb.reserve(segment, shared).unwrap();
    assert_eq!((fdb.lookup(segment, shared), fdb.learned(5)), (None, 0));
    assert_eq!(fdb.learn(segment, shared, 5, 2), Err(NotLearned::Pinned));
    for to in [Some(6), Some(7), None, Some(8)] {
        fdb.lead(segment, shared, to);
        assert_eq!(fdb.lookup(segment, shared), to);
        assert_eq!(fdb.learn(segment, shared, 5, 2), Err(NotLearned::Pinned));
        fdb.sweep(100);
        fdb.forget(6);
        assert_eq!(fdb.lookup(segment, shared), to);
    }
    fdb.unreserve(segment, shared);
    fdb.lead(segment, shared, Some(6));
    assert_eq!(fdb.lookup(segment, shared), None);
    assert_eq!(fdb.learn(segment, shared, 5, 3), Ok(()));
}
