//! The reasons why promises do not fit, and changes that would make them fit.

use super::egress::{self, Egress, Minimum, Source};
use super::result::Beyond;
use crate::{Bytes, Nanos, Rate};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Most vNICs with suggestions: those with the largest promises.
const SUGGESTED_VNICS: usize = 3;
/// Most vNICs that a message names; it counts the others.
const NAMED_VNICS: usize = 16;
/// Suggested deadlines are whole microseconds, suggested rates whole kbit/s: exact enough, and readable.
const MICROSECOND: u64 = 1_000;
const KBIT: u64 = 1_000;
/// The longest deadline a contract may have, ns.
const LONGEST_DEADLINE: u64 = 10_000_000_000;

/// A promise that cannot be kept: the egress, the vNICs, the numbers, and what would fit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "reason", rename_all = "kebab-case")]
#[allow(
    missing_docs,
    reason = "each variant's text names its fields; egress, vnics and fits have their methods"
)]
pub enum NotAdmissible {
    /// `egress` is neither a vNIC, a remote nor the uplink.
    UnknownEgress { egress: String, vnics: Vec<String> },
    /// The capacity of `egress` is unknown: `key` sets it.
    NoCapacity { egress: String, vnics: Vec<String>, key: String },
    /// No uplink serves these vNICs.
    NoUplink { egress: String, vnics: Vec<String> },
    /// The latency of the network behind `egress` is not declared: `key` sets it.
    NoLatency { egress: String, vnics: Vec<String>, key: String },
    /// The network and the peer take the whole `deadline`.
    Spent { egress: String, vnics: Vec<String>, deadline: Nanos, away: Beyond },
    /// `egress` serves first come, first served.
    Fifo { egress: String, vnics: Vec<String> },
    /// A deadline without `tx.max` and `tx.burst`, which [`crate::Vnic::check`] refuses as well.
    NoEnvelope { egress: String, vnics: Vec<String> },
    /// The promised rate (`needed_bits`, bit/s) is more than `egress` carries (`available`).
    Rate { egress: String, vnics: Vec<String>, needed_bits: u64, available: Rate, fits: Vec<Fit> },
    /// Within `t`, `needed` bytes may be due (real-time `demand` and the frame under way,
    /// `blocking`), but only `available` can be sent at `capacity` once `host_latency` has passed.
    Deadline {
        egress: String,
        vnics: Vec<String>,
        t: Nanos,
        needed: Bytes,
        available: Bytes,
        demand: Bytes,
        blocking: Bytes,
        capacity: Rate,
        host_latency: Nanos,
        fits: Vec<Fit>,
    },
}

/// One change that removes a refusal by itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fit {
    /// The key, such as `vnic.plc1.tx.max`.
    pub key: String,
    /// The side of `value` on which it must lie.
    pub relation: Relation,
    /// The largest or smallest value, as written in a contract.
    pub value: String,
}

/// The side of a value on which a key must lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Relation {
    /// Not above it.
    AtMost,
    /// Not below it.
    AtLeast,
}

impl NotAdmissible {
    /// Returns the egress that refuses.
    pub fn egress(&self) -> &str {
        match self {
            Self::UnknownEgress { egress, .. }
            | Self::NoCapacity { egress, .. }
            | Self::NoUplink { egress, .. }
            | Self::NoLatency { egress, .. }
            | Self::Spent { egress, .. }
            | Self::Fifo { egress, .. }
            | Self::NoEnvelope { egress, .. }
            | Self::Rate { egress, .. }
            | Self::Deadline { egress, .. } => egress,
        }
    }

    /// Returns the vNICs whose promises do not fit.
    pub fn vnics(&self) -> &[String] {
        match self {
            Self::UnknownEgress { vnics, .. }
            | Self::NoCapacity { vnics, .. }
            | Self::NoUplink { vnics, .. }
            | Self::NoLatency { vnics, .. }
            | Self::Spent { vnics, .. }
            | Self::Fifo { vnics, .. }
            | Self::NoEnvelope { vnics, .. }
            | Self::Rate { vnics, .. }
            | Self::Deadline { vnics, .. } => vnics,
        }
    }

    /// Returns changes, each of which would make it fit; may be empty.
    pub fn fits(&self) -> &[Fit] {
        match self {
            Self::Rate { fits, .. } | Self::Deadline { fits, .. } => fits,
            _ => &[],
        }
    }
}

impl fmt::Display for NotAdmissible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (named, more) = self.vnics().split_at(self.vnics().len().min(NAMED_VNICS));
        write!(f, "egress {} refuses {}", self.egress(), named.join(", "))?;
        if !more.is_empty() {
            write!(f, " and {} more", more.len())?;
        }
        f.write_str(": ")?;
        match self {
            Self::UnknownEgress { .. } => {
                write!(f, "there is no such vNIC; name one, a remote, or \"uplink\"")
            }
            Self::NoUplink { .. } => write!(
                f,
                "no uplink takes their frames to another host; write [uplink.NAME] with a peer that their segment \
                 reaches, or name vNICs of this host (an uplink serves vhost-user and tap attachments)"
            ),
            Self::NoLatency { key, .. } => write!(
                f,
                "the latency of its network is not declared, so no deadline can be promised beyond it; set {key}"
            ),
            Self::Spent { deadline, away, .. } => write!(
                f,
                "of the deadline of {deadline}, the network to {peer} takes {latency} and the arrival budget of {peer} \
                 {arrival_budget}, so nothing is left for this host; raise the deadline above {total}, or lower one of \
                 these",
                peer = away.peer,
                latency = away.latency,
                arrival_budget = away.arrival_budget,
                total = away.total(),
            ),
            Self::NoCapacity { key, .. } => {
                write!(f, "its capacity is unknown, so it can keep no promise; set {key}")
            }
            Self::Fifo { egress, .. } => write!(
                f,
                "its discipline is fifo, which keeps no promise; remove vnic.{egress}.rx.discipline, or the promises"
            ),
            Self::NoEnvelope { .. } => {
                write!(f, "a deadline holds for a declared envelope only; set tx.max and tx.burst")
            }
            Self::Rate { needed_bits, available, .. } => {
                write!(
                    f,
                    "{needed_bits} bit/s are promised, {} bit/s ({available}) are available",
                    available.bits()
                )
            }
            Self::Deadline { t, needed, available, demand, blocking, capacity, host_latency, .. } => write!(
                f,
                "within {t}, {needed} may be due ({demand} real-time, {blocking} already under way), but {available} \
                 can be sent at {capacity} after {host_latency} of host latency"
            ),
        }?;
        for (i, fit) in self.fits().iter().enumerate() {
            write!(f, "{}{fit}", if i == 0 { "; the contracts would fit with " } else { ", or " })?;
        }
        Ok(())
    }
}

impl std::error::Error for NotAdmissible {}

impl fmt::Display for Fit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let relation = match self.relation {
            Relation::AtMost => "at most",
            Relation::AtLeast => "at least",
        };
        write!(f, "{} {relation} {}", self.key, self.value)
    }
}

impl Source {
    /// Returns the path of one of its keys.
    fn key(&self, key: &str) -> String {
        format!("{}.{}.{key}", self.table, self.name)
    }
}

impl Minimum {
    fn key(&self) -> String {
        format!("vnic.{}.tx.min", self.name)
    }
}

/// Returns what `egress` cannot keep; empty if everything fits.
pub(super) fn refusals(egress: &Egress) -> Vec<NotAdmissible> {
    let realtime: u128 = egress.sources.iter().map(Source::wire_rate).sum();
    let mut refusals = Vec::new();
    if egress.promised_rate() > u128::from(egress.capacity) {
        refusals.push(rate(egress));
    }
    // If real-time traffic alone exceeds the capacity, the slack falls for ever and has no worst point.
    if realtime <= u128::from(egress.capacity) {
        refusals.extend(deadline(egress));
    }
    refusals
}

fn rate(egress: &Egress) -> NotAdmissible {
    let capacity = u128::from(egress.capacity);
    let needed_bits = egress.promised_rate();
    let realtime = egress.sources.iter().map(|s| (s.key("tx.max"), s.wire_rate(), s.added, s.smallest_rate));
    let minima = egress.minima.iter().map(|m| (m.key(), m.wire_rate(), m.added, 1));
    let mut shares: Vec<_> = realtime.chain(minima).collect();
    let realtime = egress.sources.iter().map(|s| s.name.clone());
    let vnics = realtime.chain(egress.minima.iter().map(|m| m.name.clone())).collect();
    shares.sort_by_key(|(_, share, ..)| std::cmp::Reverse(*share));
    let mut fits = Vec::new();
    for (key, share, added, smallest) in shares.into_iter().take(SUGGESTED_VNICS) {
        let available_bits = egress::off_wire(capacity.saturating_sub(needed_bits - share), added);
        fits.extend(at_most_rate(
            key,
            u64::try_from(available_bits).expect("at most the capacity"),
            smallest,
        ));
    }
    fits.extend(capacity_fit(egress));
    NotAdmissible::Rate {
        egress: egress.name.clone(),
        vnics,
        needed_bits: u64::try_from(needed_bits).unwrap_or(u64::MAX),
        available: egress::rate(egress.capacity),
        fits,
    }
}

fn deadline(egress: &Egress) -> Option<NotAdmissible> {
    let worst = egress.points().into_iter().filter(|p| p.slack < 0).min_by_key(|p| p.slack)?;
    let due: Vec<usize> =
        (0..egress.sources.len()).filter(|i| egress.sources[*i].deadline <= worst.t).collect();
    let vnics = due.iter().map(|i| egress.sources[*i].name.clone()).collect();
    let mut largest = due;
    largest.sort_by_key(|i| {
        let source = &egress.sources[*i];
        let since = u128::from(worst.t - source.deadline);
        std::cmp::Reverse(source.wire_burst() * 1_000_000_000 + source.wire_rate() * since)
    });
    let mut fits = Vec::new();
    for i in largest.into_iter().take(SUGGESTED_VNICS) {
        fits.extend(source_fits(egress, i));
    }
    fits.extend(capacity_fit(egress));
    Some(NotAdmissible::Deadline {
        egress: egress.name.clone(),
        vnics,
        t: Nanos::new(worst.t),
        needed: egress::bytes_rounded_up(worst.demand + egress.blocking_nanobits()),
        available: egress::bytes_rounded_down(egress.service_within(worst.t)),
        demand: egress::bytes_rounded_up(worst.demand),
        blocking: Bytes::new(egress.blocking / 8),
        capacity: egress::rate(egress.capacity),
        host_latency: Nanos::new(egress.host_latency),
        fits,
    })
}

/// Returns the changes of source `i` that would fit. The demand falls at every t when its deadline grows, its rate
/// falls or its burst falls, so each has one boundary.
fn source_fits(egress: &Egress, i: usize) -> Vec<Fit> {
    let mut changed = egress.clone();
    let source = egress.sources[i].clone();
    let key = |key: &str| source.key(key);
    let mut fits = Vec::new();

    let mut fits_with_deadline = |us: u64| {
        changed.sources[i].deadline = source.left_of(us * MICROSECOND);
        changed.fits()
    };
    let from = (source.deadline + source.beyond()) / MICROSECOND;
    // A remote's own deadline only adds to its jitter.
    let upto = if source.table == "remote" { 0 } else { LONGEST_DEADLINE / MICROSECOND };
    if let Some(us) = smallest(from, upto, &mut fits_with_deadline) {
        let value = Nanos::new(us * MICROSECOND).to_string();
        fits.push(Fit { key: key("deadline"), relation: Relation::AtLeast, value });
    }

    changed.sources[i] = source.clone();
    let mut over_with_rate = |kbit: u64| {
        changed.sources[i].rate = kbit * KBIT;
        !changed.fits()
    };
    let boundary = smallest(1, source.rate / KBIT + 1, &mut over_with_rate);
    if let Some(kbit) = boundary.filter(|kbit| *kbit > 1) {
        fits.extend(at_most_rate(key("tx.max"), (kbit - 1) * KBIT, source.smallest_rate));
    }

    changed.sources[i] = source.clone();
    let mut over_with_burst = |bytes: u64| {
        changed.sources[i].burst = u128::from(bytes) * 8;
        !changed.fits()
    };
    let current = u64::try_from(source.burst / 8).expect("taken from a size");
    let boundary = smallest(source.smallest_burst, current, &mut over_with_burst);
    if let Some(bytes) = boundary.filter(|bytes| *bytes > source.smallest_burst) {
        let value = Bytes::new(bytes - 1).to_string();
        fits.push(Fit { key: key("tx.burst"), relation: Relation::AtMost, value });
    }
    fits
}

fn capacity_fit(egress: &Egress) -> Option<Fit> {
    let bits = u64::try_from(egress.least_capacity()?).ok()?;
    let value = Rate::from_bits(bits.next_multiple_of(KBIT))?.to_string();
    Some(Fit { key: egress.capacity_key.clone(), relation: Relation::AtLeast, value })
}

/// Rounds down to whole kbit/s; `None` if that is less than `smallest`.
fn at_most_rate(key: String, bits: u64, smallest: u64) -> Option<Fit> {
    let bits = Some(bits - bits % KBIT).filter(|bits| *bits >= smallest)?;
    let value = Rate::from_bits(bits)?.to_string();
    Some(Fit { key, relation: Relation::AtMost, value })
}

/// Returns the smallest of `low..=high` for which `holds` is true; it must be true from some value on.
fn smallest(mut low: u64, mut high: u64, holds: &mut impl FnMut(u64) -> bool) -> Option<u64> {
    if low > high || !holds(high) {
        return None;
    }
    while low < high {
        let middle = low + (high - low) / 2;
        if holds(middle) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    Some(low)
}
