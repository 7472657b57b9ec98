//! The exact test whether all promises fit together.
//!
//! ```text
//!  Vnic, Vnic, … ─┐  per egress named in a `to`     all t >= min d:
//!  Uplink, Remote ┼─▶ C, L, H, (b, r, d), minima ─▶ demand(t) + L <= C (t - H) ─▶ Admission: delay bounds
//!  Host ──────────┘                                 sum r + sum min <= C       ─▶ Refusal: the numbers,
//!                                                                                 and what would fit
//! ```
//!
//! For each egress, with (b, r, d) the burst, rate and deadline of every real-time vNIC that names it:
//!
//! - C: its capacity, the receiver's `rx.max` or the uplink's `rate`.
//! - H: the host's latency budget, `host-latency`.
//! - L: the largest frame that can be under way when a more urgent one arrives: the largest `mtu` + 18 bytes of all
//!   vNICs that can send there. It is one frame, not a 64 KiB super-frame: on an uplink the scheduler has to let a
//!   more urgent frame in after each MTU frame of a super-frame, also of a real-time one; on a virtual egress a
//!   super-frame costs one copy, which H covers.
//!
//! An egress of the kernel (a `netdev`) serves by strict priorities, the shorter deadline first, and cuts no
//! super-frame: L is 64 KiB there. Each source has its own condition at t = d. For it, demand(d) is the bursts of all
//! sources that do not go after it, a frame on top of each burst, and what the others of these send within d.
//!
//! At an uplink, b, r, L and minima are of frames on the wire, and d is what the network and the peer leave of the
//! deadline (`outgoing`). A remote that sends with a deadline to a vNIC of this host counts there, with the burst that
//! the network may make of its envelope (`local`). Frames of other hosts count for L, too.
//!
//! A real-time vNIC counts with its rate `tx.max`, which includes its `tx.min`. A vNIC that names several places
//! counts in full at each. Not counted are promises of SR-IOV functions on their NIC's link, whose capacity the NIC
//! knows.
//!
//! The arithmetic is in integers: a sum that fits by one bit fits.

#[cfg(test)]
mod between_hosts;
mod condition;
mod edf;
mod egress;
mod local;
mod neighbours;
mod outgoing;
mod priority;
mod refusal;
mod result;
mod set;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;

pub(crate) use egress::on_wire;
pub(crate) use outgoing::own_part;
pub use priority::{LEVELS, priorities};
pub use refusal::{Fit, NotAdmissible, Relation};
pub use result::{Admission, Beyond, DelayBound, EgressSummary};
pub use set::ContractSet;

use crate::{Bytes, Nanos};
use egress::{Egress, Source};
use neighbours::Neighbours;
use set::{Kind, Routes, names};

/// Tests whether every promise of `set` can be kept.
///
/// # Errors
/// Every egress that cannot keep its promises, with the numbers.
pub fn admit(set: &ContractSet<'_>) -> Result<Admission, Vec<NotAdmissible>> {
    let routes = Routes::new(set);
    let neighbours = Neighbours::new(set.vnics, &routes);
    let mut admission = Admission::default();
    let mut refusals = Vec::new();
    for ((name, kind), senders) in routes.promises() {
        let egress = match (kind, routes.uplink(name)) {
            (Kind::Uplink, Some(reach)) => outgoing::egress(set, reach, &senders),
            (Kind::Vnic, _) => local::egress(name, set.host, &routes, &neighbours, &senders),
            _ => Err(vec![NotAdmissible::NoUplink { egress: name.into(), vnics: names(&senders) }]),
        };
        match egress.map(|egress| (refusal::refusals(&egress), egress)) {
            Ok((none, egress)) if none.is_empty() => {
                admission.bounds.extend(bounds(&egress));
                admission.egresses.push(summary(egress));
            }
            Ok((some, _)) | Err(some) => refusals.extend(some),
        }
    }
    if refusals.is_empty() { Ok(admission) } else { Err(refusals) }
}

fn bounds(egress: &Egress) -> Vec<DelayBound> {
    let bound = |(source, (bound, critical)): (&Source, (u64, egress::Point))| DelayBound {
        vnic: source.name.clone(),
        egress: egress.name.clone(),
        deadline: Nanos::new(source.deadline),
        bound: Nanos::new(bound),
        critical_t: Nanos::new(critical.t),
        demand: egress::bytes_rounded_up(critical.demand),
        capacity: egress::rate(egress.capacity),
        blocking: Bytes::new(egress.blocking / 8),
        host_latency: Nanos::new(egress.host_latency),
        beyond: source.away.clone(),
    };
    egress.sources.iter().zip(egress.bounds()).map(bound).collect()
}

/// Summarises an egress that fits: all sums are at most its capacity.
fn summary(egress: Egress) -> EgressSummary {
    let realtime: u128 = egress.sources.iter().map(Source::wire_rate).sum();
    let realtime_bits = u64::try_from(realtime).unwrap_or(u64::MAX);
    let promised = u64::try_from(egress.promised_rate()).unwrap_or(u64::MAX);
    EgressSummary {
        capacity: egress::rate(egress.capacity),
        realtime_bits,
        guaranteed_bits: promised - realtime_bits,
        remaining_bits: egress.capacity - promised,
        egress: egress.name,
        vnics: egress.senders,
    }
}
