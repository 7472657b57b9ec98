use super::*;
use proptest::prelude::*;
use tidegate_contract::{
    Allowed, Bytes, Envelope, Host, Nanos, Peer, Queueing, Rate, Rx, SocketOwner, Tx, UplinkKind,
};
use tidegate_place::{Action, Adopt, HostWork, ObservedVnic};

fn vnic(name: u8, mac: u8, link: u8, kind: u8, rate: u64, queues: u16) -> Vnic {
    let attach = match kind % 3 {
        0 => Attach::Tap { name: format!("tg{link}"), netns: None },
        k => Attach::VhostUser {
            path: format!("/run/tg{link}.sock").into(),
            mode: if k == 1 { SocketMode::Server } else { SocketMode::Client },
            owner: SocketOwner::default(),
        },
    };
    Vnic {
        name: format!("v{name}"),
        attach,
        mac: Mac([2, 0, 0, 0, 0, mac]),
        segment: Segment::new(1).unwrap(),
        tx: Tx { max: Rate::from_bits(rate), min: None, burst: Some(Bytes::new(4000)), ..Tx::default() },
        rx: Rx::default(),
        queueing: Queueing::default(),
        weight: 1,
        deadline: None,
        to: vec![],
        allowed: Allowed::default(),
        mtu: 1500,
        queues,
        guest: None,
        on_refused: None,
        on_unreachable: None,
        transport: tidegate_contract::Transport::default(),
        zero_copy: false,
    }
}

/// The state of a place: what it observes, and what it found.
#[derive(Clone, Debug)]
struct State {
    observed: Observed,
    found: Facts,
}

impl State {
    fn plan(&self, host: &Host, vnics: &[Vnic]) -> Result<Vec<SwitchAction>, Vec<Refusal>> {
        self.plan_with(host, Network::NONE, vnics)
    }

    fn plan_with(
        &self,
        host: &Host,
        network: &Network,
        vnics: &[Vnic],
    ) -> Result<Vec<SwitchAction>, Vec<Refusal>> {
        let wanted = Wanted { host, network, vnics, adopt: Adopt::No, claims: &[], work: HostWork::NONE };
        plan(&wanted, &self.observed, &self.found).map(|plan| plan.actions)
    }

    /// The change was accepted.
    fn accept(&mut self, vnics: &[Vnic]) {
        self.found.adopted.retain(|name, _| !vnics.iter().any(|vnic| vnic.name == *name));
    }
}

/// The effect of an action, without any switch. Panics if two vNICs would have the same MAC or attachment at one time,
/// or two uplinks the same address and port.
fn apply(state: &mut State, action: &SwitchAction) {
    let State { observed, found } = state;
    match action {
        SwitchAction::SetHost { from, to } => {
            assert_eq!(*from, observed.host);
            observed.host = Some(to.clone());
        }
        SwitchAction::Contract(ContractChange::Create(vnic)) => {
            let before = observed.vnics.insert(vnic.name.clone(), there(vnic.clone()));
            assert!(before.is_none_or(|b| !b.present), "created twice");
        }
        SwitchAction::Contract(ContractChange::Change { from, to }) => {
            let entry = observed.vnics.get_mut(&to.name).unwrap();
            assert!(entry.present && entry.vnic == *from && same_attachment(&from.attach, &to.attach));
            assert!(entry.ours, "changed before it was ours");
            entry.vnic = to.clone();
        }
        SwitchAction::Adopt(vnic) => {
            let entry = observed.vnics.get_mut(&vnic.name).unwrap();
            assert!(entry.present && entry.vnic == *vnic && !entry.ours);
            entry.ours = true;
            found.adopted.insert(vnic.name.clone(), vnic.clone());
        }
        SwitchAction::Release(vnic) => {
            assert_eq!(found.adopted.remove(&vnic.name).as_ref(), Some(vnic));
            let entry = observed.vnics.get_mut(&vnic.name).unwrap();
            if entry.present {
                entry.ours = false;
            } else {
                observed.vnics.remove(&vnic.name);
            }
        }
        SwitchAction::Reconnect(vnic) => {
            let entry = observed.vnics.get_mut(&vnic.name).unwrap();
            assert!(entry.present);
            entry.connection = Connection::Up;
            entry.broken = None;
        }
        SwitchAction::Direct(directions) => found.directing.reported = Some(directions.clone()),
        SwitchAction::Contract(ContractChange::Remove(vnic)) => {
            assert!(observed.vnics.remove(&vnic.name).is_some_and(|o| o.vnic == *vnic));
        }
        SwitchAction::SetUplink { from, to } => {
            let name = &to.uplink.name;
            assert!(!observed.vnics.get(name).is_some_and(|o| o.present), "{name} is a vNIC");
            let present = PresentUplink { declared: (**to).clone(), ours: true, repair: false };
            let before = found.uplinks.insert(name.clone(), present);
            let contracts =
                before.as_ref().map(|present| &present.declared).filter(|declared| **declared == **to);
            assert_eq!(way_back(before.as_ref()).or(contracts), from.as_deref());
            let sockets: HashSet<_> =
                found.uplinks.values().map(|p| (p.declared.uplink.local, p.declared.uplink.port)).collect();
            assert_eq!(sockets.len(), found.uplinks.len(), "two uplinks have one address and port");
        }
        SwitchAction::RemoveUplink { name, from } => {
            let before = found.uplinks.remove(name);
            assert!(before.is_some());
            assert_eq!(way_back(before.as_ref()), from.as_deref());
        }
    }
}

/// The declaration of this agent that an action may restore: never one that only the switch speaks of.
fn way_back(present: Option<&PresentUplink>) -> Option<&Declared> {
    present.filter(|present| present.ours).map(|present| &present.declared)
}

/// The uplinks of a network in the switch.
fn present(network: &Network, ours: bool) -> BTreeMap<String, PresentUplink> {
    let one = |(name, declared)| (name, PresentUplink { declared, ours, repair: false });
    declared(network).into_iter().map(one).collect()
}

fn there(vnic: Vnic) -> ObservedVnic {
    ObservedVnic::of(&vnic, Connection::Up)
}

fn observed(host: Option<Host>, vnics: Vec<ObservedVnic>) -> State {
    let vnics = vnics.into_iter().map(|o| (o.vnic.name.clone(), o)).collect();
    State { observed: Observed { host, vnics, ..Observed::nothing("") }, found: Facts::default() }
}

/// Distinct names, MACs and links, as the contract's checks guarantee: a permutation of each.
fn set() -> impl Strategy<Value = Vec<Vnic>> {
    let ids = || Just((0u8..6).collect::<Vec<_>>()).prop_shuffle();
    let rest = prop::collection::vec((0u8..3, 1u64..4, 1u16..3), 6);
    (0usize..6, ids(), ids(), ids(), rest).prop_map(|(n, names, macs, links, rest)| {
        let mut set: Vec<Vnic> =
            (0..n).map(|i| vnic(names[i], macs[i], links[i], rest[i].0, rest[i].1, rest[i].2)).collect();
        set.sort_by(|a, b| a.name.cmp(&b.name));
        set
    })
}

fn uplink(name: &str, (local, port): (u8, u16), rate: u64, peer: &str) -> Uplink {
    Uplink {
        name: name.into(),
        kind: UplinkKind::Vxlan,
        local: Some([192, 0, 2, local].into()),
        device: None,
        port,
        notice_port: 29_796,
        rate: Rate::from_bits(rate).unwrap(),
        mtu: 1500,
        latency: None,
        arrival_budget: Nanos::new(500_000),
        peers: vec![Peer {
            name: peer.into(),
            address: Some([192, 0, 2, 200].into()),
            segments: None,
            latency: None,
            arrival_budget: None,
            stamps: true,
        }],
        rdma: None,
        controlled: false,
    }
}

fn remote(name: &str, mac: u8, peer: &str) -> Remote {
    Remote {
        name: name.into(),
        mac: Mac([2, 0, 0, 0, 1, mac]),
        segment: Segment::new(1).unwrap(),
        peer: peer.into(),
        addresses: vec![],
        tx: Envelope::default(),
        deadline: None,
        to: vec![],
    }
}

/// Up to three uplinks with distinct names, addresses with ports, and peers; and remotes behind some of these.
fn network() -> impl Strategy<Value = Network> {
    const NAMES: [&str; 3] = ["net0", "net1", "net2"];
    const SOCKETS: [(u8, u16); 4] = [(1, 4789), (1, 4790), (2, 4789), (2, 4790)];
    const PEERS: [&str; 3] = ["host0", "host1", "host2"];
    let shuffled = (Just(NAMES).prop_shuffle(), Just(SOCKETS).prop_shuffle(), Just(PEERS).prop_shuffle());
    let rates = prop::collection::vec(1u64..3, 3);
    let macs = Just([0u8, 1, 2, 3]).prop_shuffle();
    let remotes = prop::collection::vec((any::<bool>(), 0usize..3), 4);
    (0usize..4, shuffled, rates, macs, remotes).prop_map(|(count, shuffled, rates, macs, remotes)| {
        let (names, sockets, peers) = shuffled;
        let mut uplinks: Vec<Uplink> =
            (0..count).map(|i| uplink(names[i], sockets[i], rates[i], peers[i])).collect();
        uplinks.sort_by(|a, b| a.name.cmp(&b.name));
        let there = remotes.into_iter().zip(macs).enumerate();
        let there = there.filter(|(_, ((is_there, peer), _))| *is_there && *peer < count);
        let remotes = there.map(|(i, ((_, peer), mac))| remote(&format!("r{i}"), mac, peers[peer]));
        Network { remotes: remotes.collect(), uplinks, ..Network::default() }
    })
}

fn state() -> impl Strategy<Value = State> {
    let flags = prop::collection::vec((any::<bool>(), any::<bool>(), 0u8..4, any::<bool>()), 6);
    (set(), flags, prop::option::of(0u64..2), network(), any::<bool>()).prop_map(
        |(set, flags, host, network, ours)| {
            let vnics =
                set.into_iter().zip(flags).map(|(vnic, (present, ours, connection, broken))| ObservedVnic {
                    present,
                    ours: ours || !present,
                    connection: [
                        Connection::Waiting,
                        Connection::Disconnected,
                        Connection::Connected,
                        Connection::Up,
                    ][connection as usize],
                    broken: (broken && present).then(|| "its socket is gone".into()),
                    ..there(vnic)
                });
            let mut state = observed(host.map(host_with), vnics.collect());
            state.found.uplinks = present(&network, ours);
            state
        },
    )
}

fn host_with(n: u64) -> Host {
    Host { host_latency: Nanos::new(100_000 + n), ..Host::default() }
}

proptest! {
    #[test]
    fn applying_the_plan_gives_what_is_wanted(
        set in set(), network in network(), before in state(), host in 0u64..2,
    ) {
        let host = host_with(host);
        let Ok(actions) = before.plan_with(&host, &network, &set) else { return Ok(()) };
        let mut after = before.clone();
        for action in &actions {
            apply(&mut after, action);
        }
        let is_found = |name: &String| set.iter().any(|v| v.name == *name);
        prop_assert!(after.found.adopted.keys().all(is_found), "adopted without a contract");
        after.accept(&set);
        prop_assert!(after.found.adopted.is_empty());
        let uplinks = after.found.uplinks.iter().map(|(name, p)| (name.clone(), p.declared.clone()));
        prop_assert_eq!(uplinks.collect::<BTreeMap<_, _>>(), declared(&network));
        prop_assert_eq!(after.plan_with(&host, &network, &set), Ok(vec![]), "not idempotent");
        let (before, after) = (before.observed, after.observed);
        prop_assert_eq!(after.host.as_ref(), Some(&host));
        for vnic in &set {
            let there = &after.vnics[&vnic.name];
            prop_assert!(there.present && there.ours && there.broken.is_none() && there.vnic == *vnic);
        }
        for (name, foreign) in before.vnics.iter().filter(|(_, o)| !o.ours) {
            let wanted = set.iter().any(|v| v.name == *name);
            prop_assert!(wanted || after.vnics.get(name) == Some(foreign), "a foreign vNIC was removed");
        }
        for (name, extra) in after.vnics.iter().filter(|(n, _)| !set.iter().any(|v| v.name == **n)) {
            prop_assert_eq!(Some(extra), before.vnics.get(name), "a foreign vNIC was touched");
            prop_assert!(!extra.ours);
        }
    }

    #[test]
    fn the_inverse_actions_lead_back(
        set in set(), old in set(), networks in (network(), network()),
        ours in prop::collection::vec(any::<bool>(), 6),
    ) {
        let host = Host::default();
        let mut before = observed(Some(host_with(0)), old.into_iter().map(there).collect());
        before.found.uplinks = present(&networks.0, true);
        for (there, ours) in before.observed.vnics.values_mut().zip(ours) {
            // Where it must be made anew there is no way back to what another program had made.
            let same = set.iter().any(|v| {
                v.name == there.vnic.name && same_attachment(&v.attach, &there.vnic.attach) && v.queues == there.vnic.queues
            });
            there.ours = ours || !same;
        }
        let Ok(actions) = before.plan_with(&host, &networks.1, &set) else { return Ok(()) };
        let mut state = before.clone();
        actions.iter().for_each(|a| apply(&mut state, a));
        actions.iter().rev().filter_map(Action::inverse).for_each(|a| apply(&mut state, &a));
        prop_assert_eq!(state.observed.host, before.observed.host);
        prop_assert_eq!(state.observed.vnics, before.observed.vnics);
        prop_assert_eq!(state.found.adopted, before.found.adopted);
        prop_assert_eq!(state.found.uplinks, before.found.uplinks);
    }

    /// A change that adopted vNICs of another agent, and was never accepted.
    #[test]
    fn a_vnic_that_was_adopted_and_never_accepted_gets_its_values_back(set in set(), rate in 5u64..9) {
        let before = observed(Some(Host::default()), set.iter().cloned().map(there).collect());
        let mut died = before.clone();
        for entry in died.observed.vnics.values_mut() {
            died.found.adopted.insert(entry.vnic.name.clone(), entry.vnic.clone());
            entry.vnic.tx.max = Rate::from_bits(rate);
        }
        let actions = died.plan(&Host::default(), &[]).unwrap();
        actions.iter().for_each(|a| apply(&mut died, a));
        prop_assert!(died.found.adopted.is_empty());
        for (name, entry) in &died.observed.vnics {
            prop_assert!(!entry.ours);
            prop_assert_eq!(&entry.vnic, &before.observed.vnics[name].vnic);
        }
    }

    #[test]
    fn only_foreign_vnics_cause_a_refusal(set in set(), mut before in state()) {
        before.observed.vnics.values_mut().for_each(|o| o.ours = true);
        prop_assert!(before.plan(&Host::default(), &set).is_ok());
    }
}

#[test]
fn a_foreign_vnic_that_is_as_wanted_is_only_adopted() {
    let set = [vnic(1, 1, 1, 1, 5, 1)];
    let mut before = observed(Some(Host::default()), vec![there(set[0].clone())]);
    before.observed.vnics.get_mut("v1").unwrap().ours = false;
    let actions = before.plan(&Host::default(), &set);
    assert_eq!(actions, Ok(vec![SwitchAction::Adopt(set[0].clone())]));
}

#[test]
fn a_removal_that_makes_room_comes_first_and_others_last() {
    let old = [vnic(1, 1, 1, 1, 5, 1), vnic(2, 2, 2, 1, 5, 1)];
    let before = observed(Some(Host::default()), old.iter().cloned().map(there).collect());
    let new = [vnic(3, 1, 3, 1, 5, 1)];
    let actions = before.plan(&Host::default(), &new).unwrap();
    let names: Vec<_> = actions.iter().map(|a| (a.label(), a.vnic().unwrap())).collect();
    assert_eq!(names, [("remove", "v1"), ("create", "v3"), ("remove", "v2")]);
}

fn labels(actions: &[SwitchAction]) -> Vec<String> {
    let name = |action: &SwitchAction| match action {
        SwitchAction::SetUplink { to, .. } => to.uplink.name.clone(),
        SwitchAction::RemoveUplink { name, .. } => name.clone(),
        other => other.vnic().unwrap_or_default().to_owned(),
    };
    actions.iter().map(|action| format!("{} {}", action.label(), name(action))).collect()
}

#[test]
fn uplinks_that_exchange_their_ports_are_removed_first() {
    let network = |ports: [u16; 2], rate| Network {
        uplinks: vec![
            uplink("net0", (1, ports[0]), 5, "host0"),
            uplink("net1", (1, ports[1]), rate, "host1"),
        ],
        remotes: vec![],
        keys: vec![],
        controller: None,
    };
    let mut before = observed(Some(Host::default()), vec![]);
    before.found.uplinks = present(&network([4789, 4790], 5), true);
    let plan = |to| labels(&before.plan_with(&Host::default(), &to, &[]).unwrap());
    let exchange = ["remove uplink net0", "remove uplink net1", "set uplink net0", "set uplink net1"];
    assert_eq!(plan(network([4790, 4789], 5)), exchange);
    assert_eq!(plan(network([4790, 4791], 5)), ["remove uplink net1", "set uplink net0", "set uplink net1"]);
    assert_eq!(plan(network([4789, 4790], 6)), ["set uplink net1"]);
    assert_eq!(plan(network([4789, 4790], 5)), [""; 0]);
}

#[test]
fn a_broken_uplink_is_set_again_when_it_is_time() {
    let network = Network { uplinks: vec![uplink("net0", (1, 4789), 5, "host0")], ..Network::default() };
    let mut before = observed(Some(Host::default()), vec![]);
    before.found.uplinks = present(&network, true);
    let plan = |state: &State| labels(&state.plan_with(&Host::default(), &network, &[]).unwrap());
    assert_eq!(plan(&before), [""; 0]);
    before.found.uplinks.get_mut("net0").unwrap().repair = true;
    assert_eq!(plan(&before), ["set uplink net0"]);
}

/// A switch that was taken over names an uplink, and has it "restored" when a change fails.
#[test]
fn an_uplink_that_only_the_switch_speaks_of_is_removed_without_a_way_back() {
    let mut before = observed(Some(Host::default()), vec![]);
    let network = |rate| Network {
        uplinks: vec![uplink("net0", (1, 4789), rate, "host0")],
        remotes: vec![],
        keys: vec![],
        controller: None,
    };
    before.found.uplinks = present(&network(5), false);
    let inverses = |to: &Network| -> Vec<_> {
        let actions = before.plan_with(&Host::default(), to, &[]).unwrap();
        actions.iter().map(Action::inverse).collect()
    };
    assert_eq!(inverses(&Network::default()), [None]);
    let [Some(SwitchAction::RemoveUplink { from: Some(to), .. })] = &inverses(&network(6))[..] else {
        panic!("{:?}", inverses(&network(6)))
    };
    assert_eq!(**to, declared(&network(6))["net0"]);
}

#[test]
fn an_uplink_may_take_a_vnics_name_and_a_vnic_an_uplinks() {
    let mut before = observed(Some(Host::default()), vec![there(vnic(1, 1, 1, 1, 5, 1))]);
    let network = |name| Network { uplinks: vec![uplink(name, (1, 4789), 5, "host0")], ..Network::default() };
    before.found.uplinks = present(&network("v2"), true);
    let set = [vnic(2, 2, 2, 1, 5, 1)];
    let actions = before.plan_with(&Host::default(), &network("v1"), &set).unwrap();
    let expected = ["remove uplink v2", "remove v1", "set uplink v1", "create v2"];
    assert_eq!(labels(&actions), expected);
    actions.iter().for_each(|action| apply(&mut before, action));
}

#[test]
fn a_foreign_vnic_with_our_mac_is_refused_by_name() {
    let mut foreign = there(vnic(9, 1, 9, 1, 5, 1));
    foreign.ours = false;
    let before = observed(None, vec![foreign]);
    let refusals = before.plan(&Host::default(), &[vnic(1, 1, 1, 1, 5, 1)]).unwrap_err();
    assert_eq!(refusals.len(), 1);
    assert!(refusals[0].vnic == "v1" && refusals[0].reason.contains("v9"), "{refusals:?}");
}

#[test]
fn an_obstacle_causes_a_refusal() {
    let mut before = observed(None, vec![]);
    before.observed.obstacles.insert("v1".into(), "a file is there".into());
    let set = [vnic(1, 1, 1, 1, 5, 1), vnic(2, 2, 2, 1, 5, 1)];
    let refusals = before.plan(&Host::default(), &set).unwrap_err();
    assert_eq!(refusals, [Refusal { vnic: "v1".into(), reason: "a file is there".into() }]);
}

#[test]
fn the_1025th_vnic_is_refused() {
    let mut set: Vec<Vnic> = (0..=MOST).map(|_| vnic(0, 0, 0, 1, 5, 1)).collect();
    for (i, v) in set.iter_mut().enumerate() {
        v.name = format!("v{i:04}");
    }
    let refusals = observed(None, vec![]).plan(&Host::default(), &set).unwrap_err();
    assert_eq!(refusals.iter().map(|r| r.vnic.as_str()).collect::<Vec<_>>(), ["v1024"]);
}
