//! A slow model of the kernel: the effects of steps.

use crate::handle::Handle;
use crate::tc::class::HtbClass;
use crate::tc::network::*;
use crate::tc::owner;
use crate::tc::step::{Device, Step};
use crate::tc::vlan::{Member, Vlans};
use std::collections::BTreeMap;

fn program(map: u32) -> owner::Program {
    owner::Program { map, version: owner::PROGRAMS }
}

/// Does one step as the kernel would.
pub fn apply(network: &mut Network, step: &Step) -> Result<(), String> {
    let ifb = network.by_name(owner::IFB).map(|(index, _)| index);
    match step {
        Step::AddIfb => {
            if ifb.is_some() {
                return Err("EEXIST".into());
            }
            let index = network.netdevs.keys().max().unwrap_or(&0) + 1;
            let (name, kind) = (owner::IFB.into(), Some("ifb".into()));
            network
                .netdevs
                .insert(index, Netdev { name, kind, group: owner::IFB_GROUP, ..Netdev::default() });
        }
        Step::DeleteIfb => {
            let index = ifb.ok_or("ENODEV")?;
            network.netdevs.remove(&index);
            for link in network.netdevs.values_mut() {
                for filter in &mut link.filters {
                    if let Rule::Redirect { to, .. } = &mut filter.rule
                        && *to == index
                    {
                        *to = 0;
                    }
                }
            }
        }
        Step::RaiseIfb => network.netdevs.get_mut(&ifb.ok_or("ENODEV")?).ok_or("ENODEV")?.up = true,
        Step::SetQdisc { device, parent, handle, setting, replace } => {
            set_qdisc(find(network, device)?, *parent, *handle, setting, *replace)?;
        }
        Step::DeleteQdisc { device, parent, handle } => {
            let link = find(network, device)?;
            let there = link.qdiscs.iter().position(|q| (q.parent, q.handle) == (*parent, *handle));
            there.ok_or("ENOENT")?;
            remove(link, *parent);
            clear(link, *parent);
        }
        Step::SetClass { device, id, parent, class } => {
            set_class(find(network, device)?, *id, *parent, *class)?;
        }
        Step::DeleteClass { device, id } => {
            let link = find(network, device)?;
            if link.classified().any(|(_, to)| to == *id) {
                return Err("frames still go there".into());
            }
            if link.classes.iter().any(|c| c.parent == *id) {
                return Err("EBUSY: it has parts".into());
            }
            let there = link.classes.iter().position(|c| c.id == *id);
            link.classes.remove(there.ok_or("ENOENT")?);
            remove(link, *id);
        }
        Step::Redirect { device, cookie } => {
            let rule = Rule::Redirect { to: ifb.ok_or("ENODEV")?, cookie: *cookie };
            let link = find(network, device)?;
            link.ingress().ok_or("EINVAL: no ingress qdisc")?;
            add_filter(link, Handle::INGRESS, owner::PREFERENCE, "u32", rule)?;
        }
        Step::Police { device, bucket, cookie, instead } => {
            let rule = Rule::Police { bucket: *bucket, program: program(7), cookie: *cookie };
            let place = (Handle::INGRESS, owner::PREFERENCE);
            direct_action(find(network, device)?, place, *instead, rule)?;
        }
        Step::Mark { device, marks, cookie, instead } => {
            let rule = Rule::Mark { marks: *marks, program: program(8), cookie: *cookie };
            let place = (Handle::INGRESS, owner::MARK_PREFERENCE);
            direct_action(find(network, device)?, place, *instead, rule)?;
        }
        Step::MarkCongestion { device, parent, queue, cookie, instead } => {
            let rule = Rule::MarkCongestion { queue: *queue, program: program(9), cookie: *cookie };
            let link = find(network, device)?;
            if *parent != Handle::INGRESS && !link.root_is_ours() {
                return Err("ENOENT: no such qdisc".into());
            }
            direct_action(link, (*parent, owner::MARK_PREFERENCE), *instead, rule)?;
        }
        Step::AddClassifier { device } => {
            let link = find(network, device)?;
            if !link.root_is_ours() {
                return Err("ENOENT: no such qdisc".into());
            }
            let rule = Rule::Classify { program: program(8), classes: BTreeMap::new() };
            add_filter(link, owner::ROOT_QDISC, owner::PREFERENCE, "bpf", rule)?;
        }
        Step::Classify { device, from: Device::Netdev { index, .. }, to } => {
            let link = find(network, device)?;
            link.class(*to).ok_or("frames would go nowhere")?;
            classes(link)?.insert(*index, *to);
        }
        Step::Classify { .. } => return Err("from the IFB itself".into()),
        Step::Unclassify { device, from } => {
            classes(find(network, device)?)?.remove(from).ok_or("ENOENT: no such entry")?;
        }
        Step::DeleteFilter { device, filter } => {
            let link = find(network, device)?;
            let group = |f: &Filter| (f.parent, f.place());
            let goes =
                |f: &Filter| group(f) == group(filter) && [f.handle, Filter::ALL].contains(&filter.handle);
            let before = link.filters.len();
            link.filters.retain(|f| !goes(f));
            if link.filters.len() == before {
                return Err("ENOENT".into());
            }
        }
        Step::SetVlans { device, vlans } => {
            let all = port(network, device)?;
            // Only one VLAN at a time is that of untagged frames.
            let moved = vlans.each().any(|(_, member)| member.pvid);
            let kept = all.each().map(|(vid, m)| (vid, Member { pvid: m.pvid && !moved, ..m }));
            *all = kept.chain(vlans.each()).collect();
        }
        Step::DeleteVlans { device, vlans } => {
            let all = port(network, device)?;
            *all = all.only(|vid, _| vlans.get(vid).is_none());
        }
        Step::Restore { .. } => return Err("no plan has this step".into()),
    }
    Ok(())
}

fn find<'a>(network: &'a mut Network, device: &Device) -> Result<&'a mut Netdev, String> {
    let index = match device {
        Device::Ifb => network.by_name(owner::IFB).map(|(index, _)| index).ok_or("ENODEV")?,
        Device::Netdev { index, .. } => *index,
    };
    network.netdevs.get_mut(&index).ok_or_else(|| "ENODEV".into())
}

/// Returns the VLANs of a bridge port.
fn port<'a>(network: &'a mut Network, device: &Device) -> Result<&'a mut Vlans, String> {
    let link = find(network, device)?;
    link.vlans.as_mut().ok_or_else(|| "EOPNOTSUPP: not a bridge port".into())
}

/// Returns the map of the classifier.
fn classes(link: &mut Netdev) -> Result<&mut BTreeMap<u32, Handle>, String> {
    let found = link.filters.iter_mut().find_map(|f| match &mut f.rule {
        Rule::Classify { classes, .. } if f.parent == owner::ROOT_QDISC => Some(classes),
        _ => None,
    });
    found.ok_or_else(|| "its classifier is gone".into())
}

fn set_qdisc(
    link: &mut Netdev,
    parent: Handle,
    handle: Handle,
    setting: &Setting,
    replace: bool,
) -> Result<(), String> {
    let there = link.qdiscs.iter().position(|q| q.parent == parent && q.handle.major() != 0);
    if there.is_some() && !replace {
        return Err("EEXIST".into());
    }
    let cuts = |q: &&Qdisc| q.setting.kind() == "tbf" && owner::below(q.handle) == parent;
    let below_cutter = link.qdiscs.iter().any(|q| cuts(&q));
    if parent != Handle::ROOT && parent != Handle::CLSACT && link.class(parent).is_none() && !below_cutter {
        return Err("ENOENT: no such class".into());
    }
    if link.classes.iter().any(|c| c.parent == parent) && parent != Handle::ROOT {
        return Err("EINVAL: it has parts".into());
    }
    // Without a handle, or with its own, a qdisc of the same kind is changed, and those below stay.
    if let Some(there) = there.map(|at| &mut link.qdiscs[at])
        && (handle == Handle::default() || handle == there.handle)
    {
        if there.setting.kind() == setting.kind() {
            there.setting = setting.clone();
            return Ok(());
        }
        if handle == there.handle {
            return Err("EINVAL: its name is that of another kind".into());
        }
    }
    if handle != Handle::default() && link.qdiscs.iter().any(|q| q.handle == handle && q.parent != parent) {
        return Err("ELOOP: it is elsewhere".into());
    }
    remove(link, parent);
    clear(link, parent);
    // All kernel-chosen handles count as equal.
    let handle = if handle == Handle::default() { Handle::new(0x8001, 0) } else { handle };
    link.qdiscs.push(Qdisc { handle, parent, setting: setting.clone() });
    Ok(())
}

/// Removes the qdisc of a parent, and those below it.
fn remove(link: &mut Netdev, parent: Handle) {
    let gone: Vec<Handle> = link.qdiscs.iter().filter(|q| q.parent == parent).map(|q| q.handle).collect();
    let is_below = |q: &Qdisc| gone.iter().any(|cutter| owner::below(*cutter) == q.parent);
    link.qdiscs.retain(|q| q.parent != parent && !is_below(q));
}

/// Removes what went with the qdisc of a parent.
fn clear(link: &mut Netdev, parent: Handle) {
    if parent == Handle::CLSACT {
        link.filters.retain(|f| f.parent != Handle::INGRESS);
    }
    if parent == Handle::ROOT {
        link.filters.retain(|f| f.parent == Handle::INGRESS);
        link.classes.clear();
        link.qdiscs.retain(|q| q.parent == Handle::CLSACT || q.parent == Handle::ROOT);
    }
}

fn set_class(link: &mut Netdev, id: Handle, parent: Handle, class: HtbClass) -> Result<(), String> {
    if !link.root().is_some_and(|q| q.handle.major() == id.major() && q.setting.kind() == "htb") {
        return Err("ENOENT: no such qdisc".into());
    }
    match link.classes.iter_mut().find(|c| c.id == id) {
        Some(known) if known.parent != parent => return Err("EINVAL: part of another class".into()),
        Some(known) => known.htb = Some(class),
        None => {
            if parent != Handle::ROOT {
                link.class(parent).ok_or("ENOENT: no such class")?;
                // It is no leaf any more.
                remove(link, parent);
            }
            link.classes.push(Class { id, parent, htb: Some(class), counters: Counters::default() });
        }
    }
    Ok(())
}

fn direct_action(
    link: &mut Netdev,
    (parent, preference): (Handle, u16),
    instead: Option<(u32, u32)>,
    rule: Rule,
) -> Result<(), String> {
    if parent == Handle::INGRESS {
        link.ingress().ok_or("EINVAL: no ingress qdisc")?;
    }
    let Some((handle, _)) = instead else {
        return add_filter(link, parent, preference, "bpf", rule);
    };
    let there =
        |f: &&mut Filter| (f.parent, f.chain, f.preference, f.handle) == (parent, 0, preference, handle);
    link.filters.iter_mut().find(there).ok_or("ENOENT")?.rule = rule;
    Ok(())
}

fn add_filter(
    link: &mut Netdev,
    parent: Handle,
    preference: u16,
    kind: &str,
    rule: Rule,
) -> Result<(), String> {
    let same = |f: &&Filter| (f.parent, f.chain, f.preference) == (parent, 0, preference);
    let mut same = link.filters.iter().filter(same);
    if same.clone().any(|f| f.kind != kind || f.protocol != ANY_PROTOCOL) {
        return Err("EINVAL: another kind or protocol of that preference".into());
    }
    let handle = (1..).find(|h| !same.clone().any(|f| f.handle == *h)).unwrap_or_default();
    same.next();
    let (protocol, kind) = (ANY_PROTOCOL, kind.into());
    link.filters.push(Filter { parent, preference, protocol, kind, handle, chain: 0, rule });
    Ok(())
}
