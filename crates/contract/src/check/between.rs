//! The rules of what crosses hosts: uplinks, remote vNICs, keys of segments, and the vNICs that they concern.
//!
//! ```text
//!  vNIC ── to ──▶ remote ── peer ──▶ uplink: carries its segment?
//!    └── mtu ─────────────────────────▶ uplink: does a frame fit into the path's MTU?
//!  remote ── to ──▶ vNIC: in its segment, at the host switch?
//! ```

use super::taken::{FirstOwners, error_at};
use super::uplink::{UPLINK_MTU, listed};
use crate::error::ErrorList;
use crate::reach::Reach;
use crate::suggest::did_you_mean;
use crate::{Document, Exclusive, Located, Mac, Peer, Remote, Segment, Table, UPLINK, Uplink, Vnic};
use std::collections::HashMap;

/// Most uplinks of a host: a promise towards all counts at each.
const UPLINKS: usize = 16;

/// Notes why `to` of `vnic`, which names no vNIC, cannot stand, if so. `remotes` are those of `document` by name.
pub(super) fn beyond_this_host(
    errors: &mut ErrorList,
    document: &Document,
    remotes: &HashMap<&str, &Located<Remote>>,
    vnic: &Located<Vnic>,
    to: &str,
) {
    if let Some(remote) = remotes.get(to) {
        if remote.value.segment != vnic.value.segment {
            errors.note(|| {
                let message = format!(
                    "{to} is in segment {} and this vNIC in segment {}; frames never cross segments",
                    remote.value.segment, vnic.value.segment
                );
                error_at(vnic, "to", message)
            });
        } else if !vnic.value.uses_uplinks() {
            errors.note(|| {
                let message = format!(
                    "{to} is on another host, which vhost-user and tap attachments reach; take it out, or attach the \
                     vNIC in one of these ways"
                );
                error_at(vnic, "to", message)
            });
        }
        return;
    }
    let is_uplink = document.uplinks.iter().any(|uplink| uplink.value.name == to);
    if !is_uplink && may_come(document.controller.is_some(), &vnic.value) {
        return;
    }
    errors.note(|| {
        if is_uplink {
            let message = format!(
                "{to} is an uplink; write {UPLINK:?} for every host that the segment reaches, or name remotes"
            );
            return error_at(vnic, "to", message);
        }
        let vnics = document.vnics.iter().map(|v| v.value.name.as_str()).filter(|n| *n != vnic.value.name);
        let hint = did_you_mean(to, vnics.chain(remotes.keys().copied()).chain([UPLINK]));
        let what = if document.remotes.is_empty() { "vNIC" } else { "vNIC or remote" };
        error_at(vnic, "to", format!("there is no {what} {to:?}{hint}"))
    });
}

/// Returns whether a name in `to` of a vNIC that no table has may be that of a vNIC that another host is still to
/// announce: of two hosts that name each other, one comes first.
pub(crate) fn may_come(has_controller: bool, vnic: &Vnic) -> bool {
    has_controller && vnic.uses_uplinks() && vnic.segment.id() > 0
}

/// Notes every broken rule.
pub(super) fn check(errors: &mut ErrorList, document: &Document) {
    names(errors, document);
    uplinks(errors, document);
    macs(errors, document);
    remotes(errors, document);
    mtus(errors, document);
}

/// Names of vNICs, uplinks and remotes are one set: an egress has one of them.
fn names(errors: &mut ErrorList, document: &Document) {
    let mut taken = HashMap::<String, (String, String)>::new();
    for vnic in &document.vnics {
        taken.entry(vnic.value.name.clone()).or_insert_with(|| (vnic.value.what(), vnic.place()));
    }
    register_names(errors, &mut taken, &document.uplinks);
    register_names(errors, &mut taken, &document.remotes);
    let mut segments = FirstOwners::default();
    for keys in &document.segments {
        if let Some(first) = segments.register(keys.value.segment, keys) {
            errors
                .note(|| error_at(keys, "", format!("this segment is already defined at {}", first.place())));
        }
    }
}

fn register_names<T: Table>(
    errors: &mut ErrorList,
    taken: &mut HashMap<String, (String, String)>,
    tables: &[Located<T>],
) {
    for table in tables {
        let name = table.value.name().into_owned();
        match taken.get(&name) {
            Some((what, place)) => errors.note(|| {
                let message = format!(
                    "the name {name} is taken by {what} at {place}; vNICs, uplinks and remotes have different names"
                );
                error_at(table, "", message)
            }),
            None => drop(taken.insert(name, (table.value.what(), table.place()))),
        }
    }
}

fn uplinks(errors: &mut ErrorList, document: &Document) {
    for uplink in document.uplinks.iter().skip(UPLINKS) {
        errors.note(|| {
            error_at(uplink, "", format!("{} uplinks are defined; at most {UPLINKS}", document.uplinks.len()))
        });
    }
    let mut peers = FirstOwners::default();
    for uplink in &document.uplinks {
        for peer in &uplink.value.peers {
            if let Some(first) = peers.register(peer.name.as_str(), uplink)
                && first.value.name != uplink.value.name
            {
                errors.note(|| {
                    let message = format!(
                        "peer {} is already one of uplink {} at {}; a peer's name may appear once on the host",
                        peer.name,
                        first.value.name,
                        first.place()
                    );
                    error_at(uplink, &format!("peer.{}", peer.name), message)
                });
            }
        }
    }
    let mut exclusive = FirstOwners::default();
    for uplink in &document.uplinks {
        let Some(first) = exclusive.register(uplink.value.exclusive(), uplink) else { continue };
        errors.note(|| {
            let owner = format!("already belongs to uplink {} at {}", first.value.name, first.place());
            match uplink.value.exclusive() {
                Exclusive::Port(local, port) => {
                    let local = local.map_or_else(String::new, |local| format!(" of {local}"));
                    let message = format!("UDP port {port}{local} {owner}; write another port or address");
                    error_at(uplink, "port", message)
                }
                Exclusive::Device(device) => {
                    let device = device.unwrap_or_default();
                    let message = format!("{device} {owner}; list all VLANs there, or write another device");
                    error_at(uplink, "device", message)
                }
            }
        });
    }
    let mut notices = FirstOwners::default();
    for uplink in &document.uplinks {
        let Uplink { local: Some(local), notice_port, .. } = uplink.value else { continue };
        let first = notices
            .register((local, notice_port), uplink)
            .or_else(|| exclusive.0.get(&Exclusive::Port(Some(local), notice_port)).copied());
        if let Some(first) = first.filter(|first| first.value.name != uplink.value.name) {
            errors.note(|| {
                let message = format!(
                    "UDP port {notice_port} of {local} already belongs to uplink {} at {}; write another notice-port, \
                     here and at its peers",
                    first.value.name,
                    first.place()
                );
                error_at(uplink, "notice-port", message)
            });
        }
    }
}

fn macs(errors: &mut ErrorList, document: &Document) {
    let mut own = HashMap::<(Segment, Mac), &Located<Vnic>>::new();
    for vnic in &document.vnics {
        let Vnic { mac, segment, allowed, .. } = &vnic.value;
        let shared = allowed.shared.iter().filter_map(|address| address.mac());
        for mac in std::iter::once(*mac).chain(allowed.macs.iter().copied()).chain(shared) {
            own.entry((*segment, mac)).or_insert(vnic);
        }
    }
    let (mut taken, mut addresses) = (FirstOwners::default(), FirstOwners::default());
    for remote in &document.remotes {
        let Remote { mac, segment, .. } = remote.value;
        for ip in &remote.value.addresses {
            if let Some(first) = addresses.register((segment, *ip), remote) {
                errors.note(|| {
                    let (what, place) = (first.value.what(), first.place());
                    let message = format!(
                        "{ip} is already an address in segment {segment}, of {what} at {place}; an address has one MAC"
                    );
                    error_at(remote, "addresses", message)
                });
            }
        }
        let other = taken.register((segment, mac), remote).map(|first| (first.value.what(), first.place()));
        let local = own.get(&(segment, mac)).map(|vnic| (vnic.value.what(), vnic.place()));
        if let Some((what, place)) = local.or(other) {
            errors.note(|| {
                let message = format!(
                    "{mac} is already taken in segment {segment}, by {what} at {place}; a MAC may appear once in a \
                     segment, on all hosts"
                );
                error_at(remote, "mac", message)
            });
        }
    }
}

fn remotes(errors: &mut ErrorList, document: &Document) {
    let peers: HashMap<&str, (&Located<Uplink>, &Peer)> = document
        .uplinks
        .iter()
        .flat_map(|uplink| uplink.value.peers.iter().map(move |peer| (peer.name.as_str(), (uplink, peer))))
        .collect();
    let vnics: HashMap<&str, &Located<Vnic>> =
        document.vnics.iter().map(|vnic| (vnic.value.name.as_str(), vnic)).collect();
    for remote in &document.remotes {
        let Remote { segment, peer: name, deadline, .. } = &remote.value;
        match peers.get(name.as_str()) {
            None => errors.note(|| {
                let hint = did_you_mean(name, peers.keys().copied());
                error_at(remote, "peer", format!("no uplink has a peer {name:?}{hint}"))
            }),
            Some((uplink, peer)) => {
                if !peer.carries(*segment) {
                    errors.note(|| {
                        let message = format!(
                            "segment {segment} does not reach peer {name} of uplink {} at {}, whose segments are {}; \
                             add it there",
                            uplink.value.name,
                            uplink.place(),
                            listed(peer.segments.as_deref().unwrap_or_default())
                        );
                        error_at(remote, "peer", message)
                    });
                }
                let budget = uplink.value.arrival_budget;
                if let Some(deadline) = deadline.filter(|deadline| *deadline <= budget) {
                    errors.note(|| {
                        let message = format!(
                            "{deadline} is not more than the arrival-budget of {budget} of uplink {} at {}: nothing \
                             remains for its host and the network; raise deadline, or lower arrival-budget",
                            uplink.value.name,
                            uplink.place()
                        );
                        error_at(remote, "deadline", message)
                    });
                }
            }
        }
        for to in &remote.value.to {
            let message = match vnics.get(to.as_str()).map(|vnic| &vnic.value) {
                None => {
                    let hint = did_you_mean(to, vnics.keys().copied());
                    format!("there is no vNIC {to:?} on this host{hint}")
                }
                Some(vnic) if vnic.segment != *segment => format!(
                    "{to} is in segment {} and this remote in segment {segment}; frames never cross segments",
                    vnic.segment
                ),
                Some(vnic) if !vnic.uses_uplinks() => format!(
                    "{to} is no vhost-user or tap attachment; frames from other hosts reach no other, take it out"
                ),
                Some(_) => continue,
            };
            errors.note(|| error_at(remote, "to", message));
        }
    }
}

/// A vNIC's largest packet fits into the path's MTU on every uplink that carries its segment.
fn mtus(errors: &mut ErrorList, document: &Document) {
    if document.uplinks.is_empty() {
        return;
    }
    let peers_of: HashMap<&str, &str> =
        document.remotes.iter().map(|r| (r.value.name.as_str(), r.value.peer.as_str())).collect();
    let uplinks: Vec<_> = document.uplinks.iter().map(|uplink| (uplink, Reach::new(&uplink.value))).collect();
    for vnic in document.vnics.iter().filter(|vnic| vnic.value.uses_uplinks()) {
        let Vnic { segment, mtu, to, allowed, .. } = &vnic.value;
        let stamped_to = |peer: &Peer| {
            let is_it = |to: &String| to == UPLINK || peers_of.get(to.as_str()) == Some(&peer.name.as_str());
            peer.stamps && to.iter().any(is_it)
        };
        for (located, reach) in uplinks.iter().filter(|(_, reach)| reach.carries(*segment)) {
            let uplink = &located.value;
            let stamped = vnic.value.is_realtime() && reach.peers(*segment).any(stamped_to);
            let tagged = !allowed.vlans.is_empty();
            if tagged && uplink.is_plain() {
                errors.note(|| {
                    let message = format!(
                        "uplink {} at {} tags frames with their segment, and no frame leaves with a second tag \
                         (IEEE 802.1ad): remove this key, or segment {segment} from the uplink's peer",
                        uplink.name,
                        located.place()
                    );
                    error_at(vnic, "allowed.vlans", message)
                });
                continue;
            }
            let fits = uplink.guest_mtu(tagged, stamped);
            if *mtu <= fits {
                continue;
            }
            errors.note(|| {
                let around = uplink.around_guest_packet(tagged, stamped);
                let wanted = u64::from(*mtu) + around;
                let or = if wanted <= (*UPLINK_MTU.end()).into() {
                    format!(", or mtu = {wanted} there if the path carries that")
                } else {
                    String::new()
                };
                let message = format!(
                    "{mtu} does not fit uplink {} at {}, which carries packets of {} bytes, {around} of them around \
                     the guest's ({}): write mtu = {fits} here and set it in the guest{or}",
                    uplink.name,
                    located.place(),
                    uplink.mtu,
                    parts(uplink, tagged, stamped),
                );
                error_at(vnic, "mtu", message)
            });
        }
    }
}

/// Returns what stands around a guest's packet, in words.
fn parts(uplink: &Uplink, tagged: bool, stamped: bool) -> String {
    if uplink.is_plain() {
        return "none".into();
    }
    let ip = if uplink.is_ipv6() { "40 IPv6" } else { "20 IPv4" };
    let tag = if tagged { ", 4 VLAN tag" } else { "" };
    let stamp = if stamped { ", 32 stamp" } else { "" };
    format!("{ip}, 8 UDP, 8 VXLAN, 14 Ethernet{tag}{stamp}")
}

#[cfg(test)]
mod tests;
