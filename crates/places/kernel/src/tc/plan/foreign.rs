//! Foreign objects on a netdev that would be lost, or are in the way.

use crate::tc::network::Netdev;
use crate::tc::shaping::{Ends, NetdevRefusal};
use crate::tc::vlan::Vlans;

/// A root qdisc without queue, whose removal loses no foreign limit: libvirt puts it on every tap it makes
/// (its commit 0b66196d).
const NOTHING: &str = "noqueue";

/// Refuses the ends of a link with foreign shaping or filters, and a port with foreign VLANs.
pub fn refuse(link: &Netdev, ends: Ends, vlans: &Vlans) -> Result<(), NetdevRefusal> {
    let name = &link.name;
    let mut found = Vec::new();
    if ends.egress
        && let Some(root) = link.root().filter(|q| !link.root_is_ours() && q.setting.kind() != NOTHING)
    {
        let kind = root.setting.kind();
        found.push((
            format!("qdisc {kind} {} at its root", root.handle),
            format!("tc qdisc del dev {name} root"),
        ));
    }
    if ends.ingress
        && let Some(filter) = link.others_at_ingress().next()
    {
        let (kind, preference) = (&filter.kind, filter.preference);
        found.push((
            format!("a {kind} filter of preference {preference} at its ingress"),
            format!("tc filter del dev {name} ingress pref {preference}"),
        ));
    }
    let libvirt = if found.is_empty() { "" } else { " (libvirt does for <bandwidth>)" };
    if !vlans.is_empty() {
        let delete = vlans.ranges().iter().map(|range| format!("bridge vlan del dev {name} vid {range}"));
        found.push((format!("VLAN {vlans} on its bridge port"), delete.collect::<Vec<_>>().join("; ")));
    }
    if found.is_empty() {
        return Ok(());
    }
    let (what, how): (Vec<_>, Vec<_>) = found.into_iter().unzip();
    let what = what.join(" and ");
    Err(NetdevRefusal {
        netdev: name.clone(),
        reason: format!(
            "interface {name} has {what}, which another program made{libvirt}; remove it first ({})",
            how.join("; ")
        ),
        foreign: Some(what),
    })
}
