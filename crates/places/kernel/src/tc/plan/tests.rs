//! The plan by examples, and tools to check any plan.

use super::{Plan, model, plan};
use crate::ebpf::mark::Marks;
use crate::ebpf::police::Bucket;
use crate::handle::Handle;
use crate::limit::Limit;
use crate::tc::class::HtbClass;
use crate::tc::network::*;
use crate::tc::owner;
use crate::tc::queueing::{Flows, Host, Qdiscs, Waiting};
use crate::tc::shaping::{Shaping, Share, Ways};
use crate::tc::step::Step;
use crate::tc::vlan::Vlans;
use std::collections::BTreeMap;
use tidegate_contract::{Bytes, Rate};

pub(super) fn limit(mbit: u64) -> Limit {
    let rate = Rate::from_bits(mbit * 1_000_000).expect("a rate");
    Limit::new(rate, Bytes::new(65_536), None, 1518).expect("a limit")
}

pub(super) fn shaping(netdev: &str, tx: u64, rx: u64) -> Shaping {
    let side = |mbit| (mbit > 0).then(|| limit(mbit));
    Shaping { netdev: netdev.into(), tx: side(tx), rx: side(rx), ..Shaping::default() }
}

pub(super) fn policing(netdev: &str, tx: u64, rx: u64) -> Shaping {
    let bucket = Bucket { rate: tx * 125_000, burst: 65_536 };
    Shaping { tx_police: (tx > 0).then_some(bucket), ..shaping(netdev, 0, rx) }
}

/// Interface index of the bridge of all taps.
const BRIDGE: u32 = 90;

/// Returns `tap1` and so on, as QEMU leaves them, on a bridge that filters VLANs.
pub(super) fn taps(n: u32) -> Network {
    let tap = |i: u32| Netdev {
        name: format!("tap{i}"),
        kind: Some("tun".into()),
        up: true,
        qdiscs: vec![Qdisc {
            handle: Handle::default(),
            parent: Handle::ROOT,
            setting: Setting::Other("pfifo_fast".into()),
        }],
        master: Some(BRIDGE),
        vlans: Some(Vlans::access(1)),
        ..Netdev::default()
    };
    let bridge = Netdev {
        name: "br0".into(),
        kind: Some("bridge".into()),
        bridge: Some(Bridge { filters: true, default_pvid: Some(1) }),
        ..Netdev::default()
    };
    Network {
        netdevs: (1..=n).map(|i| (i, tap(i))).chain([(BRIDGE, bridge)]).collect(),
        ..Network::default()
    }
}

pub(super) fn run(network: &mut Network, plan: &Plan) {
    for step in &plan.steps {
        if let Err(e) = model::apply(network, step) {
            panic!("{step}: {e}\n{plan:#?}\n{network:#?}");
        }
    }
}

/// Applies one plan.
pub(super) fn settle(network: &mut Network, wanted: &[Shaping]) {
    let made = plan(wanted, network);
    run(network, &made);
}

pub(super) fn shown(plan: &Plan) -> Vec<String> {
    plan.steps.iter().map(ToString::to_string).collect()
}

/// Returns the limits that frames meet: at a device's egress, and in its leaf at its ingress.
pub(super) fn in_force(network: &Network, index: u32) -> (Option<HtbClass>, Option<HtbClass>) {
    let link = &network.netdevs[&index];
    let class = |link: &Netdev, id| {
        let class = link.class(id)?.htb?;
        assert!(link.leaf(id).is_some(), "its queue");
        Some(class)
    };
    let all = |setting| link.root().filter(|q| q.setting == setting && link.root_is_ours());
    let egress = match (all(Setting::Htb { default: 1 }), all(Setting::Htb { default: 0xffff })) {
        (Some(_), None) => class(link, owner::ROOT_CLASS),
        (None, Some(_)) => {
            let (all, rest) = (link.class(owner::ROOT_CLASS), link.class(owner::REST_CLASS));
            assert_eq!(rest.map(|c| c.parent), Some(owner::ROOT_CLASS));
            assert!(link.leaf(owner::REST_CLASS).is_some() && link.leaf(owner::ROOT_CLASS).is_none());
            all.and_then(|c| c.htb)
        }
        _ => None,
    };
    // Marking filters pass the frame on to the next filter.
    let mut filters =
        link.filters_at(Handle::INGRESS).filter(|f| f.chain == 0 && !f.marks() && !f.marks_congestion());
    let ingress = filters.next().and_then(|first| {
        let Rule::Redirect { to, .. } = first.rule else { return None };
        let ifb = network.netdevs.get(&to).filter(|l| l.up && l.root_is_ours())?;
        let mut classifiers = ifb.filters_at(owner::ROOT_QDISC);
        let first = classifiers.next();
        assert_eq!((first, classifiers.next()), (ifb.classifier(), None), "one filter for all");
        let (_, to) = ifb.classified().find(|(from, _)| *from == index)?;
        assert_eq!(ifb.classified().filter(|(_, other)| *other == to).count(), 1, "a class of its own");
        class(ifb, to)
    });
    (egress, ingress)
}

/// Returns the same for one sender beside others.
pub(super) fn sender(mbit: u64) -> HtbClass {
    HtbClass::sender(limit(mbit), false)
}

/// Returns the classes of senders with shares at a device's egress, by origin.
pub(super) fn shared(network: &Network, index: u32) -> BTreeMap<u32, HtbClass> {
    let link = &network.netdevs[&index];
    let mut classes = BTreeMap::new();
    for (from, to) in link.classified() {
        let class = link.class(to).expect("its class");
        assert_eq!((class.parent, link.leaf(to).is_some()), (owner::ROOT_CLASS, true));
        assert_eq!(classes.insert(from, class.htb.expect("htb")), None, "one filter each");
    }
    classes
}

/// Returns the queueing below a class, without marks before it.
pub(super) fn waits_for(link: &Netdev, class: Handle) -> Waiting {
    let leaf = link.leaf(class).expect("its queue");
    if leaf.handle != owner::cutter(class) {
        return Waiting { cut: None, queue: leaf.setting.clone(), congestion: None };
    }
    let queue = link.leaf(owner::below(leaf.handle)).expect("a queue below what cuts").setting.clone();
    Waiting { cut: Some(leaf.setting.clone()), queue, congestion: None }
}

pub(super) fn tc_root(major: u16, kind: &str) -> Qdisc {
    let setting = if kind == "htb" { Setting::Htb { default: 1 } } else { Setting::Other(kind.to_owned()) };
    Qdisc { handle: Handle::new(major, 0), parent: Handle::ROOT, setting }
}

pub(super) fn clsact() -> Qdisc {
    Qdisc { handle: Handle::INGRESS_QDISC, parent: Handle::CLSACT, setting: Setting::Clsact }
}

/// Like libvirt's, but of u32.
pub(super) fn police(preference: u16) -> Filter {
    Filter {
        parent: Handle::INGRESS,
        preference,
        protocol: ANY_PROTOCOL,
        kind: "u32".into(),
        handle: 0x800,
        chain: 0,
        rule: Rule::Other,
    }
}

#[test]
fn a_tap_is_shaped_in_both_directions_leaves_first() {
    let mut network = taps(1);
    let wanted = [shaping("tap1", 100, 50)];
    let made = plan(&wanted, &network);
    assert_eq!(made.refusals, []);
    assert_eq!(
        shown(&made),
        [
            "make interface tidegate-tx",
            "set qdisc htb at root of tidegate-tx",
            "classify what goes to tidegate-tx by where it came in",
            "bring interface tidegate-tx up",
            "set class 7464:1 of tidegate-tx to 12500000 bytes/s",
            "set qdisc bfifo at 7464:1 of tidegate-tx",
            "put what tap1 receives into class 7464:1 of tidegate-tx",
            "set qdisc clsact at clsact of tap1",
            "redirect what tap1 receives to tidegate-tx",
            "set qdisc htb at root of tap1",
            "set class 7464:1 of tap1 to 6250000 bytes/s",
            "set qdisc bfifo at 7464:1 of tap1",
        ]
    );
    run(&mut network, &made);
    assert_eq!(in_force(&network, 1), (Some(limit(50).into()), Some(sender(100))));
    assert_eq!(plan(&wanted, &network), Plan::default());

    let changed = plan(&[shaping("tap1", 200, 50)], &network);
    assert_eq!(
        shown(&changed),
        ["set class 7464:1 of tidegate-tx to 25000000 bytes/s", "set qdisc bfifo at 7464:1 of tidegate-tx"]
    );

    let gone = plan(&[], &network);
    run(&mut network, &gone);
    assert_eq!(network.netdevs.keys().collect::<Vec<_>>(), [&1, &BRIDGE]);
    assert_eq!(network.netdevs[&1].qdiscs, [], "the kernel puts its own there again");
    assert_eq!(network.netdevs[&1].filters, []);
}

#[test]
fn a_macvtap_has_swapped_directions() {
    let mut network = taps(1);
    network.netdevs.get_mut(&1).expect("a tap").kind = Some("macvtap".into());
    let made = plan(&[shaping("tap1", 100, 50)], &network);
    run(&mut network, &made);
    assert_eq!(in_force(&network, 1), (Some(limit(100).into()), Some(sender(50))));
}

#[test]
fn marks_work_beside_foreign_filters_but_not_behind_them() {
    let mut network = taps(1);
    let before = [clsact()];
    let link = network.netdevs.get_mut(&1).expect("a tap");
    link.qdiscs.extend(before);
    link.filters = vec![police(owner::PREFERENCE)];
    let marked = |burst| [Shaping { marks: Some(Marks::from_burst(burst)), ..shaping("tap1", 0, 0) }];
    let made = plan(&marked(3_000), &network);
    assert_eq!(shown(&made), ["mark what tap1 receives as real-time"]);
    run(&mut network, &made);
    let changed = plan(&marked(0), &network);
    assert!(matches!(changed.steps[..], [Step::Mark { instead: Some((1, 8)), .. }]), "{changed:?}");
    run(&mut network, &changed);
    settle(&mut network, &[]);
    assert_eq!(network.netdevs[&1].filters, [police(owner::PREFERENCE)]);

    network.netdevs.get_mut(&1).expect("a tap").filters = vec![police(owner::MARK_PREFERENCE)];
    let refused = plan(&marked(0), &network);
    assert_eq!(refused.steps, []);
    let reason = &refused.refusals[0].reason;
    assert!(reason.contains("a u32 filter of preference 1") && reason.contains("from 2 on"), "{reason}");
}

#[test]
fn programs_of_an_older_agent_are_replaced_and_go_on_counting() {
    let mut network = taps(2);
    let marked = |shaping| Shaping { marks: Some(Marks::Clear), owned: Ways::BOTH, ..shaping };
    let wanted = [marked(policing("tap1", 100, 0)), marked(shaping("tap2", 100, 0))];
    settle(&mut network, &wanted);
    for filter in network.netdevs.values_mut().flat_map(|link| &mut link.filters) {
        match &mut filter.rule {
            Rule::Police { program, .. } | Rule::Mark { program, .. } => program.version -= 1,
            Rule::Classify { program, classes } => {
                program.version -= 1;
                classes.clear();
            }
            _ => {}
        }
    }
    let again = plan(&wanted, &network);
    let instead = |step: &Step| match step {
        Step::Police { instead, .. } | Step::Mark { instead, .. } => *instead,
        _ => None,
    };
    let maps: Vec<u32> = again.steps.iter().filter_map(instead).map(|(_, map)| map).collect();
    assert_eq!(maps, [7, 8, 8], "{again:?}");
    assert!(again.steps.iter().any(|s| matches!(s, Step::AddClassifier { .. })), "{again:?}");
    run(&mut network, &again);
    assert_eq!(in_force(&network, 2).1, Some(sender(100)));
    assert_eq!(plan(&wanted, &network), Plan::default());
}

#[test]
fn a_macvtap_cannot_be_marked() {
    let mut network = taps(1);
    network.netdevs.get_mut(&1).expect("a tap").kind = Some("macvtap".into());
    let wanted = |marks| [Shaping { marks: Some(marks), ..shaping("tap1", 100, 0) }];
    let refused = plan(&wanted(Marks::from_burst(3_000)), &network);
    assert_eq!(refused.steps, []);
    assert!(refused.refusals[0].reason.contains("cannot be marked as real-time"), "{refused:?}");
    let made = plan(&wanted(Marks::Clear), &network);
    assert_eq!(made.refusals, []);
    run(&mut network, &made);
    assert!(network.netdevs[&1].filters.is_empty(), "its own egress is limited, and nothing is marked");
}

#[test]
fn a_netdev_that_belongs_to_no_vm_is_refused() {
    let mut network = taps(3);
    network.netdevs.get_mut(&2).expect("a tap").kind = Some("bridge".into());
    let physical = network.netdevs.get_mut(&3).expect("a tap");
    (physical.kind, physical.loopback) = (None, true);
    let wanted = ["-rf", "tap2", "tap3"].map(|name| shaping(name, 1, 1));
    let refused = plan(&wanted, &network);
    assert_eq!(refused.steps, []);
    let reasons: Vec<_> = refused.refusals.iter().map(|r| r.reason.as_str()).collect();
    assert!(reasons[0].starts_with("interface -rf does not exist"), "{reasons:?}");
    assert!(reasons[1].contains("of kind bridge; expected a tap, macvtap or veth"), "{reasons:?}");
    assert!(reasons[2].contains("is the loopback"), "{reasons:?}");
}

#[test]
fn foreign_objects_are_named_and_stay() {
    let mut network = taps(2);
    let link = network.netdevs.get_mut(&1).expect("a tap");
    link.qdiscs = vec![tc_root(1, "htb"), clsact()];
    link.filters = vec![police(49152)];
    let before = network.netdevs[&1].clone();
    let made = plan(&[shaping("tap1", 100, 50), shaping("tap2", 100, 50)], &network);
    assert_eq!(
        made.refusals[0].reason,
        "interface tap1 has qdisc htb 1: at its root and a u32 filter of preference 49152 at its ingress, which \
         another program made (libvirt does for <bandwidth>); remove it first (tc qdisc del dev tap1 root; tc filter del dev \
         tap1 ingress pref 49152)"
    );
    run(&mut network, &made);
    assert_eq!(network.netdevs[&1], before);
    assert_eq!(in_force(&network, 2), (Some(limit(50).into()), Some(sender(100))));
    // With only the other direction wanted, nothing is in the way.
    let only_tx = plan(&[shaping("tap1", 0, 0)], &network);
    assert_eq!(only_tx.refusals, []);
}

#[test]
fn a_tap_as_libvirt_creates_it_has_no_foreign_objects() {
    let mut network = taps(1);
    network.netdevs.get_mut(&1).expect("a tap").qdiscs = vec![tc_root(0xaca3, "noqueue")];
    let made = plan(&[shaping("tap1", 100, 50)], &network);
    assert_eq!(made.refusals, []);
    run(&mut network, &made);
    assert_eq!(in_force(&network, 1), (Some(limit(50).into()), Some(sender(100))));
}

#[test]
fn a_foreign_ifb_is_not_used() {
    let mut network = taps(1);
    let link = Netdev { name: owner::IFB.into(), kind: Some("ifb".into()), ..Netdev::default() };
    network.netdevs.insert(99, link);
    let refused = plan(&[shaping("tap1", 1, 0)], &network);
    assert!(refused.refusals[0].reason.contains("is not ours; rename it"), "{refused:?}");
    assert_eq!(refused.steps, []);
    assert_eq!(plan(&[], &network), Plan::default());
}

#[test]
fn senders_have_shares_of_what_a_vm_receives() {
    let mut network = taps(3);
    let share = |from: &str, guaranteed: u64, priority, weight| {
        let guaranteed = (guaranteed > 0).then(|| limit(guaranteed));
        Share { from: from.into(), guaranteed, priority, weight }
    };
    let shares =
        vec![share("tap2", 10, 0, 1), share("tap3", 20, Share::LAST, 5), share("tap9", 1, Share::LAST, 1)];
    let mut wanted = vec![Shaping { rx_shares: shares, ..shaping("tap1", 0, 50) }];
    let made = plan(&wanted, &network);
    assert_eq!(
        shown(&made),
        [
            "set qdisc htb at root of tap1",
            "set class 7464:1 of tap1 to 6250000 bytes/s",
            "set class 7464:ffff of tap1 to 1100 bytes/s",
            "set qdisc bfifo at 7464:ffff of tap1",
            "classify what goes to tap1 by where it came in",
            "set class 7464:2 of tap1 to 1250000 bytes/s",
            "set qdisc bfifo at 7464:2 of tap1",
            "put what tap2 receives into class 7464:2 of tap1",
            "set class 7464:3 of tap1 to 2500000 bytes/s",
            "set qdisc bfifo at 7464:3 of tap1",
            "put what tap3 receives into class 7464:3 of tap1",
        ]
    );
    run(&mut network, &made);
    let classes = shared(&network, 1);
    let told = |index| {
        let HtbClass { rate, ceil, cburst, quantum, priority, .. } = classes[&index];
        (rate, ceil, cburst, quantum, priority)
    };
    assert_eq!(told(2), (1_250_000, 6_250_000, limit(50).burst, 65_536, 0));
    assert_eq!(told(3), (2_500_000, 6_250_000, limit(50).burst, 5 * 65_536, 7));

    // A new sender gets its class, a gone one loses it; others stay.
    let tap9 = Netdev { name: "tap9".into(), ..network.netdevs[&2].clone() };
    network.netdevs.insert(9, tap9);
    wanted[0].rx_shares.remove(0);
    let changed = plan(&wanted, &network);
    assert_eq!(
        shown(&changed),
        [
            "put what interface 2 receives into no class of tap1",
            "delete class 7464:2 of tap1",
            "set class 7464:2 of tap1 to 125000 bytes/s",
            "set qdisc bfifo at 7464:2 of tap1",
            "put what tap9 receives into class 7464:2 of tap1",
        ]
    );
    run(&mut network, &changed);

    // From shares to none everything is remade: the default class differs.
    wanted[0].rx_shares.clear();
    let plain = plan(&wanted, &network);
    assert_eq!(plain.steps.len(), 4, "{plain:?}");
    run(&mut network, &plain);
    assert_eq!(in_force(&network, 1), (Some(limit(50).into()), None));
}

#[test]
fn a_macvtap_promises_nothing() {
    let mut network = taps(2);
    network.netdevs.get_mut(&2).expect("a tap").kind = Some("macvtap".into());
    let share = Share { from: "tap2".into(), guaranteed: None, priority: Share::LAST, weight: 1 };
    let wanted = [
        Shaping { rx_shares: vec![share], ..shaping("tap1", 0, 50) },
        Shaping { promises: true, ..shaping("tap2", 10, 0) },
    ];
    let made = plan(&wanted, &network);
    assert_eq!(made.refusals.len(), 1);
    assert!(made.refusals[0].reason.contains("interface tap2 is a macvtap"), "{made:?}");
    assert_eq!(made.refusals[0].netdev, "tap2");
    network.netdevs.get_mut(&1).expect("a tap").kind = Some("macvtap".into());
    let made = plan(&wanted, &network);
    assert!(made.refusals[0].reason.contains("interface tap1 is a macvtap, into which"), "{made:?}");
}

#[test]
fn owned_directions_are_repaired_after_a_foreign_change() {
    let mut network = taps(1);
    let mut wanted = [shaping("tap1", 100, 50)];
    settle(&mut network, &wanted);
    wanted[0].owned = Ways::BOTH;
    let link = network.netdevs.get_mut(&1).expect("a tap");
    // Remains of `tc qdisc replace` and of libvirt's way of setting a rate.
    link.qdiscs = vec![tc_root(1, "htb"), clsact()];
    link.classes = vec![];
    link.filters = vec![police(49152)];
    let repaired = plan(&wanted, &network);
    assert_eq!(
        shown(&repaired),
        [
            "delete the u32 filter of preference 49152 at ingress of tap1",
            "redirect what tap1 receives to tidegate-tx",
            "set qdisc htb at root of tap1",
            "set class 7464:1 of tap1 to 6250000 bytes/s",
            "set qdisc bfifo at 7464:1 of tap1",
        ]
    );
    run(&mut network, &repaired);
    assert_eq!(in_force(&network, 1), (Some(limit(50).into()), Some(sender(100))));
}

#[test]
fn foreign_objects_in_a_direction_that_is_not_owned_stay() {
    let mut network = taps(1);
    network.netdevs.get_mut(&1).expect("a tap").qdiscs = vec![tc_root(1, "tbf")];
    settle(&mut network, &[shaping("tap1", 100, 0)]);
    // The contract is in force for tx, and now limits rx too.
    let wanted = [Shaping { owned: Ways { tx: true, ..Ways::NONE }, ..shaping("tap1", 100, 50) }];
    let made = plan(&wanted, &network);
    assert_eq!(made.steps, []);
    assert_eq!(made.refusals[0].foreign.as_deref(), Some("qdisc tbf 1: at its root"));
}

#[test]
fn a_foreign_clsact_qdisc_stays() {
    let mut network = taps(1);
    network.netdevs.get_mut(&1).expect("a tap").qdiscs.push(clsact());
    settle(&mut network, &[shaping("tap1", 100, 0)]);
    assert_eq!(in_force(&network, 1), (None, Some(sender(100))));
    settle(&mut network, &[]);
    assert_eq!(network.netdevs[&1].ingress(), Some(&clsact()));
    assert_eq!(network.netdevs[&1].filters, []);
}

#[test]
fn the_remains_of_a_vanished_vm_are_removed() {
    let mut network = taps(2);
    let wanted = [shaping("tap1", 100, 0), shaping("tap2", 10, 0)];
    settle(&mut network, &wanted);
    network.netdevs.remove(&1);
    let made = plan(&wanted, &network);
    assert_eq!(made.refusals.len(), 1);
    assert_eq!(
        shown(&made),
        ["put what interface 1 receives into no class of tidegate-tx", "delete class 7464:1 of tidegate-tx"]
    );
    run(&mut network, &made);
    assert_eq!(in_force(&network, 2), (None, Some(sender(10))));
}

pub(super) fn flows(kernel: Qdiscs) -> Flows {
    Flows { target: 5_000_000, interval: 100_000_000, per_host: false, frame: 1518, kernel }
}

const ALL: Qdiscs = Qdiscs { tbf: true, fq_codel: true, cake: true, congestion: true };

#[test]
fn flows_wait_in_a_queue_of_their_own() {
    let mut network = taps(1);
    let in_order = [shaping("tap1", 20, 50)];
    let wanted = [Shaping { flows: Some(flows(ALL)), ..in_order[0].clone() }];
    settle(&mut network, &wanted);
    let (index, ifb) = network.ifb().expect("our IFB");
    let leaf = Handle::new(owner::MAJOR, owner::FIRST_LEAF);
    let kept = |mbit, host| Waiting::new(limit(mbit), Some(flows(ALL)), host, 0);
    assert_eq!(waits_for(ifb, leaf), kept(20, Host::Source));
    assert_eq!(waits_for(&network.netdevs[&1], owner::ROOT_CLASS), kept(50, Host::Destination));
    // Another rate changes the class in place, and loses no waiting frame.
    let faster = [Shaping { tx: Some(limit(30)), ..wanted[0].clone() }];
    let made = plan(&faster, &network);
    assert_eq!(
        shown(&made),
        [
            "set class 7464:1 of tidegate-tx to 3750000 bytes/s",
            "set qdisc tbf at 7464:1 of tidegate-tx",
            "set qdisc fq_codel at 3001:1 of tidegate-tx"
        ]
    );
    run(&mut network, &made);
    assert_eq!(waits_for(&network.netdevs[&index], leaf), kept(30, Host::Source));
    // And back, at another rate at once.
    settle(&mut network, &in_order);
    let ifb = &network.netdevs[&index];
    assert_eq!(waits_for(ifb, leaf), Waiting::fifo(limit(20)));
    assert!(ifb.qdiscs.iter().all(|q| ["htb", "bfifo"].contains(&q.setting.kind())), "{:?}", ifb.qdiscs);
}

#[test]
fn frames_with_a_deadline_wait_in_one_queue_in_their_order() {
    let mut network = taps(2);
    let voice = Shaping { realtime: true, flows: Some(flows(ALL)), ..shaping("tap1", 1, 0) };
    let share =
        |from: &str, priority| Share { from: from.into(), guaranteed: Some(limit(1)), priority, weight: 1 };
    let receiver = Shaping {
        flows: Some(flows(ALL)),
        rx_shares: vec![share("tap1", 0), share("tap2", Share::LAST)],
        ..shaping("tap2", 0, 20)
    };
    settle(&mut network, &[voice, receiver]);
    let (_, ifb) = network.ifb().expect("our IFB");
    assert_eq!(waits_for(ifb, Handle::new(owner::MAJOR, owner::FIRST_LEAF)), Waiting::fifo(limit(1)));
    let link = &network.netdevs[&2];
    let (first, second) = (owner::FIRST_SHARE, owner::FIRST_SHARE + 1);
    assert_eq!(waits_for(link, Handle::new(owner::MAJOR, first)), Waiting::fifo(limit(20)));
    let short = Waiting::new(limit(20), Some(flows(ALL)), Host::Destination, 0);
    for class in [Handle::new(owner::MAJOR, second), owner::REST_CLASS] {
        assert_eq!(waits_for(link, class), short);
    }
}
