//! The contracts that are judged together, and the egress where each promise counts.
//!
//! ```text
//!  vNIC, to = ["plc2"]   ──▶ vNIC plc2
//!        to = ["plc9"]   ──▶ uplink of plc9's peer
//!        to = ["uplink"] ──▶ each uplink that carries its segment
//!  remote, to = ["plc1"] ──▶ vNIC plc1
//! ```

use crate::check::may_come;
use crate::reach::Reach;
use crate::{Attach, Host, Peer, Remote, UPLINK, Uplink, Vnic};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// The contracts of a host, which are judged together.
#[derive(Clone, Copy, Debug)]
pub struct ContractSet<'a> {
    /// The `[host]` table.
    pub host: &'a Host,
    /// The vNICs.
    pub vnics: &'a [Vnic],
    /// The ways to other hosts.
    pub uplinks: &'a [Uplink],
    /// vNICs of other hosts.
    pub remotes: &'a [Remote],
}

impl<'a> ContractSet<'a> {
    /// Makes the set of a host without uplinks.
    pub const fn local(host: &'a Host, vnics: &'a [Vnic]) -> Self {
        Self { host, vnics, uplinks: &[], remotes: &[] }
    }
}

/// An egress with promises.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// A vNIC, or a name without one.
    Vnic,
    /// An uplink.
    Uplink,
    /// The uplink of a vNIC that no uplink serves.
    None,
}

/// A sender with a promise at one egress.
pub(super) enum Sender<'a> {
    /// To a vNIC of this host.
    Vnic(&'a Vnic),
    /// Over an uplink, to these peers.
    Beyond(&'a Vnic, Vec<&'a Peer>),
    /// Of another host, whose peer no uplink has.
    Lost(&'a Remote),
    /// Of another host, over the uplink of its peer.
    Remote(&'a Remote, &'a Uplink),
}

impl<'a> Sender<'a> {
    pub(super) fn name(&self) -> &'a str {
        match self {
            Self::Vnic(vnic) | Self::Beyond(vnic, _) => &vnic.name,
            Self::Remote(remote, _) | Self::Lost(remote) => &remote.name,
        }
    }
}

/// Returns the names of senders, in their order.
pub(super) fn names(senders: &[Sender<'_>]) -> Vec<String> {
    senders.iter().map(|sender| sender.name().to_owned()).collect()
}

pub(super) struct Routes<'a> {
    vnics: &'a [Vnic],
    remotes: &'a [Remote],
    pub uplinks: Vec<Reach<'a>>,
    remote_by_name: HashMap<&'a str, &'a Remote>,
    vnic_by_name: HashMap<&'a str, &'a Vnic>,
    /// Each peer by name, and the index of its uplink.
    peers: HashMap<&'a str, (usize, &'a Peer)>,
}

impl<'a> Routes<'a> {
    pub(super) fn new(set: &ContractSet<'a>) -> Self {
        let peers = set.uplinks.iter().enumerate();
        let peers = peers.flat_map(|(i, uplink)| uplink.peers.iter().map(move |p| (p.name.as_str(), (i, p))));
        Self {
            vnics: set.vnics,
            remotes: set.remotes,
            uplinks: set.uplinks.iter().map(Reach::new).collect(),
            remote_by_name: set.remotes.iter().map(|r| (r.name.as_str(), r)).collect(),
            // Of two vNICs with one name, which no document has, the first counts.
            vnic_by_name: set.vnics.iter().rev().map(|v| (v.name.as_str(), v)).collect(),
            peers: peers.collect(),
        }
    }

    pub(super) fn vnic(&self, name: &str) -> Option<&'a Vnic> {
        self.vnic_by_name.get(name).copied()
    }

    pub(super) fn uplink(&self, name: &str) -> Option<&Reach<'a>> {
        self.uplinks.iter().find(|reach| reach.uplink.name == name)
    }

    /// Returns the senders by egress, vNICs first, each in their order.
    pub(super) fn promises(&self) -> BTreeMap<(&'a str, Kind), Vec<Sender<'a>>> {
        let mut egresses = BTreeMap::<_, Vec<Sender<'_>>>::new();
        let mut add = |name, kind, sender| egresses.entry((name, kind)).or_default().push(sender);
        // The link of a function's NIC keeps what the function is promised.
        let by_nic = |v: &&Vnic| matches!(v.attach, Attach::Vf { .. });
        let promising = |v: &&Vnic| (v.is_realtime() || v.tx.min.is_some()) && !by_nic(v);
        for vnic in self.vnics.iter().filter(promising) {
            let mut beyond = BTreeMap::<usize, Vec<&Peer>>::new();
            for to in vnic.to.iter().collect::<BTreeSet<_>>() {
                if to == UPLINK {
                    if !self.everywhere(vnic, &mut beyond) && !self.may_come(vnic) {
                        add(UPLINK, Kind::None, Sender::Vnic(vnic));
                    }
                    continue;
                }
                match self.remote_by_name.get(to.as_str()).filter(|_| self.vnic(to).is_none()) {
                    None if self.vnic(to).is_none() && self.may_come(vnic) => {}
                    None => add(to, Kind::Vnic, Sender::Vnic(vnic)),
                    Some(remote) => match self.peers.get(remote.peer.as_str()) {
                        Some((uplink, peer)) if vnic.uses_uplinks() => {
                            beyond.entry(*uplink).or_default().push(peer);
                        }
                        _ => add(UPLINK, Kind::None, Sender::Vnic(vnic)),
                    },
                }
            }
            for (uplink, peers) in beyond {
                add(&self.uplinks[uplink].uplink.name, Kind::Uplink, Sender::Beyond(vnic, peers));
            }
        }
        for remote in self.remotes.iter().filter(|remote| remote.deadline.is_some()) {
            match self.peers.get(remote.peer.as_str()) {
                None => add(UPLINK, Kind::None, Sender::Lost(remote)),
                Some((uplink, _)) => {
                    for to in remote.to.iter().collect::<BTreeSet<_>>() {
                        add(to, Kind::Vnic, Sender::Remote(remote, self.uplinks[*uplink].uplink));
                    }
                }
            }
        }
        egresses
    }

    /// Returns whether a controller may still tell where a receiver of `vnic` is; nothing is promised before.
    fn may_come(&self, vnic: &Vnic) -> bool {
        may_come(self.uplinks.iter().any(|reach| reach.uplink.controlled), vnic)
    }

    /// Adds every peer that the segment of `vnic` reaches; returns whether there is one.
    fn everywhere(&self, vnic: &Vnic, beyond: &mut BTreeMap<usize, Vec<&'a Peer>>) -> bool {
        let mut found = false;
        let reaching = self.uplinks.iter().enumerate().filter(|_| vnic.uses_uplinks());
        for (index, reach) in reaching {
            for peer in reach.peers(vnic.segment) {
                beyond.entry(index).or_default().push(peer);
                found = true;
            }
        }
        found
    }
}
