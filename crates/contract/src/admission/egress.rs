//! An egress: its capacity and its promises.
//!
//! Times are nanoseconds, rates bit/s. Data in sums with rates is in nanobits (bit/s times ns), always an integer:
//! with at most 400 Gbit/s, 10 s and 1 GB each, a sum of 2^50 vNICs stays below 2^127.

use crate::{Bytes, Rate};

/// Nanobits in a bit.
pub(super) const NANO: i128 = 1_000_000_000;

/// A real-time vNIC's envelope and deadline.
#[derive(Clone, Debug)]
pub(super) struct Source {
    pub name: String,
    /// Bits.
    pub burst: u128,
    /// bit/s.
    pub rate: u64,
    /// ns.
    pub deadline: u64,
    /// Least rate that the vNIC may declare (bit/s): its `tx.min`.
    pub smallest_rate: u64,
    /// Least burst that the vNIC may declare (bytes).
    pub smallest_burst: u64,
}

/// The order in which an egress serves real-time frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// Earliest deadline first.
    Edf,
    /// Strict priorities, by deadline.
    Priority,
}

/// An egress and its promises.
#[derive(Clone, Debug)]
pub(super) struct Egress {
    pub name: String,
    pub order: Order,
    /// The key that sets its capacity.
    pub capacity_key: String,
    /// C, bit/s.
    pub capacity: u64,
    /// L, bits.
    pub blocking: u64,
    /// H, ns.
    pub host_latency: u64,
    pub sources: Vec<Source>,
    /// Guarantees of vNICs without deadline: name and bit/s.
    pub minima: Vec<(String, u64)>,
}

/// The condition at one interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Point {
    /// ns.
    pub t: u64,
    /// demand(t), nanobits.
    pub demand: i128,
    /// C (t - H) - demand(t) - L, nanobits.
    pub slack: i128,
}

impl Egress {
    /// Returns the sum of the promised rates (bit/s).
    pub(super) fn promised_rate(&self) -> u128 {
        let rates = self.sources.iter().map(|s| s.rate);
        rates.chain(self.minima.iter().map(|(_, min)| *min)).map(u128::from).sum()
    }

    /// Returns the condition for a `demand` that may be due within `t`.
    pub(super) fn point(&self, t: u64, demand: i128) -> Point {
        Point { t, demand, slack: self.service_within(t) - demand - self.blocking_nanobits() }
    }

    /// Returns C (t - H) in nanobits; negative before H.
    pub(super) fn service_within(&self, t: u64) -> i128 {
        i128::from(self.capacity) * (i128::from(t) - i128::from(self.host_latency))
    }

    /// Returns L in nanobits.
    pub(super) fn blocking_nanobits(&self) -> i128 {
        i128::from(self.blocking) * NANO
    }
}

pub(super) fn bytes_rounded_up(nanobits: i128) -> Bytes {
    Bytes::new(u64::try_from((nanobits.max(0) as u128).div_ceil(8 * NANO as u128)).unwrap_or(u64::MAX))
}

/// Returns nanobits as bytes, rounded down; 0 if negative.
pub(super) fn bytes_rounded_down(nanobits: i128) -> Bytes {
    Bytes::new(u64::try_from(nanobits.max(0) / (8 * NANO)).unwrap_or(u64::MAX))
}

pub(super) fn rate(bits: u64) -> Rate {
    Rate::from_bits(bits).expect("taken from a rate")
}
