//! Finds ended domains whose contracts are in the way of a starting one.
//!
//! A domain that ended while both agent and hook were unreachable leaves its contracts. libvirt gives its
//! tap's name to another domain, which would be refused.

use crate::OWNER;
use std::collections::BTreeSet;
use tidegate_contract::Vnic;

/// Returns the domains, among those that do not run, whose contracts use a netdev, socket or (segment, MAC)
/// of `ours`. `others` are contracts with their owners, `running` the domains with a state.
pub fn in_the_way<'a>(
    ours: &[Vnic],
    others: impl IntoIterator<Item = (&'a str, &'a Vnic)>,
    running: &BTreeSet<String>,
) -> BTreeSet<String> {
    let wanted = |theirs: &Vnic| {
        let claims =
            |v: &Vnic| v.attach == theirs.attach || (v.mac, v.segment) == (theirs.mac, theirs.segment);
        ours.iter().any(|our| claims(our) || our.name == theirs.name)
    };
    let others = others.into_iter().filter_map(|(owner, vnic)| Some((owner.strip_prefix(OWNER)?, vnic)));
    let gone = others.filter(|(domain, vnic)| !running.contains(*domain) && wanted(vnic));
    gone.map(|(domain, _)| domain.to_owned()).collect()
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
    fn only_who_is_gone_makes_room() {
        let ours = [vnic("new", "52:54:00:00:00:01", "vnet0")];
        let same_tap = vnic("a", "52:54:00:00:00:02", "vnet0");
        let same_mac = vnic("b", "52:54:00:00:00:01", "vnet1");
        let apart = vnic("c", "52:54:00:00:00:03", "vnet2");
        let others =
            [("libvirt:a", &same_tap), ("libvirt:b", &same_mac), ("libvirt:c", &apart), ("api", &same_tap)];
        let running = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<BTreeSet<_>>();
        assert_eq!(in_the_way(&ours, others, &running(&[])), running(&["a", "b"]));
        assert_eq!(in_the_way(&ours, others, &running(&["a"])), running(&["b"]));
    }
}
