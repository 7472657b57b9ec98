//! From what is wanted and what is observed to actions. Pure; what an action takes of the NIC is planned when it is
//! done, from what the NIC has at that moment.

use super::function::{function, same};
use super::terms::{by_nic, refusals};
use crate::place::{Action, Observed, Refusal, Wanted};
use std::collections::BTreeSet;
use tidegate_contract::Host;

/// See [`crate::place::Place::plan`].
pub fn plan(wanted: &Wanted<'_>, observed: &Observed) -> Result<Vec<Action>, Vec<Refusal>> {
    refuse(wanted, observed)?;
    let names: BTreeSet<&str> = wanted.vnics.iter().map(|v| v.name.as_str()).collect();
    // A function may go from one contract to another, and what is lowered makes room for what is raised.
    let gone = observed.vnics.values().filter(|o| !names.contains(o.vnic.name.as_str()));
    let mut remove: Vec<Action> = gone.map(|o| Action::Remove(o.vnic.clone())).collect();
    let mut actions = Vec::new();
    let host = Host { nic: wanted.host.nic.clone(), ..Host::default() };
    if observed.host.as_ref() != Some(&host) {
        actions.push(Action::SetHost { from: observed.host.clone(), to: host });
    }
    for vnic in wanted.vnics {
        match observed.vnics.get(&vnic.name) {
            None => actions.push(Action::Create(vnic.clone())),
            Some(there) if !same(&there.vnic.attach, &vnic.attach) => {
                remove.push(Action::Remove(there.vnic.clone()));
                actions.push(Action::Create(vnic.clone()));
            }
            // What others changed: from and to may be the same.
            Some(there) if there.vnic != *vnic || there.broken.is_some() => {
                actions.push(Action::Change { from: there.vnic.clone(), to: vnic.clone() });
            }
            Some(_) => {}
        }
    }
    remove.extend(actions);
    Ok(remove)
}

fn refuse(wanted: &Wanted<'_>, observed: &Observed) -> Result<(), Vec<Refusal>> {
    let mut refused = Vec::new();
    for vnic in wanted.vnics {
        let refuse = |reason| Refusal { vnic: vnic.name.clone(), reason };
        refused.extend(observed.obstacles.get(&vnic.name).cloned().map(refuse));
        refused.extend(function(vnic).err().into_iter().flatten().map(refuse));
    }
    for (pf, vnics) in by_nic(wanted.vnics) {
        let nic = wanted.host.nic.get(pf).cloned().unwrap_or_default();
        if let Some(link) = observed.links.get(pf) {
            refused.extend(refusals(pf, &vnics, &nic, link));
        }
    }
    if refused.is_empty() { Ok(()) } else { Err(refused) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::types::Adopt;
    use crate::place::{ObservedVnic, SharedLink};
    use crate::testing::vf;
    use tidegate_contract::{Nic, Rate, Vnic};
    use tidegate_evidence::Connection;

    fn actions(wanted: &[Vnic], host: &Host, observed: &Observed) -> Vec<(&'static str, String)> {
        let planned = plan(&Wanted { host, vnics: wanted, adopt: Adopt::No }, observed).expect("a plan");
        planned.iter().map(|a| (a.label(), a.vnic().unwrap_or_default().to_owned())).collect()
    }

    #[test]
    fn each_difference_has_its_action() {
        let (a, b, c, d) =
            (vf("a", 1, "eth1", 0), vf("b", 2, "eth1", 1), vf("c", 3, "eth1", 2), vf("d", 4, "eth1", 3));
        let mut observed = Observed::nothing("");
        observed.host = Some(Host::default());
        for vnic in [&a, &b, &c, &d] {
            observed.vnics.insert(vnic.name.clone(), ObservedVnic::of(vnic, Connection::Up));
        }
        let all = [a, b.clone(), c.clone(), d];
        assert_eq!(actions(&all, &Host::default(), &observed), []);
        observed.vnics.get_mut("b").expect("there").broken = Some("somebody cleared its limit".into());
        let trusted = Vnic {
            attach: tidegate_contract::Attach::Vf {
                pf: "eth1".into(),
                index: 2,
                options: tidegate_contract::VfOptions { trust: true, ..Default::default() },
            },
            ..c
        };
        // `a` goes, and `e` gets its function; `d` moves to another.
        let wanted = [b, trusted, vf("d", 4, "eth1", 5), vf("e", 5, "eth1", 0)];
        let host = Host { nic: [("eth1".into(), Nic::default())].into(), ..Host::default() };
        let expected = [
            ("remove", "a"),
            ("remove", "d"),
            ("set host", ""),
            ("change", "b"),
            ("change", "c"),
            ("create", "d"),
            ("create", "e"),
        ];
        assert_eq!(actions(&wanted, &host, &observed), expected.map(|(l, n)| (l, n.to_owned())));
    }

    #[test]
    fn what_cannot_be_had_is_a_refusal_each() {
        let mut observed = Observed::nothing("");
        observed.obstacles.insert("a".into(), "eth1 has 2 VFs".into());
        let rate = |mbit: u64| Rate::from_bits(mbit * 1_000_000);
        observed.links.insert(
            "eth1".into(),
            SharedLink { speed: rate(100), lacks_min: Some("no".into()), groups: false },
        );
        let (mut a, mut b) = (vf("a", 1, "eth1", 0), vf("b", 2, "eth1", 1));
        (a.queues, b.tx.min) = (2, rate(200));
        let refused = plan(&Wanted { host: &Host::default(), vnics: &[a, b], adopt: Adopt::No }, &observed)
            .expect_err("refused");
        let whose: Vec<&str> = refused.iter().map(|r| r.vnic.as_str()).collect();
        assert_eq!(whose, ["a", "a", "b"], "{refused:?}");
    }
}
