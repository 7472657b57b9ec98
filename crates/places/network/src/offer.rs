//! From the newest View to tables for the agent: peers, and remotes behind them. Pure.
//!
//! ```text
//!  View: hosts, their vNICs ─┬▶ each is checked as a table of a file is ─▶ Offer: [remote.NAME], peers of uplinks
//!  uplinks of [controller] ──┤                                     └▶ left out, with the reasons
//!  vNICs here ───────────────┘ `to`: those that are here
//! ```
//!
//! A controller can be wrong: nothing of a View counts before it is checked, and no more than a bounded part of it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use tidegate_contract::check::Problem;
use tidegate_contract::{
    Bytes, Controller, Document, Envelope, GivenPeer, Located, Nanos, Peer, Rate, Remote, Segment, Uplink,
    Vnic,
};
use tidegate_controller_api::{self as api, Announced, View};
use tidegate_place::Offer;

/// Where these tables come from, in messages.
const ORIGIN: &str = "the network's controller";
/// Most peers and remotes that are taken from a View.
const PEERS: usize = 64;
const REMOTES: usize = 4096;
/// Most segments of a peer.
const SEGMENTS: usize = 1024;

/// Returns what a View tells this host. `is_complete` says whether other hosts had the time to register.
pub fn offer(
    view: &View,
    is_complete: bool,
    controller: &Controller,
    uplinks: &[Uplink],
    vnics: &[&Vnic],
) -> Offer {
    let mut left_out = BTreeMap::new();
    let mut document = Document::default();
    let mut hosts = BTreeSet::new();
    for there in view.peers.iter().take(PEERS) {
        match peer(there, controller, uplinks) {
            Ok(given) if hosts.insert(there.host.as_str()) => {
                document.peers.push(Located::without_line(given, ORIGIN));
            }
            Ok(_) => drop(left_out.insert(format!("[peer.{}]", there.host), "it is told twice".into())),
            Err(why) => drop(left_out.insert(format!("[peer.{}]", there.host), why)),
        }
    }
    let here: HashMap<&str, &Vnic> = vnics.iter().map(|vnic| (vnic.name.as_str(), *vnic)).collect();
    let mut names = BTreeSet::new();
    for there in view.remotes.iter().take(REMOTES) {
        let name = &there.vnic.name;
        let found = if here.contains_key(name.as_str()) {
            Err("it is a vNIC of this host".into())
        } else if !names.insert(name.as_str()) {
            Err("it is told twice".into())
        } else if there.plain {
            behind_nic(there, controller, uplinks).and_then(|peer| remote(there, peer, &HashMap::new()))
        } else if !hosts.contains(there.host.as_str()) {
            Err(format!("its host {} is no peer", there.host))
        } else {
            remote(there, &there.host, &here)
        };
        match found {
            Ok(remote) => document.remotes.push(Located::without_line(remote, ORIGIN)),
            Err(why) => drop(left_out.insert(format!("[remote.{name}]"), why)),
        }
    }
    for (what, all, most) in [("peers", view.peers.len(), PEERS), ("remotes", view.remotes.len(), REMOTES)] {
        if all > most {
            left_out.insert(what.into(), format!("{all} are told, and {most} are taken"));
        }
    }
    // The order in which a controller tells is no change.
    document.peers.sort_by(|a, b| a.value.peer.name.cmp(&b.value.peer.name));
    document.remotes.sort_by(|a, b| a.value.name.cmp(&b.value.name));
    Offer { host: controller.host.clone(), document, is_complete, left_out }
}

/// Returns a host as a peer of the first uplink of `[controller]` that can lead there.
fn peer(there: &api::Peer, controller: &Controller, uplinks: &[Uplink]) -> Result<GivenPeer, String> {
    let served =
        controller.uplinks.iter().filter_map(|name| uplinks.iter().find(|uplink| uplink.name == *name));
    let is_own = |local: std::net::IpAddr| local == there.address;
    if uplinks.iter().filter_map(|uplink| uplink.local).any(is_own) {
        return Err(format!("its address {} is this host's own", there.address));
    }
    let same_family = |uplink: &&Uplink| {
        uplink.local.is_some_and(|local| local.is_ipv4() == there.address.is_ipv4()) && !uplink.is_plain()
    };
    let Some(uplink) = served.clone().find(same_family) else {
        let family = if there.address.is_ipv4() { "IPv4" } else { "IPv6" };
        return Err(format!(
            "no uplink of [controller] has an {family} address, as its {} is",
            there.address
        ));
    };
    if uplink.port != there.port {
        return Err(format!(
            "it receives VXLAN at UDP port {}, and uplink {} sends to {}; write one port at all hosts",
            there.port, uplink.name, uplink.port
        ));
    }
    let segments: BTreeSet<Segment> = there
        .segments
        .iter()
        .take(SEGMENTS)
        .filter_map(|id| Segment::new(*id))
        .filter(|s| s.id() > 0)
        .collect();
    let peer = Peer {
        name: there.host.clone(),
        address: Some(there.address),
        segments: Some(segments.into_iter().collect()),
        latency: None,
        arrival_budget: Some(Nanos::new(there.arrival_budget)),
        stamps: true,
    };
    Uplink { peers: vec![peer.clone()], ..uplink.clone() }.check().map_err(|all| first_new(uplink, all))?;
    Ok(GivenPeer { uplink: uplink.name.clone(), peer })
}

/// Returns the first problem that is none of the uplink itself.
fn first_new(uplink: &Uplink, all: Vec<Problem>) -> String {
    let own = Uplink { peers: vec![], ..uplink.clone() }.check().err().unwrap_or_default();
    let new = all.into_iter().find(|problem| !own.contains(problem));
    new.map_or_else(
        || format!("uplink {} is not as it should be", uplink.name),
        |problem| problem.to_string(),
    )
}

/// Returns the network behind the plain NIC of `[controller]` that carries a vNIC's segment, as a peer's name.
fn behind_nic<'a>(
    there: &api::Remote,
    controller: &Controller,
    uplinks: &'a [Uplink],
) -> Result<&'a str, String> {
    let segment = there.vnic.segment;
    let carries = |peer: &&Peer| Segment::new(segment).is_some_and(|segment| peer.carries(segment));
    let plain = uplinks.iter().filter(|uplink| uplink.is_plain() && controller.serves(&uplink.name));
    let mut peers = plain.flat_map(|uplink| &uplink.peers);
    peers.find(carries).map(|peer| peer.name.as_str()).ok_or_else(|| {
        format!("it is behind a plain NIC, and none of [controller] here has VLAN {segment}; list it in segments there")
    })
}

/// Returns a vNIC of another host as a remote behind `peer`, whose promise is about the vNICs `here`.
fn remote(there: &api::Remote, peer: &str, here: &HashMap<&str, &Vnic>) -> Result<Remote, String> {
    let Announced { name, mac, segment, addresses, rate, burst, deadline, to } = &there.vnic;
    let segment = Segment::new(*segment)
        .filter(|segment| segment.id() > 0)
        .ok_or_else(|| format!("{segment} is no segment"))?;
    let hears = |name: &&String| {
        here.get(name.as_str()).is_some_and(|vnic| vnic.segment == segment && vnic.uses_uplinks())
    };
    let to: Vec<String> = to.iter().filter(hears).cloned().collect();
    let promise = deadline.filter(|_| !to.is_empty());
    let tx = match promise {
        None => Envelope::default(),
        Some(_) => Envelope { max: rate.and_then(Rate::from_bits), burst: burst.map(Bytes::new) },
    };
    let remote = Remote {
        name: name.clone(),
        mac: mac.parse().map_err(|error| format!("its MAC: {error}"))?,
        segment,
        peer: peer.to_owned(),
        addresses: addresses.clone(),
        tx,
        deadline: promise.map(Nanos::new),
        to: promise.map_or_else(Vec::new, |_| to),
    };
    match remote.check() {
        Ok(()) => Ok(remote),
        Err(problems) => {
            let all: Vec<String> = problems.iter().take(4).map(ToString::to_string).collect();
            Err(all.join("; "))
        }
    }
}

#[cfg(test)]
mod tests;
