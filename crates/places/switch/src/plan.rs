//! From the wanted and the observed state to actions. Pure.
//!
//! ```text
//!  removals that make room ─▶ host ─▶ changes, reconnects ─▶ creations ─▶ other removals ─▶ workers' CPUs
//! ```
//!
//! A removal is hard to undo, because a guest loses its connection. So it comes last, unless another vNIC needs what it frees.

use crate::action::SwitchAction;
use crate::own_cpus;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use tidegate_contract::{Attach, Host, Mac, Segment, SocketMode, Vnic};
use tidegate_evidence::Connection;
use tidegate_place::difference::{Difference, differences};
use tidegate_place::host::{Claim, Part, Resource};
use tidegate_place::{ContractChange, Observed, Plan, Refusal, Wanted};

/// Most vNICs of one switch.
pub const MOST: usize = tidegate_switch::capacity::VNICS;

/// vNICs that were adopted by a change that is not accepted, with their contracts before it.
pub type Found = BTreeMap<String, Vnic>;

/// The facts that only a plan reads.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// Adopted vNICs.
    pub found: Found,
    /// The workers' CPUs; `None` if the agent leaves their settings alone.
    pub own_cpus: Option<own_cpus::Facts>,
}

/// See [`tidegate_place::Place::plan`].
pub fn plan(
    wanted: &Wanted<'_>,
    observed: &Observed,
    facts: &Facts,
) -> Result<Plan<SwitchAction>, Vec<Refusal>> {
    refuse(wanted, observed)?;
    let found = &facts.found;
    let names: HashSet<&str> = wanted.vnics.iter().map(|v| v.name.as_str()).collect();
    let (mut remove, mut unwanted) = (Vec::new(), Vec::new());
    let (mut change, mut release) = (Vec::new(), Vec::new());
    let mut create = Vec::new();
    let to = |from: &Vnic, to: &Vnic| {
        SwitchAction::Contract(ContractChange::Change { from: from.clone(), to: to.clone() })
    };
    let in_place =
        |from: &Vnic, to: &Vnic| same_attachment(&from.attach, &to.attach) && from.queues == to.queues;
    for difference in differences(wanted.vnics, &observed.vnics, in_place) {
        match difference {
            Difference::Missing(vnic) => create.push(vnic.clone()),
            Difference::Moved { from, to } => {
                remove.push(from.vnic.clone());
                create.push(to.clone());
            }
            Difference::Changed { from: there, .. } | Difference::Same(there) => {
                if !there.ours {
                    change.push(SwitchAction::Adopt(there.vnic.clone()));
                }
                let vnic = if let Difference::Changed { to, .. } = difference { to } else { &there.vnic };
                if there.vnic != *vnic {
                    change.push(to(&there.vnic, vnic));
                }
                if there.broken.is_some()
                    || (there.connection == Connection::Disconnected && we_connect(&vnic.attach))
                {
                    change.push(SwitchAction::Reconnect(vnic.clone()));
                }
            }
            Difference::Unwanted(there) => match found.get(&there.vnic.name) {
                None => unwanted.push(there.vnic.clone()),
                Some(found) => {
                    if there.present && there.vnic != *found {
                        release.push(to(&there.vnic, found));
                    }
                    release.push(SwitchAction::Release(found.clone()));
                }
            },
        }
    }
    remove.append(&mut unwanted);
    change.append(&mut release);

    let coming = || {
        let changed = change.iter().filter_map(|action| match action {
            SwitchAction::Contract(ContractChange::Change { to, .. }) => Some(to),
            _ => None,
        });
        create.iter().chain(changed)
    };
    let needed: HashSet<Unique<'_>> = coming().flat_map(unique).collect();
    // What vNICs share is no vNIC's own; they have it beside each other.
    let shared_now: HashSet<Unique<'_>> = coming().flat_map(shared).collect();
    let in_the_way = |old: &Vnic| {
        unique(old).any(|c| needed.contains(&c) || shared_now.contains(&c))
            || shared(old).any(|c| needed.contains(&c))
    };
    let (first, last): (Vec<_>, Vec<_>) =
        remove.into_iter().partition(|old| names.contains(old.name.as_str()) || in_the_way(old));

    let removals =
        |vnics: Vec<Vnic>| vnics.into_iter().map(ContractChange::Remove).map(SwitchAction::Contract);
    let mut actions: Vec<SwitchAction> = removals(first).collect();
    // The settings of NICs are the NIC place's.
    let host = Host { nic: BTreeMap::new(), ..wanted.host.clone() };
    if observed.host.as_ref() != Some(&host) {
        actions.push(SwitchAction::SetHost { from: observed.host.clone(), to: host });
    }
    actions.extend(change);
    actions.extend(create.into_iter().map(ContractChange::Create).map(SwitchAction::Contract));
    actions.extend(removals(last));
    let Some(own_cpus) = &facts.own_cpus else { return Ok(actions.into()) };
    // Taps that are still to come have no settings.
    let is_here = |v: &&Vnic| observed.vnics.get(&v.name).is_some_and(|there| there.present && there.ours);
    let target = own_cpus.due(wanted.vnics.iter().filter(is_here), &observed.evidence);
    actions.extend(target.map(SwitchAction::OwnCpus));
    let claims = own_cpus.own(wanted.vnics.iter(), &observed.evidence).into_iter().map(claim).collect();
    Ok(Plan { actions, claims })
}

/// The claim on a CPU that a worker of real-time vNICs has for itself.
fn claim(cpu: usize) -> Claim {
    let purpose = "a worker of the switch that has real-time vNICs".into();
    Claim { resource: Resource::Cpu(cpu), part: Part::All, vnic: None, purpose }
}

fn refuse(wanted: &Wanted<'_>, observed: &Observed) -> Result<(), Vec<Refusal>> {
    let names: HashSet<&str> = wanted.vnics.iter().map(|v| v.name.as_str()).collect();
    let foreign: Vec<&Vnic> = observed
        .vnics
        .values()
        .filter(|o| o.present && !o.ours && !names.contains(o.vnic.name.as_str()))
        .map(|o| &o.vnic)
        .collect();
    let claimed: HashMap<Unique<'_>, &Vnic> =
        foreign.iter().rev().flat_map(|f| unique(f).map(|claim| (claim, *f))).collect();
    let mut refusals = Vec::new();
    for vnic in wanted.vnics {
        if let Some(obstacle) = observed.obstacles.get(&vnic.name) {
            refusals.push(Refusal::new(&vnic.name, obstacle.clone()));
        }
        if let Some(other) = unique(vnic).find_map(|claim| claimed.get(&claim)) {
            refusals.push(Refusal {
                vnic: vnic.name.clone(),
                reason: format!(
                    "its MAC or its attachment belongs to vNIC {} in the switch, which this agent did not make; \
                     remove that one with the agent that made it, or restart the switch",
                    other.name
                ),
            });
        }
    }
    if wanted.vnics.len() + foreign.len() > MOST {
        refusals.extend(wanted.vnics.iter().skip(MOST - foreign.len().min(MOST)).map(|vnic| Refusal {
            vnic: vnic.name.clone(),
            reason: format!("one switch carries at most {MOST} vNICs"),
        }));
    }
    if refusals.is_empty() { Ok(()) } else { Err(refusals) }
}

/// A property that only one vNIC can have.
#[derive(PartialEq, Eq, Hash)]
enum Unique<'a> {
    Mac(Segment, Mac),
    Attachment(AttachmentKey<'a>),
}

/// A socket; or an interface, and the namespace where it is.
pub type AttachmentKey<'a> = (&'a Path, Option<&'a Path>);

/// The attachment of a port of the switch.
pub fn attachment_key(vnic: &Vnic) -> Option<AttachmentKey<'_>> {
    match &vnic.attach {
        Attach::VhostUser { path, .. } => Some((path, None)),
        Attach::Tap { name, netns } => Some((name.as_ref(), netns.as_deref())),
        _ => None,
    }
}

fn unique(vnic: &Vnic) -> impl Iterator<Item = Unique<'_>> {
    let macs = std::iter::once(&vnic.mac).chain(&vnic.allowed.macs);
    macs.map(|mac| Unique::Mac(vnic.segment, *mac)).chain(attachment_key(vnic).map(Unique::Attachment))
}

fn shared(vnic: &Vnic) -> impl Iterator<Item = Unique<'_>> {
    let macs = vnic.allowed.shared.iter().filter_map(|address| address.mac());
    macs.map(|mac| Unique::Mac(vnic.segment, mac))
}

/// Whether the descriptors of one serve the other. Owner, group and mode of a socket change in place.
fn same_attachment(a: &Attach, b: &Attach) -> bool {
    match (a, b) {
        (Attach::VhostUser { path: p, mode: m, .. }, Attach::VhostUser { path: q, mode: n, .. }) => {
            p == q && m == n
        }
        _ => a == b,
    }
}

fn is_tap(attach: &Attach) -> bool {
    matches!(attach, Attach::Tap { .. })
}

/// Whether it is on us to make the connection again.
fn we_connect(attach: &Attach) -> bool {
    match attach {
        Attach::VhostUser { mode, .. } => *mode == SocketMode::Client,
        _ => is_tap(attach),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::own_cpus::KeepOff;
    use proptest::prelude::*;
    use tidegate_contract::{Allowed, Bytes, Host, Nanos, Queueing, Rate, Rx, SocketOwner, Tx};
    use tidegate_evidence::WorkerStats;
    use tidegate_place::{Action, Adopt, ObservedVnic};

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
        }
    }

    /// The state of a place: what it observes, and what it found.
    #[derive(Clone, Debug)]
    struct State {
        observed: Observed,
        found: Found,
    }

    impl State {
        fn plan(&self, host: &Host, vnics: &[Vnic]) -> Result<Vec<SwitchAction>, Vec<Refusal>> {
            let wanted = Wanted { host, vnics, adopt: Adopt::No, claims: &[] };
            let facts = Facts { found: self.found.clone(), own_cpus: None };
            plan(&wanted, &self.observed, &facts).map(|plan| plan.actions)
        }

        /// The change was accepted.
        fn accept(&mut self, vnics: &[Vnic]) {
            self.found.retain(|name, _| !vnics.iter().any(|vnic| vnic.name == *name));
        }
    }

    /// The effect of an action, without any switch. Panics if two vNICs would have the same MAC or attachment at one time.
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
                found.insert(vnic.name.clone(), vnic.clone());
            }
            SwitchAction::Release(vnic) => {
                assert_eq!(found.remove(&vnic.name).as_ref(), Some(vnic));
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
            SwitchAction::OwnCpus(target) => {
                panic!("{target:?}: the agent leaves the settings of CPUs alone")
            }
            SwitchAction::Contract(ContractChange::Remove(vnic)) => {
                assert!(observed.vnics.remove(&vnic.name).is_some_and(|o| o.vnic == *vnic));
            }
        }
    }

    fn there(vnic: Vnic) -> ObservedVnic {
        ObservedVnic::of(&vnic, Connection::Up)
    }

    fn observed(host: Option<Host>, vnics: Vec<ObservedVnic>) -> State {
        let vnics = vnics.into_iter().map(|o| (o.vnic.name.clone(), o)).collect();
        State { observed: Observed { host, vnics, ..Observed::nothing("") }, found: Found::new() }
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

    fn state() -> impl Strategy<Value = State> {
        let flags = prop::collection::vec((any::<bool>(), any::<bool>(), 0u8..4, any::<bool>()), 6);
        (set(), flags, prop::option::of(0u64..2)).prop_map(|(set, flags, host)| {
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
            observed(host.map(host_with), vnics.collect())
        })
    }

    fn host_with(n: u64) -> Host {
        Host { host_latency: Nanos::new(100_000 + n), ..Host::default() }
    }

    proptest! {
        #[test]
        fn applying_the_plan_gives_what_is_wanted(set in set(), before in state(), host in 0u64..2) {
            let host = host_with(host);
            let Ok(actions) = before.plan(&host, &set) else { return Ok(()) };
            let mut after = before.clone();
            for action in &actions {
                apply(&mut after, action);
            }
            let is_found = |name: &String| set.iter().any(|v| v.name == *name);
            prop_assert!(after.found.keys().all(is_found), "adopted without a contract");
            after.accept(&set);
            prop_assert!(after.found.is_empty());
            prop_assert_eq!(after.plan(&host, &set), Ok(vec![]), "not idempotent");
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
        fn the_inverse_actions_lead_back(set in set(), old in set(), ours in prop::collection::vec(any::<bool>(), 6)) {
            let host = Host::default();
            let mut before = observed(Some(host_with(0)), old.into_iter().map(there).collect());
            for (there, ours) in before.observed.vnics.values_mut().zip(ours) {
                // Where it must be made anew there is no way back to what another program had made.
                let same = set.iter().any(|v| {
                    v.name == there.vnic.name && same_attachment(&v.attach, &there.vnic.attach) && v.queues == there.vnic.queues
                });
                there.ours = ours || !same;
            }
            let Ok(actions) = before.plan(&host, &set) else { return Ok(()) };
            let mut state = before.clone();
            actions.iter().for_each(|a| apply(&mut state, a));
            actions.iter().rev().filter_map(Action::inverse).for_each(|a| apply(&mut state, &a));
            prop_assert_eq!(state.observed.host, before.observed.host);
            prop_assert_eq!(state.observed.vnics, before.observed.vnics);
            prop_assert_eq!(state.found, before.found);
        }

        /// A change that adopted vNICs of another agent, and was never accepted.
        #[test]
        fn a_vnic_that_was_adopted_and_never_accepted_gets_its_values_back(set in set(), rate in 5u64..9) {
            let before = observed(Some(Host::default()), set.iter().cloned().map(there).collect());
            let mut died = before.clone();
            for entry in died.observed.vnics.values_mut() {
                died.found.insert(entry.vnic.name.clone(), entry.vnic.clone());
                entry.vnic.tx.max = Rate::from_bits(rate);
            }
            let actions = died.plan(&Host::default(), &[]).unwrap();
            actions.iter().for_each(|a| apply(&mut died, a));
            prop_assert!(died.found.is_empty());
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

    #[test]
    fn a_wanted_deadline_claims_the_workers_cpus_before_they_are_taken() {
        let host = Host::default();
        let plain = vnic(1, 1, 1, 1, 5, 1);
        let realtime = Vnic { deadline: Some(Nanos::new(1_000_000)), ..plain.clone() };
        let mut state = observed(Some(host.clone()), vec![there(plain.clone())]).observed;
        let worker = |cpu| WorkerStats { cpu: Some(cpu), ..WorkerStats::default() };
        state.evidence.workers = vec![worker(2), worker(3)];
        let off = KeepOff { softirqs: false, halts: true };
        let machine = own_cpus::Machine { online: (0..4).collect(), isolated: [].into() };
        let settled = own_cpus::Settled { is_clean: true, ..own_cpus::Settled::default() };
        let facts = own_cpus::Facts { off, machine, flows: true, settled };
        let facts = Facts { found: Found::new(), own_cpus: Some(facts) };
        let planned = |state: &Observed, vnics: &[Vnic]| {
            let wanted = Wanted { host: &host, vnics, adopt: Adopt::No, claims: &[] };
            let plan = plan(&wanted, state, &facts).unwrap();
            let cpus: Vec<Resource> = plan.claims.into_iter().map(|claim| claim.resource).collect();
            let last = plan.actions.last().cloned();
            (cpus, last.filter(|action| matches!(action, SwitchAction::OwnCpus(_))))
        };
        assert_eq!(planned(&state, std::slice::from_ref(&plain)), (vec![], None));
        let (cpus, action) = planned(&state, std::slice::from_ref(&realtime));
        assert_eq!(cpus, [Resource::Cpu(2), Resource::Cpu(3)]);
        let Some(SwitchAction::OwnCpus(target)) = action else { panic!("{action:?}") };
        assert_eq!(target.workers, [2, 3].into());
        // A vNIC that is still to come claims CPUs, and its settings follow.
        state.vnics.clear();
        assert_eq!(planned(&state, &[realtime]), (vec![Resource::Cpu(2), Resource::Cpu(3)], None));
        // CPUs that are still taken for a deadline that is not wanted any more.
        state.own_cpus.cpus = vec![2, 3];
        assert_eq!(planned(&state, &[plain]).0, []);
    }
}
