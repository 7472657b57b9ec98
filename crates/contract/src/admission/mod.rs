//! The exact test whether all promises fit together.
//!
//! ```text
//!  Vnic, Vnic, … ─┐  per egress named in a `to`     all t >= min d:
//!                 ├─▶ C, L, H, (b, r, d), minima ─▶ demand(t) + L <= C (t - H) ─▶ Admission: delay bounds
//!  Host ──────────┘                                 sum r + sum min <= C       ─▶ Refusal: the numbers,
//!                                                                                 and what would fit
//! ```
//!
//! For each egress, with (b, r, d) the burst, rate and deadline of every real-time vNIC that names it:
//!
//! - C: its capacity, the receiver's `rx.max` or the host's `uplink`.
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
//! A real-time vNIC counts with its rate `tx.max`, which includes its `tx.min`. A vNIC that names several places
//! counts in full at each. Not counted are frames that come in over the uplink, from vNICs of other hosts, and
//! promises of SR-IOV functions on their NIC's link, whose capacity the NIC knows.
//!
//! The arithmetic is in integers: a sum that fits by one bit fits.

mod condition;
mod edf;
mod egress;
mod priority;
mod refusal;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;

pub use priority::{LEVELS, priorities};
pub use refusal::{Fit, NotAdmissible, Relation};

use crate::frame::SUPER_FRAME_IPV4;
use crate::{Attach, Bytes, Discipline, Host, Nanos, Rate, Segment, UPLINK, Vnic};
use egress::{Egress, Order, Source};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
};

/// The result if every promise fits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Admission {
    /// Bounds, one per real-time vNIC and egress, by egress, then in the order of the vNICs.
    pub bounds: Vec<DelayBound>,
    /// Summaries, one per egress of promises, by name.
    pub egresses: Vec<EgressSummary>,
}

/// The delay bound of a real-time vNIC's frames at one egress, and its derivation.
///
/// The bound is B = d - min over t >= d of slack(t) / C, with slack(t) = C (t - H) - demand(t) - L and
/// demand(t) = sum over d_i <= t of (b_i + r_i (t - d_i)), rounded up to a nanosecond.
///
/// Proof: take a frame that conforms at `a` and must be out by D = a + d. Let t0 be the last moment up to `a` before
/// which no frame due by D waited. From t0 until our frame is out, EDF sends only frames due by D that conformed from
/// t0 on, at most demand(D - t0), after at most one frame (L) under way and the host's latency (H). So our frame is
/// out by t0 + H + (L + demand(D - t0)) / C = D - slack(D - t0) / C. As t0 <= a, the interval D - t0 is at least d,
/// hence the minimum over t >= d. It is attained at a deadline, because between two deadlines the slack never falls
/// while the rates' sum is at most C.
///
/// Proof for strict priorities, with t = d: let t0 be the last moment up to `a` before which no frame of the source's
/// level or a higher one waited. Until the frame is out at D, the egress sends at most one frame (L), b + r (a - t0) of
/// its own source and b_j + r_j (D - t0) of each other source. With all rates' sum at most C, D - a is largest for
/// t0 = a. As the others' rates are below C, d - slack(d) / C is not before it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DelayBound {
    /// The sender.
    pub vnic: String,
    /// The egress.
    pub egress: String,
    /// d, the promise.
    pub deadline: Nanos,
    /// B, the proven bound; at most `deadline`.
    pub bound: Nanos,
    /// The interval t at which the slack is least.
    pub critical_t: Nanos,
    /// demand(t) there, rounded up to a byte.
    pub demand: Bytes,
    /// C.
    pub capacity: Rate,
    /// L.
    pub blocking: Bytes,
    /// H.
    pub host_latency: Nanos,
}

/// The promised and the remaining rate of an egress (bit/s).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EgressSummary {
    /// A vNIC's name, or `uplink`.
    pub egress: String,
    /// C.
    pub capacity: Rate,
    /// Sum of `tx.max` of the real-time vNICs.
    pub realtime_bits: u64,
    /// Sum of `tx.min` of the other vNICs.
    pub guaranteed_bits: u64,
    /// Rate that is not promised.
    pub remaining_bits: u64,
    /// The senders with promises, in the order of the vNICs.
    pub vnics: Vec<String>,
}

impl Admission {
    /// Returns the delay bounds of one vNIC, one per egress.
    pub fn bounds_of<'a>(&'a self, vnic: &'a str) -> impl Iterator<Item = &'a DelayBound> {
        self.bounds.iter().filter(move |bound| bound.vnic == vnic)
    }

    /// Returns the summary of one egress; `None` without promises there.
    pub fn egress(&self, name: &str) -> Option<&EgressSummary> {
        self.egresses.iter().find(|egress| egress.egress == name)
    }
}

impl DelayBound {
    /// Returns the deadline minus the bound.
    pub fn margin(&self) -> Nanos {
        Nanos::new(self.deadline.get() - self.bound.get())
    }
}

/// The derivation, as `vnic show` prints it.
impl fmt::Display for DelayBound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { vnic, egress, deadline, bound, critical_t, demand, capacity, blocking, host_latency } =
            self;
        writeln!(f, "{vnic} to {egress}: at most {bound} of {deadline}, margin {}", self.margin())?;
        let mut line = |name: &str, value: &dyn fmt::Display, meaning: &str| {
            writeln!(f, "  {name:<6} = {value:<10} {meaning}")
        };
        line("t", critical_t, "the interval with the least slack")?;
        line("demand", demand, "real-time traffic that may be due within t")?;
        line("L", blocking, "the largest frame that may be under way")?;
        line("C", capacity, "the capacity of the egress")?;
        line("H", host_latency, "the host's latency budget")?;
        write!(f, "  bound  = deadline - (t - H - (demand + L) / C)")
    }
}

/// Tests whether `host` can keep every promise of `vnics`.
///
/// # Errors
/// Every egress that cannot keep its promises, with the numbers.
pub fn admit(host: &Host, vnics: &[Vnic]) -> Result<Admission, Vec<NotAdmissible>> {
    let by_nic = |v: &&Vnic| matches!(v.attach, Attach::Vf { .. });
    let promising = |v: &&Vnic| (v.is_realtime() || v.tx.min.is_some()) && !by_nic(v);
    let mut egresses = BTreeMap::<&str, Vec<&Vnic>>::new();
    for vnic in vnics.iter().filter(promising) {
        for to in vnic.to.iter().collect::<BTreeSet<_>>() {
            egresses.entry(to).or_default().push(vnic);
        }
    }
    let neighbours = Neighbours::new(vnics);
    let mut admission = Admission::default();
    let mut refusals = Vec::new();
    for (name, senders) in egresses {
        match egress(name, host, &neighbours, &senders) {
            Ok(egress) => match refusal::refusals(&egress) {
                none if none.is_empty() => {
                    admission.bounds.extend(bounds(&egress));
                    admission.egresses.push(summary(&egress, &senders));
                }
                some => refusals.extend(some),
            },
            Err(refusal) => refusals.push(*refusal),
        }
    }
    if refusals.is_empty() { Ok(admission) } else { Err(refusals) }
}

struct Neighbours<'a> {
    by_name: HashMap<&'a str, &'a Vnic>,
    /// By segment, the largest frame and its vNIC, and the largest frame of the other vNICs.
    largest: HashMap<Segment, Largest<'a>>,
}

#[derive(Clone, Copy, Default)]
struct Largest<'a> {
    frame: u64,
    sender: &'a str,
    frame_of_others: u64,
}

impl<'a> Largest<'a> {
    fn add(&mut self, name: &'a str, frame: u64) {
        if frame > self.frame {
            *self = Self { frame, sender: name, frame_of_others: self.frame };
        } else {
            self.frame_of_others = self.frame_of_others.max(frame);
        }
    }

    fn largest_of_others(&self, name: &str) -> u64 {
        if self.sender == name { self.frame_of_others } else { self.frame }
    }
}

impl<'a> Neighbours<'a> {
    fn new(vnics: &'a [Vnic]) -> Self {
        let mut largest = HashMap::<Segment, Largest<'_>>::new();
        for vnic in vnics {
            largest.entry(vnic.segment).or_default().add(&vnic.name, vnic.largest_frame());
        }
        // Of two vNICs with one name, which no document has, the first counts.
        let by_name = vnics.iter().rev().map(|v| (v.name.as_str(), v)).collect();
        Self { by_name, largest }
    }

    /// Returns the largest frame that other vNICs can send to a `receiver` that hears only its own segment; without a
    /// receiver the largest of all, because every segment uses the one uplink.
    fn largest_frame(&self, receiver: Option<&Vnic>) -> u64 {
        match receiver {
            Some(r) => self.largest.get(&r.segment).map_or(0, |largest| largest.largest_of_others(&r.name)),
            None => self.largest.values().map(|largest| largest.frame).max().unwrap_or(0),
        }
    }
}

fn egress(
    name: &str,
    host: &Host,
    neighbours: &Neighbours<'_>,
    senders: &[&Vnic],
) -> Result<Egress, Box<NotAdmissible>> {
    let names = || senders.iter().map(|v| v.name.clone()).collect::<Vec<_>>();
    let receiver = neighbours.by_name.get(name).copied();
    let (capacity, key) = match receiver {
        None if name == UPLINK => (host.uplink, "host.uplink".to_owned()),
        None => {
            return Err(Box::new(NotAdmissible::UnknownEgress { egress: name.into(), vnics: names() }));
        }
        Some(receiver) if receiver.rx.discipline == Discipline::Fifo => {
            return Err(Box::new(NotAdmissible::Fifo { egress: name.into(), vnics: names() }));
        }
        Some(receiver) => (receiver.rx.max, format!("vnic.{name}.rx.max")),
    };
    let Some(capacity) = capacity else {
        return Err(Box::new(NotAdmissible::NoCapacity { egress: name.into(), vnics: names(), key }));
    };
    let source = |v: &&&Vnic| {
        Some(Source {
            name: v.name.clone(),
            burst: u128::from(v.tx.burst?.get()) * 8,
            rate: v.tx.max?.bits(),
            deadline: v.deadline?.get(),
            smallest_rate: v.tx.min.map_or(1, Rate::bits),
            smallest_burst: v.largest_frame(),
        })
    };
    let realtime: Vec<&&Vnic> = senders.iter().filter(|v| v.is_realtime()).collect();
    let sources: Vec<Source> = realtime.iter().filter_map(source).collect();
    if sources.len() < realtime.len() {
        let without = realtime.iter().filter(|v| source(v).is_none()).map(|v| v.name.clone());
        return Err(Box::new(NotAdmissible::NoEnvelope { egress: name.into(), vnics: without.collect() }));
    }
    let minima = senders.iter().filter(|v| !v.is_realtime());
    let by_kernel = receiver.is_some_and(|r| matches!(r.attach, Attach::Netdev { .. }));
    let (order, blocking) = if by_kernel {
        (Order::Priority, SUPER_FRAME_IPV4)
    } else {
        (Order::Edf, neighbours.largest_frame(receiver))
    };
    Ok(Egress {
        name: name.into(),
        order,
        capacity_key: key,
        capacity: capacity.bits(),
        blocking: blocking * 8,
        host_latency: host.host_latency.get(),
        sources,
        minima: minima.filter_map(|v| Some((v.name.clone(), v.tx.min?.bits()))).collect(),
    })
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
    };
    egress.sources.iter().zip(egress.bounds()).map(bound).collect()
}

fn summary(egress: &Egress, senders: &[&Vnic]) -> EgressSummary {
    let realtime_bits = egress.sources.iter().map(|s| s.rate).sum();
    let guaranteed_bits = egress.minima.iter().map(|(_, min)| min).sum();
    EgressSummary {
        egress: egress.name.clone(),
        capacity: egress::rate(egress.capacity),
        realtime_bits,
        guaranteed_bits,
        remaining_bits: egress.capacity - realtime_bits - guaranteed_bits,
        vnics: senders.iter().map(|v| v.name.clone()).collect(),
    }
}
