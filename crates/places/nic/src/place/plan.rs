//! From the wanted and the observed state to actions. Pure. The steps of an action are planned when the action is applied, from the
//! state of the NIC at that moment.

use super::action::NicAction;
use super::function::{function, same};
use super::shared_link::SharedLinks;
use super::terms::{by_nic, refusals};
use tidegate_contract::Host;
use tidegate_place::difference::{changes, differences};
use tidegate_place::{ContractChange, Observed, Refusal, Wanted};

/// See [`tidegate_place::Place::plan`].
pub fn plan(
    wanted: &Wanted<'_>,
    observed: &Observed,
    links: &SharedLinks,
) -> Result<Vec<NicAction>, Vec<Refusal>> {
    refuse(wanted, observed, links)?;
    let host = Host { nic: wanted.host.nic.clone(), ..Host::default() };
    let set_host = (observed.host.as_ref() != Some(&host))
        .then(|| NicAction::SetHost { from: observed.host.clone(), to: host });
    let differences = differences(wanted.vnics, &observed.vnics, |from, to| same(&from.attach, &to.attach));
    // A function may go from one contract to another, and a lowered rate makes room for a raised one: removals come first.
    let (removals, others) = changes(&differences);
    let contracts = |changes: Vec<ContractChange>| changes.into_iter().map(NicAction::Contract);
    Ok(contracts(removals).chain(set_host).chain(contracts(others)).collect())
}

fn refuse(wanted: &Wanted<'_>, observed: &Observed, links: &SharedLinks) -> Result<(), Vec<Refusal>> {
    let mut refused = Vec::new();
    for vnic in wanted.vnics {
        let refuse = |reason| Refusal { vnic: vnic.name.clone(), reason };
        refused.extend(observed.obstacles.get(&vnic.name).cloned().map(refuse));
        refused.extend(function(vnic).err().into_iter().flatten().map(refuse));
    }
    for (pf, vnics) in by_nic(wanted.vnics) {
        let nic = wanted.host.nic.get(pf).cloned().unwrap_or_default();
        if let Some(link) = links.get(pf) {
            refused.extend(refusals(pf, &vnics, &nic, link));
        }
    }
    if refused.is_empty() { Ok(()) } else { Err(refused) }
}

#[cfg(test)]
mod tests {
    use super::super::shared_link::SharedLink;
    use super::*;
    use tidegate_contract::{Nic, Rate, Vnic};
    use tidegate_evidence::Connection;
    use tidegate_place::{Action, Adopt, HostWork, Network, ObservedVnic};
    use tidegate_testkit::contract::vf;

    fn actions(wanted: &[Vnic], host: &Host, observed: &Observed) -> Vec<(&'static str, String)> {
        let wanted = Wanted {
            host,
            network: Network::NONE,
            vnics: wanted,
            adopt: Adopt::No,
            claims: &[],
            work: HostWork::NONE,
        };
        let planned = plan(&wanted, observed, &SharedLinks::new()).expect("a plan");
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
    fn each_key_that_the_nic_cannot_keep_is_a_refusal() {
        let mut observed = Observed::nothing("");
        observed.obstacles.insert("a".into(), "eth1 has 2 VFs".into());
        let rate = |mbit: u64| Rate::from_bits(mbit * 1_000_000);
        let link = SharedLink { speed: rate(100), lacks_min: Some("no".into()), groups: false };
        let links = [("eth1".to_owned(), link)].into();
        let (mut a, mut b) = (vf("a", 1, "eth1", 0), vf("b", 2, "eth1", 1));
        (a.queues, b.tx.min) = (2, rate(200));
        let (host, vnics) = (Host::default(), [a, b]);
        let wanted = Wanted {
            host: &host,
            network: Network::NONE,
            vnics: &vnics,
            adopt: Adopt::No,
            claims: &[],
            work: HostWork::NONE,
        };
        let refused = plan(&wanted, &observed, &links).expect_err("refused");
        let whose: Vec<&str> = refused.iter().map(|r| r.vnic.as_str()).collect();
        assert_eq!(whose, ["a", "a", "b"], "{refused:?}");
    }
}
