//! Plans against a table of VFs that does what it is told, or refuses as drivers do.

use super::*;
use crate::device::vf::{Leaf, MBIT};
use proptest::prelude::*;
use std::collections::BTreeMap;
use tidegate_contract::Rate;

/// What a driver refuses.
#[derive(Clone, Copy, Debug)]
struct Driver {
    min: bool,
    link_state: bool,
    /// Rates above the link's speed, and all without a link, as igb does.
    strict: bool,
}

const ABLE: Driver = Driver { min: true, link_state: true, strict: false };
/// As measured on an 82576.
const IGB: Driver = Driver { min: false, link_state: false, strict: true };

impl Driver {
    fn abilities(self) -> Abilities {
        let has = |is| if is { Ability::Has } else { Ability::Lacks("as asked".into()) };
        Abilities {
            max_rate: Ability::Has,
            min_rate: has(self.min),
            link_state: has(self.link_state),
            mac: Ability::Has,
            vlan: Ability::Has,
            spoofchk: Ability::Has,
            trust: Ability::Has,
            ..Abilities::default()
        }
    }

    /// Does a step on the table.
    fn apply(self, pf: &mut Pf, step: &Step) -> Result<(), String> {
        let refuse = |why: &str| Err(format!("{step}: {why}"));
        let (up, speed) = (pf.up && pf.carrier, pf.speed);
        let vf = step.vf().and_then(|vf| pf.vfs.get(&vf)).ok_or("no such VF")?;
        match &step.set {
            Set::Rate { min, max, .. } => {
                if *max != 0 && min > max {
                    return refuse("min above max");
                }
                if *min != 0 && !self.min {
                    return refuse("no min");
                }
                if self.strict && (!up || speed.is_some_and(|s| u64::from(*max) * MBIT > s.bits())) {
                    return refuse("link");
                }
            }
            Set::Leaf { share, max, port, .. } => {
                if share % 125_000 != 0 || max % 125_000 != 0 || *max != 0 && share > max {
                    return refuse("whole Mbit/s");
                }
                if vf.leaf.as_ref().is_none_or(|leaf| leaf.port != *port) {
                    return refuse("no such port");
                }
            }
            Set::Mac { .. } | Set::Vlan { .. } | Set::Spoofcheck { .. } | Set::Trust { .. } => {}
            Set::LinkState { .. } if self.link_state => {}
            _ => return refuse("not supported"),
        }
        step.done(pf);
        Ok(())
    }
}

fn mbit(n: u32) -> Option<Rate> {
    Rate::from_bits(u64::from(n) * MBIT)
}

fn rate() -> impl Strategy<Value = Option<Rate>> {
    // Whole Mbit/s and others, below and above the link's speed.
    prop::option::of(prop_oneof![(1..1500_u64).prop_map(|n| n * MBIT), 1..1_500_000_000_u64])
        .prop_map(|bits| bits.and_then(Rate::from_bits))
}

fn link_state() -> impl Strategy<Value = LinkState> {
    prop_oneof![Just(LinkState::Auto), Just(LinkState::Enable), Just(LinkState::Disable)]
}

fn mac() -> impl Strategy<Value = Mac> {
    (0..4_u8).prop_map(|last| if last == 0 { Mac([0; 6]) } else { Mac([0x52, 0x54, 0, 0, 0, last]) })
}

prop_compose! {
    fn vf(leaves: bool)(
        mac in prop::option::of(mac().prop_filter("given", |mac| mac.0 != [0; 6])),
        vlan in 0..4_u16, qos in 0..3_u8, spoofchk: bool, trust: bool,
        state in link_state(), max in 0..1000_u32, min in 0..1000_u32, port in 100..300_u32,
    ) -> Vf {
        let min = if max == 0 { min } else { min.min(max) };
        let bytes = |mbit: u32| u64::from(mbit) * 125_000;
        let leaf = Leaf { port, share: bytes(min), max: bytes(max), parent: None };
        Vf {
            mac, vlan, qos, spoofchk: Some(spoofchk), trust: Some(trust), link_state: state,
            tx_max: mbit(max).filter(|_| !leaves), tx_min: mbit(min).filter(|_| !leaves),
            leaf: leaves.then_some(leaf), ..Vf::default()
        }
    }
}

prop_compose! {
    fn function()(
        index in 0..5_u16, mac in prop::option::of(mac()), vlan in prop::option::of(0..4_u16),
        qos in prop::option::of(0..3_u8), spoofchk: Option<bool>, trust: Option<bool>,
        link_state in prop::option::of(link_state()), tx_max in rate(), tx_min in rate(),
    ) -> Function {
        Function { index, mac, vlan, qos, spoofchk, trust, link_state, tx_max, tx_min }
    }
}

prop_compose! {
    fn pf()(leaves in any::<bool>())(
        vfs in prop::collection::vec(vf(leaves), 0..4), link in 0..4_u8, speed in prop::option::of(1..1000_u64),
        top in prop::option::of(Just(1000_u64)),
    ) -> Pf {
        let vfs: BTreeMap<u16, Vf> = (0..).zip(vfs).collect();
        let rate = |mbit: u64| Rate::from_bits(mbit * MBIT);
        let carrier = link > 0;
        Pf {
            name: "eth0".into(), up: true, carrier, speed: speed.and_then(rate).filter(|_| carrier),
            top_speed: top.and_then(rate), total_vfs: Some(4), num_vfs: vfs.len() as u16, vfs, ..Pf::default()
        }
    }
}

fn functions() -> impl Strategy<Value = Vec<Function>> {
    prop::collection::vec(function(), 0..5)
}

/// Every state between steps, the first and the last included.
fn states(driver: Driver, pf: &Pf, steps: &[Step]) -> Vec<Pf> {
    let mut states = vec![pf.clone()];
    for step in steps {
        let mut next = states[states.len() - 1].clone();
        driver.apply(&mut next, step).expect("a planned step is taken");
        states.push(next);
    }
    states
}

fn bits(rate: Option<Rate>, none: u64) -> u64 {
    rate.map_or(none, Rate::bits)
}

proptest! {
    #[test]
    fn a_driver_takes_every_planned_step_and_a_second_plan_is_empty(wanted in functions(), pf in pf(), igb: bool) {
        let driver = if igb { IGB } else { ABLE };
        let planned = plan(&wanted, &pf, &driver.abilities());
        let last = states(driver, &pf, &planned.steps).pop().expect("one at least");
        let again = plan(&wanted, &last, &driver.abilities());
        prop_assert_eq!(&again.steps, &vec![]);
        prop_assert_eq!(again.refusals, planned.refusals.clone());

        let troubled = |vf| {
            planned.refusals.iter().any(|r| r.vf == vf) || planned.pending.iter().any(|p| p.vf == vf)
        };
        for function in wanted.iter().filter(|f| !troubled(f.index)) {
            let vf = &last.vfs[&function.index];
            let (found, none) = (&pf.vfs[&function.index], Mac([0; 6]));
            // Between two looks nothing tells a MAC address that a trusted driver chose from one that was there before.
            let chosen = function.trust == Some(true) && found.trust == Some(true) && found.mac.is_some();
            match function.mac {
                Some(mac) if !chosen || mac == none => prop_assert_eq!(vf.mac.unwrap_or(none), mac),
                _ => prop_assert_eq!(vf.mac, found.mac),
            }
            prop_assert!(function.vlan.is_none_or(|vlan| vf.vlan == vlan));
            prop_assert!(function.qos.is_none_or(|qos| vf.qos == qos));
            prop_assert!(function.spoofchk.is_none_or(|on| vf.spoofchk == Some(on)));
            prop_assert!(function.trust.is_none_or(|on| vf.trust == Some(on)));
            prop_assert!(function.link_state.is_none_or(|state| vf.link_state == state));
            // Within 1 Mbit/s, and on the right side.
            let (wanted, limit) = (bits(function.tx_max, 0), bits(vf.limit(), 0));
            prop_assert!(limit <= wanted && wanted - limit < MBIT, "limit {limit} for {wanted}");
            let (wanted, least) = (bits(function.tx_min, 0), bits(vf.guarantee(), 0));
            // Where no whole number is between guarantee and limit, both are the one below.
            let above = if least == limit { wanted.saturating_sub(least) } else { 0 };
            prop_assert!(least + above >= wanted && above < MBIT, "guarantee {least} for {wanted}");
            prop_assert!(least.saturating_sub(wanted) < MBIT, "guarantee {least} for {wanted}");
        }
        // A VF that was not named stays as it was.
        for (index, vf) in pf.vfs.iter().filter(|(index, _)| wanted.iter().all(|f| f.index != **index)) {
            prop_assert_eq!(&last.vfs[index], vf);
        }
    }

    #[test]
    fn no_state_between_steps_is_looser_than_the_first_and_the_last(wanted in functions(), pf in pf()) {
        let planned = plan(&wanted, &pf, &ABLE.abilities());
        let states = states(ABLE, &pf, &planned.steps);
        let (first, last) = (&states[0], &states[states.len() - 1]);
        let guaranteed = |pf: &Pf| pf.vfs.values().map(|vf| bits(vf.guarantee(), 0)).sum::<u64>();
        for state in &states {
            prop_assert!(guaranteed(state) <= guaranteed(first).max(guaranteed(last)));
            for (index, vf) in &state.vfs {
                let either = |is: &dyn Fn(&Vf) -> bool| is(&first.vfs[index]) || is(&last.vfs[index]);
                let limit = |vf: &Vf| bits(vf.limit(), u64::MAX);
                prop_assert!(either(&|end| limit(vf) <= limit(end)));
                prop_assert!(either(&|end| bits(vf.guarantee(), 0) <= bits(end.guarantee(), 0)));
                prop_assert!(vf.spoofchk == Some(true) || either(&|end| end.spoofchk == Some(false)));
                prop_assert!(vf.trust == Some(false) || either(&|end| end.trust == Some(true)));
            }
        }
    }

    #[test]
    fn steps_before_a_failure_are_undone(wanted in functions(), pf in pf(), cut: prop::sample::Index) {
        let planned = plan(&wanted, &pf, &ABLE.abilities());
        let done = &planned.steps[..cut.index(planned.steps.len() + 1)];
        let half_way = states(ABLE, &pf, done).pop().expect("one at least");
        let back = states(ABLE, &half_way, &undo(done, &pf)).pop();
        prop_assert_eq!(back, Some(pf));
    }

    #[test]
    fn a_record_restores_the_settings_that_were_found(wanted in functions(), mut pf in pf()) {
        // With a link; restoring without one waits for it.
        (pf.carrier, pf.speed, pf.top_speed) = (true, None, None);
        let planned = plan(&wanted, &pf, &ABLE.abilities());
        let last = states(ABLE, &pf, &planned.steps).pop().expect("one at least");
        let mut seen = BTreeSet::new();
        let records: Vec<Function> = wanted
            .iter()
            .filter(|f| seen.insert(f.index))
            .filter_map(|f| Some(f.before(pf.vfs.get(&f.index)?)))
            .collect();
        let restored = plan(&records, &last, &ABLE.abilities());
        prop_assert_eq!(&restored.refusals, &vec![]);
        prop_assert_eq!(states(ABLE, &last, &restored.steps).pop(), Some(pf));
    }
}

fn one(vf: Vf) -> Pf {
    Pf {
        name: "eth0".into(),
        driver: "igb".into(),
        up: true,
        carrier: true,
        speed: mbit(1000),
        top_speed: mbit(10_000),
        num_vfs: 1,
        total_vfs: Some(7),
        vfs: [(0, vf)].into(),
        ..Pf::default()
    }
}

fn reasons(wanted: Function, pf: &Pf, driver: Driver) -> (Vec<String>, Vec<String>) {
    let plan = plan(&[wanted], pf, &driver.abilities());
    (
        plan.refusals.into_iter().map(|r| r.reason).collect(),
        plan.pending.into_iter().map(|p| p.reason).collect(),
    )
}

#[test]
fn refusals_say_what_is_wrong_and_what_to_do() {
    let pf = one(Vf::default());
    let wanted = |index, tx_max: &str| {
        let tx_max = (!tx_max.is_empty()).then(|| tx_max.parse().expect("a rate"));
        Function { index, tx_max, ..Function::default() }
    };
    let refused = |function, what: &str| {
        let (refusals, pending) = reasons(function, &pf, IGB);
        assert!(refusals.len() == 1 && refusals[0].contains(what), "{what}: {refusals:?}");
        assert_eq!(pending, Vec::<String>::new());
    };
    refused(
        wanted(2, ""),
        "eth0 has no VF 2: it has one, VF 0; write the number of VFs to /sys/class/net/eth0/device/",
    );
    refused(wanted(7, ""), "eth0 cannot have a VF 7: at most 7, VF 0 to 6; it has one, VF 0");
    refused(wanted(0, "999kbit"), "tx.max of 999kbit is below 1 Mbit/s");
    refused(wanted(0, "11gbit"), "tx.max of 11gbit is more than 10gbit, the fastest that eth0 can do");
    let min = Function { tx_min: mbit(10), ..Function::default() };
    refused(min.clone(), "the control loop can keep tx.min");
    refused(
        Function { link_state: Some(LinkState::Disable), ..Function::default() },
        "link state: eth0 has no such",
    );
    refused(Function { vlan: Some(4095), ..Function::default() }, "VLAN 4095");
    refused(Function { mac: Some(Mac([1; 6])), ..Function::default() }, "the MAC address of a group");
    // What is off anyhow can be wanted off.
    let off = Function { link_state: Some(LinkState::Auto), trust: Some(false), ..Function::default() };
    assert_eq!(reasons(off, &pf, IGB), (vec![], vec![]));
    let above = Function { tx_max: mbit(1), tx_min: Rate::from_bits(1_000_001), ..Function::default() };
    let (refusals, _) = reasons(above, &pf, ABLE);
    assert_eq!(refusals, ["tx.min of 1000001bit is more than tx.max of 1mbit"]);
    let twice = plan(&[min.clone(), min], &pf, &ABLE.abilities());
    assert_eq!(twice.refusals.len(), 1);
}

#[test]
fn a_trusted_driver_keeps_the_mac_that_it_chose() {
    let [given, chosen, none] = [Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]), Mac([0; 6])];
    let wanted = |mac, trust| Function { mac: Some(mac), trust: Some(trust), ..Function::default() };
    let found = |mac, trust| one(Vf { mac, trust: Some(trust), ..Vf::default() });
    let planned = |wanted, pf: &Pf| plan(&[wanted], pf, &IGB.abilities());
    let sets = |plan: &Plan| plan.steps.iter().map(|step| step.set.clone()).collect::<Vec<_>>();
    let set = |mac| Set::Mac { vf: 0, mac };
    let trust = |on| Set::Trust { vf: 0, on };
    let left = planned(wanted(given, true), &found(Some(chosen), true));
    assert_eq!(left.steps, []);
    assert!(left.notes[0].text.starts_with("MAC address 02:00:00:00:00:02 instead of 02:00:00:00:00:01"));
    // Each other time it is set: before trust is given, when it is taken, where there is none, to give it back.
    for (wanted, found, expected) in [
        (wanted(given, true), found(Some(chosen), false), vec![set(given), trust(true)]),
        (wanted(given, false), found(Some(chosen), true), vec![trust(false), set(given)]),
        (wanted(given, false), found(Some(chosen), false), vec![set(given)]),
        (wanted(given, true), found(None, true), vec![set(given)]),
        (wanted(none, true), found(Some(chosen), true), vec![set(none)]),
        (Function { trust: None, ..wanted(given, true) }, found(Some(chosen), true), vec![set(given)]),
    ] {
        let plan = planned(wanted, &found);
        assert_eq!((sets(&plan), plan.notes), (expected, vec![]));
    }
}

#[test]
fn a_guarantee_is_rounded_to_no_more_than_its_limit() {
    let pf = one(Vf::default());
    let rate = |kbit: u64| Rate::from_bits(kbit * 1000);
    for (min, max, expected) in [
        (50_500, 50_500, (50, 50)),
        (50_001, 50_999, (50, 50)),
        (49_001, 50_500, (50, 50)),
        (50_001, 51_000, (51, 51)),
    ] {
        let wanted = Function { tx_min: rate(min), tx_max: rate(max), ..Function::default() };
        let planned = plan(&[wanted], &pf, &ABLE.abilities());
        let (min, max) = expected;
        let last = planned.steps.last().map(|step| step.set.clone());
        assert_eq!((planned.refusals, last), (vec![], Some(Set::Rate { vf: 0, min, max })));
    }
}

#[test]
fn a_rate_waits_for_its_link() {
    let limited = |mbps| Vf { tx_max: mbit(mbps), ..Vf::default() };
    let wanted = Function { tx_max: mbit(2000), ..Function::default() };
    // Faster than the link, slower than the NIC: the link is the limit, and the old one would be in the way.
    let slow = one(limited(100));
    let planned = plan(std::slice::from_ref(&wanted), &slow, &IGB.abilities());
    assert_eq!(planned.steps, [Step::on(&slow, Set::Rate { vf: 0, min: 0, max: 0 })]);
    assert!(planned.pending[0].reason.contains("faster than 1gbit"), "{:?}", planned.pending);
    // Without a link nothing is tried.
    let down = Pf { carrier: false, speed: None, ..slow.clone() };
    let planned = plan(std::slice::from_ref(&wanted), &down, &IGB.abilities());
    assert_eq!((planned.steps.len(), planned.refusals.len(), planned.pending.len()), (0, 0, 1));
    assert!(planned.pending[0].reason.contains("wait for the link of eth0"), "{:?}", planned.pending);
    // It is fast enough.
    let fast = Pf { speed: mbit(10_000), ..slow };
    let planned = plan(std::slice::from_ref(&wanted), &fast, &IGB.abilities());
    assert_eq!(planned.steps, [Step::on(&fast, Set::Rate { vf: 0, min: 0, max: 2000 })]);
    assert_eq!(planned.pending, []);
    // As wanted already: nothing waits, link or not.
    let done = Pf { vfs: [(0, limited(2000))].into(), ..down };
    assert_eq!(plan(&[wanted], &done, &IGB.abilities()), Plan::default());
}
