//! From the wanted and the observed state to actions. Pure.
//!
//! ```text
//!  uplinks' removals, others that make room ─▶ host ─▶ uplinks ─▶ changes, reconnects ─▶ creations ─▶ other removals ─▶ directions
//! ```
//!
//! - `rdma`: contracts that no RDMA device can keep
//!
//! A removal is hard to undo, because a guest loses its connection. So it comes last, unless another vNIC needs what it frees.

mod rdma;
#[cfg(test)]
mod tests;

use crate::action::{Declared, DeclaredKey, SwitchAction};
use crate::directing;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use tidegate_contract::{Attach, Host, Mac, Remote, Segment, SegmentKey, SocketMode, Uplink, Vnic};
use tidegate_evidence::{Connection, RdmaDevice};
use tidegate_place::difference::{Difference, differences};
use tidegate_place::{ContractChange, Network, Observed, Plan, Refusal, Wanted};

/// Most vNICs of one switch.
pub const MOST: usize = tidegate_switch::capacity::VNICS;

/// The facts that only a plan reads.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// vNICs that were adopted by a change that is not accepted, with their contracts before it.
    pub adopted: BTreeMap<String, Vnic>,
    /// The uplinks of the switch, by name.
    pub uplinks: BTreeMap<String, PresentUplink>,
    /// The directions that the switch reports, and those passed to it.
    pub directing: directing::Facts,
    /// The RDMA devices of the switch; `None` if its release knows no RDMA.
    pub rdma: Option<Vec<RdmaDevice>>,
    /// Whether its release knows zero copy.
    pub knows_zero_copy: bool,
}

/// An uplink of the switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PresentUplink {
    /// As the switch says.
    pub declared: Declared,
    /// Whether this agent declared exactly that.
    pub ours: bool,
    /// It is broken, and now is the time to make it anew.
    pub repair: bool,
}

/// See [`tidegate_place::Place::plan`].
pub fn plan(
    wanted: &Wanted<'_>,
    observed: &Observed,
    facts: &Facts,
) -> Result<Plan<SwitchAction>, Vec<Refusal>> {
    refuse(wanted, observed, facts)?;
    let uplink_names = wanted.network.uplinks.iter().map(|u| u.name.as_str());
    let names: HashSet<&str> = wanted.vnics.iter().map(|v| v.name.as_str()).chain(uplink_names).collect();
    let (mut remove, mut unwanted) = (Vec::new(), Vec::new());
    let (mut change, mut release) = (Vec::new(), Vec::new());
    let mut create = Vec::new();
    let to = |from: &Vnic, to: &Vnic| {
        SwitchAction::Contract(ContractChange::Change { from: from.clone(), to: to.clone() })
    };
    let in_place =
        |from: &Vnic, to: &Vnic| same_attachment(&from.attach, &to.attach) && from.queues == to.queues;
    for difference in differences(wanted.vnics, &observed.vnics, in_place) {
        match difference {
            Difference::Missing(vnic) => create.push(vnic.clone()),
            Difference::Moved { from, to } => {
                remove.push(from.vnic.clone());
                create.push(to.clone());
            }
            Difference::Changed { from: there, .. } | Difference::Same(there) => {
                if !there.ours {
                    change.push(SwitchAction::Adopt(there.vnic.clone()));
                }
                let vnic = if let Difference::Changed { to, .. } = difference { to } else { &there.vnic };
                if there.vnic != *vnic {
                    change.push(to(&there.vnic, vnic));
                }
                if there.broken.is_some()
                    || (there.connection == Connection::Disconnected && we_connect(&vnic.attach))
                {
                    change.push(SwitchAction::Reconnect(vnic.clone()));
                }
            }
            Difference::Unwanted(there) => match facts.adopted.get(&there.vnic.name) {
                None => unwanted.push(there.vnic.clone()),
                Some(found) => {
                    if there.present && there.vnic != *found {
                        release.push(to(&there.vnic, found));
                    }
                    release.push(SwitchAction::Release(found.clone()));
                }
            },
        }
    }
    remove.append(&mut unwanted);
    change.append(&mut release);

    let coming = || {
        let changed = change.iter().filter_map(|action| match action {
            SwitchAction::Contract(ContractChange::Change { to, .. }) => Some(to),
            _ => None,
        });
        create.iter().chain(changed)
    };
    let needed: HashSet<Unique<'_>> = coming().flat_map(unique).collect();
    // What vNICs share is no vNIC's own; they have it beside each other.
    let shared_now: HashSet<Unique<'_>> = coming().flat_map(shared).collect();
    let in_the_way = |old: &Vnic| {
        unique(old).any(|c| needed.contains(&c) || shared_now.contains(&c))
            || shared(old).any(|c| needed.contains(&c))
    };
    let (first, last): (Vec<_>, Vec<_>) =
        remove.into_iter().partition(|old| names.contains(old.name.as_str()) || in_the_way(old));

    let removals =
        |vnics: Vec<Vnic>| vnics.into_iter().map(ContractChange::Remove).map(SwitchAction::Contract);
    let (mut actions, uplinks) = uplinks(wanted.network, &facts.uplinks);
    actions.extend(removals(first));
    // The settings of NICs are the NIC place's.
    let host = Host { nic: BTreeMap::new(), ..wanted.host.clone() };
    if observed.host.as_ref() != Some(&host) {
        actions.push(SwitchAction::SetHost { from: observed.host.clone(), to: host });
    }
    actions.extend(uplinks);
    actions.extend(change);
    actions.extend(create.into_iter().map(ContractChange::Create).map(SwitchAction::Contract));
    actions.extend(removals(last));
    actions.extend(facts.directing.due(wanted.work.directions.as_ref()).map(SwitchAction::Direct));
    Ok(actions.into())
}

/// Returns the uplinks of a network, by name, each with the vNICs behind its peers.
fn declared(network: &Network) -> BTreeMap<String, Declared> {
    let with_remotes = |uplink: &Uplink| {
        let is_behind = |remote: &&Remote| uplink.peers.iter().any(|peer| peer.name == remote.peer);
        let remotes = network.remotes.iter().filter(is_behind).cloned().collect();
        let of_it =
            |keys: &&SegmentKey| uplink.peers.iter().any(|peer| peer.stamps && peer.carries(keys.segment));
        let keys = network.keys.iter().filter(of_it).map(DeclaredKey::read).collect();
        (uplink.name.clone(), Declared { uplink: uplink.clone(), remotes, keys })
    };
    network.uplinks.iter().map(with_remotes).collect()
}

/// Returns the removals of uplinks, and the changes that follow. An uplink is removed if it is unwanted, or if
/// another is to have its address and port, or its device: two may exchange them.
fn uplinks(
    network: &Network,
    present: &BTreeMap<String, PresentUplink>,
) -> (Vec<SwitchAction>, Vec<SwitchAction>) {
    let wanted = declared(network);
    let owners: HashMap<_, &str> =
        wanted.iter().map(|(name, declared)| (declared.uplink.exclusive(), name.as_str())).collect();
    let stays = |(name, present): &(&String, &PresentUplink)| {
        let owner = owners.get(&present.declared.uplink.exclusive());
        wanted.contains_key(*name) && owner.is_none_or(|owner| owner == name)
    };
    let before = |present: &PresentUplink| present.ours.then(|| Box::new(present.declared.clone()));
    let (stay, go): (BTreeMap<_, _>, BTreeMap<_, _>) = present.iter().partition(stays);
    let removals = go
        .into_iter()
        .map(|(name, present)| SwitchAction::RemoveUplink { name: name.clone(), from: before(present) });
    // One of an earlier agent becomes ours by the same declaration.
    let is_same = |present: &PresentUplink, to: &Declared| present.declared == *to;
    let changed = wanted.iter().filter(|(name, to)| {
        stay.get(name).is_none_or(|present| !is_same(present, to) || !present.ours || present.repair)
    });
    let changes = changed.map(|(name, to)| SwitchAction::SetUplink {
        from: stay.get(name).and_then(|present| {
            before(present).or_else(|| is_same(present, to).then(|| Box::new(to.clone())))
        }),
        to: Box::new(to.clone()),
    });
    (removals.collect(), changes.collect())
}

fn refuse(wanted: &Wanted<'_>, observed: &Observed, facts: &Facts) -> Result<(), Vec<Refusal>> {
    let names: HashSet<&str> = wanted.vnics.iter().map(|v| v.name.as_str()).collect();
    let foreign: Vec<&Vnic> = observed
        .vnics
        .values()
        .filter(|o| o.present && !o.ours && !names.contains(o.vnic.name.as_str()))
        .map(|o| &o.vnic)
        .collect();
    let claimed: HashMap<Unique<'_>, &Vnic> =
        foreign.iter().rev().flat_map(|f| unique(f).map(|claim| (claim, *f))).collect();
    let mut refusals: Vec<Refusal> =
        rdma::refusals(wanted, observed, (facts.rdma.as_deref(), facts.knows_zero_copy)).collect();
    for vnic in wanted.vnics {
        if let Some(obstacle) = observed.obstacles.get(&vnic.name) {
            refusals.push(Refusal::new(&vnic.name, obstacle.clone()));
        }
        if let Some(other) = unique(vnic).find_map(|claim| claimed.get(&claim)) {
            refusals.push(Refusal {
                vnic: vnic.name.clone(),
                reason: format!(
                    "its MAC or its attachment belongs to vNIC {} in the switch, which this agent did not make; \
                     remove that one with the agent that made it, or restart the switch",
                    other.name
                ),
            });
        }
    }
    if wanted.vnics.len() + foreign.len() > MOST {
        refusals.extend(wanted.vnics.iter().skip(MOST - foreign.len().min(MOST)).map(|vnic| Refusal {
            vnic: vnic.name.clone(),
            reason: format!("one switch carries at most {MOST} vNICs"),
        }));
    }
    if refusals.is_empty() { Ok(()) } else { Err(refusals) }
}

/// A property that only one vNIC can have.
#[derive(PartialEq, Eq, Hash)]
enum Unique<'a> {
    Mac(Segment, Mac),
    Attachment(AttachmentKey<'a>),
}

/// A socket; or an interface, and the namespace where it is.
pub type AttachmentKey<'a> = (&'a Path, Option<&'a Path>);

/// The attachment of a port of the switch.
pub fn attachment_key(vnic: &Vnic) -> Option<AttachmentKey<'_>> {
    match &vnic.attach {
        Attach::VhostUser { path, .. } => Some((path, None)),
        Attach::Tap { name, netns } => Some((name.as_ref(), netns.as_deref())),
        _ => None,
    }
}

fn unique(vnic: &Vnic) -> impl Iterator<Item = Unique<'_>> {
    let macs = std::iter::once(&vnic.mac).chain(&vnic.allowed.macs);
    macs.map(|mac| Unique::Mac(vnic.segment, *mac)).chain(attachment_key(vnic).map(Unique::Attachment))
}

fn shared(vnic: &Vnic) -> impl Iterator<Item = Unique<'_>> {
    let macs = vnic.allowed.shared.iter().filter_map(|address| address.mac());
    macs.map(|mac| Unique::Mac(vnic.segment, mac))
}

/// Whether the descriptors of one serve the other. Owner, group and mode of a socket change in place.
fn same_attachment(a: &Attach, b: &Attach) -> bool {
    match (a, b) {
        (Attach::VhostUser { path: p, mode: m, .. }, Attach::VhostUser { path: q, mode: n, .. }) => {
            p == q && m == n
        }
        _ => a == b,
    }
}

fn is_tap(attach: &Attach) -> bool {
    matches!(attach, Attach::Tap { .. })
}

/// Whether it is on us to make the connection again.
fn we_connect(attach: &Attach) -> bool {
    match attach {
        Attach::VhostUser { mode, .. } => *mode == SocketMode::Client,
        _ => is_tap(attach),
    }
}
