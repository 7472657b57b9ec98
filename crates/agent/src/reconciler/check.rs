//! Checks whether a set of contracts can be in force, before anything is touched.

use crate::commands::ApplyError;
use crate::guest::limits::SoftLimits;
use crate::store::Contracts;
use std::collections::{BTreeMap, HashMap, HashSet};
use tidegate_contract::vnic::UPLINK;
use tidegate_contract::{
    Admission, Attach, ContractSet, Document, Host, Located, NotAdmissible, Remote, Table, Uplink, Vnic,
    admit,
};
use tidegate_place::Installed;

/// Most vNICs of one host, at all places together.
pub const MOST_VNICS: usize = 8192;
/// Most remote vNICs of one host.
pub const MOST_REMOTES: usize = 16_384;
/// Most promises of one host: each is computed with every change, and shown with its derivation.
pub const MOST_PROMISES: usize = 16_384;

/// Contracts that keep every rule and fit.
#[derive(Debug)]
pub struct Checked {
    pub host: Host,
    /// The contracts of each place, in the order of the places, under the guests' soft limits.
    pub by_place: Vec<Vec<Vnic>>,
    pub admission: Admission,
    /// The places' notes, by vNIC.
    pub notes: BTreeMap<String, Vec<String>>,
}

/// Checks the rules between contracts, capabilities and admission, in this order. Admission ignores soft limits.
pub fn check(
    contracts: &Contracts,
    soft: &SoftLimits,
    places: &[Box<dyn Installed>],
) -> Result<Checked, ApplyError> {
    within_bounds(contracts)?;
    let Document { host, vnics, uplinks, remotes, segments: _ } =
        contracts.merged().map_err(ApplyError::Invalid)?;
    let host = host.map(|h| h.value).unwrap_or_default();
    let mut by_place = vec![Vec::new(); places.len()];
    let mut notes = BTreeMap::new();
    let mut refusals = Vec::new();
    let mut no_uplink = HashSet::new();
    let distant: HashSet<&str> = remotes.iter().map(|r| r.value.name.as_str()).collect();
    for located in &vnics {
        let vnic = &located.value;
        let place = places.iter().enumerate().find_map(|(i, p)| Some((i, p.capabilities(&vnic.attach)?)));
        let Some((index, capabilities)) = place else {
            refusals.push(format!(
                "vNIC {} ({}): no place on this host keeps an attachment of kind {}",
                vnic.name,
                located.place(),
                kind(&vnic.attach)
            ));
            continue;
        };
        let mut unable = |what: &str| {
            refusals.push(format!(
                "vNIC {} ({}): place {} cannot promise {what} for an attachment of kind {}",
                vnic.name,
                located.place(),
                places[index].name(),
                kind(&vnic.attach)
            ));
        };
        if vnic.is_realtime() && !capabilities.deadline {
            unable("a deadline");
        }
        if vnic.tx.min.is_some() && !capabilities.min {
            unable("tx.min");
        }
        let beyond = vnic.to.iter().find(|to| *to == UPLINK || distant.contains(to.as_str()));
        if let Some(to) = beyond.filter(|_| !capabilities.uplink && promises(vnic)) {
            no_uplink.insert(vnic.name.clone());
            let whom =
                if to == UPLINK { "the uplink".into() } else { format!("{to}, a vNIC of another host") };
            refusals.push(format!(
                "vNIC {} ({}): no place on this host keeps a promise towards {whom}; name vNICs of this host in `to`, \
                 or leave tx.min and deadline out",
                vnic.name,
                located.place()
            ));
        }
        notes.insert(vnic.name.clone(), places[index].notes(vnic));
        by_place[index].push(soft.in_force(vnic));
    }
    refusals.extend(across_places(&by_place, places));
    for vnics in &mut by_place {
        vnics.sort_by(|a, b| a.name.cmp(&b.name));
    }
    let all: Vec<Vnic> = vnics.into_iter().map(|v| v.value).collect();
    let uplinks: Vec<Uplink> = uplinks.into_iter().map(|u| u.value).collect();
    let remotes: Vec<Remote> = remotes.into_iter().map(|r| r.value).collect();
    let set = ContractSet { host: &host, vnics: &all, uplinks: &uplinks, remotes: &remotes };
    let admission = match admit(&set) {
        Ok(admission) => admission,
        Err(refused) => {
            // An uplink would not help vNICs to which no place can promise anything there.
            let would_help = |r: &&NotAdmissible| {
                r.egress() != UPLINK || !r.vnics().iter().all(|v| no_uplink.contains(v.as_str()))
            };
            refusals.extend(refused.iter().filter(would_help).map(ToString::to_string));
            Admission::default()
        }
    };
    if refusals.is_empty() {
        Ok(Checked { host, by_place, admission, notes })
    } else {
        Err(ApplyError::Refused(refusals))
    }
}

/// Returns whether a vNIC has a promise for each place in its `to`.
fn promises(vnic: &Vnic) -> bool {
    vnic.is_realtime() || vnic.tx.min.is_some()
}

/// Refuses more vNICs, remotes and promises than a host keeps: they bound the time of each look.
fn within_bounds(contracts: &Contracts) -> Result<(), ApplyError> {
    let all = || contracts.vnics().map(|(_, located)| &located.value);
    let remotes = || contracts.all::<Remote>().map(|(_, located)| &located.value);
    let uplinks = contracts.all::<Uplink>().count().max(1);
    // A promise towards the uplink counts at each.
    let count =
        |vnic: &Vnic| vnic.to.len() + vnic.to.iter().filter(|to| *to == UPLINK).count() * (uplinks - 1);
    let outgoing: usize = all().filter(|v| promises(v)).map(count).sum();
    let incoming: usize = remotes().filter(|r| r.deadline.is_some()).map(|r| r.to.len()).sum();
    let what = "promises (deadlines and minima, each once for every place in its `to`)";
    let refusals: Vec<String> = [
        within("vNICs", all().count(), MOST_VNICS),
        within("remote vNICs", remotes().count(), MOST_REMOTES),
        within(what, outgoing + incoming, MOST_PROMISES),
    ]
    .into_iter()
    .flatten()
    .collect();
    if refusals.is_empty() { Ok(()) } else { Err(ApplyError::Refused(refusals)) }
}

/// Says of each uplink, remote and key of `document` that no place uses it yet.
pub fn without_effect(document: &Document) -> Vec<String> {
    let mut notes = Vec::new();
    let mut note = |what: String, effect: &str| {
        notes.push(format!("{what}: no place on this host carries frames to other hosts yet; {effect}"));
    };
    if !document.uplinks.is_empty() {
        note(named(&document.uplinks), "admission and the check of each mtu count with it");
    }
    if !document.remotes.is_empty() {
        note(named(&document.remotes), "admission counts with it");
    }
    if !document.segments.is_empty() {
        note(named(&document.segments), "its key files are not read");
    }
    notes
}

/// Names the first few tables, and counts the others.
fn named<T: Table>(tables: &[Located<T>]) -> String {
    const NAMED: usize = 4;
    let mut names: Vec<String> = tables.iter().take(NAMED).map(|table| table.value.what()).collect();
    if tables.len() > NAMED {
        names.push(format!("and {} more", tables.len() - NAMED));
    }
    names.join(", ")
}

/// Says why `count` is too many; `None` if it is not.
pub fn within(what: &str, count: usize, most: usize) -> Option<String> {
    (count > most).then(|| format!("{count} {what} would be in force; a host keeps at most {most}"))
}

/// Refuses promises towards a vNIC of another place: the path between places keeps none.
fn across_places(by_place: &[Vec<Vnic>], places: &[Box<dyn Installed>]) -> Vec<String> {
    let mut place_of = HashMap::new();
    for (place, vnics) in by_place.iter().enumerate() {
        place_of.extend(vnics.iter().map(|v| (v.name.as_str(), place)));
    }
    let mut refusals = Vec::new();
    for (index, vnic) in by_place.iter().enumerate().flat_map(|(i, v)| v.iter().map(move |v| (i, v))) {
        for to in vnic.to.iter().filter(|_| promises(vnic)) {
            if let Some(&other) = place_of.get(to.as_str()).filter(|other| **other != index) {
                refusals.push(format!(
                    "vNIC {}: no promise holds from place {} to vNIC {to} at place {}; name vNICs of its own place in \
                     `to`, or leave tx.min and deadline out",
                    vnic.name,
                    places[index].name(),
                    places[other].name()
                ));
            }
        }
    }
    refusals
}

/// Returns the attachment's key in a contract.
fn kind(attach: &Attach) -> &'static str {
    match attach {
        Attach::VhostUser { .. } => "vhost-user",
        Attach::Tap { .. } => "tap",
        Attach::Netdev { .. } => "netdev",
        Attach::Vf { .. } => "vf",
    }
}
