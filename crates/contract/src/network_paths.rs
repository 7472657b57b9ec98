//! The paths that a host's deadlines need through a network with a controller, from the contracts alone.
//!
//! ```text
//!  vNIC: tx.max r, tx.burst b, Td ─┬▶ here: d = Td - N - A of the longest way ─▶ burst on the wire: b + r d, as frames grow
//!  uplink: kind, headers, N ───────┤
//!  remote: peer, A ────────────────┴▶ PathTerms, one for each pair of vNIC and remote; or PathFault: why none can be had
//! ```
//!
//! **Split.** Td = d + N + A. N is the declared latency, or half of Td - A. Admission gives this host d; a vNIC with
//! several peers has the d of its longest way at all of them, so d + N + A <= Td for each. The network keeps N, the far
//! host A.
//!
//! **Burst.** A frame that conforms at Ts leaves within d of it. Frames that leave within t conformed within t + d, so
//! they are at most b + r (t + d) bytes: the envelope has the burst b + r d (Le Boudec and Thiran, Network Calculus,
//! 1.4.1). On the wire a frame of s bytes, at least 60, is s + o: at most (60 + o) / 60 times as much ([`crate::admission`]).

use crate::admission::{on_wire, own_part};
use crate::frame::{SMALLEST_FRAME, STAMP};
use crate::{Bytes, ContractSet, Controller, Mac, Nanos, Peer, Rate, Remote, Segment, UPLINK, Uplink, Vnic};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// The mark of frames with a deadline between hosts: expedited forwarding (RFC 3246).
pub const EXPEDITED: u8 = 46;

/// The priority in the VLAN tag of frames of a plain NIC with a path: voice, below 10 ms (IEEE 802.1Q, annex I).
pub const PRIORITY: u8 = 5;

/// Most pairs of an uplink with a source port of their own.
pub const MOST_PAIRS: usize = 64;

/// Largest burst that a path may have: what path admission takes ([`crate::path`]).
const MOST_BURST: u64 = 1_000_000_000;

/// What switches see of a pair's frames, before the host switch has given it a source port.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(untagged)]
pub enum Seen {
    /// Outer headers of VXLAN.
    Outer {
        /// Address of the sending uplink.
        source: IpAddr,
        /// Address of the receiving uplink.
        target: IpAddr,
        /// VXLAN's port at both.
        target_port: u16,
    },
    /// The tag of a plain NIC, with [`PRIORITY`], and the vNICs' own addresses.
    Tagged {
        /// Its VLAN: the segment.
        vlan: u16,
        /// MAC of the sender.
        source_mac: Mac,
        /// MAC of the receiver.
        target_mac: Mac,
    },
}

/// What one pair asks of the network. Sizes and rates are those on the host's wire.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct PathTerms {
    /// The sender.
    pub vnic: String,
    /// The receiver.
    pub remote: String,
    /// The peer where the receiver is.
    pub peer: String,
    /// The uplink that leads there.
    pub uplink: String,
    /// What switches tell its frames by.
    #[serde(flatten)]
    pub seen: Seen,
    /// The mark of its frames; 0 of a plain NIC, where the tag has it.
    pub dscp: u8,
    /// Rate.
    pub rate: Rate,
    /// Burst as it leaves this host.
    pub burst: Bytes,
    /// Shortest frame.
    pub smallest_frame: Bytes,
    /// Longest frame.
    pub largest_frame: Bytes,
    /// Td.
    pub deadline: Nanos,
    /// d, this host's part.
    pub here: Nanos,
    /// N, the network's part.
    pub budget: Nanos,
    /// A, the far host's part.
    pub arrival: Nanos,
}

/// Why a pair can have no path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathFault {
    /// The sender.
    pub vnic: String,
    /// The receiver; `None`: all of them.
    pub remote: Option<String>,
    /// What was found, what was expected, what to do.
    pub reason: String,
}

/// What the deadlines of a host need.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetworkPaths {
    /// In order of their vNICs, then of their remotes.
    pub terms: Vec<PathTerms>,
    /// Pairs that can have none.
    pub faults: Vec<PathFault>,
}

impl PathTerms {
    /// Returns the path's name, `VNIC>REMOTE`.
    pub fn name(&self) -> String {
        format!("{}>{}", self.vnic, self.remote)
    }

    /// Returns whether nothing judges the arrival of its frames: its promise ends at the far host's NIC.
    pub fn ends_at_nic(&self) -> bool {
        matches!(self.seen, Seen::Tagged { .. })
    }

    /// Returns what may be asked from the network if the far host itself needs `arrival` after a frame's arrival: N,
    /// less what it needs beyond its declaration. `None`: nothing is left.
    pub fn budget_with(&self, arrival: Nanos) -> Option<Nanos> {
        let beyond = arrival.get().saturating_sub(self.arrival.get());
        self.budget.get().checked_sub(beyond).filter(|left| *left > 0).map(Nanos::new)
    }
}

/// The tables of a set, by what they are looked up by: each contract looks.
struct Tables<'a> {
    uplinks: &'a [Uplink],
    vnics: BTreeSet<&'a str>,
    remotes: BTreeMap<&'a str, &'a Remote>,
    by_segment: BTreeMap<Segment, Vec<&'a Remote>>,
    peers: BTreeMap<&'a str, (&'a Uplink, &'a Peer)>,
}

impl<'a> Tables<'a> {
    fn of(set: &ContractSet<'a>) -> Self {
        let mut by_segment = BTreeMap::<_, Vec<_>>::new();
        for remote in set.remotes {
            by_segment.entry(remote.segment).or_default().push(remote);
        }
        let peers =
            |uplink: &'a Uplink| uplink.peers.iter().map(move |peer| (peer.name.as_str(), (uplink, peer)));
        Self {
            uplinks: set.uplinks,
            vnics: set.vnics.iter().map(|vnic| vnic.name.as_str()).collect(),
            remotes: set.remotes.iter().map(|remote| (remote.name.as_str(), remote)).collect(),
            by_segment,
            peers: set.uplinks.iter().flat_map(peers).collect(),
        }
    }

    /// Returns the remotes to which a vNIC has a deadline, by name, with their uplinks and peers.
    fn receivers(&self, vnic: &Vnic) -> Vec<(&'a Remote, &'a Uplink, &'a Peer)> {
        let everywhere = vnic.to.iter().any(|to| to == UPLINK);
        let of_segment = self.by_segment.get(&vnic.segment).filter(|_| everywhere).into_iter().flatten();
        let named = vnic.to.iter().filter(|to| !self.vnics.contains(to.as_str()));
        let named = named.filter_map(|to| self.remotes.get(to.as_str()));
        let all: BTreeMap<&str, &Remote> =
            of_segment.chain(named).map(|remote| (remote.name.as_str(), *remote)).collect();
        let placed = |remote: &'a Remote| {
            self.peers.get(remote.peer.as_str()).map(|(uplink, peer)| (remote, *uplink, *peer))
        };
        all.into_values().filter_map(placed).collect()
    }
}

/// Finds the paths that the deadlines of `set` need at the uplinks of `controller`. Of more pairs than an uplink has ports
/// for, those of the lowest `age` are kept.
pub fn network_paths(
    set: &ContractSet<'_>,
    controller: &Controller,
    age: impl Fn(&PathTerms) -> u8,
) -> NetworkPaths {
    let mut found = NetworkPaths::default();
    let tables = Tables::of(set);
    let mut vnics: Vec<&Vnic> = set.vnics.iter().filter(|vnic| vnic.is_realtime()).collect();
    vnics.sort_by(|a, b| a.name.cmp(&b.name));
    for vnic in vnics {
        of_vnic(&mut found, &tables, controller, vnic);
    }
    crowded(&mut found, age);
    found
}

fn of_vnic(found: &mut NetworkPaths, tables: &Tables<'_>, controller: &Controller, vnic: &Vnic) {
    let everywhere = vnic.to.iter().any(|to| to == UPLINK);
    let remotes = tables.receivers(vnic);
    for uplink in tables.uplinks.iter().filter(|uplink| controller.serves(&uplink.name)) {
        let here: Vec<_> = remotes.iter().filter(|(_, of, _)| of.name == uplink.name).collect();
        let reached = everywhere && uplink.peers.iter().any(|peer| peer.carries(vnic.segment));
        if here.is_empty() && !reached {
            continue;
        }
        let mut fault = |remote: Option<&Remote>, reason: String| {
            let remote = remote.map(|remote| remote.name.clone());
            found.faults.push(PathFault { vnic: vnic.name.clone(), remote, reason });
        };
        if here.is_empty() {
            let reason = format!(
                "its `to` is \"uplink\", and no remote of segment {} is known behind {}: switches can tell pairs of vNICs \
                 only; name the receivers, with a [remote.NAME] each",
                vnic.segment, uplink.name
            );
            fault(None, reason);
            continue;
        }
        if let Some(reason) = unkeyed(vnic) {
            fault(None, reason);
            continue;
        }
        let ways: Vec<&Peer> = uplink
            .peers
            .iter()
            .filter(|peer| {
                everywhere && peer.carries(vnic.segment)
                    || here.iter().any(|(_, _, other)| other.name == peer.name)
            })
            .collect();
        let Some(own) = own_part(uplink, &ways, vnic) else {
            // Admission refuses it, with the reason.
            continue;
        };
        for (remote, _, peer) in here {
            match terms(vnic, uplink, remote, peer, own) {
                Ok(terms) => found.terms.push(terms),
                Err(reason) => fault(Some(*remote), reason),
            }
        }
    }
}

/// Says why switches cannot tell frames of a vNIC from others; `None` if they can.
fn unkeyed(vnic: &Vnic) -> Option<String> {
    (!vnic.uses_uplinks()).then(|| {
        format!(
            "frames of an attachment of kind {} leave past the host switch (as RDMA does), with no source port of their \
             own; attach it as vhost-user or tap",
            vnic.attach.kind()
        )
    })
}

/// Returns what switches see of frames from `vnic` to `remote`.
fn seen(vnic: &Vnic, uplink: &Uplink, remote: &Remote, peer: &Peer) -> Result<Seen, String> {
    if uplink.is_plain() {
        let vlan = u16::try_from(remote.segment.id()).ok().filter(|vlan| (1..=4094).contains(vlan));
        let vlan = vlan.ok_or_else(|| format!("segment {} is no VLAN", remote.segment))?;
        return Ok(Seen::Tagged { vlan, source_mac: vnic.mac, target_mac: remote.mac });
    }
    let (Some(source), Some(target)) = (uplink.local, peer.address) else {
        return Err(format!("uplink {} or peer {} has no address", uplink.name, peer.name));
    };
    if !peer.stamps {
        return Err(format!(
            "peer {} has stamps = false, and only frames with stamps have a source port of their pair; take that away, or \
             take the peer out of the network of the controller",
            peer.name
        ));
    }
    Ok(Seen::Outer { source, target, target_port: uplink.port })
}

/// Returns the terms of one pair; `own` is d of its vNIC at the uplink.
fn terms(
    vnic: &Vnic,
    uplink: &Uplink,
    remote: &Remote,
    peer: &Peer,
    own: Nanos,
) -> Result<PathTerms, String> {
    let (Some(deadline), Some(rate), Some(burst)) = (vnic.deadline, vnic.tx.max, vnic.tx.burst) else {
        return Err("a deadline needs tx.max and tx.burst".into());
    };
    let seen = seen(vnic, uplink, remote, peer)?;
    let arrival = uplink.arrival_budget_of(peer);
    let budget = uplink.network_budget(peer, deadline, arrival).unwrap_or(Nanos::new(0));
    if budget.get() == 0 {
        return Err(format!(
            "nothing of its deadline of {deadline} is left for the network to {}: raise deadline, or set a latency above 0",
            peer.name
        ));
    }
    let added = uplink.encapsulation() + if uplink.is_plain() { 0 } else { STAMP };
    let bunched = (u128::from(rate.bits()) * u128::from(own.get())).div_ceil(1_000_000_000);
    let burst = on_wire(u128::from(burst.get()) * 8 + bunched, added).div_ceil(8);
    let largest = (vnic.largest_frame() + added).min(uplink.largest_frame());
    let burst = u64::try_from(burst).unwrap_or(u64::MAX).max(largest);
    if burst > MOST_BURST {
        return Err(format!(
            "its burst is {burst} bytes as it leaves this host, and a path takes at most {MOST_BURST}; lower tx.burst, \
             tx.max or deadline"
        ));
    }
    let wire_rate = u64::try_from(on_wire(rate.bits().into(), added)).ok().and_then(Rate::from_bits);
    Ok(PathTerms {
        vnic: vnic.name.clone(),
        remote: remote.name.clone(),
        peer: peer.name.clone(),
        uplink: uplink.name.clone(),
        dscp: if uplink.is_plain() { 0 } else { EXPEDITED },
        seen,
        rate: wire_rate
            .ok_or_else(|| format!("its tx.max of {rate} is more on the wire than a path takes"))?,
        burst: Bytes::new(burst),
        smallest_frame: Bytes::new(SMALLEST_FRAME + added),
        largest_frame: Bytes::new(largest),
        deadline,
        here: own,
        budget,
        arrival,
    })
}

/// Turns the youngest pairs of an uplink with more than [`MOST_PAIRS`] into faults: a new pair takes no other's path.
fn crowded(found: &mut NetworkPaths, age: impl Fn(&PathTerms) -> u8) {
    let mut by_uplink = BTreeMap::<&str, Vec<(u8, usize)>>::new();
    for (at, terms) in found.terms.iter().enumerate() {
        by_uplink.entry(&terms.uplink).or_default().push((age(terms), at));
    }
    let mut excess = BTreeSet::new();
    for mut pairs in by_uplink.into_values().filter(|pairs| pairs.len() > MOST_PAIRS) {
        pairs.sort_unstable();
        excess.extend(pairs.into_iter().skip(MOST_PAIRS).map(|(_, at)| at));
    }
    let (mut at, faults) = (0, &mut found.faults);
    found.terms.retain(|terms| {
        let is_excess = excess.contains(&at);
        at += 1;
        if is_excess {
            let reason = format!(
                "more than {MOST_PAIRS} pairs of vNICs have a deadline over uplink {}, and no further one can have a path; \
                 take deadlines away, or add another uplink",
                terms.uplink
            );
            let (vnic, remote) = (terms.vnic.clone(), Some(terms.remote.clone()));
            faults.push(PathFault { vnic, remote, reason });
        }
        !is_excess
    });
}

#[cfg(test)]
mod tests;
