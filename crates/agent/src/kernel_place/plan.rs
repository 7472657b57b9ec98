//! From what is wanted and what is observed to actions. Pure; what an action takes of the kernel is planned when it
//! is done, from what the kernel has at that moment.

use super::shape::{Senders, shaping_among};
use crate::api::types::Adopt;
use crate::place::{Action, InTheWay, Observed, ObservedVnic, Refusal, Wanted};
use std::collections::BTreeSet;
use tidegate_contract::Vnic;
use tidegate_evidence::Connection;
use tidegate_kernel::Ways;

/// See [`crate::place::Place::plan`].
pub fn plan(wanted: &Wanted<'_>, observed: &Observed) -> Result<Vec<Action>, Vec<Refusal>> {
    let mut refusals = Vec::new();
    let senders = Senders::of(wanted.vnics);
    let names: BTreeSet<&str> = wanted.vnics.iter().map(|v| v.name.as_str()).collect();
    for vnic in wanted.vnics {
        let refuse = |reason| Refusal { vnic: vnic.name.clone(), reason };
        refusals.extend(observed.obstacles.get(&vnic.name).cloned().map(refuse));
        refusals.extend(in_the_way(vnic, wanted.adopt, observed).map(refuse));
        let elsewhere = vnic.to.iter().filter(|to| vnic.weight != 1 && !names.contains(to.as_str()));
        refusals.extend(elsewhere.map(|to| {
            refuse(format!("place kernel shares out by weight towards its own vNICs only, and {to} is none"))
        }));
        refusals.extend(shaping_among(vnic, Ways::BOTH, &senders).err().into_iter().flatten().map(refuse));
    }
    if !refusals.is_empty() {
        return Err(refusals);
    }
    let anyway = wanted.adopt == Adopt::Anyway;
    let create = |vnic: &Vnic| match observed.in_the_way.get(&vnic.name) {
        Some(_) => Action::TakeOver { from: None, to: vnic.clone(), anyway },
        None => Action::Create(vnic.clone()),
    };
    let mut actions = Vec::new();
    // A netdev may go from one contract to another.
    let gone = observed.vnics.values().filter(|o| o.ours && !names.contains(o.vnic.name.as_str()));
    actions.extend(gone.map(|o| Action::Remove(o.vnic.clone())));
    for vnic in wanted.vnics {
        match observed.vnics.get(&vnic.name) {
            None => actions.push(create(vnic)),
            Some(there) if there.vnic.attach != vnic.attach => {
                actions.push(Action::Remove(there.vnic.clone()));
                actions.push(create(vnic));
            }
            Some(there) if observed.in_the_way.contains_key(&vnic.name) => {
                actions.push(Action::TakeOver { from: Some(there.vnic.clone()), to: vnic.clone(), anyway });
            }
            // What others changed: from and to may be the same.
            Some(there) if there.vnic != *vnic || is_drift(there) => {
                actions.push(Action::Change { from: there.vnic.clone(), to: vnic.clone() });
            }
            Some(there) if there.broken.is_some() => actions.push(Action::Reconnect(vnic.clone())),
            Some(_) => {}
        }
    }
    // What makes room comes first.
    actions.sort_by_key(|a| !matches!(a, Action::Remove(_)));
    Ok(actions)
}

/// Why what others made in the way of a vNIC refuses it.
fn in_the_way(vnic: &Vnic, adopt: Adopt, observed: &Observed) -> Option<String> {
    let InTheWay { reason, lost, .. } = observed.in_the_way.get(&vnic.name)?;
    match (adopt, lost) {
        (Adopt::Anyway, _) | (Adopt::Exactly, None) => None,
        (Adopt::No, None) => Some(format!(
            "{reason}, or apply with --adopt: then it is taken over, and put back when the contract goes"
        )),
        (Adopt::No | Adopt::Exactly, Some(why)) => {
            Some(format!("{reason}; --adopt cannot take it over: {why}"))
        }
    }
}

/// Whether somebody changed what was as it should be, and no VM came or went.
fn is_drift(there: &ObservedVnic) -> bool {
    there.broken.is_some() && there.connection == Connection::Up
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel_place::observe::nothing;
    use crate::testing::netdev;
    use tidegate_contract::{Host, Rate};

    fn actions(wanted: &[Vnic], observed: &Observed) -> Vec<(&'static str, String)> {
        let planned = plan(&Wanted { host: &Host::default(), vnics: wanted, adopt: Adopt::No }, observed)
            .expect("a plan");
        planned.iter().map(|a| (a.label(), a.vnic().unwrap_or_default().to_owned())).collect()
    }

    #[test]
    fn each_difference_has_its_action() {
        let (a, b, c, d) = (
            netdev("a", 1, "vnet1"),
            netdev("b", 2, "vnet2"),
            netdev("c", 3, "vnet3"),
            netdev("d", 4, "vnet4"),
        );
        let mut observed = nothing();
        for vnic in [&a, &b, &c, &d] {
            observed.vnics.insert(vnic.name.clone(), ObservedVnic::of(vnic, Connection::Up));
        }
        assert_eq!(actions(&[a.clone(), b.clone(), c.clone(), d.clone()], &observed), []);
        observed.vnics.get_mut("b").expect("there").broken = Some("somebody deleted it".into());
        let faster =
            Vnic { tx: tidegate_contract::Tx { max: Rate::from_bits(9_000), ..c.tx.clone() }, ..c.clone() };
        let f = netdev("f", 6, "vnet6");
        observed.vnics.insert("f".into(), ObservedVnic::of(&f, Connection::Connected));
        observed.vnics.get_mut("f").expect("there").broken = Some("its VM has just started".into());
        // `a` goes, and `e` gets its netdev; `d` moves to another.
        let wanted = [b, faster, netdev("d", 4, "vnet5"), netdev("e", 5, "vnet1"), f];
        let expected = [
            ("remove", "a"),
            ("remove", "d"),
            ("change", "b"),
            ("change", "c"),
            ("create", "d"),
            ("create", "e"),
            ("reconnect", "f"),
        ];
        assert_eq!(actions(&wanted, &observed), expected.map(|(l, n)| (l, n.to_owned())));
    }

    #[test]
    fn what_others_made_is_taken_over_where_that_is_said() {
        let (a, b) = (netdev("a", 1, "vnet1"), netdev("b", 2, "vnet2"));
        let mut observed = nothing();
        observed.vnics.insert("b".into(), ObservedVnic::of(&b, Connection::Up));
        for name in ["a", "b"] {
            let (what, reason) = ("qdisc tbf 1: at its root".into(), "interface x has qdisc tbf 1:".into());
            observed.in_the_way.insert(name.into(), InTheWay { what, reason, lost: None });
        }
        let faster =
            Vnic { rx: tidegate_contract::Rx { max: Rate::from_bits(9_000), ..b.rx.clone() }, ..b.clone() };
        let vnics = [a.clone(), faster.clone()];
        let host = Host::default();
        let wanted = |adopt| Wanted { host: &host, vnics: &vnics, adopt };
        let refused = plan(&wanted(Adopt::No), &observed).expect_err("refused");
        assert_eq!(refused.len(), 2);
        assert!(
            refused[0].reason.starts_with("interface x has qdisc tbf 1:, or apply with --adopt"),
            "{refused:?}"
        );
        let expected = |anyway| {
            let take = |from, to: &Vnic| Action::TakeOver { from, to: to.clone(), anyway };
            vec![take(None, &a), take(Some(b.clone()), &faster)]
        };
        assert_eq!(plan(&wanted(Adopt::Exactly), &observed), Ok(expected(false)));

        // One that could not be put back.
        observed.in_the_way.get_mut("b").expect("there").lost = Some("it has a size table".into());
        for (adopt, refusals) in [(Adopt::No, 2), (Adopt::Exactly, 1)] {
            let refused = plan(&wanted(adopt), &observed).expect_err("refused");
            assert_eq!(refused.len(), refusals);
            assert_eq!(
                refused[refusals - 1].reason,
                "interface x has qdisc tbf 1:; --adopt cannot take it over: it has a size table"
            );
        }
        assert_eq!(plan(&wanted(Adopt::Anyway), &observed), Ok(expected(true)));
    }

    #[test]
    fn what_stands_in_the_way_is_a_refusal() {
        let mut observed = nothing();
        observed.obstacles.insert("a".into(), "interface vnet1 does not exist".into());
        let wanted = [Vnic { queues: 2, weight: 2, to: vec!["uplink".into()], ..netdev("a", 1, "vnet1") }];
        let refused = plan(&Wanted { host: &Host::default(), vnics: &wanted, adopt: Adopt::No }, &observed)
            .expect_err("refused");
        assert_eq!(refused.len(), 3, "{refused:?}");
        assert!(refused[1].reason.ends_with("and uplink is none"), "{refused:?}");
    }
}
