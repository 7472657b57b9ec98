//! What the network's controller tells of other hosts, beside the tables of this one: these win.
//!
//! ```text
//!  offer: peers, remotes ─┐
//!  tables of all others ──┼▶ beside ─▶ tables that they leave, as owner controller:HOST
//!  [controller] ──────────┘       └──▶ differences, in words
//! ```
//!
//! Computed anew with each change of any owner: a vNIC that moves to this host takes the place of its remote.

use super::Contracts;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;
use tidegate_contract::{
    Controller, Document, Envelope, GivenPeer, Located, Mac, Peer, Remote, Segment, Table, Uplink, Vnic,
};
use tidegate_place::offer::CONTROLLER;

impl Contracts {
    /// Takes an offer in: all of what a controller tells host `host`, or without `is_complete` a part. Returns where other
    /// owners say something else.
    pub fn offer(&mut self, host: &str, document: Document, is_complete: bool) -> Vec<String> {
        let there = self.offers.entry(owner(host)).or_default();
        if is_complete {
            *there = document;
        } else {
            replace(&mut there.peers, document.peers);
            replace(&mut there.remotes, document.remotes);
        }
        self.set_offers_aside();
        self.settle_offers()
    }

    /// Returns what was offered to this host, and is in force where tables of others leave it.
    pub fn offered(&self, host: &str) -> Option<&Document> {
        self.offers.get(&owner(host))
    }

    /// Takes offered tables out of what is wanted, for a change of others.
    pub(super) fn set_offers_aside(&mut self) {
        for name in self.offers.keys() {
            self.programs.remove(name);
        }
    }

    /// Wants what is offered again, where others leave it. Returns where others say something else.
    pub(super) fn settle_offers(&mut self) -> Vec<String> {
        self.set_offers_aside();
        let controller = self.controller();
        let is_asked = |name: &str| controller.as_ref().is_some_and(|asked| owner(&asked.host) == name);
        self.offers.retain(|name, document| is_asked(name) && *document != Document::default());
        let Some(controller) = controller else { return vec![] };
        let mut differences = Vec::new();
        let mut left = BTreeMap::new();
        for (name, document) in &self.offers {
            let found = beside(document, &Others::of(self), &controller, &mut differences);
            if found != Document::default() {
                left.insert(name.clone(), found);
            }
        }
        self.programs.extend(left);
        differences
    }
}

fn owner(host: &str) -> String {
    format!("{CONTROLLER}:{host}")
}

fn replace<T: Table>(there: &mut Vec<Located<T>>, new: Vec<Located<T>>) {
    let names: HashSet<String> = new.iter().map(|table| table.value.name().into_owned()).collect();
    there.retain(|old| !names.contains(old.value.name().as_ref()));
    there.extend(new);
}

/// The tables of other owners, by what they are looked up by.
struct Others<'a> {
    vnics: HashMap<&'a str, &'a Vnic>,
    uplinks: HashMap<&'a str, &'a Uplink>,
    remotes: HashMap<&'a str, &'a Located<Remote>>,
    peers: HashMap<&'a str, (&'a Located<Uplink>, &'a Peer)>,
    macs: HashMap<(Segment, Mac), String>,
    addresses: HashSet<(Segment, IpAddr)>,
}

impl<'a> Others<'a> {
    fn of(contracts: &'a Contracts) -> Self {
        let vnics = || contracts.vnics().map(|(_, located)| &located.value);
        let remotes = || contracts.all::<Remote>().map(|(_, located)| located);
        let uplinks = || contracts.all::<Uplink>().map(|(_, located)| located);
        let mut macs = HashMap::new();
        for vnic in vnics() {
            let shared = vnic.allowed.shared.iter().filter_map(|address| address.mac());
            for mac in std::iter::once(vnic.mac).chain(vnic.allowed.macs.iter().copied()).chain(shared) {
                macs.entry((vnic.segment, mac)).or_insert_with(|| vnic.what());
            }
        }
        for remote in remotes() {
            macs.entry((remote.value.segment, remote.value.mac)).or_insert_with(|| remote.value.what());
        }
        let of_remote = |remote: &'a Located<Remote>| {
            remote.value.addresses.iter().map(|address| (remote.value.segment, *address))
        };
        let of_uplink = |uplink: &'a Located<Uplink>| {
            uplink.value.peers.iter().map(move |peer| (peer.name.as_str(), (uplink, peer)))
        };
        Self {
            vnics: vnics().map(|vnic| (vnic.name.as_str(), vnic)).collect(),
            uplinks: uplinks().map(|uplink| (uplink.value.name.as_str(), &uplink.value)).collect(),
            remotes: remotes().map(|remote| (remote.value.name.as_str(), remote)).collect(),
            peers: uplinks().flat_map(of_uplink).collect(),
            macs,
            addresses: remotes().flat_map(of_remote).collect(),
        }
    }
}

/// Returns the tables of an offer that `others` leave, with the names that these have; adds where they say something else.
fn beside(
    offer: &Document,
    others: &Others<'_>,
    controller: &Controller,
    differences: &mut Vec<String>,
) -> Document {
    let mut left = Document::default();
    // The peer of each host, as tables name it, and the uplink that leads there.
    let mut behind: HashMap<&str, (&Uplink, Peer)> = HashMap::new();
    for located in &offer.peers {
        let GivenPeer { uplink: name, peer } = &located.value;
        let Some(uplink) = others.uplinks.get(name.as_str()).filter(|_| controller.serves(name)) else {
            continue;
        };
        let same = uplink.peers.iter().find(|own| own.address == peer.address);
        let named = others.peers.get(peer.name.as_str());
        match (same, named) {
            (Some(own), _) => drop(behind.insert(&peer.name, (uplink, own.clone()))),
            (None, Some((of, own))) => {
                let address =
                    |peer: &Peer| peer.address.map_or_else(|| "none".into(), |address| address.to_string());
                differences.push(format!(
                    "peer {} has the address {} at {}, and {} by the network's controller; the file counts",
                    peer.name,
                    address(own),
                    of.place(),
                    address(peer)
                ));
                behind.insert(&peer.name, (&of.value, (*own).clone()));
            }
            (None, None) => {
                behind.insert(&peer.name, (uplink, peer.clone()));
                left.peers.push(located.clone());
            }
        }
    }
    // The network behind a plain NIC is the peer that the file has.
    for uplink in
        others.uplinks.values().filter(|uplink| uplink.is_plain() && controller.serves(&uplink.name))
    {
        for peer in &uplink.peers {
            behind.entry(&peer.name).or_insert_with(|| (uplink, peer.clone()));
        }
    }
    for located in &offer.remotes {
        let remote = &located.value;
        match beside_one(remote, others, &behind) {
            Ok(Some(value)) => left.remotes.push(Located { value, ..located.clone() }),
            Ok(None) => {}
            Err(difference) => differences.push(format!("{}: {difference}", remote.what())),
        }
    }
    left
}

/// Returns a remote as others leave it, `None` if they have it themselves; or the difference.
fn beside_one(
    remote: &Remote,
    others: &Others<'_>,
    behind: &HashMap<&str, (&Uplink, Peer)>,
) -> Result<Option<Remote>, String> {
    // It is this host's vNIC now, and the controller will know.
    if others.vnics.contains_key(remote.name.as_str()) {
        return Ok(None);
    }
    if others.uplinks.contains_key(remote.name.as_str()) {
        return Err("an uplink has its name".into());
    }
    if let Some(own) = others.remotes.get(remote.name.as_str()) {
        let Remote { mac, segment, .. } = own.value;
        return if (mac, segment) == (remote.mac, remote.segment) {
            Ok(None)
        } else {
            let there = own.place();
            Err(format!(
                "it has the MAC {mac} in segment {segment} at {there}, and {} in {} by the network's controller; the file \
                 counts",
                remote.mac, remote.segment
            ))
        };
    }
    if let Some(taken) = others.macs.get(&(remote.segment, remote.mac)) {
        let Remote { mac, segment, .. } = remote;
        return Err(format!("its MAC {mac} in segment {segment} is that of {taken}"));
    }
    let Some((uplink, peer)) = behind.get(remote.peer.as_str()) else {
        return Err(format!("its host {} is behind no uplink of [controller]", remote.peer));
    };
    if !peer.carries(remote.segment) {
        return Err(format!("peer {} does not carry its segment {}", peer.name, remote.segment));
    }
    let hears = |name: &String| {
        let vnic = others.vnics.get(name.as_str());
        vnic.is_some_and(|vnic| vnic.segment == remote.segment && vnic.uses_uplinks())
    };
    let is_free = |address: &IpAddr| !others.addresses.contains(&(remote.segment, *address));
    let mut left = Remote {
        peer: peer.name.clone(),
        addresses: remote.addresses.iter().copied().filter(is_free).collect(),
        to: remote.to.iter().filter(|name| hears(name)).cloned().collect(),
        ..remote.clone()
    };
    if left.to.is_empty() || left.deadline.is_some_and(|deadline| deadline <= uplink.arrival_budget) {
        left = without_promise(left);
    }
    Ok(Some(left))
}

/// Returns a remote whose frames are best effort.
pub fn without_promise(remote: Remote) -> Remote {
    Remote { tx: Envelope::default(), deadline: None, to: vec![], ..remote }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::store::Owner;
    use tidegate_contract::parse;

    /// A host that asks a controller; more keys of its uplink may follow.
    pub const HOST: &str = r#"
[controller]
url = ["http://127.0.0.1:1"]
host = "h1"
token-file = "/etc/token"
uplinks = ["net0"]

[uplink.net0]
local = "192.0.2.1"
rate = "10gbit"
"#;

    /// Returns what a controller tells of a host with an uplink of that address.
    pub fn told_peer(uplink: &str, name: &str, address: &str) -> Located<GivenPeer> {
        let peer = Peer {
            name: name.into(),
            address: address.parse().ok(),
            segments: None,
            latency: None,
            arrival_budget: None,
            stamps: true,
        };
        Located::without_line(GivenPeer { uplink: uplink.into(), peer }, "told")
    }

    const PEERS: &str = r#"
peer.second = { address = "192.0.2.2", segments = [1] }

[uplink.net1]
local = "192.0.2.11"
rate = "10gbit"
peer.h4.address = "192.0.2.4"

[remote.own]
mac = "52:54:00:00:00:07"
segment = 1
peer = "second"
addresses = ["10.0.0.7"]
"#;

    fn told(peers: &[(&str, &str, &str)], remotes: &str) -> Document {
        let mut document =
            if remotes.is_empty() { Document::default() } else { parse(remotes, "told").unwrap() };
        document.peers =
            peers.iter().map(|(uplink, name, address)| told_peer(uplink, name, address)).collect();
        document
    }

    fn remote(name: &str, number: u8, peer: &str, line: &str) -> String {
        format!(
            "[remote.{name}]\nmac = \"52:54:00:00:00:{number:02x}\"\nsegment = 1\npeer = \"{peer}\"\n{line}\n"
        )
    }

    #[test]
    fn tables_of_others_win_and_give_their_names() {
        let mut contracts = Contracts::default();
        let net = parse(&format!("{HOST}{PEERS}"), "net.toml").unwrap();
        contracts.merge(&Owner::Api, net, false).unwrap();
        let peers = [
            ("net0", "h2", "192.0.2.2"),
            ("net0", "h3", "192.0.2.3"),
            ("net0", "h4", "192.0.2.9"),
            ("net1", "h5", "192.0.2.5"),
        ];
        let remotes = [
            remote("b2", 1, "h2", "addresses = [\"10.0.0.7\", \"10.0.0.8\"]"),
            remote("b3", 2, "h3", ""),
            remote("b5", 3, "h5", ""),
            remote("own", 8, "h3", ""),
            remote("net0", 4, "h3", ""),
            remote("twin", 7, "h3", ""),
            remote("b6", 5, "h2", "").replace("segment = 1", "segment = 6"),
        ];
        let differences = contracts.offer("h1", told(&peers, &remotes.concat()), true);
        let network = contracts.network();
        let names: Vec<_> = network.uplinks[0].peers.iter().map(|peer| peer.name.as_str()).collect();
        assert_eq!(names, ["second", "h3"]);
        assert_eq!(network.uplinks[1].peers.len(), 1, "net1 is not the controller's");
        let of: Vec<_> = network.remotes.iter().map(|r| (r.name.as_str(), r.peer.as_str())).collect();
        assert_eq!(of, [("b2", "second"), ("b3", "h3"), ("own", "second")]);
        assert_eq!(network.remotes[0].addresses, ["10.0.0.8".parse::<IpAddr>().unwrap()]);
        for wanted in [
            "peer h4 has the address 192.0.2.4 at net.toml:",
            "[remote.b5]: its host h5 is behind no uplink of [controller]",
            "[remote.own]: it has the MAC 52:54:00:00:00:07 in segment 1 at net.toml:",
            "[remote.net0]: an uplink has its name",
            "[remote.twin]: its MAC 52:54:00:00:00:07 in segment 1 is that of [remote.own]",
            "[remote.b6]: peer second does not carry its segment 6",
        ] {
            assert!(differences.iter().any(|said| said.starts_with(wanted)), "{wanted}: {differences:#?}");
        }
        assert_eq!(differences.len(), 6);
        assert!(contracts.merged().is_ok());
        let saved = serde_json::to_string(&contracts).unwrap();
        assert_eq!(serde_json::from_str::<Contracts>(&saved).unwrap(), contracts);

        // A part replaces what it names.
        let part = remote("b3", 9, "h3", "");
        contracts.offer("h1", told(&[], &part), false);
        let b3 = contracts.network().remotes[1].mac.to_string();
        assert_eq!((b3.as_str(), contracts.network().remotes.len()), ("52:54:00:00:00:09", 3));
        // What another host was told is nothing here.
        contracts.offer("h9", told(&peers, &part), true);
        assert_eq!(contracts.offers.len(), 1);
    }

    #[test]
    fn a_remote_behind_a_plain_nic_is_behind_the_peer_of_the_file() {
        let lan = "[uplink.lan0]\nkind = \"packet\"\ndevice = \"eth1\"\nrate = \"1gbit\"\npeer.lan.segments = [1]\n";
        let without = format!("{HOST}{PEERS}");
        let net = without.replace("[\"net0\"]", "[\"net0\", \"lan0\"]");
        let offered = |net: &str, remotes: &str| {
            let mut contracts = Contracts::default();
            let text = format!("{net}\n{lan}");
            contracts.merge(&Owner::Api, parse(&text, "net.toml").unwrap(), false).unwrap();
            let differences = contracts.offer("h1", told(&[], remotes), true);
            let remotes =
                contracts.network().remotes.iter().map(|r| (r.name.clone(), r.peer.clone())).collect();
            (differences, remotes)
        };
        let (differences, remotes): (Vec<String>, Vec<(String, String)>) =
            offered(&net, &remote("b1", 1, "lan", ""));
        assert_eq!(differences, Vec::<String>::new());
        assert!(remotes.contains(&("b1".into(), "lan".into())), "{remotes:?}");
        let (differences, _) = offered(&without, &remote("b1", 1, "lan", ""));
        assert_eq!(differences, ["[remote.b1]: its host lan is behind no uplink of [controller]"]);
        let (differences, _) =
            offered(&net, &remote("b1", 1, "lan", "").replace("segment = 1", "segment = 2"));
        assert_eq!(differences, ["[remote.b1]: peer lan does not carry its segment 2"]);
    }
}
