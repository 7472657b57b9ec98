//! Checks whether a set of contracts can be in force, before anything is touched.

use crate::commands::ApplyError;
use crate::guest::limits::SoftLimits;
use crate::store::Contracts;
use std::collections::{BTreeMap, HashMap, HashSet};
use tidegate_contract::vnic::UPLINK;
use tidegate_contract::{Admission, Document, Host, NotAdmissible, Vnic, admit};
use tidegate_place::Installed;

/// Most vNICs of one host, at all places together.
pub const MOST_VNICS: usize = 8192;
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
    let Document { host, vnics } = contracts.merged().map_err(ApplyError::Invalid)?;
    let host = host.map(|h| h.value).unwrap_or_default();
    let mut by_place = vec![Vec::new(); places.len()];
    let mut notes = BTreeMap::new();
    let mut refusals = Vec::new();
    let mut no_uplink = HashSet::new();
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
        if !capabilities.uplink
            && vnic.to.iter().any(|to| to == UPLINK)
            && (vnic.is_realtime() || vnic.tx.min.is_some())
        {
            no_uplink.insert(vnic.name.clone());
            refusals.push(format!(
                "vNIC {} ({}): no place on this host keeps a promise towards the uplink; name vNICs of this host in \
                 `to`, or leave tx.min and deadline out",
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
    let admission = match admit(&host, &all) {
        Ok(admission) => admission,
        Err(refused) => {
            // A capacity for the uplink would not help vNICs to which no place can promise anything there.
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

/// Refuses more vNICs and promises than a host keeps: they bound the time of each look.
fn within_bounds(contracts: &Contracts) -> Result<(), ApplyError> {
    let all = || contracts.vnics().map(|(_, located)| &located.value);
    let promising = all().filter(|v| v.is_realtime() || v.tx.min.is_some());
    let promises = "promises (deadlines and minima, each once for every place in its `to`)";
    let refusals: Vec<String> = [
        within("vNICs", all().count(), MOST_VNICS),
        within(promises, promising.map(|v| v.to.len()).sum(), MOST_PROMISES),
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
    let promising = |v: &&Vnic| v.is_realtime() || v.tx.min.is_some();
    let mut refusals = Vec::new();
    for (index, vnic) in by_place.iter().enumerate().flat_map(|(i, v)| v.iter().map(move |v| (i, v))) {
        for to in vnic.to.iter().filter(|_| promising(&vnic)) {
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
