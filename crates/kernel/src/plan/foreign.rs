//! What others made on a netdev, and that would be lost or would stand in the way.

use crate::handle::Handle;
use crate::network::Link;
use crate::shaping::Sides;

/// Refuses to touch a link on which others shape or filter already.
pub fn refuse(link: &Link, sides: Sides) -> Result<(), String> {
    let name = &link.name;
    let mut found = Vec::new();
    if sides.egress.is_some()
        && let Some(root) = link.root().filter(|_| !link.root_is_ours())
    {
        let kind = root.setting.kind();
        found.push((
            format!("qdisc {kind} {} at its root", root.handle),
            format!("tc qdisc del dev {name} root"),
        ));
    }
    if sides.ingress.is_some()
        && let Some(filter) = link.filters_at(Handle::INGRESS).find(|f| f.cookie().is_none())
    {
        let (kind, preference) = (&filter.kind, filter.preference);
        found.push((
            format!("a {kind} filter of preference {preference} at its ingress"),
            format!("tc filter del dev {name} ingress pref {preference}"),
        ));
    }
    if found.is_empty() {
        return Ok(());
    }
    let (what, how): (Vec<_>, Vec<_>) = found.into_iter().unzip();
    Err(format!(
        "interface {name} has {}, which somebody else made (libvirt does for <bandwidth>); remove it first ({})",
        what.join(" and "),
        how.join("; ")
    ))
}
