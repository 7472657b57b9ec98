//! From the terms of a path to a request: the names of hosts are the controller's, the source port the switch's.
//!
//! ```text
//!  PathTerms, View: hosts, their arrival budgets ─┐
//!  source port of the pair ───────────────────────┴▶ PathRequest, or Unready: what is missing
//! ```
//!
//! Frames of a plain NIC have no source port, and their far host has no arrival budget: nothing there promises.

use std::collections::HashMap;
use std::net::IpAddr;
use tidegate_contract::Nanos;
use tidegate_contract::network_paths::{PRIORITY, PathTerms, Seen};
use tidegate_controller_api::{EthernetKey, Key, PathRequest, Peer, Remote, UdpKey, View};

/// Why nothing can be asked for yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unready {
    /// It may come: the far host, or the port.
    Waiting(String),
    /// It needs another contract.
    Impossible(String),
}

/// The hosts of a View, by what they are looked up by.
#[derive(Clone, Debug, Default)]
pub struct Hosts {
    /// Host and arrival budget (ns), by address.
    peers: HashMap<IpAddr, (String, u64)>,
    /// Host of each vNIC.
    remotes: HashMap<String, String>,
}

impl Hosts {
    /// Reads them.
    pub fn of(view: &View) -> Self {
        let peer = |peer: &Peer| (peer.address, (peer.host.clone(), peer.arrival_budget));
        let remote = |remote: &Remote| (remote.vnic.name.clone(), remote.host.clone());
        Self {
            peers: view.peers.iter().map(peer).collect(),
            remotes: view.remotes.iter().map(remote).collect(),
        }
    }

    /// Returns whether both say the same of the far host of a path.
    pub fn has_same(&self, other: &Self, terms: &PathTerms) -> bool {
        let peer = |hosts: &Self| match &terms.seen {
            Seen::Outer { target, .. } => hosts.peers.get(target).cloned(),
            Seen::Tagged { .. } => None,
        };
        peer(self) == peer(other) && self.remotes.get(&terms.remote) == other.remotes.get(&terms.remote)
    }
}

/// Returns the request of host `source`.
pub fn request(
    source: &str,
    terms: &PathTerms,
    hosts: &Hosts,
    port: Option<u16>,
) -> Result<PathRequest, Unready> {
    let peer = match &terms.seen {
        Seen::Outer { target, .. } => hosts.peers.get(target),
        Seen::Tagged { .. } => None,
    };
    let remote = hosts.remotes.get(&terms.remote);
    let target = match (remote, peer) {
        // A vNIC that moves is where the controller says.
        (Some(host), _) | (None, Some((host, _))) => host,
        (None, None) => {
            return Err(Unready::Waiting(match &terms.seen {
                Seen::Outer { target, .. } => format!(
                    "no host with the address {target} of peer {} has registered at the controller",
                    terms.peer
                ),
                Seen::Tagged { vlan, .. } => format!(
                    "no host has announced {} behind a plain NIC with VLAN {vlan} to the controller",
                    terms.remote
                ),
            }));
        }
    };
    let needed = peer.map_or(terms.arrival, |(_, budget)| Nanos::new(*budget));
    let budget = terms.budget_with(needed).ok_or_else(|| {
        Unready::Impossible(format!(
            "host {target} needs {needed} after a frame's arrival, and this host's configuration says {}: nothing of the \
             network's part of {} is left; set arrival-budget of peer {} to {needed}",
            terms.arrival, terms.budget, terms.peer
        ))
    })?;
    let key = key(&terms.seen, port).ok_or_else(|| {
        Unready::Waiting("the switch has given its frames no source port of their own yet".into())
    })?;
    Ok(PathRequest {
        vnic: terms.vnic.clone(),
        remote: terms.remote.clone(),
        source: source.to_owned(),
        target: target.clone(),
        key,
        dscp: terms.dscp,
        rate: terms.rate.bits(),
        burst: terms.burst.get(),
        smallest_frame: terms.smallest_frame.get(),
        largest_frame: terms.largest_frame.get(),
        budget: budget.get(),
    })
}

/// Returns the key of frames from the source port `port`; `None` without a port that they need.
pub fn key(seen: &Seen, port: Option<u16>) -> Option<Key> {
    let key = match *seen {
        Seen::Outer { source, target, target_port } => {
            Key::Udp(UdpKey { source, target, source_port: port?, target_port })
        }
        Seen::Tagged { vlan, source_mac, target_mac } => Key::Ethernet(EthernetKey {
            vlan,
            priority: PRIORITY,
            source_mac: source_mac.to_string().to_lowercase(),
            target_mac: target_mac.to_string().to_lowercase(),
        }),
    };
    Some(key)
}
