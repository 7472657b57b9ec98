use super::*;
use crate::control::message::PairPort;
use crate::fdb::SegmentIndex;
use proptest::prelude::*;
use tidegate_contract::Mac;

const FIRST: u16 = 49_156;

fn names(vnic: &str) -> Names {
    (vnic.to_owned(), "remote".to_owned())
}

/// Returns what a switch with vNICs of these names wants: each with a pair of its own.
fn wanted(vnics: &[&str]) -> Wanted {
    let pair = |vnic: &&str| {
        let key =
            PairKey::new(SegmentIndex(1), Mac([2, 0, 0, 0, 0, vnic.as_bytes()[0]]), Mac([2, 9, 0, 0, 0, 9]));
        (names(vnic), key, 1000, KeyNumber::Even, Key::new([7; 16]))
    };
    Wanted { outgoing: vnics.iter().map(pair).collect(), ..Wanted::default() }
}

fn pairs(orders: PortOrders) -> Pairs {
    Pairs::new(vec![], (FIRST..FIRST + PAIR_LANES as u16).collect(), orders)
}

fn ports(pairs: &Pairs) -> Vec<PairPort> {
    let port =
        |status: PairStatus| Some(PairPort { port: status.port?, vnic: status.vnic, remote: status.remote });
    pairs.status().into_iter().filter_map(port).collect()
}

fn lane(tables: Option<(OutgoingPairs, IncomingPairs)>, of: &str) -> Option<u8> {
    let (mut outgoing, _) = tables.expect("new tables");
    let [(_, key, ..)] = &wanted(&[of]).outgoing[..] else { unreachable!() };
    outgoing.find(*key).expect("it has stamps").lane
}

#[test]
fn pairs_have_their_ports_again_at_a_switch_that_is_started_anew() {
    let mut first = pairs(PortOrders::default());
    first.tables("net0", wanted(&["z"]));
    first.tables("net0", wanted(&["a", "z"]));
    let kept = ports(&first);
    assert_eq!(kept.iter().map(|pair| pair.port).collect::<Vec<_>>(), [FIRST + 1, FIRST]);
    // In the order of names, and one after the other.
    let mut second = pairs(PortOrders { kept: kept.clone(), granted: None });
    second.tables("net0", wanted(&["a"]));
    second.tables("net0", wanted(&["a", "b", "z"]));
    let of_b = PairPort { vnic: "b".into(), remote: "remote".into(), port: FIRST + 2 };
    assert_eq!(ports(&second), [kept[0].clone(), of_b, kept[1].clone()]);
}

#[test]
fn a_pair_that_is_not_granted_keeps_its_port_and_does_not_use_it() {
    let mut pairs = pairs(PortOrders { kept: vec![], granted: Some([names("z")].into()) });
    assert_eq!(lane(pairs.tables("net0", wanted(&["a", "z"])), "a"), None);
    let before = ports(&pairs);
    assert_eq!(before.len(), 2);
    pairs.orders.granted = Some([names("a")].into());
    let tables = pairs.tables("net0", wanted(&["a", "z"]));
    assert_eq!(lane(tables, "a"), Some(0));
    pairs.orders.granted = None;
    assert_eq!(lane(pairs.tables("net0", wanted(&["a", "z"])), "z"), Some(1));
    assert!(pairs.tables("net0", wanted(&["a", "z"])).is_none(), "nothing changed");
    assert_eq!(ports(&pairs), before);
}

proptest! {
    /// Of any sequence of wanted pairs and lanes kept for pairs: each lane has one pair, none is free while a pair is
    /// without, a pair keeps its lane, a lane kept for a pair is its own unless another has it already, and no other gets
    /// it while a lane is free that is kept for none.
    #[test]
    fn each_lane_has_one_pair_that_keeps_it(
        steps in prop::collection::vec(
            (prop::collection::btree_set(0..100u8, 0..90), prop::collection::btree_map(0..100u8, 0..PAIR_LANES as u8, 0..20)),
            1..10,
        ),
    ) {
        let mut lanes = BTreeMap::new();
        let named = |number: &u8| names(&format!("v{number}"));
        for (wanted, kept) in steps {
            let wanted: Vec<Names> = wanted.iter().map(named).collect();
            let kept: BTreeMap<Names, u8> = kept.iter().map(|(number, lane)| (named(number), *lane)).collect();
            let before = lanes.clone();
            give_lanes(&mut lanes, wanted.iter(), &kept);
            let numbers: HashSet<u8> = lanes.values().copied().collect();
            prop_assert_eq!(numbers.len(), lanes.len());
            prop_assert_eq!(lanes.len(), wanted.len().min(PAIR_LANES));
            prop_assert!(numbers.iter().all(|lane| usize::from(*lane) < PAIR_LANES));
            let kept_for_none = |lane: &u8| !kept.values().any(|kept| kept == lane);
            let spare = (0..PAIR_LANES as u8).any(|lane| !numbers.contains(&lane) && kept_for_none(&lane));
            for names in &wanted {
                let lane = lanes.get(names);
                if let Some(before) = before.get(names) {
                    prop_assert_eq!(lane, Some(before));
                } else if let Some(own) = kept.get(names) {
                    let has_it = |(other, lane): (&Names, &u8)| {
                        other != names && lane == own && (before.contains_key(other) || kept.get(other) == Some(own))
                    };
                    prop_assert!(lane == Some(own) || lanes.iter().any(has_it));
                } else if let Some(lane) = lane {
                    prop_assert!(kept_for_none(lane) || !spare);
                }
            }
        }
    }
}
