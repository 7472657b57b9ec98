//! The egress of an uplink: what its frames become on the wire, and how much of a deadline is left for this host.
//!
//! ```text
//!  Td ├──── this host: d ────┤── network: N ──┤── peer: arrival budget A ──┤
//! ```
//!
//! N is the declared latency. Without one, where a controller admits paths, it is half of Td - A, which is asked from it.
//!
//! A frame of s bytes is s + o on the wire: o is 50 (IPv4) or 70 (IPv6), 32 more for a stamp, and up to 51 more where
//! frames may leave by RDMA. The envelope (b, r)
//! of a vNIC counts its own bytes, so at most (b + r t) / 60 frames leave within t, because a wire carries none below
//! 60 bytes: the switch counts a shorter one as 60. On the wire these are at most (b + r t) (60 + o) / 60 bytes.

use super::egress::{Egress, Minimum, Order, Source};
use super::refusal::NotAdmissible;
use super::result::Beyond;
use super::set::{ContractSet, Sender, names};
use crate::frame::STAMP;
use crate::rdma::grows_by;
use crate::reach::Reach;
use crate::{Nanos, Peer, Rate, Uplink, Vnic};
use std::collections::{BTreeMap, HashSet};

pub(super) fn egress(
    set: &ContractSet<'_>,
    reach: &Reach<'_>,
    senders: &[Sender<'_>],
) -> Result<Egress, Vec<NotAdmissible>> {
    let uplink = reach.uplink;
    let (mut sources, mut minima, mut refusals) = (Vec::new(), Vec::new(), Vec::new());
    let mut undeclared = BTreeMap::<String, Vec<String>>::new();
    let mut bare = Vec::new();
    let mut stamped = HashSet::new();
    for sender in senders {
        let Sender::Beyond(vnic, peers) = sender else { continue };
        if !vnic.is_realtime() {
            minima.extend(vnic.tx.min.map(|min| Minimum {
                name: vnic.name.clone(),
                rate: min.bits(),
                added: uplink.encapsulation() + grows_by(vnic, uplink),
            }));
            continue;
        }
        let away = match beyond(uplink, peers, vnic.deadline.unwrap_or(Nanos::new(0))) {
            Ok(away) => away,
            Err(key) => {
                undeclared.entry(key).or_default().push(vnic.name.clone());
                continue;
            }
        };
        let stamp = if peers.iter().any(|peer| peer.stamps) { STAMP } else { 0 };
        if stamp > 0 {
            stamped.insert(vnic.name.as_str());
        }
        match source(vnic, away, uplink.encapsulation() + stamp + grows_by(vnic, uplink)) {
            None => bare.push(vnic.name.clone()),
            Some(Err(away)) => refusals.push(NotAdmissible::Spent {
                egress: uplink.name.clone(),
                vnics: vec![vnic.name.clone()],
                deadline: vnic.deadline.unwrap_or(Nanos::new(0)),
                away,
            }),
            Some(Ok(source)) => sources.push(source),
        }
    }
    for (key, vnics) in undeclared {
        refusals.push(NotAdmissible::NoLatency { egress: uplink.name.clone(), vnics, key });
    }
    if !bare.is_empty() {
        refusals.push(NotAdmissible::NoEnvelope { egress: uplink.name.clone(), vnics: bare });
    }
    if !refusals.is_empty() {
        return Err(refusals);
    }
    // What does not fit the path's MTU is not sent.
    let on_wire = |v: &Vnic| {
        let stamp = if stamped.contains(v.name.as_str()) { STAMP } else { 0 };
        let by_vxlan = (v.largest_frame() + uplink.encapsulation() + stamp).min(uplink.largest_frame());
        by_vxlan + grows_by(v, uplink)
    };
    let sending = set.vnics.iter().filter(|v| v.uses_uplinks() && reach.carries(v.segment));
    Ok(Egress {
        name: uplink.name.clone(),
        order: Order::Edf,
        capacity_key: format!("uplink.{}.rate", uplink.name),
        capacity: uplink.rate.bits(),
        blocking: sending.map(on_wire).max().unwrap_or(0) * 8,
        host_latency: set.host.host_latency.get(),
        sources,
        minima,
        senders: names(senders),
    })
}

/// Returns the longest way among `peers` within a `deadline`, or the key of a latency that is not declared.
fn beyond(uplink: &Uplink, peers: &[&Peer], deadline: Nanos) -> Result<Beyond, String> {
    let mut longest: Option<Beyond> = None;
    for peer in peers {
        let arrival_budget = uplink.arrival_budget_of(peer);
        let latency = uplink
            .network_budget(peer, deadline, arrival_budget)
            .ok_or_else(|| format!("uplink.{}.latency", uplink.name))?;
        let asked = uplink.latency_to(peer).is_none();
        let away = Beyond { peer: peer.name.clone(), latency, arrival_budget, asked };
        if longest.as_ref().is_none_or(|longest| away.total() > longest.total()) {
            longest = Some(away);
        }
    }
    // A sender here has a peer.
    longest.ok_or_else(|| format!("uplink.{}.peer", uplink.name))
}

/// Returns d: this host's part of the deadline of a vNIC that sends to these peers over an uplink. `None` if nothing is
/// left, or no deadline is promised there.
pub(crate) fn own_part(uplink: &Uplink, peers: &[&Peer], vnic: &Vnic) -> Option<Nanos> {
    let deadline = vnic.deadline?;
    let away = beyond(uplink, peers, deadline).ok()?.total();
    deadline.get().checked_sub(away.get()).filter(|left| *left > 0).map(Nanos::new)
}

/// Returns the vNIC as a source that adds `added` bytes to each frame; `None` without an envelope, and an error if
/// nothing of its deadline is left.
fn source(vnic: &Vnic, away: Beyond, added: u64) -> Option<Result<Source, Beyond>> {
    let (burst, rate, deadline) = (vnic.tx.burst?, vnic.tx.max?, vnic.deadline?);
    let left = deadline.get().saturating_sub(away.total().get());
    if left == 0 {
        return Some(Err(away));
    }
    Some(Ok(Source {
        name: vnic.name.clone(),
        table: "vnic",
        burst: u128::from(burst.get()) * 8,
        rate: rate.bits(),
        deadline: left,
        jitter: 0,
        added,
        away: Some(away),
        smallest_rate: vnic.tx.min.map_or(1, Rate::bits),
        smallest_burst: vnic.largest_frame(),
    }))
}
