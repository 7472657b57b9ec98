//! Checks whether a set of contracts can be in force, before anything is touched.

use crate::commands::ApplyError;
use crate::guest::limits::SoftLimits;
use crate::store::Contracts;
use std::collections::{BTreeMap, HashMap, HashSet};
use tidegate_contract::vnic::UPLINK;
use tidegate_contract::{
    Admission, ContractSet, Document, Host, Located, NotAdmissible, Remote, Table, Uplink, Vnic, admit,
};
use tidegate_place::{Capabilities, Installed, Network};

/// Most vNICs of one host, at all places together.
pub const MOST_VNICS: usize = 8192;
/// Most remote vNICs of one host.
pub const MOST_REMOTES: usize = 16_384;
/// Most promises of one host: each is computed with every change, and shown with its derivation.
pub const MOST_PROMISES: usize = 16_384;

/// Why no deadline holds between hosts: a frame that comes from another host is not ordered by its deadline here.
const NO_STAMPS: &str = "deadlines between hosts need stamps, which are not built yet";

/// Contracts that keep every rule and fit.
#[derive(Debug)]
pub struct Checked {
    pub host: Host,
    pub network: Network,
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
    let Document { host, vnics, remotes, .. } = contracts.merged().map_err(ApplyError::Invalid)?;
    let host = host.map(|h| h.value).unwrap_or_default();
    let mut by_place = vec![Vec::new(); places.len()];
    let mut notes = BTreeMap::new();
    let mut refusals = Vec::new();
    let (mut refused_vnics, mut refused_remotes) = (HashSet::new(), HashSet::new());
    let distant: HashSet<&str> = remotes.iter().map(|r| r.value.name.as_str()).collect();
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
        if let Some(refusal) = beyond_this_host(located, &distant, places[index].name(), &capabilities) {
            refused_vnics.insert(vnic.name.as_str());
            refusals.push(refusal);
        }
        notes.insert(vnic.name.clone(), places[index].notes(vnic));
        by_place[index].push(soft.in_force(vnic));
    }
    for remote in &remotes {
        if let Some(refusal) = from_other_host(remote) {
            refused_remotes.insert(remote.value.name.as_str());
            refusals.push(refusal);
        }
    }
    refusals.extend(across_places(&by_place, places));
    for vnics in &mut by_place {
        vnics.sort_by(|a, b| a.name.cmp(&b.name));
    }
    let all: Vec<Vnic> = vnics.iter().map(|v| v.value.clone()).collect();
    let network = contracts.network();
    let Network { uplinks, remotes } = &network;
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
        Ok(Checked { host, network, by_place, admission, notes })
    } else {
        Err(ApplyError::Refused(refusals))
    }
}

/// Returns whether a vNIC has a promise for each place in its `to`.
fn promises(vnic: &Vnic) -> bool {
    vnic.is_realtime() || vnic.tx.min.is_some()
}

/// Says which promise of a vNIC towards other hosts its place cannot keep; `None` if it keeps all, or if there are none.
/// `distant` are the names of vNICs of other hosts.
fn beyond_this_host(
    vnic: &Located<Vnic>,
    distant: &HashSet<&str>,
    place: &str,
    capabilities: &Capabilities,
) -> Option<String> {
    let at = vnic.place();
    let vnic = &vnic.value;
    let to = vnic.to.iter().find(|to| *to == UPLINK || distant.contains(to.as_str()))?;
    let receiver = if to == UPLINK { "the uplink".into() } else { format!("{to}, a vNIC of another host") };
    let name = &vnic.name;
    if promises(vnic) && !capabilities.uplink {
        Some(format!(
            "vNIC {name} ({at}): place {place} keeps no promise towards {receiver}; name vNICs of this host in `to`, \
             or leave tx.min and deadline out"
        ))
    } else if vnic.is_realtime() && capabilities.deadline {
        Some(format!(
            "vNIC {name} ({at}): no deadline holds towards {receiver}: {NO_STAMPS}; leave the deadline out, or name \
             vNICs of this host in `to`"
        ))
    } else {
        None
    }
}

/// Says that the deadline of a vNIC of another host cannot be kept here; `None` if it has none.
fn from_other_host(remote: &Located<Remote>) -> Option<String> {
    remote.value.deadline.map(|_| {
        format!(
            "remote {} ({}): its deadline does not hold at this host: {NO_STAMPS}; leave its deadline and `to` out",
            remote.value.name,
            remote.place()
        )
    })
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
        within(what, outgoing + incoming, MOST_PROMISES),
    ]
    .into_iter()
    .flatten()
    .collect();
    if refusals.is_empty() { Ok(()) } else { Err(ApplyError::Refused(refusals)) }
}

/// Says of each key of `document` that no place uses it yet.
pub fn without_effect(document: &Document) -> Vec<String> {
    if document.segments.is_empty() {
        return vec![];
    }
    let what = named(&document.segments);
    vec![format!("{what}: frames between hosts carry no stamp yet; the agent does not read the key files")]
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

#[cfg(test)]
mod tests {
    use super::*;

    const NET: &str = r#"
[uplink.net0]
local = "192.0.2.1"
rate = "1gbit"
peer.host2.address = "192.0.2.2"

[remote.plc9]
mac = "52:54:00:00:00:09"
segment = 1
peer = "host2"
"#;

    fn parsed(text: &str) -> Document {
        tidegate_contract::parse(text, "t.toml").unwrap_or_else(|errors| panic!("{errors}"))
    }

    /// Returns the refusal of a vNIC whose table has also `lines`.
    fn refusal(lines: &str, capabilities: &Capabilities) -> Option<String> {
        let vnic =
            "[vnic.a]\nattach = { vhost-user = \"/run/a.sock\" }\nmac = \"52:54:00:00:00:01\"\nsegment = 1\n";
        let document = parsed(&format!("{vnic}{lines}"));
        beyond_this_host(&document.vnics[0], &HashSet::from(["plc9"]), "switch", capabilities)
    }

    const ALL: Capabilities = Capabilities { deadline: true, min: true, uplink: true, notes: vec![] };

    #[test]
    fn deadlines_towards_other_hosts_are_refused_and_minima_are_not() {
        let with = |to: &str, deadline: &str| {
            let tx = "tx = { max = \"2mbit\", min = \"1mbit\", burst = \"2kB\" }";
            format!("{tx}\n{deadline}\nto = [{to}]\n")
        };
        let deadline = "deadline = \"1ms\"";
        assert_eq!(
            refusal(&with("\"b\", \"plc9\"", deadline), &ALL).as_deref(),
            Some(
                "vNIC a (t.toml:1): no deadline holds towards plc9, a vNIC of another host: deadlines between hosts \
                 need stamps, which are not built yet; leave the deadline out, or name vNICs of this host in `to`"
            )
        );
        let towards_uplink = refusal(&with("\"uplink\"", deadline), &ALL).unwrap();
        assert!(towards_uplink.contains("no deadline holds towards the uplink: "), "{towards_uplink}");
        for kept in [with("\"uplink\"", ""), with("\"plc9\"", ""), with("\"b\"", deadline)] {
            assert_eq!(refusal(&kept, &ALL), None, "{kept}");
        }
        // The place has said already that it keeps no deadline.
        let nic = Capabilities { deadline: false, ..ALL };
        assert_eq!(refusal(&with("\"uplink\"", deadline), &nic), None);
        let kernel = Capabilities { uplink: false, ..ALL };
        for line in ["", deadline] {
            let text = refusal(&with("\"uplink\"", line), &kernel).unwrap();
            assert!(text.contains("place switch keeps no promise towards the uplink; name vNICs"), "{text}");
        }
        assert_eq!(refusal("to = [\"uplink\"]", &kernel), None, "it promises nothing");
    }

    #[test]
    fn a_deadline_of_a_remote_is_refused() {
        assert_eq!(from_other_host(&parsed(NET).remotes[0]), None);
        let tx = "tx = { max = \"1mbit\", burst = \"2kB\" }\ndeadline = \"1ms\"\nto = [\"a\"]\n";
        let document = parsed(&format!("{NET}{tx}"));
        assert_eq!(
            from_other_host(&document.remotes[0]).as_deref(),
            Some(
                "remote plc9 (t.toml:7): its deadline does not hold at this host: deadlines between hosts need stamps, \
                 which are not built yet; leave its deadline and `to` out"
            )
        );
    }

    #[test]
    fn keys_of_segments_have_no_effect_yet() {
        assert_eq!(without_effect(&parsed(NET)), [""; 0]);
        let keys: String = (1..=6).map(|id| format!("[segment.{id}]\nkey-file = \"/k{id}\"\n")).collect();
        assert_eq!(
            without_effect(&parsed(&keys)),
            [
                "[segment.1], [segment.2], [segment.3], [segment.4], and 2 more: frames between hosts carry no stamp \
                 yet; the agent does not read the key files"
            ]
        );
    }
}
