//! Checks whether a set of contracts can be in force, before anything is touched.

use super::between::{Between, promises};
use super::keys::{KnownKeys, ReadKeys, Reading};
use crate::commands::ApplyError;
use crate::guest::limits::SoftLimits;
use crate::store::Contracts;
use std::collections::{BTreeMap, HashMap, HashSet};
use tidegate_contract::vnic::UPLINK;
use tidegate_contract::{
    Admission, ContractSet, Document, Host, NotAdmissible, Remote, SegmentKeys, Uplink, Vnic, admit,
};
use tidegate_place::{Installed, Network};

/// Most vNICs of one host, at all places together.
pub const MOST_VNICS: usize = 8192;
/// Most remote vNICs of one host.
pub const MOST_REMOTES: usize = 16_384;
/// Most segments with keys of one host: a file is read for each.
pub const MOST_KEYS: usize = 1024;
/// Most promises of one host: each is computed with every change, and shown with its derivation.
pub const MOST_PROMISES: usize = 16_384;

/// Contracts that keep every rule and fit.
#[derive(Debug)]
pub struct Checked {
    pub host: Host,
    pub network: Network,
    /// The contracts of each place, in the order of the places, under the guests' soft limits.
    pub by_place: Vec<Vec<Vnic>>,
    /// All contracts, as written.
    pub written: Vec<Vnic>,
    pub admission: Admission,
    /// The places' notes, by vNIC.
    pub notes: BTreeMap<String, Vec<String>>,
    /// The keys of segments, in [`Network::keys`], too.
    pub keys: KnownKeys,
    /// Key files that cannot be read.
    pub unread_keys: Vec<String>,
}

/// Checks the rules between contracts, capabilities and admission, in this order. Admission ignores soft limits. An
/// unreadable key file refuses a change ([`Reading::Fresh`]), and no repair of contracts in force.
pub fn check(
    contracts: &Contracts,
    soft: &SoftLimits,
    places: &[Box<dyn Installed>],
    (known, reading): (&KnownKeys, Reading),
) -> Result<Checked, ApplyError> {
    within_bounds(contracts)?;
    let Document { host, vnics, remotes, .. } = contracts.merged().map_err(ApplyError::Invalid)?;
    let host = host.map(|h| h.value).unwrap_or_default();
    let mut by_place = vec![Vec::new(); places.len()];
    let mut notes = BTreeMap::new();
    let mut refusals = Vec::new();
    let ReadKeys { known: keys, refusals: unread, notes: mut unread_keys } =
        known.read(contracts.all::<SegmentKeys>().map(|(_, located)| located), reading);
    match reading {
        Reading::Fresh => refusals.extend(unread),
        Reading::Unknown => unread_keys.extend(unread),
    }
    let between = Between::of(contracts);
    let (mut refused_vnics, mut refused_remotes) = (HashSet::new(), HashSet::new());
    for located in &vnics {
        let vnic = &located.value;
        let place = places.iter().enumerate().find_map(|(i, p)| Some((i, p.capabilities(&vnic.attach)?)));
        let Some((index, capabilities)) = place else {
            refusals.push(format!(
                "vNIC {} ({}): no place on this host keeps an attachment of kind {}",
                vnic.name,
                located.place(),
                vnic.attach.kind()
            ));
            continue;
        };
        let mut unable = |what: &str| {
            refusals.push(format!(
                "vNIC {} ({}): place {} cannot promise {what} for an attachment of kind {}",
                vnic.name,
                located.place(),
                places[index].name(),
                vnic.attach.kind()
            ));
        };
        if vnic.is_realtime() && !capabilities.deadline {
            unable("a deadline");
        }
        if vnic.tx.min.is_some() && !capabilities.min {
            unable("tx.min");
        }
        if let Some(refusal) = between.refuses_vnic(located, places[index].name(), &capabilities) {
            refused_vnics.insert(vnic.name.as_str());
            refusals.push(refusal);
        }
        notes.insert(vnic.name.clone(), places[index].notes(vnic));
        by_place[index].push(soft.in_force(vnic));
    }
    for remote in &remotes {
        if let Some(refusal) = between.refuses_remote(remote) {
            refused_remotes.insert(remote.value.name.as_str());
            refusals.push(refusal);
        }
    }
    refusals.extend(across_places(&by_place, places));
    for vnics in &mut by_place {
        vnics.sort_by(|a, b| a.name.cmp(&b.name));
    }
    let all: Vec<Vnic> = vnics.iter().map(|v| v.value.clone()).collect();
    let network = Network { keys: keys.keys(), ..contracts.network() };
    let Network { uplinks, remotes, .. } = &network;
    let admission = admit(&ContractSet { host: &host, vnics: &all, uplinks, remotes });
    let admission = match admission {
        Ok(admission) => admission,
        Err(refused) => {
            // Advice about promises that are refused anyway would not help: all of a remote, and a vNIC's at uplinks.
            let is_uplink = |egress: &str| egress == UPLINK || uplinks.iter().any(|u| u.name == egress);
            let would_help = |r: &&NotAdmissible| {
                let at_uplink = is_uplink(r.egress());
                let is_refused =
                    |name: &str| refused_remotes.contains(name) || at_uplink && refused_vnics.contains(name);
                !r.vnics().iter().all(|name| is_refused(name))
            };
            refusals.extend(refused.iter().filter(would_help).map(ToString::to_string));
            Admission::default()
        }
    };
    if refusals.is_empty() {
        Ok(Checked { host, network, by_place, written: all, admission, notes, keys, unread_keys })
    } else {
        Err(ApplyError::Refused(refusals))
    }
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
    let what = "promises (deadlines and minima, each once for every receiver in its `to`)";
    let refusals: Vec<String> = [
        within("vNICs", all().count(), MOST_VNICS),
        within("remote vNICs", remotes().count(), MOST_REMOTES),
        within("segments with keys", contracts.all::<SegmentKeys>().count(), MOST_KEYS),
        within(what, outgoing + incoming, MOST_PROMISES),
    ]
    .into_iter()
    .flatten()
    .collect();
    if refusals.is_empty() { Ok(()) } else { Err(ApplyError::Refused(refusals)) }
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
