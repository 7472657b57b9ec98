//! Finds ended domains whose contracts are in the way of a starting one.
//!
//! A domain that ended while both agent and hook were unreachable leaves its contracts. libvirt gives its
//! tap's name to another domain, which would be refused.

use crate::OWNER;
use std::collections::BTreeSet;
use tidegate_contract::Vnic;

/// Returns the domains, among those that do not run, whose contracts use a netdev, socket or (segment, MAC)
/// of `contracts`. `others` are contracts with their owners, `running` the domains with a state.
pub fn ended_owners_in_conflict<'a>(
    contracts: &[Vnic],
    others: impl IntoIterator<Item = (&'a str, &'a Vnic)>,
    running: &BTreeSet<String>,
) -> BTreeSet<String> {
    let conflicts = |other: &Vnic| {
        let same_object =
            |v: &Vnic| v.attach == other.attach || (v.mac, v.segment) == (other.mac, other.segment);
        contracts.iter().any(|contract| same_object(contract) || contract.name == other.name)
    };
    let others = others.into_iter().filter_map(|(owner, vnic)| Some((owner.strip_prefix(OWNER)?, vnic)));
    let ended = others.filter(|(domain, vnic)| !running.contains(*domain) && conflicts(vnic));
    ended.map(|(domain, _)| domain.to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::translate;

    fn vnic(domain: &str, mac: &str, tap: &str) -> Vnic {
        let xml = format!(
            "<domain><name>{domain}</name><devices><interface type='bridge'><mac address='{mac}'/><target dev='{tap}'/>\
             <bandwidth><inbound average='1'/></bandwidth></interface></devices></domain>"
        );
        translate(&xml, "test").expect("a domain").contracts.remove(0).vnic
    }

    #[test]
    fn only_ended_domains_make_room() {
        let contracts = [vnic("new", "52:54:00:00:00:01", "vnet0")];
        let same_tap = vnic("a", "52:54:00:00:00:02", "vnet0");
        let same_mac = vnic("b", "52:54:00:00:00:01", "vnet1");
        let separate = vnic("c", "52:54:00:00:00:03", "vnet2");
        let others = [
            ("libvirt:a", &same_tap),
            ("libvirt:b", &same_mac),
            ("libvirt:c", &separate),
            ("api", &same_tap),
        ];
        let running = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<BTreeSet<_>>();
        assert_eq!(ended_owners_in_conflict(&contracts, others, &running(&[])), running(&["a", "b"]));
        assert_eq!(ended_owners_in_conflict(&contracts, others, &running(&["a"])), running(&["b"]));
    }
}
