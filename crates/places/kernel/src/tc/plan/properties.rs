//! From any state, after any damage, one plan leads to the wanted state.

use super::tests::*;
use super::{Plan, model, plan};
use crate::ebpf::mark::Marks;
use crate::ebpf::police::Bucket;
use crate::handle::Handle;
use crate::limit::Limit;
use crate::tc::class::HtbClass;
use crate::tc::network::*;
use crate::tc::owner::{self, Cookie};
use crate::tc::queueing::{Flows, Host, Qdiscs, Waiting};
use crate::tc::shaping::{Shaping, Share, Ways};
use crate::tc::step::Step;
use crate::tc::vlan::Vlans;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// Damage by another program.
#[derive(Clone, Debug)]
enum Damage {
    Root(Option<&'static str>),
    IngressGone,
    FilterGone,
    /// Preference and chain.
    FilterBeside(u16, u32),
    ClassGone,
    ClassChanged(u64),
    ClassBeside,
    QueueGone,
    QueueBelowGone,
    /// Another kind, by the name of the former.
    QueueOfOthers(&'static str),
    TapGone,
    IfbGone,
    IfbDown,
    IfbRootGone,
    IfbFilterGone,
    IfbFilterBeside(u16, u32),
    LeafGone,
    LeafOf(u32),
    LeafOfNone(u16),
    Vlan(u16),
    StepsCut(usize),
}

fn damage() -> impl Strategy<Value = Damage> {
    prop_oneof![
        prop_oneof![Just(None), Just(Some("htb")), Just(Some("tbf"))].prop_map(Damage::Root),
        Just(Damage::IngressGone),
        Just(Damage::FilterGone),
        (1_u16..4, 0_u32..3).prop_map(|(preference, chain)| Damage::FilterBeside(preference, chain)),
        Just(Damage::ClassGone),
        (1_u64..9).prop_map(Damage::ClassChanged),
        Just(Damage::ClassBeside),
        Just(Damage::QueueGone),
        Just(Damage::QueueBelowGone),
        prop_oneof![Just("sfq"), Just("tbf"), Just("fq_codel")].prop_map(Damage::QueueOfOthers),
        Just(Damage::TapGone),
        Just(Damage::IfbGone),
        Just(Damage::IfbDown),
        Just(Damage::IfbRootGone),
        Just(Damage::IfbFilterGone),
        (1_u16..4, 0_u32..3).prop_map(|(preference, chain)| Damage::IfbFilterBeside(preference, chain)),
        Just(Damage::LeafGone),
        (1_u32..9).prop_map(Damage::LeafOf),
        (0_u16..9).prop_map(Damage::LeafOfNone),
        (1_u16..5).prop_map(Damage::Vlan),
        (0_usize..40).prop_map(Damage::StepsCut),
    ]
}

/// The map of the classifier.
fn map(ifb: Option<&mut Netdev>) -> Option<&mut BTreeMap<u32, Handle>> {
    ifb?.filters.iter_mut().find_map(|f| match &mut f.rule {
        Rule::Classify { classes, .. } => Some(classes),
        _ => None,
    })
}

/// Like [`crate::tc::Kernel::observe_near`].
fn part_of(network: &Network, index: u32) -> Network {
    let ifb = network.ifb();
    if ifb.is_some_and(|(_, ifb)| ifb.classified().all(|(from, _)| from == index)) {
        return network.clone();
    }
    let mut seen = Network { scope: Some([index].into()), ..network.clone() };
    // Of others, only their existence.
    for (_, link) in seen.netdevs.iter_mut().filter(|(i, link)| **i != index && !link.is_our_ifb()) {
        (link.qdiscs, link.classes, link.filters) = Default::default();
    }
    for link in seen.netdevs.values_mut().filter(|link| link.is_our_ifb()) {
        let leaf = link.classified().find(|(from, _)| *from == index).map(|(_, to)| to);
        link.classes.retain(|class| Some(class.id) == leaf);
        link.qdiscs.retain(|q| q.parent == Handle::ROOT || Some(owner::class_above(q.parent)) == leaf);
    }
    seen
}

fn hurt(network: &mut Network, index: u32, damage: &Damage) {
    let ifb = network.by_name(owner::IFB).map(|(i, _)| i);
    let name = network.netdevs.get(&index).map(|l| l.name.clone());
    let device = name.map(|name| crate::tc::step::Device::Netdev { index, name });
    let on_ifb = ifb.and_then(|i| network.netdevs.get_mut(&i));
    match damage {
        Damage::IfbGone if ifb.is_some() => drop(model::apply(network, &Step::DeleteIfb)),
        Damage::IfbDown => drop(on_ifb.map(|l| l.up = false)),
        Damage::IfbRootGone => {
            if let Some(link) = on_ifb {
                (link.qdiscs, link.classes, link.filters) = Default::default();
            }
        }
        Damage::QueueBelowGone | Damage::QueueOfOthers(_) if index > 2 => {
            if let Some(link) = on_ifb {
                hurt_queues(link, damage);
            }
        }
        Damage::IfbFilterGone => drop(on_ifb.map(|l| l.filters.clear())),
        Damage::IfbFilterBeside(preference, chain) => {
            if let Some(link) = on_ifb {
                let handle = 77 + link.filters.len() as u32;
                let parent = owner::ROOT_QDISC;
                link.filters.push(Filter { parent, handle, chain: *chain, ..police(*preference) });
            }
        }
        Damage::LeafGone => map(on_ifb).into_iter().for_each(|m| m.retain(|from, _| *from != index)),
        Damage::LeafOf(other) => {
            if let Some(map) = map(on_ifb)
                && let Some(class) = map.get(other).copied()
            {
                map.insert(index, class);
            }
        }
        Damage::LeafOfNone(minor) => {
            let gone = [(index + 5, Handle::new(owner::MAJOR, *minor))];
            map(on_ifb).into_iter().for_each(|m| m.extend(gone));
        }
        Damage::TapGone => drop(network.netdevs.remove(&index)),
        _ => {
            let (Some(link), Some(_)) = (network.netdevs.get_mut(&index), device) else { return };
            match damage {
                Damage::Root(kind) => {
                    link.qdiscs.retain(|q| q.parent == Handle::CLSACT);
                    link.classes.clear();
                    link.filters.retain(|f| f.parent == Handle::INGRESS);
                    link.qdiscs.extend(kind.map(|kind| tc_root(5, kind)));
                }
                Damage::IngressGone => {
                    link.qdiscs.retain(|q| q.parent != Handle::CLSACT);
                    link.filters.retain(|f| f.parent != Handle::INGRESS);
                }
                Damage::FilterGone => link.filters.clear(),
                // Another kind cannot be beside marks.
                Damage::FilterBeside(owner::MARK_PREFERENCE, 0)
                    if link.filters.iter().any(|f| f.marks() || f.marks_congestion()) => {}
                Damage::FilterBeside(preference, chain) if link.ingress().is_some() => {
                    let handle = 99 + link.filters.len() as u32;
                    link.filters.push(Filter { handle, chain: *chain, ..police(*preference) });
                }
                Damage::ClassGone => {
                    link.classes.clear();
                    link.qdiscs.retain(|q| q.parent.major() != owner::MAJOR);
                }
                Damage::ClassChanged(mbit) => {
                    link.classes.iter_mut().for_each(|c| c.htb = Some(limit(*mbit).into()));
                }
                Damage::ClassBeside if link.class(owner::ROOT_CLASS).is_some() => {
                    let parent = owner::ROOT_CLASS;
                    link.qdiscs.retain(|q| q.parent != parent);
                    let id = Handle::new(owner::MAJOR, 0xabc);
                    link.classes.push(Class { id, parent, htb: None, counters: Counters::default() });
                }
                Damage::Vlan(vid) => link.vlans = Some(Vlans::access(*vid)),
                Damage::QueueBelowGone | Damage::QueueOfOthers(_) => hurt_queues(link, damage),
                Damage::QueueGone => link.qdiscs.retain(|q| q.parent.major() != owner::MAJOR),
                _ => {}
            }
        }
    }
}

/// Damages the queues below a device's classes.
fn hurt_queues(link: &mut Netdev, damage: &Damage) {
    let is_leaf = |q: &Qdisc| q.parent.major() == owner::MAJOR;
    let cutters: Vec<Handle> =
        link.qdiscs.iter().filter(|q| is_leaf(q) && q.setting.kind() == "tbf").map(|q| q.handle).collect();
    link.qdiscs.retain(|q| !cutters.contains(&Handle::new(q.parent.major(), 0)));
    if let Damage::QueueOfOthers(kind) = damage {
        for q in link.qdiscs.iter_mut().filter(|q| is_leaf(q)) {
            q.setting = Setting::Other((*kind).into());
        }
    }
}

fn some_flows() -> impl Strategy<Value = Option<Flows>> {
    let has = any::<(bool, bool, bool, bool)>();
    let has = has.prop_map(|(tbf, fq_codel, cake, congestion)| Qdiscs { tbf, fq_codel, cake, congestion });
    let flows = (has, any::<bool>()).prop_map(|(has, per_host)| Flows { per_host, ..flows(has) });
    prop::option::of(flows)
}

fn shapings() -> impl Strategy<Value = Vec<Shaping>> {
    let side = || prop_oneof![Just(0_u64), 1..9_u64];
    let segment = || prop::option::of(1_u16..5);
    let marks = || prop_oneof![Just(None), Just(Some(0)), (1_u64..3).prop_map(Some)];
    let made = |i, (tx, polices, rx, segment, marks, flows): (_, _, _, _, Option<u64>, _)| {
        let netdev = format!("tap{i}");
        let made = if polices { policing(&netdev, tx, rx) } else { shaping(&netdev, tx, rx) };
        Shaping { segment, marks: marks.map(Marks::from_burst), flows, ..made }
    };
    let share = |(from, guaranteed, priority)| Share {
        from: format!("tap{from}"),
        guaranteed: (guaranteed > 0).then(|| limit(guaranteed)),
        priority,
        weight: 1,
    };
    let shares = proptest::collection::btree_map(1_u32..7, (0..9_u64, 0..8_u8), 0..4)
        .prop_map(move |all| all.into_iter().map(|(from, (g, p))| share((from, g, p))).collect::<Vec<_>>());
    let shares = prop_oneof![Just(vec![]), shares];
    proptest::collection::btree_map(
        1_u32..6,
        ((side(), any::<bool>(), side(), segment(), marks(), some_flows()), shares),
        0..6,
    )
    .prop_map(move |wanted| {
        let made = wanted.into_iter().map(|(i, (sides, rx_shares))| Shaping { rx_shares, ..made(i, sides) });
        made.collect()
    })
}

/// Returns the requested classes of a device's senders.
fn asked_of_shares(shaping: &Shaping, network: &Network) -> BTreeMap<u32, HtbClass> {
    let class = |share: &Share| {
        let (index, _) = network.by_name(&share.from)?;
        Some((index, HtbClass::share(share, shaping.rx?)))
    };
    shaping.rx_shares.iter().filter_map(class).collect()
}

/// Returns the requested settings of a device.
fn asked(shaping: &Shaping) -> (Option<HtbClass>, Option<HtbClass>, Option<Bucket>, Option<Marks>) {
    let tx = shaping.tx.map(|tx| HtbClass::sender(tx, false));
    (shaping.rx.map(HtbClass::from), tx, shaping.tx_police, shaping.marks)
}

/// Returns the requested queueing at a device's egress and ingress.
fn asked_of_waits(shaping: &Shaping) -> (Option<Waiting>, Option<Waiting>) {
    let waits = |limit: Option<Limit>, host| Some(Waiting::new(limit?, shaping.flows, host, 0));
    let egress = waits(shaping.rx, Host::Destination);
    // For parts of a limit, the waiting time of frames is unknown.
    let marks =
        |w: Waiting| Waiting { congestion: w.congestion.filter(|_| shaping.rx_shares.is_empty()), ..w };
    (egress.map(marks), waits(shaping.tx, Host::Source))
}

/// Returns a device's queueing: all parts alike, except those with a deadline.
fn waits(network: &Network, shaping: &Shaping, index: u32) -> (Option<Waiting>, Option<Waiting>) {
    let link = &network.netdevs[&index];
    let senders = link.classified().filter(|(from, _)| {
        let share = |s: &&Share| network.by_name(&s.from).is_some_and(|(index, _)| index == *from);
        shaping.rx_shares.iter().find(share).is_some_and(|share| share.priority == Share::LAST)
    });
    let parts: Vec<Handle> = senders.map(|(_, class)| class).chain([owner::REST_CLASS]).collect();
    let egress = shaping.rx.map(|_| match shaping.rx_shares.is_empty() {
        true => waits_for(link, owner::ROOT_CLASS),
        false => {
            let each: Vec<Waiting> = parts.into_iter().map(|class| waits_for(link, class)).collect();
            assert!(each.windows(2).all(|two| two[0] == two[1]), "{each:?}");
            each[0].clone()
        }
    });
    let ingress = shaping.tx.and_then(|_| {
        let (_, ifb) = network.ifb()?;
        let (_, class) = ifb.classified().find(|(from, _)| *from == index)?;
        Some(waits_for(ifb, class))
    });
    let marked = |waiting: Option<Waiting>, parent| {
        let mut marks = link.filters_at(parent).filter_map(|f| match f.rule {
            Rule::MarkCongestion { queue, .. } => Some(queue),
            _ => None,
        });
        let congestion = marks.next();
        assert_eq!(marks.next(), None, "one");
        assert!(waiting.is_some() || congestion.is_none());
        waiting.map(|waiting| Waiting { congestion, ..waiting })
    };
    (marked(egress, owner::ROOT_QDISC), marked(ingress, Handle::INGRESS))
}

/// Returns the settings that frames pass, policers and marks included.
fn met(network: &Network, index: u32) -> (Option<HtbClass>, Option<HtbClass>, Option<Bucket>, Option<Marks>) {
    let (egress, ingress) = in_force(network, index);
    let filters = network.netdevs[&index].filters_at(Handle::INGRESS);
    let filters = filters.filter(|f| f.chain == 0 && !f.marks_congestion());
    let first = |of: fn(&&Filter) -> bool| filters.clone().filter(of).min_by_key(|f| f.preference);
    let policer = first(|f| !f.marks()).and_then(|f| match f.rule {
        Rule::Police { bucket, .. } => Some(bucket),
        _ => None,
    });
    let marks = first(|_| true).and_then(|f| match f.rule {
        Rule::Mark { marks, .. } => Some(marks),
        _ => None,
    });
    (egress, ingress, policer, marks)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    /// From any state, after any damage, one plan leads to the wanted state.
    #[test]
    fn one_plan_leads_to_the_wanted_state(
        before in shapings(),
        damages in proptest::collection::vec((1_u32..6, damage()), 0..5),
        wanted in shapings(),
        owned in any::<(bool, bool, bool)>().prop_map(|(tx, rx, segment)| Ways { tx, rx, segment }),
    ) {
        let mut network = taps(5);
        settle(&mut network, &before);
        for (index, damage) in &damages {
            if let Damage::StepsCut(after) = damage {
                // An agent died during another change.
                let under_way = plan(&wanted[..wanted.len() / 2], &network);
                let steps = under_way.steps.into_iter().take(*after).collect();
                run(&mut network, &Plan { steps, refusals: vec![] });
            } else {
                hurt(&mut network, *index, damage);
            }
        }
        let wanted: Vec<_> = wanted.into_iter().map(|s| Shaping { owned, ..s }).collect();
        let found = network.clone();
        let made = plan(&wanted, &network);
        run(&mut network, &made);

        let refused = |name: &str| made.refusals.iter().any(|r| r.netdev == name);
        for shaping in &wanted {
            let there = network.by_name(&shaping.netdev).map(|(index, _)| index);
            prop_assert!(owned != Ways::BOTH || there.is_none() || !refused(&shaping.netdev), "owned is not refused");
            if refused(&shaping.netdev) {
                if let Some(index) = there {
                    prop_assert_eq!(&network.netdevs[&index], &found.netdevs[&index], "left as it was");
                }
                continue;
            }
            let index = there.expect("a tap");
            prop_assert_eq!(met(&network, index), asked(shaping));
            prop_assert_eq!(shared(&network, index), asked_of_shares(shaping, &network));
            prop_assert_eq!(waits(&network, shaping, index), asked_of_waits(shaping));
            if let Some(segment) = shaping.segment {
                prop_assert_eq!(&network.netdevs[&index].vlans, &Some(Vlans::access(segment)));
            }
        }
        for (index, link) in &network.netdevs {
            let here = wanted.iter().find(|s| s.netdev == link.name);
            if link.is_our_ifb() || refused(&link.name) {
                continue;
            }
            // None of our objects without need, and all foreign ones that are not in the way.
            let tx = here.is_some_and(|s| s.tx.is_some() || s.tx_police.is_some());
            let rx = here.and_then(|s| s.rx);
            prop_assert!(rx.is_some() || !link.root_is_ours());
            let marks = here.is_some_and(|s| s.marks.is_some());
            let is_wanted = |f: &Filter| match f.parent {
                Handle::INGRESS => if f.marks() { marks } else { tx },
                _ => rx.is_some(),
            };
            prop_assert!(link.filters.iter().all(|f| f.cookie().is_none() || is_wanted(f)));
            let theirs = |link: &Netdev| {
                let root = link.root().filter(|_| rx.is_none() && !link.root_is_ours()).cloned();
                let in_the_way =
                    |f: &Filter| f.chain == 0 && (tx || marks && f.preference <= owner::MARK_PREFERENCE);
                let filters = link.filters_at(Handle::INGRESS);
                let filters = filters.filter(|f| f.cookie().is_none() && !in_the_way(f));
                (root, filters.cloned().collect::<Vec<_>>())
            };
            prop_assert_eq!(theirs(link), theirs(&found.netdevs[index]));
            if here.is_none_or(|s| s.segment.is_none()) {
                prop_assert_eq!(&link.vlans, &found.netdevs[index].vlans);
            }
        }
        let ifb = network.by_name(owner::IFB).map(|(_, link)| link);
        let leaves = wanted.iter().filter(|s| s.tx.is_some() && !refused(&s.netdev)).count();
        prop_assert!(ifb.map_or(0, |l| l.classes.len()) >= leaves);
        if made.refusals.is_empty() {
            prop_assert_eq!(ifb.map_or(0, |l| l.classes.len()), leaves, "no leaf is left over");
        }

        let again = plan(&wanted, &network);
        prop_assert_eq!(&again.steps, &vec![], "a second plan is empty");
        prop_assert_eq!(again.refusals, made.refusals);
    }

    /// Whatever step fails: no frame goes where it is lost, and the next plan leads to the wanted state.
    #[test]
    fn steps_that_fail_lose_no_frame(
        before in shapings(),
        damages in proptest::collection::vec((1_u32..6, damage()), 0..3),
        wanted in shapings(),
        fails in proptest::collection::vec(prop::bool::weighted(0.2), 60),
    ) {
        let mut network = taps(5);
        settle(&mut network, &before);
        damages.iter().for_each(|(index, damage)| hurt(&mut network, *index, damage));
        let lost = |network: &Network| {
            let is_up = |to: &u32| network.netdevs.get(to).is_some_and(|ifb| ifb.up);
            let dropped = |f: &Filter| matches!(&f.rule, Rule::Redirect { to, .. } if !is_up(to));
            let dropping = |link: &Netdev| link.filters.iter().any(dropped);
            let cut_off = |link: &Netdev| link.vlans.as_ref().is_some_and(Vlans::is_empty);
            let lost = network.netdevs.iter().filter(|(_, link)| dropping(link) || cut_off(link));
            lost.map(|(index, _)| *index).collect::<BTreeSet<u32>>()
        };
        let lost_before = lost(&network);
        let wanted: Vec<_> = wanted.into_iter().map(|s| Shaping { owned: Ways::BOTH, ..s }).collect();
        let mut failed: Vec<Step> = Vec::new();
        for (step, fails) in plan(&wanted, &network).steps.into_iter().zip(fails) {
            if failed.iter().any(|failed| step.must_not_follow(failed)) {
                continue;
            }
            if fails || model::apply(&mut network, &step).is_err() {
                failed.push(step);
            }
        }
        prop_assert!(lost(&network).is_subset(&lost_before), "after {failed:?}");
        let rest = plan(&wanted, &network);
        run(&mut network, &rest);
        prop_assert_eq!(plan(&wanted, &network).steps, vec![]);
    }

    /// One netdev after the other, each by a look at itself only, and then all: the same as at once.
    #[test]
    fn netdevs_settled_one_by_one_equal_netdevs_settled_at_once(
        before in shapings(),
        damages in proptest::collection::vec((1_u32..6, damage()), 0..3),
        wanted in shapings(),
    ) {
        let mut network = taps(5);
        settle(&mut network, &before);
        damages.iter().for_each(|(index, damage)| hurt(&mut network, *index, damage));
        let wanted: Vec<_> = wanted.into_iter().map(|s| Shaping { owned: Ways::BOTH, ..s }).collect();
        for index in 1..6 {
            let seen = part_of(&network, index);
            // With the last one on the IFB, all is seen.
            let of_it = |s: &&Shaping| seen.scope.is_none() || s.netdev == format!("tap{index}");
            let asks: Vec<_> = wanted.iter().filter(of_it).cloned().collect();
            let made = plan(&asks, &seen);
            let others = |network: &Network| {
                let mut links = network.netdevs.clone();
                links.retain(|i, link| *i != index && !link.is_our_ifb());
                let leaves: Option<Vec<_>> = network.ifb().map(|(_, ifb)| ifb.classified().filter(|(i, _)| *i != index).collect());
                (links, leaves.unwrap_or_default())
            };
            let untouched = others(&network);
            run(&mut network, &made);
            if seen.scope.is_some() {
                prop_assert_eq!(others(&network), untouched);
            }
            if let Some(shaping) = wanted.iter().find(|s| s.netdev == format!("tap{index}"))
                && network.by_name(&shaping.netdev).is_some()
            {
                prop_assert_eq!(met(&network, index), asked(shaping));
                prop_assert_eq!(shared(&network, index), asked_of_shares(shaping, &network));
            }
        }
        let whole = plan(&wanted, &network);
        run(&mut network, &whole);
        prop_assert_eq!(plan(&wanted, &network).steps, vec![]);
    }

    #[test]
    fn removed_contracts_leave_no_objects(before in shapings()) {
        let bare = taps(5);
        let mut network = bare.clone();
        settle(&mut network, &before);
        settle(&mut network, &[]);
        for (index, link) in &network.netdevs {
            prop_assert_eq!(&link.filters, &vec![]);
            prop_assert!(link.qdiscs.iter().all(|q| q.handle.major() == 0));
            prop_assert_eq!(&link.name, &bare.netdevs[index].name);
        }
        prop_assert_eq!(network.netdevs.len(), bare.netdevs.len());
    }

    #[test]
    fn any_bytes_are_parsed_as_a_cookie_or_rejected(bytes: Vec<u8>) {
        if let Some(cookie) = Cookie::parse(&bytes) {
            prop_assert!(bytes.starts_with(b"tidegate"));
            prop_assert_eq!(Cookie::parse(&cookie.bytes()), Some(cookie));
        }
    }
}
