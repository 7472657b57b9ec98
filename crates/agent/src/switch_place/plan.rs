//! From what is wanted and what is observed to actions. Pure.
//!
//! ```text
//!  removals that make room ─▶ host ─▶ changes, reconnects ─▶ creations ─▶ other removals
//! ```
//!
//! A removal is hard to take back (a guest loses its connection), so it comes last unless what it holds
//! is needed by another vNIC.

use crate::place::{Action, Observed, Refusal, Wanted};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use tidegate_contract::{Attach, Host, Mac, Segment, SocketMode, Vnic};
use tidegate_evidence::Connection;

/// Most vNICs of one switch.
pub(super) const MOST: usize = tidegate_switch::stats::layout::VNICS;

/// See [`crate::place::Place::plan`].
pub fn plan(wanted: &Wanted<'_>, observed: &Observed) -> Result<Vec<Action>, Vec<Refusal>> {
    refuse(wanted, observed)?;
    let names: BTreeMap<&str, &Vnic> = wanted.vnics.iter().map(|v| (v.name.as_str(), v)).collect();
    let mut remove = Vec::new();
    let mut change = Vec::new();
    let mut create = Vec::new();

    for vnic in wanted.vnics {
        let Some(there) = observed.vnics.get(&vnic.name) else {
            create.push(vnic.clone());
            continue;
        };
        if !same_link(&there.vnic.attach, &vnic.attach) || there.vnic.queues != vnic.queues {
            remove.push(there.vnic.clone());
            create.push(vnic.clone());
            continue;
        }
        if !there.present {
            create.push(vnic.clone());
            continue;
        }
        if !there.ours {
            change.push(Action::Adopt(there.vnic.clone()));
        } else if there.found.is_some() {
            change.push(Action::Own(vnic.clone()));
        }
        if there.vnic != *vnic {
            change.push(Action::Change { from: there.vnic.clone(), to: vnic.clone() });
        }
        if there.broken.is_some()
            || (there.connection == Connection::Disconnected && we_connect(&vnic.attach))
        {
            change.push(Action::Reconnect(vnic.clone()));
        }
    }
    for gone in observed.vnics.values().filter(|o| o.ours && !names.contains_key(o.vnic.name.as_str())) {
        match &gone.found {
            None => remove.push(gone.vnic.clone()),
            Some(found) => {
                if gone.present && gone.vnic != *found {
                    change.push(Action::Change { from: gone.vnic.clone(), to: found.clone() });
                }
                change.push(Action::Release(found.clone()));
            }
        }
    }

    let coming = || {
        let changed =
            change.iter().filter_map(|a| if let Action::Change { to, .. } = a { Some(to) } else { None });
        create.iter().chain(changed)
    };
    let needed: HashSet<Claim<'_>> = coming().flat_map(claims).collect();
    // What vNICs share is no vNIC's own; they have it beside each other.
    let shared_now: HashSet<Claim<'_>> = coming().flat_map(shared).collect();
    let in_the_way = |old: &Vnic| {
        claims(old).any(|c| needed.contains(&c) || shared_now.contains(&c))
            || shared(old).any(|c| needed.contains(&c))
    };
    let (first, last): (Vec<_>, Vec<_>) =
        remove.into_iter().partition(|old| names.contains_key(old.name.as_str()) || in_the_way(old));

    let mut actions: Vec<Action> = first.into_iter().map(Action::Remove).collect();
    // NICs are no concern of it.
    let host = Host { nic: BTreeMap::new(), ..wanted.host.clone() };
    if observed.host.as_ref() != Some(&host) {
        actions.push(Action::SetHost { from: observed.host.clone(), to: host });
    }
    actions.extend(change);
    actions.extend(create.into_iter().map(Action::Create));
    actions.extend(last.into_iter().map(Action::Remove));
    Ok(actions)
}

fn refuse(wanted: &Wanted<'_>, observed: &Observed) -> Result<(), Vec<Refusal>> {
    let names: HashSet<&str> = wanted.vnics.iter().map(|v| v.name.as_str()).collect();
    let foreign: Vec<&Vnic> = observed
        .vnics
        .values()
        .filter(|o| o.present && !o.ours && !names.contains(o.vnic.name.as_str()))
        .map(|o| &o.vnic)
        .collect();
    let claimed: HashMap<Claim<'_>, &Vnic> =
        foreign.iter().rev().flat_map(|f| claims(f).map(|claim| (claim, *f))).collect();
    let mut refusals = Vec::new();
    for vnic in wanted.vnics {
        if let Some(obstacle) = observed.obstacles.get(&vnic.name) {
            refusals.push(Refusal { vnic: vnic.name.clone(), reason: obstacle.clone() });
        }
        if let Some(other) = claims(vnic).find_map(|claim| claimed.get(&claim)) {
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

/// What only one vNIC may have.
#[derive(PartialEq, Eq, Hash)]
enum Claim<'a> {
    Mac(Segment, Mac),
    Link(Link<'a>),
}

/// A socket; or an interface, and the namespace where it is.
pub(super) type Link<'a> = (&'a Path, Option<&'a Path>);

/// The link of a port of the switch.
pub(super) fn link(vnic: &Vnic) -> Option<Link<'_>> {
    match &vnic.attach {
        Attach::VhostUser { path, .. } => Some((path, None)),
        Attach::Tap { name, netns } => Some((name.as_ref(), netns.as_deref())),
        Attach::Netdev { .. } | Attach::Vf { .. } => None,
    }
}

fn claims(vnic: &Vnic) -> impl Iterator<Item = Claim<'_>> {
    let macs = std::iter::once(&vnic.mac).chain(&vnic.allowed.macs);
    macs.map(|mac| Claim::Mac(vnic.segment, *mac)).chain(link(vnic).map(Claim::Link))
}

fn shared(vnic: &Vnic) -> impl Iterator<Item = Claim<'_>> {
    let macs = vnic.allowed.shared.iter().filter_map(|address| address.mac());
    macs.map(|mac| Claim::Mac(vnic.segment, mac))
}

/// Whether the descriptors of one serve the other. Owner, group and mode of a socket change in place.
fn same_link(a: &Attach, b: &Attach) -> bool {
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
    use crate::api::types::Adopt;
    use crate::place::ObservedVnic;
    use proptest::prelude::*;
    use tidegate_contract::{Allowed, Bytes, Host, Nanos, Queueing, Rate, Rx, SocketOwner, Tx};

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

    /// What the actions do, without any switch. Panics where two vNICs would hold the same at one time.
    fn apply(observed: &mut Observed, action: &Action) {
        match action {
            Action::TakeOver { .. } => panic!("nothing is in the way of a port"),
            Action::SetHost { from, to } => {
                assert_eq!(*from, observed.host);
                observed.host = Some(to.clone());
            }
            Action::Create(vnic) => {
                let before = observed.vnics.insert(vnic.name.clone(), there(vnic.clone()));
                assert!(before.is_none_or(|b| !b.present), "created twice");
            }
            Action::Change { from, to } => {
                let entry = observed.vnics.get_mut(&to.name).unwrap();
                assert!(entry.present && entry.vnic == *from && same_link(&from.attach, &to.attach));
                assert!(entry.ours, "changed before it was ours");
                entry.vnic = to.clone();
            }
            Action::Adopt(vnic) => {
                let entry = observed.vnics.get_mut(&vnic.name).unwrap();
                assert!(entry.present && entry.vnic == *vnic && !entry.ours);
                (entry.ours, entry.found) = (true, Some(vnic.clone()));
            }
            Action::Own(vnic) => observed.vnics.get_mut(&vnic.name).unwrap().found = None,
            Action::Release(vnic) => {
                let entry = observed.vnics.get_mut(&vnic.name).unwrap();
                assert_eq!(entry.found.as_ref(), Some(vnic));
                if entry.present {
                    (entry.ours, entry.found) = (false, None);
                } else {
                    observed.vnics.remove(&vnic.name);
                }
            }
            Action::Reconnect(vnic) => {
                let entry = observed.vnics.get_mut(&vnic.name).unwrap();
                assert!(entry.present);
                entry.connection = Connection::Up;
                entry.broken = None;
            }
            Action::Remove(vnic) => {
                assert!(observed.vnics.remove(&vnic.name).is_some_and(|o| o.vnic == *vnic));
            }
        }
    }

    fn there(vnic: Vnic) -> ObservedVnic {
        ObservedVnic::of(&vnic, Connection::Up)
    }

    fn observed(host: Option<Host>, vnics: Vec<ObservedVnic>) -> Observed {
        let vnics = vnics.into_iter().map(|o| (o.vnic.name.clone(), o)).collect();
        Observed { host, vnics, ..Observed::nothing("") }
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

    fn state() -> impl Strategy<Value = Observed> {
        let flags = prop::collection::vec((any::<bool>(), any::<bool>(), 0u8..4, any::<bool>()), 6);
        (set(), flags, prop::option::of(0u64..2)).prop_map(|(set, flags, host)| {
            let vnics =
                set.into_iter().zip(flags).map(|(vnic, (present, ours, connection, broken))| ObservedVnic {
                    vnic,
                    present,
                    ours: ours || !present,
                    found: None,
                    connection: [
                        Connection::Waiting,
                        Connection::Disconnected,
                        Connection::Connected,
                        Connection::Up,
                    ][connection as usize],
                    pending: None,
                    suspended: None,
                    broken: (broken && present).then(|| "its socket is gone".into()),
                    last_error: None,
                    worker: None,
                    shared: vec![],
                    refused_connections: 0,
                    heir: false,
                    thrown_out: BTreeMap::new(),
                    held: Default::default(),
                    notes: vec![],
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
            let wanted = Wanted { host: &host, vnics: &set, adopt: Adopt::No };
            let Ok(actions) = plan(&wanted, &before) else { return Ok(()) };
            let mut after = before.clone();
            for action in &actions {
                apply(&mut after, action);
            }
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
            let settle = plan(&wanted, &after).unwrap();
            prop_assert!(settle.iter().all(|a| matches!(a, Action::Own(_))), "not idempotent: {:?}", settle);
            settle.iter().for_each(|a| apply(&mut after, a));
            prop_assert_eq!(plan(&wanted, &after), Ok(vec![]), "not idempotent");
        }

        #[test]
        fn the_inverse_actions_lead_back(set in set(), old in set(), ours in prop::collection::vec(any::<bool>(), 6)) {
            let host = Host::default();
            let mut before = observed(Some(host_with(0)), old.into_iter().map(there).collect());
            for (there, ours) in before.vnics.values_mut().zip(ours) {
                // Where it must be made anew there is no way back to what was somebody else's.
                let same = set.iter().any(|v| {
                    v.name == there.vnic.name && same_link(&v.attach, &there.vnic.attach) && v.queues == there.vnic.queues
                });
                there.ours = ours || !same;
            }
            let Ok(actions) = plan(&Wanted { host: &host, vnics: &set, adopt: Adopt::No }, &before) else { return Ok(()) };
            let mut state = before.clone();
            actions.iter().for_each(|a| apply(&mut state, a));
            actions.iter().rev().filter_map(Action::inverse).for_each(|a| apply(&mut state, &a));
            prop_assert_eq!(state.host, before.host);
            prop_assert_eq!(state.vnics, before.vnics);
        }

        /// A change that took a vNIC of somebody else over and was never accepted.
        #[test]
        fn what_was_only_found_is_given_back(set in set(), rate in 5u64..9) {
            let before = observed(Some(Host::default()), set.iter().cloned().map(there).collect());
            let mut died = before.clone();
            for entry in died.vnics.values_mut() {
                (entry.found, entry.vnic.tx.max) = (Some(entry.vnic.clone()), Rate::from_bits(rate));
            }
            let actions = plan(&Wanted { host: &Host::default(), vnics: &[], adopt: Adopt::No }, &died).unwrap();
            actions.iter().for_each(|a| apply(&mut died, a));
            for (name, entry) in &died.vnics {
                prop_assert!(!entry.ours && entry.found.is_none());
                prop_assert_eq!(&entry.vnic, &before.vnics[name].vnic);
            }
        }

        #[test]
        fn only_foreign_vnics_are_a_reason_to_refuse(set in set(), mut before in state()) {
            before.vnics.values_mut().for_each(|o| o.ours = true);
            let host = Host::default();
            let planned = plan(&Wanted { host: &host, vnics: &set, adopt: Adopt::No }, &before);
            prop_assert!(planned.is_ok());
        }
    }

    #[test]
    fn a_foreign_vnic_that_is_as_wanted_is_only_adopted() {
        let set = [vnic(1, 1, 1, 1, 5, 1)];
        let mut before = observed(Some(Host::default()), vec![there(set[0].clone())]);
        before.vnics.get_mut("v1").unwrap().ours = false;
        let actions = plan(&Wanted { host: &Host::default(), vnics: &set, adopt: Adopt::No }, &before);
        assert_eq!(actions, Ok(vec![Action::Adopt(set[0].clone())]));
    }

    #[test]
    fn a_removal_that_makes_room_comes_first_and_others_last() {
        let old = [vnic(1, 1, 1, 1, 5, 1), vnic(2, 2, 2, 1, 5, 1)];
        let before = observed(Some(Host::default()), old.iter().cloned().map(there).collect());
        let new = [vnic(3, 1, 3, 1, 5, 1)];
        let actions =
            plan(&Wanted { host: &Host::default(), vnics: &new, adopt: Adopt::No }, &before).unwrap();
        let names: Vec<_> = actions.iter().map(|a| (a.label(), a.vnic().unwrap())).collect();
        assert_eq!(names, [("remove", "v1"), ("create", "v3"), ("remove", "v2")]);
    }

    #[test]
    fn a_foreign_vnic_with_our_mac_is_refused_by_name() {
        let mut foreign = there(vnic(9, 1, 9, 1, 5, 1));
        foreign.ours = false;
        let before = observed(None, vec![foreign]);
        let refusals = plan(
            &Wanted { host: &Host::default(), vnics: &[vnic(1, 1, 1, 1, 5, 1)], adopt: Adopt::No },
            &before,
        )
        .unwrap_err();
        assert_eq!(refusals.len(), 1);
        assert!(refusals[0].vnic == "v1" && refusals[0].reason.contains("v9"), "{refusals:?}");
    }

    #[test]
    fn an_obstacle_is_a_reason_to_refuse() {
        let mut before = observed(None, vec![]);
        before.obstacles.insert("v1".into(), "a file is there".into());
        let set = [vnic(1, 1, 1, 1, 5, 1), vnic(2, 2, 2, 1, 5, 1)];
        let refusals =
            plan(&Wanted { host: &Host::default(), vnics: &set, adopt: Adopt::No }, &before).unwrap_err();
        assert_eq!(refusals, [Refusal { vnic: "v1".into(), reason: "a file is there".into() }]);
    }

    #[test]
    fn the_1025th_vnic_is_refused() {
        let mut set: Vec<Vnic> = (0..=MOST).map(|_| vnic(0, 0, 0, 1, 5, 1)).collect();
        for (i, v) in set.iter_mut().enumerate() {
            v.name = format!("v{i:04}");
        }
        let refusals =
            plan(&Wanted { host: &Host::default(), vnics: &set, adopt: Adopt::No }, &observed(None, vec![]))
                .unwrap_err();
        assert_eq!(refusals.iter().map(|r| r.vnic.as_str()).collect::<Vec<_>>(), ["v1024"]);
    }
}
