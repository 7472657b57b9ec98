//! From the wanted and the observed state to actions. Pure. The requests of an action are planned when the action is applied, from the
//! state of the kernel at that moment.

use super::action::KernelAction;
use super::in_the_way::{InTheWay, InTheWayOf};
use super::shape::{Senders, shaping_among};
use crate::tc::Ways;
use std::collections::BTreeSet;
use tidegate_contract::Vnic;
use tidegate_evidence::Connection;
use tidegate_place::difference::{Difference, differences};
use tidegate_place::{Adopt, ContractChange, Observed, ObservedVnic, Refusal, Wanted};

/// What a look found, besides the state in force.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Foreign objects in the way of contracts.
    pub in_the_way: InTheWayOf,
    /// An object of ours that belongs to no contract is there since before this agent.
    pub of_earlier_agent: bool,
}

/// See [`tidegate_place::Place::plan`].
pub fn plan(
    wanted: &Wanted<'_>,
    observed: &Observed,
    facts: &Facts,
) -> Result<Vec<KernelAction>, Vec<Refusal>> {
    let Facts { in_the_way, of_earlier_agent } = facts;
    refuse(wanted, observed, in_the_way)?;
    let anyway = wanted.adopt == Adopt::Anyway;
    let create = |vnic: &Vnic| {
        if in_the_way.contains_key(&vnic.name) {
            KernelAction::TakeOver { from: None, to: vnic.clone(), anyway }
        } else {
            KernelAction::Contract(ContractChange::Create(vnic.clone()))
        }
    };
    let change = |from: &Vnic, to: &Vnic| {
        KernelAction::Contract(ContractChange::Change { from: from.clone(), to: to.clone() })
    };
    // A netdev may move between contracts: removals come first.
    let (mut remove, mut rest) = (Vec::new(), Vec::new());
    let in_place = |from: &Vnic, to: &Vnic| from.attach == to.attach;
    for difference in differences(wanted.vnics, &observed.vnics, in_place) {
        match difference {
            Difference::Unwanted(there) => remove.push(ContractChange::Remove(there.vnic.clone())),
            Difference::Missing(vnic) => rest.push(create(vnic)),
            Difference::Moved { from, to } => {
                remove.push(ContractChange::Remove(from.vnic.clone()));
                rest.push(create(to));
            }
            Difference::Changed { from, to } if in_the_way.contains_key(&to.name) => {
                let from = Some(from.vnic.clone());
                rest.push(KernelAction::TakeOver { from, to: to.clone(), anyway });
            }
            Difference::Changed { from, to } => rest.push(change(&from.vnic, to)),
            Difference::Same(there) if in_the_way.contains_key(&there.vnic.name) => {
                let from = Some(there.vnic.clone());
                rest.push(KernelAction::TakeOver { from, to: there.vnic.clone(), anyway });
            }
            Difference::Same(there) if is_drift(there) && !of_earlier_agent => {
                rest.push(change(&there.vnic, &there.vnic))
            }
            Difference::Same(there) if there.broken.is_some() => {
                rest.push(KernelAction::Enforce(there.vnic.clone()));
            }
            Difference::Same(_) => {}
        }
    }
    Ok(remove.into_iter().map(KernelAction::Contract).chain(rest).collect())
}

fn refuse(wanted: &Wanted<'_>, observed: &Observed, in_the_way: &InTheWayOf) -> Result<(), Vec<Refusal>> {
    let mut refusals = Vec::new();
    let senders = Senders::of(wanted.vnics);
    let names: BTreeSet<&str> = wanted.vnics.iter().map(|v| v.name.as_str()).collect();
    for vnic in wanted.vnics {
        let refuse = |reason: String| Refusal::new(&vnic.name, reason);
        refusals.extend(observed.obstacles.get(&vnic.name).cloned().map(refuse));
        let foreign = in_the_way.get(&vnic.name);
        refusals.extend(foreign.and_then(|foreign| not_taken_over(foreign, wanted.adopt)).map(refuse));
        let elsewhere = vnic.to.iter().filter(|to| vnic.weight != 1 && !names.contains(to.as_str()));
        refusals.extend(elsewhere.map(|to| {
            refuse(format!(
                "place kernel shares out by weight towards its own vNICs only, and {to} is none of them"
            ))
        }));
        refusals.extend(shaping_among(vnic, Ways::BOTH, &senders).err().into_iter().flatten().map(refuse));
    }
    if refusals.is_empty() { Ok(()) } else { Err(refusals) }
}

/// Returns why a foreign object is not taken over; `None` if it is.
fn not_taken_over(foreign: &InTheWay, adopt: Adopt) -> Option<String> {
    let InTheWay { reason, lost, .. } = foreign;
    match (adopt, lost) {
        (Adopt::Anyway, _) | (Adopt::Exactly, None) => None,
        (Adopt::No, None) => Some(format!(
            "{reason}, or apply with --adopt: then Tidegate takes it over, and restores it when the contract ends"
        )),
        (Adopt::No | Adopt::Exactly, Some(why)) => {
            Some(format!("{reason}; --adopt cannot take it over: {why}"))
        }
    }
}

/// Whether other software changed right settings, and no VM came or went.
fn is_drift(there: &ObservedVnic) -> bool {
    there.broken.is_some() && there.connection == Connection::Up
}

#[cfg(test)]
mod tests {
    use super::super::observe::nothing;
    use super::*;
    use tidegate_contract::{Host, Rate};
    use tidegate_place::{Action, HostWork, Network};
    use tidegate_testkit::contract::netdev;

    fn actions(wanted: &[Vnic], observed: &Observed) -> Vec<(&'static str, String)> {
        actions_with(wanted, observed, &Facts::default())
    }

    fn actions_with(wanted: &[Vnic], observed: &Observed, facts: &Facts) -> Vec<(&'static str, String)> {
        let wanted = Wanted {
            host: &Host::default(),
            network: Network::NONE,
            vnics: wanted,
            adopt: Adopt::No,
            claims: &[],
            work: HostWork::NONE,
        };
        let planned = plan(&wanted, observed, facts).expect("a plan");
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
            ("enforce", "f"),
        ];
        assert_eq!(actions(&wanted, &observed), expected.map(|(l, n)| (l, n.to_owned())));
    }

    #[test]
    fn an_object_of_an_earlier_agent_is_no_drift() {
        let a = netdev("a", 1, "vnet1");
        let mut observed = nothing();
        let broken = Some("an object of an ended contract remains".to_owned());
        observed.vnics.insert("a".into(), ObservedVnic { broken, ..ObservedVnic::of(&a, Connection::Up) });
        for (of_earlier_agent, action) in [(true, "enforce"), (false, "change")] {
            let facts = Facts { of_earlier_agent, ..Facts::default() };
            assert_eq!(actions_with(std::slice::from_ref(&a), &observed, &facts), [(action, "a".to_owned())]);
        }
    }

    #[test]
    fn foreign_objects_are_taken_over_only_on_request() {
        let (a, b) = (netdev("a", 1, "vnet1"), netdev("b", 2, "vnet2"));
        let mut observed = nothing();
        observed.vnics.insert("b".into(), ObservedVnic::of(&b, Connection::Up));
        let mut in_the_way = InTheWayOf::new();
        for name in ["a", "b"] {
            let (what, reason) = ("qdisc tbf 1: at its root".into(), "interface x has qdisc tbf 1:".into());
            in_the_way.insert(name.to_owned(), InTheWay { what, reason, lost: None });
        }
        let faster =
            Vnic { rx: tidegate_contract::Rx { max: Rate::from_bits(9_000), ..b.rx.clone() }, ..b.clone() };
        let vnics = [a.clone(), faster.clone()];
        let host = Host::default();
        let plan_for = |adopt, way: &InTheWayOf| {
            plan(
                &Wanted {
                    host: &host,
                    network: Network::NONE,
                    vnics: &vnics,
                    adopt,
                    claims: &[],
                    work: HostWork::NONE,
                },
                &observed,
                &Facts { in_the_way: way.clone(), ..Facts::default() },
            )
        };
        let refused = plan_for(Adopt::No, &in_the_way).expect_err("refused");
        assert_eq!(refused.len(), 2);
        assert!(
            refused[0].reason.starts_with("interface x has qdisc tbf 1:, or apply with --adopt"),
            "{refused:?}"
        );
        let expected = |anyway| {
            let take = |from, to: &Vnic| KernelAction::TakeOver { from, to: to.clone(), anyway };
            vec![take(None, &a), take(Some(b.clone()), &faster)]
        };
        assert_eq!(plan_for(Adopt::Exactly, &in_the_way), Ok(expected(false)));

        // One that could not be restored.
        in_the_way.get_mut("b").expect("there").lost = Some("it has a size table".into());
        for (adopt, refusals) in [(Adopt::No, 2), (Adopt::Exactly, 1)] {
            let refused = plan_for(adopt, &in_the_way).expect_err("refused");
            assert_eq!(refused.len(), refusals);
            assert_eq!(
                refused[refusals - 1].reason,
                "interface x has qdisc tbf 1:; --adopt cannot take it over: it has a size table"
            );
        }
        assert_eq!(plan_for(Adopt::Anyway, &in_the_way), Ok(expected(true)));
    }

    #[test]
    fn an_obstacle_is_a_refusal() {
        let mut observed = nothing();
        observed.obstacles.insert("a".into(), "interface vnet1 does not exist".into());
        let wanted = [Vnic { queues: 2, weight: 2, to: vec!["uplink".into()], ..netdev("a", 1, "vnet1") }];
        let wanted = Wanted {
            host: &Host::default(),
            network: Network::NONE,
            vnics: &wanted,
            adopt: Adopt::No,
            claims: &[],
            work: HostWork::NONE,
        };
        let refused = plan(&wanted, &observed, &Facts::default()).expect_err("refused");
        assert_eq!(refused.len(), 3, "{refused:?}");
        assert!(refused[1].reason.ends_with("and uplink is none of them"), "{refused:?}");
    }
}
